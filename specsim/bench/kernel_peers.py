"""Who is timed beside a kernel: Triton kernels of releases, sglang-kernel's CUDA operations, and PyTorch.

PyTorch is the reference without its checks: batched tensor operations, which is what an engine runs where it has no
kernel. Where it waits for the device, as an engine's eager code may, it cannot be captured and is not run.

Buffers that an operation wants filled are filled in the call that is timed: specsim's kernels need none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from specsim.bench.kernel_cases import KERNELS, scalars
from specsim.bench.sgl_kernel import sgl_kernel_operation
from specsim.contracts.contract import Case, Op, Tensors
from specsim.engines.packages import open_source
from specsim.engines.peers import LINKS, LiftedPeer
from specsim.engines.registry import ENGINES, MAIN
from specsim.engines.sgl_kernel import OPERATIONS, Launch
from specsim.engines.target import Checkout, Release, parse_target
from specsim.errors import UsageError
from specsim.lifting.cache import Cache, open_cache
from specsim.reference import unchecked
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from specsim.lifting.source import SourceTree

Call = Callable[[], Tensors]
Prepare = Callable[[Case, Tensors], Call | NotRun]

OURS = "specsim"
CUDA_OPERATIONS = "sgl_kernel"
PYTORCH = "PyTorch"
PEERS = {name: importlib.import_module(engine.peers) for name, engine in ENGINES.items() if engine.peers}
THEIRS = PEERS[MAIN]


@dataclass(frozen=True, slots=True)
class KernelPeer:
    """`prepare(case, tensors)` makes the call that is timed, or says why there is none."""

    name: str
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class LiftedPeers:
    """What releases and checkouts have: by operation, the implementations with the labels of those that share it; and
    what was looked for and not found, by operation and label.
    """

    peers: Mapping[str, list[tuple[str, LiftedPeer]]]
    missing: Mapping[str, list[tuple[str, str]]]
    not_run: list[NotRun]


def lift_all(targets: Sequence[str] | None) -> LiftedPeers:
    """Lift from `targets`, releases and checkouts; None stands for the releases that are compared with, as
    far as they are in the cache. Raises UsageError for a target that was named and cannot be read.
    """
    cache = open_cache()
    found: dict[str, list[tuple[str, LiftedPeer]]] = {}
    missing: dict[str, list[tuple[str, str]]] = {}
    not_run: list[NotRun] = []
    for text in targets if targets is not None else _releases():
        try:
            engine, source = _open(text, cache)
        except UsageError as error:
            if targets is not None:
                raise
            not_run.append(NotRun(text, str(error)))
            continue
        peers, absent = PEERS[engine].lifted_peers(source, cache)
        for peer in peers:
            found.setdefault(peer.op, []).append((source.label, peer))
        for reason in absent:
            missing.setdefault(reason.what, []).append((source.label, reason.why))
    return LiftedPeers(found, missing, not_run)


def _releases() -> list[str]:
    return [f"{engine}=={release}" for engine, theirs in PEERS.items() for release in theirs.PEER_RELEASES]


def _open(text: str, cache: Cache) -> tuple[str, SourceTree]:
    target = parse_target(text)
    if not isinstance(target, Release | Checkout) or target.engine not in PEERS:
        raise UsageError(f"{text} is no release or checkout", f"name for example {MAIN}==VERSION or {MAIN}@PATH")
    return target.engine, open_source(target, cache)


def peers_of(name: str, lifted: LiftedPeers) -> list[KernelPeer]:
    """Everybody who has the operation, specsim's kernel first."""
    peers = [KernelPeer(OURS, partial(_prepare_ours, KERNELS[name]))]
    peers += [KernelPeer(labels, partial(_prepare_lifted, peer)) for labels, peer in shared(name, lifted)]
    peers += [KernelPeer(label, partial(_not_there, NotRun(label, why))) for label, why in lifted.missing.get(name, ())]
    if name in OPERATIONS:
        peers.append(KernelPeer(CUDA_OPERATIONS, partial(_prepare_cuda, *OPERATIONS[name])))
    if name == "move_kv_of_buffers":
        peers += [
            KernelPeer(labels, partial(_prepare_lifted_layers, peer)) for labels, peer in shared("move_kv", lifted)
        ]
    if name == "build_tree_and_cache_locs":
        peers += [
            KernelPeer(f"{CUDA_OPERATIONS}, then {labels}", partial(_prepare_tree_then_slots, peer))
            for labels, peer in shared("assign_extend_cache_locs", lifted)
        ]
    peers.append(KernelPeer(PYTORCH, partial(_prepare_pytorch, KERNELS[name])))
    return peers


