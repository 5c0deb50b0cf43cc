"""Results: what a request gets of a launch, what a stale result may change, and what the client sees."""

from __future__ import annotations

from dataclasses import fields

from specsim.engine.accounting import Observed
from specsim.engine.lifecycle import State
from specsim.engine.rules.oracle import outputs_of, unending_outputs_of
from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import (
    Answered,
    FinishChecked,
    LiveResult,
    ResultCounted,
    ResultTaken,
    Shown,
    StaleResult,
    StaleRunTaken,
)
from specsim.verdict import Rule, Severity

_OBSERVABLES = tuple(each.name for each in fields(Observed))


class ResultRun(Check):
    rule = Rule(
        "I34",
        "result-run",
        "a run is the first accepted tokens of the request's own row, at the stride of its launch",
        Severity.WRONG_RESULT,
    )
    after = (ResultTaken, LiveResult, StaleResult)

    def check(self, view: ResultTaken | LiveResult | StaleResult) -> Broken | None:
        if isinstance(view, ResultTaken):
            expected, actual = len(view.launch.rows), len(view.runs)
            return None if actual == expected else self.broken("resolve", view.launch.name, expected, actual)
        if view.run == view.expected:
            return None
        return self.broken("resolve", view.request.rid, view.expected, view.run)


class AcceptanceCounts(Check):
    rule = Rule(
        "I33",
        "acceptance-counts",
        "verify count, accepted drafts and histogram count the resolved verifications while live",
        Severity.METRIC,
    )
    after = (LiveResult,)

    def check(self, view: LiveResult) -> Broken | None:
        was, now = view.was, view.now
        counts = (was.verify_count + 1, was.accepted_drafts + view.accept_len - 1)
        actual = (now.verify_count, now.accepted_drafts)
        if actual != counts:
            return self.broken("resolve", view.request.rid, f"(verify count, accepted drafts) {counts}", actual)
        if (sum(now.histogram), sum([i * n for i, n in enumerate(now.histogram)])) != counts:
            return self.broken("resolve", view.request.rid, f"a histogram of {counts}", f"{now.histogram}")
        return None


class StaleResultOfFinished(Check):
    rule = Rule(
        "I31",
        "stale-result-of-finished",
        "a stale result of a finished request changes nothing of it but a claim that it gives back",
        Severity.WRONG_RESULT,
    )
    after = (StaleResult, StaleRunTaken)

    def applies(self, shown: Shown) -> bool:
        return "stale_result_of_finished" in shown.marks

    def check(self, view: StaleResult | StaleRunTaken) -> Broken | None:
        if view.request.state is not State.FINISHED:
            return None
        if isinstance(view, StaleRunTaken):
            return self.broken("result handling", view.request.rid, "a stale result is dropped", "it is taken")
        changed = _changed(view)
        if changed == ["committed"] and view.now.committed < view.was.committed:
            return None  # it gives back a position that it had claimed for this very launch
        return _of_changes(self, view, changed)


class StaleResultOfRetracted(Check):
    rule = Rule(
        "I32", "stale-result", "a stale result of a retracted request changes nothing of it", Severity.WRONG_RESULT
    )
    after = (StaleResult, StaleRunTaken)

    def applies(self, shown: Shown) -> bool:
        return "stale_result_of_retracted" in shown.marks

    def check(self, view: StaleResult | StaleRunTaken) -> Broken | None:
        if view.request.state is State.FINISHED:
            return None
        if isinstance(view, StaleRunTaken):
            return self.broken("result handling", view.request.rid, "a stale result is dropped", "it is taken")
        return _of_changes(self, view, _changed(view))


class AcceptedDrafts(Check):
    rule = Rule(
        "S3", "accepted-drafts", "the batch's counter of accepted drafts counts live requests only", Severity.METRIC
    )
    after = (ResultCounted,)

    def check(self, view: ResultCounted) -> Broken | None:
        result = view.result
        lens = zip(result.accept_lens, view.live, strict=True)
        expected = sum([accept_len - 1 for accept_len, alive in lens if alive])
        if result.accepted_drafts == expected:
            return None
        stale = sum(not alive for alive in view.live)
        return self.broken(
            "resolve",
            view.launch.name,
            f"{expected} accepted drafts of live requests",
            f"{result.accepted_drafts}, with those of {stale} stale ones",
            can_go_on=True,
        )


