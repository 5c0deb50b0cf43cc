"""What is known of each engine, one entry an engine: what pip calls it, what of it is read, who makes what is tested.

Modules are named and not imported, so that a command which needs one of them loads no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from specsim.lifting.package import Package

Function = tuple[str, str]
"""A module and a function of it."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, or a package of kernels.

    `distribution`  what pip calls it
    `note`          what of it is tested, for a list of targets
    `subjects`      who makes what each tier tests of it, by the tier's name and in its order; the arguments of each are
                    those of the function of `load` that calls it
    `source`        the Python package that is lifted from, None where no Python of it is read
    `kept`          the entries of its wheel that are kept in the cache, None for the whole wheel
    `planted`       the defects that can be planted into its scheduler, by id: (); None for no such thing
    `reverted`      takes back a fix that a target can take back itself: (target, cache, number of the pull request);
                    None for no such thing
    `files`         the folder that a target is imported from: (target, cache); None where none is imported
    `build`         builds ahead of a check on a GPU: (target, cache); None where nothing is built
    `known`         the module that knows its functions by release, and finds which have moved; "" for none
    `peers`         the module that has its kernels and their pipeline to be timed beside specsim's; "" for none
    `speculation`   files and folders of its source that have its Triton kernels for speculation, newest first
    `compiled`      which compiled functions these use, and the operations of each: (source, `speculation`); None where
                    they use none
    """

    distribution: str
    note: str
    subjects: Mapping[str, Function]
    source: Package | None = None
    kept: re.Pattern[str] | None = None
    planted: Function | None = None
    reverted: Function | None = None
    files: Function | None = None
    build: Function | None = None
    known: str = ""
    peers: str = ""
    speculation: tuple[str, ...] = ()
    compiled: Function | None = None


_METADATA = r"[^/]+\.dist-info/METADATA"
_SGL_KERNEL = Engine(
    "sglang-kernel",
    "its CUDA operations, on a GPU",
    {"ops": ("specsim.engines.sgl_kernel", "sgl_kernel_provider")},
    kept=re.compile(rf"sgl_kernel/(sm\d+/)?common_ops\.abi3\.so|{_METADATA}"),
)
ENGINES = {
    "sglang": Engine(
        "sglang",
        "",
        {
            "ops": ("specsim.engines.sglang.cuda_subjects", "sglang_provider"),
            "scheduler": ("specsim.engines.sglang.scheduler.target", "sglang_scheduler"),
        },
        source=Package("SGLang", "sglang", "python/", "srt"),
        planted=("specsim.engines.sglang.scheduler.planted", "planted"),
        reverted=("specsim.engines.sglang.scheduler.reverted", "reverted"),
        files=("specsim.engines.importable", "folder_of"),
        build=("specsim.engines.sglang.cuda_sources", "build_target"),
        known="specsim.engines.sglang.known",
        peers="specsim.engines.sglang.peers",
        speculation=("kernels/ops/speculative", "srt/speculative"),
        compiled=("specsim.engines.sglang.compiled", "compiled_functions"),
    ),
    "vllm": Engine(
        "vllm",
        "its scheduler, and its rejection sampling and EAGLE input kernels",
        {
            "ops": ("specsim.engines.vllm.provider", "vllm_provider"),
            "scheduler": ("specsim.engines.vllm.scheduler.target", "vllm_scheduler"),
        },
        source=Package("vLLM", "vllm", "", "v1"),
        kept=re.compile(rf"vllm/([^/]+|config/vllm|(distributed|multimodal|utils|v1)/.+)\.py|{_METADATA}"),
        planted=("specsim.engines.vllm.scheduler.planted", "planted"),
        files=("specsim.engines.importable", "folder_of"),
        peers="specsim.engines.vllm.peers",
        speculation=(
            "v1/sample/rejection_sampler.py",
            "v1/spec_decode",
            "v1/worker/gpu/spec_decode",
            "v1/worker/gpu/block_table.py",
            "v1/worker/gpu/input_batch.py",
            "v1/worker/gpu/structured_outputs.py",
        ),
    ),
    "sglang-kernel": _SGL_KERNEL,
    "sgl-kernel": _SGL_KERNEL,
    "flashinfer": Engine(
        "flashinfer-python",
        "its sampling, built on a GPU by nvcc",
        {"ops": ("specsim.engines.flashinfer.provider", "flashinfer_provider")},
        kept=re.compile(rf"flashinfer/data/include/.*|{_METADATA}"),
        build=("specsim.engines.flashinfer.launcher", "build_target"),
    ),
}
MAIN = next(iter(ENGINES))
"""The engine that examples name, and that a TARGET most likely means which names none."""
