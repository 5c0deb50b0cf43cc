"""The workers tier in the child. Messages:

{"event": "start", "probe": NAME}             a probe's cases begin
{"event": "case", "index": I}                 case I comes next; -1 while shrinking
{"event": "done", "probe", "function", "where", "cases", "findings": [...], "not_run": [...]}
{"event": "end", "not_run": [...]}            all probes are done
{"event": "replayed", ...}                    the answer to a replay request
{"event": "done alone", "found", ...}         the answer to a shrink request
{"event": "error", "problem", "remedy"}       bad input; the process exits
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim import interrupts, replay_file
from specsim.errors import UsageError
from specsim.replay_file import WorkerReplay
from specsim.tiers.child import Messages, Request
from specsim.tiers.transfer import sent
from specsim.verdict import Finding, NotRun

if TYPE_CHECKING:
    from specsim.tiers.workers.probing import KnownCase, ProbeResult


def _probes(request: Request) -> tuple[list[Any], list[NotRun]]:
    from specsim.engines.load import load_probes
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import Cache

    return load_probes(parse_target(request["target"]), Cache(Path(request["cache"])))


SHRINK_SHARE = 0.25  # of the time, kept for shrinking as soon as something was hit


def check(request: Request, messages: Messages) -> None:
    """Run every probe that the request does not skip, then shrink what was found."""
    end = time.monotonic() + request["seconds"]
    from specsim.tiers.workers.probing import SHRINK_ATTEMPTS_MAX, run_cases, shrink_cases

    probes, not_run = _probes(request)
    todo = [probe for probe in probes if probe.name not in request["skip"]]
    known = _known_cases(request)
    results: list[ProbeResult] = []
    for position, probe in enumerate(todo):
        messages.send("start", probe=probe.name)
        now = time.monotonic()
        if now >= end or interrupts.asked():
            break
        kept = request["seconds"] * SHRINK_SHARE if any(result.hits for result in results) else 0.0
        results.append(
            run_cases(
                probe,
                seed=request["seed"],
                cases=request["cases"],
                deadline=now + (end - kept - now) / (len(todo) - position),
                on_case=lambda index: messages.send("case", index=index),
                stopped=interrupts.asked,
                known=known.get(probe.name, ()),
            )
        )
    attempts = SHRINK_ATTEMPTS_MAX if request["attempts"] is None else request["attempts"]
    hit = sum(bool(result.hits) for result in results)
    for probe, result in zip(todo, results, strict=False):
        messages.send("start", probe=probe.name)
        messages.send("case", index=-1)
        now = time.monotonic()
        shrink_cases(
            probe,
            result,
            attempts=attempts,
            on_attempt=lambda: messages.send("case", index=-1),
            shrinks=_shrinks(request, probe.name, now + (end - now) / max(1, hit)),
        )
        hit -= bool(result.hits)
        findings = [sent(*_finding_of(probe, found, request)) for found in result.findings]
        _send_done(messages, probe, result.cases, findings, result.why_not)
    for probe in todo[len(results) :]:
        _send_done(messages, probe, 0, [], interrupts.why_not_run())
    messages.send("end", not_run=[asdict(entry) for entry in not_run])


def _known_cases(request: Request) -> dict[str, list[KnownCase]]:
    """The cases of the replay files in the request's folder, by probe."""
    from specsim.tiers.workers.probing import KnownCase

    found: dict[str, list[KnownCase]] = {}
    for path, stored in replay_file.load_all(request["fixtures"]):
        if isinstance(stored, WorkerReplay):
            found.setdefault(stored.probe, []).append(KnownCase(path.name, tuple(stored.tape), stored.rule))
    return found


def _shrinks(request: Request, probe: str, ends: float) -> Callable[[str], bool]:
    """Whether to go on shrinking what breaks a rule."""
    from specsim.engines.probe import signature_of

    known = set(request["known"])
    wanted = request["shrinks"] and probe not in request["unshrunk"]

    def shrinks(rule: str) -> bool:
        if not wanted or signature_of(probe, rule) in known:
            return False
        return time.monotonic() < ends and not interrupts.asked()

    return shrinks


def _send_done(messages: Messages, probe: Any, cases: int, findings: list[dict[str, Any]], why_not: str) -> None:
    not_run = [asdict(NotRun(probe.name, why_not))] if why_not else []
    messages.send(
        "done",
        probe=probe.name,
        function=probe.function,
        where=probe.where,
        cases=cases,
        findings=findings,
        not_run=not_run,
    )


