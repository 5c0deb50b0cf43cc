"""Idioms of programs with streams: the racy form is reported under every policy, the right form under none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specsim.choices.chooser import replayed, seeded
from specsim.vdevice import Accesses, Device, simulate

POLICIES = {
    "eager": [0],
    "lazy": [1],
    **{f"stream {slow} lags": [2, slow] for slow in range(4)},
}
SEEDS = range(6)

Program = Callable[[Device, bool], None]
IDIOMS: dict[str, tuple[str, Program]] = {}
"""By name: the kind of finding of the racy form, and a program that is right or racy."""


def idiom(kind: str) -> Callable[[Program], Program]:
    def enter(program: Program) -> Program:
        IDIOMS[program.__name__.replace("_", " ")] = kind, program
        return program

    return enter


def side_streams(count: int) -> list[torch.cuda.Stream]:
    """Streams that have seen what the current one was given."""
    streams = [torch.cuda.Stream() for _ in range(count)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    return streams


def value() -> torch.Tensor:
    return torch.arange(4, device="cuda")


@idiom("race")
def consumer_without_an_event(_device: Device, right: bool) -> None:
    (side,) = side_streams(1)
    x = value()
    if right:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    torch.cuda.synchronize()
    assert not right or y.tolist() == [1, 2, 3, 4]


@idiom("race")
def wait_on_the_wrong_stream(_device: Device, right: bool) -> None:
    x = value()
    a, b = side_streams(2)
    with torch.cuda.stream(a):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(a if right else b)
    x.mul_(2)
    torch.cuda.synchronize()


@idiom("race")
def event_recorded_before_the_work(_device: Device, right: bool) -> None:
    x, done = value(), torch.cuda.Event()
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        if not right:
            done.record()
        x.add_(1)
        if right:
            done.record()
    done.wait()
    x.mul_(2)
    torch.cuda.synchronize()


@idiom("race")
def event_recorded_on_the_wrong_stream(_device: Device, right: bool) -> None:
    x, done = value(), torch.cuda.Event()
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        x.add_(1)
    done.record(side if right else torch.cuda.current_stream())
    done.wait()
    x.mul_(2)
    torch.cuda.synchronize()


@idiom("race")
def wait_before_the_event_is_recorded(_device: Device, right: bool) -> None:
    x, done = value(), torch.cuda.Event()
    (side,) = side_streams(1)
    if not right:
        done.wait()
    with torch.cuda.stream(side):
        x.add_(1)
        done.record()
    if right:
        done.wait()
    x.mul_(2)
    torch.cuda.synchronize()


@idiom("race")
def event_of_the_previous_iteration(_device: Device, right: bool) -> None:
    x, done = value(), torch.cuda.Event()
    (side,) = side_streams(1)
    for _ in range(3):
        side.wait_stream(torch.cuda.current_stream())
        if not right:
            done.record(side)
        with torch.cuda.stream(side):
            x.add_(1)
        if right:
            done.record(side)
        done.wait()
        x.mul_(2)
    torch.cuda.synchronize()


@idiom("race")
def write_after_read_across_iterations(_device: Device, right: bool) -> None:
    buffer = torch.zeros(4, dtype=torch.int64, device="cuda")
    (side,) = side_streams(1)
    results = []
    for step in range(3):
        if right:
            torch.cuda.current_stream().wait_stream(side)
        buffer.fill_(step)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            results.append(buffer + 1)
    torch.cuda.synchronize()
    assert not right or [result[0].item() for result in results] == [1, 2, 3]


@idiom("race")
def double_buffer_with_one_wait_too_few(_device: Device, right: bool) -> None:
    buffers = [torch.zeros(4, dtype=torch.int64, device="cuda") for _ in range(2)]
    read = [torch.cuda.Event() for _ in range(2)]
    (side,) = side_streams(1)
    for step in range(5):
        if right or step % 2:
            read[step % 2].wait()
        buffers[step % 2].fill_(step)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            buffers[step % 2].sum()
            read[step % 2].record()
    torch.cuda.synchronize()


@idiom("race")
def double_buffer_index_off_by_one(_device: Device, right: bool) -> None:
    buffers = [torch.zeros(4, dtype=torch.int64, device="cuda") for _ in range(2)]
    read = [torch.cuda.Event() for _ in range(2)]
    (side,) = side_streams(1)
    for step in range(5):
        read[step % 2].wait()
        buffers[step % 2 if right else (step + 1) % 2].fill_(step)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            buffers[step % 2].sum()
            read[step % 2].record()
    torch.cuda.synchronize()


@idiom("race")
def two_writers(_device: Device, right: bool) -> None:
    x = value()
    a, b = side_streams(2)
    with torch.cuda.stream(a):
        x.add_(1)
    if right:
        b.wait_stream(a)
    with torch.cuda.stream(b):
        x.mul_(2)
    torch.cuda.synchronize()
    assert not right or x.tolist() == [2, 4, 6, 8]


@idiom("race")
def joined_too_late(_device: Device, right: bool) -> None:
    x = value()
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        x.add_(1)
    if right:
        torch.cuda.current_stream().wait_stream(side)
    y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    assert not right or y.tolist() == [2, 4, 6, 8]


@idiom("race")
def side_stream_not_joined_to_the_third(_device: Device, right: bool) -> None:
    x = value()
    a, b = side_streams(2)
    with torch.cuda.stream(a):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(a)
    if right:
        b.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(b):
        x.clone()
    torch.cuda.synchronize()


@idiom("race")
def in_place_update_of_an_index_in_flight(_device: Device, right: bool) -> None:
    table, index = torch.zeros(8, device="cuda"), torch.tensor([1, 2], device="cuda")
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        table.index_add_(0, index, torch.ones(2, device="cuda"))
    if right:
        torch.cuda.current_stream().wait_stream(side)
    index += 1
    torch.cuda.synchronize()
    assert not right or table.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]


@idiom("race")
def a_view_of_the_buffer_in_flight(_device: Device, right: bool) -> None:
    x = torch.zeros(2, 4, device="cuda")
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        x[0].add_(1)
    if right:
        torch.cuda.current_stream().wait_stream(side)
    x.T.reshape(4, 2).sum()
    torch.cuda.synchronize()


@idiom("race")
def rows_that_overlap(device: Device, right: bool) -> None:
    table = torch.zeros(4, 4, device="cuda")
    device.track_elements(table, "table")
    rows = torch.tensor([[0, 1], [2, 3] if right else [1, 2]], device="cuda")
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        table[rows[0]] = torch.ones(2, 4, device="cuda")
    table[rows[1]] = torch.full((2, 4), 2.0, device="cuda")
    torch.cuda.synchronize()


@idiom("race")
def a_kernel_that_reads_a_row_which_is_rewritten(device: Device, right: bool) -> None:
    table, out = torch.zeros(4, 4, device="cuda"), torch.zeros(4, device="cuda")
    device.track_elements(table, "table")
    (side,) = side_streams(1)

    def gather(accesses: Accesses) -> None:
        accesses.read(table, range(4, 8))
        accesses.host(out).copy_(accesses.host(table)[1])

    with torch.cuda.stream(side):
        device.launch(gather, writes=[out], name="gather")
    table[2 if right else 1] = 5
    torch.cuda.synchronize()


@idiom("race")
def upload_on_another_stream(_device: Device, right: bool) -> None:
    pinned = torch.ones(4, pin_memory=True)
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        x = pinned.to("cuda", non_blocking=True)
        ready = side.record_event()
    if right:
        ready.wait()
    y = x + 1
    torch.cuda.synchronize()
    assert not right or y.tolist() == [2, 2, 2, 2]


@idiom("race")
def stream_switched_back_too_early(_device: Device, right: bool) -> None:
    (side,) = side_streams(1)
    before = torch.cuda.current_stream()
    torch.cuda.set_stream(side)
    x = value()
    if not right:
        torch.cuda.set_stream(before)
    x.add_(1)
    torch.cuda.set_stream(before)
    torch.cuda.synchronize()


@idiom("host-read")
def read_before_copy_done(_device: Device, right: bool) -> None:
    copied = torch.cuda.Event()
    result = value().to("cpu", non_blocking=True)
    copied.record()
    if right:
        copied.synchronize()
    assert not right or result.tolist() == [0, 1, 2, 3]
    result.tolist()


@idiom("host-read")
def copy_done_recorded_before_the_copy(_device: Device, right: bool) -> None:
    x, copied = value(), torch.cuda.Event()
    if not right:
        copied.record()
    result = x.to("cpu", non_blocking=True)
    if right:
        copied.record()
    copied.synchronize()
    result.tolist()


@idiom("host-read")
def synchronizing_the_stream_that_does_not_copy(_device: Device, right: bool) -> None:
    x = value()
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        result = x.to("cpu", non_blocking=True)
    (side if right else torch.cuda.current_stream()).synchronize()
    result.tolist()


@idiom("host-read")
def query_that_is_ignored(_device: Device, right: bool) -> None:
    copied = torch.cuda.Event()
    buffer = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    buffer.copy_(value(), non_blocking=True)
    copied.record()
    if right:
        while not copied.query():
            torch.cuda.current_stream().synchronize()
    buffer.sum()


@idiom("pinned-reuse")
def pinned_buffer_reused_while_it_is_uploaded(_device: Device, right: bool) -> None:
    buffer, uploaded = torch.zeros(4, dtype=torch.int64, pin_memory=True), torch.cuda.Event()
    kept = []
    for step in range(3):
        if right:
            uploaded.synchronize()
        buffer.fill_(step)
        kept.append(buffer.to("cuda", non_blocking=True))
        uploaded.record()
    assert not right or [copy[0].item() for copy in kept] == [0, 1, 2]
    torch.cuda.synchronize()


@idiom("pinned-reuse")
def pinned_result_cleared_while_it_arrives(_device: Device, right: bool) -> None:
    buffer = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    buffer.copy_(value(), non_blocking=True)
    if right:
        torch.cuda.synchronize()
    buffer.zero_()
    torch.cuda.synchronize()


@idiom("use-after-free")
def record_stream_missing(_device: Device, right: bool) -> None:
    (side,) = side_streams(1)
    x = value()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.sum()
    if right:
        x.record_stream(side)
    del x
    torch.zeros(4, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()


@idiom("use-after-free")
def freed_before_the_streams_are_joined(_device: Device, right: bool) -> None:
    (side,) = side_streams(1)
    x = value()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
    if right:
        torch.cuda.current_stream().wait_stream(side)
    del x
    y = torch.ones(4, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    assert y.tolist() == [1, 1, 1, 1]


@idiom("use-after-free")
def a_temporary_made_on_the_wrong_stream(_device: Device, right: bool) -> None:
    x, out = value(), torch.zeros(4, dtype=torch.int64, device="cuda")
    (side,) = side_streams(1)
    for _ in range(2):
        with torch.cuda.stream(side) if right else torch.cuda.stream(None):
            doubled = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out += doubled
        del doubled
    torch.cuda.synchronize()


@idiom("race")
def graph_replayed_while_its_input_is_written(_device: Device, right: bool) -> None:
    static, captured = torch.zeros(4, dtype=torch.int64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = static * 2
    (side,) = side_streams(1)
    for step in range(2):
        static.fill_(step)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            captured.replay()
        if right:
            torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    assert not right or out.tolist() == [2, 2, 2, 2]


@idiom("race")
def graph_replayed_while_its_output_is_read(_device: Device, right: bool) -> None:
    static, captured = value(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = static + 1
    (side,) = side_streams(1)
    sums = []
    for _ in range(2):
        captured.replay()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            sums.append(out.sum())
        if right:
            torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    assert not right or [total.item() for total in sums] == [10, 10]


@idiom("race")
def graph_whose_branches_are_not_joined(_device: Device, right: bool) -> None:
    static, captured = value(), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.graph(captured):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            static.add_(1)
        if right:
            torch.cuda.current_stream().wait_stream(side)
        out = static * 2
        torch.cuda.current_stream().wait_stream(side)
    captured.replay()
    assert not right or out.tolist() == [2, 4, 6, 8]


forms = pytest.mark.parametrize(("kind", "program"), IDIOMS.values(), ids=IDIOMS.keys())


def test_there_are_enough_idioms() -> None:
    assert len(IDIOMS) >= 20


@forms
@pytest.mark.parametrize("tape", POLICIES.values(), ids=POLICIES.keys())
def test_the_racy_form_is_reported_and_the_right_one_is_not(kind: str, program: Program, tape: list[int]) -> None:
    with simulate(replayed(tape)) as device:
        program(device, True)
    assert device.findings == []
    with simulate(replayed(tape)) as device:
        program(device, False)
    assert {found.kind for found in device.findings} == {kind}


@forms
def test_seeded_policies_say_the_same(kind: str, program: Program) -> None:
    for seed in SEEDS:
        for right in (True, False):
            chooser = seeded(seed, program.__name__)
            with simulate(replayed([3, *(chooser.choose(5, "tape") for _ in range(200))])) as device:
                program(device, right)
            assert {found.kind for found in device.findings} == (set() if right else {kind}), (seed, right)


@forms
def test_one_defect_has_one_signature_under_every_policy(kind: str, program: Program) -> None:
    signatures = []
    for tape in POLICIES.values():
        with simulate(replayed(tape)) as device:
            program(device, False)
        signatures.append({found.identity for found in device.findings})
    assert all(signature & signatures[0] for signature in signatures)
