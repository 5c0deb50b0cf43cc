"""The accounting tier in the child: what it answers to a request."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim import interrupts, replay_file
from specsim.engine.rules.failures import SCHEDULE_CRASH, SCHEDULE_TIMEOUT
from specsim.errors import UsageError
from specsim.replay_file import ScheduleReplay
from specsim.tiers.accounting.model_code import model_hash
from specsim.tiers.messages import At, CheckWork, Differs, End, FailureWork, Replay, Replayed, Request, Shrink
from specsim.tiers.transfer import broken
from specsim.tiers.transfer import found as found_message
from specsim.tiers.transfer import shrunk as shrunk_message
from specsim.verdict import Finding, NotRun

if TYPE_CHECKING:
    from specsim.isolation.messages import Messages
    from specsim.tiers.accounting.schedules import KnownSchedule, SimulationResult

EVENTS_SHOWN = 8
SUBJECT = "schedules"


def load_target(text: str, mutant: str = "") -> Any:
    """The accounting of a target, the mutant applied first."""
    if mutant:
        from specsim.selfcheck.mutation import apply, find

        if text != "model":
            raise UsageError(f"--mutant {mutant} with {text}", "mutants are of the model: check model")
        apply(find(mutant))
    from specsim.engines.load import load_accounting
    from specsim.engines.target import parse_target

    return load_accounting(parse_target(text))


def check(request: Request, work: CheckWork, messages: Messages) -> None:
    """Simulate the target's accounting."""
    end = time.monotonic() + request.seconds
    target = load_target(request.target, request.mutant)
    if isinstance(target, NotRun):
        messages.send(End(not_run=[target]))
        return
    from specsim.tiers.accounting.schedules import SimulationResult, simulate

    messages.send(At(subject=SUBJECT))
    result, origin = SimulationResult(), origin_of(request)
    last = 0

    def on_schedule(index: int) -> None:
        nonlocal last
        last = max(last, index)
        messages.send(At(subject=SUBJECT, index=index, count=last, counts=_counts(result)))

    simulate(
        target,
        seed=request.seed,
        schedules=request.count,
        deadline=end,
        on_schedule=on_schedule,
        result=result,
        stopped=interrupts.asked,
        shrinks=lambda signature: request.is_shrunk(signature) and not interrupts.asked(),
        attempts=request.attempts,
        known=_known_schedules(request),
        on_known=lambda name: messages.send(At(subject=SUBJECT, known=name)),
        on_found=lambda found: messages.send(found_message(*finding_of(target, found, origin))),
    )
    not_run = [NotRun(f"{count} schedules", why) for why, count in sorted(result.refused.items())]
    if result.cut_short:
        not_run.append(NotRun("the other schedules", interrupts.why_not_run()))
    messages.send(
        End(
            schedules=result.schedules,
            events=result.events,
            not_run=not_run,
            nondeterministic=[Differs(what, text) for what, text in result.nondeterministic.items()],
        )
    )


def _known_schedules(request: Request) -> list[KnownSchedule]:
    """The schedules of the replay files in the request's folder that are of no mutant."""
    from specsim.tiers.accounting.schedules import KnownSchedule

    return [
        KnownSchedule(path.name, tuple(stored.tape), stored.signature)
        for path, stored in replay_file.load_all(request.fixtures)
        if isinstance(stored, ScheduleReplay) and not stored.mutant
    ]


def _counts(result: SimulationResult) -> dict[str, int]:
    """What a live line shows."""
    return {
        "schedules": result.schedules,
        "events": result.events,
        "findings": len(result.signatures),
    }


def failure(request: Request, work: FailureWork, messages: Messages) -> None:
    """Make the finding of a schedule that took a child with it. Runs none of it."""
    from specsim.choices.chooser import replayed
    from specsim.engine.workload import draw_scenario
    from specsim.tiers.accounting.schedules import chooser_of

    if work.known:
        (tape,) = [known.tape for known in _known_schedules(request) if known.name == work.known]
        scenario = draw_scenario(replayed(tape))
    else:
        chooser = chooser_of(request.seed, work.index)
        scenario = draw_scenario(chooser)
        tape = chooser.tape
    rule = (SCHEDULE_TIMEOUT if work.hung else SCHEDULE_CRASH).id
    messages.send(found_message(*failure_of(tape, scenario, origin_of(request), work.index, rule, work.text)))


