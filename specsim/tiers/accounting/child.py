"""The accounting tier in the child. Messages:

{"event": "schedule", "index": I, ...}        schedule I comes next, -1 while shrinking; with what was counted so far
{"event": "schedule", "index": 0, "features"} the target was made, and draws these
{"event": "schedule", "index": 0, "known"}    the schedule of this replay file comes next
{"event": "found", "finding", "replay"}       a finding as it was hit; once more when it was shrunk
{"event": "end", "schedules", "events", "seam": [...], "not_run": [...], "nondeterministic"}
{"event": "replayed", ...}                    the answer to a replay request
{"event": "done alone", "found"}              the answer to a failure or a shrink request
{"event": "error", "problem", "remedy"}       bad input; the process exits
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim import interrupts, replay_file
from specsim.errors import UsageError
from specsim.replay_file import ScheduleReplay
from specsim.tiers.accounting.model_code import model_hash
from specsim.tiers.child import Messages, Request
from specsim.tiers.transfer import sent
from specsim.verdict import Finding, NotRun

if TYPE_CHECKING:
    from specsim.choices.search_strategies import Strategy
    from specsim.tiers.accounting.schedules import KnownSchedule, SimulationResult

EVENTS_SHOWN = 8


def load_target(request: Request, on_rehearsal: Callable[[], None] = lambda: None) -> Any:
    """The accounting of the request's target, the mutant applied first. `on_rehearsal` is called before each schedule
    of its rehearsal, the first of the target's code that runs: what comes before is specsim's own.
    """
    if request["mutant"]:
        from specsim.selfcheck.mutation import apply, find

        if request["target"] != "model":
            raise UsageError(
                f"--mutant {request['mutant']} with {request['target']}", "mutants are of the model: check model"
            )
        apply(find(request["mutant"]))
    from specsim.engines.load import load_accounting
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import Cache

    target = load_accounting(parse_target(request["target"]), Cache(Path(request["cache"])), on_rehearsal)
    if request["kernels"]:
        from specsim.engine.accounting_target import ModelTarget
        from specsim.tiers.accounting.kernel_move import mover

        if not isinstance(target, ModelTarget):
            raise UsageError(
                f"--kernels {request['kernels']} with {request['target']}", "the model uses them: check model"
            )
        target.move = mover(request["kernels"], Path(request["cache"]))
    return target


def check(request: Request, messages: Messages) -> None:
    """Simulate the target's accounting."""
    end = time.monotonic() + request["seconds"]
    target = load_target(request, lambda: messages.send("schedule", index=0))
    if isinstance(target, NotRun):
        messages.send("end", schedules=0, events=0, seam=[], not_run=[asdict(target)], nondeterministic="")
        return
    from specsim.engine.features import FEATURES
    from specsim.tiers.accounting.schedules import SimulationResult, simulate, strategy_of

    messages.send("schedule", index=0, features=sorted(target.features))
    known = set(request["known"])
    result = SimulationResult()
    simulate(
        target,
        seed=request["seed"],
        schedules=request["schedules"],
        deadline=end,
        on_schedule=lambda index: messages.send("schedule", index=index, **_counts(result)),
        strategy=strategy_of(request["strategy"], request["seed"]),
        result=result,
        stopped=interrupts.asked,
        shrinks=lambda signature: request["shrinks"] and signature not in known and not interrupts.asked(),
        attempts=request["attempts"],
        known=_known_schedules(request),
        on_known=lambda name: messages.send("schedule", index=0, known=name),
        on_found=lambda found: messages.send("found", **sent(*finding_of(target, found, request))),
    )
    not_run = [NotRun(part.name, part.why) for part in target.parts if part.kind == "not run"]
    not_run += [NotRun(f"{count} schedules", why) for why, count in sorted(result.refused.items())]
    lacking = sorted(FEATURES - target.features)
    if lacking:
        not_run.append(NotRun(f"schedules with {', '.join(lacking)}", "the adapter of this target does not run them"))
    if result.cut_short:
        not_run.append(NotRun("the other schedules", interrupts.why_not_run()))
    messages.send(
        "end",
        schedules=result.schedules,
        events=result.events,
        seam=[asdict(part) for part in target.parts],
        not_run=[asdict(entry) for entry in not_run],
        nondeterministic=result.nondeterministic,
    )


