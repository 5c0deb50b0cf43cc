"""The verification family: the greedy walk over draft trees, and the bonus token that it ends with.

In every case the tokens of all nodes differ, except for the siblings that are made equal on purpose, and
target tokens that accept nothing differ from all of them, so that a token from a wrong node shows.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.reference.verify import (
    fill_bonus_tokens,
    verify_tree_greedy,
)

__all__ = ["OPS"]

NUM_STEPS_MAX = 9


def _draw_shape(chooser: Chooser) -> dict[str, int]:
    return batches.draw_shape(chooser, NUM_STEPS_MAX)


def _make_verify_tree_greedy(draws: Draws, shape: Sizes) -> Case:
    """Each node's token names the node, but for a sibling that is made equal to the one before it in a quarter of the
    cases. The target leads the walk to a chosen node; off that path it is a node's own, a neighbour's or nobody's.

    Computed with the nodes along the first dimension, and turned at the end.
    """
    n, ndt = draws.count, shape["num_draft_tokens"]
    trees = batches.trees(draws, shape)
    parents, first_child, next_sibling = trees.parents.t(), trees.first_child.t(), trees.next_sibling.t()  # [ndt, n]
    node = torch.arange(ndt, device=draws.device)[:, None]  # [ndt, 1]
    first_token = batches.TOKENS_START + draws.labels("first token") * ndt  # [n]
    tokens = first_token + node  # [ndt, n]
    older = draws.below("older of two equal siblings", 4 * ndt).clamp(max=ndt - 1)[None]  # mostly the last node
    younger = next_sibling.gather(0, older)  # [1, n]
    tokens.scatter_(0, torch.where(younger >= 0, younger, older), tokens.gather(0, older))

    reject = first_token + 2**30  # and the node's number: the token of no node
    # Where the target leads off the path: to no node, to the node itself, to its neighbour, to its first child.
    off_path = draws.below("target off the path", 4)  # [n]
    start = torch.where(off_path == 0, ndt, torch.where(off_path == 2, 1, 0))  # [n]: of a node's own target
    goal = torch.where(off_path == 3, first_child, (node + start).clamp_(max=ndt))  # [ndt, n]: ndt for none
    goal = torch.where((off_path == 2) & (node == ndt - 1), 0, goal)
    end = batches.last_accepted(draws, trees.depths)[None]  # [1, n]
    goal.scatter_(0, end, -1)
    for _ in range(shape["num_steps"]):
        parent = parents.gather(0, end)
        # A walk that is at the root stays there, and what the root leads to as it is.
        at = parent.clamp(min=0)
        goal.scatter_(0, at, torch.where(parent >= 0, end, goal.gather(0, at)))
        end = at
    is_node = (goal >= 0) & (goal < ndt)
    target = torch.where(is_node, tokens.gather(0, torch.where(is_node, goal, 0)), reject + node)
    tensors = {
        "candidates": tokens.t().contiguous(),
        "retrieve_index": torch.arange(n * ndt, device=draws.device).view(n, ndt),
        "retrieve_next_token": trees.first_child.contiguous(),
        "retrieve_next_sibling": trees.next_sibling.contiguous(),
        "target_predict": target.t().contiguous(),
    }
    return Case(batches.path_sizes(shape, n), tensors)


def _make_fill_bonus_tokens(draws: Draws, shape: Sizes) -> Case:
    n, ndt = draws.count, shape["num_draft_tokens"]
    accept_index, accept_lens = batches.accepted_paths(draws, shape)
    tokens = batches.node_tokens(draws, ndt)
    tensors = {"predict": tokens.flatten(), "accept_index": accept_index, "accept_lens": accept_lens}
    return Case(batches.path_sizes(shape, n), tensors)


def defined_by_verification(_case: Case, expected: Tensors) -> Tensors:
    """`predicts` is defined at the nodes of the accepted path alone; the other two everywhere."""
    accept_index = expected["accept_index"]
    num_nodes = expected["predicts"].shape[0]
    node = torch.where(accept_index >= 0, accept_index, num_nodes).long()  # padding marks one more, which is cut off
    predicts = torch.zeros(num_nodes + 1, dtype=torch.bool, device=node.device).index_fill_(0, node.flatten(), True)
    return {
        "predicts": predicts[:num_nodes],
        "accept_index": torch.ones_like(accept_index, dtype=torch.bool),
        "accept_token_num": torch.ones_like(expected["accept_token_num"], dtype=torch.bool),
    }


OPS: tuple[Op, ...] = (
    operation(
        verify_tree_greedy, "verify", Cases(_draw_shape, _make_verify_tree_greedy), compared=defined_by_verification
    ),
    operation(fill_bonus_tokens, "verify", Cases(batches.draw_shape, _make_fill_bonus_tokens)),
)
