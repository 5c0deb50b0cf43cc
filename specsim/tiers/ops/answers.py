"""The ops tier in the child, which is the trusted side of `specsim.tiers.ops.target_process`: what it answers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim import interrupts
from specsim.errors import UsageError, no_such
from specsim.tiers.messages import Alive, At, CheckWork, Done, End, Replay, Replayed, Request, Search, Shrink
from specsim.tiers.transfer import found as found_message
from specsim.tiers.transfer import shrunk as shrunk_message
from specsim.verdict import CheckedSubject, NotRun

if TYPE_CHECKING:
    from specsim.contracts.contract import Case
    from specsim.isolation.messages import Messages
    from specsim.replay_file import OpReplay
    from specsim.tiers.ops.run import EndedError, Outcome
    from specsim.tiers.ops.target_process import TargetProcess

ALIVE_SECONDS = 1.0
LEAST_SECONDS = 1.0  # of checking, also where loading took the whole budget
ON_CPU = "host code, which runs on a CPU between stubs: leave out --device cuda"


def choose_device(wanted: str) -> str:
    """The device, "cpu" or "cuda". Sets Triton to its interpreter on a CPU; must run before triton is imported."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a look that keeps the device usable in forks
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "--device cuda: torch sees no CUDA device here", "use --device cpu, or install a CUDA build of torch"
        )
    device = "cpu" if wanted == "cpu" or not torch.cuda.is_available() else "cuda"
    torch.set_num_threads(1)  # a fork of a process that computed with several threads waits for them for ever
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    return device


def load_subjects(request: Request, op: str = "") -> tuple[list[Any], list[NotRun]]:
    """The subjects of the target, and what of it is not run; of the operation `op` at least, where it is given."""
    from specsim.engines.load import load_provider
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import Cache

    return load_provider(parse_target(request.target), Cache(Path(request.cache)), op).subjects()


def asked(subjects: list[Any], not_run: list[NotRun], request: Request) -> tuple[list[Any], list[NotRun]]:
    """Those of the request's operation, if it names one."""
    operation = request.operation
    if operation:
        from specsim.contracts.registry import OPS

        if operation not in OPS:
            raise no_such("operation", operation, OPS)
        subjects = [s for s in subjects if s.op == operation]
        not_run = [entry for entry in not_run if entry.what.split()[0] == operation]
    return subjects, not_run


def opened(request: Request, messages: Messages, device: str, op: str = "") -> TargetProcess:
    """The process of the request's target, to be used as a context manager. It says that it lives as calls are made."""
    from specsim.tiers.ops.target_process import TargetProcess

    last = 0.0

    def alive() -> None:
        nonlocal last
        if time.monotonic() > last + ALIVE_SECONDS:
            last = time.monotonic()
            messages.send(Alive())

    return TargetProcess(
        request.target,
        Path(request.cache),
        device=device,
        op=op,
        hang_seconds=request.hang_seconds,
        on_call=alive,
    )


def check(request: Request, work: CheckWork, messages: Messages) -> None:
    """Check every subject; kernels come before the callers that need them."""
    end = time.monotonic() + request.seconds
    device = choose_device(request.device)
    from specsim.contracts.registry import OPS
    from specsim.tiers.ops.finding import Origin, finding_of, signature_of
    from specsim.tiers.ops.suite import SHRINK_ATTEMPTS_MAX, SuiteLimits, check_all

    cases: dict[str, int] = {}

    def on_case(subject: Any, index: int) -> None:
        cases[subject.name] = max(cases.get(subject.name, 0), index)
        messages.send(At(subject=subject.name, index=index, count=sum(cases.values())))

    with opened(request, messages, device) as process:
        todo, not_run = asked(process.subjects, process.not_run, request)
        on_host = [s for s in todo if s.on_cpu and device == "cuda"]
        limits = SuiteLimits(
            cases=request.count,
            attempts=SHRINK_ATTEMPTS_MAX if request.attempts is None else request.attempts,
            # However long it took to load the target, something of it is checked.
            deadline=max(end, time.monotonic() + min(LEAST_SECONDS, request.seconds)),
            stopped=interrupts.asked,
            shrinks=lambda subject: request.is_shrunk(signature_of(subject)),
        )
        for subject in on_host:
            send_done(messages, subject, 0, ON_CPU)
        for subject, result in check_all(
            OPS,
            [s for s in todo if s not in on_host],
            seed=request.seed,
            limits=limits,
            launcher=process,
            on_case=on_case,
            known=known_cases(request.fixtures),
            first=request.first,
        ):
            found = result.counterexample
            if found:
                origin = Origin(request.target, request.seed, device, found.known.generator if found.known else "")
                messages.send(found_message(*finding_of(OPS[subject.op], subject, found, origin)))
            reason = "" if found else result.why_not
            if not result.cases and not found and not reason:
                spent = result.cut_short or interrupts.asked()
                reason = interrupts.why_not_run() if spent else "no generated case was one that it accepts"
            send_done(messages, subject, result.cases, reason)
    messages.send(End(not_run=not_run))


