"""Greedy verification from logits: specsim's one launch beside the pipeline of launches that engines run.

The pipeline is argmax, the CUDA operation of the walk, lengths, the gather of the tokens and the bonus token, with its
outputs' buffers filled as the operation wants them, on the same logits. `cast` casts them to float32 first, as engines
do with the bfloat16 that a target model gives.

`accepted` drafts are accepted; -1: as many as a geometric law with p = 0.7 says, request by request.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from specsim.bench import verify_tree_greedy
from specsim.bench.measure import Benchmark, Peer, Shape, Timing
from specsim.bench.sgl_kernel import sgl_kernel_operation
from specsim.contracts import counter_rng
from specsim.contracts.contract import Case, Tensors
from specsim.contracts.registry import OPS
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from collections.abc import Callable

OP = OPS["verify_logits_greedy"]
VOCAB_SIZE = 128_256
GEOMETRIC = -1
NUM_STEPS_MAX = verify_tree_greedy.NUM_STEPS_MAX
_DTYPES = {32: torch.float32, 16: torch.bfloat16}


def _shape(bs: int, num_draft_tokens: int, accepted: int, logit_bits: int) -> Shape:
    return {"bs": bs, "num_draft_tokens": num_draft_tokens, "accepted": accepted, "logit_bits": logit_bits}


_BATCHES = [(bs, ndt) for bs in (1, 16, 64, 256) for ndt in (4, 8, 32, 64)]

SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": (_shape(1, 4, 2, 32), _shape(4, 8, 2, 32)),
    "cuda": tuple(
        _shape(bs, ndt, accepted, bits)
        for bits in (32, 16)
        for accepted in (2, 0, GEOMETRIC, NUM_STEPS_MAX)
        for bs, ndt in _BATCHES
    ),
}


def make_case(shape: Shape, device: str) -> Case:
    """The trees of `verify_tree_greedy`'s benchmark, under normal logits whose largest is the target's token."""
    bs, ndt, accepted = shape["bs"], shape["num_draft_tokens"], shape["accepted"]
    walk = verify_tree_greedy.make_case({"bs": bs, "num_draft_tokens": ndt, "accepted": min(max(accepted, 0), ndt - 1)})
    num_steps = walk.sizes["num_steps"]
    target = walk.tensors.pop("target_predict")
    if accepted == GEOMETRIC:
        node = torch.arange(ndt)
        goes_on = counter_rng.uniform(torch.arange(bs), "goes on", num_steps) < 0.7
        lens = goes_on.long().cumprod(dim=1).sum(dim=1)  # [bs]
        target = torch.where(node < lens[:, None], node + 1, ndt)
    tensors = {name: tensor.to(device) for name, tensor in walk.tensors.items()}
    generator = torch.Generator(device).manual_seed(0)
    logits = torch.empty((bs * ndt, VOCAB_SIZE), dtype=_DTYPES[shape["logit_bits"]], device=device)
    for first in range(0, bs * ndt, 1024):  # all at once would take twice the memory
        block = logits[first : first + 1024]
        block.copy_(torch.randn(block.shape, generator=generator, device=device))
    logits.scatter_(1, target.view(-1, 1).to(device), 100.0)
    sizes = {**walk.sizes, "vocab_size": VOCAB_SIZE}
    slots = 1 + torch.randperm(bs * ndt, generator=torch.Generator().manual_seed(0))
    seq_lens = torch.full((bs,), 777, dtype=torch.int64)
    return Case(
        sizes, {"logits": logits, **tensors, "seq_lens": seq_lens.to(device), "out_cache_loc": slots.to(device)}
    )


def _prepare_triton(variant: str, case: Case, tensors: Tensors) -> Callable[[], Tensors] | NotRun:
    if tensors["logits"].device.type == "cpu":
        return NotRun("triton", "on a CPU Triton interprets its kernels, which says nothing about their speed")
    from specsim.kernels import verify_logits_greedy
    from specsim.kernels.verify import TreeTensors
    from specsim.kernels.verify_logits import StepTensors, launch_verify_logits_greedy, num_sms_of, variant_plan

    named = {arg.name: tensors[arg.name] for arg in OP.tensor_args}
    logits, *rest = named.values()
    num_steps = case.sizes["num_steps"]
    bs, ndt = tensors["candidates"].shape
    plan = variant_plan(variant == "lazy", bs, ndt, num_sms_of(tensors["logits"].device))

    def call() -> Tensors:
        if variant == "picked":
            verify_logits_greedy(**named, num_steps=num_steps)
        else:
            launch_verify_logits_greedy(plan, logits, TreeTensors(*rest[:4]), StepTensors(*rest[4:]), num_steps)
        return tensors

    return call


def _prepare_pipeline(casts: bool, case: Case, tensors: Tensors) -> Callable[[], Tensors] | NotRun:
    if casts and case.tensors["logits"].dtype == torch.float32:
        return NotRun("pipeline, cast", "the logits are float32 already")
    walk = sgl_kernel_operation("verify_tree_greedy", tensors["logits"].device)
    if isinstance(walk, NotRun):
        return walk
    from specsim.kernels import fill_bonus_tokens

    bs, ndt = tensors["candidates"].shape
    width, device = case.sizes["accept_width"], tensors["logits"].device
    links = [tensors[name] for name in ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")]

    def call() -> Tensors:
        logits = tensors["logits"].float() if casts else tensors["logits"]
        predicts = torch.zeros(bs * ndt, dtype=torch.int32, device=device)
        accept_index = torch.full((bs, width), -1, dtype=torch.int32, device=device)
        accept_token_num = torch.empty(bs, dtype=torch.int32, device=device)
        target = logits.argmax(dim=-1).view(bs, ndt)
        walk(predicts, accept_index, accept_token_num, tensors["candidates"], *links, target)
        accept_lens = accept_token_num + 1
        new_seq_lens = tensors["seq_lens"] + accept_lens
        predicts[accept_index]
        bonus_tokens = torch.empty(bs, dtype=torch.int32, device=device)
        fill_bonus_tokens(predicts, accept_index, accept_lens, bonus_tokens)
        return {
            "predicts": predicts,
            "accept_index": accept_index,
            "accept_lens": accept_lens,
            "bonus_tokens": bonus_tokens,
            "new_seq_lens": new_seq_lens,
        }

    return call


BENCHMARK = Benchmark(
    name="verify_logits_greedy",
    summary="greedy verification, from logits to the next step",
    op=OP,
    shapes=SHAPES,
    make_case=make_case,
    peers=(
        Peer("pipeline", Timing.GRAPH, partial(_prepare_pipeline, False)),
        Peer("pipeline, cast", Timing.GRAPH, partial(_prepare_pipeline, True)),
        Peer("triton", Timing.GRAPH, partial(_prepare_triton, "picked")),
        Peer("triton, eager", Timing.GRAPH, partial(_prepare_triton, "eager")),
        Peer("triton, lazy", Timing.GRAPH, partial(_prepare_triton, "lazy")),
    ),
    rounds=25,
    base="pipeline",
)
