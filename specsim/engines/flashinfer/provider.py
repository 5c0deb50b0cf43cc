"""FlashInfer's sampling as a provider: renormalisation and packing case by case, samplers by how often they emit what.

The samplers draw from Philox with a seed, one subsequence a row: a request is drawn by as many equal rows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.frequencies import (
    Frequencies,
    chain_frequencies,
    chain_outcomes,
    evidence,
    histogram,
    token_frequencies,
)
from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS
from specsim.engines.flashinfer.launcher import built
from specsim.engines.packages import located
from specsim.engines.sgl_kernel import NEEDS_A_GPU
from specsim.engines.target import Checkout
from specsim.lifting.nvcc import call, load
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from specsim.engines.target import Release
    from specsim.lifting.cache import Cache

ROWS_MAX = 2**20
"""Of one launch of a sampler."""

ROW_STATES_BYTES = 2**20  # of the radix selection, zero before its first launch and left so


def flashinfer_provider(target: Release | Checkout, cache: Cache, _op: str) -> FlashInferProvider:
    """The provider of a FlashInfer; on a GPU its headers are built into a library, unless they were before."""
    if isinstance(target, Checkout):
        located(target, cache)  # a path that does not exist is bad input on every machine
    return FlashInferProvider(target.text, lambda: located(target, cache), cache)


class FlashInferProvider:
    """The ops tier of a FlashInfer. `locate()` says where its headers lie, and may have to fetch them."""

    def __init__(self, name: str, locate: Callable[[], Path], cache: Cache) -> None:
        self.name = name
        self._locate = locate
        self._cache = cache

    def subjects(self) -> tuple[list[Subject], list[NotRun]]:
        others = [NotRun(op, f"{self.name} has no such operation") for op in OPS if op not in RUNS]
        if os.environ.get("TRITON_INTERPRET") == "1":
            return [], [*(NotRun(op, NEEDS_A_GPU) for op in RUNS), *others]
        made = built(self._locate(), self._cache)
        library = load(made.library) if made.library else made.why
        if isinstance(library, str) or made.library is None:
            return [], [*(NotRun(op, str(library)) for op in RUNS), *others]
        digest = made.library.stem.rpartition("-")[2]
        found = [
            Subject(op, "kernel", f"kernel:{op}", partial(run, library), where, _has_drafts, source_hash=digest)
            for op, (where, run) in RUNS.items()
        ]
        return found, others


def _has_drafts(sizes: Sizes) -> bool:
    """A chain of certain drafts is given as distributions, too."""
    return bool(sizes.get("has_draft_probs", 1))


def _renorm_top_p(library: ctypes.CDLL, _sizes: Sizes, t: Tensors) -> Tensors:
    rows, vocab_size = t["probs"].shape
    sizes = (ctypes.c_uint(rows), ctypes.c_uint(vocab_size))
    call(library.specsim_top_p_renorm, t["probs"], t["renorm_probs"], t["top_p"], *sizes)
    return {"renorm_probs": t["renorm_probs"]}


def _renorm_top_k(library: ctypes.CDLL, _sizes: Sizes, t: Tensors) -> Tensors:
    rows, vocab_size = t["probs"].shape
    sizes = (ctypes.c_uint(rows), ctypes.c_uint(vocab_size))
    states = torch.zeros(ROW_STATES_BYTES, dtype=torch.uint8, device=t["probs"].device)
    call(library.specsim_top_k_renorm, t["probs"], t["renorm_probs"], t["top_k"], *sizes, states)
    return {"renorm_probs": t["renorm_probs"]}


def _pack(library: ctypes.CDLL, sizes: Sizes, t: Tensors) -> Tensors:
    """A node's row is a segment: its bits begin at every `packed_bytes`-th byte, and the bytes of no bit stay 0."""
    rows = sizes["bs"] * sizes["num_draft_tokens"]
    number = torch.arange(rows + 1, dtype=torch.int32, device=t["packed"].device)
    begins, ends = number * sizes["num_draft_tokens"], number * t["packed"].shape[-1]
    t["packed"].zero_()
    call(library.specsim_pack, t["tree_mask"], t["packed"], begins, ends, ctypes.c_uint(rows))
    return {"packed": t["packed"]}