class FinishedLength(Check):
    rule = Rule(
        "I10",
        "finished-length",
        "the finished length lies within the outputs and the length cap",
        Severity.WRONG_RESULT,
    )
    after = (FinishChecked,)

    def check(self, view: FinishChecked) -> Broken | None:
        request, finished_len = view.request, view.now.finished_len
        if finished_len is None:
            return None
        most = min(len(request.outputs), request.turn.max_new_tokens)
        if 0 <= finished_len <= most:
            return None
        return self.broken("finish check", request.rid, f"0 to {most}", finished_len)


class WantedAbort(Check):
    rule = Rule("I38", "wanted-abort", "a request that is to abort finishes at its next result", Severity.WRONG_RESULT)
    after = (FinishChecked,)

    def applies(self, shown: Shown) -> bool:
        return "finish: abort" in shown.marks

    def check(self, view: FinishChecked) -> Broken | None:
        if not view.request.abort_wanted:
            return None
        if view.now.finished:
            return None
        return self.broken("finish check", view.request.rid, "finished by its abort", "still running")


class UnwantedAbort(Check):
    rule = Rule(
        "I39",
        "unwanted-abort",
        "only requests whose abort was wanted finish without reaching their end",
        Severity.WRONG_RESULT,
    )
    after = (FinishChecked,)

    def check(self, view: FinishChecked) -> Broken | None:
        request, now = view.request, view.now
        if request.abort_wanted or not now.finished or now.finished_len is not None:
            return None
        if len(request.outputs) >= request.turn.max_new_tokens:
            return None
        return self.broken("finish check", request.rid, "finished at its end", "aborted")


class ContextLength(Check):
    rule = Rule("S7", "context-length", "prompt and answer fit the context", Severity.WRONG_RESULT)
    after = (Answered,)

    def check(self, view: Answered) -> Broken | None:
        request, longest = view.request, view.config.context_len
        total = len(request.prompt) + len(view.visible)
        if request.abort_wanted or total <= longest:
            return None
        return self.broken("arrive", request.rid, f"{longest} tokens at most", total)


class VisibleOutputs(Check):
    rule = Rule(
        "I40",
        "visible-outputs",
        "the visible outputs are those of decoding one token after the other",
        Severity.WRONG_RESULT,
    )
    after = (Answered,)

    def check(self, view: Answered) -> Broken | None:
        request, visible = view.request, view.visible
        right = unending_outputs_of(request, len(visible)) if request.abort_wanted else outputs_of(request)
        if visible == right:
            return None
        at = next((i for i, (a, b) in enumerate(zip(visible, right, strict=False)) if a != b), None)
        if at is not None:
            expected, actual = f"output {at} = {right[at]}", f"output {at} = {visible[at]}"
            return self.broken("finish check", request.rid, expected, actual, "token")
        aspect = "long" if len(visible) > len(right) else "short"
        expected, actual = f"{len(right)} tokens", f"{len(visible)} tokens"
        return self.broken("finish check", request.rid, expected, actual, aspect, can_go_on=True)


def _changed(view: StaleResult) -> list[str]:
    if view.was == view.now:
        return []
    return [name for name in _OBSERVABLES if getattr(view.was, name) != getattr(view.now, name)]


def _of_changes(check: Check, view: StaleResult, changed: list[str]) -> Broken | None:
    if not changed:
        return None
    expected = ", ".join([f"{name} {getattr(view.was, name)}" for name in changed])
    actual = ", ".join([f"{name} {getattr(view.now, name)}" for name in changed])
    return Broken(
        check.rule, "resolve", view.request.rid, expected, actual, can_go_on=True, restores=(view.request, view.was)
    )
