"""The sampling family: verification at a temperature, over trees and chains, with the coins as inputs.

Probabilities are multiples of 1/64, so that sums of them are exact in float32 in any order, and rows have zeros or
all their weight on one token. Every coin that a walk reads is put in a cell between two thresholds of its decision,
at the centre or next to an edge: on the threshold itself, the float32 after it, or the one before the next. Edges are
used where thresholds have no rounding; elsewhere a coin keeps clear of them, and implementations that round otherwise
still agree. Coins that no walk reads differ from node to node, so that a coin from a wrong node shows.

Drafts of the rules that know the draft model's law have a positive probability under it, and siblings differ there:
others cannot have been drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.bulk_sampling import (
    make_verify_chain_block,
    make_verify_chain_rejection,
    make_verify_tree_rejection,
    make_verify_tree_target_only,
)
from specsim.contracts.contract import Bulk, Case, Op, Role, ScalarArg, TensorArg, Tensors
from specsim.contracts.distributions import (
    DRAFT_ROWS,
    FLAT,
    POWERS_OF_TWO,
    SHORT,
    TARGET_ROWS,
    VOCAB_SIZE_MAX,
    VOCAB_SIZE_MIN,
    Row,
    by_weight,
    law,
)
from specsim.contracts.enumeration import (
    block_acceptance,
    cdf,
    chain_acceptance,
    normalised,
    residual,
    sibling_acceptance,
    without,
)
from specsim.contracts.naive.sampling import (
    verify_chain_block_loops,
    verify_chain_rejection_loops,
    verify_tree_rejection_loops,
    verify_tree_target_only_loops,
)
from specsim.contracts.tree import BS_MAX, NUM_STEPS_MAX, DraftTree, Shape, draw_batch_shape, draw_shape, draw_tree
from specsim.contracts.verify import defined_by_verification
from specsim.reference.sampling import (
    THRESHOLD_ACC_MIN,
    verify_chain_block,
    verify_chain_rejection,
    verify_tree_rejection,
    verify_tree_target_only,
)

__all__ = ["OPS"]

UNREAD_PRIME = 1021  # coins that no walk should read are odd multiples of 1 / (2 * 1021), which no threshold is
WIDE_VOCAB_SIZES, WIDE_NODES_MAX = (31, 33, 127, 129, 257, 1025), 6
"""Of some bulk cases; the loops of their makers go over the vocabulary."""

POSITIONS = ("centre", "low edge", "after low edge", "before high edge")


def _draw_rows(chooser: Chooser, kinds: Sequence[Sequence[int]], count: int, vocab_size: int, whose: str) -> list[Row]:
    """A law for each node, from two choices."""
    first = chooser.choose(len(kinds), f"{whose} law of the root")
    step = chooser.choose(len(kinds) * vocab_size, f"{whose} laws, from node to node")
    return [law(kinds[(first + step * i) % len(kinds)], step * (i + 1), vocab_size) for i in range(count)]


def _is_exact(value: Fraction) -> bool:
    """Whether `value` has so few binary digits that sums and products with it have no rounding in float32."""
    return value.denominator <= 2**16 and value.denominator.bit_count() == 1


def _coin(low: Fraction, high: Fraction, position: str, *, exact: bool = True) -> float:
    """A coin in `[low, high)`; `exact` says whether an implementation knows both ends without rounding."""
    centre = float((low + high) / 2)
    if position == "centre" or not exact or not _is_exact(high if position == "before high edge" else low):
        return centre
    if position == "before high edge":
        return torch.nextafter(torch.tensor(float(high)), torch.tensor(0.0)).item()
    edge = torch.tensor(float(low))
    return (torch.nextafter(edge, torch.tensor(1.0)) if position == "after low edge" else edge).item()


def _unread_coins(count: int, first_number: int) -> list[float]:
    return [((first_number + i) * 37 % UNREAD_PRIME + 0.5) / UNREAD_PRIME for i in range(count)]


def _final_coin(weights: Sequence[Fraction], which: int, position: str, *, exact: bool = True) -> float:
    """A coin in the `which`-th cell of drawing a token from `weights`."""
    cuts = sorted({Fraction(0), *cdf(weights), Fraction(1)})
    cells = list(itertools.pairwise(cuts))
    low, high = cells[which % len(cells)]
    return _coin(low, high, position, exact=exact)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where a walk is to lead, and where its coins lie in their cells."""

    depth: int  # accepted drafts, if the laws allow it
    sibling: int  # 0: towards the deepest leaf; else the child to accept, counted from there
    position: str
    final_cell: int
    final_position: str


