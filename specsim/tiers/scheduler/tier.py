"""The scheduler tier: a release's own scheduler, whole, on a virtual device, in schedules that are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from specsim import replay_file
from specsim.rules.process import HostException, ScheduleCrash, ScheduleTimeout
from specsim.tiers.tier import Answer, Explanation, Line, Page, ReplayOutcome, State, codes, label_of
from specsim.verdict import CheckedSubject, NotRun, Rule, Suite

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.replay_file import SchedulerReplay
    from specsim.tiers.messages import At, Request

START_SECONDS = 90.0
"""What the import and the start of a scheduler may take on a busy machine, before a schedule runs."""


class SchedulerTier:
    """See `specsim.tiers.tier.Tier`."""

    name = "scheduler"
    unit: Literal["cases", "schedules"] = "schedules"
    by_default = True
    budget_share = 0.3
    batch_count = 200
    batch_weight = 5
    has_device = False
    loader = "specsim.tiers.scheduler.loading"
    resumes_skipped = False
    end_rules = (ScheduleCrash.rule.id, ScheduleTimeout.rule.id)
    preloaded: tuple[str, ...] = ()
    ignored: tuple[tuple[str, ...], str] = (
        ("cases", "device"),
        "it is not of that tier",
    )

    def is_of(self, target: Target) -> bool:
        from specsim.engines.registry import ENGINES
        from specsim.engines.target import Checkout, Release

        return not isinstance(target, Release | Checkout) or self.name in ENGINES[target.engine].subjects

    @property
    def rules(self) -> Mapping[str, Rule]:
        from specsim.rules.table import BY_ID

        return BY_ID

    def signature_of_end(self, subject: str, rule: Rule) -> str:
        from specsim.tiers.scheduler.answers import IMPORT
        from specsim.world.rule import signature_of

        return signature_of(rule.id, "import" if subject == IMPORT else "process")

    def title_of_end(self, subject: str, text: str) -> str:
        from specsim.tiers.scheduler.answers import IMPORT

        return f"{IMPORT if subject == IMPORT else 'a schedule'} {text}"

    def finds(self, checked: CheckedSubject, signature: str) -> bool:
        return False  # schedules are not of one subject

    def why_not_checked(self, suite: Mapping[str, Any], name: str) -> str:
        if suite["schedules"]:
            setups = {entry["what"].removeprefix("setup "): entry["why"] for entry in suite["not_run"]}
            return str(setups.get(name, ""))
        return str(next((entry["why"] for entry in suite["not_run"]), "no schedule was run"))

    def expectation(self, rule: str, shown: bool) -> dict[str, Any]:
        return {"shows": shown}

    def limit_seconds(self, request: Request) -> float:
        return request.hang_seconds + START_SECONDS

    def blames(self, request: Request) -> bool:
        return True

    def cut_short(self, suite: Suite, at: At, index: int, text: str) -> bool:
        from specsim.tiers.scheduler.answers import IMPORT

        what = ("schedules", IMPORT) if at.subject == IMPORT else (f"schedules after {index}", f"schedule {index}")
        suite.not_run.append(NotRun(what[0], f"{what[1]} {text}"))
        return False

    def answer_of_end(self, hung: bool, text: str) -> dict[str, Any] | None:
        return None  # schedules run in forks: what ends the child is its import

    def difference(self, one: Answer, two: Answer) -> str:
        from specsim.world.schedule import first_other_launch

        if parted := first_other_launch(one.get("events", ()), two.get("events", ())):
            number, was, now = parted
            return f"launch {number} was {was!r}, then {now!r}"
        if one.get("digest") != two.get("digest"):
            return f"the digest was {one.get('digest')}, then {two.get('digest')}"
        return ""

    def outcome(self, stored: SchedulerReplay, target: str, answer: Answer) -> ReplayOutcome:
        if not answer["judged"]:
            return ReplayOutcome(State.NOT_RUN, f"{target} does not run the schedule: {answer['why']}")
        violations, code = answer["violations"], codes(answer["code"])
        for shown in filter(stored.is_shown, violations):
            what = f"expected {shown['expected']}, seen {shown['actual']}"
            reason = f"{label_of(self.rules, stored.rule)}, {shown['part']} {shown['who']}: {what}"
            return ReplayOutcome(State.SHOWN, reason, what, shown["part"], answer["same_source"], code=code)
        before = next(
            (f"{v['part']} fails before: {v['actual']}" for v in violations if v["rule"] == HostException.rule.id), ""
        )
        state, reason = State.GONE, f"{label_of(self.rules, stored.rule)} holds"
        if unheard := replay_file.unheard(violations):
            state, reason = State.UNHEARD, unheard
        return ReplayOutcome(state, reason, "", stored.part, answer["same_source"], before, code=code)

    def explain(self, stored: SchedulerReplay, target: str, answer: Answer) -> Explanation:
        from specsim.engines.triage import known_line
        from specsim.world.workload import told

        named = f"{target} with mutant {stored.mutant}" if stored.mutant and target == stored.target else target
        if not answer["judged"]:
            lines = [Line("not run", answer["why"])]
        else:
            lines = [Line("setup", answer["setup"])]
            lines += [Line(who, what) for who, what in told(answer["workload"])]
            lines += [Line(None, ""), *(Line(None, event) for event in answer["events"]), Line(None, "")]
            for violation in answer["violations"]:
                label = label_of(self.rules, violation["rule"])
                lines.append(Line("rule", f"{label}: {violation['part']} {violation['who']}".rstrip(), "rule"))
                lines.append(Line("", f"expected {violation['expected']}, seen {violation['actual']}"))
                lines += [Line("", text) for text in violation["details"]]
                if not stored.is_shown(violation) and (known := known_line(target, violation["signature"])):
                    lines.append(Line("", known))
            lines.append(Line("digest", answer["digest"]))
        return Explanation(
            label_of(self.rules, stored.rule), f" on {named}", tuple(lines), "launches and violations are"
        )

    def page(self, stored: SchedulerReplay, target: str, answer: Answer) -> Page:
        from specsim.tiers.scheduler.page import page_of

        return page_of(stored, answer)

    def answers(self, request: Request) -> str:
        from specsim.tiers.messages import Explore, Weigh

        if isinstance(request.work, Explore):
            return "specsim.tiers.scheduler.reruns"
        weighs = isinstance(request.work, Weigh)
        return "specsim.tiers.scheduler.lossless" if weighs else "specsim.tiers.scheduler.answers"
