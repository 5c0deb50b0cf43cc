"""Every operation in Triton: one launch each, two where a docstring says so, ready for CUDA graphs.

Every host function has the operation's name and the contract's arguments, outputs included, which it writes in place.
It allocates nothing, never waits for the device, reads no tensor value on the host, and compiles once per engine
configuration (topk, num_steps, num_draft_tokens, mask mode, vocabulary, hidden size), not once per batch size;
`move_kv`, `row_argmax`, `temperature_softmax` and `verify_chain_block` say where they differ. Kernels write every
defined output element themselves, the -1 padding included, so that a buffer that is used again needs no prefill.
Offsets that grow with the batch or the pool are int64.

Values are not checked, for that would read them. Wrong ones give wrong results, but a walk over broken links
ends, and no row or column outside the tensors is touched on behalf of a segment that is too long.

What is checked is that types, shapes, dtypes and devices are the contract's and tensors contiguous
(`launch.operation`); what is wrong is a ValueError that names the argument, before any launch. With TRITON_INTERPRET=1
in the environment before triton is imported, the same functions run on CPU tensors.

Kernels name their variables `i_` index, `p_` pointer, `o_` offsets, `m_` mask, `b_` block of values.
"""

from triton import knobs

from specsim.contracts.contract import Implementation, Sizes
from specsim.contracts.provider import MappingProvider
from specsim.contracts.registry import OPS
from specsim.kernels.accepted import (
    create_extend_after_decode,
    filter_finished_cache_loc,
    gather_accept_tokens,
    gather_rows,
    get_target_cache_loc,
    verify_commit_outputs,
    write_req_to_token_pool,
)
from specsim.kernels.alloc import (
    alloc_decode,
    alloc_extend,
    get_last_loc,
)
from specsim.kernels.cache_locs import (
    assign_draft_cache_locs_contiguous,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
)
from specsim.kernels.drafting import (
    build_chain_tree,
    build_chain_tree_and_cache_locs,
    organize_draft_results,
    select_top_k,
)
from specsim.kernels.kv import (
    align_evict_mask_to_page_size,
    compact_accepted_path,
    draft_cache_locs_paged,
    fill_accept_out_cache_loc,
    generate_draft_decode_kv_indices,
)
from specsim.kernels.kv_move import (
    kv_buffers,
    move_kv,
    move_kv_of_buffers,
)
from specsim.kernels.logits import (
    accumulate_penalties,
    apply_penalties,
    apply_token_bitmask,
    min_p_renorm_probs,
    row_argmax,
    temperature_softmax,
)
from specsim.kernels.masks import (
    pack_tree_mask,
    reconstruct_tree,
    unpack_tree_mask,
)
from specsim.kernels.multi_layer import (
    assign_hidden_states_pool,
    assign_new_state,
    fill_widened_draft_extend_inputs,
    rotate_input_ids,
    stash_append_boundary_state,
)
from specsim.kernels.renorm import top_k_renorm_probs, top_p_renorm_probs
from specsim.kernels.sampling import (
    verify_tree_rejection,
    verify_tree_target_only,
)
from specsim.kernels.tree import (
    build_tree,
    build_tree_and_cache_locs,
    build_tree_packed,
)
from specsim.kernels.verify import (
    fill_bonus_tokens,
    verify_tree_greedy,
)
from specsim.kernels.verify_chain import (
    verify_chain_block,
    verify_chain_rejection,
)
from specsim.kernels.verify_logits import (
    verify_logits_greedy,
)
from specsim.kernels.verify_sampled import (
    verify_logits_sampled,
)

KERNELS: tuple[Implementation, ...] = (
    assign_req_to_token_pool,
    assign_draft_cache_locs_contiguous,
    assign_extend_cache_locs,
    build_tree,
    build_tree_packed,
    verify_tree_greedy,
    fill_bonus_tokens,
    gather_accept_tokens,
    verify_commit_outputs,
    create_extend_after_decode,
    get_target_cache_loc,
    filter_finished_cache_loc,
    write_req_to_token_pool,
    gather_rows,
    select_top_k,
    organize_draft_results,
    build_chain_tree,
    reconstruct_tree,
    pack_tree_mask,
    unpack_tree_mask,
    accumulate_penalties,
    apply_penalties,
    apply_token_bitmask,
    row_argmax,
    temperature_softmax,
    top_k_renorm_probs,
    top_p_renorm_probs,
    min_p_renorm_probs,
    verify_tree_target_only,
    verify_chain_rejection,
    verify_chain_block,
    verify_tree_rejection,
    alloc_extend,
    alloc_decode,
    get_last_loc,
    generate_draft_decode_kv_indices,
    draft_cache_locs_paged,
    align_evict_mask_to_page_size,
    fill_accept_out_cache_loc,
    compact_accepted_path,
    move_kv,
    rotate_input_ids,
    assign_hidden_states_pool,
    assign_new_state,
    stash_append_boundary_state,
    fill_widened_draft_extend_inputs,
    verify_logits_greedy,
    verify_logits_sampled,
)

__all__ = [
    "KERNELS",
    "accumulate_penalties",
    "align_evict_mask_to_page_size",
    "alloc_decode",
    "alloc_extend",
    "apply_penalties",
    "apply_token_bitmask",
    "assign_draft_cache_locs_contiguous",
    "assign_extend_cache_locs",
    "assign_hidden_states_pool",
    "assign_new_state",
    "assign_req_to_token_pool",
    "build_chain_tree",
    "build_chain_tree_and_cache_locs",
    "build_tree",
    "build_tree_and_cache_locs",
    "build_tree_packed",
    "compact_accepted_path",
    "create_extend_after_decode",
    "draft_cache_locs_paged",
    "fill_accept_out_cache_loc",
    "fill_bonus_tokens",
    "fill_widened_draft_extend_inputs",
    "filter_finished_cache_loc",
    "gather_accept_tokens",
    "gather_rows",
    "generate_draft_decode_kv_indices",
    "get_last_loc",
    "get_target_cache_loc",
    "kv_buffers",
    "min_p_renorm_probs",
    "move_kv",
    "move_kv_of_buffers",
    "organize_draft_results",
    "pack_tree_mask",
    "provider",
    "reconstruct_tree",
    "rotate_input_ids",
    "row_argmax",
    "select_top_k",
    "stash_append_boundary_state",
    "temperature_softmax",
    "top_k_renorm_probs",
    "top_p_renorm_probs",
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


ROWS_INTERPRETED_MAX = 48
"""Programs that Triton's interpreter, which runs them one after the other, gets through in good time."""


def provider() -> MappingProvider:
    """The provider "triton": a kernel for each operation of the registry but the foreign ones, in its order.

    In the interpreter, cases of operations on whole rows of logits have at most `ROWS_INTERPRETED_MAX` rows.
    """
    named = {kernel.__name__: kernel for kernel in KERNELS}
    accepts = {name: _is_quick for name in named if OPS[name].family in ("logits", "sampling")}
    return MappingProvider("triton", named, reach="default", accepts=accepts if knobs.runtime.interpret else {})


def _is_quick(sizes: Sizes) -> bool:
    return sizes["num_nodes"] <= ROWS_INTERPRETED_MAX
