"""Which of vLLM's two model runners a server has, by the methods of the release's own configuration."""

from __future__ import annotations

from collections.abc import Collection

V1, V2 = "V1", "V2"
CONFIG = "config/vllm.py", "VllmConfig"


def default_runner(methods: Collection[str]) -> str:
    """The model runner that a model has by default, by the names of the methods of `CONFIG`. To 0.28.0 it depends on
    the model, and most have the first one.
    """
    return V2 if "use_v2_model_runner" in methods and "_is_default_v2_model_runner_model" not in methods else V1
