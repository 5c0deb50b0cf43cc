"""Scratch that launches keep: which memory a captured launch may use, and that a graph's pointer stays good."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specsim.kernels import scratch
from specsim.kernels.scratch import scratch_of

GPU = torch.device("cuda", 0)


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A device that allocates on the CPU; what its stream does is the last element."""
    state, zeros = [False], torch.zeros

    def allocated(count: int, *, dtype: torch.dtype, device: object) -> torch.Tensor:
        return zeros(count, dtype=dtype)

    class Stream:
        cuda_stream = 7

    stubs: dict[str, Any] = {"is_current_stream_capturing": lambda: state[-1], "current_stream": lambda _device: Stream}
    for name, stub in stubs.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(torch, "zeros", allocated)
    for kept in (scratch._KEPT, scratch._OUTGROWN):
        before = kept.copy()
        monkeypatch.setattr(scratch, "_KEPT" if kept is scratch._KEPT else "_OUTGROWN", before)
    return state


def test_a_captured_launch_takes_what_its_warm_up_made(capturing: list[bool]) -> None:
    eager = scratch_of("k", GPU, 100)
    capturing.append(True)
    captured = scratch_of("k", GPU, 100)
    assert captured is scratch_of("k", GPU, 60)
    assert captured is not eager  # an eager launch beside a replay has its own


def test_a_capture_without_a_warm_up_is_zeroed_in_each_graph(capturing: list[bool]) -> None:
    scratch_of("k", GPU, 100)
    capturing.append(True)
    assert scratch_of("k", GPU, 5000) is not scratch_of("k", GPU, 5000)


def test_what_graphs_point_to_is_never_given_back(capturing: list[bool]) -> None:
    scratch_of("k", GPU, 100)
    capturing.append(True)
    pointed_to = scratch_of("k", GPU, 100)
    capturing.append(False)
    larger = scratch_of("k", GPU, 5000)
    assert len(larger) >= 5000
    assert larger is scratch_of("k", GPU, 100)
    assert any(kept is pointed_to for kept in scratch._OUTGROWN)