def shared(name: str, lifted: LiftedPeers) -> list[tuple[str, LiftedPeer]]:
    """The different implementations of an operation, each with the labels of the releases that have it."""
    by_code: dict[str, tuple[list[str], LiftedPeer]] = {}
    for label, peer in lifted.peers.get(name, ()):
        by_code.setdefault(peer.code, ([], peer))[0].append(label)
    return [(", ".join(labels), peer) for labels, peer in by_code.values()]


def _not_there(reason: NotRun, _case: Case, _tensors: Tensors) -> NotRun:
    return reason


def _prepare_ours(op: Op, case: Case, tensors: Tensors) -> Call | NotRun:
    from specsim import kernels

    kernel: Callable[..., None] = getattr(kernels, op.name)
    if op.name == "move_kv_of_buffers":
        buffers = kernels.kv_buffers(tensors["buffers"].unbind(0))
        return _writes(lambda: kernel(buffers, tensors["target"], tensors["source"]), tensors)
    arguments = {arg.name: tensors[arg.name] for arg in op.tensor_args} | scalars(op, case)
    return _writes(lambda: kernel(**arguments), tensors)


def _writes(call: Callable[[], object], tensors: Tensors) -> Call:
    def run() -> Tensors:
        call()
        return tensors

    return run


def _prepare_lifted(peer: LiftedPeer, case: Case, tensors: Tensors) -> Call | NotRun:
    if not peer.accepts(case.sizes):
        return NotRun(peer.op, "this shape is outside what it can do")
    return peer.prepare(case.sizes, tensors)


def _prepare_lifted_layers(peer: LiftedPeer, _case: Case, tensors: Tensors) -> Call:
    layers = THEIRS.layers_of(tensors["buffers"].unbind(0), tensors["buffers"].device)
    return _writes(lambda: THEIRS.copy_layers(peer.value, layers, tensors["target"], tensors["source"]), tensors)


def _prepare_tree_then_slots(peer: LiftedPeer, case: Case, tensors: Tensors) -> Call | NotRun:
    """What engines without such a kernel launch: fills, the tree, the end of each segment, the slots."""
    build = _prepare_cuda(*OPERATIONS["build_tree"], case, tensors)
    if isinstance(build, NotRun):
        return build
    starts, width = tensors["verified_seq_len"], case.sizes["num_draft_tokens"]
    ends = torch.empty_like(starts)
    find = peer.prepare(case.sizes, {**tensors, "start_offset": starts, "end_offset": ends})

    def run() -> Tensors:
        tree = build()
        torch.add(starts, width, out=ends)
        find()
        return tree

    return run


def _prepare_pytorch(op: Op, case: Case, tensors: Tensors) -> Call:
    def run() -> Tensors:
        with unchecked():
            return op.call(op.reference, case.sizes, dict(tensors))

    return run


def _prepare_cuda(operation: str, launch: Launch, case: Case, tensors: Tensors) -> Call | NotRun:
    found = sgl_kernel_operation(operation, next(iter(tensors.values())).device)
    if isinstance(found, NotRun):
        return found
    if operation == "build_tree_kernel_efficient":
        return partial(_fill_and_build, launch, found, case, tensors)
    call = launch(found, case.sizes, tensors)
    if "accept_index" not in tensors:
        return call

    def run() -> Tensors:
        tensors["predicts"].zero_()
        tensors["accept_index"].fill_(-1)
        return call()

    return run


def _fill_and_build(launch: Launch, operation: Any, case: Case, t: Tensors) -> Tensors:
    sizes, mask = case.sizes, t["tree_mask"]
    shape = (len(LINKS), sizes["bs"], sizes["num_draft_tokens"])
    links = torch.full(shape, -1, dtype=torch.int64, device=mask.device)
    mask.fill_(mask.dtype == torch.bool)
    return launch(operation, sizes, {**t, **dict(zip(LINKS, links, strict=True))})()
