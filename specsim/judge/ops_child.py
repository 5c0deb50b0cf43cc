"""The ops tier in the child. Messages:

{"event": "start", "subject": NAME}           a subject's cases begin
{"event": "case", "index": I}                 case I comes next; -1 while shrinking
{"event": "done", "op", "subject", "where", "cases", "finding": {...} | null, "not_run": [...]}
{"event": "end", "not_run": [...]}            all subjects are done
{"event": "replayed", ...}                    the answer to a replay request
{"event": "error", "problem", "remedy"}       bad input; the process exits
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specsim import interrupts
from specsim.errors import UsageError
from specsim.judge.child import Messages, Request
from specsim.verdict import NotRun

ON_CPU = "host code, which runs on a CPU between stand-ins: leave out --device cuda"


def choose_device(wanted: str) -> str:
    """The device, "cpu" or "cuda". Sets Triton to its interpreter on a CPU; must run before triton is imported."""
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "--device cuda: torch sees no CUDA device here", "use --device cpu, or install a CUDA build of torch"
        )
    device = "cpu" if wanted == "cpu" or not torch.cuda.is_available() else "cuda"
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        torch.set_num_threads(1)
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    return device


def load_subjects(request: Request, op: str = "") -> tuple[list[Any], list[NotRun]]:
    """The subjects of the target, and what of it is not run; of the operation `op` at least, where it is given."""
    from specsim.targets.cache import Cache
    from specsim.targets.load import load_provider
    from specsim.targets.spec import parse_target

    return load_provider(parse_target(request["target"]), Cache(Path(request["cache"])), op).subjects()


def load_asked_subjects(request: Request) -> tuple[list[Any], list[NotRun]]:
    """Those of the request's operation, if it names one, that it does not skip."""
    subjects, not_run = load_subjects(request)
    operation = request.get("operation", "")
    if operation:
        from specsim.ops.registry import OPS

        if operation not in OPS:
            raise UsageError(f"--only ops:{operation}: there is no such operation", f"there are {', '.join(OPS)}")
        subjects = [s for s in subjects if s.op == operation]
        not_run = [entry for entry in not_run if entry.what.split()[0] == operation]
    return [s for s in subjects if s.name not in request["skip"]], not_run


def check(request: Request, messages: Messages) -> None:
    """Judge every subject that the request does not skip; kernels come before the callers that need them."""
    device = choose_device(request["device"])
    from specsim.diff.finding import write_counterexample
    from specsim.diff.suite import judge
    from specsim.ops.registry import OPS

    todo, not_run = load_asked_subjects(request)
    failed: set[str] = set(request["failed"])
    end = time.monotonic() + request["seconds"]
    for position, subject in enumerate(todo):
        messages.send("start", subject=subject.name)
        now = time.monotonic()
        reason = ""
        if subject.needs in failed:
            reason = f"it calls {subject.op}, which is itself wrong"
        elif subject.on_cpu and device == "cuda":
            reason = ON_CPU
        elif now >= end or interrupts.asked():
            reason = interrupts.why_not_run()
        if reason:
            send_done(messages, subject, 0, None, listed(subject, reason))
            continue
        result = judge(
            OPS[subject.op],
            subject,
            seed=request["seed"],
            cases=request["cases"],
            device=device,
            deadline=now + (end - now) / (len(todo) - position),
            on_case=lambda index: messages.send("case", index=index),
            stopped=interrupts.asked,
            shrinks=_shrinks(request, subject),
        )
        finding = None
        if result.counterexample:
            failed.add(subject.name)
            finding = asdict(
                write_counterexample(
                    OPS[subject.op],
                    subject,
                    result.counterexample,
                    target=request["target"],
                    seed=request["seed"],
                    device=device,
                    out=Path(request["out"]),
                )
            )
        unjudged = [] if result.cases else listed(subject, "no generated case was one that it accepts")
        send_done(messages, subject, result.cases, finding, unjudged)
    messages.send("end", not_run=[asdict(entry) for entry in not_run])


def _shrinks(request: Request, subject: Any) -> Callable[[], bool]:
    """Whether to go on making smaller what is wrong with a subject."""
    known = f"ops:{subject.op}:{subject.name}" in request["known"]
    return lambda: request["shrinks"] and not known and not interrupts.asked()


def send_done(
    messages: Messages,
    subject: Any,
    cases: int,
    finding: dict[str, Any] | None,
    not_run: list[dict[str, str]],
    **packing: float,
) -> None:
    messages.send(
        "done",
        op=subject.op,
        subject=subject.name,
        where=subject.where,
        cases=cases,
        finding=finding,
        not_run=not_run,
        **packing,
    )


def listed(subject: Any, why: str) -> list[dict[str, str]]:
    return [asdict(NotRun(f"{subject.op}, {subject.name}", why))]


def failure(request: Request, messages: Messages) -> None:
    """Make the finding of a case that took a worker with it. Runs none of the target's operations."""
    device = choose_device(request["device"])
    from specsim.diff.finding import write_process_failure
    from specsim.diff.rules import BY_ID
    from specsim.diff.suite import chooser_of
    from specsim.ops.registry import OPS

    subjects, _not_run = load_subjects(request)
    (subject,) = [s for s in subjects if s.name == request["subject"]]
    op = OPS[subject.op]
    finding = write_process_failure(
        op,
        subject,
        op.generate(chooser_of(request["seed"], subject, max(0, request["index"]))),
        BY_ID[request["rule"]],
        request["text"],
        target=request["target"],
        seed=request["seed"],
        device=device,
        out=Path(request["out"]),
    )
    send_done(messages, subject, max(1, request["index"]), asdict(finding), [])


