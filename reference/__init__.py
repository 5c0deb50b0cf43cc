"""What is right: every operation in plain PyTorch, for a reader who knows EAGLE-2 and no serving engine.

A decode step of tree speculation runs these, in this order:

* `cache_locs.assign_req_to_token_pool`            new KV slots enter the page table of each request
* `cache_locs.assign_draft_cache_locs_contiguous`  where the draft model writes the KV of its candidates
* `tree.build_tree`                                the kept candidates become a tree: mask, positions, links
* `cache_locs.assign_extend_cache_locs`            where the target model writes the KV of the tree's nodes
* `verify.verify_tree_greedy`                      the walk that accepts draft tokens
* `verify.fill_bonus_tokens`                       the token that starts the next step

Each is batched, without a Python loop over requests, on any device, and returns its outputs; in-out tensors
are changed in place. Below each stands the same operation once more, with the suffix `_loops`: lists, dicts
and for loops, slow and obvious. Tests hold the two equal. Wrong arguments raise ValueError (`validation` says
how to switch that off).

This package imports torch and nothing else.

Words: a *node* is a token of the tree; node 0 is the root, the last token that is already certain. A *row* of
`req_to_token` belongs to one request and maps its token positions (columns) to KV *slots*. `bs` is the number
of requests.
"""

from specsim.reference.cache_locs import (
    assign_draft_cache_locs_contiguous,
    assign_draft_cache_locs_contiguous_loops,
    assign_extend_cache_locs,
    assign_extend_cache_locs_loops,
    assign_req_to_token_pool,
    assign_req_to_token_pool_loops,
)
from specsim.reference.tree import FULL_MASK, QLEN_ONLY, Tree, build_tree, build_tree_loops
from specsim.reference.validation import unchecked
from specsim.reference.verify import (
    Verified,
    fill_bonus_tokens,
    fill_bonus_tokens_loops,
    verify_tree_greedy,
    verify_tree_greedy_loops,
)

__all__ = [
    "FULL_MASK",
    "QLEN_ONLY",
    "Tree",
    "Verified",
    "assign_draft_cache_locs_contiguous",
    "assign_draft_cache_locs_contiguous_loops",
    "assign_extend_cache_locs",
    "assign_extend_cache_locs_loops",
    "assign_req_to_token_pool",
    "assign_req_to_token_pool_loops",
    "build_tree",
    "build_tree_loops",
    "fill_bonus_tokens",
    "fill_bonus_tokens_loops",
    "unchecked",
    "verify_tree_greedy",
    "verify_tree_greedy_loops",
]
