"""Which draft tokens are accepted, and what the next step starts from.

Greedy verification keeps exactly the tokens that greedy decoding with the target model alone would have
produced. The target model has run over all nodes of the tree at once; `target_predict` is its argmax after
each node. From the root, the walk goes to the child whose token is the one predicted, as long as there is
such a child.

Two counts go by similar names. `accept_token_num` counts accepted drafts, 0 or more. `accept_lens` also
counts the bonus token, which the target model gives for free after the last accepted draft: 1 or more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation

__all__ = ["Verified", "fill_bonus_tokens", "verify_tree_greedy"]


class Verified(NamedTuple):
    """The result of a verification. With n = `accept_token_num[b]`:

    predicts          [bs * ndt] int32, by node: the token that follows the node. Defined at the nodes
                      `accept_index[b, 0..n]`, which give the n + 1 tokens of request b, the bonus last
    accept_index      [bs, num_steps + 1] int32: the accepted path as node numbers in the batch, root first;
                      n + 1 entries, then -1. Only of a chain can one be sure that `ndt == num_steps + 1`
    accept_token_num  [bs] int32: n, the accepted drafts, without root and bonus; 0 to `num_steps`

    `ndt` is short for `num_draft_tokens`.
    """

    predicts: Tensor
    accept_index: Tensor
    accept_token_num: Tensor


def verify_tree_greedy(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    num_steps: int,
) -> Verified:
    """Walk each tree from its root along the tokens that the target model predicts.

    candidates             [bs, ndt] int64: the token of each node
    retrieve_index         [bs, ndt] int64: number of the node in the batch; stays within its own row
    retrieve_next_token    [bs, ndt] int64: first child, a later node; -1 if there is none
    retrieve_next_sibling  [bs, ndt] int64: next sibling, a later node; -1 if there is none
    target_predict         [bs, ndt] int64, read at `retrieve_index`: the target model's token after a node
    num_steps              drafts that can be accepted; a deeper tree is cut there, with the right bonus

    Of siblings with equal tokens the first is taken. Entries of `predicts` that are not defined are 0.
    Raises ValueError for links and indices that leave the row, and for links to an earlier node (a cycle).
    Source: the verification phase of EAGLE (arXiv 2401.15077), for a target model at temperature 0.
    """
    if validation.enabled():
        _check_verify(candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, target_predict, num_steps)
    bs, ndt = candidates.shape
    device = candidates.device
    token, first_child, sibling = candidates.flatten(), retrieve_next_token.flatten(), retrieve_next_sibling.flatten()
    number, target = retrieve_index.flatten(), target_predict.flatten()  # each [bs * ndt]
    root = torch.arange(0, bs * ndt, ndt, device=device)  # [bs]: where each tree starts in those
    path_start = torch.arange(0, bs * (num_steps + 1), num_steps + 1, device=device)  # [bs]
    path = torch.full((bs * (num_steps + 1),), -1, dtype=torch.int64, device=device)
    path[:: num_steps + 1] = retrieve_index[:, 0]

    accepted = torch.zeros_like(root)  # [bs]
    wanted = target.index_select(0, retrieve_index[:, 0])  # [bs]: the target's token after the last accepted node
    child = retrieve_next_token[:, 0]  # [bs]: the child of that node which is looked at, -1 when the walk is over
    walking = child >= 0  # [bs]
    # Links lead to later nodes, so that every round sees a node of its own: ndt - 1 rounds, whatever the trees.
    for _ in range(ndt - 1):
        if device.type == "cpu" and not bool(walking.any()):
            break  # elsewhere the question would cost a wait for the device
        here = root + child.clamp(min=0)  # [bs]
        matches = walking & (token.index_select(0, here) == wanted)
        accepted += matches
        end = path_start + accepted
        arrived = number.index_select(0, here)
        path.scatter_(0, end, torch.where(matches, arrived, path.index_select(0, end)))
        wanted = torch.where(matches, target.index_select(0, arrived), wanted)
        child = torch.where(matches, first_child.index_select(0, here), sibling.index_select(0, here))
        walking = walking & (child >= 0) & (accepted < num_steps)

    predicts = torch.zeros(bs * ndt, dtype=torch.int32, device=device)
    path = path.view(bs, num_steps + 1)
    on_path = torch.where(path < 0, path[:, :1], path).flatten()  # the root again in the place of padding
    predicts.scatter_(0, on_path, target.index_select(0, on_path).to(torch.int32))
    return Verified(predicts, path.to(torch.int32), accepted.to(torch.int32))


def fill_bonus_tokens(predict: Tensor, accept_index: Tensor, accept_lens: Tensor) -> Tensor:
    """The bonus token of each request: what the target model says after the last accepted node.

    predict       [bs * num_draft_tokens] int32, by node
    accept_index  [bs, accept_width] int32: accepted path as node numbers, then -1
    accept_lens   [bs] int32: length of that path, 1 to `accept_width`

    Returns bonus_tokens [bs] int32: `predict[accept_index[b, accept_lens[b] - 1]]`. Raises ValueError for
    lengths outside 1 to `accept_width` and for a path that is shorter than its length. Source: SGLang PR
    #26866, which made the row stride of `accept_index` its own width and no longer `num_draft_tokens`.
    """
    if validation.enabled():
        _check_bonus(predict, accept_index, accept_lens)
    last = accept_index.gather(1, accept_lens[:, None].to(torch.int64) - 1)  # [bs, 1]
    return predict[last[:, 0]]


def _check_verify(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    num_steps: int,
) -> None:
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    check_tree(candidates, *links, num_steps, num_steps_min=1, nodes_min=2)
    bs, ndt = candidates.shape
    validation.require_tensor("target_predict", target_predict, torch.int64, bs=bs, num_draft_tokens=ndt)
    validation.require_between("target_predict", target_predict, 0, 2**31 - 1)


def check_tree(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    num_steps: int,
    *,
    num_steps_min: int = 0,
    nodes_min: int = 1,
) -> None:
    """Check the trees of a batch: shapes, node numbers that stay in their row, and links that lead to later nodes."""
    validation.require_scalar("num_steps", num_steps, num_steps_min)
    validation.require_tensor("candidates", candidates, torch.int64, bs=None, num_draft_tokens=None)
    bs, ndt = candidates.shape
    validation.require_scalar("num_draft_tokens (the width of candidates)", ndt, nodes_min)
    for name, tensor in (
        ("retrieve_index", retrieve_index),
        ("retrieve_next_token", retrieve_next_token),
        ("retrieve_next_sibling", retrieve_next_sibling),
    ):
        validation.require_tensor(name, tensor, torch.int64, bs=bs, num_draft_tokens=ndt)
    own_row = retrieve_index // ndt == torch.arange(bs, device=retrieve_index.device)[:, None]
    validation.require_all(own_row, "retrieve_index", retrieve_index, "b * ndt to b * ndt + ndt - 1 in row b")
    node = torch.arange(ndt, device=candidates.device)
    for name, links in (
        ("retrieve_next_token", retrieve_next_token),
        ("retrieve_next_sibling", retrieve_next_sibling),
    ):
        leads_on = (links == -1) | ((links > node) & (links < ndt))
        validation.require_all(leads_on, name, links, f"-1, or a later node of the row, at most {ndt - 1}")


def _check_bonus(predict: Tensor, accept_index: Tensor, accept_lens: Tensor) -> None:
    validation.require_tensor("predict", predict, torch.int32, num_nodes=None)
    validation.require_tensor("accept_index", accept_index, torch.int32, bs=None, accept_width=None)
    bs, accept_width = accept_index.shape
    validation.require_tensor("accept_lens", accept_lens, torch.int32, bs=bs)
    validation.require_between("accept_lens", accept_lens, 1, accept_width)
    on_path = torch.arange(accept_width, device=accept_index.device) < accept_lens[:, None]  # [bs, accept_width]
    is_node = (accept_index >= 0) & (accept_index < predict.shape[0])
    allowed = f"0 to {predict.shape[0] - 1} in the first accept_lens[b] columns"
    validation.require_all(is_node | ~on_path, "accept_index", accept_index, allowed)
