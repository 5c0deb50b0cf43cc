"""The verification family: the greedy walk over draft trees, and the bonus token that it ends with.

In every case the tokens of all nodes differ, except for the siblings that are made equal on purpose, and
target tokens that accept nothing differ from all of them, so that a token from a wrong node shows.
"""

from __future__ import annotations

import itertools

import torch

from specsim.choices.chooser import Chooser, between, pick, sample
from specsim.contracts import bulk, counter_rng
from specsim.contracts.contract import Bulk, Case, Op, Role, ScalarArg, Sizes, TensorArg, Tensors
from specsim.contracts.naive.verify import (
    fill_bonus_tokens_loops,
    verify_tree_greedy_loops,
)
from specsim.contracts.tree import (
    NUM_DRAFT_TOKENS_MAX,
    TOPK_MAX,
    DraftTree,
    Shape,
    draw_batch_shape,
    draw_shape,
    draw_tree,
)
from specsim.reference.verify import (
    fill_bonus_tokens,
    verify_tree_greedy,
)

__all__ = ["OPS"]

CANDIDATES_START = 1_000
REJECTIONS_START = 500_000

BULK_NODES_MIN, BULK_STEPS_MAX = 4, 9
"""Of the trees that are verified by the thousand."""


def _draw_candidates(chooser: Chooser, tree: DraftTree, first_number: int) -> list[int]:
    """A token for each node; up to two siblings get the token of the one before them."""
    tokens = [CANDIDATES_START + first_number + node for node in range(len(tree.parents))]
    younger = [(a, b) for family in tree.children() for a, b in itertools.pairwise(family)]
    if younger:
        for _ in range(pick(chooser, (0, 1, 2), "equal siblings")):
            older_node, younger_node = pick(chooser, younger, "equal sibling")
            tokens[younger_node] = tokens[older_node]
    return tokens


def _draw_target(chooser: Chooser, tree: DraftTree, tokens: list[int], first_number: int) -> list[int]:
    """The target model's token after each node: it leads the walk to a chosen node and stops there; off that
    path it is a token that accepts nothing, or one that would if the walk came by.
    """
    last = len(tokens) - 1
    reject = [REJECTIONS_START + first_number + node for node in range(len(tokens))]
    children = tree.children()
    off_path = pick(chooser, ("reject", "first child", "last child", "own token", "next node"), "target off the path")
    target = list(reject)
    for node, family in enumerate(children):
        if off_path == "first child" and family:
            target[node] = tokens[family[0]]
        elif off_path == "last child" and family:
            target[node] = tokens[family[-1]]
        elif off_path == "own token":
            target[node] = tokens[node]
        elif off_path == "next node":
            target[node] = tokens[min(node + 1, last)]
    paths = [tree.path(node) for node in range(len(tokens))]
    kind = pick(chooser, ("root", "deepest", "any", "any depth"), "where the walk ends")
    if kind == "any":
        path = pick(chooser, paths, "last accepted node")
    elif kind == "any depth":
        depth = between(chooser, 0, max(map(len, paths)) - 1, "accepted drafts")
        path = next(path for path in paths if len(path) == depth + 1)
    else:
        path = paths[0] if kind == "root" else max(paths, key=len)
    for node, child in itertools.pairwise(path):
        target[node] = tokens[child]
    target[path[-1]] = reject[path[-1]]
    return target


