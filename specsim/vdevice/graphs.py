"""CUDA graphs: what is launched during a capture is noted, not run; a replay runs it as one operation.

A replay reads and writes what the captured operations do, in the order of their capture, which is one that the
graph allows. What forked streams of a capture leave unordered among themselves is reported at its end, but for the
elements of Triton launches, which are known when they run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch

from specsim.vdevice.device import Capture, Stream, StreamContext, active
from specsim.vdevice.findings import CALLERS_MAX
from specsim.vdevice.history import Memory, Operation


class CUDAGraph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._operations: Sequence[Operation] = ()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        owner = active()
        if owner.capture is not None:
            raise RuntimeError("a capture of a CUDA graph is under way already")
        owner.capture = Capture(owner.current)

    def capture_end(self) -> None:
        owner = active()
        if owner.capture is None:
            raise RuntimeError("capture_end without capture_begin")
        self._operations, owner.capture = owner.capture.operations, None
        _judge(self._operations)

    def replay(self) -> None:
        """Launch what was captured on the current stream."""
        owner = active()
        captured = self._operations
        launched = owner.new_operation("graph replay", owner.sites.here())

        def run(by: Operation) -> None:
            for of in captured:
                site = (*of.site[:1], *by.site)[: CALLERS_MAX + 1]
                what = f"{of.what} in a graph"
                owner.carry_out(
                    Operation(by.stream, by.n, by.clock, by.sequence, what, site, of.run, of.reads, of.writes)
                )

        launched.run = run
        for of in captured:
            owner.lend(launched, of.reads)
            owner.lend(launched, of.writes)
        owner.enqueue(launched)

    def reset(self) -> None:
        self._operations = ()

    def pool(self) -> tuple[int, int]:
        return (0, 0)


def _judge(captured: Sequence[Operation]) -> None:
    """Report accesses that nothing orders. Parts of a storage that no access joins are memories of their own: the keys
    and the values of a pool, for example, which are halves of one storage and are written by two branches.
    """
    owner = active()
    extents: dict[int, list[tuple[int, int]]] = {}
    for of in captured:
        for memory, part in (*of.reads, *of.writes):
            extents.setdefault(id(memory), []).append(_extent(part))
    starts = {memory: _starts(each) for memory, each in extents.items()}
    histories: dict[tuple[int, int], Memory] = {}
    for of in captured:
        for uses, is_write in ((of.reads, False), (of.writes, True)):
            for memory, part in uses:
                key = id(memory), bisect_right(starts[id(memory)], _extent(part)[0])
                history = histories.get(key)
                if history is None:
                    history = histories[key] = Memory(memory.owner, memory.what, memory.site)
                    history.given_name = memory.given_name
                (history.write if is_write else history.read)(of, owner.report)


def _extent(part: torch.Tensor) -> tuple[int, int]:
    """The first byte of a view in its storage, and the one behind its last; one byte at least."""
    elements = 1 + sum((int(size) - 1) * int(stride) for size, stride in zip(part.size(), part.stride(), strict=True))
    first = int(part.storage_offset()) * part.element_size()
    return first, first + max(1, elements * part.element_size())


def _starts(extents: Sequence[tuple[int, int]]) -> list[int]:
    """Where the parts begin that these extents make, each joined with those that it overlaps."""
    starts: list[int] = []
    end = -1
    for first, behind in sorted(extents):
        if first >= end:
            starts.append(first)
        end = max(end, behind)
    return starts


class graph:  # noqa: N801 - PyTorch's name
    """In place of `torch.cuda.graph`: captures what is launched inside on a stream of its own."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self._graph = cuda_graph
        self._context = StreamContext(stream or active().stream_of_captures())

    def __enter__(self) -> None:
        active().synchronize()
        self._context.__enter__()
        self._graph.capture_begin()

    def __exit__(self, *_of_exception: object) -> None:
        self._graph.capture_end()
        self._context.__exit__()
