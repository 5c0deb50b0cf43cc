"""What a recording of the virtual device says that the host and the streams did."""

from __future__ import annotations

import pytest
import torch

from specsim.choices.chooser import replayed
from specsim.vdevice import simulate
from specsim.vdevice.device import Device, Stream
from specsim.vdevice.recording import RecordedStep, recorded

EAGER, LAZY = (0,), (1,)


def _copied(device: Device, *, waits: bool) -> tuple[list[RecordedStep], dict[int, tuple[int, ...]]]:
    """Ones, copied to the host by another stream, which waits for them or not."""
    copies = torch.cuda.Stream()
    with recorded(device) as recording:
        ones = torch.ones(4, device="cuda")
        if waits:
            copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            result = ones.to("cpu", non_blocking=True)
        copies.synchronize()
        assert result.tolist() == [1.0] * 4 or not waits
    return recording.steps, recording.pairs


@pytest.mark.parametrize("policy", [EAGER, LAZY])
def test_each_operation_is_launched_once_and_run_once_after_that(policy: tuple[int, ...]) -> None:
    with simulate(replayed(policy)) as device:
        steps, _ = _copied(device, waits=True)
    launched = [step.number for step in steps if step.kind == "launch"]
    assert len(launched) == 2
    for number in launched:
        kinds = [step.kind for step in steps if step.number == number]
        assert kinds == ["launch", "run"]


def test_a_wait_of_the_host_holds_what_ran_meanwhile() -> None:
    with simulate(replayed(LAZY)) as device:
        steps, _ = _copied(device, waits=True)
    (at,) = (at for at, step in enumerate(steps) if step.kind == "wait")
    assert [step.kind for step in steps[at + 1 : steps[at].end + 1]] == ["run", "run"]
    assert steps[at].stream == "copies"


def test_an_order_names_the_operation_behind_which_a_stream_comes() -> None:
    with simulate(replayed(EAGER)) as device:
        steps, _ = _copied(device, waits=True)
    (order,) = (step for step in steps if step.kind == "order")
    (ones,) = (step for step in steps if step.kind == "run" and step.stream == order.stream)
    assert (order.lane, order.n) == ("copies", ones.n)


def test_the_accesses_of_a_race_are_operations_of_the_recording() -> None:
    with simulate(replayed(EAGER)) as device:
        steps, pairs = _copied(device, waits=False)
        assert [finding.kind for finding in device.findings] == ["race"]
    runs = {step.number: step.what for step in steps if step.kind == "run"}
    assert [runs[number] for number in pairs[0]] == ["ones", "copy to the host"]


def test_nothing_is_noted_afterwards() -> None:
    wait = Stream._wait
    with simulate(replayed(EAGER)) as device:
        before = {name: value for name, value in vars(device).items() if callable(value)}
        steps, _ = _copied(device, waits=True)
        count = len(steps)
        torch.ones(4, device="cuda")
        assert len(steps) == count
        assert {name: value for name, value in vars(device).items() if callable(value)} == before
    assert Stream._wait is wait


def test_an_operation_in_whose_run_the_count_grows_is_named() -> None:
    noted: list[int] = []
    with simulate(replayed(LAZY)) as device, recorded(device, lambda: len(noted)) as recording:
        device.launch(lambda _accesses: None, name="right")
        device.launch(lambda _accesses: noted.append(1), name="wrong")
        torch.cuda.synchronize()
    (number,) = recording.shown.values()
    assert {step.what for step in recording.steps if step.number == number} == {"wrong"}
