"""What is right: every operation in plain PyTorch, for a reader who knows EAGLE-2 and no serving engine.

A decode step of tree speculation runs these, in this order:

* `cache_locs.assign_req_to_token_pool`            new KV slots enter the page table of each request
* `cache_locs.assign_draft_cache_locs_contiguous`  where the draft model writes the KV of its candidates
* `tree.build_tree`                                the kept candidates become a tree: mask, positions, links
* `cache_locs.assign_extend_cache_locs`            where the target model writes the KV of the tree's nodes
* `verify.verify_tree_greedy`                      the walk that accepts draft tokens
* `verify.fill_bonus_tokens`                       the token that starts the next step

Before it, `drafting` says which candidates each draft step expands and keeps; it also has the tree of a chain, the tree
that a mask stands for, and the packed mask. `kv` has the slots: allocation over pages, where drafts of a tree go, the
KV indices that they read, and the move that an accepted path implies. `sampling` has the verification rules for a
target model that samples; that they lose nothing is proved by exact enumeration (`specsim.ops.enumeration`).

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
from specsim.reference.drafting import (
    ChainTree,
    DraftResults,
    Expansion,
    build_chain_tree,
    build_chain_tree_loops,
    organize_draft_results,
    organize_draft_results_loops,
    select_top_k_tokens_first,
    select_top_k_tokens_first_loops,
    select_top_k_tokens_next,
    select_top_k_tokens_next_loops,
)
from specsim.reference.kv import (
    CompactedPath,
    DraftCacheLocs,
    DraftKvIndices,
    align_evict_mask_to_page_size,
    align_evict_mask_to_page_size_loops,
    alloc_decode,
    alloc_decode_loops,
    alloc_extend,
    alloc_extend_loops,
    alloc_len_per_decode,
    compact_accepted_path,
    compact_accepted_path_loops,
    draft_cache_locs_paged,
    draft_cache_locs_paged_loops,
    fill_accept_out_cache_loc,
    fill_accept_out_cache_loc_loops,
    generate_draft_decode_kv_indices,
    generate_draft_decode_kv_indices_loops,
    get_last_loc,
    get_last_loc_loops,
    move_kv,
    move_kv_loops,
    row_width,
)
from specsim.reference.masks import (
    TreeLinks,
    pack_tree_mask,
    pack_tree_mask_loops,
    reconstruct_tree,
    reconstruct_tree_loops,
    unpack_tree_mask,
    unpack_tree_mask_loops,
)
from specsim.reference.sampling import (
    verify_chain_block,
    verify_chain_block_loops,
    verify_chain_rejection,
    verify_chain_rejection_loops,
    verify_tree_rejection,
    verify_tree_rejection_loops,
    verify_tree_target_only,
    verify_tree_target_only_loops,
)
from specsim.reference.tree import (
    FULL_MASK,
    QLEN_ONLY,
    Tree,
    build_tree,
    build_tree_loops,
    build_tree_packed,
    build_tree_packed_loops,
)
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
    "ChainTree",
    "CompactedPath",
    "DraftCacheLocs",
    "DraftKvIndices",
    "DraftResults",
    "Expansion",
    "Tree",
    "TreeLinks",
    "Verified",
    "align_evict_mask_to_page_size",
    "align_evict_mask_to_page_size_loops",
    "alloc_decode",
    "alloc_decode_loops",
    "alloc_extend",
    "alloc_extend_loops",
    "alloc_len_per_decode",
    "assign_draft_cache_locs_contiguous",
    "assign_draft_cache_locs_contiguous_loops",
    "assign_extend_cache_locs",
    "assign_extend_cache_locs_loops",
    "assign_req_to_token_pool",
    "assign_req_to_token_pool_loops",
    "build_chain_tree",
    "build_chain_tree_loops",
    "build_tree",
    "build_tree_loops",
    "build_tree_packed",
    "build_tree_packed_loops",
    "compact_accepted_path",
    "compact_accepted_path_loops",
    "draft_cache_locs_paged",
    "draft_cache_locs_paged_loops",
    "fill_accept_out_cache_loc",
    "fill_accept_out_cache_loc_loops",
    "fill_bonus_tokens",
    "fill_bonus_tokens_loops",
    "generate_draft_decode_kv_indices",
    "generate_draft_decode_kv_indices_loops",
    "get_last_loc",
    "get_last_loc_loops",
    "move_kv",
    "move_kv_loops",
    "organize_draft_results",
    "organize_draft_results_loops",
    "pack_tree_mask",
    "pack_tree_mask_loops",
    "reconstruct_tree",
    "reconstruct_tree_loops",
    "row_width",
    "select_top_k_tokens_first",
    "select_top_k_tokens_first_loops",
    "select_top_k_tokens_next",
    "select_top_k_tokens_next_loops",
    "unchecked",
    "unpack_tree_mask",
    "unpack_tree_mask_loops",
    "verify_chain_block",
    "verify_chain_block_loops",
    "verify_chain_rejection",
    "verify_chain_rejection_loops",
    "verify_tree_greedy",
    "verify_tree_greedy_loops",
    "verify_tree_rejection",
    "verify_tree_rejection_loops",
    "verify_tree_target_only",
    "verify_tree_target_only_loops",
]