def _known_schedules(request: Request) -> list[KnownSchedule]:
    """The schedules of the replay files in the request's folder that are of no mutant."""
    from specsim.tiers.accounting.schedules import KnownSchedule

    return [
        KnownSchedule(path.name, tuple(stored.tape), stored.signature)
        for path, stored in replay_file.load_all(request["fixtures"])
        if isinstance(stored, ScheduleReplay) and not stored.mutant and not stored.kernels
    ]


def _counts(result: SimulationResult) -> dict[str, int]:
    """What a live line shows."""
    from specsim.tiers.accounting.sweep import MARKS

    return {
        "schedules": result.schedules,
        "events": result.events,
        "findings": len(result.signatures),
        "marks": sum(mark in result.marks for mark in MARKS),
        "marks_of": len(MARKS),
    }


def failure(request: Request, messages: Messages) -> None:
    """Make the finding of a schedule that took a child with it. Runs none of it, but those before it where the strategy
    learns from them.
    """
    from specsim.choices.chooser import replayed
    from specsim.engine.features import FEATURES
    from specsim.engine.workload import draw_scenario

    features = FEATURES if request["features"] is None else frozenset(request["features"])
    if request["of_known"]:
        (tape,) = [known.tape for known in _known_schedules(request) if known.name == request["of_known"]]
        scenario = draw_scenario(replayed(tape), features)
    else:
        chooser = _strategy_before(request, messages).chooser(request["index"])
        scenario = draw_scenario(chooser, features)
        tape = chooser.tape
    messages.send("done alone", found=sent(*failure_of(tape, scenario, request)))


def failure_of(tape: Sequence[int], scenario: Any, request: Request) -> tuple[Finding, ScheduleReplay]:
    """The finding of schedule `index` of the request, whose process ended as its `text` says and which breaks `rule`,
    and what its replay file holds. `tape` are the choices of its scenario.
    """
    from specsim.rules.table import BY_ID

    rule = BY_ID[request["rule"]]
    signature = f"accounting:{rule.id}:process"
    title = f"a schedule {request['text']}"
    replay = ScheduleReplay(
        target=request["target"],
        tier="accounting",
        mutant=request["mutant"],
        part="process",
        where="",
        source_hash="",
        tape=list(tape),
        scenario=_plain(scenario),
        seed=request["seed"],
        rule=rule.id,
        signature=signature,
        title=title,
        model_hash=model_hash(),
        digest="",
        kernels=request["kernels"],
    )
    finding = Finding(
        rule=rule.id,
        sentence=rule.sentence,
        title=title,
        signature=signature,
        tier="accounting",
        severity=rule.severity,
        reach="unknown",
        where="",
        expected=rule.sentence,
        actual=request["text"],
        replay="",
        count=1,
        details=(f"schedule {request['index']} of seed {request['seed']}",),
    )
    return finding, replay


def _strategy_before(request: Request, messages: Messages) -> Strategy:
    """The strategy as it was before schedule `index`."""
    from specsim.tiers.accounting.schedules import run_schedule, strategy_of

    strategy = strategy_of(request["strategy"], request["seed"])
    if request["strategy"] == "swarm":  # which learns nothing
        return strategy
    target = _simulated(request, messages)
    for index in range(request["index"]):
        messages.send("schedule", index=index)
        schedule = run_schedule(target, strategy.chooser(index))
        if schedule is not None:
            schedule.teach(strategy)
    return strategy


def replay(request: Request, messages: Messages) -> None:
    """Run the schedule of a replay file once more. With `record`, note the engine's state at each event."""
    stored = _stored(request)
    if request.get("record"):
        from specsim.compiled.finder import uninstall

        uninstall()  # what is noted of trees is taken from within the device
    target = _simulated(request, messages)
    messages.send("schedule", index=0)  # what ends the process from here on is the schedule's
    from specsim.choices.chooser import replayed
    from specsim.engine.loop import Engine
    from specsim.rules.checked_engine import checked_engine
    from specsim.tiers.accounting.schedules import run_schedule

    engines: list[Any] = []

    def make(*arguments: Any) -> Engine:
        if not request.get("record"):
            return checked_engine(*arguments)
        from specsim.tiers.accounting.recording import recording_engine

        engine = recording_engine(*arguments)
        engine.on_events = lambda: messages.send("schedule", index=0)
        engines.append(engine)
        return engine

    schedule = run_schedule(target, replayed(stored.tape), stop_at=stored.signature, engine=make)
    if schedule is None:
        messages.send("replayed", judged=False)
        return
    part = _part(target, stored.part)
    messages.send(
        "replayed",
        judged=True,
        same_source=part.source_hash == stored.source_hash,
        same_model=model_hash() == stored.model_hash,
        digest=schedule.run.digest,
        scenario=_plain(schedule.scenario),
        events=[asdict(event) for event in schedule.run.log],
        seam=[asdict(part) for part in target.parts],
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
                "where": _part(target, v.part).where,
            }
            for v in schedule.run.violations
        ],
        **({"recording": engines[0].recording()} if engines else {}),
    )


