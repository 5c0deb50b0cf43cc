"""How the cases of the sampling family are made: distributions, drafts and uniform draws, batched over requests.

The cases are of the kind that `specsim.contracts.sampling` describes. Thresholds are computed in float64; a uniform
draw lies on an edge of its cell, or beside it, only where the threshold has few binary digits and so is the same in
every floating-point format, and at the centre elsewhere. No walk is led into a cell that rounding could close.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from specsim.contracts import batches
from specsim.contracts.contract import Case, Sizes, Tensors
from specsim.contracts.distributions import (
    DRAFT_ROWS,
    FLAT,
    KINDS,
    POWERS_OF_TWO,
    SHORT,
    TARGET_ROWS,
    Weights,
    by_weight,
    dist,
)
from specsim.contracts.draws import Draws
from specsim.reference.sampling import PLACEHOLDER, THRESHOLD_ACC_MIN

CENTRE, LOW_EDGE, AFTER_LOW_EDGE, BEFORE_HIGH_EDGE = range(4)
NARROW = 2.0**-10  # cells narrower than this are avoided where thresholds have rounding
FEW_DIGITS = 2.0**16  # a multiple of its reciprocal has few binary digits


class _Laws(NamedTuple):
    """Distributions [n, rows] by their kind, and by how far their tokens are moved up.

    weights  [kinds, V] float64: of each kind, not moved
    order    [kinds, V] int64: their tokens, the most probable first
    support  [kinds] int64: how many of them have a positive probability
    kind     [n, rows] int64
    turn     [n, rows] int64, 0 to V - 1
    """

    weights: Tensor
    order: Tensor
    support: Tensor
    kind: Tensor
    turn: Tensor


@lru_cache(maxsize=64)
def _table(vocab_size: int) -> tuple[Tensor, Tensor]:
    """Weights [kinds, V] float64 and tokens by weight [kinds, V] int64 of every kind, on the CPU; not to be changed."""
    table = [dist(kind, 0, vocab_size) for kind in KINDS]
    weights = torch.tensor([[float(p) for p in row] for row in table], dtype=torch.float64)
    return weights, torch.tensor([by_weight(row) for row in table])


def _draw_laws(draws: Draws, what: str, kinds: tuple[Weights, ...], rows: int, vocab_size: int) -> _Laws:
    weights, order = (tensor.to(draws.device) for tensor in _table(vocab_size))
    numbers = torch.tensor([KINDS.index(kind) for kind in kinds], device=draws.device)
    return _Laws(
        weights,
        order,
        (weights > 0).sum(dim=1),
        numbers[draws.below(f"kind of the {what} law", len(kinds), rows)],
        draws.below(f"turn of the {what} law", vocab_size, rows),
    )


def _probs(dists: _Laws) -> Tensor:
    """The distributions as probabilities [n, rows, V] float64."""
    vocab_size = dists.weights.shape[1]
    token = torch.arange(vocab_size, device=dists.kind.device)
    return dists.weights[dists.kind[:, :, None], (token - dists.turn[:, :, None]) % vocab_size]


def draw_rows(draws: Draws, what: str, kinds: tuple[Weights, ...], rows: int, vocab_size: int) -> Tensor:
    """Distributions [n, rows, V] float64 of the given kinds."""
    return _probs(_draw_laws(draws, what, kinds, rows, vocab_size))


def _prob(dists: _Laws, row: Tensor, token: Tensor) -> Tensor:
    """The probability [n, k] of each `token` [n, k] under the distribution of its `row` [n, k]."""
    vocab_size = dists.weights.shape[1]
    return dists.weights[dists.kind.gather(1, row), (token - dists.turn.gather(1, row)) % vocab_size]


def _ranked(dists: _Laws, row: Tensor, rank: Tensor) -> Tensor:
    """The token [n, k] that is `rank`-th most probable in the distribution of its `row` [n, k]."""
    vocab_size = dists.weights.shape[1]
    return (dists.order[dists.kind.gather(1, row), rank] + dists.turn.gather(1, row)) % vocab_size


def _turn_to(dists: _Laws, row: Tensor, token: Tensor, needed: Tensor) -> None:
    """Turn the distributions of `row` [n, 1] in place so that `token` [n, 1] is the most probable, where `needed` [n,
    1].
    """
    vocab_size = dists.weights.shape[1]
    turn = (token - dists.order[dists.kind.gather(1, row), 0]) % vocab_size
    dists.turn.scatter_(1, row, torch.where(needed, turn, dists.turn.gather(1, row)))


def _total(weights: Tensor) -> Tensor:
    """The sum over the last dimension, added up from the left: the same on every device."""
    return reduce(torch.add, weights.unbind(-1))


def _has_few_digits(value: Tensor) -> Tensor:
    return (value * FEW_DIGITS).floor() == value * FEW_DIGITS


def _is_power_of_two(value: Tensor) -> Tensor:
    """By others a GPU may divide with an error in the last digits, also where the quotient has few."""
    return torch.frexp(value).mantissa == 0.5


def _place_coins(low: Tensor, high: Tensor, position: Tensor, exact: Tensor | bool = True) -> Tensor:
    """Float32 uniform draws in `[low, high)`; `exact` says where an implementation can know both ends exactly."""
    edge = torch.where(position == BEFORE_HIGH_EDGE, high, low)
    at_edge = edge.to(torch.float32)
    after, before = torch.nextafter(at_edge, at_edge + 1), torch.nextafter(at_edge, at_edge - 1)
    beside = torch.where(position == LOW_EDGE, at_edge, torch.where(position == AFTER_LOW_EDGE, after, before))
    centre = ((low + high) / 2).to(torch.float32)
    return torch.where((position != CENTRE) & exact & _has_few_digits(edge), beside, centre)


def _final_coins(draws: Draws, left: Tensor, exact: Tensor | bool = True) -> Tensor:
    """Uniform draws [n] that draw from what is `left` [n, V] of a distribution any of its tokens, the likely and the
    unlikely.
    """
    vocab_size = left.shape[1]
    ends = [torch.zeros_like(left[:, 0])]
    for weight in left.unbind(1):
        ends.append(ends[-1] + weight)
    cuts = torch.stack(ends, dim=1)  # [n, V + 1]
    total = cuts[:, vocab_size:]  # [n, 1]
    possible = left > total * NARROW  # [n, V]
    which = draws.below("token after the path", possible.sum(dim=1).clamp(min=1))  # [n]
    token = (possible.cumsum(dim=1) > which[:, None]).int().argmax(dim=1, keepdim=True)  # [n, 1]
    shares = torch.where(total > 0, cuts / total, (cuts >= 0).to(cuts.dtype))  # nothing left: any uniform draw will do
    low, high = shares.gather(1, token)[:, 0], shares.gather(1, token + 1)[:, 0]
    low = torch.where(total[:, 0] > 0, low, 0.0)
    return _place_coins(low, high, draws.below("position of the final coin", 4), exact)


class _WalkPlan(NamedTuple):
    """Trees, and where their walks are to lead.

    rank          [n, ndt] int64: older siblings of each node
    num_children  [n, ndt] int64
    wanted        [n, ndt] int64: the child that is to be accepted, -1 for none
    """

    trees: batches.Trees
    rank: Tensor
    num_children: Tensor
    wanted: Tensor


def _plan(draws: Draws, shape: Sizes) -> _WalkPlan:
    """Walks lead to the root, the deepest node, or any; off their path every other node wants its first child."""
    trees = batches.Trees(*(tensor.contiguous() for tensor in batches.trees(draws, shape)))
    request = torch.arange(draws.count, device=draws.device)  # [n]
    rank, num_children = torch.zeros_like(trees.parents), torch.zeros_like(trees.parents)
    for node in range(1, trees.parents.shape[1]):
        parent = trees.parents[:, node]
        rank[:, node] = num_children[request, parent]
        num_children[request, parent] += 1
    wants = draws.below("accepts off the path", 2, trees.parents.shape[1]) == 1
    wanted = torch.where(wants, trees.first_child, -1)
    end = batches.last_accepted(draws, trees.depths)  # [n]
    wanted[request, end] = -1
    for _ in range(shape["num_steps"]):
        parent = trees.parents[request, end].clamp(min=0)
        wanted[request, parent] = torch.where(end > 0, end, wanted[request, parent])
        end = parent
    return _WalkPlan(trees, rank, num_children, wanted)


def _sibling_tokens(draws: Draws, plan: _WalkPlan, dists: _Laws, *, drawn: bool) -> Tensor:
    """A token for each node [n, ndt]: siblings get those that the parent's distribution finds most probable, from one
    of the first three on; `drawn` keeps to tokens of positive probability.
    """
    ndt, vocab_size = plan.rank.shape[1], dists.weights.shape[1]
    parent = plan.trees.parents.clamp(min=0)
    first = draws.below("rank of the first sibling's token", 3, ndt).gather(1, parent)  # [n, ndt]
    count = dists.support[dists.kind].gather(1, parent) if drawn else torch.full_like(parent, vocab_size)
    tokens = _ranked(dists, parent, (first + plan.rank) % count)
    tokens[:, 0] = draws.below("token of the root", vocab_size)
    return tokens


def _lead(plan: _WalkPlan, dists: _Laws, tokens: Tensor) -> None:
    """Turn distributions in place so that every child that is wanted has a positive probability."""
    wanted = plan.wanted.clamp(min=0)
    for node in range(tokens.shape[1]):
        row = torch.full_like(wanted[:, :1], node)
        token = tokens.gather(1, wanted[:, node : node + 1])
        needed = (plan.wanted[:, node : node + 1] >= 0) & (_prob(dists, row, token) == 0)
        _turn_to(dists, row, token, needed)


def _walk_end(chosen: Tensor, num_steps: int) -> Tensor:
    """The node [n] at which walks end that go from each node to the child in `chosen` [n, ndt]."""
    request = torch.arange(chosen.shape[0], device=chosen.device)
    node = torch.zeros_like(request)
    for _ in range(num_steps):
        child = chosen[request, node]
        node = torch.where(child >= 0, child, node)
    return node


class _Cells(NamedTuple):
    """Where the uniform draw of a node accepts each child, with ends `low` and `high` [n, ndt] float64 by the child's
    number.

    taken   [n, ndt] float64: from here on the uniform draw of a node accepts no child
    filler  [n, ndt] int64: the child whose cell ends at 1, -1 if there is none
    """

    low: Tensor
    high: Tensor
    taken: Tensor
    filler: Tensor


def _target_only_cells(plan: _WalkPlan, dists: _Laws, tokens: Tensor, shape: Sizes) -> _Cells:
    single = shape["threshold_single_64ths"] / 64
    acc = max(shape["threshold_acc_64ths"] / 64, THRESHOLD_ACC_MIN)
    parents = plan.trees.parents
    prob = _prob(dists, parents.clamp(min=0), tokens)  # [n, ndt]
    request = torch.arange(parents.shape[0], device=parents.device)
    low, high = torch.zeros_like(prob), torch.zeros_like(prob)
    mass, taken = torch.zeros_like(prob), torch.zeros_like(prob)
    filler = torch.full_like(parents, -1)
    for node in range(1, parents.shape[1]):
        parent, p = parents[:, node], prob[:, node]
        mass[request, parent] += p
        start = taken[request, parent]
        end = torch.where(p >= single, 1.0, (mass[request, parent] / acc).clamp(max=1))
        end = torch.where(p > 0, torch.maximum(start, end), start)
        fills = (start < 1) & (end == 1)
        filler[request, parent] = torch.where(fills, node, filler[request, parent])
        low[:, node], high[:, node], taken[request, parent] = start, end, end
    return _Cells(low, high, taken, filler)


def make_verify_tree_target_only(draws: Draws, shape: Sizes) -> Case:
    ndt, vocab_size = shape["num_draft_tokens"], shape["vocab_size"]
    plan = _plan(draws, shape)
    dists = _draw_laws(draws, "target", (*TARGET_ROWS, SHORT), ndt, vocab_size)
    tokens = _sibling_tokens(draws, plan, dists, drawn=False)
    older = plan.trees.first_child.gather(1, plan.trees.parents.clamp(min=0))  # [n, ndt]
    equal = (draws.below("equal siblings", 4) == 3)[:, None] & (plan.rank == 1)
    tokens = torch.where(equal, tokens.gather(1, older.clamp(min=0)), tokens)
    _lead(plan, dists, tokens)

    cells = _target_only_cells(plan, dists, tokens, shape)
    wanted = plan.wanted.clamp(min=0)
    possible = (plan.wanted >= 0) & (cells.low.gather(1, wanted) < cells.high.gather(1, wanted))
    chosen = torch.where(possible, plan.wanted, torch.where(cells.taken < 1, -1, cells.filler))  # [n, ndt]
    child = chosen.clamp(min=0)
    low = torch.where(chosen >= 0, cells.low.gather(1, child), cells.taken)
    high = torch.where(chosen >= 0, cells.high.gather(1, child), 1.0)
    coins = _place_coins(low, high, draws.below("position of the coins", 4, ndt))

    probs = _probs(dists)
    end = _walk_end(chosen, shape["num_steps"])  # [n]
    rejected = torch.where(plan.trees.parents == end[:, None], tokens, vocab_size)  # [n, ndt]
    gone = torch.zeros((draws.count, vocab_size + 1), dtype=torch.bool, device=draws.device).scatter(1, rejected, True)
    left = probs[torch.arange(draws.count, device=draws.device), end].masked_fill(gone[:, :vocab_size], 0)
    tensors = {
        **_tree_tensors(plan.trees, tokens),
        "uniform_samples": coins,
        "uniform_final": _final_coins(draws, left),
        "target_probs": probs.to(torch.float32),
        "threshold_single": torch.full((1,), shape["threshold_single_64ths"] / 64, device=draws.device),
        "threshold_acc": torch.full((1,), shape["threshold_acc_64ths"] / 64, device=draws.device),
    }
    return Case(_sizes(shape, draws.count), tensors)


def make_verify_tree_rejection(draws: Draws, shape: Sizes) -> Case:
    n, ndt, vocab_size = draws.count, shape["num_draft_tokens"], shape["vocab_size"]
    plan = _plan(draws, shape)
    draft_laws = _draw_laws(draws, "draft", DRAFT_ROWS, ndt, vocab_size)
    few = plan.num_children > draft_laws.support[draft_laws.kind]
    draft_laws = draft_laws._replace(kind=torch.where(few, KINDS.index(FLAT), draft_laws.kind))
    target_laws = _draw_laws(draws, "target", TARGET_ROWS, ndt, vocab_size)
    tokens = _sibling_tokens(draws, plan, draft_laws, drawn=True)
    _lead(plan, target_laws, tokens)
    target, draft = _probs(target_laws), _probs(draft_laws)

    absent = _placeholders(draws, shape, ndt)
    absent[:, 0] = False  # the root

    request = torch.arange(n, device=draws.device)
    position = draws.below("position of the coins", 4, ndt)
    coins = draws.uniform("coin of the root", ndt)
    chosen = torch.full_like(tokens, -1)
    left, proposal = target.clone(), draft.clone()  # [n, ndt, V]: by parent, once the children so far are rejected
    exact = torch.ones_like(tokens, dtype=torch.bool)  # [n, ndt]
    for node in range(1, ndt):
        parent, token = plan.trees.parents[:, node], tokens[:, node : node + 1]
        p, q = left[request, parent], proposal[request, parent]  # [n, V]
        height = (p.gather(1, token) / q.gather(1, token))[:, 0].clamp(max=1).masked_fill(absent[:, node], 0)  # [n]
        rest = (p - q).clamp(min=0)  # [n, V]
        mass = _total(rest)  # [n]
        wanted = plan.wanted[request, parent] == node
        accepts = _accepts(height, wanted | (mass < NARROW))
        is_exact = exact[request, parent]
        coins[:, node] = _cell_coins(height, accepts, position[:, node], is_exact)
        first = accepts & (chosen[request, parent] < 0)
        chosen[request, parent] = torch.where(first, node, chosen[request, parent])
        without = q.scatter(1, token, 0)
        rest = rest / torch.where(mass > 0, mass, 1.0)[:, None]
        share = _total(without)
        without = without / torch.where(share > 0, share, 1.0)[:, None]
        rest, without = (torch.where(absent[:, node, None], *each) for each in ((p, rest), (q, without)))
        left[request, parent], proposal[request, parent] = rest, without
        exact[request, parent] = is_exact & (_has_few_digits(rest) & _has_few_digits(without)).all(dim=1)
    tokens = torch.where(absent, PLACEHOLDER, tokens)
    end = _walk_end(chosen, shape["num_steps"])
    tensors = {
        **_tree_tensors(plan.trees, tokens),
        "uniform_samples": coins,
        "uniform_final": _final_coins(draws, left[request, end], exact[request, end]),
        "draft_probs": draft.to(torch.float32),
        "target_probs": target.to(torch.float32),
    }
    return Case(_sizes(shape, n), tensors)


def _accepts(height: Tensor, wanted: Tensor) -> Tensor:
    """Whether a draft that is accepted by uniform draws below `height` is, such that rounding cannot change it."""
    return (height > 1 - NARROW) | (wanted & (height >= NARROW))


def _cell_coins(height: Tensor, accepts: Tensor, position: Tensor, exact: Tensor | bool = True) -> Tensor:
    """Uniform draws below `height` where a draft is accepted, and from there on where it is not."""
    return _place_coins(torch.where(accepts, 0.0, height), torch.where(accepts, height, 1.0), position, exact)


class _Chains(NamedTuple):
    """Chains of S drafts, and how many of them are to be accepted.

    candidates     [n, S + 1] int64
    target, draft  [n, S + 1, V] and [n, S, V] float64
    p, q           [n, S] float64: the probabilities of the drafts; p is 0 at placeholders
    depth          [n] int64: drafts to accept; none, all, or a number between
    """

    candidates: Tensor
    target: Tensor
    draft: Tensor
    p: Tensor
    q: Tensor
    depth: Tensor


def _make_chains(draws: Draws, shape: Sizes, draft_kinds: tuple[Weights, ...]) -> _Chains:
    """In a quarter of the chains the draft model's distributions are the target's, as far as those are of
    `draft_kinds`.
    """
    num_steps, vocab_size = shape["num_steps"], shape["vocab_size"]
    target_laws = _draw_laws(draws, "target", TARGET_ROWS, num_steps + 1, vocab_size)
    draft_laws = _draw_laws(draws, "draft", draft_kinds, num_steps, vocab_size)
    target_kind, target_turn = target_laws.kind[:, :num_steps], target_laws.turn[:, :num_steps]
    allowed = torch.tensor([kind in draft_kinds for kind in KINDS], device=draws.device)
    same = (draws.below("draft law is the target's", 4) == 3)[:, None] & allowed[target_kind]
    draft_laws = draft_laws._replace(
        kind=torch.where(same, target_kind, draft_laws.kind), turn=torch.where(same, target_turn, draft_laws.turn)
    )
    step = torch.arange(num_steps, device=draws.device).expand(draws.count, -1)  # [n, S]
    rank = draws.below("rank of the draft", draft_laws.support[draft_laws.kind], num_steps)
    rank = torch.where(draws.below("drafts of any rank", 2)[:, None] == 1, rank, 0)
    drafts = _ranked(draft_laws, step, rank)  # [n, S]
    kind = draws.below("accepted drafts", 4)
    any_depth = 1 + draws.below("number of accepted drafts", max(1, num_steps - 1))
    depth = torch.where(kind == 0, 0, torch.where(kind == 1, num_steps, any_depth))
    for i in range(num_steps):
        row, token = step[:, i : i + 1], drafts[:, i : i + 1]
        needed = (depth[:, None] > i) & (_prob(target_laws, row, token) == 0)
        _turn_to(target_laws, row, token, needed)
    root = draws.below("token of the root", vocab_size)[:, None]
    p, q = _prob(target_laws, step, drafts), _prob(draft_laws, step, drafts)
    target, draft = _probs(target_laws), _probs(draft_laws)
    absent = _placeholders(draws, shape, num_steps) & (target[:, :num_steps] > draft).any(dim=2)
    drafts, p = torch.where(absent, PLACEHOLDER, drafts), p.masked_fill(absent, 0)
    return _Chains(torch.cat([root, drafts], dim=1), target, draft, p, q, depth)


def _placeholders(draws: Draws, shape: Sizes, columns: int) -> Tensor:
    """Which drafts [n, columns] are placeholders: none in sizes that do not say."""
    if not shape.get("has_placeholders"):
        return torch.zeros((draws.count, columns), dtype=torch.bool, device=draws.device)
    return draws.below("draft is a placeholder", 3, columns) == 1


def _chain_case(draws: Draws, shape: Sizes, chains: _Chains, coins: Tensor, final: Tensor) -> Case:
    tensors = {
        "candidates": chains.candidates,
        "draft_probs": chains.draft.to(torch.float32),
        "target_probs": chains.target.to(torch.float32),
        "uniform_samples": coins,
        "uniform_final": final,
    }
    return Case(_sizes(shape, draws.count), tensors)


def make_verify_chain_rejection(draws: Draws, shape: Sizes) -> Case:
    """After the draft at which a chain is to end, uniform draws accept and reject at random: nobody may read them."""
    num_steps = shape["num_steps"]
    chains = _make_chains(draws, shape, DRAFT_ROWS)
    step = torch.arange(num_steps, device=draws.device)  # [S]
    height = (chains.p / chains.q).clamp(max=1)  # [n, S]
    heads = draws.below("accepts off the path", 2, num_steps) == 1
    wanted = (step < chains.depth[:, None]) | ((step > chains.depth[:, None]) & heads)
    accepts = _accepts(height, wanted)
    coins = _cell_coins(height, accepts, draws.below("position of the coins", 4, num_steps))
    accepted = accepts.long().cumprod(dim=1).sum(dim=1)  # [n]
    rest = (chains.target[:, :num_steps] - chains.draft).clamp(min=0)
    dists = torch.cat([rest, chains.target[:, num_steps:]], dim=1)  # [n, S + 1, V]
    left = dists[torch.arange(draws.count, device=draws.device), accepted]
    return _chain_case(draws, shape, chains, coins, _final_coins(draws, left))


def make_verify_chain_block(draws: Draws, shape: Sizes) -> Case:
    """Shorter prefixes than the one to be accepted pass or fail at random. All ratios of the draft are exact."""
    n, num_steps = draws.count, shape["num_steps"]
    chains = _make_chains(draws, shape, POWERS_OF_TWO)
    heads = draws.below("shorter prefix passes", 2, num_steps) == 1
    position = draws.below("position of the coins", 4, num_steps)
    coins = torch.zeros((n, num_steps), dtype=torch.float32, device=draws.device)
    reach = torch.ones((n,), dtype=torch.float64, device=draws.device)
    exact = torch.ones((n,), dtype=torch.bool, device=draws.device)
    left = (chains.target[:, 0] - chains.draft[:, 0]).clamp(min=0)  # [n, V]: after the drafts that are accepted
    left_exact = exact
    for i in range(1, num_steps + 1):
        reach = (reach * chains.p[:, i - 1] / chains.q[:, i - 1]).clamp(max=1)
        exact = exact & _has_few_digits(reach)
        height, rest, divisor = reach, chains.target[:, i], torch.ones_like(reach)
        if i < num_steps:
            rest = (reach[:, None] * rest - chains.draft[:, i]).clamp(min=0)
            mass = _total(rest)
            inner = (reach > 0) & (reach < 1)
            divisor = torch.where(inner, mass + 1 - reach, 1.0)
            height = torch.where(inner, mass / divisor, reach)
        accepts = _accepts(height, (chains.depth == i) | ((chains.depth > i) & heads[:, i - 1]))
        coins[:, i - 1] = _cell_coins(height, accepts, position[:, i - 1], exact & _is_power_of_two(divisor))
        left = torch.where(accepts[:, None], rest, left)
        left_exact = torch.where(accepts, exact, left_exact)
    return _chain_case(draws, shape, chains, coins, _final_coins(draws, left, left_exact))


def _tree_tensors(trees: batches.Trees, tokens: Tensor) -> Tensors:
    return {
        "candidates": tokens,
        "retrieve_index": torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape),
        "retrieve_next_token": trees.first_child,
        "retrieve_next_sibling": trees.next_sibling,
    }


def _sizes(shape: Sizes, bs: int) -> dict[str, int]:
    return {
        **shape,
        "bs": bs,
        "accept_width": shape["num_steps"] + 1,
        "num_nodes": bs * shape["num_draft_tokens"],
    }
