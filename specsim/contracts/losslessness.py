"""Is your rule lossless? The exact distance between what an implementation emits and the target model's distribution.

    from specsim.contracts.losslessness import distance

    assert distance("verify_chain_rejection", my_kernel) == 0

An implementation of one of the four sampling operations is called with every uniform draw that makes a difference, for
every draft that the drafters below can draw, and what it emits is weighed exactly (`specsim.contracts.enumeration`).
The answer is a fraction: 0, or how much more probable some event is than it should be. `distances` says where.

Probabilities are sixteenths, so that float32 holds them exactly. Models are small: 3 to 5 tokens, two drafted ones in
depth, and distributions that depend on the tokens before, with zeros, with rows that leave nothing to chance, and with
drafters that equal the target. What small models cannot show, a loop over blocks of the vocabulary or a tree of 64
nodes, the cases of `specsim.contracts.sampling` are for.

`exact_distribution` checks the enumeration itself: the distribution of each rule as it follows from the papers, in
fractions alone. It calls neither the reference nor any tensor code; the tests hold what is counted out of the reference
equal to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import torch

from specsim.contracts.contract import Implementation, Role, Tensors, WrongResultError
from specsim.contracts.enumeration import (
    Distribution,
    Proposal,
    Target,
    Tokens,
    Weights,
    block_acceptance,
    cdf,
    chain_acceptance,
    completed,
    normalised,
    output_distribution,
    residual,
    sibling_acceptance,
    target_distribution,
    target_only_thresholds,
    total_variation,
    without,
)
from specsim.contracts.sampling import OPS
from specsim.reference.validation import unchecked

Row = tuple[Fraction, ...]
Rule = Callable[["Drafted", torch.Tensor], list[Tokens]]

NAMES = ("verify_tree_target_only", "verify_chain_rejection", "verify_chain_block", "verify_tree_rejection")
ONE = Fraction(1)
_OPS = {op.name: op for op in OPS if op.name in NAMES}
_POISON = -7  # in outputs without a prefill: neither a token nor a length


# ---- models, trees and what a drafter may propose


def of_prefix(rows: Sequence[Sequence[int]]) -> Target:
    """A model of sixteenths: its distribution after a prefix is one of `rows`, turned by the tokens before."""
    exact = [tuple(Fraction(weight, 16) for weight in row) for row in rows]

    def dist(prefix: Tokens) -> Row:
        row = exact[(len(prefix) + sum(prefix)) % len(exact)]
        turn = sum((i + 2) * token for i, token in enumerate(prefix)) % len(row)
        return row[turn:] + row[:turn]

    return dist


SKEWED: Row = tuple(Fraction(n, 16) for n in (5, 4, 3, 2, 2))  # the toy target, the same after every prefix
EAGER: Row = tuple(Fraction(n, 16) for n in (8, 4, 2, 1, 1))  # and its drafter


def _skewed(_prefix: Tokens) -> Row:
    return SKEWED


def _eager(_prefix: Tokens) -> Row:
    return EAGER


TOY: tuple[Target, Target] = (_skewed, _eager)
MODELS: dict[str, tuple[Target, Target]] = {  # target and drafter
    "three tokens": (of_prefix([(9, 5, 2), (4, 4, 8), (1, 12, 3)]), of_prefix([(4, 8, 4), (10, 2, 4), (8, 4, 4)])),
    "zeros": (of_prefix([(9, 7, 0), (0, 16, 0), (8, 0, 8)]), of_prefix([(4, 0, 12), (5, 5, 6), (8, 8, 0)])),
    "four tokens": (of_prefix([(6, 5, 4, 1), (0, 2, 6, 8)]), of_prefix([(4, 8, 2, 2), (7, 3, 3, 3)])),
    "equal": (of_prefix([(9, 5, 2)]), of_prefix([(9, 5, 2)])),
    "certain drafts": (of_prefix([(9, 5, 2), (4, 4, 8)]), of_prefix([(16, 0, 0), (0, 0, 16)])),
}
TREES: dict[str, tuple[Tokens, Tokens]] = {  # tokens and parents, distinct among siblings; for the target-only rule
    "two by two": ((0, 0, 1, 1, 2), (-1, 0, 0, 1, 1)),
    "chain": ((0, 2, 1), (-1, 0, 1)),
    "every token": ((0, 2, 0, 1), (-1, 0, 0, 0)),
    "last child has the children": ((0, 1, 0, 2, 1), (-1, 0, 0, 2, 2)),
}
FAMILIES: dict[str, Tokens] = {  # how many children the root and the nodes after it get; for tree rejection
    "one child": (1,),
    "two children": (2,),
    "three children": (3,),
    "one, then two": (1, 2),
    "two, then one each": (2, 1, 1),
}
DRAFTS: dict[str, int] = {"1 draft": 1, "2 drafts": 2}
QUICK = {  # few requests, and still siblings, two drafts in depth, and tokens that are left nothing
    "three tokens, two by two",
    "three tokens, 2 drafts",
    "three tokens, two children",
    "zeros, two children",
    "zeros, one, then two",
}


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts, and the distributions of both models after each node; node 0 is the root.

    `tokens`   of each node
    `parents`  of each node, an earlier one; -1 for the root. Siblings are linked in the order of their numbers
    `target`   the target model's distribution after each node
    `drafter`  the distribution from which each node's children were drawn, trees; of each draft, chains; empty if it is
               not used
    """

    tokens: Tokens
    parents: Tokens
    target: tuple[Row, ...]
    drafter: tuple[Row, ...] = ()

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]


