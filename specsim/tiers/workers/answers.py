"""The workers tier in the child: what it answers to a request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim import interrupts, replay_file
from specsim.engine.rules.failures import SCHEDULE_CRASH, SCHEDULE_TIMEOUT
from specsim.errors import UsageError
from specsim.replay_file import WorkerReplay
from specsim.tiers.messages import At, Check, Done, End, Failure, Replay, Replayed, Request, Search, Shrink
from specsim.tiers.transfer import broken
from specsim.tiers.transfer import found as found_message
from specsim.tiers.transfer import shrunk as shrunk_message
from specsim.verdict import CheckedSubject, Finding, NotRun

if TYPE_CHECKING:
    from specsim.isolation.messages import Messages
    from specsim.tiers.workers.probing import KnownCase, ProbeResult


def _probes(request: Request) -> tuple[list[Any], list[NotRun]]:
    from specsim.engines.load import load_probes
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import Cache

    return load_probes(parse_target(request.target), Cache(Path(request.cache)))


SHRINK_SHARE = 0.25  # of the time, kept for shrinking as soon as something was hit


def check(request: Request, work: Check, messages: Messages) -> None:
    """Run every probe that the request does not skip, then shrink what was found."""
    end = time.monotonic() + request.seconds
    from specsim.tiers.workers.probing import SHRINK_ATTEMPTS_MAX, run_cases, shrink_cases

    probes, not_run = _probes(request)
    todo = [probe for probe in probes if probe.name not in work.skip]
    known = _known_cases(request)
    results: list[ProbeResult] = []
    for position, probe in enumerate(todo):
        messages.send(At(subject=probe.name))
        now = time.monotonic()
        if now >= end or interrupts.asked():
            break
        kept = request.seconds * SHRINK_SHARE if any(result.hits for result in results) else 0.0
        results.append(
            run_cases(
                probe,
                seed=request.seed,
                cases=request.count,
                deadline=now + (end - kept - now) / (len(todo) - position),
                on_case=partial(_send_at, messages, probe.name),
                stopped=interrupts.asked,
                known=known.get(probe.name, ()),
            )
        )
    attempts = SHRINK_ATTEMPTS_MAX if request.attempts is None else request.attempts
    hit = sum(bool(result.hits) for result in results)
    for probe, result in zip(todo, results, strict=False):
        messages.send(At(subject=probe.name, index=-1))
        now = time.monotonic()
        shrink_cases(
            probe,
            result,
            attempts=attempts,
            on_attempt=partial(_send_at, messages, probe.name, -1),
            shrinks=_shrinks(request, work.unshrunk, probe.name, now + (end - now) / max(1, hit)),
        )
        hit -= bool(result.hits)
        for found in result.findings:
            messages.send(found_message(*_finding_of(probe, found, request)))
        _send_done(messages, probe, result.cases, result.why_not)
    for probe in todo[len(results) :]:
        _send_done(messages, probe, 0, interrupts.why_not_run())
    messages.send(End(not_run=not_run))


def _send_at(messages: Messages, probe: str, index: int) -> None:
    messages.send(At(subject=probe, index=index, count=max(0, index)))


def _known_cases(request: Request) -> dict[str, list[KnownCase]]:
    """The cases of the replay files in the request's folder, by probe."""
    from specsim.tiers.workers.probing import KnownCase

    found: dict[str, list[KnownCase]] = {}
    for path, stored in replay_file.load_all(request.fixtures):
        if isinstance(stored, WorkerReplay):
            found.setdefault(stored.probe, []).append(KnownCase(path.name, tuple(stored.tape), stored.rule))
    return found


def _shrinks(request: Request, unshrunk: Sequence[str], probe: str, ends: float) -> Callable[[str], bool]:
    """Whether to go on shrinking what breaks a rule."""
    from specsim.tiers.workers.rules import signature_of

    known = set(request.known)
    wanted = request.shrinks and probe not in unshrunk

    def shrinks(rule: str) -> bool:
        if not wanted or signature_of(probe, rule) in known:
            return False
        return time.monotonic() < ends and not interrupts.asked()

    return shrinks


def _send_done(messages: Messages, probe: Any, cases: int, why_not: str = "") -> None:
    not_run = [NotRun(probe.name, why_not)] if why_not else []
    checked = CheckedSubject(probe.name, probe.function, probe.where, cases)
    messages.send(Done(subject=probe.name, judged=checked, not_run=not_run))