def _finding_of(probe: Any, found: Any, request: Request) -> tuple[Finding, WorkerReplay]:
    """The finding of a ProbeFinding, and what its replay file holds."""
    from specsim.engines.probe import BY_ID, signature_of
    from specsim.tiers.workers.probing import digest_of

    broken, shown, rule = found.broken, found.shown, BY_ID[found.rule]
    where, source_hash = broken.where or probe.where, broken.source_hash or probe.source_hash
    signature = signature_of(probe.name, found.rule)
    replay = WorkerReplay(
        target=request["target"],
        tier="workers",
        probe=probe.name,
        function=probe.function,
        where=where,
        source_hash=source_hash,
        tape=list(found.tape),
        case=shown.case,
        seed=request["seed"],
        rule=found.rule,
        signature=signature,
        title=broken.what,
        digest=digest_of(shown) if shown.seen else "",  # nothing was recorded of a case that took its process along
    )
    finding = Finding(
        rule=found.rule,
        sentence=rule.sentence,
        title=f"{probe.name}: {broken.what}",
        signature=signature,
        tier="workers",
        severity=rule.severity,
        reach=probe.reach,
        where=where,
        expected=broken.expected,
        actual=broken.actual,
        replay="",
        count=found.count,
        details=(
            f"smallest case: {json.dumps(shown.case)}",
            *([f"the case of the known finding {found.known}"] if found.known else []),
            *broken.details,
        ),
    )
    return finding, replay


def failure(request: Request, messages: Messages) -> None:
    """Make the finding of a case that took a child with it. Runs none of it."""
    from specsim.engines.probe import Broken, Shown
    from specsim.tiers.workers.probing import ProbeFinding, chooser_of

    probe = _named(request, request["probe"])
    chooser = chooser_of(request["seed"], probe.name, request["index"])
    broken = Broken(request["rule"], f"a case {request['text']}", "an answer", request["text"])
    probe.draw(chooser)
    found = ProbeFinding(broken.rule, chooser.tape, Shown({}, {}, (broken,)), broken, 1)
    _send_done(messages, probe, request["index"] + 1, [sent(*_finding_of(probe, found, request))], "")


def _named(request: Request, name: str) -> Any:
    probes, not_run = _probes(request)
    for probe in probes:
        if probe.name == name:
            return probe
    why = "; ".join(entry.why for entry in not_run if entry.what == name) or "it has no such function"
    raise UsageError(f"{request['target']} cannot run {name!r} ({why})", "replay it on the target that it was found on")


def replay(request: Request, messages: Messages) -> None:
    """Run the case of a replay file once more."""
    from specsim.choices.chooser import replayed
    from specsim.tiers.workers.probing import NoStandInError, digest_of, run_probe

    stored = _stored(request)
    probe = _named(request, stored.probe)
    messages.send("start", probe=probe.name)
    messages.send("case", index=0)
    try:
        shown = run_probe(probe, replayed(stored.tape))
    except NoStandInError as error:
        raise UsageError(
            f"{request['target']} cannot run {probe.name!r} ({error})", "replay it on the target that it was found on"
        ) from error
    blamed = [broken for broken in shown.broken if broken.rule == stored.rule]
    source_hash = (blamed[0].source_hash if blamed else "") or probe.source_hash
    where = (blamed[0].where if blamed else "") or probe.where
    messages.send(
        "replayed",
        same_case=shown.case == stored.case,
        same_source=source_hash == stored.source_hash,
        where=where,
        function=probe.function,
        digest=digest_of(shown),
        code=[{"name": probe.name, "where": where, "source_hash": source_hash}],
        case=shown.case,
        seen=shown.seen,
        broken=[asdict(broken) for broken in shown.broken],
    )


def shrink(request: Request, messages: Messages) -> None:
    """Make the case of a replay file smaller, with more attempts than `check` takes."""
    from specsim.choices.chooser import replayed
    from specsim.tiers.workers.probing import ProbeFinding, run_probe, smallest

    stored = _stored(request)
    probe = _named(request, stored.probe)
    messages.send("case", index=0)
    shown = run_probe(probe, replayed(stored.tape))
    if all(broken.rule != stored.rule for broken in shown.broken):
        raise UsageError(
            f"{request['replay']} does not show {stored.signature} on {request['target']}",
            "replay it to see what it shows",
        )
    tape, small = smallest(
        probe,
        stored.rule,
        tuple(stored.tape),
        lambda: messages.send("case", index=-1),
        request["attempts"],
        interrupts.until(request["shrink_seconds"]),
    )
    (broken,) = [b for b in small.broken if b.rule == stored.rule]
    found = sent(*_finding_of(probe, ProbeFinding(stored.rule, tape, small, broken, 1), request))
    before, after = (len(json.dumps(case)) for case in (shown.case, small.case))
    sizes = {"before": [len(stored.tape), before], "after": [len(tape), after]}
    messages.send("done alone", found=found, same_case=shown.case == stored.case, **sizes)


def _stored(request: Request) -> WorkerReplay:
    stored = replay_file.load(Path(request["replay"]))
    assert isinstance(stored, WorkerReplay)
    return stored
