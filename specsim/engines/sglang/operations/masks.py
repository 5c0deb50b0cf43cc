"""Masks of bits: which tokens a grammar allows, which nodes a node attends to."""

from __future__ import annotations

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelLaunch,
    KernelNames,
    host_call,
    option_kernel,
    words,
)
from specsim.engines.sglang.where import places


def _launch_bitmask(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(t["logits"], t["bitmask"], t["indices"].tolist())


def _launch_pack(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """A request's mask is one run of bits there, rows of equal width. Here each row ends at a byte: it is made as wide
    as its bytes.
    """
    bs, num_draft_tokens, packed_bytes = t["packed"].shape
    width = 8 * packed_bytes
    rows = torch.nn.functional.pad(t["tree_mask"], (0, width - num_draft_tokens))
    requests = torch.arange(bs + 1, dtype=torch.int32, device=rows.device)
    bounds = (requests * width, requests * (num_draft_tokens * packed_bytes))
    arguments = (rows, *bounds, t["packed"])
    return host_call(*arguments, batch_size=bs, query_width=num_draft_tokens, max_kv_len=width)


KERNELS: tuple[KernelNames, ...] = (
    option_kernel(
        "apply_token_bitmask", "apply_token_bitmask_inplace_triton", "logits bitmask indices", _launch_bitmask
    ),
    KernelNames(
        "pack_tree_mask",
        places("pack_verify_mask_into"),
        (words("mask kv_indptr packed_indptr output batch_size query_width max_kv_len"),),
        _launch_pack,
    ),
)

CALLERS: tuple[CallerNames, ...] = ()
