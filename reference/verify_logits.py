"""A whole verification: from the target model's logits to what the next step begins with.

It is what engines do in many launches: argmax, or everything from the penalties to the distribution of each node; the
walk, lengths, the bonus token, the tokens in the order in which they are emitted, and which slots' KV moves where.
Kernels that do it in one launch are compared with it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.accepted import gather_accept_tokens, verify_commit_outputs
from specsim.reference.argument_tables import contract, fields
from specsim.reference.logits import SamplingBatchInfo, process_logits
from specsim.reference.sampling import verify_tree_target_only
from specsim.reference.verify import Verified, check_links, verify_tree_greedy

__all__ = ["VerifiedStep", "verify_logits_greedy", "verify_logits_sampled"]


@fields(
    """
    predicts       [num_nodes] int32: token that follows each node; defined at the accepted path, accept_index[b, 0..n],
                   alone
    accept_index   [bs, accept_width = num_steps + 1] int32: the accepted path as node numbers, root first, then -1
    accept_lens    [bs] int32: nodes of the accepted path, the root included, which is also the number of emitted tokens
    bonus_tokens   [bs] int32: the last emitted token, the root of the next tree
    new_seq_lens   [bs] int64: seq_lens + accept_lens
    accept_tokens  [bs, accept_width] int32: the emitted tokens, then -1
    target         [bs, accept_width] int64: slots that receive the path's KV, the first of the block, then 0
    source         [bs, accept_width] int64: slots that it comes from, then 0
    """
)
class VerifiedStep(NamedTuple):
    """What a verification gives. With n = `accept_lens[b]`:

    `ndt` is short for `num_draft_tokens`; `target` and `source`, flattened, are what `kv.move_kv` takes.
    """

    predicts: Tensor
    accept_index: Tensor
    accept_lens: Tensor
    bonus_tokens: Tensor
    new_seq_lens: Tensor
    accept_tokens: Tensor
    target: Tensor
    source: Tensor


@contract(
    """
    logits                 [num_nodes = bs * num_draft_tokens, vocab_size] any: of the target, by node number, of any
                           float dtype; the first of equal logits counts, and the first NaN counts as the largest, as in
                           `torch.argmax`
    candidates             [bs, num_draft_tokens] int64: token of each node; node 0 is the root
    retrieve_index         [bs, num_draft_tokens] int64: number of the node in the batch, within its own row
    retrieve_next_token    [bs, num_draft_tokens] int64: first child, a later node; -1 if there is none
    retrieve_next_sibling  [bs, num_draft_tokens] int64: next sibling, an earlier or a later node, without a cycle; -1
                           if there is none
    seq_lens               [bs] int64: tokens before the tree
    out_cache_loc          [num_nodes] int64: slot of each node, in the order of the row's positions
    -> VerifiedStep
    num_steps              int: drafts that can be accepted; a deeper tree is cut there
    """
)
def verify_logits_greedy(
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    num_steps: int,
) -> VerifiedStep:
    """A whole greedy verification: from the target model's logits to bonus tokens, lengths and KV moves.

    The trees, `num_steps` and errors are those of `verify.verify_tree_greedy`; also raises ValueError for logits that
    are not floats and for wrong shapes.

    Source: the pipeline of SGLang's EAGLE worker after the target's forward; PR #26866 for the moves.
    """
    bs, ndt = candidates.shape
    if validation.enabled() and not logits.dtype.is_floating_point:
        raise ValueError(f"logits is {logits.dtype}; allowed: float32, float64, bfloat16, float16")
    target_predict = logits.argmax(dim=1).view(bs, ndt)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    return _step(verify_tree_greedy(candidates, *links, target_predict, num_steps), seq_lens, out_cache_loc)


@contract(
    """
    logits                 [num_nodes = bs * num_draft_tokens, vocab_size] float: of the target, row b *
                           num_draft_tokens + i for node i; finite or -inf
    candidates             [bs, num_draft_tokens] int64, 0 to vocab_size - 1: token of each node; node 0 is the root
    retrieve_index         [bs, num_draft_tokens] int64: number of the node in the batch, within its own row
    retrieve_next_token    [bs, num_draft_tokens] int64: first child, a later node; -1 if there is none
    retrieve_next_sibling  [bs, num_draft_tokens] int64: next sibling, an earlier or a later node, without a cycle; -1
                           if there is none
    uniform_samples        [bs, num_draft_tokens] float, 0 to 1: uniform draw of each node, which decides between its
                           children
    uniform_final          [bs] float, 0 to 1: uniform draw of the token after the path
    output_counts          [bs, vocab_size] int32, 0 to 2**31 - 1: how often each token was put out
    output_lens            [bs] int32, 0 to 2**31 - 1: how many tokens were put out, the root included
    frequency_penalty      [bs] float: subtracted for each time that a token was put out; 0 changes nothing
    presence_penalty       [bs] float: subtracted once from tokens that were; 0 changes nothing
    repetition_penalty     [bs] float: above 0: multiplies their negative logits, divides the others; 1 changes nothing
    min_new_tokens         [bs] int32, 0 to 2**31 - 1: length of the history below which none may stop
    stop_token_ids         [bs, num_stop_tokens] int64, 0 to vocab_size: stop tokens, padded with vocab_size
    logit_bias             [num_biases, vocab_size] float: finite or -inf
    bias_rows              [bs] int32, -1 to num_biases - 1: the row of logit_bias that is added to a request's logits;
                           -1: none
    bitmask                [num_masks, num_words = (vocab_size + 31) // 32] int32: token v is bit v % 32 of word v //
                           32, as `logits.apply_token_bitmask` takes it
    bitmask_rows           [num_nodes] int32, -1 to num_masks - 1: the row of bitmask that says what may follow a node;
                           -1: anything
    temperature            [bs] float: above 0; 1 where top_k is 1 for greedy requests
    top_k                  [bs] int32, 1 or more: from vocab_size on all tokens are kept
    top_p                  [bs] float: above 0, at most 1, which keeps all
    min_p                  [bs] float, 0 to 1: 0 keeps all
    threshold_single       [1] number: 0 to 1: a child at least as probable is accepted; 1 changes nothing
    threshold_acc          [1] number: 0 to 1: divides the children's cumulative probability, at least 1e-9; 1 changes
                           nothing
    seq_lens               [bs] int64: tokens before the tree
    out_cache_loc          [num_nodes] int64: slot of each node, in the order of the row's positions
    -> VerifiedStep
    num_steps              int, 0 or more: drafts that can be accepted; a deeper tree is cut there
    law                    int: of penalties: EXACT, of each node's path; RELAXED, of what was out before the tree
    """
)
def verify_logits_sampled(
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    output_counts: Tensor,
    output_lens: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    repetition_penalty: Tensor,
    min_new_tokens: Tensor,
    stop_token_ids: Tensor,
    logit_bias: Tensor,
    bias_rows: Tensor,
    bitmask: Tensor,
    bitmask_rows: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    threshold_single: Tensor | float,
    threshold_acc: Tensor | float,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    num_steps: int,
    law: int,
) -> VerifiedStep:
    """A whole verification at a temperature: from logits and sampling parameters to bonus tokens, lengths and KV moves.

    The trees, uniform draws and thresholds are those of `sampling.verify_tree_target_only`, the counts and parameters
    those of `logits.process_logits` with TOP_K_FIRST, of which this is what follows one another.

    A node at which every token is forbidden has no distribution. Raises ValueError as those functions do, and for rows
    of biases and masks that are not there. Source: the pipeline of SGLang's EAGLE worker after the target's forward; PR
    #22049 for penalties and bias.
    """
    bs, ndt = candidates.shape
    if validation.enabled():
        check_links(retrieve_index, retrieve_next_token, retrieve_next_sibling)
    no_bias, no_mask = logit_bias.new_zeros(1, logit_bias.shape[1]), bitmask.new_full((1, bitmask.shape[1]), -1)
    biases = torch.cat([logit_bias, no_bias])[bias_rows.to(torch.int64)]  # [bs, V]; row -1 is the last
    masks = None
    if len(bitmask):
        masks = torch.cat([bitmask, no_mask])[bitmask_rows.to(torch.int64)]  # [bs * ndt, num_words]
    penalties = (frequency_penalty, presence_penalty, repetition_penalty, min_new_tokens, stop_token_ids, biases)
    params = SamplingBatchInfo(*penalties, temperature, top_k, top_p, min_p)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    tree_mask = _mask_of(*links[1:])
    probs = process_logits(logits, output_counts, output_lens, candidates, tree_mask, params, law, masks)
    coins, laws = (uniform_samples, uniform_final), probs.view(bs, ndt, -1)
    verified = verify_tree_target_only(candidates, *links, *coins, laws, threshold_single, threshold_acc, num_steps)
    return _step(verified, seq_lens, out_cache_loc)


def _step(verified: Verified, seq_lens: Tensor, out_cache_loc: Tensor) -> VerifiedStep:
    """What follows a walk."""
    predicts, accept_index, accept_token_num = verified
    bs, width = accept_index.shape
    accept_lens = accept_token_num + 1
    new_seq_lens, bonus_tokens = verify_commit_outputs(predicts, accept_index, accept_lens, seq_lens)
    accepted = accept_index >= 0  # [bs, num_steps + 1]
    first_node = torch.arange(bs, device=predicts.device)[:, None] * (predicts.shape[0] // max(bs, 1))
    front = first_node + torch.arange(width, device=predicts.device)  # [bs, num_steps + 1]
    nothing = out_cache_loc.new_zeros(())
    return VerifiedStep(
        predicts=predicts,
        accept_index=accept_index,
        accept_lens=accept_lens,
        bonus_tokens=bonus_tokens,
        new_seq_lens=new_seq_lens,
        accept_tokens=gather_accept_tokens(predicts, accept_index),
        target=torch.where(accepted, out_cache_loc[torch.where(accepted, front, 0)], nothing),
        source=torch.where(accepted, out_cache_loc[accept_index.clamp(min=0).to(torch.int64)], nothing),
    )


def _mask_of(next_token: Tensor, next_sibling: Tensor) -> Tensor:
    """The mask [bs, ndt, ndt] of trees that are given as links."""
    bs, ndt = next_token.shape
    request = torch.arange(bs, device=next_token.device)[:, None]  # [bs, 1]
    node = torch.arange(ndt, device=next_token.device)  # [ndt]
    parent = next_token.new_zeros(bs, ndt + 1)  # the last column is written to where there is no link
    parent[request, next_token] = node
    for _ in range(ndt):  # siblings are linked in any order: a round for each that one can have before it
        parent[request, next_sibling] = parent[:, :ndt].clone()
    mask = torch.eye(ndt, dtype=torch.bool, device=next_token.device).repeat(bs, 1, 1)
    mask[:, :, 0] = True
    above = parent[:, :ndt]  # [bs, ndt]: the ancestor 1, 2, 4, ... generations before, the root beyond it
    above[:, 0] = 0
    for _ in range(ndt.bit_length()):
        mask |= mask[request, above]
        above = above.gather(1, above)
    return mask
