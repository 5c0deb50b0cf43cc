"""Is a release's worker lossless? All outcomes of two requests, weighed, beside those of decoding token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from specsim.errors import UsageError, described
from specsim.isolation.messages import Messages
from specsim.tiers.messages import At, End, Request, Weigh, Weighed
from specsim.tiers.scheduler.loading import load_target
from specsim.verdict import NotRun
from specsim.world.scheduler import Setup

if TYPE_CHECKING:
    from specsim.contracts.enumeration import Distribution

DRAFTS: Mapping[str, Setup] = {
    "chain": Setup(worker="release", slots=256, steps=2, draft_tokens=3),
    "tree": Setup(worker="release", slots=256, steps=2, draft_tokens=5, topk=2),
}
"""With overlap; where a release refuses that, without."""
LENGTH = 4
"""Tokens of an answer: one of the prefill, and those of two verifications at least."""


def weigh(request: Request, work: Weigh, messages: Messages) -> None:
    """The total variation between what a worker answers and the target model's distribution."""
    from specsim.contracts.enumeration import total_variation  # with torch, which the command that asks has no use for

    target = load_target(request)
    if isinstance(target, NotRun):
        messages.send(End(not_run=[target]))
        return
    setup = replace(DRAFTS[work.drafts], beyond_guards=work.beyond_guards)
    messages.send(At(subject=work.drafts))
    emitted: Distribution = {}
    count = 0
    why = ""
    try:
        try:
            expected, outcomes = target.outcomes(setup, LENGTH)
        except UsageError:
            expected, outcomes = target.outcomes(replace(setup, overlap=False), LENGTH)
        for tokens, weight in outcomes:
            emitted[tokens] = emitted.get(tokens, Fraction(0)) + weight
            count += 1
            messages.send(At(subject=work.drafts, index=count, count=count))
    except UsageError as error:
        messages.send(End(not_run=[NotRun(work.drafts, error.problem)]))
        return
    except Exception as error:
        why = ", ".join(filter(None, (described(error), *getattr(error, "__notes__", ()))))
    off = "" if why else str(total_variation(emitted, expected))
    messages.send(Weighed(outcomes=count, off=off, why=why))
