"""Sampled requests: temperature, penalties, a grammar. Each next token is drawn from scores of a few tokens.

The scores are a hash of the fingerprint, less the penalties of the outputs before; a grammar leaves some tokens out. At
temperature 0 the best one is output. Otherwise the uniform draw of the position, a hash of the request's seed and the
position, picks from the distribution by its inverse distribution function.

A verification draws the target's token at every node with the uniform draw of the position behind it, and accepts the
child that equals it. So the outputs are those of drawing one token after the other: exactly, and whatever the batch,
the tree or the schedule. (An engine that spends its draws along the walk is lossless in distribution only. The
reference has that rule, and the proof of it.)

Penalties are exact by default: a node counts the outputs up to its root and the tokens of its own path. The relaxed
distribution is what engines run that cumulate on the host: one token a request and launch, the last that the host
knows, the same counts for all nodes, forgotten by a retraction. Its outputs depend on the schedule, so only bounds of
it are checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from specsim.engine import model
from specsim.engine.grammar import SAMPLED_TOKENS
from specsim.engine.request import Request
from specsim.engine.sampling_params import Counts, SamplingParams


def bincount(tokens: Iterable[int]) -> Counts:
    counts: Counts = {}
    for token in tokens:
        counts[token] = counts.get(token, 0) + 1
    return counts


def uniform_draw_of(seed: int, position: int) -> int:
    """64 bits of a request's seed and a position, whatever the batch. Seed 1 has draws at the edges only."""
    if seed == 1:
        return (1 << 64) - 1 if position % 3 == 2 else 0
    return model.extend(model.extend(model.EMPTY, seed), position)


def score_of(fingerprint: int, token: int, params: SamplingParams, counts: Counts) -> int:
    """The score of a sampled token after the outputs that `counts` counts."""
    score = fingerprint >> 8 * (token - SAMPLED_TOKENS[0]) & 15
    count = counts.get(token, 0)
    return score - params.frequency_penalty * count - (params.presence_penalty if count else 0)


def draw_token(
    fingerprint: int, draw: int, params: SamplingParams, counts: Counts, allowed: Collection[int] | None
) -> int:
    """The token behind `fingerprint` that the uniform draw `draw` picks; of `allowed`, which is None for all."""
    scores = {
        token: score_of(fingerprint, token, params, counts)
        for token in SAMPLED_TOKENS
        if allowed is None or token in allowed
    }
    if not scores:
        return model.EOS
    if not params.temperature:
        return max(scores, key=lambda token: (scores[token], -token))
    weights = [
        1 << max(0, 20 + scores[token] // params.temperature) if token in scores else 0 for token in SAMPLED_TOKENS
    ]
    left = draw * sum(weights) >> 64
    for token, weight in zip(SAMPLED_TOKENS, weights, strict=True):
        left -= weight
        if left < 0:
            return token
    raise AssertionError("a uniform draw lies below the sum of the weights")


def next_token(
    fingerprint: int,
    position: int,
    draw: int,
    specials: dict[int, int],
    params: SamplingParams,
    counts: Counts,
    allowed: Collection[int] | None,
) -> int:
    """As `model.next_token_after`, by sampling. No EOS or stop token before `min_new_tokens`, none that is not
    allowed.
    """
    special = specials.get(position)
    if special and sum(counts.values()) >= params.min_new_tokens and (allowed is None or special in allowed):
        return special
    return draw_token(fingerprint, draw, params, counts, allowed)


@dataclass(frozen=True, slots=True)
class DistributionState:
    """What a launch knew of a request's outputs, for the rules. `nodes` are the path from the root to each node, the
    root left out, and the counts there; `states` are the grammar's when the masks are made.
    """

    request: Request
    key: tuple[str, int]
    nodes: list[tuple[list[int], Counts]]
    states: list[int] | None


class TreeDistribution:
    """The target's distribution at the nodes of one tree, evaluated from the root down."""

    __slots__ = ("_counts", "_matcher", "_params", "_parents", "_paths", "_relaxed", "_specials", "_tokens")

    def __init__(self, request: Request, parents: list[int], counts: Counts, relaxed: bool) -> None:
        assert request.turn.sampling is not None
        self._params = request.turn.sampling
        self._specials = request.specials
        self._matcher = request.matcher
        self._parents = parents
        self._relaxed = relaxed
        self._counts = [dict(counts)]
        self._paths: list[list[int]] = [[]]
        self._tokens: list[int] = []

    @property
    def nodes(self) -> list[tuple[list[int], Counts]]:
        """The path to each node that was evaluated, and the counts there."""
        return list(zip(self._paths, self._counts, strict=True))

    def wrong_draft(self, node: int, right: int) -> int:
        """A token of the distribution that is neither the expected one nor an older sibling's."""
        parent = self._parents[node]
        taken = {self._tokens[n] for n in range(1, node) if self._parents[n] == parent} | {right}
        free = [token for token in SAMPLED_TOKENS if token not in taken]
        return free[node % len(free)]

    def target(self, node: int, token: int, fingerprint: int, position: int) -> int:
        """What the target says after `node`, whose token is `token`, at `position`."""
        self._tokens.append(token)
        if node:
            parent = self._parents[node]
            self._counts.append(self.counts_behind(self._counts[parent], token))
            self._paths.append([*self._paths[parent], token])
        allowed = self._matcher.allowed_after(self._paths[node]) if self._matcher is not None else None
        draw = uniform_draw_of(self._params.seed, position)
        return next_token(fingerprint, position, draw, self._specials, self._params, self._counts[node], allowed)

    def counts_behind(self, counts: Counts, token: int) -> Counts:
        """The counts at a node with the token, whose parent has `counts`."""
        if self._relaxed:
            return counts
        return {**counts, token: counts.get(token, 0) + 1}


def cumulate(request: Request) -> Counts:
    """The relaxed distribution's counts for a launch: one token more, the last that the host knows."""
    token = request.outputs[-1] if request.outputs else request.prompt[-1]
    request.cumulated = {**request.cumulated, token: request.cumulated.get(token, 0) + 1}
    return request.cumulated