def _parts(bs: int, draws: int) -> list[tuple[int, int, int]]:
    """(first request, requests, draws) of launches that draw each of `bs` requests `draws` times."""
    at_once = max(1, ROWS_MAX // draws)
    parts = [(first, min(at_once, bs - first), min(draws, ROWS_MAX)) for first in range(0, bs, at_once)]
    return [part for part in parts for _ in range(max(1, draws // ROWS_MAX))]


def _results(found: Frequencies, t: Tensors) -> Tensors:
    for name, tensor in found._asdict().items():
        t[name].copy_(tensor)
    return {name: t[name] for name in found._fields}


def _count_tokens(library: ctypes.CDLL, sizes: Sizes, t: Tensors) -> Tensors:
    bs, vocab_size = t["probs"].shape
    counts = torch.zeros((bs, vocab_size), dtype=torch.int64, device=t["probs"].device)
    for launch, (first, requests, draws) in enumerate(_parts(bs, sizes["draws"])):
        repeated = {
            name: t[name][first : first + requests].repeat_interleave(draws, dim=0)
            for name in ("probs", "top_k", "top_p", "min_p")
        }
        rows = requests * draws
        tokens = torch.full((rows,), -1, dtype=torch.int32, device=counts.device)
        valid = torch.ones(rows, dtype=torch.bool, device=counts.device)
        how = (ctypes.c_uint(rows), ctypes.c_uint(vocab_size), ctypes.c_ulonglong(_seed(sizes, launch)))
        call(library.specsim_sample, ctypes.c_int(sizes["which_filter"]), *repeated.values(), tokens, valid, *how)
        counts[first : first + requests] += histogram(tokens.view(requests, draws), valid, vocab_size)
    expected = token_frequencies(t["probs"], t["top_k"], t["top_p"], t["min_p"]).frequencies
    return _results(evidence(counts, expected, sizes["draws"]), t)


def _count_chains(library: ctypes.CDLL, sizes: Sizes, t: Tensors) -> Tensors:
    bs, nodes, vocab_size = t["target_probs"].shape
    num_steps = nodes - 1
    counts = torch.zeros((bs, nodes * vocab_size), dtype=torch.int64, device=t["target_probs"].device)
    drafts = t["candidates"][:, 1:].to(torch.int32).contiguous()
    for launch, (first, requests, draws) in enumerate(_parts(bs, sizes["draws"])):
        rows = requests * draws
        draft_probs, ids, target_probs = (
            whole[first : first + requests].repeat_interleave(draws, dim=0)
            for whole in (t["draft_probs"], drafts, t["target_probs"])
        )
        tokens = torch.full((rows, nodes), -7, dtype=torch.int32, device=counts.device)
        tallies = torch.zeros((2, rows), dtype=torch.int32, device=counts.device)
        how = (ctypes.c_uint(rows), ctypes.c_uint(num_steps), ctypes.c_uint(vocab_size))
        seed = ctypes.c_ulonglong(_seed(sizes, launch))
        call(library.specsim_chain, draft_probs, ids, target_probs, tokens, tallies[0], tallies[1], *how, seed)
        accepted = (tokens != -1).sum(dim=1) - 1  # [rows]
        outcome, right = chain_outcomes(tokens, accepted, ids, vocab_size)
        right &= tallies[1] == accepted
        counts[first : first + requests] += histogram(outcome.view(requests, draws), right, nodes * vocab_size)
    expected = chain_frequencies(t["candidates"], t["draft_probs"], t["target_probs"]).frequencies
    return _results(evidence(counts.view(expected.shape), expected, sizes["draws"]), t)


def _seed(sizes: Sizes, launch: int) -> int:
    return sizes["seed"] * 2**20 + launch


_SAMPLING = "flashinfer/sampling.cuh"
RUNS: dict[str, tuple[str, Callable[[ctypes.CDLL, Sizes, Tensors], Tensors]]] = {
    "top_p_renorm_probs": (f"{_SAMPLING}: TopPRenormProb", _renorm_top_p),
    "top_k_renorm_probs": ("flashinfer/topk.cuh: RadixTopKRenormProbMultiCTA", _renorm_top_k),
    "pack_tree_mask": ("flashinfer/quantization.cuh: SegmentPackBits", _pack),
    "token_frequencies": (f"{_SAMPLING}: sampling from probabilities", _count_tokens),
    "chain_frequencies": (f"{_SAMPLING}: ChainSpeculativeSampling", _count_chains),
}
"""By operation: the function of the headers, and how it is called."""