def _prefixes(tokens: Tokens, parents: Tokens) -> list[Tokens]:
    """The drafted tokens on the way to each node, the root's left out."""
    found: list[Tokens] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        found.append((*found[parent], token))
    return found


def target_only_proposal(
    tokens: Tokens, parents: Tokens, target: Target, threshold_acc: Fraction = ONE
) -> Proposal[Drafted]:
    """One tree, for certain: the target-only rule does not ask how it came about."""
    drafted = Drafted(tokens, parents, tuple(tuple(target(prefix)) for prefix in _prefixes(tokens, parents)))
    coins: list[Row] = []
    final: list[Fraction] = []
    for node, dist in enumerate(drafted.target):
        family = [tokens[child] for child in drafted.children(node)]
        coins.append(target_only_thresholds(dist, family, threshold_acc))
        final += [*cdf(dist), *cdf(without(dist, family))]
    return Proposal(ONE, drafted, (*coins, tuple(final)))


def chain_proposals(target: Target, drafter: Target, num_steps: int, *, block: bool) -> list[Proposal[Drafted]]:
    """Every chain of `num_steps` drafts that the drafter can draw; `block` for the thresholds of block verification."""
    proposals = []
    for drafts, weight in target_distribution(drafter, num_steps).items():
        q = tuple(tuple(drafter(drafts[:i])) for i in range(num_steps))
        p = tuple(tuple(target(drafts[:i])) for i in range(num_steps + 1))
        if block:
            heights, rest = block_acceptance(p, q, drafts)
        else:
            heights = [chain_acceptance(p[i], q[i], token) for i, token in enumerate(drafts)]
            rest = [*(residual(*dists) for dists in zip(p, q, strict=False)), list(p[-1])]
        thresholds = (*((height,) for height in heights), tuple(cut for dist in rest for cut in cdf(dist)))
        proposals.append(Proposal(weight, Drafted((0, *drafts), (-1, *range(num_steps)), p, q), thresholds))
    return proposals


def _drawn_siblings(dist: Weights, count: int, *, replacement: bool) -> Iterator[tuple[Tokens, Fraction]]:
    """Ordered tuples of tokens with their probabilities; without replacement fewer than `count` where the distribution
    has fewer.
    """
    if count == 0 or not any(dist):
        yield (), ONE
        return
    for token, weight in enumerate(normalised(dist)):
        if weight > 0:
            left = dist if replacement else without(dist, [token])
            for rest, probability in _drawn_siblings(left, count - 1, replacement=replacement):
                yield (token, *rest), weight * probability


def rejection_proposals(
    target: Target, drafter: Target, families: Tokens, *, replacement: bool = False
) -> list[Proposal[Drafted]]:
    """Every tree that the drafter can draw, whose node i, from the root on, has `families[i]` children, drawn one after
    the other with or without `replacement`.
    """
    trees: list[tuple[Tokens, Tokens, Fraction]] = [((0,), (-1,), ONE)]
    for node, count in enumerate(families):
        grown = []
        for tokens, parents, weight in trees:
            if node >= len(tokens):  # the distribution has fewer tokens than wanted
                grown.append((tokens, parents, weight))
                continue
            dist = drafter(_prefixes(tokens, parents)[node])
            for drawn, probability in _drawn_siblings(dist, count, replacement=replacement):
                grown.append(((*tokens, *drawn), (*parents, *(node for _ in drawn)), weight * probability))
        trees = grown
    return [_rejection_proposal(target, drafter, *tree) for tree in trees]


