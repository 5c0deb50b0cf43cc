"""Requests with a distribution of their own: penalties, grammars, and rows of logprobs. What they should know follows
from the tokens that the device has made, and from nothing else.
"""

from __future__ import annotations

from specsim.engine.grammar import Matcher
from specsim.engine.logprobs import logprob_of
from specsim.engine.model import EMPTY, extend
from specsim.engine.request import Request
from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import DistributionSeen, PenaltiesFed, SampledAppended, Shown
from specsim.engine.sampling import bincount
from specsim.verdict import Rule, Severity


class PenaltyCounts(Check):
    rule = Rule(
        "I58",
        "penalty-counts",
        "penalties count the outputs before a node, each once; relaxed ones nothing else, and no more",
        Severity.WRONG_RESULT,
    )
    after = (PenaltiesFed, DistributionSeen)

    def applies(self, shown: Shown) -> bool:
        return any(turn.sampling is not None and turn.sampling.is_penalized for turn in shown.prefilled())

    def check(self, view: PenaltiesFed | DistributionSeen) -> Broken | None:
        if isinstance(view, PenaltiesFed):
            if view.fed == view.expected:
                return None
            expected, actual = f"counts {sorted(view.expected.items())}", sorted(view.fed.items())
            return self.broken("penalty feed", view.who, expected, actual, can_go_on=True)
        if view.is_relaxed:
            return self._relaxed(view)
        return None if view.is_prefill else _wrong_counts(self, view)

    def _relaxed(self, view: DistributionSeen) -> Broken | None:
        known = {*view.outputs, view.state.request.prompt[-1]}
        for _path, counts in view.state.nodes:
            if not set(counts) <= known or sum(counts.values()) > len(view.outputs):
                expected = f"counts of {len(view.outputs)} outputs at most"
                return self.broken("penalties", view.state.key[0], expected, counts)
        return None


class PenaltiesAfterRetraction(Check):
    rule = Rule(
        "I59",
        "penalties-after-retraction",
        "after a retraction penalties count what they counted before",
        Severity.WRONG_RESULT,
    )
    after = (PenaltiesFed, DistributionSeen)

    def applies(self, shown: Shown) -> bool:
        turns = [turn for turn in shown.prefilled() if turn.rid in shown.came_back]
        return any(turn.sampling is not None and turn.sampling.is_penalized for turn in turns)

    def check(self, view: PenaltiesFed | DistributionSeen) -> Broken | None:
        if isinstance(view, DistributionSeen):
            return _wrong_counts(self, view) if view.is_prefill and not view.is_relaxed else None
        before = view.before_retraction
        if before is None or all(view.fed.get(token, 0) >= count for token, count in before.items()):
            return None
        expected = f"counts of {sorted(before.items())} at least"
        return self.broken("penalty feed", view.who, expected, sorted(view.fed.items()), can_go_on=True)


class ForbiddenToken(Check):
    rule = Rule("I61", "forbidden-token", "a token that the grammar forbids is never said", Severity.WRONG_RESULT)
    after = (SampledAppended,)

    def applies(self, shown: Shown) -> bool:
        return _has_grammar(shown)

    def check(self, view: SampledAppended) -> Broken | None:
        if view.request.matcher is None:
            return None
        refused = matcher_after(view.request, view.request.outputs).refused
        if refused is None:
            return None
        return self.broken("grammar", view.request.rid, "a token that the grammar allows", refused)


class GrammarState(Check):
    rule = Rule(
        "I60",
        "grammar-state",
        "a grammar has read the outputs, when masks are made and when a result was taken",
        Severity.WRONG_RESULT,
    )
    after = (DistributionSeen, SampledAppended)

    def applies(self, shown: Shown) -> bool:
        return _has_grammar(shown)

    def check(self, view: DistributionSeen | SampledAppended) -> Broken | None:
        if isinstance(view, DistributionSeen):
            request, outputs, actual = view.state.request, view.outputs, view.state.states
        else:
            request, outputs = view.request, view.request.outputs
            actual = request.matcher.states if request.matcher is not None else None
        if actual is None:
            return None
        expected = matcher_after(request, outputs).states
        if actual == expected:
            return None
        return self.broken("grammar", request.rid, f"states {expected}", actual)


class LogprobRows(Check):
    rule = Rule(
        "T6",
        "logprob-rows",
        "logprobs and hidden states have a row for each output, and it is that output's",
        Severity.WRONG_RESULT,
    )
    after = (SampledAppended,)

    def applies(self, shown: Shown) -> bool:
        return any(turn.return_logprob for turn in shown.prefilled())

    def check(self, view: SampledAppended) -> Broken | None:
        request = view.request
        if not request.turn.return_logprob:
            return None
        lengths, count = (len(request.hidden_states), len(request.logprobs)), len(request.outputs)
        if lengths != (count, count):
            return self.broken("logprobs", request.rid, f"{count} rows", lengths)
        fingerprint = EMPTY
        for token in request.prompt:
            fingerprint = extend(fingerprint, token)
        for at, token in enumerate(request.outputs):
            if (request.hidden_states[at], request.logprobs[at]) != (fingerprint, logprob_of(fingerprint, token)):
                return self.broken("logprobs", request.rid, f"the row of output {at}", "another")
            fingerprint = extend(fingerprint, token)
        return None


def matcher_after(request: Request, outputs: list[int]) -> Matcher:
    """The matcher of a request's grammar when it has read `outputs`."""
    assert request.turn.sampling is not None
    assert request.turn.sampling.grammar is not None
    matcher = Matcher(request.turn.sampling.grammar)
    matcher.read(outputs)
    return matcher


def _has_grammar(shown: Shown) -> bool:
    return any(turn.sampling is not None and turn.sampling.grammar is not None for turn in shown.prefilled())


def _wrong_counts(check: Check, view: DistributionSeen) -> Broken | None:
    """Exact penalties count the outputs before a node, and those on its path."""
    for path, counts in view.state.nodes:
        expected = bincount([*view.outputs, *path])
        if counts != expected:
            return check.broken("penalties", view.state.key[0], expected, counts)
    return None
