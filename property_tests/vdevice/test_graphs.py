"""A CUDA graph on the virtual device: its capture runs nothing, and each replay runs all of it on what memory holds."""

from __future__ import annotations

import pytest
import torch

from specsim.choices.chooser import replayed
from specsim.vdevice import simulate

POLICIES = [(0,), (1,), (2, 0), (2, 1), (3, 1, 1, 2, 2, 1, 3, 1, 1)]
policies = pytest.mark.parametrize("tape", POLICIES)


@policies
def test_a_replay_reads_what_its_inputs_hold_then(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)) as device:
        static = torch.zeros(3, device="cuda")
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            static * 2
        torch.cuda.current_stream().wait_stream(warm_up)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            assert torch.cuda.is_current_stream_capturing()
            shifted = static + 1
            out = shifted * torch.ones(3, device="cuda")
        assert not torch.cuda.is_current_stream_capturing()
        assert out.isnan().all()
        for value in (1.0, 5.0):
            static.fill_(value)
            captured.replay()
            assert out.tolist() == [value + 1] * 3
    assert device.findings == []


@policies
def test_forked_streams_are_part_of_a_capture(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)) as device:
        static, side, forked = torch.zeros(3, device="cuda"), torch.cuda.Stream(), torch.cuda.Event()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            forked.record()
            with torch.cuda.stream(side):
                side.wait_event(forked)
                out = static + 1
            torch.cuda.current_stream().wait_stream(side)
            out *= 2
        captured.replay()
        assert out.tolist() == [2, 2, 2]
    assert device.findings == []


def test_the_host_cannot_wait_during_a_capture() -> None:
    with simulate(replayed([0])):
        static, captured = torch.zeros(3, device="cuda"), torch.cuda.CUDAGraph()
        for wait in (torch.cuda.synchronize, static.tolist, torch.cuda.current_stream().synchronize):
            with pytest.raises(RuntimeError, match="captured"), torch.cuda.graph(captured):
                wait()


def test_a_capture_cannot_wait_for_what_is_not_captured() -> None:
    with simulate(replayed([0])):
        side, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="cannot wait"), torch.cuda.graph(captured):
            torch.cuda.current_stream().wait_stream(side)


@policies
@pytest.mark.parametrize(("first", "second", "races"), [((0, 2), (2, 4), False), ((0, 3), (2, 4), True)])
def test_branches_of_a_graph_may_write_parts_of_one_storage(
    tape: tuple[int, ...], first: tuple[int, int], second: tuple[int, int], races: bool
) -> None:
    with simulate(replayed(tape)) as device:
        whole, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            side.wait_stream(torch.cuda.current_stream())
            whole[slice(*first)].fill_(1)
            with torch.cuda.stream(side):
                whole[slice(*second)].fill_(2)
            torch.cuda.current_stream().wait_stream(side)
        captured.replay()
        assert whole.tolist()[2:] == [2, 2]
    assert [finding.kind for finding in device.findings] == ["race"] * races
