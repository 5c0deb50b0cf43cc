"""How SGLang launches each operation, and what calls it.

One table for all releases and checkouts: an operation is looked for where `specsim.engines.sglang.where` says, and is
taken only when its parameters are among those known here; anything else is reported as drift. Parameters were renamed
too: the stride num_draft_tokens of fill_bonus_tokens -> accept_stride (0.5.13), accept_length -> accept_lens in the
workers (0.5.11).
"""

from specsim.engines.sglang.operations import (
    accepted,
    alloc,
    block_drafts,
    cache_locs,
    draft_inputs,
    finalisation,
    kv,
    logits,
    masks,
    multi_layer,
    ragged_verify,
    rows,
    sampling,
    tensor_drafting,
    trees,
    verify,
)
from specsim.engines.sglang.operations.functions import FunctionNames
from specsim.engines.sglang.operations.names import CallerNames, KernelNames

_FAMILIES = (cache_locs, trees, verify, accepted, alloc, kv, multi_layer, masks, rows)
KERNELS: tuple[KernelNames, ...] = (
    *(kernel for family in _FAMILIES for kernel in family.KERNELS),
    *logits.KERNELS,
    *draft_inputs.KERNELS,
    *block_drafts.KERNELS,
    *ragged_verify.KERNELS,
)
CALLERS: tuple[CallerNames, ...] = tuple(caller for family in _FAMILIES for caller in family.CALLERS)
FUNCTIONS: tuple[FunctionNames, ...] = (
    *tensor_drafting.FUNCTIONS,
    *sampling.FUNCTIONS,
    *logits.FUNCTIONS,
    *finalisation.FUNCTIONS,
)

# Operations that these releases have only as CUDA code of a compiled extension.
CUDA_ONLY = {
    "build_tree": "sgl_kernel.build_tree_kernel_efficient",
    "verify_tree_greedy": "sgl_kernel.verify_tree_greedy",
    "verify_tree_target_only": "sgl_kernel.tree_speculative_sampling_target_only",
}

__all__ = ["CALLERS", "CUDA_ONLY", "FUNCTIONS", "KERNELS", "CallerNames", "FunctionNames", "KernelNames"]
