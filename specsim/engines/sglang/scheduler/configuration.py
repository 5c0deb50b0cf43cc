"""The configuration of a model that is none: a Llama of one layer and 128 tokens, as its config.json would have it."""

from __future__ import annotations

from typing import Any

from specsim.world.hash_model import VOCABULARY

CONTEXT_LENGTH = 512  # tokens

EVICTION, EVICTION_DEFAULT = "SGLANG_SWA_EVICTION_INTERVAL", 128
"""The variable that says how many tokens slide out of a window before their KV is given back; of srt/environ.py."""

TOY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT_LENGTH,
    "dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


KV_EVENTS = '{"publisher": "zmq"}'
"""What a server is told that publishes KV cache events."""

FULL_LAYER, WINDOW_LAYER = 0, 1
"""Layers of attention: to all positions, and where there is a sliding window, to those in it."""


class Configuration:
    """What `AutoConfig.from_pretrained` returns: fields, and the methods that a release calls on it."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self.name_or_path = self._name_or_path = ""
        self.torch_dtype = fields["dtype"]
        self.tie_word_embeddings = False

    def update(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def get_text_config(self, *_arguments: Any, **_named: Any) -> Configuration:
        return self


def config_dict(*_arguments: Any, **_named: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """In place of `PretrainedConfig.get_config_dict`."""
    return dict(TOY_LLAMA), {}


def cached_file(*_arguments: Any, **_named: Any) -> None:
    """Beside its configuration, a toy has no files."""


class AutoConfig:
    """Whatever path is given, the configuration is the toy's: no file is read and nothing is fetched."""

    @staticmethod
    def from_pretrained(*_arguments: Any, **_named: Any) -> Configuration:
        return Configuration(dict(TOY_LLAMA))

    @staticmethod
    def register(*_arguments: Any, **_named: Any) -> None: ...


class GenerationConfig:
    @staticmethod
    def from_pretrained(*_arguments: Any, **_named: Any) -> None:
        """There is none, as for a model without generation_config.json."""
