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
from specsim.reference.argument_tables import contract, fields

__all__ = ["Verified", "fill_bonus_tokens", "verify_tree_greedy"]


@fields(
    """
    predicts          [num_nodes = bs * num_draft_tokens] int32: token that follows each node; defined at the accepted
                      path, accept_index[b, 0..n], alone
    accept_index      [bs, accept_width = num_steps + 1] int32, prefilled with -1: the accepted path as node numbers in
                      the batch, root first, n + 1 of them, then -1
    accept_token_num  [bs] int32: n, accepted drafts, without root and bonus
    """
)
class Verified(NamedTuple):
    """The result of a verification. With n = `accept_token_num[b]`:

    `ndt` is short for `num_draft_tokens`.
    """

    predicts: Tensor
    accept_index: Tensor
    accept_token_num: Tensor


@contract(
    """
    candidates             [bs, num_draft_tokens >= 1] int64: token of each node; node 0 is the root
    retrieve_index         [bs, num_draft_tokens] int64: number of the node in the batch, within its own row
    retrieve_next_token    [bs, num_draft_tokens] int64: first child, a later node; -1 if there is none
    retrieve_next_sibling  [bs, num_draft_tokens] int64: next sibling, an earlier or a later node, without a cycle; -1
                           if there is none
    target_predict         [bs, num_draft_tokens] int64, 0 to 2**31 - 1: target model's token after each node, at
                           retrieve_index
    -> Verified
    num_steps              int, 0 or more: drafts that can be accepted; a deeper tree is cut there
    """
)
def verify_tree_greedy(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    num_steps: int,
) -> Verified:
    """Walk each tree from its root along the tokens that the target model predicts.

    Of siblings with equal tokens the first is taken. With `num_steps` 0, and for a root alone, the path is the root and
    its token the bonus. Entries of `predicts` that are not defined are 0.
    Raises ValueError for links and indices that leave the row or lead to the root, and for cycles.
    Source: the verification phase of EAGLE (arXiv 2401.15077), for a target model at temperature 0.
    """
    if validation.enabled():
        check_links(retrieve_index, retrieve_next_token, retrieve_next_sibling)
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
    walking = (child >= 0) & (accepted < num_steps)  # [bs]
    # Links have no cycle, so that every round sees a node of its own: ndt - 1 rounds, whatever the trees.
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


@contract(
    """
    predict          [num_nodes] int32: token that follows each node
    accept_index     [bs, accept_width] int32: the accepted path as node numbers, root first, then -1
    accept_lens      [bs] int32, 1 to accept_width: entries of the path
    -> bonus_tokens  [bs] int32: `predict[accept_index[b, accept_lens[b] - 1]]`
    """
)
def fill_bonus_tokens(predict: Tensor, accept_index: Tensor, accept_lens: Tensor) -> Tensor:
    """The bonus token of each request: what the target model says after the last accepted node.

    Raises ValueError for
    lengths outside 1 to `accept_width` and for a path that is shorter than its length. Source: SGLang PR
    #26866, which made the row stride of `accept_index` its own width and no longer `num_draft_tokens`.
    """
    if validation.enabled():
        _check_bonus(predict, accept_index, accept_lens)
    last = accept_index.gather(1, accept_lens[:, None].to(torch.int64) - 1)  # [bs, 1]
    return predict[last[:, 0]]


def check_links(retrieve_index: Tensor, retrieve_next_token: Tensor, retrieve_next_sibling: Tensor) -> None:
    """Check the trees of a batch: node numbers that stay in their row, first children that are later nodes than their
    parents, siblings in any order, and no cycle. Nothing leads to the root.
    """
    bs, ndt = retrieve_index.shape
    own_row = retrieve_index // ndt == torch.arange(bs, device=retrieve_index.device)[:, None]
    validation.require_all(own_row, "retrieve_index", retrieve_index, "b * ndt to b * ndt + ndt - 1 in row b")
    node = torch.arange(ndt, device=retrieve_index.device)
    leads_on = (retrieve_next_token == -1) | ((retrieve_next_token > node) & (retrieve_next_token < ndt))
    later = f"-1, or a later node of the row, at most {ndt - 1}"
    validation.require_all(leads_on, "retrieve_next_token", retrieve_next_token, later)
    in_row = (retrieve_next_sibling == -1) | ((retrieve_next_sibling > 0) & (retrieve_next_sibling < ndt))
    another = f"-1, or another node of the row, 1 to {ndt - 1}"
    validation.require_all(in_row, "retrieve_next_sibling", retrieve_next_sibling, another)
    leads_back = (retrieve_next_sibling >= 0) & (retrieve_next_sibling <= node)
    if bool(leads_back.any()):  # only then can there be a cycle
        ends = _walks_that_end(retrieve_next_token, retrieve_next_sibling)
        no_cycle = "-1, or another node of the row whose links do not lead to a cycle"
        validation.require_all(~leads_back | ends, "retrieve_next_sibling", retrieve_next_sibling, no_cycle)


def _walks_that_end(retrieve_next_token: Tensor, retrieve_next_sibling: Tensor) -> Tensor:
    """The nodes [bs, ndt] bool from which no walk along the links comes to a node twice."""
    bs, ndt = retrieve_next_token.shape
    links = [torch.where(link < 0, ndt, link) for link in (retrieve_next_token, retrieve_next_sibling)]
    ends = torch.zeros(bs, ndt + 1, dtype=torch.bool, device=links[0].device)
    ends[:, ndt] = True  # where there is no link
    for _ in range(ndt):  # every round adds the nodes whose links lead to such nodes alone
        ends[:, :ndt] = ends.gather(1, links[0]) & ends.gather(1, links[1])
    return ends[:, :ndt]


def _check_bonus(predict: Tensor, accept_index: Tensor, accept_lens: Tensor) -> None:
    on_path = torch.arange(accept_index.shape[1], device=accept_index.device) < accept_lens[:, None]
    is_node = (accept_index >= 0) & (accept_index < predict.shape[0])  # [bs, accept_width]
    allowed = f"0 to {predict.shape[0] - 1} in the first accept_lens[b] columns"
    validation.require_all(is_node | ~on_path, "accept_index", accept_index, allowed)
