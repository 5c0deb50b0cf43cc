"""Every kernel beside its peers, in one table: the registry's operations and the launches that fuse several of them.

On a GPU each call is timed in the replay of a CUDA graph, all peers of a shape one after the other in one run. A graph
holds several calls, each on tensors of its own as far as memory allows: if those are together larger than the L2, a
call finds nothing there ("cold"); small index tensors stay in it, as they do in an engine behind the launch that wrote
them ("warm"). On a CPU kernels run in Triton's interpreter: results are compared, and times say nothing about speed.

A kernel is compared with its bound: a launch, and the larger of the time that its bytes take at copy bandwidth and of
its longest chain of dependent reads. The bound's name is that of its largest part.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from specsim.bench import verify_step
from specsim.bench.kernel_cases import (
    KERNELS,
    ReferenceOutcome,
    bytes_to_move,
    dependent_reads,
    make_case,
    shapes,
)
from specsim.bench.kernel_peers import OURS, PYTORCH, KernelPeer, LiftedPeers, lift_all, peers_of
from specsim.bench.launches import count_launches
from specsim.bench.measure import GRAPH_CALLS
from specsim.bench.rows import BenchRow
from specsim.contracts.contract import Op, Role, Tensors, differing
from specsim.errors import UsageError
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from specsim.bench.ceilings import Ceilings

NAME = "kernels"
ROUNDS = {"cuda": 20, "cpu": 1}
CACHE_BYTES = 256 << 20
"""Tensors of that many bytes leave nothing of the first in the L2 of a large GPU."""

COPIES_BYTES_MAX = 12 << 30


def rows(
    device: str,
    rounds: int | None,
    full: bool = False,
    only: Sequence[str] = (),
    targets: Sequence[str] | None = None,
) -> list[BenchRow]:
    """Time everything, or `only` the operations and families that are named, beside the kernels of `targets` (as
    `lift_all` takes them). The first row has the ceilings, then comes one for each kernel and shape, whose ratios are
    to specsim's: above 1 is slower than it.

    Raises UsageError for a name that is no operation, fused launch or family.
    """
    chosen = _chosen(only)
    if device == "cpu" and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    repeats = rounds or ROUNDS[device]

    @cache
    def beside() -> tuple[Ceilings, LiftedPeers]:
        from specsim.bench.ceilings import measure_ceilings

        return measure_ceilings(device, repeats), lift_all(targets)

    def ceilings() -> list[dict[str, Any]]:
        measured, lifted = beside()
        entries = _ceiling_entries(measured, device)
        entries[0]["peers"] += [_peer(reason.what, None, not_run=reason.why) for reason in lifted.not_run]
        return entries

    def entry(name: str, shape: dict[str, int], is_first: bool) -> list[dict[str, Any]]:
        try:
            if name == verify_step.NAME:
                return [_step_entry(shape, device, repeats, *beside())]
            return [_entry(name, shape, device, repeats, *beside(), counts=is_first)]
        except Exception as error:  # out of memory, or a lost device: the rows that there are count
            return [_no_entry(name, shape, error)]
        finally:
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()

    shapes_of = {name: shapes(name, device, full) for name in chosen}
    if not only or verify_step.OPTION in only:
        shapes_of[verify_step.NAME] = [dict(shape) for shape in verify_step.SHAPES[device]]
    return [
        BenchRow(NAME, {"ceilings of": device}, ceilings),
        *(
            BenchRow(NAME, {"kernel": name, **shape}, partial(entry, name, shape, number == 0))
            for name, of in shapes_of.items()
            for number, shape in enumerate(of)
        ),
    ]


def _chosen(only: Sequence[str]) -> list[str]:
    families = {op.family for op in KERNELS.values()}
    unknown = [name for name in only if name not in KERNELS and name not in families | {verify_step.OPTION}]
    if unknown:
        raise UsageError(
            f"--only {unknown[0]!r} is no operation or family",
            f"name one of {', '.join((*sorted(families), verify_step.OPTION, *KERNELS))}",
        )
    return [name for name, op in KERNELS.items() if not only or name in only or op.family in only]


def _ceiling_entries(ceilings: Ceilings, device: str) -> list[dict[str, Any]]:
    timing = "graph" if device == "cuda" else "eager"
    measured = (
        ("copy", "GB/s", ceilings.bytes_per_us / 1e3),
        ("launch", "us", ceilings.launch_us),
        ("dependent read", "us", ceilings.read_us),
    )
    return [
        {
            "name": f"ceiling: {what}",
            "unit": unit,
            "shape": {},
            "peers": [_peer(device, value, timing=timing, ratio=1.0)],
        }
        for what, unit, value in measured
    ]


def _peer(
    name: str,
    median: float | None,
    *,
    timing: str = "graph",
    ratio: float | None = None,
    not_run: str | None = None,
    launches: int | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "timing": timing,
        "median": median,
        "ratio": ratio,
        "not_run": not_run,
        "launches": launches,
    }


def _entry(
    name: str,
    shape: dict[str, int],
    device: str,
    rounds: int,
    ceilings: Ceilings,
    lifted: LiftedPeers,
    counts: bool,
) -> dict[str, Any]:
    op = KERNELS[name]
    case = make_case(name, shape, device)
    expected = op.expected(case)
    outcome = ReferenceOutcome(case, expected, op.defined(case, expected))
    num_bytes = bytes_to_move(op, outcome)
    copies = _copies(outcome, num_bytes) if device == "cuda" else 1
    peers = [_time(op, outcome, peer, device, rounds, copies, counts) for peer in peers_of(name, lifted)]
    return _row(name, shape, num_bytes, dependent_reads(op, outcome), copies, ceilings, peers)


def _row(
    name: str,
    shape: dict[str, int],
    num_bytes: int,
    reads: int,
    copies: int,
    ceilings: Ceilings,
    peers: list[dict[str, Any]],
) -> dict[str, Any]:
    ours = peers[0]["median"]
    for peer in peers:
        peer["ratio"] = None if None in (peer["median"], ours) else peer["median"] / ours
    parts = {
        "bytes": num_bytes / ceilings.bytes_per_us,
        "dependent reads": reads * ceilings.read_us,
        "launch": ceilings.launch_us,
    }
    bound = parts["launch"] + max(parts["bytes"], parts["dependent reads"])
    return {
        "name": NAME,
        "kernel": name,
        "unit": "us",
        "shape": shape,
        "bytes": num_bytes,
        "bound": max(parts, key=lambda part: parts[part]),
        "bound_us": bound,
        "percent": None if ours is None else 100 * bound / ours,
        "l2": "cold" if copies * num_bytes >= CACHE_BYTES else "warm",
        "peers": peers,
    }


def _step_entry(
    shape: dict[str, int], device: str, rounds: int, ceilings: Ceilings, lifted: LiftedPeers
) -> dict[str, Any]:
    """The whole step's row: bytes are those of the rows of logits that the walks reach, which outweigh the others."""
    step = verify_step.make_step(shape, device)
    walk = KERNELS["verify_logits_greedy"]
    reference = walk.expected(step.walked)
    expected = {name: reference[name] for name in verify_step.CHECKED}
    outcome = ReferenceOutcome(
        step.walked, expected, {name: torch.ones_like(t, dtype=torch.bool) for name, t in expected.items()}
    )
    whole = ReferenceOutcome(step.walked, reference, walk.defined(step.walked, reference))
    peers = [_time(walk, outcome, peer, device, rounds, 1, True) for peer in verify_step.peers(step, lifted)]
    shape = {**shape, "topk": step.built.sizes["topk"]}
    return _row(verify_step.NAME, shape, bytes_to_move(walk, whole), dependent_reads(walk, whole), 1, ceilings, peers)