@dataclass(frozen=True, slots=True)
class _Habit:
    """What the plans of a batch have in common, to keep the choices few."""

    shift: int  # rank of the first sibling's token
    sibling: int
    final_cell: int


def _draw_habit(chooser: Chooser, vocab_size: int) -> _Habit:
    return _Habit(
        shift=chooser.choose(3, "rank of the first sibling's token"),
        sibling=chooser.choose(4, "accepted sibling"),
        final_cell=chooser.choose(vocab_size, "cell of the final coin"),
    )


def _draw_plan(chooser: Chooser, habit: _Habit, b: int, num_steps: int) -> _Plan:
    depth = pick(chooser, (0, num_steps, num_steps, *range(1, num_steps)), "accepted drafts")
    position, final_position = pick(chooser, list(itertools.product(POSITIONS, POSITIONS)), "coins, final coin")
    return _Plan(depth, habit.sibling, position, habit.final_cell + b, final_position)


def _heights(children: list[list[int]]) -> list[int]:
    heights = [0] * len(children)
    for node in reversed(range(len(children))):
        heights[node] = max((1 + heights[child] for child in children[node]), default=0)
    return heights


def _wanted(plan: _Plan, family: list[int], heights: list[int], depth: int) -> int | None:
    """The child that the walk is to accept, None if it is to stop."""
    if depth >= plan.depth or not family:
        return None
    deepest = max(range(len(family)), key=lambda i: heights[family[i]])
    return family[(deepest + plan.sibling) % len(family)]


def _turned_to(row: Row, token: int) -> Row:
    """`row`, turned where it must be for `token` to have a positive probability."""
    if row[token] > 0:
        return row
    start = (by_weight(row)[0] - token) % len(row)
    return row[start:] + row[:start]


def _lead(tree: DraftTree, rows: list[Row], tokens: list[int], plan: _Plan) -> None:
    """Turn the laws on the planned path in place, so that each step of it is possible."""
    children = tree.children()
    heights = _heights(children)
    node = 0
    for depth in range(plan.depth):
        child = _wanted(plan, children[node], heights, depth)
        if child is None:
            return
        rows[node] = _turned_to(rows[node], tokens[child])
        node = child


def _family_tokens(tree: DraftTree, rows: list[Row], shift: int, *, drawn: bool, first_token: int) -> list[int]:
    """A token for each node: siblings get those that `rows` finds most probable, from the `shift`-th on.

    `drawn` keeps to tokens of positive probability, as many as there are.
    """
    tokens = [first_token] * len(rows)
    for row, family in zip(rows, tree.children(), strict=True):
        order = by_weight(row)
        if drawn:
            order = order[: sum(weight > 0 for weight in row)]
        for rank, child in enumerate(family):
            tokens[child] = order[(shift + rank) % len(order)]
    return tokens


def _links(tree: DraftTree) -> tuple[list[int], list[int]]:
    children = tree.children()
    siblings = [-1] * len(children)
    for family in children:
        for older, younger in itertools.pairwise(family):
            siblings[older] = younger
    return [family[0] if family else -1 for family in children], siblings


def _tensor(rows: object) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def _floats(rows: list[Row]) -> list[list[float]]:
    return [[float(weight) for weight in row] for row in rows]


def _target_only_cells(
    row: Row, family: list[int], tokens: list[int], single: Fraction, acc: Fraction
) -> list[tuple[Fraction, Fraction, int | None]]:
    """The cells of a node's coin that are not empty: both ends, and the child accepted there or None."""
    cells: list[tuple[Fraction, Fraction, int | None]] = []
    low, mass = Fraction(0), Fraction(0)
    for child in family:
        prob = row[tokens[child]]
        mass += prob
        if prob > 0:
            high = Fraction(1) if prob >= single else min(mass / acc, Fraction(1))
            cells.append((low, high, child))
            low = high
    cells.append((low, Fraction(1), None))
    return [cell for cell in cells if cell[0] < cell[1]]


