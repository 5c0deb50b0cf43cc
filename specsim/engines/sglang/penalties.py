"""SGLang's own penalizers and `SamplingBatchInfo`, lifted, and a request as they read it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.engines.sglang.stubs import OFF, Fields, Needed, SilentLogger, nothing
from specsim.engines.sglang.where import places
from specsim.lifting.lift import Lifter

_PENALIZERS = (
    "BatchedFrequencyPenalizer",
    "BatchedMinNewTokensPenalizer",
    "BatchedPresencePenalizer",
    "BatchedRepetitionPenalizer",
)

VOCABULARY = 8
EOS = VOCABULARY - 1
RELAXED = 1


class ReleasePenalizers:
    """The release's penalizers and `SamplingBatchInfo`, lifted."""

    def __init__(self, lifter: Lifter) -> None:
        self.lifter = lifter
        self.given: dict[str, Any] = {
            "torch": torch,
            "F": torch.nn.functional,
            "logger": SilentLogger(),
            "is_pin_memory_available": lambda *_device: False,
            "get_global_server_args": OFF,
            "get_server_args": OFF,
            "get_exec": OFF,
            "get_spec": OFF,
            "TOP_K_ALL": 1 << 30,
            "ScheduleBatch": type("ScheduleBatch", (), {}),
            "SIMULATE_ACC_LEN": -1,
            "maybe_detect_nan": nothing,
            "maybe_detect_inf": nothing,
            "sanitize_nan_logits": nothing,
            # The device that the lifted code takes this machine for.
            "_is_npu": False,
            "_is_cpu": False,
            "_is_hip": False,
            "_is_xpu": False,
            "_is_cuda": True,
        }
        for name in ("apply_scaling_penalties", "_BatchedPenalizer", "BatchedPenalizerOrchestrator", *_PENALIZERS):
            self._lift(name)
        names = [*_PENALIZERS, "BatchedPenalizerOrchestrator"]
        self.given["penaltylib"] = SimpleNamespace(**{name: self.given[name] for name in names})
        self._lift("SamplingBatchInfo", of_file=("merge_bias_tensor", "_rows_to_device_indices"))
        self.info_type = self.given["SamplingBatchInfo"]

    def _lift(self, name: str, of_file: tuple[str, ...] = ()) -> None:
        """Give it under the name that it has here. Where no place has it, it is the newest that is not found."""
        known, lifter = places(name), self.lifter
        there = (p for p in known if lifter.source.exists(p[0]) and p[1] in lifter.module(p[0]).definitions)
        path, found = next(there, known[0])
        given = Needed(self.given, frozenset({found, *of_file}))
        self.given[name] = lifter.lift_method(path, found, given).value

    def info(self, reqs: list[Fields], batch: Fields, vocab_size: int = VOCABULARY) -> Any:
        """`SamplingBatchInfo` of a new batch, as the release makes it when a batch is prefilled."""
        batch.reqs, batch.device = reqs, torch.device("cpu")
        return self.info_type.from_schedule_batch(batch, vocab_size)


def sampling_request(prompt: list[int], outputs: list[int], **params: Any) -> Fields:
    known: dict[str, Any] = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 1,
        "min_p": 0.0,
        "stop_token_ids": set(),
    }
    return Fields(
        origin_input_ids=prompt,
        output_ids=outputs,
        sampling_params=Fields(**{**known, **params}),
        tokenizer=Fields(eos_token_id=EOS),
        eos_token_ids={EOS},
        kv_committed_len=0,
        kv_allocated_len=0,
        decode_batch_idx=0,
    )