@dataclass(frozen=True, slots=True)
class ScheduleOrigin:
    """What a finding says of where it comes from: the target with its mutant, and the seed."""

    target: str
    seed: int
    mutant: str = ""


def origin_of(request: Request) -> ScheduleOrigin:
    return ScheduleOrigin(request.target, request.seed, request.mutant)


def failure_of(
    tape: Sequence[int], scenario: Any, origin: ScheduleOrigin, index: int, rule_id: str, text: str
) -> tuple[Finding, ScheduleReplay]:
    """The finding of schedule `index`, whose process ended as `text` says, and what its replay file holds. `tape` are
    the choices of its scenario.
    """
    from specsim.engine.rules.table import BY_ID

    rule = BY_ID[rule_id]
    finding = broken(
        rule,
        title=f"a schedule {text}",
        signature=f"accounting:{rule.id}:process",
        tier="accounting",
        reach="unknown",
        where="",
        expected=rule.sentence,
        actual=text,
        count=1,
        details=(f"schedule {index} of seed {origin.seed}",),
    )
    return finding, _replay_of(finding, origin, "process", tape, scenario)


def replay(request: Request, work: Replay, messages: Messages) -> None:
    """Run the schedule of a replay file once more. With `record`, note the engine's state at each event."""
    stored = _stored(work.file)
    if work.record:
        from specsim.compiled.finder import uninstall

        uninstall()  # what is noted of trees is taken from within the device
    target = _simulated(request)
    messages.send(At(subject=SUBJECT))  # what ends the process from here on is the schedule's
    from specsim.choices.chooser import replayed
    from specsim.engine.loop import Engine
    from specsim.engine.rules.checked_engine import checked_engine
    from specsim.lifting.ran import functions_of, noting
    from specsim.tiers.accounting.schedules import run_schedule

    engines: list[Any] = []

    def make(*arguments: Any) -> Engine:
        if not work.record:
            return checked_engine(*arguments)
        from specsim.tiers.accounting.recording import recording_engine

        engine = recording_engine(*arguments)
        engine.on_events = lambda: messages.send(At(subject=SUBJECT))
        engines.append(engine)
        return engine

    codes: dict[int, Any] = {}
    with noting(codes) if work.traces else nullcontext():
        schedule = run_schedule(target, replayed(stored.tape), stop_at=stored.signature, engine=make)
    if schedule is None:
        messages.send(Replayed(answer={"judged": False}))
        return
    answer = dict(
        judged=True,
        same_source=not stored.source_hash,
        same_model=model_hash() == stored.model_hash,
        digest=schedule.run.digest,
        scenario=_plain(schedule.scenario),
        events=[asdict(event) for event in schedule.run.log],
        violations=[
            {
                "rule": v.rule.id,
                "sentence": v.rule.sentence,
                "signature": v.signature,
                "part": v.part,
                "who": v.who,
                "expected": v.expected,
                "actual": v.actual,
                "event": v.event,
                "where": "",
            }
            for v in schedule.run.violations
        ],
        **({"ran": [list(function) for function in functions_of(codes.values(), _relative)]} if work.traces else {}),
        **({"recording": engines[0].recording()} if engines else {}),
    )
    messages.send(Replayed(answer=answer))


def _relative(file: str) -> str:
    """The name of a file below the current folder; specsim's own are absolute, or in brackets."""
    return "" if file.startswith(("/", "<")) else file