def known_cases(folder: str) -> Callable[[Any, Any], list[Any]]:
    """The cases of the replay files in a folder, by operation and implementation; none for ""."""
    from specsim import replay_file
    from specsim.tiers.ops.finding import case_of
    from specsim.tiers.ops.suite import KnownCase

    stored: dict[tuple[str, str], list[tuple[Path, OpReplay]]] = {}
    for path, replay in replay_file.load_all(folder):
        if isinstance(replay, replay_file.OpReplay):
            stored.setdefault((replay.op, replay.subject), []).append((path, replay))

    def of(op: Any, subject: Any) -> list[Any]:
        found = []
        for path, replay in stored.get((op.name, subject.name), ()):
            with contextlib.suppress(UsageError):  # of an older contract of the operation
                case = case_of(op, replay, path)
                found.append(KnownCase(path.name, case, tuple(replay.tape), replay.rule, replay.generator))
        return found

    return of


def send_done(messages: Messages, subject: Any, cases: int, why_not: str = "", /, **packing: Any) -> None:
    not_run = [NotRun(f"{subject.op}, {subject.name}", why_not)] if why_not else []
    checked = CheckedSubject(subject.op, subject.name, subject.where, cases, **packing)
    messages.send(Done(subject=subject.name, judged=checked, not_run=not_run))


def replay(request: Request, work: Replay, messages: Messages) -> None:
    """Run the case of a replay file once more, on the subject it was found on. With `record`, the answer has the
    outputs too.
    """
    device = choose_device(request.device)
    from specsim import replay_file
    from specsim.choices.chooser import replayed
    from specsim.contracts.registry import OPS
    from specsim.tiers.ops.bulk import with_bulk_cases
    from specsim.tiers.ops.finding import case_of, is_case_of
    from specsim.tiers.ops.run import EndedError

    path = Path(work.file)
    replay = replay_file.load(path)
    assert isinstance(replay, replay_file.OpReplay)
    if replay.op not in OPS:
        raise UsageError(
            f"{path} is about the operation {replay.op!r}, which this specsim does not have",
            f"it has {', '.join(sorted(OPS))}",
        )
    op = OPS[replay.op]
    case = case_of(op, replay, path)
    with opened(request, messages, device, replay.op) as process:
        subject = _required_subject(process, replay.op, replay.subject, path, replay.target, request.target)
        if not subject.accepts(case.sizes):
            messages.send(Replayed(answer={"subject": subject.name, "where": subject.where, "judged": False}))
            return
        messages.send(At(subject=subject.name))
        answer: dict[str, Any] = {"subject": subject.name, "where": subject.where}
        answer["same_source"] = subject.source_hash == replay.source_hash
        generated = (with_bulk_cases(op) if replay.generator == "bulk" else op).generate(replayed(replay.tape))
        answer["same_case"] = is_case_of(replay, generated)
        answer["code"] = [
            {"name": s.name, "where": s.where, "source_hash": s.source_hash}
            for s in process.subjects
            if s.op == replay.op
        ]
        try:
            answer |= _shown(op, subject, case, replay, process, record=work.record)
        except EndedError as ended:
            answer |= _ended(ended)
        messages.send(Replayed(answer=answer))


