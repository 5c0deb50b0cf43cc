"""How a peer is timed.

`graph`: the call is captured in a CUDA graph, and a replay of `GRAPH_CALLS` calls is timed with events and
divided, which leaves out Python and the driver. `eager`: a call from Python until the device is done, with a
host clock; for code that waits for the device and so cannot be captured, and for CPUs. Peers of different
timing are not comparable closer than that. On a CPU everything runs on one thread.

What this does not do: lock clocks, flush caches, or leave out the other programs of the machine.
"""

from __future__ import annotations

import enum
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from specsim.verdict import NotRun

if TYPE_CHECKING:
    from specsim.contracts.contract import Case, Op, Tensors

GRAPH_CALLS = 20
WARM_UP_CALLS = 3
SLOWEST_SECONDS = 1.0
"""A peer gets fewer rounds when a shape's would take longer than this."""

Shape = Mapping[str, int]


class Timing(enum.Enum):
    """How a peer is timed on a GPU; on a CPU every peer is timed eagerly."""

    EAGER = "eager"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class Peer:
    """One implementation. `prepare(case, tensors)` returns the call that is timed, which writes its outputs
    to `tensors` (every argument of the contract, on the device) or returns them by name; or it says why it
    cannot run.
    """

    name: str
    timing: Timing
    prepare: Callable[[Case, Tensors], Callable[[], Tensors] | NotRun]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One operation, the inputs it is timed on, and who is timed. `shapes` are by device, "cpu" and "cuda";
    `make_case` makes a valid case of a shape on a device; ratios are those to the peer `base`.
    """

    name: str
    summary: str
    op: Op
    shapes: Mapping[str, tuple[Shape, ...]]
    make_case: Callable[[Shape, str], Case]
    peers: tuple[Peer, ...]
    rounds: int = 50
    base: str = "reference"


@contextmanager
def one_thread() -> Iterator[None]:
    """What runs inside has one thread of torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_shape(benchmark: Benchmark, shape: Shape, device: str, rounds: int) -> list[dict[str, Any]]:
    """Time every peer on one shape. Returns the `peers` list of the result format."""
    case = benchmark.make_case(shape, device)
    expected = benchmark.op.expected(case)
    defined = benchmark.op.defined(case, expected)
    results: list[dict[str, Any]] = []
    for peer in benchmark.peers:
        timing = peer.timing if device == "cuda" else Timing.EAGER
        tensors = _own_tensors(benchmark.op, case, device)
        call = peer.prepare(case, tensors)
        not_run = call.why if isinstance(call, NotRun) else _wrong_result(call(), expected, defined)
        median = None
        if not isinstance(call, NotRun) and not_run is None:
            times = time_graph(call, rounds) if timing is Timing.GRAPH else time_eager(call, rounds, device)
            median = statistics.median(times)
        results.append({"name": peer.name, "timing": timing.value, "median": median, "not_run": not_run})
    base = next(result["median"] for result in results if result["name"] == benchmark.base)
    for result in results:
        result["ratio"] = None if None in (result["median"], base) else result["median"] / base
    return results


def _own_tensors(op: Op, case: Case, device: str) -> Tensors:
    """What one peer works on. Inputs are nobody's to change and may be gigabytes, so all peers read the same."""
    changed = {arg.name for arg in op.outputs}
    inputs = {name: tensor.clone() if name in changed else tensor for name, tensor in case.tensors.items()}
    return inputs | op.allocate_outputs(case, device)


def _wrong_result(results: Tensors, expected: Tensors, defined: Tensors) -> str | None:
    """Why a result does not count, None if it is right. A pipeline may leave out what only a fused operation gives."""
    for name, mask in defined.items():
        if name in results and not torch.equal(results[name][mask], expected[name][mask]):
            return f"its {name} differs from the reference's"
    return None


def time_eager(call: Callable[[], object], rounds: int, device: str) -> list[float]:
    """Microseconds of each of `rounds` calls, fewer if they take long."""
    for _ in range(WARM_UP_CALLS):
        call()
    times: list[float] = []
    while len(times) < rounds and (not times or sum(times) < SLOWEST_SECONDS * 1e6):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def time_graph(
    call: Callable[[], object], rounds: int, calls: int = GRAPH_CALLS, slowest_seconds: float = SLOWEST_SECONDS
) -> list[float]:
    """Microseconds of one call, from each of `rounds` replays of a CUDA graph of so many calls, fewer if they take
    longer than `slowest_seconds`.
    """
    for _ in range(WARM_UP_CALLS):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    times: list[float] = []
    while len(times) < rounds and (not times or sum(times) * calls < slowest_seconds * 1e6):
        start, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return times