def _generate_verify_tree_greedy(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    ndt = shape.num_draft_tokens
    candidates, next_token, next_sibling, target_predict = [], [], [], []
    for b in range(shape.bs):
        tree = draw_tree(chooser, shape)
        children = tree.children()
        tokens = _draw_candidates(chooser, tree, b * ndt)
        candidates.append(tokens)
        target_predict.append(_draw_target(chooser, tree, tokens, b * ndt))
        next_token.append([family[0] if family else -1 for family in children])
        siblings = [-1] * ndt
        for family in children:
            for older, younger in itertools.pairwise(family):
                siblings[older] = younger
        next_sibling.append(siblings)
    tensors = {
        "candidates": torch.tensor(candidates, dtype=torch.int64),
        "retrieve_index": torch.arange(shape.num_nodes, dtype=torch.int64).view(shape.bs, ndt),
        "retrieve_next_token": torch.tensor(next_token, dtype=torch.int64),
        "retrieve_next_sibling": torch.tensor(next_sibling, dtype=torch.int64),
        "target_predict": torch.tensor(target_predict, dtype=torch.int64),
    }
    return Case(_verify_sizes(shape), tensors)


def _generate_fill_bonus_tokens(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    ndt = shape.num_draft_tokens
    longest = min(shape.accept_width, ndt)
    accept_index, accept_lens = [], []
    for b in range(shape.bs):
        kind = pick(chooser, ("shortest", "longest", "any"), "accept length")
        accept_len = {"shortest": 1, "longest": longest}.get(kind) or between(chooser, 1, longest, "accept_lens")
        path = [0, *sorted(1 + node for node in sample(chooser, ndt - 1, accept_len - 1, "accepted node"))]
        accept_index.append([b * ndt + node for node in path] + [-1] * (shape.accept_width - accept_len))
        accept_lens.append(accept_len)
    tensors = {
        "predict": torch.arange(CANDIDATES_START, CANDIDATES_START + shape.num_nodes, dtype=torch.int32),
        "accept_index": torch.tensor(accept_index, dtype=torch.int32),
        "accept_lens": torch.tensor(accept_lens, dtype=torch.int32),
    }
    return Case(_verify_sizes(shape), tensors)


def _draw_verification_shape(chooser: Chooser) -> dict[str, int]:
    """4 to 64 nodes, topk 1 to 8, 2 to 9 steps; fewer, as many and more nodes than an accepted path is wide."""
    topk = between(chooser, 1, TOPK_MAX, "topk")
    num_steps = between(chooser, 3 if topk == 1 else 2, BULK_STEPS_MAX, "num_steps")
    width = num_steps + 1
    if topk == 1:
        return {"topk": topk, "num_steps": num_steps, "num_draft_tokens": width}
    most = min(NUM_DRAFT_TOKENS_MAX, 1 + topk + (num_steps - 1) * topk**2)
    kind = pick(chooser, ("any", "any", "fewer", "width", "one more", "most"), "num_draft_tokens against accept_width")
    if kind == "any":
        num_draft_tokens = between(chooser, BULK_NODES_MIN, most, "num_draft_tokens")
    elif kind == "fewer":
        num_draft_tokens = between(chooser, BULK_NODES_MIN, max(BULK_NODES_MIN, width - 1), "num_draft_tokens")
    else:
        num_draft_tokens = max(BULK_NODES_MIN, {"width": width, "one more": width + 1, "most": most}[kind])
    return {"topk": topk, "num_steps": num_steps, "num_draft_tokens": num_draft_tokens}


def _make_verify_tree_greedy(ids: torch.Tensor, shape: Sizes) -> Case:
    """Each node's token names the node, but for a sibling that is made equal to the one before it in a quarter of the
    cases. The target leads the walk to a chosen node; off that path it is right, wrong or a neighbour's.

    Computed with the nodes along the first dimension, and turned at the end.
    """
    n, ndt = ids.shape[0], shape["num_draft_tokens"]
    trees = bulk.trees(ids, shape)
    parents, first_child, next_sibling = trees.parents.t(), trees.first_child.t(), trees.next_sibling.t()  # [ndt, n]
    node = torch.arange(ndt, device=ids.device)[:, None]  # [ndt, 1]
    first_token = bulk.TOKENS_START + counter_rng.below(ids, "first token", 2**20) * ndt  # [n]
    tokens = first_token + node  # [ndt, n]
    older = counter_rng.below(ids, "older of two equal siblings", 4 * ndt).clamp(max=ndt - 1)[
        None
    ]  # mostly the last node
    younger = next_sibling.gather(0, older)  # [1, n]
    tokens.scatter_(0, torch.where(younger >= 0, younger, older), tokens.gather(0, older))

    reject = first_token + 2**30  # and the node's number: the token of no node
    # Where the target leads off the path: to no node, to the node itself, to its neighbour, to its first child.
    off_path = counter_rng.below(ids, "target off the path", 4)  # [n]
    start = torch.where(off_path == 0, ndt, torch.where(off_path == 2, 1, 0))  # [n]: of a node's own target
    goal = torch.where(off_path == 3, first_child, (node + start).clamp_(max=ndt))  # [ndt, n]: ndt for none
    goal = torch.where((off_path == 2) & (node == ndt - 1), 0, goal)
    end = bulk.last_accepted(ids, trees.depths)[None]  # [1, n]
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
        "retrieve_index": torch.arange(n * ndt, device=ids.device).view(n, ndt),
        "retrieve_next_token": trees.first_child.contiguous(),
        "retrieve_next_sibling": trees.next_sibling.contiguous(),
        "target_predict": target.t().contiguous(),
    }
    return Case(_batch_sizes(shape, n), tensors)


def _make_fill_bonus_tokens(ids: torch.Tensor, shape: Sizes) -> Case:
    n, ndt = ids.shape[0], shape["num_draft_tokens"]
    accept_index, accept_lens = bulk.accepted_paths(ids, shape)
    tokens = bulk.TOKENS_START + counter_rng.below(ids, "token that follows a node", 2**20, ndt)
    tensors = {"predict": tokens.flatten().to(torch.int32), "accept_index": accept_index, "accept_lens": accept_lens}
    return Case(_batch_sizes(shape, n), tensors)


def _batch_sizes(shape: Sizes, bs: int) -> dict[str, int]:
    ndt, num_steps = shape["num_draft_tokens"], shape["num_steps"]
    return {**shape, "bs": bs, "accept_width": num_steps + 1, "num_nodes": bs * ndt}


def _verify_sizes(shape: Shape) -> dict[str, int]:
    return _batch_sizes(shape.sizes(), shape.bs)


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
        generate=_generate_verify_tree_greedy,
        bulk=Bulk(_draw_verification_shape, _make_verify_tree_greedy),
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
        generate=_generate_fill_bonus_tokens,
        bulk=Bulk(draw_batch_shape, _make_fill_bonus_tokens),
        source="SGLang PR #26866",
    ),
)
