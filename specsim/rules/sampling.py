"""Grammars and penalties, when a verification samples by them."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.verdict import Rule, Severity
from specsim.world.kv import UNMASKED, Masked, Penalized, Penalties
from specsim.world.rule import Check, Run, Violation, notes


class GrammarState(Check):
    """A verification of a request with a grammar has masks, and when they are made, the grammar has read exactly what
    it goes on from.
    """

    rule = Rule(
        "I60",
        "grammar-state",
        "a grammar has read the outputs, when masks are made and when a result was taken",
        Severity.WRONG_RESULT,
    )
    defects = (
        notes("grammar behind", Masked("0", said=3, allowed=9, read=2)),
        notes("no masks", Masked("0", said=3, allowed=9, read=UNMASKED)),
    )

    def after(self, run: Run) -> Iterator[Violation]:
        for masked, note in run.noted(Masked):
            expected = min(masked.said, masked.allowed)
            if masked.read == UNMASKED:
                yield self.from_note(note, "unmasked", "", f"masks for the tokens of {masked.rid}", "none")
                return
            if masked.read != expected:
                text = f"{expected} tokens read, of {masked.rid}"
                yield self.from_note(note, "verify", "", text, masked.read)
                return


class PenalizedTokens(Check):
    """Relaxed penalties, as engines have them beside drafts: before each verification the last token said so far is
    counted, or the prompt's last one; a prefill begins anew.
    """

    rule = Rule(
        "I67",
        "penalized-tokens",
        "a verification penalizes tokens that the request has said, or its prompt's last one, "
        "and one for each verification since its prefill",
        Severity.WRONG_RESULT,
    )
    defects = (
        notes("penalizes another token", Penalized("0", Penalties(0.5, 0.0, 1.0), frozenset((1, 2)), 1, {3: -0.5}, {})),
        notes("penalizes nobody's wish", Penalized("0", Penalties(0.0, 0.0, 1.0), frozenset((1, 2)), 1, {1: -0.5}, {})),
    )

    def after(self, run: Run) -> Iterator[Violation]:
        for penalized, note in run.noted(Penalized):
            if not is_right(penalized):
                added, scaled, may = penalized.added, penalized.scaled, penalized.may
                count = penalized.verifications if penalized.wanted.are_some else 0
                expected = f"penalties of its own tokens, {count} times, of {penalized.rid}"
                actual = f"{added or scaled or 'none'}, not its own are {sorted({*added, *scaled} - may)}"
                yield self.from_note(note, "verify", "", expected, actual)
                return


class PenaltiesAfterRetraction(Check):
    """What a verification counts of a token, all later ones of the request count, too: a retraction changes nothing of
    what it has said.
    """

    rule = Rule(
        "I59",
        "penalties-after-retraction",
        "after a retraction penalties count what they counted before",
        Severity.WRONG_RESULT,
    )
    defects = (
        notes(
            "counts less than before",
            Penalized("0", Penalties(0.5, 0.0, 1.0), frozenset((1,)), 1, {1: -0.5}, {}),
            Penalized("0", Penalties(0.5, 0.0, 1.0), frozenset((1,)), 0, {}, {}),
        ),
    )

    def after(self, run: Run) -> Iterator[Violation]:
        most: dict[str, dict[int, float]] = {}
        for penalized, note in run.noted(Penalized):
            before, now = most.setdefault(penalized.rid, {}), amounts(penalized)
            if less := [token for token, amount in before.items() if now.get(token, 0.0) < amount]:
                text = f"penalties of {len(before)} tokens at least, of {penalized.rid}"
                yield self.from_note(note, "verify", "", text, f"less of {len(less)} of them")
                return
            before |= now


def amounts(penalized: Penalized) -> dict[int, float]:
    """By token how much it is penalized."""
    return {token: abs(value) for token, value in penalized.added.items()} | {
        token: abs(value - 1) for token, value in penalized.scaled.items()
    }


def unpenalized(run: Run) -> set[str]:
    """Requests whose penalties were once not those of what they had said."""
    return {penalized.rid for penalized, _note in run.noted(Penalized) if not is_right(penalized)}


def is_right(penalized: Penalized) -> bool:
    """Whether a request's penalties are those of its wish and of tokens that it may be penalized for."""
    added, scaled, wanted = penalized.added, penalized.scaled, penalized.wanted
    values = (*added.values(), *scaled.values())
    if wanted.frequency:
        is_as_wanted = not scaled and sum(values) == -wanted.frequency * penalized.verifications
    elif wanted.are_some:
        value = -wanted.presence or wanted.repetition
        is_as_wanted = set(values) == {value} and len(values) <= penalized.verifications and not (added and scaled)
    else:
        is_as_wanted = not values
    return is_as_wanted and penalized.may.issuperset((*added, *scaled))
