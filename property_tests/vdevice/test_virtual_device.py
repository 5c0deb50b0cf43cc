"""The virtual device computes what CUDA would, in the order that a policy chooses, and reports what nothing orders."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import specsim.vdevice.device
from specsim.choices.chooser import replayed, seeded
from specsim.interpreter.triton_names import kernel_classes
from specsim.vdevice import Accesses, Device, Finding, simulate
from specsim.vdevice.device import ASKS_MAX

POLICIES = {
    "eager": (0,),
    "lazy": (1,),
    "default lags": (2, 0),
    "second lags": (2, 1),
    "random": (3, 1, 1, 2, 2, 1, 3, 1, 1),
}
policies = pytest.mark.parametrize("tape", POLICIES.values(), ids=POLICIES.keys())


def findings_of(program: Callable[[Device], None], tape: tuple[int, ...]) -> list[Finding]:
    with simulate(replayed(tape)) as device:
        program(device)
    return device.findings


@policies
def test_tensors_say_that_they_are_on_the_device_and_hold_what_cuda_would_compute(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)) as device:
        a = torch.arange(5, device="cuda")
        b = a + 1
        assert a.device == torch.device("cuda:0")
        assert a.is_cuda
        assert b.tolist() == [1, 2, 3, 4, 5]
        assert torch.cat([a, b]).sum().item() == 25
        assert torch.unique(a).tolist() == [0, 1, 2, 3, 4]
        assert a[a > 2].tolist() == [3, 4]
        assert torch.sort(a, descending=True)[0].cpu().tolist() == [4, 3, 2, 1, 0]
        assert torch.stack([a, b]).shape == (2, 5)
        assert bool((a < b).all())
        assert int(a.max()) == 4
        assert [int(x) for x in a] == [0, 1, 2, 3, 4]
        assert a.half().to("cpu", torch.float64).tolist() == [0, 1, 2, 3, 4]
    assert device.findings == []


@policies
def test_indexing_reads_and_writes_as_on_a_cpu(tape: tuple[int, ...]) -> None:
    def program(device: str) -> list[object]:
        z = torch.zeros(4, 4, dtype=torch.int32, device=device)
        z[1, 1:3] = 7
        rows = torch.tensor([1, 2], device=device)
        z[rows, 1:3] += torch.tensor([[1, 2], [3, 4]], device=device, dtype=torch.int32)
        z[z == 8] = 3
        z[..., -1] = rows[0].to(torch.int32)
        z[None, 0, rows] = torch.tensor([5, 6], dtype=torch.int32)
        picked = [
            z[rows],
            z[rows, 1],
            z[:, None, 1:3],
            z[rows[1]],
            z[torch.tensor([True, False, True, False])],
            z[0, 0],
        ]
        return [z.tolist(), *(part.tolist() for part in picked)]

    expected = program("cpu")
    with simulate(replayed(tape)):
        assert program("cuda") == expected


@policies
def test_copies_with_an_event_between_them_arrive(tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        side, copied = torch.cuda.Stream(), torch.cuda.Event()
        x = torch.arange(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            doubled = (x * 2).to("cpu", non_blocking=True)
            copied.record()
        copied.synchronize()
        assert doubled.tolist() == [0, 2, 4, 6]

    assert findings_of(program, tape) == []


@policies
def test_a_missing_event_is_reported(tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        side = torch.cuda.Stream()
        x = torch.arange(4, device="cuda")
        with torch.cuda.stream(side):
            x * 2

    (found,) = findings_of(program, tape)
    assert found.kind == "race"
    assert (found.first.what, found.first.stream) == ("arange", "default")
    assert (found.second.what, found.second.stream) == ("mul", "side")
    assert found.first.file == __file__
    assert found.first.function.endswith("program")


@policies
def test_a_host_read_before_the_copy_is_done_is_reported(tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        torch.arange(4, device="cuda").to("cpu", non_blocking=True).tolist()

    (found,) = findings_of(program, tape)
    assert found.kind == "host-read"


def test_a_host_read_gives_what_has_arrived() -> None:
    with simulate(replayed([1])):
        copy = torch.arange(4, device="cuda").to("cpu", non_blocking=True)
        assert 0 not in copy.tolist()
        torch.cuda.synchronize()
        assert copy.tolist() == [0, 1, 2, 3]


@policies
def test_a_wait_that_is_skipped_is_a_race(tape: tuple[int, ...]) -> None:
    def program(device: Device) -> None:
        device.skip(lambda kind, place, _stream, _other: kind == "wait_stream" and place.function.endswith("program"))
        side = torch.cuda.Stream()
        x = torch.arange(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)

    assert [found.kind for found in findings_of(program, tape)] == ["race"]


@policies
def test_only_the_elements_that_a_kernel_touches_race(tape: tuple[int, ...]) -> None:
    def program(device: Device, *, first: int, second: int) -> None:
        table = torch.zeros(8, dtype=torch.int64, device="cuda")
        device.track_elements(table, "table")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())

        def write(at: int) -> Callable[[Accesses], None]:
            def kernel(accesses: Accesses) -> None:
                accesses.host(table)[at] = 1
                accesses.write(table, [at])

            return kernel

        device.launch(write(first), name="first")
        with torch.cuda.stream(side):
            device.launch(write(second), name="second")

    assert findings_of(lambda device: program(device, first=1, second=2), tape) == []
    (found,) = findings_of(lambda device: program(device, first=3, second=3), tape)
    assert (found.memory, found.first.what, found.second.what) == ("table", "first", "second")
    assert "element 3" in found.detail


@policies
def test_restart_forgets_what_was_and_keeps_tensors_and_streams(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)) as device:

        def side_stream() -> torch.cuda.Stream:
            return torch.cuda.Stream()

        side = side_stream()
        x = torch.arange(4, device="cuda")
        with torch.cuda.stream(side):
            x + 1
        device.restart(replayed(tape))
        assert device.findings == []
        assert side_stream() is side
        with torch.cuda.stream(side):
            assert x.tolist() == [0, 1, 2, 3]
        device.drain()
        assert device.findings == []


def test_everything_is_restored_after_an_exception() -> None:
    def state() -> list[object]:
        cuda = dict(vars(torch.cuda))
        functions = [torch.tensor, torch.as_tensor, torch.nonzero, torch._C._set_grad_enabled]
        modes = [torch._C._only_lift_cpu_tensors(), torch.__future__.get_overwrite_module_params_on_conversion()]
        launches = [owner.run for owner in kernel_classes()]
        owners = [dict(vars(torch.Tensor)), dict(vars(torch.cuda.graphs)), list(gc.callbacks)]
        return [cuda, *functions, *modes, *launches, *owners]

    before = state()
    with pytest.raises(ZeroDivisionError), simulate(seeded(0)):
        torch.zeros(1 // 0, device="cuda")
    assert state() == before
    with simulate(seeded(0)):
        assert state() != before
    assert state() == before
    weight = torch.ones(2, requires_grad=True)
    (weight * 2).sum().backward()
    assert weight.grad is not None


def test_a_module_runs_without_autograd() -> None:
    with simulate(replayed([1])), torch.enable_grad():
        layer = torch.nn.Linear(4, 3).to("cuda")
        out = layer(torch.ones(2, 4, device="cuda"))
        assert out.shape == (2, 3)
        assert not out.requires_grad
        assert torch.isfinite(out).all()


def test_there_is_one_device_at_a_time() -> None:
    with simulate(seeded(0)):
        with pytest.raises(RuntimeError, match="active already"), simulate(seeded(0)):
            pass
        assert torch.zeros(1, device="cuda").item() == 0
    with pytest.raises(RuntimeError, match="outside"):
        specsim.vdevice.device.Stream()


@policies
def test_an_event_that_was_never_recorded_is_no_wait(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)):
        event = torch.cuda.Event()
        assert event.query()
        event.synchronize()
        event.wait()
        torch.zeros(1, device="cuda")
        event.record()
        event.synchronize()
        assert event.query()
        assert torch.cuda.current_stream().query()


def test_a_query_of_work_in_flight_is_false_and_one_that_is_done_orders_the_host() -> None:
    with simulate(replayed([1])) as device:
        copied = torch.cuda.Event()
        result = torch.arange(3, device="cuda").to("cpu", non_blocking=True)
        copied.record()
        assert not copied.query()
        device.drain()
        assert copied.query()
        assert result.tolist() == [0, 1, 2]
    assert device.findings == []


def test_who_asks_for_an_event_often_enough_finds_it_done() -> None:
    with simulate(replayed(POLICIES["lazy"])):
        side: Any = torch.cuda.Stream()
        event = torch.cuda.Event()
        with torch.cuda.stream(side):
            made = torch.ones(3, device="cuda")
            event.record()
        asked = [event.query() for _ in range(ASKS_MAX)]
        assert asked == [False] * (ASKS_MAX - 1) + [True]
        assert side.done == 1
        with torch.cuda.stream(side):
            made += 1
            event.record()
        assert not event.query()  # it is another one


def test_memory_that_is_registered_and_the_module_of_the_device_are_there() -> None:
    with simulate(replayed(())):
        assert torch.get_device_module() is torch.get_device_module("cuda") is torch.cuda
        assert torch.get_device_module("cpu") is torch.cpu
        buffer = torch.zeros(4)
        assert torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0) == 0
        assert torch.cuda.cudart().cudaHostUnregister(buffer.data_ptr()) == 0


def test_what_is_listed_as_harmless_is_kept_apart() -> None:
    with simulate(replayed([0]), ignored=[lambda found: found.second.what == "mul"]) as device:
        side = torch.cuda.Stream()
        x = torch.arange(3, device="cuda")
        with torch.cuda.stream(side):
            for _ in range(3):
                x * 2
            x + 1
    assert [found.second.what for found in device.ignored] == ["mul"]
    assert [found.second.what for found in device.findings] == ["add"]
    assert device.counts[device.ignored[0].identity] == 3


def test_an_out_of_another_shape_is_refused() -> None:
    for tape in POLICIES.values():
        with simulate(replayed(tape)):
            x, out = torch.arange(3, device="cuda"), torch.empty(0, dtype=torch.int64, device="cuda")
            with pytest.raises(NotImplementedError, match=r"resize .* \[3\]"):
                torch.add(x, 1, out=out)


def test_an_index_out_of_range_is_a_finding_of_its_turn() -> None:
    for tape in POLICIES.values():
        with simulate(replayed(tape)) as device:
            x = torch.zeros(4, device="cuda")
            at = torch.tensor([9], device="cuda")
            x[at] = 1
            assert x[at].shape == (1,)
            torch.cuda.synchronize()
        assert [found.kind for found in device.findings] == ["device-assert"] * 2


def test_shapes_that_do_not_fit_are_errors_of_the_call() -> None:
    for tape in POLICIES.values():
        with simulate(replayed(tape)):
            x, y = torch.zeros(3, device="cuda"), torch.zeros(4, device="cuda")
            with pytest.raises(RuntimeError):
                x + y
            with pytest.raises(RuntimeError):
                x.add_(y)
