"""The operations in Triton: one launch each, ready for CUDA graphs.

Every host function has the reference's name and signature plus the contract's outputs as parameters, which it
writes in place. It allocates nothing, never waits for the device, reads no tensor value on the host, and
compiles once per engine configuration (topk, num_steps, num_draft_tokens, mask mode), not once per batch
size. Kernels write every defined output element themselves, the -1 padding included, so that a buffer that is
used again needs no prefill. Offsets that grow with the batch or the pool are int64.

Values are not checked, for that would read them. Wrong ones give wrong results, but a walk over broken links
ends, and no row or column outside the tensors is touched on behalf of a segment that is too long.

`require_launchable` is what is checked: devices and contiguity. With TRITON_INTERPRET=1 in the environment
before triton is imported, the same functions run on CPU tensors.

Kernels name their variables `i_` index, `p_` pointer, `o_` offsets, `m_` mask, `b_` block of values.
"""

from specsim.kernels.cache_locs import (
    assign_draft_cache_locs_contiguous,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
)
from specsim.kernels.tree import build_tree
from specsim.kernels.verify import fill_bonus_tokens, verify_tree_greedy
from specsim.kernels.verify_logits import verify_logits_greedy
from specsim.ops.provider import MappingProvider

__all__ = [
    "assign_draft_cache_locs_contiguous",
    "assign_extend_cache_locs",
    "assign_req_to_token_pool",
    "build_tree",
    "fill_bonus_tokens",
    "provider",
    "verify_logits_greedy",
    "verify_tree_greedy",
]


def provider() -> MappingProvider:
    """The provider "triton": all operations of this package."""
    return MappingProvider(
        "triton",
        {
            "assign_req_to_token_pool": assign_req_to_token_pool,
            "assign_draft_cache_locs_contiguous": assign_draft_cache_locs_contiguous,
            "assign_extend_cache_locs": assign_extend_cache_locs,
            "build_tree": build_tree,
            "verify_tree_greedy": verify_tree_greedy,
            "fill_bonus_tokens": fill_bonus_tokens,
            "verify_logits_greedy": verify_logits_greedy,
        },
        reach="default",
    )
