"""`specsim.reference.verify_logits` once more, one request, node or logit at a time: lists, dicts and for loops.

The tests hold both equal. Arguments are not checked here.
"""

from __future__ import annotations

from torch import Tensor

from specsim.ops.loops.verify import verify_tree_greedy_loops
from specsim.reference.verify_logits import GreedyStep


def verify_logits_greedy_loops(
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    num_steps: int,
) -> GreedyStep:
    """`verify_logits_greedy`, one logit at a time."""
    bs, ndt = candidates.shape
    target_predict = candidates.new_tensor([_argmax(row) for row in logits.tolist()]).view(bs, ndt)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    verified = verify_tree_greedy_loops(candidates, *links, target_predict, num_steps)
    predicts, slots = verified.predicts.tolist(), out_cache_loc.tolist()
    tokens, targets, sources, lens = [], [], [], []
    for b, row in enumerate(verified.accept_index.tolist()):
        path = [node for node in row if node >= 0]
        padding = len(row) - len(path)
        tokens.append([predicts[node] for node in path] + [-1] * padding)
        targets.append([slots[b * ndt + place] for place in range(len(path))] + [0] * padding)
        sources.append([slots[node] for node in path] + [0] * padding)
        lens.append(len(path))
    after = [before + accepted for before, accepted in zip(seq_lens.tolist(), lens, strict=True)]
    return GreedyStep(
        predicts=verified.predicts,
        accept_index=verified.accept_index,
        accept_lens=verified.predicts.new_tensor(lens),
        bonus_tokens=verified.predicts.new_tensor([row[n - 1] for row, n in zip(tokens, lens, strict=True)]),
        new_seq_lens=seq_lens.new_tensor(after),
        accept_tokens=verified.predicts.new_tensor(tokens).view(bs, num_steps + 1),
        target=seq_lens.new_tensor(targets).view(bs, num_steps + 1),
        source=seq_lens.new_tensor(sources).view(bs, num_steps + 1),
    )


def _argmax(row: list[float]) -> int:
    best = 0
    for column, logit in enumerate(row):
        if row[best] == row[best] and not logit <= row[best]:  # larger, or the first NaN
            best = column
    return best
