"""The ops tier: each implementation of an operation, on drawn cases, against the reference.

`bulk` is a way to run it: thousands of cases a launch, in the child itself. Otherwise the child is the trusted side of
`specsim.tiers.ops.target_process`, and nothing of the target runs in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from specsim import replay_file
from specsim.engines.registry import ENGINES, MAIN
from specsim.isolation.conversation import START_SECONDS_MAX
from specsim.tiers.messages import CheckWork, FailureWork
from specsim.tiers.not_run import LACKS
from specsim.tiers.ops.rules import ENDS, SURVIVES
from specsim.tiers.ops.written import written
from specsim.tiers.tier import Answer, Explanation, Line, Page, ReplayOutcome, State, codes, label_of, why_of
from specsim.verdict import CheckedSubject, Rule, Suite

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.replay_file import OpReplay
    from specsim.tiers.messages import At, Request

OTHER_CASE = "its tape stands for another case now; replay runs the tensors of the file, shrink begins with the tape"


class OpsTier:
    """See `specsim.tiers.tier.Tier`."""

    name = "ops"
    unit: Literal["cases", "schedules"] = "cases"
    by_default = True
    budget_share = 0.5
    batch_count = 100
    batch_weight = 1
    has_device = True
    loader = ""
    resumes_skipped = True
    end_rules = (SURVIVES.id, ENDS.id)
    preloaded: tuple[str, ...] = (
        "specsim.tiers.ops.finding",
        "specsim.tiers.ops.suite",
        "specsim.contracts.registry",
        ENGINES[MAIN].subjects["ops"][0],
    )
    ignored: tuple[tuple[str, ...], str] = (
        ("schedules", "mutant"),
        "it is of schedules, which that tier has not",
    )

    def is_of(self, target: Target) -> bool:
        return True

    @property
    def rules(self) -> Mapping[str, Rule]:
        from specsim.tiers.ops.rules import BY_ID

        return BY_ID

    def signature_of_end(self, subject: str, rule: Rule) -> str:
        return f"ops:{subject.rpartition(':')[2]}:{subject}"

    def title_of_end(self, subject: str, text: str) -> str:
        return f"{subject}: a case {text}"

    def finds(self, checked: CheckedSubject, signature: str) -> bool:
        return signature == f"ops:{checked.op}:{checked.subject}"

    def why_not_checked(self, suite: Mapping[str, Any], name: str) -> str:
        op, _, subject = name.partition(":")
        if any(checked["op"] == op and checked["subject"] == subject for checked in suite["judged"]):
            return ""
        reasons = {entry["what"]: entry["why"] for entry in suite["not_run"]}
        names = (f"{op} in {subject.partition(':')[2]}", f"{op}, {subject}", op)
        return why_of(reasons, names, f"{LACKS}{subject}")

    def expectation(self, rule: str, shown: bool) -> dict[str, Any]:
        return {"rules": [rule] if shown else []}

    def limit_seconds(self, request: Request) -> float:
        if not request.bulk:
            return request.hang_seconds + START_SECONDS_MAX  # of the process that runs the target, which has its own
        return START_SECONDS_MAX if isinstance(request.work, FailureWork) else request.hang_seconds

    def blames(self, request: Request) -> bool:
        return request.bulk

    def cut_short(self, suite: Suite, at: At, index: int, text: str) -> bool:
        return True

    def answer_of_end(self, hung: bool, text: str) -> dict[str, Any] | None:
        return None

    def difference(self, one: Answer, two: Answer) -> str:
        titles = [[violation["title"] for violation in answer.get("violations", ())] for answer in (one, two)]
        if titles[0] != titles[1]:
            return f"{titles[0] or 'no violation'}, then {titles[1] or 'no violation'}"
        if one.get("digest") != two.get("digest"):
            return f"the digest of the outputs was {one.get('digest')}, then {two.get('digest')}"
        return ""

    def outcome(self, stored: OpReplay, target: str, answer: Answer) -> ReplayOutcome:
        if not answer["judged"]:
            return ReplayOutcome(State.NOT_RUN, f"{target} does not accept the configuration of the case")
        violations, code = answer["violations"], codes(answer.get("code", ()))
        subject, same_code = answer["subject"], answer["same_source"]
        for shown in filter(stored.is_shown, violations):
            return ReplayOutcome(State.SHOWN, shown["title"], shown["title"], subject, same_code, code=code)
        before = next((v["actual"] for v in violations if v["rule"] in self.end_rules), "")
        unheard = replay_file.unheard(violations)
        state = State.UNHEARD if unheard else State.GONE
        reason = unheard or f"{label_of(self.rules, stored.rule)} holds"
        return ReplayOutcome(state, reason, "", subject, same_code, before, code=code)

    def explain(self, stored: OpReplay, target: str, answer: Answer) -> Explanation:
        lines = [Line("sizes", ", ".join(f"{name}={size}" for name, size in stored.sizes.items()))]
        for kind in ("inputs", "expected"):
            lines += [
                Line(kind, f"{name} = {written(tensor['shape'], tensor['data'])}")
                for name, tensor in answer.get(kind, {}).items()
            ]
        for violation in answer.get("violations", ()):
            lines.append(Line("rule", f"{label_of(self.rules, violation['rule'])}: {violation['title']}", "rule"))
            lines.append(Line("", f"expected {violation['expected']}, actual {violation['actual']}"))
        if not answer.get("same_case", True):
            lines.append(Line("note", OTHER_CASE))
        if answer.get("explanation"):
            lines.append(Line("why", answer["explanation"]))
        about = f", {answer['subject']} of {target}"
        return Explanation(stored.op, about, tuple(lines), "outputs and violations are")

    def page(self, stored: OpReplay, target: str, answer: Answer) -> Page:
        from specsim.tiers.ops.page import tensors_of

        violations = [{**violation, "event": None} for violation in answer.get("violations", ())]
        blamed = next((violation for violation in violations if violation["rule"] == stored.rule), {})
        where = {"where": answer.get("where") or stored.where, "part": f"{stored.op}, {answer.get('subject', '')}"}
        replay = [
            ["operation", stored.op],
            ["implementation", stored.subject],
            ["device", stored.device],
            ["digest", answer.get("digest", "")],
            ["digest when found", stored.digest],
            ["seed", str(stored.seed)],
        ]
        parts = {
            "notes": [answer["explanation"]] if answer.get("explanation") else [],
            "tables": {"Sizes": [[name, str(size)] for name, size in stored.sizes.items()], "Replay": replay},
            "violations": violations,
            "tensors": tensors_of(answer),
        }
        return Page("case", {**blamed, **where}, parts)

    def answers(self, request: Request) -> str:
        in_bulk = request.bulk and isinstance(request.work, CheckWork | FailureWork)
        return "specsim.tiers.ops.bulk_answers" if in_bulk else "specsim.tiers.ops.answers"
