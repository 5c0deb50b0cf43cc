"""What the CUDA sources of a release provide, on a GPU: the operations of trees and the tree sampler."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.provider import Provider, Subject
from specsim.contracts.registry import OPS
from specsim.engines.packages import open_source
from specsim.engines.sglang.cuda_sources import EAGLE, NGRAM, SAMPLING, build_sampler, build_trees, has_sources
from specsim.engines.sglang.provider import SglangProvider
from specsim.lifting.nvcc import Built, call, load
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from specsim.engines.target import Checkout, Release
    from specsim.lifting.cache import Cache
    from specsim.lifting.source import SourceTree

_LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
_VERIFIED = ("predicts", "accept_index", "accept_token_num", "candidates", *_LINKS)


def _build_tree(mode: int | None, library: ctypes.CDLL, sizes: Sizes, t: Tensors) -> None:
    named = ("parent_list", "selected_index", "verified_seq_len", "tree_mask", "positions", *_LINKS)
    numbers = [sizes[name] for name in ("topk", "num_steps", "num_draft_tokens")]
    numbers += [sizes["tree_mask_mode"] if mode is None else mode, sizes["bs"]]
    call(library.specsim_build_tree, *(t[name] for name in named), *map(ctypes.c_int, numbers))


def _walk(library: ctypes.CDLL, sizes: Sizes, t: Tensors) -> None:
    numbers = [sizes[name] for name in ("bs", "accept_width", "num_draft_tokens")]
    call(library.specsim_walk, *(t[name] for name in (*_VERIFIED, "target_predict")), *map(ctypes.c_int, numbers))


def _reconstruct(library: ctypes.CDLL, sizes: Sizes, t: Tensors) -> None:
    named = ("tree_mask", "verified_seq_len", "positions", *_LINKS)
    numbers = [sizes[name] for name in ("bs", "num_draft_tokens")]
    call(library.specsim_reconstruct, *(t[name] for name in named), *map(ctypes.c_int, numbers))


def _sample(library: ctypes.CDLL, sizes: Sizes, t: Tensors) -> None:
    named = (*_VERIFIED, "uniform_samples", "uniform_final", "target_probs")
    rejected = torch.zeros_like(t["target_probs"])  # scratch, which must arrive as zeros
    numbers = [sizes[name] for name in ("bs", "accept_width", "num_draft_tokens", "vocab_size")]
    thresholds = [ctypes.c_float(float(t[name])) for name in ("threshold_single", "threshold_acc")]
    tensors = (*(t[name] for name in named), rejected)
    call(library.specsim_sample_tree, *tensors, *map(ctypes.c_int, numbers), *thresholds)


_Run = Callable[[ctypes.CDLL, Sizes, Tensors], None]
_TREES: dict[str, tuple[str, _Run]] = {
    "build_tree": (EAGLE, partial(_build_tree, None)),
    "build_tree_packed": (EAGLE, partial(_build_tree, 2)),
    "verify_tree_greedy": (EAGLE, _walk),
    "reconstruct_tree": (NGRAM, _reconstruct),
}
_SAMPLER: dict[str, tuple[str, _Run]] = {"verify_tree_target_only": (SAMPLING, _sample)}


class _WithCudaSources:
    """A release's provider, and what its CUDA sources provide."""

    def __init__(self, provider: Provider, source: SourceTree, cache: Cache) -> None:
        self.name = provider.name
        self._provider = provider
        self._source = source
        self._cache = cache

    def subjects(self) -> tuple[list[Subject], list[NotRun]]:
        found, missing = self._provider.subjects()
        in_cuda, absent = _cuda_subjects(self._source, self._cache)
        has_source = {*_TREES, *_SAMPLER}
        return found + in_cuda, [entry for entry in missing if entry.what not in has_source] + absent


def sglang_provider(target: Release | Checkout, cache: Cache, op: str) -> Provider:
    """The provider of a release or checkout and, if it has any, of its CUDA sources. Of one operation alone where `op`
    names it: no other is lifted then.
    """
    source = open_source(target, cache)
    provider = SglangProvider(source, cache, op)
    return _WithCudaSources(provider, source, cache) if has_sources(source) else provider


def _cuda_subjects(source: SourceTree, cache: Cache) -> tuple[list[Subject], list[NotRun]]:
    """The implementations that CUDA sources have, and why what is there cannot run."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return [], [
            NotRun(op, f"CUDA source ({path}), which needs a CUDA device and nvcc")
            for op, (path, _run) in (_TREES | _SAMPLER).items()
        ]
    trees = _subjects(_TREES, build_trees(source, cache))
    sampler = _subjects(_SAMPLER, build_sampler(source, cache))
    return trees[0] + sampler[0], trees[1] + sampler[1]


def _subjects(table: dict[str, tuple[str, _Run]], made: Built) -> tuple[list[Subject], list[NotRun]]:
    library = load(made.library) if made.library else made.why
    if isinstance(library, str) or made.library is None:
        return [], [NotRun(op, str(library)) for op in table]
    digest = made.library.stem.rpartition("-")[2]
    return [
        Subject(
            op,
            "kernel",
            f"kernel:{op}:cuda",
            partial(_run_in_place, op, run, library),
            where=path,
            reach=lambda _sizes: "default",
            source_hash=digest,
        )
        for op, (path, run) in table.items()
    ], []


def _run_in_place(op: str, run: _Run, library: ctypes.CDLL, sizes: Sizes, tensors: Tensors) -> Tensors:
    run(library, sizes, tensors)
    return {arg.name: tensors[arg.name] for arg in OPS[op].outputs}
