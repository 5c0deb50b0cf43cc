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
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch

from specsim.contracts.contract import Implementation, Role, Tensors, WrongResultError
from specsim.contracts.drafts import FAMILIES, MODELS, ONE, TOY, TREES, Drafted, Row, drawn_drafts, prefixes
from specsim.contracts.enumeration import (
    Distribution,
    Proposal,
    Target,
    Tokens,
    block_acceptance,
    cdf,
    chain_acceptance,
    completed,
    output_distribution,
    residual,
    sibling_acceptance,
    target_distribution,
    target_only_thresholds,
    total_variation,
    without,
)
from specsim.contracts.laws import block, rejection, target_only
from specsim.contracts.provider import Subject
from specsim.contracts.sampling import OPS
from specsim.reference.validation import unchecked

Rule = Callable[[Drafted, torch.Tensor], list[Tokens]]

NAMES = ("verify_tree_target_only", "verify_chain_rejection", "verify_chain_block", "verify_tree_rejection")
_OPS = {op.name: op for op in OPS if op.name in NAMES}
_POISON = -7  # in outputs without a prefill: neither a token nor a length


# ---- models, trees and what a drafter may propose


DRAFTS: dict[str, int] = {"1 draft": 1, "2 drafts": 2}
QUICK = {  # few requests, and still siblings, two drafts in depth, and tokens that are left nothing
    "three tokens, two by two",
    "three tokens, 2 drafts",
    "three tokens, two children",
    "zeros, two children",
    "zeros, one, then two",
}


def target_only_proposal(
    tokens: Tokens, parents: Tokens, target: Target, threshold_acc: Fraction = ONE
) -> Proposal[Drafted]:
    """One tree, for certain: the target-only rule does not ask how it came about."""
    drafted = Drafted(tokens, parents, tuple(tuple(target(prefix)) for prefix in prefixes(tokens, parents)))
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


def rejection_proposals(
    target: Target, drafter: Target, families: Tokens, *, replacement: bool = False
) -> list[Proposal[Drafted]]:
    """What `drawn_drafts` draws, with the thresholds of recursive rejection without replacement."""
    return [
        _rejection_proposal(weight, drafted)
        for weight, drafted in drawn_drafts(target, drafter, families, replacement=replacement)
    ]


def _rejection_proposal(weight: Fraction, drafted: Drafted) -> Proposal[Drafted]:
    tokens = drafted.tokens
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
    implementation: Implementation | Subject,
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
    run = implementation.run if isinstance(implementation, Subject) else partial(op.call, implementation)

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
            results = run(sizes, tensors)
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
    implementation: Implementation | Subject,
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
    implementation: Implementation | Subject,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    quick: bool = False,
) -> Fraction:
    """How far what an implementation emits is off the target's distribution: 0 iff it is lossless on all that is tried.

    name            verify_tree_target_only, verify_chain_rejection, verify_chain_block or verify_tree_rejection
    implementation  a callable by the contract's calling convention (`specsim.contracts.contract`), in place or not, or
                    one that was lifted from a release
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
            outcomes = target_only(proposal.drafted, num_steps, single=threshold_single, acc=threshold_acc)
        elif name == "verify_tree_rejection":
            outcomes = rejection(proposal.drafted, num_steps)
        elif name == "verify_chain_rejection":
            outcomes = rejection(proposal.drafted)
        else:
            outcomes = block(proposal.drafted)
        for tokens, probability in outcomes:
            if proposal.weight * probability:
                dist[tokens] = dist.get(tokens, Fraction(0)) + proposal.weight * probability
    return dist