def _no_entry(name: str, shape: dict[str, int], error: BaseException) -> dict[str, Any]:
    why = f"there is no case: {_told(error)}"
    nothing = {"bytes": 0, "bound": "unknown", "bound_us": 0.0, "percent": None, "l2": ""}
    peers = [_peer(OURS, None, not_run=why)]
    return {"name": NAME, "kernel": name, "unit": "us", "shape": shape, **nothing, "peers": peers}


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _copies(outcome: ReferenceOutcome, num_bytes: int) -> int:
    """How many sets of tensors the calls of a graph take turns with."""
    held = sum(t.nbytes for t in (*outcome.case.tensors.values(), *outcome.expected.values()))
    wanted = -(-CACHE_BYTES // max(1, num_bytes))
    return max(1, min(GRAPH_CALLS, wanted, COPIES_BYTES_MAX // max(1, held)))


def _own_tensors(op: Op, outcome: ReferenceOutcome, device: str, is_first: bool) -> Tensors:
    """What one call works on: inputs of its own, but for the first, and outputs that hold nothing that is right."""
    tensors = {name: tensor if is_first else tensor.clone() for name, tensor in outcome.case.tensors.items()}
    for arg in op.outputs:
        if arg.role is Role.INOUT:
            tensors[arg.name] = outcome.case.tensors[arg.name].clone()
    return tensors | op.allocate_outputs(outcome.case, device)


def _time(
    op: Op, outcome: ReferenceOutcome, peer: KernelPeer, device: str, rounds: int, copies: int, counts: bool
) -> dict[str, Any]:
    """One peer's entry. Whatever goes wrong with it is its own reason, and the others go on."""
    from specsim.bench.ceilings import time_calls

    timing = "graph" if device == "cuda" else "eager"
    try:
        sets = [_own_tensors(op, outcome, device, number == 0) for number in range(copies)]
        prepared = [peer.prepare(outcome.case, tensors) for tensors in sets]
        calls = [call for call in prepared if not isinstance(call, NotRun)]
        refused = [call for call in prepared if isinstance(call, NotRun)]
        if refused:
            return _peer(peer.name, None, timing=timing, not_run=refused[0].why)
        wrong = _wrong(op, outcome, calls[0]())
        if wrong and peer.name != PYTORCH:
            return _peer(peer.name, None, timing=timing, not_run=wrong)
        if device == "cuda" and (why := _why_not_captured(calls[0])):
            return _peer(peer.name, None, timing=timing, not_run=why)
        turns = itertools.cycle(calls)

        def take_turns() -> object:
            return next(turns)()

        median = time_calls(take_turns, device, rounds)
        launches = count_launches(calls[0], device) if counts else None
    except Exception as error:
        return _peer(peer.name, None, timing=timing, not_run=_told(error))
    return _peer(peer.name, median, timing=timing, launches=launches)


def _wrong(op: Op, outcome: ReferenceOutcome, results: Tensors) -> str | None:
    """Why a first call's result does not count, None if it is right. It may leave out outputs."""
    for name, mask in outcome.defined.items():
        if name not in results:
            continue
        result, expected = results[name], outcome.expected[name]
        differs = differing(result, expected)
        if name in op.tolerance:
            # A sum over a vocabulary rounds by more than one over the contract's small ones does.
            differs &= ~((result - expected).abs() <= 10 * op.tolerance[name])
        if bool((differs & mask).any()):
            return f"its {name} differs from the reference's"
    return None


def _why_not_captured(call: Callable[[], object]) -> str | None:
    """Whether a call waits for the device, found out before a capture that would break on it."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        return f"it waits for the device, and cannot be captured: {str(error).partition(chr(10))[0]}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return None
