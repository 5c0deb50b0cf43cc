"""The CUDA sources that newer releases have in their package: built by nvcc, called through C functions of our own.

The kernels of trees need two headers of the release alone; the sampler includes FlashInfer's too, which are taken from
the cache (`specsim targets --fetch flashinfer==VERSION`) or an installed package. Imports no torch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from specsim.engines.flashinfer.launcher import known_headers
from specsim.engines.packages import open_source
from specsim.engines.sglang.where import CUDA_HEADERS
from specsim.lifting.nvcc import Built, build

if TYPE_CHECKING:
    from specsim.engines.target import Checkout, Release
    from specsim.lifting.cache import Cache
    from specsim.lifting.source import SourceTree

EAGLE, NGRAM, SAMPLING = (f"sgl_kernel/speculative/{name}.cuh" for name in ("eagle", "ngram", "sampling"))

TREES = r"""
#include <sgl_kernel/speculative/eagle.cuh>
#include <sgl_kernel/speculative/ngram.cuh>

namespace sp = sglang::speculative;
typedef int64_t i64;

extern "C" int specsim_build_tree(i64* parents, i64* selected, i64* lens, void* mask, i64* positions, i64* index,
                                  i64* child, i64* sibling, int topk, int depth, int nodes, int mode, int bs,
                                  void* stream) {
  cudaStream_t s = (cudaStream_t)stream;
  if (mode == 2) {
    size_t bytes = nodes > 16 ? 4 : nodes > 8 ? 2 : 1;
    sp::build_tree_efficient_partial_packed<<<bs, nodes, 0, s>>>(parents, selected, lens, (uint8_t*)mask, positions,
                                                                 index, child, sibling, topk, depth, nodes, bytes);
  } else {
    sp::build_tree_efficient<<<bs, nodes, 0, s>>>(parents, selected, lens, (bool*)mask, positions, index, child,
                                                  sibling, topk, depth, nodes, mode);
  }
  return cudaGetLastError();
}

extern "C" int specsim_walk(int* predicts, int* accept_index, int* accepted, i64* candidates, i64* index, i64* child,
                            i64* sibling, i64* target, int bs, int width, int nodes, void* stream) {
  cudaStream_t s = (cudaStream_t)stream;
  sp::VerifyTreeGreedy<int, i64><<<bs, 1, 0, s>>>(predicts, accept_index, accepted, candidates, index, child, sibling,
                                                  target, bs, width, nodes);
  return cudaGetLastError();
}

extern "C" int specsim_reconstruct(bool* mask, i64* lens, i64* positions, i64* index, i64* child, i64* sibling, int bs,
                                   int nodes, void* stream) {
  sp::reconstructIndicesFromTreeMask<<<bs, nodes, 0, (cudaStream_t)stream>>>(mask, lens, positions, index, child,
                                                                            sibling, bs, nodes);
  return cudaGetLastError();
}
"""

SAMPLER = r"""
#include <sgl_kernel/speculative/sampling.cuh>
#include <algorithm>
#include <numeric>

typedef int64_t i64;
using namespace flashinfer::sampling;

template <uint32_t VEC>
static int launch(int* predicts, int* accept_index, int* accepted, i64* candidates, i64* index, i64* child,
                  i64* sibling, float* coins, float* final_coins, float* target_probs, float* draft_probs, int bs,
                  int width, int nodes, int vocab_size, float single, float acc, cudaStream_t stream) {
  constexpr uint32_t threads = 1024;
  auto kernel = sglang::speculative_sampling::TreeSpeculativeSamplingTargetOnly<threads, SCAN_ALGO, REDUCE_ALGO, VEC,
                                                                                true, float, int, i64>;
  constexpr size_t bytes = sizeof(SamplingTempStorage<threads, SCAN_ALGO, REDUCE_ALGO>);
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  if (error != cudaSuccess) return error;
  kernel<<<bs, threads, bytes, stream>>>(predicts, accept_index, accepted, candidates, index, child, sibling, coins,
                                         final_coins, target_probs, draft_probs, bs, width, nodes, vocab_size, single,
                                         std::max(acc, 1e-9f));
  return cudaGetLastError();
}

extern "C" int specsim_sample_tree(int* predicts, int* accept_index, int* accepted, i64* candidates, i64* index,
                                   i64* child, i64* sibling, float* coins, float* final_coins, float* target_probs,
                                   float* draft_probs, int bs, int width, int nodes, int vocab_size, float single,
                                   float acc, void* stream) {
  cudaStream_t s = (cudaStream_t)stream;
  int vec = std::gcd(4, vocab_size);
  auto run = vec == 4 ? launch<4> : vec == 2 ? launch<2> : launch<1>;
  return run(predicts, accept_index, accepted, candidates, index, child, sibling, coins, final_coins, target_probs,
             draft_probs, bs, width, nodes, vocab_size, single, acc, s);
}
"""


def has_sources(source: SourceTree) -> bool:
    """Whether the release has its kernels of trees as CUDA source."""
    return source.exists(f"{CUDA_HEADERS}/{EAGLE}")


def build_target(target: Release | Checkout, cache: Cache) -> None:
    """Build what a check of the target will need."""
    source = open_source(target, cache)
    if has_sources(source):
        build_trees(source, cache)
        build_sampler(source, cache)


def build_trees(source: SourceTree, cache: Cache) -> Built:
    """The library of tree building, the greedy walk and the reconstruction from a mask."""
    return build("sglang-trees", TREES, [_written(source, cache, (EAGLE, NGRAM))], cache)


def build_sampler(source: SourceTree, cache: Cache) -> Built:
    """The library of the tree sampler."""
    if not source.exists(f"{CUDA_HEADERS}/{SAMPLING}"):
        return Built(None, f"not found: {CUDA_HEADERS}/{SAMPLING}")
    flashinfer = known_headers(cache)
    if flashinfer is None:
        why = "it includes FlashInfer's headers: fill the cache with specsim targets --fetch flashinfer==VERSION"
        return Built(None, why)
    return build("sglang-sampler", SAMPLER, [_written(source, cache, (SAMPLING,)), flashinfer], cache)


def _written(source: SourceTree, cache: Cache, headers: tuple[str, ...]) -> Path:
    """A folder in the cache that has the headers, for a compiler to find."""
    texts = {header: source.read(f"{CUDA_HEADERS}/{header}") for header in headers}
    digest = hashlib.sha256("\0".join((*texts, *texts.values())).encode()).hexdigest()[:24]
    for header, text in texts.items():
        cache.store_text(f"headers/sglang-{digest}/{header}", text)
    return cache.path(f"headers/sglang-{digest}")
