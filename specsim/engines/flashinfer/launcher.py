"""The C functions that call FlashInfer's host functions, and where its headers lie.

Written against the headers' host functions by name and order of parameters, which the releases of two years share;
their later parameters have defaults.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from specsim.engines.packages import cached_packages, located, package_file
from specsim.errors import UsageError
from specsim.lifting.archive import ArchiveError, open_archive, read_member
from specsim.lifting.nvcc import Built, build
from specsim.lifting.versions import is_version

if TYPE_CHECKING:
    from specsim.engines.target import Checkout, Release
    from specsim.lifting.cache import Cache

INCLUDE = "flashinfer/data/include"
MARKER = "flashinfer/sampling.cuh"

SOURCE = r"""
#include <flashinfer/sampling.cuh>
#include <flashinfer/quantization.cuh>

namespace fs = flashinfer::sampling;
typedef unsigned int u32;
typedef unsigned long long u64;
static uint64_t* const none = nullptr;

extern "C" int specsim_chain(float* draft_probs, int* draft_ids, float* target_probs, int* tokens, int* accepted,
                             int* emitted, u32 bs, u32 num_steps, u32 vocab_size, u64 seed, void* stream) {
  return fs::ChainSpeculativeSampling<float, int>(draft_probs, draft_ids, target_probs, tokens, accepted, emitted, bs,
                                                  num_steps, vocab_size, true, none, seed, none, 0,
                                                  (cudaStream_t)stream);
}

// filter: 0 none, 1 top_k, 2 top_p, 3 min_p, 4 top_k and top_p together. One draw a row.
extern "C" int specsim_sample(int filter, float* probs, int* top_k, float* top_p, float* min_p, int* tokens,
                              bool* valid, u32 count, u32 vocab_size, u64 seed, void* stream) {
  cudaStream_t s = (cudaStream_t)stream;
  int* rows = nullptr;
  float* top_k_as_floats = (float*)top_k;
  switch (filter) {
    case 0:
      return fs::SamplingFromProb<float, int>(probs, tokens, valid, rows, count, vocab_size, true, none, seed, none, 0,
                                              s);
    case 1:
      return fs::TopKSamplingFromProb<float, int>(probs, tokens, valid, rows, top_k_as_floats, count, 0, vocab_size,
                                                  true, none, seed, none, 0, s);
    case 2:
      return fs::TopPSamplingFromProb<float, int>(probs, tokens, valid, rows, top_p, count, 1.0f, vocab_size, true,
                                                  none, seed, none, 0, s);
    case 3:
      return fs::MinPSamplingFromProb<float, int>(probs, min_p, tokens, valid, rows, count, 0.0f, vocab_size, true,
                                                  none, seed, none, 0, s);
    default:
      return fs::TopKTopPSamplingFromProb<float, int>(probs, top_k, top_p, tokens, valid, rows, count, 0, 1.0f,
                                                      vocab_size, true, none, seed, none, 0, s);
  }
}

extern "C" int specsim_top_p_renorm(float* probs, float* renormed, float* top_p, u32 rows, u32 vocab_size,
                                    void* stream) {
  return fs::TopPRenormProb<float>(probs, renormed, top_p, rows, 1.0f, vocab_size, (cudaStream_t)stream);
}

extern "C" int specsim_top_k_renorm(float* probs, float* renormed, int* top_k, u32 rows, u32 vocab_size, void* states,
                                    void* stream) {
  return fs::RadixTopKRenormProbMultiCTA<float, int>(probs, renormed, top_k, rows, 0, vocab_size,
                                                     (fs::RadixRowState*)states, (cudaStream_t)stream);
}

extern "C" int specsim_pack(bool* input, unsigned char* output, int* input_starts, int* output_starts, u32 segments,
                            void* stream) {
  return flashinfer::quantization::SegmentPackBits<int>(input, output, input_starts, output_starts, segments,
                                                        flashinfer::quantization::BitOrder::kLittle,
                                                        (cudaStream_t)stream);
}
"""


def headers(path: Path, cache: Cache) -> Path:
    """The folder that has `flashinfer/sampling.cuh`: of a wheel or its zip unpacked into the cache, of a checkout, an
    installed package, or the folder itself. Raises UsageError when there is none.
    """
    if path.is_file() and zipfile.is_zipfile(path):
        return _unpacked(path, cache)
    for folder in (path / "include", path / "data" / "include", path / INCLUDE, path):
        if (folder / MARKER).is_file():
            return folder
    raise UsageError(
        f"{path} has no include/{MARKER}", "give a checkout of FlashInfer, a wheel of flashinfer-python, or its headers"
    )


def known_headers(cache: Cache) -> Path | None:
    """The headers of the newest FlashInfer in the cache, else of the installed one, None without."""
    versions = [version for package, version in cached_packages(cache) if package == "flashinfer"]
    if known := sorted(filter(is_version, versions), key=Version):
        return _unpacked(package_file("flashinfer", known[-1], cache), cache)
    spec = importlib.util.find_spec("flashinfer")
    folders = [Path(root) / "data" / "include" for root in (spec.submodule_search_locations or [])] if spec else []
    return next((folder for folder in folders if (folder / MARKER).is_file()), None)


def built(path: Path, cache: Cache) -> Built:
    """The library of the C functions. Raises UsageError when `path` has no headers."""
    return build("flashinfer", SOURCE, [headers(path, cache)], cache)


def build_target(target: Release | Checkout, cache: Cache) -> None:
    """Build what a check of the target will need."""
    built(located(target, cache), cache)


def _unpacked(path: Path, cache: Cache) -> Path:
    try:
        return _headers_of(path, cache)
    except (ArchiveError, ValueError) as error:  # ValueError: a name that leads out of the folder
        raise UsageError(f"{path} is no wheel of flashinfer-python: {error}", "fetch it again") from error


def _headers_of(path: Path, cache: Cache) -> Path:
    with open_archive(path) as wheel:
        wanted = [info for info in wheel.infolist() if info.filename.startswith(f"{INCLUDE}/") and not info.is_dir()]
        sampling = next((info for info in wanted if info.filename == f"{INCLUDE}/{MARKER}"), None)
        if sampling is None:
            raise UsageError(f"{path} has no {INCLUDE}/{MARKER}", "give a wheel of flashinfer-python")
        place = f"headers/flashinfer-{sampling.CRC:08x}-{len(wanted)}"
        for info in wanted:
            name = info.filename.removeprefix(f"{INCLUDE}/")
            cache.store_text(f"{place}/include/{name}", read_member(wheel, info.filename).decode("utf-8", "replace"))
        return cache.path(f"{place}/include")