def _finding_of(probe: Any, found: Any, request: Request) -> tuple[Finding, WorkerReplay]:
    """The finding of a ProbeFinding, and what its replay file holds."""
    from specsim.tiers.workers.probing import digest_of
    from specsim.tiers.workers.rules import BY_ID, signature_of

    seen, shown = found.broken, found.shown
    source_hash = seen.source_hash or probe.source_hash
    finding = broken(
        BY_ID[found.rule],
        title=f"{probe.name}: {seen.what}",
        signature=signature_of(probe.name, found.rule),
        tier="workers",
        reach=probe.reach,
        where=seen.where or probe.where,
        expected=seen.expected,
        actual=seen.actual,
        count=found.count,
        details=(
            f"smallest case: {json.dumps(shown.case)}",
            *([f"the case of the known finding {found.known}"] if found.known else []),
            *seen.details,
        ),
        fixture=found.known,
    )
    return finding, WorkerReplay(
        target=request.target,
        tier=finding.tier,
        probe=probe.name,
        function=probe.function,
        where=finding.where,
        source_hash=source_hash,
        tape=list(found.tape),
        case=shown.case,
        seed=request.seed,
        rule=finding.rule,
        signature=finding.signature,
        title=seen.what,
        digest=digest_of(shown) if shown.seen else "",  # nothing was recorded of a case that took its process along
    )


def failure(request: Request, work: Failure, messages: Messages) -> None:
    """Make the finding of a case that took a child with it. Runs none of it."""
    from specsim.engines.probe import Broken, Shown
    from specsim.tiers.workers.probing import ProbeFinding, chooser_of

    probe = _named(request, work.subject)
    chooser = chooser_of(request.seed, probe.name, work.index)
    rule = SCHEDULE_TIMEOUT if work.hung else SCHEDULE_CRASH
    ended = Broken(rule.id, f"a case {work.text}", "an answer", work.text)
    probe.draw(chooser)
    found = ProbeFinding(ended.rule, chooser.tape, Shown({}, {}, (ended,)), ended, 1)
    messages.send(found_message(*_finding_of(probe, found, request)))
    _send_done(messages, probe, work.index + 1)


def _named(request: Request, name: str) -> Any:
    probes, not_run = _probes(request)
    for probe in probes:
        if probe.name == name:
            return probe
    why = "; ".join(entry.why for entry in not_run if entry.what == name) or "it has no such function"
    raise UsageError(f"{request.target} cannot run {name!r} ({why})", "replay it on the target that it was found on")


def replay(request: Request, work: Replay, messages: Messages) -> None:
    """Run the case of a replay file once more."""
    from specsim.choices.chooser import replayed
    from specsim.tiers.workers.probing import NoStubError, digest_of, run_probe

    stored = _stored(work.file)
    probe = _named(request, stored.probe)
    messages.send(At(subject=probe.name))
    try:
        shown = run_probe(probe, replayed(stored.tape))
    except NoStubError as error:
        raise UsageError(
            f"{request.target} cannot run {probe.name!r} ({error})", "replay it on the target that it was found on"
        ) from error
    blamed = [broken for broken in shown.broken if broken.rule == stored.rule]
    source_hash = (blamed[0].source_hash if blamed else "") or probe.source_hash
    where = (blamed[0].where if blamed else "") or probe.where
    answer = {
        "same_case": shown.case == stored.case,
        "same_source": source_hash == stored.source_hash,
        "where": where,
        "function": probe.function,
        "digest": digest_of(shown),
        "code": [{"name": probe.name, "where": where, "source_hash": source_hash}],
        "case": shown.case,
        "seen": shown.seen,
        "broken": [asdict(broken) for broken in shown.broken],
    }
    messages.send(Replayed(answer=answer))


def shrink(request: Request, work: Shrink, messages: Messages) -> None:
    """Make the case of a replay file smaller, with more attempts than `check` takes."""
    from specsim.choices.chooser import replayed
    from specsim.tiers.workers.probing import ProbeFinding, run_probe, smallest

    stored = _stored(work.file)
    probe = _named(request, stored.probe)
    messages.send(At(subject=probe.name))
    shown = run_probe(probe, replayed(stored.tape))
    if all(broken.rule != stored.rule for broken in shown.broken):
        raise UsageError(
            f"{work.file} does not show {stored.signature} on {request.target}",
            "replay it to see what it shows",
        )
    tape, small = smallest(
        probe,
        stored.rule,
        tuple(stored.tape),
        lambda: messages.send(At(subject=probe.name, index=-1)),
        work.attempts,
        interrupts.until(work.seconds),
    )
    (broken,) = [b for b in small.broken if b.rule == stored.rule]
    before, after = (len(json.dumps(case)) for case in (shown.case, small.case))
    messages.send(
        shrunk_message(
            *_finding_of(probe, ProbeFinding(stored.rule, tape, small, broken, 1), request),
            before=(len(stored.tape), before),
            after=(len(tape), after),
            same_case=shown.case == stored.case,
        )
    )


def search(request: Request, work: Search, messages: Messages) -> None:
    """Nothing searches for a rule of a probe: a bisection replays its file."""
    raise UsageError(f"there is no search of the {request.tier} tier", "bisect a replay file")


def _stored(file: str) -> WorkerReplay:
    stored = replay_file.load(Path(file))
    assert isinstance(stored, WorkerReplay)
    return stored