def shrink(request: Request, messages: Messages) -> None:
    """Make the schedule of a replay file smaller, with more attempts than `check` takes."""
    stored = _stored(request)
    target = _simulated(request, messages)
    messages.send("schedule", index=0)
    from specsim.choices.chooser import replayed
    from specsim.tiers.accounting import schedules
    from specsim.tiers.accounting.decisive_pair import StoppedError, decisive_pair

    schedule = schedules.run_schedule(target, replayed(stored.tape), stop_at=stored.signature)
    if schedule is None or schedule.violation(stored.signature) is None:
        raise UsageError(
            f"{request['replay']} does not show {stored.signature} on {request['target']}",
            "replay it to see what it shows",
        )
    before = len(schedule.tape), len(schedule.run.log)
    goes_on = interrupts.until(request["shrink_seconds"])
    shrunk = schedules.shrink(
        target,
        schedule.tape,
        stored.signature,
        request["attempts"],
        lambda: messages.send("schedule", index=-1),
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
    messages.send(
        "done alone",
        found=sent(*finding_of(target, found, request)),
        before=list(before),
        after=[len(shrunk.tape), len(shrunk.run.log)],
    )


def _stored(request: Request) -> ScheduleReplay:
    stored = replay_file.load(Path(request["replay"]))
    assert isinstance(stored, ScheduleReplay)
    return stored


def _simulated(request: Request, messages: Messages) -> Any:
    target = load_target(request, lambda: messages.send("schedule", index=0))
    if isinstance(target, NotRun):
        raise UsageError(
            f"{request['target']} cannot be simulated: {target.why}", "replay it on the target it was made for"
        )
    return target


def _part(target: Any, name: str) -> Any:
    from specsim.engine.accounting_target import SeamPart

    return next((part for part in target.parts if part.name == name), SeamPart(name, "model"))


def finding_of(target: Any, found: Any, request: Request) -> tuple[Finding, ScheduleReplay]:
    """The finding of a ScheduleFinding, and what its replay file holds."""
    from specsim.rules.extension import ExtensionTarget
    from specsim.tiers.accounting.decisive_pair import line

    schedule, violation = found.schedule, found.violation
    order = tuple(line(event) for event in found.order or ())
    looked_for = found.looked and not isinstance(target, ExtensionTarget)
    part = _part(target, violation.part)
    title = title_of(violation)
    log = schedule.run.log
    config = {**asdict(schedule.scenario.config)}
    details = (
        f"smallest schedule: {_count(len(schedule.scenario.workload.turns), 'request')}, {_count(len(log), 'event')}, "
        + ", ".join(f"{name}={value}" for name, value in config.items()),
        f"the schedule of the known finding {found.known}"
        if found.known
        else f"first in schedule {found.first} of seed {request['seed']}",
        *(str(event) for event in log[-EVENTS_SHOWN:]),
    )
    replay = ScheduleReplay(
        target=request["target"],
        tier="accounting",
        mutant=request["mutant"],
        part=violation.part,
        where=part.where,
        source_hash=part.source_hash,
        tape=list(schedule.tape),
        scenario=_plain(schedule.scenario),
        seed=request["seed"],
        rule=violation.rule.id,
        signature=found.signature,
        title=title,
        model_hash=model_hash(),
        digest=schedule.run.digest,
        order=list(order),
        events=[str(event) for event in log],
        kernels=request["kernels"],
    )
    finding = Finding(
        rule=violation.rule.id,
        sentence=violation.rule.sentence,
        title=title,
        signature=found.signature,
        tier="accounting",
        severity=violation.rule.severity,
        reach=target.reach(schedule.scenario.config, violation.part),
        where=part.where,
        expected=violation.expected,
        actual=violation.actual,
        replay="",
        count=found.count,
        details=details,
        order=order if looked_for else None,
    )
    return finding, replay


def title_of(violation: Any) -> str:
    """The sentence of a Violation."""
    subject = f" of {violation.who}" if violation.who else ""
    return f"{violation.part}{subject}: {violation.actual}; right is {violation.expected}"


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
