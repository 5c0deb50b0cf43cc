"""What the releases of vLLM import on the way to their engine's loop: see `specsim.world.packages`."""

from __future__ import annotations

import base64
import dataclasses
import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from specsim.world.fakes import nothing, said
from specsim.world.packages import Packages

PACKAGE = "vllm"
PAD_SLOT = -1
"""The slot of a token that is none, of vllm/v1/attention/backends/utils.py."""
_FABRICATED = """
    PIL aiohttp blake3 cachetools cbor2 cloudpickle compressed_tensors diskcache einops fastapi gguf huggingface_hub
    llguidance lmformatenumerator numba openai outlines_core prometheus_client psutil pybase64 pydantic pydantic_core
    regex requests safetensors setproctitle soundfile tokenizers torchvision tqdm transformers uvloop xgrammar xxhash
    yaml zmq
"""
_IMPORTED = """
    distributed.kv_events distributed.kv_transfer.kv_connector.v1.base
    envs exceptions multimodal.utils outputs pooling_params sampling_params utils.hashing
    utils.import_utils utils.math_utils utils.torch_utils utils.torch_version v1.core v1.engine v1.hisparse
    v1.kv_cache_interface v1.kv_cache_layout v1.kv_cache_spec_registry v1.kv_hints v1.metrics.stats v1.outputs
    v1.request v1.serial_utils v1.spec_decode.dynamic v1.spec_decode.metrics v1.structured_output v1.utils
    v1.worker.block_table v1.worker.gpu.async_utils v1.worker.gpu.block_table v1.worker.gpu.buffer_utils
    v1.worker.gpu.input_batch v1.worker.gpu.kv_connector v1.worker.gpu.model_runner v1.worker.gpu.pp_utils
    v1.worker.gpu.sample.output v1.worker.gpu.spec_decode.utils v1.worker.gpu.states v1.worker.gpu.structured_outputs
"""


class _Connectors:
    """In place of the release's factory, which imports connectors by their names."""

    @staticmethod
    def create_connector(config: Any, role: Any, kv_cache_config: Any) -> Any:
        return config.kv_transfer_config.make(config, role, kv_cache_config)


class _Logger(logging.Logger):
    """Says nothing."""

    debug_once = info_once = warning_once = nothing

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802
        return False


def _dataclass(*classes: type, **_options: Any) -> Any:
    """As that of pydantic, which takes options of its own, and checks what it is given."""
    made: Callable[..., Any] = dataclasses.dataclass
    return made(*classes) if classes else made


_PLATFORM = SimpleNamespace(
    device_type="cuda",
    device_name="cuda",
    is_cuda=said(True),
    is_cuda_alike=said(True),
    register_custom_kv_cache_specs=nothing,
    **dict.fromkeys(("is_cpu", "is_rocm", "is_tpu", "is_xpu"), said(False)),
)

_CONTENTS: Mapping[str, Mapping[str, Any]] = {
    "pybase64": vars(base64),  # with the same functions
    "pydantic.dataclasses": {"dataclass": _dataclass},
    "vllm.v1.worker.lora_model_runner_mixin": {"LoRAModelRunnerMixin": type("Plain", (), {})},
    "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda tokens, _embeds: len(tokens)},
    "vllm.v1.attention.backends.utils": {"PAD_SLOT_ID": PAD_SLOT},
    "vllm.platforms": {"current_platform": _PLATFORM},
    "vllm.utils.platform_utils": dict.fromkeys(("is_pin_memory_available", "is_uva_available"), said(True)),
    "vllm.distributed.kv_transfer.kv_connector.factory": {"KVConnectorFactory": _Connectors},
    "vllm.logger": {"init_logger": _Logger},
}

PACKAGES = Packages(
    fabricated=frozenset(_FABRICATED.split()),
    real=frozenset(["msgspec", "numpy", "packaging", "torch", "triton", "typing_extensions"]),
    contents=_CONTENTS,
    imported=tuple(f"{PACKAGE}.{name}" for name in _IMPORTED.split()),
)