def _target_only_coins(
    tree: DraftTree,
    rows: list[Row],
    tokens: list[int],
    plan: _Plan,
    thresholds: tuple[Fraction, Fraction],
    num_steps: int,
) -> tuple[dict[int, float], float]:
    """The coins that the walk reads, by node, and the final one."""
    children = tree.children()
    heights = _heights(children)
    coins: dict[int, float] = {}
    node = 0
    left: Sequence[Fraction] = rows[0]
    for depth in range(num_steps):
        family = children[node]
        wanted = _wanted(plan, family, heights, depth)
        cells = _target_only_cells(rows[node], family, tokens, *thresholds)
        low, high, child = next((cell for cell in cells if cell[2] == wanted), cells[-1])
        coins[node] = _coin(low, high, plan.position)
        if child is None:
            left = without(rows[node], [tokens[sibling] for sibling in family])
            break
        node, left = child, rows[child]
    return coins, _final_coin(left, plan.final_cell, plan.final_position)


def _generate_verify_tree_target_only(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    ndt = shape.num_draft_tokens
    vocab_size = between(chooser, VOCAB_SIZE_MIN, VOCAB_SIZE_MAX, "vocab_size")
    single = pick(chooser, (Fraction(1), Fraction(1), Fraction(1, 4), Fraction(1, 2), Fraction(0)), "threshold_single")
    acc = pick(chooser, (Fraction(1), Fraction(1), Fraction(3, 4), Fraction(1, 2), Fraction(0)), "threshold_acc")
    floored = max(acc, Fraction(THRESHOLD_ACC_MIN))
    habit = _draw_habit(chooser, vocab_size)
    equal_siblings = pick(chooser, (False, False, True), "equal siblings")
    drawn = _Drawn.empty()
    for b in range(shape.bs):
        tree = draw_tree(chooser, shape)
        rows = _draw_rows(chooser, (*TARGET_ROWS, SHORT), ndt, vocab_size, "target")
        tokens = _family_tokens(tree, rows, habit.shift, drawn=False, first_token=b % vocab_size)
        if equal_siblings:
            for family in tree.children():
                for older, younger in itertools.pairwise(family[:2]):
                    tokens[younger] = tokens[older]
        plan = _draw_plan(chooser, habit, b, shape.num_steps)
        _lead(tree, rows, tokens, plan)
        read, final = _target_only_coins(tree, rows, tokens, plan, (single, floored), shape.num_steps)
        coins = [read.get(node, unread) for node, unread in enumerate(_unread_coins(ndt, b * ndt))]
        drawn.add_tree(tree, tokens, coins, final, rows)
    tensors = {
        **drawn.tree_tensors(shape),
        "uniform_samples": _tensor(drawn.coins),
        "uniform_final": _tensor(drawn.finals),
        "target_probs": _tensor(drawn.target),
        "threshold_single": _tensor([float(single)]),
        "threshold_acc": _tensor([float(acc)]),
    }
    return Case(_sizes(shape, vocab_size), tensors)


def _tree_rejection_coins(
    tree: DraftTree, target: list[Row], draft: list[Row], tokens: list[int], plan: _Plan, num_steps: int
) -> tuple[dict[int, float], float]:
    """The coins that the walk reads, by node, and the final one."""
    children = tree.children()
    heights = _heights(children)
    coins: dict[int, float] = {}
    node, left, exact = 0, list(target[0]), True
    for depth in range(num_steps):
        family = children[node]
        wanted = _wanted(plan, family, heights, depth)
        accepted = None
        proposal = list(draft[node])
        for child in family:
            token = tokens[child]
            height = chain_acceptance(left, proposal, token)
            if height == 1 or (child == wanted and height > 0):
                coins[child] = _coin(Fraction(0), height, plan.position, exact=exact)
                accepted = child
                break
            coins[child] = _coin(height, Fraction(1), plan.position, exact=exact)
            _, left = sibling_acceptance(left, proposal, [token])
            proposal = normalised(without(proposal, [token]))
            exact = all(map(_is_exact, (*left, *proposal)))
        if accepted is None:
            break
        node, left, exact = accepted, list(target[accepted]), True
    return coins, _final_coin(left, plan.final_cell, plan.final_position, exact=exact)


def _generate_verify_tree_rejection(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    ndt = shape.num_draft_tokens
    vocab_size = between(chooser, max(VOCAB_SIZE_MIN, shape.topk), VOCAB_SIZE_MAX, "vocab_size")
    habit = _draw_habit(chooser, vocab_size)
    drawn = _Drawn.empty()
    for b in range(shape.bs):
        tree = draw_tree(chooser, shape)
        target = _draw_rows(chooser, TARGET_ROWS, ndt, vocab_size, "target")
        draft = _draw_rows(chooser, DRAFT_ROWS, ndt, vocab_size, "draft")
        for node, family in enumerate(tree.children()):
            if len(family) > sum(weight > 0 for weight in draft[node]):
                draft[node] = law(FLAT, node, vocab_size)
        tokens = _family_tokens(tree, draft, habit.shift, drawn=True, first_token=b % vocab_size)
        plan = _draw_plan(chooser, habit, b, shape.num_steps)
        _lead(tree, target, tokens, plan)
        read, final = _tree_rejection_coins(tree, target, draft, tokens, plan, shape.num_steps)
        coins = [read.get(node, unread) for node, unread in enumerate(_unread_coins(ndt, b * ndt))]
        drawn.add_tree(tree, tokens, coins, final, target, draft)
    tensors = {
        **drawn.tree_tensors(shape),
        "uniform_samples": _tensor(drawn.coins),
        "uniform_final": _tensor(drawn.finals),
        "draft_probs": _tensor(drawn.draft),
        "target_probs": _tensor(drawn.target),
    }
    return Case(_sizes(shape, vocab_size), tensors)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The rows of a batch, as far as they are drawn."""

    tokens: list[list[int]]
    next_token: list[list[int]]
    next_sibling: list[list[int]]
    coins: list[list[float]]
    finals: list[float]
    target: list[list[list[float]]]
    draft: list[list[list[float]]]

    @staticmethod
    def empty() -> _Drawn:
        return _Drawn([], [], [], [], [], [], [])

    def add_tree(
        self,
        tree: DraftTree,
        tokens: list[int],
        coins: list[float],
        final: float,
        target: list[Row],
        draft: list[Row] | None = None,
    ) -> None:
        first, sibling = _links(tree)
        self.next_token.append(first)
        self.next_sibling.append(sibling)
        self.add_chain(tokens, coins, final, target, draft or [])

    def add_chain(
        self, tokens: list[int], coins: list[float], final: float, target: list[Row], draft: list[Row]
    ) -> None:
        self.tokens.append(tokens)
        self.coins.append(coins)
        self.finals.append(final)
        self.target.append(_floats(target))
        self.draft.append(_floats(draft))

    def tree_tensors(self, shape: Shape) -> Tensors:
        return {
            "candidates": torch.tensor(self.tokens, dtype=torch.int64),
            "retrieve_index": torch.arange(shape.num_nodes, dtype=torch.int64).view(shape.bs, shape.num_draft_tokens),
            "retrieve_next_token": torch.tensor(self.next_token, dtype=torch.int64),
            "retrieve_next_sibling": torch.tensor(self.next_sibling, dtype=torch.int64),
        }


def _sizes(shape: Shape, vocab_size: int) -> dict[str, int]:
    return {
        **shape.sizes(),
        "accept_width": shape.accept_width,
        "num_nodes": shape.num_nodes,
        "vocab_size": vocab_size,
    }


def _generate_chain(chooser: Chooser, *, block: bool) -> Case:
    bs = between(chooser, 1, BS_MAX, "bs")
    num_steps = between(chooser, 1, NUM_STEPS_MAX, "num_steps")
    shape = Shape(bs, 1, num_steps, num_steps + 1)
    vocab_size = between(chooser, VOCAB_SIZE_MIN, VOCAB_SIZE_MAX, "vocab_size")
    habit = _draw_habit(chooser, vocab_size)
    drawn = _Drawn.empty()
    for b in range(bs):
        target = _draw_rows(chooser, TARGET_ROWS, num_steps + 1, vocab_size, "target")
        draft = _draw_rows(chooser, POWERS_OF_TWO if block else DRAFT_ROWS, num_steps, vocab_size, "draft")
        if pick(chooser, (False, False, False, True), "draft law is the target's") and not block:
            draft = target[:num_steps]
        tokens = [b % vocab_size]
        for i, row in enumerate(draft):
            support = [token for token in by_weight(row) if row[token] > 0]
            tokens.append(support[habit.shift * (i + b) % len(support)])
        plan = _draw_plan(chooser, habit, b, num_steps)
        for i in range(plan.depth):
            target[i] = _turned_to(target[i], tokens[i + 1])
        coins, final = (_block_coins if block else _chain_coins)(target, draft, tokens[1:], plan, b)
        drawn.add_chain(tokens, coins, final, target, draft)
    tensors = {
        "candidates": torch.tensor(drawn.tokens, dtype=torch.int64),
        "draft_probs": _tensor(drawn.draft),
        "target_probs": _tensor(drawn.target),
        "uniform_samples": _tensor(drawn.coins),
        "uniform_final": _tensor(drawn.finals),
    }
    return Case(_sizes(shape, vocab_size), tensors)


def _chain_coins(
    target: list[Row], draft: list[Row], drafts: list[int], plan: _Plan, b: int
) -> tuple[list[float], float]:
    """All coins of a chain under the token rule; those after the first rejection are not read."""
    coins = _unread_coins(len(drafts), b * (len(drafts) + 1))
    left: Sequence[Fraction] = target[-1]
    for i, token in enumerate(drafts):
        height = chain_acceptance(target[i], draft[i], token)
        if height > 0 and (height == 1 or i < plan.depth):
            coins[i] = _coin(Fraction(0), height, plan.position)
        else:
            coins[i] = _coin(height, Fraction(1), plan.position)
            left = residual(target[i], draft[i])
            break
    return coins, _final_coin(left, plan.final_cell, plan.final_position)


def _block_coins(
    target: list[Row], draft: list[Row], drafts: list[int], plan: _Plan, b: int
) -> tuple[list[float], float]:
    """All coins of a chain under block verification, which reads every one; shorter prefixes may pass or fail."""
    heights, rest = block_acceptance(target, draft, drafts)
    reach, exact = Fraction(1), True
    for p, q, token in zip(target, draft, drafts, strict=False):
        reach = min(reach * p[token] / q[token], Fraction(1))
        exact = exact and _is_exact(reach)
    coins, accepted = [], 0
    for i, height in enumerate(heights, start=1):
        wanted = i == plan.depth or (i < plan.depth and (i + plan.sibling + b) % 2 == 0)
        if height > 0 and (height == 1 or wanted):
            coins.append(_coin(Fraction(0), height, plan.position, exact=exact))
            accepted = i
        else:
            coins.append(_coin(height, Fraction(1), plan.position, exact=exact))
    return coins, _final_coin(rest[accepted], plan.final_cell, plan.final_position, exact=exact)


def _generate_verify_chain_rejection(chooser: Chooser) -> Case:
    return _generate_chain(chooser, block=False)


def _generate_verify_chain_block(chooser: Chooser) -> Case:
    return _generate_chain(chooser, block=True)


def _draw_bulk_vocab(chooser: Chooser, low: int, num_draft_tokens: int) -> int:
    """A small vocabulary, and for small trees now and then one beside a power of two that blocks and words end at."""
    wide = WIDE_VOCAB_SIZES if num_draft_tokens <= WIDE_NODES_MAX else ()
    small = VOCAB_SIZE_MAX - low + 1
    drawn = chooser.choose(small + len(wide), "vocab_size")
    return low + drawn if drawn < small else wide[drawn - small]


def _draw_target_only_shape(chooser: Chooser) -> dict[str, int]:
    shape = draw_batch_shape(chooser)
    return {
        **shape,
        "vocab_size": _draw_bulk_vocab(chooser, VOCAB_SIZE_MIN, shape["num_draft_tokens"]),
        "threshold_single_64ths": pick(chooser, (64, 64, 16, 32, 0), "threshold_single"),
        "threshold_acc_64ths": pick(chooser, (64, 64, 48, 32, 0), "threshold_acc"),
    }


def _draw_tree_rejection_shape(chooser: Chooser) -> dict[str, int]:
    shape = draw_batch_shape(chooser)
    low = max(VOCAB_SIZE_MIN, shape["topk"])
    return {**shape, "vocab_size": _draw_bulk_vocab(chooser, low, shape["num_draft_tokens"])}


def _draw_chain_shape(chooser: Chooser) -> dict[str, int]:
    num_steps = between(chooser, 1, NUM_STEPS_MAX, "num_steps")
    vocab_size = _draw_bulk_vocab(chooser, VOCAB_SIZE_MIN, num_steps + 1)
    return {"topk": 1, "num_steps": num_steps, "num_draft_tokens": num_steps + 1, "vocab_size": vocab_size}


_NODES = ("bs", "num_draft_tokens")

_TREE = (
    TensorArg("candidates", Role.IN, _NODES, torch.int64, "token of each node, below vocab_size; node 0 is the root"),
    TensorArg("retrieve_index", Role.IN, _NODES, torch.int64, "number of the node in the batch, within its own row"),
    TensorArg("retrieve_next_token", Role.IN, _NODES, torch.int64, "first child, a later node; -1 if there is none"),
    TensorArg("retrieve_next_sibling", Role.IN, _NODES, torch.int64, "next sibling, a later node; -1 if there is none"),
)
_FINAL = TensorArg("uniform_final", Role.IN, ("bs",), torch.float32, "coin in [0, 1) of the token after the path")
_TARGET = TensorArg(
    "target_probs", Role.IN, (*_NODES, "vocab_size"), torch.float32, "the target model's law after each node"
)
_CHAIN = (
    TensorArg("candidates", Role.IN, _NODES, torch.int64, "the root, then the drafted tokens, below vocab_size"),
    TensorArg(
        "draft_probs",
        Role.IN,
        ("bs", "num_steps", "vocab_size"),
        torch.float32,
        "the law from which each draft was drawn; positive at the draft",
    ),
    _TARGET,
    TensorArg(
        "uniform_samples",
        Role.IN,
        ("bs", "num_steps"),
        torch.float32,
        "coin in [0, 1) of each draft, in the column of its parent",
    ),
    _FINAL,
)
_NUM_STEPS = ScalarArg("num_steps", "drafts that can be accepted; accept_width less one")
_VERIFIED = (
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
    TensorArg("accept_token_num", Role.OUT, ("bs",), torch.int32, "n: accepted drafts, without root and bonus"),
)

OPS: tuple[Op, ...] = (
    Op(
        name="verify_tree_target_only",
        family="sampling",
        summary="accept a path of each tree by the target model's law alone",
        args=(
            *_TREE,
            TensorArg(
                "uniform_samples",
                Role.IN,
                _NODES,
                torch.float32,
                "coin in [0, 1) of each node, which decides between its children",
            ),
            _FINAL,
            _TARGET,
            TensorArg(
                "threshold_single",
                Role.IN,
                (1,),
                torch.float32,
                "0 to 1: a child at least as probable is accepted; 1 changes nothing",
            ),
            TensorArg(
                "threshold_acc",
                Role.IN,
                (1,),
                torch.float32,
                "0 to 1: divides the children's cumulative probability, at least 1e-9; 1 changes nothing",
            ),
            _NUM_STEPS,
            *_VERIFIED,
        ),
        reference=verify_tree_target_only,
        loops=verify_tree_target_only_loops,
        generate=_generate_verify_tree_target_only,
        bulk=Bulk(_draw_target_only_shape, make_verify_tree_target_only),
        defined=defined_by_verification,
        source="SGLang's tree_speculative_sampling_target_only, with PR #35798",
    ),
    Op(
        name="verify_chain_rejection",
        family="sampling",
        summary="accept drafts of each chain by the ratio of target to draft probability",
        args=(*_CHAIN, *_VERIFIED),
        reference=verify_chain_rejection,
        loops=verify_chain_rejection_loops,
        generate=_generate_verify_chain_rejection,
        bulk=Bulk(_draw_chain_shape, make_verify_chain_rejection),
        defined=defined_by_verification,
        source="Leviathan et al. (arXiv 2211.17192), algorithm 1",
    ),
    Op(
        name="verify_chain_block",
        family="sampling",
        summary="accept a prefix of each chain as a block",
        args=(*_CHAIN, *_VERIFIED),
        reference=verify_chain_block,
        loops=verify_chain_block_loops,
        generate=_generate_verify_chain_block,
        bulk=Bulk(_draw_chain_shape, make_verify_chain_block),
        defined=defined_by_verification,
        source="Sun et al. (arXiv 2403.10444), algorithm 2",
    ),
    Op(
        name="verify_tree_rejection",
        family="sampling",
        summary="accept a path of each tree; siblings are held against what the ones before them left over",
        args=(
            *_TREE,
            TensorArg("uniform_samples", Role.IN, _NODES, torch.float32, "coin in [0, 1) that decides about each node"),
            _FINAL,
            TensorArg(
                "draft_probs",
                Role.IN,
                (*_NODES, "vocab_size"),
                torch.float32,
                "the law from which the children of each node were drawn, without replacement",
            ),
            _TARGET,
            _NUM_STEPS,
            *_VERIFIED,
        ),
        reference=verify_tree_rejection,
        loops=verify_tree_rejection_loops,
        generate=_generate_verify_tree_rejection,
        bulk=Bulk(_draw_tree_rejection_shape, make_verify_tree_rejection),
        defined=defined_by_verification,
        source="SpecInfer (arXiv 2305.09781), section 4.3; without replacement: Jeon et al. (arXiv 2402.14160)",
    ),
)
