"""What is right: every operation in plain PyTorch, for a reader who knows EAGLE-2 and no serving engine.

Read it in this order:

* `drafting`     which candidates each draft step expands, and which of all become a tree; the tree of a chain
* `tree`         the kept candidates as a tree: mask, positions, links
* `masks`        the same tree as links, as a mask, as a mask of bits, and back
* `verify`       the walk that accepts the drafts that greedy decoding would have produced
* `logits`       penalties, bias, grammar, temperature, top-k, top-p and min-p, after every node of a tree
* `sampling`     the walks for a target model that samples; that they lose nothing is proved by exact enumeration
                 (`specsim.contracts.losslessness`)
* `accepted`     what follows the walk: emitted tokens, new lengths, positions, slots to keep and to free
* `cache_locs`   which KV slots a step enters into the page table, and which ones it reads
* `kv`           slots over pages, where the drafts of a tree go, what they attend to, and the move of an accepted path
* `verify_logits` all of a verification at once, greedy or not: from the logits to what the next step begins with
* `multi_layer`  drafts by several layers, each with KV and attention metadata of its own
* `ragged_drafts` verification of drafts in one flat row, and what follows it, as engines of another make keep them
* `frequencies`  how often a sampler with random numbers of its own must emit what
* `grammar`      which tokens a constrained request may emit next: a protocol, and a small automaton
* `sequential`   decoding token by token, without any of the above: what every schedule must equal

Each operation is batched, without a Python loop over requests, on any device, and returns its outputs; in-out tensors
are changed in place. `specsim.contracts.naive` has every operation once more, slow and obvious; tests hold the two
equal. Wrong arguments raise ValueError (`validation` says how to switch that off).

This package imports torch and nothing else.

Words: a *node* is a token of the tree; node 0 is the root, the last token that is already certain. A *row* of
`req_to_token` belongs to one request and maps its token positions (columns) to KV *slots*. `bs` is the number
of requests.
"""

from specsim.reference.accepted import (
    CommitOutputs,
    ExtendAfterDecode,
    GatheredRows,
    TargetCacheLoc,
    create_extend_after_decode,
    filter_finished_cache_loc,
    gather_accept_tokens,
    gather_rows,
    get_target_cache_loc,
    verify_commit_outputs,
    write_req_to_token_pool,
)
from specsim.reference.cache_locs import (
    assign_draft_cache_locs_contiguous,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
)
from specsim.reference.drafting import (
    ChainTree,
    DraftResults,
    Expansion,
    build_chain_tree,
    organize_draft_results,
    select_top_k_tokens_first,
    select_top_k_tokens_next,
)
from specsim.reference.grammar import (
    Automaton,
    Grammar,
    tree_masks,
)
from specsim.reference.kv import (
    CompactedPath,
    DraftCacheLocs,
    DraftKvIndices,
    align_evict_mask_to_page_size,
    alloc_decode,
    alloc_extend,
    alloc_len_per_decode,
    compact_accepted_path,
    draft_cache_locs_paged,
    fill_accept_out_cache_loc,
    generate_draft_decode_kv_indices,
    get_last_loc,
    move_kv,
    row_width,
)
from specsim.reference.logits import (
    EXACT,
    NAN_HIGHEST,
    NAN_LOWEST,
    RELAXED,
    SamplingBatchInfo,
    accumulate_penalties,
    apply_penalties,
    apply_token_bitmask,
    min_p_renorm_probs,
    process_logits,
    row_argmax,
    temperature_softmax,
    top_k_renorm_probs,
    top_p_renorm_probs,
    total_variation,
)
from specsim.reference.masks import (
    TreeLinks,
    pack_tree_mask,
    reconstruct_tree,
    unpack_tree_mask,
)
from specsim.reference.multi_layer import (
    DraftLayer,
    MultiLayerDraft,
    NewState,
    WidenedInputs,
    assign_hidden_states_pool,
    assign_new_state,
    draft_extend_multi_layer,
    fill_widened_draft_extend_inputs,
    rotate_input_ids,
    stash_append_boundary_state,
)
from specsim.reference.sampling import (
    verify_chain_block,
    verify_chain_rejection,
    verify_tree_rejection,
    verify_tree_target_only,
)
from specsim.reference.sequential import (
    Finish,
    Output,
    SamplingParams,
    draw,
    finish_of,
    generate,
    next_token_law,
)
from specsim.reference.tree import (
    FULL_MASK,
    QLEN_ONLY,
    Tree,
    build_tree,
    build_tree_packed,
)
from specsim.reference.validation import (
    unchecked,
)
from specsim.reference.verify import (
    Verified,
    fill_bonus_tokens,
    verify_tree_greedy,
)
from specsim.reference.verify_logits import VerifiedStep, verify_logits_greedy, verify_logits_sampled

__all__ = [
    "EXACT",
    "FULL_MASK",
    "NAN_HIGHEST",
    "NAN_LOWEST",
    "QLEN_ONLY",
    "RELAXED",
    "Automaton",
    "ChainTree",
    "CommitOutputs",
    "CompactedPath",
    "DraftCacheLocs",
    "DraftKvIndices",
    "DraftLayer",
    "DraftResults",
    "Expansion",
    "ExtendAfterDecode",
    "Finish",
    "GatheredRows",
    "Grammar",
    "MultiLayerDraft",
    "NewState",
    "Output",
    "SamplingBatchInfo",
    "SamplingParams",
    "TargetCacheLoc",
    "Tree",
    "TreeLinks",
    "Verified",
    "VerifiedStep",
    "WidenedInputs",
    "accumulate_penalties",
    "align_evict_mask_to_page_size",
    "alloc_decode",
    "alloc_extend",
    "alloc_len_per_decode",
    "apply_penalties",
    "apply_token_bitmask",
    "assign_draft_cache_locs_contiguous",
    "assign_extend_cache_locs",
    "assign_hidden_states_pool",
    "assign_new_state",
    "assign_req_to_token_pool",
    "build_chain_tree",
    "build_tree",
    "build_tree_packed",
    "compact_accepted_path",
    "create_extend_after_decode",
    "draft_cache_locs_paged",
    "draft_extend_multi_layer",
    "draw",
    "fill_accept_out_cache_loc",
    "fill_bonus_tokens",
    "fill_widened_draft_extend_inputs",
    "filter_finished_cache_loc",
    "finish_of",
    "gather_accept_tokens",
    "gather_rows",
    "generate",
    "generate_draft_decode_kv_indices",
    "get_last_loc",
    "get_target_cache_loc",
    "min_p_renorm_probs",
    "move_kv",
    "next_token_law",
    "organize_draft_results",
    "pack_tree_mask",
    "process_logits",
    "reconstruct_tree",
    "rotate_input_ids",
    "row_argmax",
    "row_width",
    "select_top_k_tokens_first",
    "select_top_k_tokens_next",
    "stash_append_boundary_state",
    "temperature_softmax",
    "top_k_renorm_probs",
    "top_p_renorm_probs",
    "total_variation",
    "tree_masks",
    "unchecked",
    "unpack_tree_mask",
    "verify_chain_block",
    "verify_chain_rejection",
    "verify_commit_outputs",
    "verify_logits_greedy",
    "verify_logits_sampled",
    "verify_tree_greedy",
    "verify_tree_rejection",
    "verify_tree_target_only",
    "write_req_to_token_pool",
]