def _shown(
    op: Any, subject: Any, case: Any, replay: OpReplay, process: TargetProcess, *, record: bool
) -> dict[str, Any]:
    """What a case shows."""
    from specsim.tiers.ops.finding import tensor_to_json
    from specsim.tiers.ops.rules import KEEPS_RELATIONS
    from specsim.tiers.ops.run import compared, run_case

    outcome = run_case(op, subject, case, related=replay.rule == KEEPS_RELATIONS.id, launcher=process)
    expected = op.expected(case)
    record = record and outcome.checked and subject.far is None
    outputs = compared(op, subject, case, launcher=process) if record else {}
    return {
        "judged": outcome.checked,
        "digest": outcome.digest,
        "violations": [
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
        "explanation": subject.explain() if outcome.violations else "",
        "inputs": {name: tensor_to_json(tensor) for name, tensor in case.tensors.items()},
        "expected": {name: tensor_to_json(tensor) for name, tensor in expected.items()},
        "outputs": {
            name: {
                "actual": tensor_to_json(output.actual),
                "defined": output.defined.flatten().tolist(),
                "differs": output.differs.flatten().tolist(),
            }
            for name, output in outputs.items()
        },
    }


def _ended(ended: EndedError) -> dict[str, Any]:
    """What a case shows that ended its process."""
    from specsim.tiers.ops.rules import ENDS, SURVIVES

    rule = ENDS if ended.hung else SURVIVES
    violation = {
        "rule": rule.id,
        "sentence": rule.sentence,
        "severity": str(rule.severity),
        "title": ended.text,
        "expected": rule.sentence,
        "actual": ended.text,
    }
    nothing: dict[str, Any] = {"digest": "", "explanation": "", "inputs": {}, "expected": {}, "outputs": {}}
    return {**nothing, "judged": True, "violations": [violation]}


def shrink(request: Request, work: Shrink, messages: Messages) -> None:
    """Make the case of a replay file smaller, with more attempts than `check` takes."""
    device = choose_device(request.device)
    from specsim import replay_file
    from specsim.choices.chooser import replayed
    from specsim.contracts.registry import OPS
    from specsim.tiers.ops.bulk import with_bulk_cases
    from specsim.tiers.ops.finding import Origin, case_of, finding_of, is_case_of
    from specsim.tiers.ops.rules import BY_ID, KEEPS_RELATIONS
    from specsim.tiers.ops.run import EndedError, run_case
    from specsim.tiers.ops.suite import Failure, KnownCase
    from specsim.tiers.ops.suite import shrink as shrink_case

    stored = replay_file.load(Path(work.file))
    assert isinstance(stored, replay_file.OpReplay)
    problem = f"{work.file} does not show {stored.signature} on {request.target}"
    if stored.op not in OPS:
        raise UsageError(problem, "shrink it on the target that it was found on")
    with opened(request, messages, device, stored.op) as process:
        subject = _same_subject(process.subjects, process.not_run, stored.op, stored.subject)
        if subject is None:
            raise UsageError(problem, "shrink it on the target that it was found on")
        op, rule = OPS[stored.op], BY_ID[stored.rule]
        op = with_bulk_cases(op) if stored.generator == "bulk" else op
        related = rule is KEEPS_RELATIONS

        def shown(case: Case) -> Outcome | None:
            if not subject.accepts(case.sizes):
                return None
            outcome = run_case(op, subject, case, related=related, launcher=process)
            return outcome if outcome.of(rule) else None

        case, known = op.generate(replayed(stored.tape)), None
        try:
            outcome = shown(case)
            if not outcome and not is_case_of(stored, case):  # the tape of an older generator: its case stays
                case = case_of(op, stored, Path(work.file))
                known = KnownCase(Path(work.file).name, case, tuple(stored.tape), stored.rule)
                outcome = shown(case)
            if not outcome:
                raise UsageError(problem, "replay it to see what it shows, and find it again with `specsim check`")
            chosen = Failure(0, tuple(stored.tape), rule, subject.reach(case.sizes), outcome, known)
            found = shrink_case(
                op,
                subject,
                chosen,
                lambda index: messages.send(At(subject=subject.name, index=index)),
                0 if known else work.attempts,
                1,
                interrupts.until(work.seconds),
                process,
            )
        except EndedError as ended:
            raise UsageError(
                f"{work.file}: its case {ended.text}, and is as small as it will be", "replay it"
            ) from None
    before, after = (sum(t.numel() for t in c.tensors.values()) for c in (case, found.case))
    messages.send(
        shrunk_message(
            *finding_of(op, subject, found, Origin(request.target, stored.seed, device, stored.generator)),
            before=(len(stored.tape), before),
            after=(len(found.tape), after),
            same_source=subject.source_hash == stored.source_hash,
            same_case=is_case_of(stored, case),
        )
    )


def search(request: Request, work: Search, messages: Messages) -> None:
    """Run each implementation of an operation, or those that are named, on the cases of a seed until one is wrong.

    The answer: {"subjects": [{"name", "where", "source_hash", "cases", "rule", "title"}], "not_run": [...]}
    """
    device = choose_device(request.device)
    from specsim.contracts.registry import OPS
    from specsim.tiers.ops.finding import Origin, finding_of
    from specsim.tiers.ops.run import EndedError, run_case
    from specsim.tiers.ops.suite import SuiteLimits, check_subject, chooser_of

    op = OPS[work.what]
    answers = []
    with opened(request, messages, device, op.name) as process:
        for subject in [
            s for s in process.subjects if s.op == op.name and (not work.subjects or s.name in work.subjects)
        ]:
            on_case = partial(_send_at, messages, subject.name)
            cases, broken = 0, None
            for index in range(request.count):
                on_case(index)
                case = op.generate(chooser_of(request.seed, subject, index))
                try:
                    outcome = run_case(op, subject, case, launcher=process) if subject.accepts(case.sizes) else None
                except EndedError as ended:
                    raise UsageError(f"a call {ended.text}", "give a larger --hang-seconds") from None
                if outcome is None or not outcome.checked:
                    continue
                cases += 1
                if outcome.violations:
                    broken = outcome.violations[0]
                    break
            if broken is not None and subject.name == work.write:
                limits = SuiteLimits(request.count)
                result = check_subject(op, subject, seed=request.seed, limits=limits, launcher=process, on_case=on_case)
                assert result.counterexample is not None
                origin = Origin(request.target, request.seed, device)
                messages.send(shrunk_message(*finding_of(op, subject, result.counterexample, origin)))
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
        not_run = [asdict(entry) for entry in process.not_run if entry.what.split(" in ")[0] == op.name]
    messages.send(Replayed(answer={"subjects": answers, "not_run": not_run}))


def _send_at(messages: Messages, subject: str, index: int) -> None:
    messages.send(At(subject=subject, index=index))


def _required_subject(process: TargetProcess, op: str, name: str, path: Path, made_for: str, target: str) -> Any:
    subject = _same_subject(process.subjects, process.not_run, op, name)
    if subject is not None:
        return subject
    reasons = "; ".join(f"{entry.what}: {entry.why}" for entry in process.not_run if entry.what.startswith(op))
    raise UsageError(
        f"{path} was made for {made_for}: {target} has no {name} ({reasons or 'not provided'})",
        f"replay it with --target {made_for}",
    )


def _same_subject(subjects: list[Any], not_run: list[NotRun], op: str, name: str) -> Any:
    """The subject of that name; on a target that does not have that caller, its implementation of the operation. A
    caller that is there and could not be lifted has no substitute.
    """
    exact = [s for s in subjects if s.op == op and s.name == name]
    if exact:
        return exact[0]
    has_callers = any(s.role == "caller" for s in subjects)
    has_callers = has_callers or any(entry.what == f"{op} in {name.removeprefix('caller:')}" for entry in not_run)
    return None if has_callers else next((s for s in subjects if s.op == op), None)
