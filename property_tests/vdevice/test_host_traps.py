"""Memory of the host that copies reach: what the host reads and writes there is followed, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch

from specsim.choices.chooser import replayed
from specsim.vdevice import Device, Finding, simulate
from specsim.vdevice.tensors import HostTensor, device_view

POLICIES = [(0,), (1,), (2, 0), (2, 1), (3, 1, 1, 2, 2, 1, 3, 1, 1)]
policies = pytest.mark.parametrize("tape", POLICIES)


def findings_of(program: Callable[[Device], None], tape: tuple[int, ...]) -> list[Finding]:
    with simulate(replayed(tape)) as device:
        program(device)
    return device.findings


def arrived() -> torch.Tensor:
    return torch.arange(4, device="cuda").to("cpu", non_blocking=True)


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "tolist": lambda copy: copy.tolist(),
    "item": lambda copy: copy[0].item(),
    "int": lambda copy: int(copy[0]),
    "bool": lambda copy: bool(copy[0]),
    "iteration": lambda copy: [int(x) for x in copy],
    "an array": lambda copy: copy.numpy().tolist(),
    "a view of an array": lambda copy: copy.numpy()[1:3].tolist(),
    "an item of an array": lambda copy: copy.numpy()[1],
    "items of an array": lambda copy: copy.numpy()[[1, 2]],
    "arithmetic of arrays": lambda copy: 1 + copy.numpy(),
    "a sum of an array": lambda copy: copy.numpy().sum(),
    "a function of numpy": lambda copy: np.concatenate([[1], copy.numpy()]),
    "asarray": np.asarray,
    "arithmetic": lambda copy: copy + 1,
    "reduction": lambda copy: copy.sum(),
    "indexing": lambda copy: copy[torch.tensor([1, 2])],
    "mask": lambda copy: copy[copy > 1],
    "source of a copy": lambda copy: torch.zeros(4, dtype=torch.int64).copy_(copy),
    "clone": lambda copy: copy.clone(),
    "stack": lambda copy: torch.stack([copy, copy]),
    "comparison": lambda copy: torch.equal(copy, copy),
    "tensor": lambda copy: torch.tensor(copy),  # noqa: PLW0108 - the one that is replaced
    "list of numbers": lambda copy: torch.tensor([copy[0], copy[1]]),
    "a number for the device": lambda copy: torch.zeros(2, device="cuda") + copy[0],
    "conversion on the way back": lambda copy: copy.to("cuda", torch.float32),
}
NO_READS: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": lambda copy: (copy.shape, len(copy), copy.dtype, copy.numel(), copy.is_pinned()),
    "views": lambda copy: (copy[1:3], copy.view(2, 2).T, copy.unbind(), copy[None, 0]),
    "arrays": lambda copy: (copy.numpy()[1:3].shape, copy.numpy().T.dtype, len(copy.numpy())),
    "like": lambda copy: (torch.empty_like(copy), torch.zeros_like(copy), copy.new_zeros(2), torch.ones_like(copy)),
}


@policies
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_each_way_to_read_is_followed(read: Callable[[torch.Tensor], object], tape: tuple[int, ...]) -> None:
    def right(_device: Device) -> None:
        copy = arrived()
        torch.cuda.current_stream().synchronize()
        read(copy)

    def racy(_device: Device) -> None:
        read(arrived())

    assert {found.kind for found in findings_of(racy, tape)} == {"host-read"}
    assert findings_of(right, tape) == []


@pytest.mark.parametrize("use", NO_READS.values(), ids=NO_READS.keys())
def test_what_reads_no_values_is_no_finding(use: Callable[[torch.Tensor], object]) -> None:
    def program(_device: Device) -> None:
        use(arrived())

    assert findings_of(program, (1,)) == []


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "fill": lambda buffer: buffer.fill_(9),
    "an item": lambda buffer: buffer.__setitem__(0, 9),
    "a slice": lambda buffer: buffer.__setitem__(slice(1, 3), torch.tensor([9, 9])),
    "a copy": lambda buffer: buffer.copy_(torch.tensor([9, 9, 9, 9])),
    "in place": lambda buffer: buffer.add_(1),
    "an item of an array": lambda buffer: buffer.numpy().__setitem__(0, 9),
    "a slice of an array": lambda buffer: buffer.numpy()[1:].__setitem__(slice(None, 2), [9, 9]),
    "into an array": lambda buffer: np.add(1, 1, out=buffer.numpy()),
    "out": lambda buffer: torch.add(torch.ones(4, dtype=torch.int64), 1, out=buffer),
}


@policies
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_each_way_to_reuse_a_pinned_buffer_is_followed(
    write: Callable[[torch.Tensor], object], tape: tuple[int, ...]
) -> None:
    def program(_device: Device, *, waits: bool) -> None:
        buffer = torch.zeros(4, dtype=torch.int64, pin_memory=True)
        copy = buffer.to("cuda", non_blocking=True)
        if waits:
            torch.cuda.synchronize()
        write(buffer)
        assert waits is False or copy.tolist() == [0, 0, 0, 0]

    assert "pinned-reuse" in {found.kind for found in findings_of(lambda device: program(device, waits=False), tape)}
    assert findings_of(lambda device: program(device, waits=True), tape) == []


@policies
def test_memory_that_is_not_pinned_may_be_reused_at_once(tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        buffer = torch.arange(4)
        copy = buffer.to("cuda", non_blocking=True)
        into = torch.zeros(4, dtype=torch.int64, device="cuda")
        into.copy_(buffer, non_blocking=True)
        number = torch.tensor(5)
        sums = copy + number
        buffer.fill_(9)
        number.fill_(7)
        assert (copy.tolist(), into.tolist(), sums.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3], [5, 6, 7, 8])

    assert findings_of(program, tape) == []


@policies
def test_a_copy_that_blocks_orders_the_host_behind_it(tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        first = arrived()
        torch.tensor([1, 2], device="cuda")  # from memory that is not pinned
        assert first.tolist() == [0, 1, 2, 3]
        second = arrived()
        assert torch.ones(2, device="cuda").cpu().tolist() == [1, 1]
        assert second.tolist() == [0, 1, 2, 3]
        third, pageable = arrived(), torch.zeros(4, dtype=torch.int64)
        pageable.copy_(torch.arange(4, device="cuda"), non_blocking=True)
        assert third.tolist() == pageable.tolist() == [0, 1, 2, 3]

    assert findings_of(program, tape) == []


def test_tensors_of_two_devices_do_not_mix() -> None:
    with simulate(replayed([0])):
        x, y = torch.ones(2, device="cuda"), torch.ones(2)
        for name, args in {"add": (x, y), "cat": ([x, y],), "mul": (y, x)}.items():
            with pytest.raises(RuntimeError, match="same device"):
                getattr(torch, name)(*args)
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        assert torch.empty_like(x, device="cpu").device.type == "cpu"


def test_random_numbers_are_the_same_under_every_policy() -> None:
    drawn = []
    for tape in POLICIES:
        with simulate(replayed(tape)):
            torch.manual_seed(5)
            x = torch.empty(3, device="cuda").uniform_()
            y = torch.bernoulli(torch.full((8,), 0.5, device="cuda"))
            z = torch.rand(2, device="cuda")
            drawn.append((x.tolist(), y.tolist(), z.tolist(), torch.multinomial(x, 2).tolist()))
    assert drawn == [drawn[0]] * len(POLICIES)


@policies
def test_memory_of_the_host_that_kernels_read_is_followed(tape: tuple[int, ...]) -> None:
    """Unified addressing: the device reads what the host has written by then, and there is no copy."""

    def program(_device: Device, *, waits: bool) -> None:
        buffer = torch.zeros(4, dtype=torch.int64, pin_memory=True)
        view = device_view(cast(HostTensor, buffer))
        array = buffer.numpy()
        array[:] = [1, 2, 3, 4]
        doubled = view * 2
        if waits:
            torch.cuda.synchronize()
        array[:2] = 9
        assert not waits or doubled.tolist() == [2, 4, 6, 8]
        assert view.device.type == "cuda"

    assert "pinned-reuse" in {found.kind for found in findings_of(lambda device: program(device, waits=False), tape)}
    assert findings_of(lambda device: program(device, waits=True), tape) == []


@policies
def test_what_is_made_in_inference_mode_can_be_written_in_its_turn(tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        with torch.inference_mode():
            x = torch.tensor([1, 2], device="cuda") + 1
        assert x.add_(1).tolist() == [3, 4]

    assert findings_of(program, tape) == []