def replay(request: Request, messages: Messages) -> None:
    """Run the case of a replay file once more, on the subject it was found on. With `record`, the answer has the
    outputs too.
    """
    device = choose_device(request["device"])
    from specsim import replay_file
    from specsim.diff.finding import case_of, tensor_to_json
    from specsim.diff.rules import KEEPS_RELATIONS
    from specsim.diff.run import compared, run_case
    from specsim.ops.registry import OPS

    path = Path(request["replay"])
    replay = replay_file.load(path)
    assert isinstance(replay, replay_file.OpReplay)
    if replay.op not in OPS:
        raise UsageError(
            f"{path} is about the operation {replay.op!r}, which this specsim does not have",
            f"it has {', '.join(sorted(OPS))}",
        )
    op = OPS[replay.op]
    case = case_of(op, replay, path)
    subjects, not_run = load_subjects(request, replay.op)
    subject = _same_subject(subjects, not_run, replay.op, replay.subject)
    if subject is None:
        reasons = "; ".join(f"{entry.what}: {entry.why}" for entry in not_run if entry.what.startswith(replay.op))
        raise UsageError(
            f"{path} was made for {replay.target}: {request['target']} has no {replay.subject} "
            f"({reasons or 'not provided'})",
            f"replay it with --target {replay.target}",
        )
    if not subject.accepts(case.sizes):
        messages.send("replayed", subject=subject.name, where=subject.where, judged=False)
        return
    messages.send("start", subject=subject.name)
    messages.send("case", index=0)
    outcome = run_case(op, subject, case, device, related=replay.rule == KEEPS_RELATIONS.id)
    expected = op.expected(case)
    outputs = compared(op, subject, case, device) if request.get("record") and outcome.judged else {}
    messages.send(
        "replayed",
        subject=subject.name,
        where=subject.where,
        judged=outcome.judged,
        same_source=subject.source_hash == replay.source_hash,
        digest=outcome.digest,
        code=[{"name": s.name, "where": s.where, "source_hash": s.source_hash} for s in subjects if s.op == replay.op],
        violations=[
            {
                "rule": v.rule.id,
                "sentence": v.rule.sentence,
                "severity": str(v.rule.severity),
                "title": v.title,
                "expected": v.expected,
                "actual": v.actual,
            }
            for v in outcome.violations
        ],
        explanation=subject.explain() if outcome.violations else "",
        inputs={name: tensor_to_json(tensor) for name, tensor in case.tensors.items()},
        expected={name: tensor_to_json(tensor) for name, tensor in expected.items()},
        outputs={
            name: {
                "actual": tensor_to_json(output.actual),
                "defined": output.defined.flatten().tolist(),
                "differs": output.differs.flatten().tolist(),
            }
            for name, output in outputs.items()
        },
    )


def shrink(request: Request, messages: Messages) -> None:
    """Make the case of a replay file smaller, with more attempts than `check` takes."""
    device = choose_device(request["device"])
    from specsim import replay_file
    from specsim.diff.bulk import with_bulk_cases
    from specsim.diff.finding import write_counterexample
    from specsim.diff.rules import BY_ID, KEEPS_RELATIONS
    from specsim.diff.run import run_case
    from specsim.diff.suite import Failure
    from specsim.diff.suite import shrink as shrink_case
    from specsim.explore.chooser import replayed
    from specsim.ops.registry import OPS

    stored = replay_file.load(Path(request["replay"]))
    assert isinstance(stored, replay_file.OpReplay)
    subjects, not_run = load_subjects(request, stored.op)
    subject = _same_subject(subjects, not_run, stored.op, stored.subject)
    problem = f"{request['replay']} does not show {stored.signature} on {request['target']}"
    if stored.op not in OPS or subject is None or not stored.tape:
        raise UsageError(problem, "shrink it on the target that it was found on")
    op, rule = OPS[stored.op], BY_ID[stored.rule]
    op = with_bulk_cases(op) if stored.generator == "bulk" else op
    messages.send("case", index=0)
    case = op.generate(replayed(stored.tape))
    related = rule is KEEPS_RELATIONS
    if not subject.accepts(case.sizes) or run_case(op, subject, case, device, related=related).of(rule) is None:
        raise UsageError(problem, "replay it to see what it shows")
    chosen = Failure(0, tuple(stored.tape), rule, subject.reach(case.sizes))
    found = shrink_case(
        op,
        subject,
        chosen,
        device,
        lambda index: messages.send("case", index=index),
        request["attempts"],
        1,
        interrupts.until(request["shrink_seconds"]),
    )
    finding = write_counterexample(
        op,
        subject,
        found,
        target=request["target"],
        seed=stored.seed,
        device=device,
        out=Path(request["out"]),
        generator=stored.generator,
    )
    before, after = (sum(t.numel() for t in c.tensors.values()) for c in (case, found.case))
    messages.send(
        "done alone", replay=finding.replay, before=[len(stored.tape), before], after=[len(found.tape), after]
    )


def _same_subject(subjects: list[Any], not_run: list[NotRun], op: str, name: str) -> Any:
    """The subject of that name; on a target that does not have that caller, its implementation of the operation. A
    caller that is there and could not be lifted has no stand-in.
    """
    exact = [s for s in subjects if s.op == op and s.name == name]
    if exact:
        return exact[0]
    has_callers = any(s.role == "caller" for s in subjects)
    has_callers = has_callers or any(entry.what == f"{op} in {name.removeprefix('caller:')}" for entry in not_run)
    return None if has_callers else next((s for s in subjects if s.op == op), None)