def shrink(request: Request, work: Shrink, messages: Messages) -> None:
    """Shrink the schedule of a replay file, with more attempts than `check` takes."""
    stored = _stored(work.file)
    target = _simulated(request)
    messages.send(At(subject=SUBJECT))
    from specsim.choices.chooser import replayed
    from specsim.tiers.accounting import schedules
    from specsim.tiers.accounting.decisive_pair import StoppedError, decisive_pair

    schedule = schedules.run_schedule(target, replayed(stored.tape), stop_at=stored.signature)
    if schedule is None or schedule.violation(stored.signature) is None:
        raise UsageError(
            f"{work.file} does not show {stored.signature} on {request.target}",
            "replay it to see what it shows",
        )
    before = len(schedule.tape), len(schedule.run.log)
    goes_on = interrupts.until(work.seconds)
    shrunk = schedules.shrink(
        target,
        schedule.tape,
        stored.signature,
        work.attempts,
        lambda: messages.send(At(subject=SUBJECT, index=-1)),
        goes_on,
    )
    violation = shrunk.violation(stored.signature)
    assert violation is not None
    order, looked = None, True
    if stored.order:  # what it was found to do in every order it still does
        try:
            larger = [schedule.tape]  # the file's own schedule
            order = decisive_pair(target, shrunk.tape, stored.signature, larger, goes_on)
        except StoppedError:
            looked = False
    found = schedules.ScheduleFinding(stored.signature, violation, shrunk, 1, 0, order, looked)
    after = len(shrunk.tape), len(shrunk.run.log)
    messages.send(shrunk_message(*finding_of(target, found, origin_of(request)), before=before, after=after))


def _stored(file: str) -> ScheduleReplay:
    stored = replay_file.load(Path(file))
    assert isinstance(stored, ScheduleReplay)
    return stored


def _simulated(request: Request) -> Any:
    target = load_target(request.target, request.mutant)
    if isinstance(target, NotRun):
        raise UsageError(
            f"{request.target} cannot be simulated: {target.why}", "replay it on the target it was made for"
        )
    return target


def finding_of(target: Any, found: Any, origin: ScheduleOrigin) -> tuple[Finding, ScheduleReplay]:
    """The finding of a ScheduleFinding, and what its replay file holds."""
    from specsim.tiers.accounting.decisive_pair import line
    from specsim.tiers.accounting.shown import request_lines, settings_line

    schedule, violation = found.schedule, found.violation
    order = tuple(line(event) for event in found.order or ())
    log = schedule.run.log
    scenario = _plain(schedule.scenario)
    details = (
        f"smallest schedule: {_count(len(schedule.scenario.workload.turns), 'request')}, {_count(len(log), 'event')}",
        f"settings: {settings_line(scenario['config'])}",
        *(f"{name}: {text}" for name, text in request_lines(scenario["workload"])),
        f"the schedule of the known finding {found.known}"
        if found.known
        else f"first in schedule {found.first} of seed {origin.seed}",
        *(str(event) for event in log[-EVENTS_SHOWN:]),
    )
    finding = broken(
        violation.rule,
        title=title_of(violation),
        signature=found.signature,
        tier="accounting",
        reach=target.reach(schedule.scenario.config, violation.part),
        where="",
        expected=violation.expected,
        actual=violation.actual,
        count=found.count,
        details=details,
        order=order if found.looked else None,
        fixture=found.known,
    )
    replay = _replay_of(finding, origin, violation.part, schedule.tape, schedule.scenario)
    events = [str(event) for event in log]
    return finding, dataclasses.replace(replay, digest=schedule.run.digest, order=list(order), events=events)


def _replay_of(
    finding: Finding, origin: ScheduleOrigin, part: str, tape: Sequence[int], scenario: Any
) -> ScheduleReplay:
    """The replay file of a finding, of a schedule that did not come to its end."""
    return ScheduleReplay(
        target=origin.target,
        tier=finding.tier,
        mutant=origin.mutant,
        part=part,
        where=finding.where,
        source_hash="",
        tape=list(tape),
        scenario=_plain(scenario),
        seed=origin.seed,
        rule=finding.rule,
        signature=finding.signature,
        title=finding.title,
        model_hash=model_hash(),
        digest="",
    )


def title_of(violation: Any) -> str:
    """The sentence of a Violation."""
    subject = f" of {violation.who}" if violation.who else ""
    return f"{violation.part}{subject}: expected {violation.expected}, got {violation.actual}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _plain(scenario: Any) -> dict[str, Any]:
    """A scenario as JSON takes it."""
    data: dict[str, Any] = asdict(scenario)
    for turn in data["workload"]["turns"]:
        turn["tokens"] = list(turn["tokens"])
        turn["stop"] = list(turn["stop"])
        turn["special_at"] = {str(at): token for at, token in turn["special_at"].items()}
    data["workload"]["turns"] = list(data["workload"]["turns"])
    return data
