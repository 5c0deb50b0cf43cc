"""Cases a second of checking in bulk (`specsim.tiers.ops.bulk`): made, run and compared, and the share of each.

A launch is made whole and compared whole, as `specsim check --only ops --bulk` does it. On a CPU one core's time
counts. On a GPU the total is of launches that follow one another; for the shares each part is waited for, so they are
of a little more than the total. The peers: the reference checked by itself, which is what a PyTorch provider costs, and
specsim's kernels, on a CPU in Triton's interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from specsim.bench.rows import BenchRow
from specsim.contracts.contract import Op
from specsim.contracts.provider import MappingProvider, Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.reference import unchecked
from specsim.tiers.ops import bulk

NAME = "differential"
PARTS = ("generated", "expected", "run", "compared")
QUICK = ("verify_tree_greedy",)
SEED = 0
SECONDS = 2.0
"""A peer is timed for so long, and once through all its sizes at least."""


class BulkSeconds(NamedTuple):
    """Seconds of `cases` cases in `launches`; the fewest and the most requests of a launch. `parts`: seconds a case, of
    each part, waited for.
    """

    cases: int
    launches: int
    packed_min: int
    packed_max: int
    parts: dict[str, float]
    seconds: float


def rows(device: str, rounds: int | None, full: bool = False) -> list[BenchRow]:
    """Time greedy verification, with `full` every operation; `rounds` times through the sizes instead of SECONDS.
    A row's entry has nanoseconds a case, and what share of all each part is.
    """
    from specsim.kernels import provider as kernels

    def row(provider: str, subject: Subject) -> BenchRow:
        shape = {"op": subject.op, "provider": provider}
        return BenchRow(NAME, shape, lambda: [_entry(provider, OPS[subject.op], subject, device, rounds)])

    return [
        row(provider.name, subject)
        for provider in (MappingProvider("reference", REFERENCE), kernels())
        for subject in provider.subjects()[0]
        if full or subject.op in QUICK
    ]


def _entry(provider: str, op: Op, subject: Subject, device: str, rounds: int | None) -> dict[str, Any]:
    place = bulk.place_of(op, subject, device, SEED)
    spent = measure(op, subject, place, rounds)
    a_case = spent.seconds / spent.cases
    packed = f"{spent.packed_min}..{spent.packed_max}" if spent.packed_min < spent.packed_max else f"{spent.packed_max}"
    shape = {"op": op.name, "provider": provider, "on": place.kind, "requests a launch": packed}
    shape |= {"launches": str(spent.launches), "cases/s": f"{spent.cases / spent.seconds:,.0f}"}
    whole = sum(spent.parts.values())
    peers = [_peer("all", device, a_case * 1e9, 1.0)]
    peers += [_peer(part, device, seconds * 1e9, seconds / whole) for part, seconds in spent.parts.items()]
    return {"name": NAME, "unit": "ns a case", "ratio": "share", "shape": shape, "peers": peers}


def _peer(name: str, device: str, median: float, ratio: float) -> dict[str, Any]:
    timing = "eager" if device == "cuda" else "cpu"
    return {"name": name, "timing": timing, "median": median, "ratio": ratio, "not_run": None}


def measure(op: Op, subject: Subject, place: bulk.BulkPlace, rounds: int | None) -> BulkSeconds:
    """Time a subject on launches of all its sizes. Raises RuntimeError when a launch is wrong: that has no time."""
    clock = time.perf_counter if place.device == "cuda" else time.process_time
    launches = _one_of_each(op, subject, place)
    for launch in launches:  # compiles
        _timed(op, subject, launch, place, {}, clock)
    parts = dict.fromkeys(PARTS, 0.0)
    for launch in launches:
        _timed(op, subject, launch, place, parts, clock)
    done, start = 0, clock()
    while done < (rounds or 1) or (rounds is None and clock() - start < SECONDS):
        wrong = [bulk.make_and_check(op, subject, launch, place) for launch in launches]
        if any(map(bool, wrong)):
            raise RuntimeError(f"{subject.name} is wrong: specsim check finds out how")
        done += 1
    seconds = clock() - start
    counts = [launch.count for launch in launches]
    by_case = {part: spent / sum(counts) for part, spent in parts.items()}
    return BulkSeconds(sum(counts) * done, len(counts) * done, min(counts), max(counts), by_case, seconds)


def _one_of_each(op: Op, subject: Subject, place: bulk.BulkPlace) -> list[bulk.BulkLaunch]:
    found: list[bulk.BulkLaunch] = []
    for launch in bulk.launches(op, subject, place, SEED, 1 << 40):
        if found and launch.tape == found[0].tape:
            break
        found.append(launch)
    return found


def _timed(
    op: Op,
    subject: Subject,
    launch: bulk.BulkLaunch,
    place: bulk.BulkPlace,
    parts: dict[str, float],
    clock: Callable[[], float],
) -> None:
    """Run a launch, waiting for each part, and add the seconds of each to `parts`."""
    start = 0.0

    def now(part: str = "") -> None:
        nonlocal start
        if place.device == "cuda":
            torch.cuda.synchronize()
        if part:
            parts[part] = parts.get(part, 0.0) + clock() - start
        start = clock()

    now()
    with unchecked():
        case = op.cases.make(launch.numbers(place.device), launch.shape)
    now("generated")
    bulk.is_wrong(op, subject, case, launch.poison, now)
