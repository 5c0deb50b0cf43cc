"""What the releases of SGLang import on the way to their scheduler: see `specsim.world.packages`."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from typing import Any

from specsim.engines.sglang.scheduler.configuration import AutoConfig, GenerationConfig, cached_file, config_dict
from specsim.world.packages import Packages, fabricated

_FABRICATED = """
    IPython PIL aiohttp compressed_tensors cuda cutlass dill einops fastapi flash_mla gguf huggingface_hub openai orjson
    partial_json_parser psutil pybase64 pydantic pydantic_core regex requests safetensors sentencepiece setproctitle
    sgl_kernel starlette torchvision tqdm transformers tvm_ffi uvicorn xgrammar yaml zmq
"""


class _Bar(list[Any]):
    """A bar of progress: what it goes through, and nothing to see."""

    def set_description(self, *_arguments: Any, **_named: Any) -> None: ...


_HOST_MEMORY = types.SimpleNamespace(total=64 << 30, available=48 << 30, used=16 << 30, percent=25.0)
_PRETRAINED = fabricated("PretrainedConfig", "transformers")
type.__setattr__(_PRETRAINED, "get_config_dict", config_dict)
_CONTENTS: Mapping[str, Mapping[str, Any]] = {
    "dill": {"dumps": lambda value: value.__qualname__.encode()},  # into JSON, at import
    "psutil": {"virtual_memory": lambda: _HOST_MEMORY},
    "regex": vars(re),  # a superset of it; patterns are compiled at import
    "tqdm": {"tqdm": _Bar},
    "transformers": {"AutoConfig": AutoConfig, "GenerationConfig": GenerationConfig, "PretrainedConfig": _PRETRAINED},
    "transformers.configuration_utils": {"PretrainedConfig": _PRETRAINED},
    "transformers.utils": {"cached_file": cached_file},
    "transformers.utils.hub": {"cached_file": cached_file},
}

PACKAGES = Packages(
    fabricated=frozenset(_FABRICATED.split()),
    real=frozenset(["filelock", "msgspec", "numpy", "packaging", "torch", "triton", "typing_extensions"]),
    absent=frozenset(["deep_gemm", "flashinfer", "mooncake", "torchao"]),
    contents=_CONTENTS,
    on_device=(
        "sglang.kernels.ops.sampling",
        "sglang.kernels.ops.speculative",
        "sglang.srt.layers.attention.triton",
        "sglang.srt.mem_cache.memory_pool_host",
        "sglang.srt.mem_cache.pool_host",
        "sglang.srt.speculative",
    ),
    asked_for_device=frozenset(["sglang.srt.utils", "sglang.srt.utils.common"]),
    listed=frozenset(["llama"]),
)
