"""The accounting tier: the model's accounting of slots, rows and pages, in simulated schedules of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from specsim import replay_file
from specsim.engine.rules.failures import HOST_EXCEPTION, SCHEDULE_CRASH, SCHEDULE_TIMEOUT
from specsim.tiers.accounting.shown import request_lines, settings_line
from specsim.tiers.tier import Answer, Explanation, Line, Page, ReplayOutcome, State, label_of
from specsim.verdict import CheckedSubject, NotRun, Rule, Suite

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.replay_file import ScheduleReplay
    from specsim.tiers.messages import At, Request

COLUMN_KEY = (
    "   #  agent   event     who       details: verify r:a accepted; resolve r:+a counted, r:stale a not; "
    "prepare r:x>y allocated"
)
CHANGED_MODEL = "made before a change of the simulator: its tape may stand for another schedule than it did"


class AccountingTier:
    """See `specsim.tiers.tier.Tier`."""

    name = "accounting"
    unit: Literal["cases", "schedules"] = "schedules"
    by_default = True
    budget_share = 0.3
    batch_count = 5000
    batch_weight = 20
    has_single_runs = True
    draws_alike = False
    has_device = False
    imports_target = False
    resumes_skipped = False
    end_rules = (SCHEDULE_CRASH.id, SCHEDULE_TIMEOUT.id)
    preloaded: tuple[str, ...] = (
        "specsim.tiers.accounting.decisive_pair",
        "specsim.tiers.accounting.schedules",
    )
    ignored: tuple[tuple[str, ...], str] = (("cases", "device"), "it is of cases, which that tier has not")

    def is_of(self, target: Target) -> bool:
        from specsim.engines.target import ModelTarget

        return isinstance(target, ModelTarget)

    def has_batches(self, target: Target) -> bool:
        return self.is_of(target)

    @property
    def rules(self) -> Mapping[str, Rule]:
        from specsim.engine.rules.table import BY_ID

        return BY_ID

    def signature_of_end(self, subject: str, rule: Rule) -> str:
        return f"accounting:{rule.id}:process"

    def title_of_end(self, subject: str, text: str) -> str:
        return f"a schedule {text}"

    def finds(self, checked: CheckedSubject, signature: str) -> bool:
        return False  # schedules are not of one subject

    def why_not_checked(self, suite: Mapping[str, Any], name: str) -> str:
        if not suite["schedules"]:
            return str(next((entry["why"] for entry in suite["not_run"]), "no schedule was run"))
        return ""

    def expectation(self, rule: str, shown: bool) -> dict[str, Any]:
        return {"shows": shown}

    def limit_seconds(self, request: Request) -> float:
        return request.hang_seconds

    def blames(self, request: Request) -> bool:
        return True

    def cut_short(self, suite: Suite, at: At, index: int, text: str) -> bool:
        if at.index < 0:  # which the findings as they were hit do not need
            suite.not_run.append(NotRun("shrinking of what was found", f"a smaller schedule {text}"))
        else:
            what = f"the schedule of {at.known}" if at.known else f"schedule {index}"
            suite.schedules = max(suite.schedules, 1 if at.known else index + 1)
            suite.not_run.append(NotRun(f"schedules after {at.known or index}", f"{what} {text}"))
        return False

    def answer_of_end(self, hung: bool, text: str) -> dict[str, Any] | None:
        blank = dict.fromkeys(("sentence", "signature", "who", "expected", "where"), "")
        violation = {"rule": self.end_rules[hung], **blank, "part": "process", "actual": text, "event": 0}
        names = ("rule", "sentence", "signature", "part", "who", "expected", "actual", "event", "where")
        return {
            "judged": True,
            "same_source": True,
            "same_model": True,
            "digest": "",
            "scenario": {},
            "events": [],
            "violations": [{name: violation[name] for name in names}],
        }

    def difference(self, one: Answer, two: Answer) -> str:
        for was, now in zip(one.get("events", ()), two.get("events", ()), strict=False):
            if was != now:
                return f"event {was['number']} was {_flat_event(was)!r}, then {_flat_event(now)!r}"
        for name in ("events", "violations"):
            if one.get(name) != two.get(name):
                return f"{len(one.get(name, ()))} {name}, then {len(two.get(name, ()))}"
        if one.get("digest") != two.get("digest"):
            return f"the digest was {one.get('digest')}, then {two.get('digest')}"
        return ""

    def outcome(self, stored: ScheduleReplay, target: str, answer: Answer) -> ReplayOutcome:
        if not answer["judged"]:
            return ReplayOutcome(State.NOT_RUN, f"{target} does not run the scenario")
        violations = answer["violations"]
        same_code, meaning = answer["same_source"] and answer["same_model"], answer["scenario"]
        for shown in filter(stored.is_shown, violations):
            what = f"expected {shown['expected']}, seen {shown['actual']}"
            where = f"{shown['part']} {shown['who']}".strip()
            reason = f"{label_of(self.rules, stored.rule)} at event {shown['event']}, {where}: {what}"
            return ReplayOutcome(State.SHOWN, reason, what, shown["part"], same_code, meaning=meaning)
        before = next(
            (
                f"{v['part']} fails before: {v['actual']}"
                for v in violations
                if v["rule"] in (HOST_EXCEPTION.id, *self.end_rules)
            ),
            "",
        )
        if reason := replay_file.unheard(violations):
            state = State.UNHEARD
        else:
            lines = [replay_file.event_line(event) for event in answer["events"]]
            applies, reason = replay_file.why_not_shown(stored, answer["scenario"], lines, answer["same_model"])
            state = State.GONE if applies else State.NO_LONGER_APPLIES
        return ReplayOutcome(state, reason, "", stored.part, same_code, before, meaning)

    def explain(self, stored: ScheduleReplay, target: str, answer: Answer) -> Explanation:
        named = f"{target} with mutant {stored.mutant}" if stored.mutant and target == stored.target else target
        lines = [] if answer.get("same_model", True) else [Line("note", CHANGED_MODEL)]
        scenario = answer.get("scenario", {})
        lines += [Line("settings", settings_line(scenario["config"]))] if scenario else []
        lines += [Line(*line) for line in request_lines(scenario.get("workload", {}))]
        lines += [Line(None, ""), Line(None, COLUMN_KEY, "dim")]
        broken: dict[int, list[Any]] = {}
        for violation in answer.get("violations", ()):
            broken.setdefault(violation["event"], []).append(violation)
        events = answer.get("events", ())
        for event in events:
            lines.append(Line(None, replay_file.event_line(event)))
            for violation in broken.get(event["number"], []):
                where = f" at {violation['where']}" if violation["where"] else ""
                named_rule = label_of(self.rules, violation["rule"])
                who = f", {violation['who']}" if violation["who"] else ""
                text = f"{named_rule} {violation['part']}{where}{who}: {violation['sentence']}"
                seen = f"      expected {violation['expected']}, seen {violation['actual']}"
                lines += [Line(None, f"      {text}", "rule"), Line(None, seen)]
        if stored.order and target == stored.target:
            last = f"{stored.order[1]}; in the opposite order the rule holds"
            lines += [Line(None, ""), Line("order", stored.order[0]), Line("", last)]
        lines += [Line(None, ""), Line("digest", answer.get("digest", ""))]
        return Explanation(label_of(self.rules, stored.rule), f" on {named}", tuple(lines), f"{len(events)} events,")

    def page(self, stored: ScheduleReplay, target: str, answer: Answer) -> Page:
        from specsim.tiers.accounting.page import page_of

        return page_of(stored, target, answer)

    def answers(self, request: Request) -> str:
        return "specsim.tiers.accounting.answers"


def _flat_event(event: Mapping[str, Any]) -> str:
    return " ".join(str(event[name]) for name in ("agent", "event", "who", "details") if event[name])
