"""Kernels at sizes that no case has: what their offsets must fit at the largest batches and vocabularies of today.

Strides are those of the sizes named in `at`, tensors have a few elements: `specsim.interpreter.offsets`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.provider import NotCalledError, Subject
from specsim.engines.sglang.where import Place, places
from specsim.lifting.lift import LiftedFunction

VOCAB_SIZE = 151_936
ROWS = 16_384  # of logits: 256 trees of 64 nodes, or 1,024 chains of 16 slots
COST = 100  # a kernel has one such launch


@dataclass(frozen=True, slots=True)
class OffsetNames:
    """A compiled kernel at sizes of which only the strides are made.

    `places`      where releases have it, newest first
    `parameters`  its first ones, as `launch(kernel)` passes them
    `at`          the sizes
    """

    op: str
    places: tuple[Place, ...]
    parameters: tuple[str, ...]
    launch: Callable[[Any], None]
    at: str

    @property
    def what(self) -> str:
        """How it is listed when it is not run."""
        return f"{self.op} (offsets)"


def offset_subject(names: OffsetNames, lifted: LiftedFunction) -> Subject:
    """The subject whose offsets are checked by that launch."""
    return Subject(
        op=names.op,
        role="kernel",
        name=f"kernel:{names.op}:offsets",
        run=_no_case,
        far=partial(names.launch, lifted.value),
        where=lifted.where,
        reach=lambda _sizes: "option",
        explain=lambda: f"seen at {names.at}, whatever the case; what is there is not made",
        cost=COST,
        source_hash=lifted.body_hash,
        on_cpu=True,
    )


def _no_case(_sizes: Sizes, _tensors: Tensors) -> Tensors:
    raise NotCalledError("it is run at its own sizes, and on no case")


def _zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def _bitmask(kernel: Any) -> None:
    """The last row alone, of which 64 tokens."""
    last_row = torch.tensor([ROWS - 1], dtype=torch.int32)
    logits, bitmask = _zeros(64, dtype=torch.float32), _zeros(2, dtype=torch.int32)
    kernel[(1,)](logits, bitmask, last_row, 1, 64, VOCAB_SIZE, 0, 1, 64)


def _kv_indices(kernel: Any) -> None:
    """One request of a buffer for 256 with 8 branches of 131,072 tokens each, at nine steps."""
    num_steps, stride = 9, 256 * 8 * 131_072
    one = torch.ones(1, dtype=torch.int64)
    tables = (one, _zeros(2, 32, dtype=torch.int32), one)
    indices, indptr = _zeros(16, dtype=torch.int32), _zeros(num_steps * 2, dtype=torch.int32)
    kernel[(num_steps, 1, 1)](*tables, indices, indptr, one, 32, stride, 2, 1, 16, 1, 1)


def _argmax(kernel: Any) -> None:
    """The first 16 logits of the first and of the last row."""
    values, indices = _zeros(1, dtype=torch.float32), _zeros(1, dtype=torch.int32)
    kernel[(ROWS, 1)](_zeros(16, dtype=torch.float32), values, indices, 16, VOCAB_SIZE, 1, 16)


def _chain(kernel: Any) -> None:
    """The first and the last of 1,024 requests with 16 slots each, of which two."""
    requests, slots = 1_024, 16
    ids, probs = _zeros(slots), _zeros(16, dtype=torch.float32)
    numbers = _zeros(slots, dtype=torch.int32)
    rows, fewer = (count * VOCAB_SIZE for count in (slots, slots - 1))
    strides = (slots, 1, slots, 1, slots, 1, rows, VOCAB_SIZE, 1, fewer, VOCAB_SIZE, 1)
    tensors = (numbers, numbers, numbers, ids, ids, probs, probs, probs, probs)
    kernel[(requests,)](*tensors, *strides, NUM_SLOTS=2, VOCAB_SIZE=4, BLOCK_V=4)


_CHAIN_PARAMETERS = (
    *("Predicts", "AcceptIndex", "AcceptTokenNum", "Candidates", "RetriveIndex"),
    *("UniformSamples", "UniformSamplesFinal", "TargetProbs", "DraftProbs"),
    *("stride_cand_b", "stride_cand_s", "stride_idx_b", "stride_idx_s", "stride_uni_b", "stride_uni_s"),
    *("stride_tp_b", "stride_tp_s", "stride_tp_v", "stride_dp_b", "stride_dp_s", "stride_dp_v"),
    *("NUM_SLOTS", "VOCAB_SIZE", "BLOCK_V"),
)

OFFSETS: tuple[OffsetNames, ...] = (
    OffsetNames(
        "apply_token_bitmask",
        places("apply_token_bitmask_inplace_kernel"),
        (
            *("logits_ptr", "bitmask_ptr", "indices_ptr", "num_rows", "vocab_size", "logits_strides"),
            *("bitmask_strides", "NUM_SMS", "BLOCK_SIZE"),
        ),
        _bitmask,
        f"{ROWS:,} rows of {VOCAB_SIZE:,} logits",
    ),
    OffsetNames(
        "generate_draft_decode_kv_indices",
        places("generate_draft_decode_kv_indices"),
        (),
        _kv_indices,
        "256 requests with 8 branches of 131,072 tokens, and 9 steps",
    ),
    OffsetNames(
        "row_argmax",
        places("_medium_argmax_partial_kernel"),
        ("X", "PV", "PI", "N", "SX", "SPLITS", "BLOCK"),
        _argmax,
        f"{ROWS:,} rows of {VOCAB_SIZE:,} logits",
    ),
    OffsetNames(
        "verify_chain_rejection",
        places("speculative_sampling_classic_kernel"),
        _CHAIN_PARAMETERS,
        _chain,
        f"1,024 requests of 16 rows of {VOCAB_SIZE:,} probabilities",
    ),
)
