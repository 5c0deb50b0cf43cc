"""A whole greedy verification: from the target model's logits to what the next step begins with.

It is what engines do in many launches: argmax, the walk, lengths, the bonus token, the tokens in the order in which
they are emitted, and which slots' KV moves where. Kernels that do it in one launch are held against it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.accepted import gather_accept_tokens, verify_commit_outputs
from specsim.reference.verify import verify_tree_greedy


class GreedyStep(NamedTuple):
    """What a greedy verification gives. With n = `accept_lens[b]`:

    predicts       [bs * ndt] int32, by node: the token that follows the node; defined at the accepted path
    accept_index   [bs, num_steps + 1] int32: the accepted path as node numbers, root first; n entries, then -1
    accept_lens    [bs] int32: nodes of that path, which is also the number of emitted tokens
    bonus_tokens   [bs] int32: the last emitted token, the root of the next tree
    new_seq_lens   [bs] int64: `seq_lens + accept_lens`
    accept_tokens  [bs, num_steps + 1] int32: the emitted tokens, then -1
    target         [bs, num_steps + 1] int64: slots that receive the path's KV, the first n of the block; then 0
    source         [bs, num_steps + 1] int64: slots that it comes from; then 0

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


def verify_logits_greedy(
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    num_steps: int,
) -> GreedyStep:
    """Verify greedily by the target model's logits after each node.

    logits         [bs * ndt, vocab_size] of any float dtype, by node number. The first of equal logits counts, and the
                   first NaN counts as the largest, as in `torch.argmax`
    seq_lens       [bs] int64: tokens before the tree
    out_cache_loc  [bs * ndt] int64: the slot of each node, in the order of the row's positions
    The trees, `num_steps` and errors are those of `verify.verify_tree_greedy`; also raises ValueError for logits that
    are not floats and for wrong shapes.

    Source: the pipeline of SGLang's EAGLE worker after the target's forward; PR #26866 for the moves.
    """
    bs, ndt = candidates.shape
    if validation.enabled():
        _check(logits, candidates, seq_lens, out_cache_loc)
    target_predict = logits.argmax(dim=1).view(bs, ndt)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    predicts, accept_index, accept_token_num = verify_tree_greedy(candidates, *links, target_predict, num_steps)
    accept_lens = accept_token_num + 1
    new_seq_lens, bonus_tokens = verify_commit_outputs(predicts, accept_index, accept_lens, seq_lens)
    accepted = accept_index >= 0  # [bs, num_steps + 1]
    depth = torch.arange(num_steps + 1, device=candidates.device)  # [num_steps + 1]
    front = torch.arange(bs, device=candidates.device)[:, None] * ndt + depth  # [bs, num_steps + 1]
    nothing = out_cache_loc.new_zeros(())
    return GreedyStep(
        predicts=predicts,
        accept_index=accept_index,
        accept_lens=accept_lens,
        bonus_tokens=bonus_tokens,
        new_seq_lens=new_seq_lens,
        accept_tokens=gather_accept_tokens(predicts, accept_index),
        target=torch.where(accepted, out_cache_loc[torch.where(accepted, front, 0)], nothing),
        source=torch.where(accepted, out_cache_loc[accept_index.clamp(min=0).to(torch.int64)], nothing),
    )


def _check(logits: Tensor, candidates: Tensor, seq_lens: Tensor, out_cache_loc: Tensor) -> None:
    bs, ndt = candidates.shape
    validation.require_tensor("logits", logits, logits.dtype, num_nodes=bs * ndt, vocab_size=None)
    if not logits.dtype.is_floating_point:
        raise ValueError(f"logits is {logits.dtype}; allowed: float32, float64, bfloat16, float16")
    validation.require_tensor("seq_lens", seq_lens, torch.int64, bs=bs)
    validation.require_tensor("out_cache_loc", out_cache_loc, torch.int64, num_nodes=bs * ndt)