def _rejection_proposal(
    target: Target, drafter: Target, tokens: Tokens, parents: Tokens, weight: Fraction
) -> Proposal[Drafted]:
    where = _prefixes(tokens, parents)
    drafted = Drafted(
        tokens, parents, tuple(tuple(target(at)) for at in where), tuple(tuple(drafter(at)) for at in where)
    )
    coins: list[Row] = [()] * len(tokens)
    final: list[Fraction] = []
    for node, (p, q) in enumerate(zip(drafted.target, drafted.drafter, strict=True)):
        family = drafted.children(node)
        accepted, left = sibling_acceptance(p, q, [tokens[child] for child in family])
        for child, height in zip(family, accepted, strict=True):
            coins[child] = (height,)
        final += [*cdf(p), *cdf(left)]
    return Proposal(weight, drafted, (*coins, tuple(final)))


# ---- calling an implementation


def rule_of(
    name: str,
    implementation: Implementation,
    *,
    num_steps: int = 2,
    threshold_single: float | Fraction = ONE,
    threshold_acc: float | Fraction = ONE,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Rule:
    """An implementation of the operation `name` as a rule that `output_distribution` calls; the last uniform draw is
    the final one.

    Called by the contract's convention, with all rows of uniform draws as one batch. `num_steps` and the thresholds are
    for those operations that take them; `dtype` is that of distributions and uniform draws, float32 in the contract.
    Outputs that it writes in place arrive with the contract's prefill, or with a value that is no result. Raises
    ValueError for an unknown name; the rule raises WrongResultError for lengths, node numbers and tokens that the
    contract does not allow.
    """
    _require_known(name)
    op = _OPS[name]
    named = {arg.name for arg in op.args}

    def rule(drafted: Drafted, coins: torch.Tensor) -> list[Tokens]:
        bs, ndt, vocab_size = len(coins), len(drafted.tokens), len(drafted.target[0])
        steps = num_steps if "num_steps" in named else ndt - 1
        sizes = {
            "bs": bs,
            "num_draft_tokens": ndt,
            "num_nodes": bs * ndt,
            "num_steps": steps,
            "accept_width": steps + 1,
            "vocab_size": vocab_size,
        }
        coins = coins.to(device, dtype)
        tensors: Tensors = {
            **{name: rows.to(device) for name, rows in _trees(drafted, bs).items()},
            "uniform_samples": coins[:, :-1].contiguous(),
            "uniform_final": coins[:, -1].contiguous(),
            "draft_probs": _laws(drafted.drafter, bs, vocab_size).to(device, dtype),
            "target_probs": _laws(drafted.target, bs, vocab_size).to(device, dtype),
            "threshold_single": torch.tensor([float(threshold_single)], dtype=dtype, device=device),
            "threshold_acc": torch.tensor([float(threshold_acc)], dtype=dtype, device=device),
        }
        for arg in op.tensor_args:
            if arg.role is Role.OUT:
                fill = _POISON if arg.prefill is None else arg.prefill
                tensors[arg.name] = torch.full(arg.resolve_shape(sizes), fill, dtype=arg.dtype, device=device)
        with unchecked():
            results = op.call(implementation, sizes, tensors)
        return _emitted(results, steps, vocab_size)

    return rule


def _trees(drafted: Drafted, bs: int) -> Tensors:
    """The same tree `bs` times."""
    ndt = len(drafted.tokens)
    first, sibling = [-1] * ndt, [-1] * ndt
    for node in range(ndt):
        family = drafted.children(node)
        first[node] = family[0] if family else -1
        for older, younger in itertools.pairwise(family):
            sibling[older] = younger
    rows = {"candidates": drafted.tokens, "retrieve_next_token": first, "retrieve_next_sibling": sibling}
    tensors = {name: torch.tensor(row, dtype=torch.int64).repeat(bs, 1) for name, row in rows.items()}
    return {**tensors, "retrieve_index": torch.arange(bs * ndt).view(bs, ndt)}


def _laws(rows: Sequence[Row], bs: int, vocab_size: int) -> torch.Tensor:
    weights = torch.tensor([[float(weight) for weight in row] for row in rows], dtype=torch.float64)
    return weights.view(len(rows), vocab_size).repeat(bs, 1, 1)


def _emitted(results: Tensors, num_steps: int, vocab_size: int) -> list[Tokens]:
    """The tokens of each request, the bonus last."""
    predicts, paths = results["predicts"].tolist(), results["accept_index"].tolist()
    emitted = []
    for b, accepted in enumerate(results["accept_token_num"].tolist()):
        if not 0 <= accepted <= num_steps:
            raise WrongResultError(f"accept_token_num[{b}] is {accepted}; allowed: 0 to {num_steps}")
        path = paths[b][: accepted + 1]
        for i, number in enumerate(path):
            if not 0 <= number < len(predicts):
                raise WrongResultError(f"accept_index[{b}, {i}] is {number}; allowed: 0 to {len(predicts) - 1}")
            if not 0 <= predicts[number] < vocab_size:
                raise WrongResultError(f"predicts[{number}] is {predicts[number]}; allowed: 0 to {vocab_size - 1}")
        emitted.append(tuple(predicts[number] for number in path))
    return emitted


# ---- the distance


class Trial(NamedTuple):
    """A distribution to compare an implementation with: what may be proposed, and the target's distribution of `length`
    tokens.
    """

    proposals: Sequence[Proposal[Drafted]]
    target: Target
    length: int


def trials(name: str, *, quick: bool = False) -> Iterator[tuple[str, Trial]]:
    """What `distance` tries: a model with a tree, or a number of drafts, and its name.

    `quick` keeps to those in QUICK. Raises ValueError for an unknown name.
    """
    _require_known(name)
    trees: dict[str, Iterable[str]] = {"verify_tree_target_only": TREES, "verify_tree_rejection": FAMILIES}
    for model, (target, drafter) in {**MODELS, "toy": TOY}.items():
        for shape in trees.get(name, DRAFTS):
            where = f"{model}, {shape}"
            if quick and where not in QUICK:
                continue
            if name == "verify_tree_target_only":
                yield where, Trial([target_only_proposal(*TREES[shape], target)], target, 3)
            elif name != "verify_tree_rejection":
                block = name == "verify_chain_block"
                proposals = chain_proposals(target, drafter, DRAFTS[shape], block=block)
                yield where, Trial(proposals, target, DRAFTS[shape] + 1)
            elif model != "toy" or len(FAMILIES[shape]) == 1:  # deeper, five tokens draw too many trees
                yield where, Trial(rejection_proposals(target, drafter, FAMILIES[shape]), target, 3)


def _require_known(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"there is no sampling operation {name!r}; allowed: {', '.join(NAMES)}")


def off(dist: Distribution, target: Target, length: int) -> Fraction:
    """The total variation between an emitted distribution and the target's, of the first `length` tokens."""
    return total_variation(completed(dist, length, target), target_distribution(target, length))


def distances(
    name: str,
    implementation: Implementation,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    quick: bool = False,
) -> dict[str, Fraction]:
    """How far an implementation is off the target's distribution in each of the `trials`; see `distance`."""
    rule = rule_of(name, implementation, dtype=dtype, device=device)
    return {
        where: off(output_distribution(rule, trial.proposals, find_thresholds=True), trial.target, trial.length)
        for where, trial in trials(name, quick=quick)
    }


def distance(
    name: str,
    implementation: Implementation,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    quick: bool = False,
) -> Fraction:
    """How far what an implementation emits is off the target's distribution: 0 iff it is lossless on all that is tried.

    name            verify_tree_target_only, verify_chain_rejection, verify_chain_block or verify_tree_rejection
    implementation  a callable by the contract's calling convention (`specsim.contracts.contract`), in place or not
    dtype           of distributions and uniform draws: float32, as in the contract, or float64
    device          where its arguments are
    quick           a smaller scope, for an implementation that costs by the request (Triton's interpreter): a
                    few hundred requests in at most 16 calls, instead of thousands

    Returns the largest total variation over the built-in models, drafters and trees (`trials`); thresholds of
    `verify_tree_target_only` are 1. An implementation need not flip where the rule does: where it flips is searched.
    Raises ValueError for an unknown name and for decisions that no box of uniform draws bounds, WrongResultError for
    results that the contract does not allow; what the implementation raises passes through.
    """
    return max(distances(name, implementation, dtype=dtype, device=device, quick=quick).values())


# ---- the second witness


def exact_distribution(
    name: str,
    proposals: Iterable[Proposal[Drafted]],
    *,
    num_steps: int = 2,
    threshold_single: Fraction = ONE,
    threshold_acc: Fraction = ONE,
) -> Distribution:
    """The distribution of what the rule of operation `name` emits, derived in fractions; thresholds of proposals are
    not read.

    Zero probabilities are left out. `num_steps` and the thresholds as in `rule_of`, as fractions; `threshold_acc` is
    taken as it is and must be positive. Raises ValueError for an unknown name.
    """
    _require_known(name)
    dist: Distribution = {}
    for proposal in proposals:
        if name == "verify_tree_target_only":
            outcomes = _walk_target_only(proposal.drafted, num_steps, threshold_single, threshold_acc)
        elif name == "verify_tree_rejection":
            outcomes = _walk_rejection(proposal.drafted, num_steps)
        elif name == "verify_chain_rejection":
            outcomes = _walk_rejection(_as_tree(proposal.drafted), len(proposal.drafted.drafter))
        else:
            outcomes = _block(proposal.drafted)
        for tokens, probability in outcomes:
            if proposal.weight * probability:
                dist[tokens] = dist.get(tokens, Fraction(0)) + proposal.weight * probability
    return dist


def _drawn(path: Tokens, weights: Weights, probability: Fraction) -> Iterator[tuple[Tokens, Fraction]]:
    """`path` with one more token, drawn from `weights`: the last of the vocabulary where all are 0."""
    total = sum(weights, Fraction(0))
    if total == 0:
        yield (*path, len(weights) - 1), probability
        return
    for token, weight in enumerate(weights):
        yield (*path, token), probability * weight / total


def _walk_target_only(
    drafted: Drafted, num_steps: int, single: Fraction, acc: Fraction, node: int = 0, path: Tokens = ()
) -> Iterator[tuple[Tokens, Fraction]]:
    """A uniform draw below A / acc accepts, one above goes to the next child; `gone` is what the children have had of
    it.
    """
    p = drafted.target[node]
    gone, mass, rejected = Fraction(0), Fraction(0), []
    for child in drafted.children(node) if len(path) < num_steps else ():
        token = drafted.tokens[child]
        mass += p[token]
        reach = ONE if p[token] >= single else min(mass / acc, ONE)
        if p[token] > 0 and reach > gone:
            for tokens, probability in _walk_target_only(drafted, num_steps, single, acc, child, (*path, token)):
                yield tokens, (reach - gone) * probability
            gone = reach
        rejected.append(token)
    yield from _drawn(path, without(p, rejected), 1 - gone)


def _walk_rejection(
    drafted: Drafted, num_steps: int, node: int = 0, path: Tokens = ()
) -> Iterator[tuple[Tokens, Fraction]]:
    """A child drawn from q is accepted with min(p / q, 1); the next is compared with what that leaves of p."""
    p, q = list(drafted.target[node]), list(drafted.drafter[node])
    reached = ONE
    for child in drafted.children(node) if len(path) < num_steps else ():
        token = drafted.tokens[child]
        if q[token] == 0:
            continue
        share = reached * min(p[token] / q[token], ONE)
        if share > 0:
            for tokens, probability in _walk_rejection(drafted, num_steps, child, (*path, token)):
                yield tokens, share * probability
        reached -= share
        p = normalised([max(target - draft, Fraction(0)) for target, draft in zip(p, q, strict=True)])
        q = normalised([Fraction(0) if other == token else weight for other, weight in enumerate(q)])
    yield from _drawn(path, p, reached)


def _as_tree(drafted: Drafted) -> Drafted:
    """A chain with a distribution for every node: a leaf has no children to draw, and needs none."""
    return Drafted(drafted.tokens, drafted.parents, drafted.target, (*drafted.drafter, drafted.target[-1]))


def _block(drafted: Drafted) -> Iterator[tuple[Tokens, Fraction]]:
    """The longest prefix whose uniform draw is below its height, from the whole block down."""
    drafts = drafted.tokens[1:]
    reach = [ONE]
    for p, q, token in zip(drafted.target, drafted.drafter, drafts, strict=False):
        reach.append(min(reach[-1] * p[token] / q[token], ONE) if q[token] else Fraction(0))
    missed = ONE  # the probability that no longer prefix is accepted
    for length in range(len(drafts), -1, -1):
        p = drafted.target[length]
        if length == len(drafts):
            rest, height = list(p), reach[length]
        else:
            q = drafted.drafter[length]
            rest = [max(reach[length] * target - draft, Fraction(0)) for target, draft in zip(p, q, strict=True)]
            lost = 1 - reach[length]
            height = sum(rest) / (sum(rest) + lost) if 0 < lost < 1 else reach[length]
        if length == 0:
            height = ONE
        yield from _drawn(drafts[:length], rest, missed * height)
        missed *= 1 - height
