"""Verification at a temperature from logits: specsim's one launch beside the pipeline of launches that engines run.

The pipeline adds the penalties, one row for each node, divides by the temperature and takes the softmax; where requests
ask for filters (`filtered`) it renormalises by top-k and top-p; then it zeroes a tensor for the draft's law, draws
uniform draws, and walks and samples by the CUDA operation. The logits are cast to float32 first, as engines do.

`accepted` drafts are accepted; -1: as many as a geometric law with p = 0.7 says, request by request. The target's token
has nine tenths of the probability, the rest is that of normal logits. Entries in MB are the peak of allocated memory
during a call, the logits included.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from specsim.bench import verify_logits_greedy
from specsim.bench.measure import Benchmark, Peer, Shape, Timing, run_shape
from specsim.bench.rows import BenchRow
from specsim.bench.sgl_kernel import sgl_kernel_operation
from specsim.contracts.contract import Case, Tensors
from specsim.contracts.logits import TOP_K_ALL
from specsim.contracts.registry import OPS
from specsim.reference.logits import RELAXED
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

OP = OPS["verify_logits_sampled"]
NAME = OP.name
GEOMETRIC = verify_logits_greedy.GEOMETRIC
NUM_STEPS_MAX = verify_logits_greedy.NUM_STEPS_MAX
TEMPERATURE, TOP_K, TOP_P, FREQUENCY_PENALTY = 0.8, 50, 0.95, 0.5
LIKELY = 12.0  # nine tenths at that temperature, among 128,256 normal logits
UNPENALISED = 1024  # tokens that were not put out, among them all that the trees hold
LOGITS_OF_A_PART = 2**28  # of which the reference makes laws at once


def _shape(bs: int, num_draft_tokens: int, accepted: int, filtered: int, penalised: int, logit_bits: int) -> Shape:
    sizes = {"bs": bs, "num_draft_tokens": num_draft_tokens, "accepted": accepted}
    return {**sizes, "filtered": filtered, "penalised": penalised, "logit_bits": logit_bits}


_BATCHES = [(bs, ndt) for bs in (1, 16, 64, 256) for ndt in (4, 8, 32, 64)]

SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": (_shape(1, 4, 2, 1, 1, 32), _shape(2, 4, 2, 0, 0, 32)),
    "cuda": (
        *(_shape(*batch, 2, filtered, 1, bits) for bits in (32, 16) for filtered in (1, 0) for batch in _BATCHES),
        *(_shape(*batch, 2, filtered, 0, 32) for filtered in (1, 0) for batch in _BATCHES),
        *(
            _shape(bs, ndt, accepted, filtered, 1, 32)
            for accepted in (0, GEOMETRIC, NUM_STEPS_MAX)
            for filtered in (1, 0)
            for bs, ndt in ((1, 64), (16, 8), (64, 64), (256, 8))
        ),
    ),
}


def make_case(shape: Shape, device: str) -> Case:
    """The greedy benchmark's trees and logits, with a likely token for a certain one; uniform draws are a half."""
    bs, ndt = shape["bs"], shape["num_draft_tokens"]
    greedy = verify_logits_greedy.make_case(shape, device)
    logits = greedy.tensors["logits"]
    logits.clamp_(max=LIKELY)
    vocab_size = logits.shape[1]

    def of_request(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((bs,), value, dtype=dtype, device=device)

    token = torch.arange(vocab_size, device=device)
    counts = ((token >= UNPENALISED) & (token % 97 == 0)).to(torch.int32).repeat(bs, 1)
    tensors = {
        **greedy.tensors,
        "uniform_samples": torch.full((bs, ndt), 0.5, device=device),
        "uniform_final": of_request(0.5),
        "output_counts": counts,
        "output_lens": counts.sum(1).to(torch.int32),
        "frequency_penalty": of_request(FREQUENCY_PENALTY * shape["penalised"]),
        "presence_penalty": of_request(0.0),
        "repetition_penalty": of_request(1.0),
        "min_new_tokens": of_request(0, torch.int32),
        "stop_token_ids": torch.full((bs, 1), vocab_size, device=device),
        "logit_bias": torch.zeros((0, vocab_size), device=device),
        "bias_rows": of_request(-1, torch.int32),
        "bitmask": torch.zeros((0, -(-vocab_size // 32)), dtype=torch.int32, device=device),
        "bitmask_rows": torch.full((bs * ndt,), -1, dtype=torch.int32, device=device),
        "temperature": of_request(TEMPERATURE),
        "top_k": of_request(TOP_K if shape["filtered"] else TOP_K_ALL, torch.int32),
        "top_p": of_request(TOP_P if shape["filtered"] else 1.0),
        "min_p": of_request(0.0),
        "threshold_single": torch.ones(1, device=device),
        "threshold_acc": torch.ones(1, device=device),
    }
    words = tensors["bitmask"].shape[1]
    sizes = {**greedy.sizes, "num_stop_tokens": 1, "num_biases": 0, "num_masks": 0, "num_words": words}
    return Case({**sizes, "law": RELAXED}, tensors)


def _reference_in_parts(**arguments: Any) -> tuple[Tensor, ...]:
    """The reference on a few requests at a time, in float32, for its laws of a whole batch would not fit a device."""
    bs, ndt = arguments["candidates"].shape
    step = max(1, LOGITS_OF_A_PART // (ndt * arguments["logits"].shape[1]))
    parts = []
    for first in range(0, bs, step):
        last = min(bs, first + step)
        part = dict(arguments)
        for arg in OP.tensor_args:
            if arg.name in part and arg.shape[0] in ("bs", "num_nodes"):
                size = ndt if arg.shape[0] == "num_nodes" else 1
                part[arg.name] = arguments[arg.name][first * size : last * size]
        part["logits"] = part["logits"].float()
        part["retrieve_index"] = part["retrieve_index"] - first * ndt
        step_of_part = OP.reference(**part)
        index = step_of_part.accept_index
        parts.append(step_of_part._replace(accept_index=torch.where(index >= 0, index + first * ndt, index)))
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


def _prepare_triton(_case: Case, tensors: Tensors) -> Callable[[], Tensors] | NotRun:
    if tensors["logits"].device.type == "cpu":
        return NotRun("triton", "on a CPU Triton interprets its kernels, which says nothing about their speed")
    from specsim.kernels import verify_logits_sampled

    named: dict[str, Any] = {arg.name: tensors[arg.name] for arg in OP.tensor_args}
    named |= {"num_steps": _case.sizes["num_steps"], "law": _case.sizes["law"]}

    def call() -> Tensors:
        verify_logits_sampled(**named)
        return tensors

    return call


def _prepare_pipeline(case: Case, tensors: Tensors) -> Callable[[], Tensors] | NotRun:
    device = tensors["logits"].device
    sample = sgl_kernel_operation("tree_speculative_sampling_target_only", device)
    top_k_renorm = sgl_kernel_operation("top_k_renorm_probs", device)
    top_p_renorm = sgl_kernel_operation("top_p_renorm_probs", device)
    if isinstance(sample, NotRun):
        return sample
    if isinstance(top_k_renorm, NotRun):
        return top_k_renorm
    if isinstance(top_p_renorm, NotRun):
        return top_p_renorm
    from specsim.kernels import fill_bonus_tokens

    bs, ndt = tensors["candidates"].shape
    width = case.sizes["accept_width"]
    links = [tensors[name] for name in ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")]
    penalised = bool((tensors["frequency_penalty"] != 0).any())
    filtered = bool((tensors["top_k"] < tensors["logits"].shape[1]).any())
    penalties = -tensors["frequency_penalty"][:, None] * tensors["output_counts"] if penalised else None

    def call() -> Tensors:
        logits = tensors["logits"].float()
        if penalties is not None:
            logits = logits + penalties.repeat_interleave(ndt, dim=0)
        probs = torch.softmax(logits / tensors["temperature"].repeat_interleave(ndt)[:, None], dim=-1)
        del logits
        if filtered:
            kept = torch.empty_like(probs)
            top_k_renorm(probs, kept, tensors["top_k"].repeat_interleave(ndt), 0)
            probs = torch.empty_like(kept)
            top_p_renorm(kept, probs, tensors["top_p"].repeat_interleave(ndt), 0.0)
            del kept
        probs = probs.view(bs, ndt, -1)
        draft_probs = torch.zeros_like(probs)
        torch.rand((bs, ndt), device=device)  # the uniform draws, of which the case has its own
        torch.rand(bs, device=device)
        predicts = torch.zeros(bs * ndt, dtype=torch.int32, device=device)
        accept_index = torch.full((bs, width), -1, dtype=torch.int32, device=device)
        accept_token_num = torch.empty(bs, dtype=torch.int32, device=device)
        coins = (tensors["uniform_samples"], tensors["uniform_final"])
        results = (predicts, accept_index, accept_token_num)
        sample(*results, tensors["candidates"], *links, *coins, probs, draft_probs, 1.0, 1.0, True)
        accept_lens = accept_token_num + 1
        new_seq_lens = tensors["seq_lens"] + accept_lens
        predicts[accept_index]
        bonus_tokens = torch.empty(bs, dtype=torch.int32, device=device)
        fill_bonus_tokens(predicts, accept_index, accept_lens, bonus_tokens)
        named = {"predicts": predicts, "accept_index": accept_index, "accept_lens": accept_lens}
        return {**named, "bonus_tokens": bonus_tokens, "new_seq_lens": new_seq_lens}

    return call


def _prepare_eager(case: Case, tensors: Tensors) -> Callable[[], Tensors] | NotRun:
    if tensors["logits"].numel() > LOGITS_OF_A_PART:
        return NotRun("torch", "sorts every row, which takes too much time and memory for so many")
    inputs: dict[str, Any] = {name: tensors[name] for name in case.tensors}
    inputs |= {"num_steps": case.sizes["num_steps"], "law": case.sizes["law"]}
    names = [arg.name for arg in OP.outputs]
    return lambda: dict(zip(names, _reference_in_parts(**inputs), strict=True))


BENCHMARK = Benchmark(
    name=NAME,
    summary="verification at a temperature, from logits to the next step",
    op=replace(OP, reference=_reference_in_parts),
    shapes=SHAPES,
    make_case=make_case,
    peers=(
        Peer("pipeline", Timing.GRAPH, _prepare_pipeline),
        Peer("torch", Timing.EAGER, _prepare_eager),
        Peer("triton", Timing.GRAPH, _prepare_triton),
    ),
    rounds=25,
    base="pipeline",
)


def rows(device: str, rounds: int | None, _full: bool) -> list[BenchRow]:
    """Times, and on a GPU the peak of memory, for every shape."""

    def measure(shape: Shape) -> list[dict[str, Any]]:
        named = {"name": NAME, "shape": dict(shape)}
        entries = [{**named, "unit": "us", "peers": run_shape(BENCHMARK, shape, device, rounds or BENCHMARK.rounds)}]
        if device == "cuda" and shape["accepted"] == 2:
            entries.append({**named, "unit": "MB", "peers": _memory_of(shape)})
        return entries

    return [BenchRow(NAME, shape, partial(measure, shape)) for shape in SHAPES[device]]


def _memory_of(shape: Shape) -> list[dict[str, Any]]:
    case = make_case(shape, "cuda")
    logits = case.tensors["logits"]
    results: list[dict[str, Any]] = []
    for peer in (BENCHMARK.peers[0], BENCHMARK.peers[-1]):
        call = peer.prepare(case, case.tensors | OP.allocate_outputs(case, "cuda"))
        peak = None
        if not isinstance(call, NotRun):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() - logits.numel() * logits.element_size()
            call()
            torch.cuda.synchronize()
            peak = (torch.cuda.max_memory_allocated() - before) / 1e6
        not_run = call.why if isinstance(call, NotRun) else None
        results.append({"name": peer.name, "timing": "memory", "median": peak, "not_run": not_run})
    base = results[0]["median"]
    for result in results:
        result["ratio"] = None if None in (result["median"], base) else result["median"] / base
    return results
