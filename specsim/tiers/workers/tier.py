"""The workers tier: functions of an engine's worker processes, each run by a probe on stubs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from specsim import replay_file
from specsim.engine.rules.failures import HOST_EXCEPTION, SCHEDULE_CRASH, SCHEDULE_TIMEOUT
from specsim.tiers.not_run import LACKS
from specsim.tiers.tier import Answer, Explanation, Line, Outcome, Page, State, codes, label_of
from specsim.verdict import CheckedSubject, Rule, Suite

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.replay_file import WorkerReplay
    from specsim.tiers.messages import At, Request

OTHER_CASE = "its tape stands for another case now"


class WorkersTier:
    """See `specsim.tiers.tier.Tier`."""

    name = "workers"
    unit: Literal["cases", "schedules"] = "cases"
    by_default = True
    budget_share = 0.2
    counts_as = 1
    batch_count = 100
    batch_weight = 1
    has_single_runs = False
    draws_alike = False
    has_device = False
    imports_target = False
    resumes_skipped = False
    end_rules = (SCHEDULE_CRASH.id, SCHEDULE_TIMEOUT.id)
    preloaded: tuple[str, ...] = ()
    ignored: tuple[tuple[str, ...], str] = (
        ("schedules", "strategy", "mutant", "kernels", "device"),
        "it is not of that tier",
    )

    def is_of(self, target: Target) -> bool:
        from specsim.engines.target import CheckoutTarget, ReleaseTarget

        return isinstance(target, ReleaseTarget | CheckoutTarget)

    def has_batches(self, target: Target) -> bool:
        return self.is_of(target)

    @property
    def rules(self) -> Mapping[str, Rule]:
        from specsim.tiers.workers.rules import BY_ID

        return BY_ID

    def signature_of_end(self, subject: str, rule: Rule) -> str:
        from specsim.tiers.workers.rules import signature_of

        return signature_of(subject, rule.id)

    def title_of_end(self, subject: str, text: str) -> str:
        return f"{subject}: a case {text}"

    def finds(self, checked: CheckedSubject, signature: str) -> bool:
        return signature.startswith(f"workers:{checked.op}:")  # a probe may break many rules

    def why_not_checked(self, suite: Mapping[str, Any], name: str) -> str:
        probe = name.rpartition(":")[0]
        if any(checked["op"] == probe for checked in suite["judged"]):
            return ""
        return str({e["what"]: e["why"] for e in suite["not_run"]}.get(probe, f"{LACKS}{probe}"))

    def expectation(self, rule: str, shown: bool) -> dict[str, Any]:
        return {"shows": shown}

    def limit_seconds(self, request: Request) -> float:
        return request.hang_seconds

    def blames(self, request: Request) -> bool:
        return True

    def cut_short(self, suite: Suite, at: At, index: int, text: str) -> bool:
        return True

    def answer_of_end(self, hung: bool, text: str) -> dict[str, Any] | None:
        broken = {"rule": self.end_rules[hung], "what": text, "expected": "", "actual": text, "details": []}
        return {"same_case": True, "same_source": True, "where": "", "digest": "", "case": {}, "broken": [broken]}

    def difference(self, one: Answer, two: Answer) -> str:
        return "" if one["digest"] == two["digest"] else f"the digest was {one['digest']}, then {two['digest']}"

    def outcome(self, stored: WorkerReplay, target: str, answer: Answer) -> Outcome:
        broken, code = answer["broken"], codes(answer.get("code", ()))
        same_code = answer["same_source"] and answer["same_case"]
        for shown in filter(stored.is_shown, broken):
            return Outcome(State.SHOWN, shown["what"], shown["what"], stored.probe, same_code, code=code)
        failed = (entry["actual"] for entry in broken if entry["rule"] in (HOST_EXCEPTION.id, *self.end_rules))
        before = next((f"{stored.probe} fails before: {actual}" for actual in failed), "")
        state, reason = State.GONE, f"{label_of(self.rules, stored.rule)} holds"
        if unheard := replay_file.unheard(broken):
            state, reason = State.UNHEARD, unheard
        elif not answer["same_case"]:
            state, reason = State.NO_LONGER_APPLIES, OTHER_CASE
        return Outcome(state, reason, "", stored.probe, same_code, before, code=code)

    def explain(self, stored: WorkerReplay, target: str, answer: Answer) -> Explanation:
        lines = [Line("where", answer["where"] or "unknown")]
        lines += [
            Line(name, f"{key} = {value}") for name in ("case", "seen") for key, value in answer.get(name, {}).items()
        ]
        for broken in answer["broken"]:
            lines.append(Line("rule", f"{label_of(self.rules, broken['rule'])}: {broken['what']}", "rule"))
            lines.append(Line("", f"expected {broken['expected']}, seen {broken['actual']}"))
            lines += [Line("", text) for text in broken["details"]]
        about = f", {stored.probe} of {target}"
        return Explanation(label_of(self.rules, stored.rule), about, tuple(lines), "the case and what was recorded are")

    def page(self, stored: WorkerReplay, target: str, answer: Answer) -> Page:
        violations = [
            {**broken, "sentence": broken["what"], "title": broken["what"], "event": None}
            for broken in answer["broken"]
        ]
        blamed = next((violation for violation in violations if violation["rule"] == stored.rule), {})
        sentence = self.rules[stored.rule].sentence if stored.rule in self.rules else blamed.get("sentence", "")
        replay = [
            ["function", stored.function],
            ["probe", stored.probe],
            ["digest", answer.get("digest", "")],
            ["digest when found", stored.digest],
            ["seed", str(stored.seed)],
        ]
        tables = {
            "Case": [[name, str(value)] for name, value in answer.get("case", {}).items()],
            "What the function handed on": [[name, str(value)] for name, value in answer.get("seen", {}).items()],
            "Replay": replay,
        }
        notes = [line for broken in answer["broken"] for line in broken["details"]]
        texts = {**blamed, "sentence": sentence, "where": answer.get("where", ""), "part": stored.probe}
        return Page("probe", texts, {"notes": notes, "tables": tables, "violations": violations})

    def answers(self, request: Request) -> str:
        return "specsim.tiers.workers.answers"
