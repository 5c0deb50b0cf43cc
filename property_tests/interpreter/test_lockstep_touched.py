"""Whoever asks is given the exact elements that a launch in lockstep loads and stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from specsim.interpreter.lockstep.launch import lockstep
from specsim.interpreter.lockstep.memory import Checks


@triton.jit  # type: ignore[untyped-decorator]
def move(source: Any, target: Any, at: Any, n: Any, BLOCK: tl.constexpr) -> None:
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    moved = tl.load(source + tl.load(at + lanes, mask=mask, other=0), mask=mask, other=0)
    tl.store(target + 2 * lanes, moved, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def count(counter: Any, last: Any) -> None:
    tl.atomic_add(counter + 1, 1)
    tl.store(last, tl.load(counter))


class Touched(Checks):
    def __init__(self) -> None:
        self.reads: dict[str, set[int]] = {}
        self.writes: dict[str, set[int]] = {}
        self.touched = self.note

    def note(self, span: Any, places: Any, lanes: Any, _itemsize: int, is_write: bool) -> None:
        if lanes is not None:
            places = np.broadcast_to(places, np.broadcast_shapes(places.shape, lanes.shape))
            places = places[np.broadcast_to(lanes, places.shape)]
        into = self.writes if is_write else self.reads
        into.setdefault(span.name, set()).update(np.ravel(places).tolist())


@pytest.mark.parametrize("n", [8, 5])
def test_masked_lanes_are_not_touched(n: int) -> None:
    source, target = torch.arange(10), torch.zeros(16, dtype=torch.int64)
    at = torch.tensor([3, 3, 9, 0, 1, 7, 7, 7])
    seen = Touched()
    with lockstep(seen):
        move[(2,)](source, target, at, n, BLOCK=4)
    assert seen.reads == {"at": set(range(n)), "source": set(at[:n].tolist())}
    assert seen.writes == {"target": {2 * i for i in range(n)}}


def test_an_atomic_operation_reads_and_writes() -> None:
    seen = Touched()
    with lockstep(seen):
        count[(3,)](torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
    assert seen.reads == {"counter": {0, 1}}
    assert seen.writes == {"counter": {1}, "last": {0}}


def test_an_access_outside_of_a_tensor_touches_the_tensors_inside() -> None:
    source, target = torch.arange(4), torch.zeros(16, dtype=torch.int64)
    at = torch.tensor([3, 3, 1 << 40, 0])
    seen = Touched()
    with lockstep(seen):
        move[(1,)](source, target, at, 4, BLOCK=4)
    assert seen.reads["source"] == {3, 0}
