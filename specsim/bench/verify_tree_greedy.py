"""The greedy tree walk: the reference, Triton, and CUDA of an installed sgl_kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specsim.bench.measure import Benchmark, Peer, Shape, Timing
from specsim.bench.sgl_kernel import sgl_kernel_operation
from specsim.contracts.contract import Case, Tensors
from specsim.contracts.registry import OPS
from specsim.reference import unchecked
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from collections.abc import Callable

OP = OPS["verify_tree_greedy"]
OUTPUTS = tuple(arg.name for arg in OP.outputs)
NUM_STEPS_MAX = 8


def _shape(bs: int, num_draft_tokens: int, accepted: int) -> Shape:
    return {"bs": bs, "num_draft_tokens": num_draft_tokens, "accepted": accepted}


SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": (_shape(1, 4, 2), _shape(16, 8, 2), _shape(256, 64, 2), _shape(1024, 32, 2)),
    "cuda": (
        *(
            _shape(bs, ndt, 2)
            for bs, ndt in ((1, 4), (1, 64), (16, 8), (16, 64), (64, 8), (64, 64), (256, 8), (256, 64))
        ),
        *(_shape(64, 64, accepted) for accepted in (0, NUM_STEPS_MAX)),
        _shape(1024, 32, 2),
        _shape(262_144, 32, 2),
    ),
}


def make_case(shape: Shape, device: str = "cpu") -> Case:
    """The same tree for every request: a path as deep as it may be, whose nodes 1, 2, ... are each the first
    child of the one before; the other nodes hang from the path's nodes in turn. The target model agrees with
    `accepted` nodes of the path.
    """
    bs, ndt, accepted = shape["bs"], shape["num_draft_tokens"], shape["accepted"]
    num_steps = min(ndt - 1, NUM_STEPS_MAX)
    parents = [max(0, node - 1) if node <= num_steps else (node - 1) % num_steps for node in range(ndt)]
    next_token, next_sibling = [-1] * ndt, [-1] * ndt
    for node in range(ndt - 1, 0, -1):
        next_sibling[node] = next_token[parents[node]]
        next_token[parents[node]] = node
    tokens = torch.arange(ndt).repeat(bs, 1)
    target = torch.full((bs, ndt), ndt)
    target[:, :accepted] = torch.arange(1, accepted + 1)
    tensors = {
        "candidates": tokens,
        "retrieve_index": torch.arange(bs * ndt).view(bs, ndt),
        "retrieve_next_token": torch.tensor(next_token).repeat(bs, 1),
        "retrieve_next_sibling": torch.tensor(next_sibling).repeat(bs, 1),
        "target_predict": target,
    }
    sizes = {
        "bs": bs,
        "topk": 1 if num_steps == ndt - 1 else 8,
        "num_steps": num_steps,
        "num_draft_tokens": ndt,
        "accept_width": num_steps + 1,
        "num_nodes": bs * ndt,
    }
    return Case(sizes, {name: tensor.to(device) for name, tensor in tensors.items()})


def _inputs(case: Case, tensors: Tensors) -> dict[str, Any]:
    """What every implementation takes; outputs are extra."""
    return {**{name: tensors[name] for name in case.tensors}, "num_steps": case.sizes["num_steps"]}


def _prepare_reference(case: Case, tensors: Tensors) -> Callable[[], Tensors]:
    """A call of the reference, without validation."""
    arguments = _inputs(case, tensors)

    def call() -> Tensors:
        with unchecked():
            return dict(zip(OUTPUTS, OP.reference(**arguments), strict=True))

    return call


def _prepare_captured_reference(case: Case, tensors: Tensors) -> Callable[[], Tensors] | NotRun:
    if tensors["candidates"].device.type == "cpu":
        return NotRun("reference, captured", "a CPU has no CUDA graphs")
    return _prepare_reference(case, tensors)


def _prepare_triton(case: Case, tensors: Tensors) -> Callable[[], Tensors] | NotRun:
    if tensors["candidates"].device.type == "cpu":
        return NotRun("triton", "on a CPU Triton interprets its kernels, which says nothing about their speed")
    from specsim.kernels import verify_tree_greedy

    arguments = {**_inputs(case, tensors), **{name: tensors[name] for name in OUTPUTS}}

    def call() -> Tensors:
        verify_tree_greedy(**arguments)
        return tensors

    return call


def _prepare_sgl_kernel(case: Case, tensors: Tensors) -> Callable[[], Tensors] | NotRun:
    operation = sgl_kernel_operation("verify_tree_greedy", tensors["candidates"].device)
    if isinstance(operation, NotRun):
        return operation
    arguments = [tensors[name] for name in (*OUTPUTS, *case.tensors)]

    def call() -> Tensors:
        operation(*arguments)
        return tensors

    return call


BENCHMARK = Benchmark(
    name="verify_tree_greedy",
    summary="the greedy walk over draft trees",
    op=OP,
    shapes=SHAPES,
    make_case=make_case,
    peers=(
        Peer("reference", Timing.EAGER, _prepare_reference),
        Peer("reference, captured", Timing.GRAPH, _prepare_captured_reference),
        Peer("triton", Timing.GRAPH, _prepare_triton),
        Peer("sgl_kernel", Timing.GRAPH, _prepare_sgl_kernel),
    ),
)
