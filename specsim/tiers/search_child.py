"""Looking for one defect, in the child: of one rule of the simulator, or of one operation. It ends at the first hit.

The answer is one message "replayed", as of a replay file:

{"schedules", "refused": {why: count}, "failed", "violation": {...} | null, "seam": [...]}     search_rule
{"subjects": [{"name", "where", "source_hash", "cases", "rule", "title"}], "not_run": [...]}   search_op

`failed` counts the schedules in which a host function raised.

With `write` in the request the defect is shrunk: {"event": "done alone", "found"}.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specsim.errors import UsageError
from specsim.tiers.accounting.child import finding_of, load_target
from specsim.tiers.child import Messages, Request
from specsim.tiers.ops.child import choose_device, opened
from specsim.tiers.transfer import sent
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from specsim.tiers.ops.target_process import TargetProcess

ATTEMPTS_MAX = 80  # to make what was found smaller; `specsim shrink` takes more


def search_rule(request: Request, messages: Messages) -> None:
    """Simulate the schedules of a seed until one breaks the rule `rule`."""
    target = load_target(request, lambda: messages.send("schedule", index=0))
    if isinstance(target, NotRun):
        raise UsageError(f"{request['target']} cannot be simulated: {target.why}", "it has no such tier")
    from specsim.tiers.accounting.schedules import chooser_of, run_schedule

    refused: dict[str, int] = {}
    judged = failed = 0
    found = None
    for index in range(request["schedules"]):
        messages.send("schedule", index=index)
        schedule = run_schedule(target, chooser_of(request["seed"], index), refused)
        if schedule is None:
            continue
        judged += 1
        found = next((v for v in schedule.run.violations if v.rule.id == request["rule"]), None)
        if found is not None:
            break
        failed += any(v.rule.id == "X1" for v in schedule.run.violations)
    if found is not None and request["write"]:
        _write_rule(request, messages, target, index)
        return
    messages.send(
        "replayed",
        schedules=judged,
        refused=refused,
        failed=failed,
        violation=None
        if found is None
        else {"signature": found.signature, "part": found.part, "actual": found.actual, "schedule": index},
        seam=[asdict(part) for part in target.parts],
    )


def _write_rule(request: Request, messages: Messages, target: Any, index: int) -> None:
    from specsim.tiers.accounting import schedules

    schedule = schedules.run_schedule(target, schedules.chooser_of(request["seed"], index))
    assert schedule is not None
    signature = next(v.signature for v in schedule.run.violations if v.rule.id == request["rule"])
    shrunk = schedules.shrink(
        target, schedule.tape, signature, ATTEMPTS_MAX, lambda: messages.send("schedule", index=-1)
    )
    violation = shrunk.violation(signature)
    assert violation is not None
    found = schedules.ScheduleFinding(signature, violation, shrunk, 1, index, None)
    messages.send("done alone", found=sent(*finding_of(target, found, request)))


def search_op(request: Request, messages: Messages) -> None:
    """Run each implementation of the operation `op`, or those of the names `subjects`, on the cases of a seed until one
    is wrong.
    """
    device = choose_device(request["device"])
    from specsim.contracts.registry import OPS
    from specsim.tiers.ops.run import EndedError, run_case
    from specsim.tiers.ops.suite import chooser_of

    op = OPS[request["op"]]
    answers = []
    wanted = request["subjects"]
    with opened(request, messages, device, op.name) as process:
        for subject in [s for s in process.subjects if s.op == op.name and (not wanted or s.name in wanted)]:
            messages.send("start", subject=subject.name)
            cases, broken = 0, None
            for index in range(request["cases"]):
                messages.send("case", index=index)
                case = op.generate(chooser_of(request["seed"], subject, index))
                try:
                    outcome = run_case(op, subject, case, launcher=process) if subject.accepts(case.sizes) else None
                except EndedError as ended:
                    raise UsageError(f"a call {ended.text}", "give a larger --hang-seconds") from None
                if outcome is None or not outcome.judged:
                    continue
                cases += 1
                if outcome.violations:
                    broken = outcome.violations[0]
                    break
            if broken is not None and subject.name == request["write"]:
                _write_op(request, messages, op, subject, device, process)
                return
            answers.append(
                {
                    "name": subject.name,
                    "where": subject.where,
                    "source_hash": subject.source_hash,
                    "cases": cases,
                    "rule": broken.rule.id if broken else "",
                    "title": broken.title if broken else "",
                }
            )
        not_run = process.not_run
    messages.send(
        "replayed",
        subjects=answers,
        not_run=[asdict(entry) for entry in not_run if entry.what.split(" in ")[0] == op.name],
    )


def _write_op(request: Request, messages: Messages, op: Any, subject: Any, device: str, process: TargetProcess) -> None:
    from specsim.tiers.ops.finding import finding_of
    from specsim.tiers.ops.suite import Limits, judge

    result = judge(
        op,
        subject,
        seed=request["seed"],
        limits=Limits(request["cases"]),
        launcher=process,
        on_case=lambda index: messages.send("case", index=index),
    )
    assert result.counterexample is not None
    found = finding_of(
        op, subject, result.counterexample, target=request["target"], seed=request["seed"], device=device
    )
    messages.send("done alone", found=sent(*found))
