"""The verification family: the greedy walk over draft trees, and the bonus token that it ends with.

In every case the tokens of all nodes differ, except for the siblings that are made equal on purpose, and
target tokens that accept nothing differ from all of them, so that a token from a wrong node shows.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Role, ScalarArg, Sizes, TensorArg, Tensors
from specsim.contracts.draws import Draws
from specsim.contracts.naive.verify import (
    fill_bonus_tokens_loops,
    verify_tree_greedy_loops,
)
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


def _batch_sizes(shape: Sizes, bs: int) -> dict[str, int]:
    ndt, num_steps = shape["num_draft_tokens"], shape["num_steps"]
    return {**shape, "bs": bs, "accept_width": num_steps + 1, "num_nodes": bs * ndt}


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


_NODES = ("bs", "num_draft_tokens")

OPS: tuple[Op, ...] = (
    Op(
        name="verify_tree_greedy",
        family="verify",
        summary="accept the path of each tree that the target model's argmax follows",
        args=(
            TensorArg("candidates", Role.IN, _NODES, torch.int64, "token of each node; node 0 is the root"),
            TensorArg(
                "retrieve_index",
                Role.IN,
                _NODES,
                torch.int64,
                "number of the node in the batch, within its own row",
            ),
            TensorArg(
                "retrieve_next_token",
                Role.IN,
                _NODES,
                torch.int64,
                "first child, a later node; -1 if there is none",
            ),
            TensorArg(
                "retrieve_next_sibling",
                Role.IN,
                _NODES,
                torch.int64,
                "next sibling, a later node; -1 if there is none",
            ),
            TensorArg(
                "target_predict",
                Role.IN,
                _NODES,
                torch.int64,
                "target model's token after each node, at retrieve_index",
            ),
            TensorArg(
                "predicts",
                Role.OUT,
                ("num_nodes",),
                torch.int32,
                "token that follows each node; defined at the accepted path, accept_index[b, 0..n], alone",
            ),
            TensorArg(
                "accept_index",
                Role.OUT,
                ("bs", "accept_width"),
                torch.int32,
                "the accepted path as node numbers, root first, then -1",
                prefill=-1,
            ),
            TensorArg(
                "accept_token_num",
                Role.OUT,
                ("bs",),
                torch.int32,
                "n: accepted drafts, without root and bonus",
            ),
            ScalarArg("num_steps", "drafts that can be accepted; accept_width less one"),
        ),
        reference=verify_tree_greedy,
        loops=verify_tree_greedy_loops,
        cases=Cases(_draw_shape, _make_verify_tree_greedy),
        defined=defined_by_verification,
        source="the verification phase of EAGLE (arXiv 2401.15077), at temperature 0",
    ),
    Op(
        name="fill_bonus_tokens",
        family="verify",
        summary="the token after the last accepted node of each request",
        args=(
            TensorArg("predict", Role.IN, ("num_nodes",), torch.int32, "token that follows each node"),
            TensorArg(
                "accept_index",
                Role.IN,
                ("bs", "accept_width"),
                torch.int32,
                "the accepted path as node numbers, root first, then -1",
            ),
            TensorArg("accept_lens", Role.IN, ("bs",), torch.int32, "entries of the path, 1 to accept_width"),
            TensorArg("bonus_tokens", Role.OUT, ("bs",), torch.int32, "predict[accept_index[b, accept_lens[b] - 1]]"),
        ),
        reference=fill_bonus_tokens,
        loops=fill_bonus_tokens_loops,
        cases=Cases(batches.draw_shape, _make_fill_bonus_tokens),
        source="SGLang PR #26866",
    ),
)
