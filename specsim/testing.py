"""Assertions for suites of one's own. A failure says what broke on the smallest case, and ends in the command that
replays it.

    from specsim.testing import assert_lossless, assert_matches, assert_no_finding

    def test_bonus_tokens():
        assert_matches("fill_bonus_tokens", my_kernel)

    def test_my_rule():
        assert_lossless(my_rule, "verify_chain_rejection")

    def test_this_checkout():
        assert_no_finding("sglang@.", only="scheduler", budget_seconds=30)

Works in any test runner. Under pytest, Triton kernels run on a CPU where `TRITON_INTERPRET=1` is set before triton is
imported. `assert_no_finding` and `assert_gone` run the target's code, in a child process.

`sgl_kernel()` is a module of sglang-kernel's speculative operations for machines that cannot load the package: on the
reference, or on specsim's Triton kernels.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import types
import unittest
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.errors import UsageError
from specsim.replay_file import FINDINGS

if TYPE_CHECKING:
    from specsim.contracts.contract import Op
    from specsim.contracts.provider import Subject
    from specsim.findings.by_hand import Schedule
    from specsim.findings.pin import Pinned
    from specsim.replay_file import Replay
    from specsim.tiers.ops.suite import Counterexample
    from specsim.verdict import Finding, Verdict

__all__ = [
    "assert_gone",
    "assert_lossless",
    "assert_matches",
    "assert_no_finding",
    "assert_still_there",
    "replays",
    "schedule",
    "sgl_kernel",
]

REPLAY_VARIABLE = "SPECSIM_REPLAY"
"""Names a replay file: `assert_matches` of its operation then runs the case of that file and no other."""

SHOWN_MAX = 400  # characters of a tensor in a message; the replay file has all of them


def assert_matches(
    operation: str,
    function: Any,
    *,
    cases: int = 100,
    seed: int = 0,
    device: str = "cpu",
    out: Path | str = FINDINGS,
) -> None:
    """`function` does what the contract of `operation` says, on `cases` generated inputs on `device`.

    It is called with the contract's arguments by name and returns the outputs, or names them as parameters and writes
    them in place (`specsim.contracts.contract`). Inputs must come back unchanged, outputs arrive poisoned and between
    red zones. Raises AssertionError with the smallest case that fails, whose replay file is written to `out`;
    UsageError for an unknown operation and a function that cannot be called so.
    """
    __tracebackhide__ = True
    from specsim.contracts.provider import MappingProvider
    from specsim.contracts.registry import OPS
    from specsim.tiers.ops.rules import DOES_NOT_RAISE
    from specsim.tiers.ops.run import LaunchHere
    from specsim.tiers.ops.suite import SuiteLimits, check_subject

    subjects, not_run = MappingProvider("the test", {operation: function}).subjects()
    if not subjects:
        raise UsageError(
            next(f"{e.what}: {e.why}" for e in not_run if e.what == operation), f"see `specsim template {operation}`"
        )
    (subject,) = subjects
    op = OPS[operation]
    if _replay_file(operation) is not None:
        _replay_case(op, subject, device)
        return
    result = check_subject(op, subject, seed=seed, limits=SuiteLimits(cases), launcher=LaunchHere(device))
    if found := result.counterexample:
        if found.rule is DOES_NOT_RAISE and _lacks_a_driver(found):
            raise UsageError(
                f"{operation} launches Triton kernels, and there is neither a GPU nor Triton's interpreter",
                "set TRITON_INTERPRET=1 before triton is imported, or run pytest with --specsim-interpreter",
            )
        raise AssertionError(_mismatch(op, subject, found, _target_of(function), seed, device, Path(out), result.cases))


def _lacks_a_driver(found: Counterexample) -> bool:
    """Whether what was raised is Triton's, that it has no GPU to compile for."""
    violations = found.outcome.violations if found.outcome is not None else ()
    return any("active drivers" in violation.actual for violation in violations)


def _target_of(function: Any) -> str:
    """`module:name` of a function, as far as it has them; a replay file names what it was found on."""
    name = getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")
    return f"{getattr(function, '__module__', None) or '__main__'}:{name.replace('<lambda>', 'function')}"


def _replay_file(operation: str) -> Path | None:
    """The file that REPLAY_VARIABLE names, where it is of this operation."""
    from specsim import replay_file

    named = os.environ.get(REPLAY_VARIABLE, "")
    if not named:
        return None
    stored = replay_file.load(Path(named))
    return Path(named) if getattr(stored, "op", "") == operation else None


def _replay_case(op: Op, subject: Subject, device: str) -> None:
    __tracebackhide__ = True
    from specsim.tiers.ops.finding import stored_case
    from specsim.tiers.ops.run import run_case

    path = _replay_file(op.name)
    assert path is not None
    case = stored_case(op, path)
    outcome = run_case(op, subject, case, device)
    if outcome.violations:
        lines = [f"{v.rule.id}: {v.title}; expected {v.expected}, actual {v.actual}" for v in outcome.violations]
        shown = [f"{name} = {_short(tensor.tolist())}" for name, tensor in case.tensors.items()]
        raise AssertionError("\n".join([f"{op.name}, the case of {path}", *lines, *shown, _again(path)]))


def _mismatch(
    op: Op, subject: Subject, found: Counterexample, target: str, seed: int, device: str, out: Path, cases: int
) -> str:
    from specsim import replay_file
    from specsim.tiers.ops.finding import Origin, finding_of

    finding, replay = finding_of(op, subject, found, Origin(target, seed, device))
    finding = dataclasses.replace(finding, replay=str(replay_file.save_in(out, replay)))
    inputs = [f"{name} = {_short(tensor.tolist())}" for name, tensor in found.case.tensors.items()]
    hit_by = f"{finding.count} of {cases} generated cases"
    return _told(finding, hit_by, inputs, _again(Path(finding.replay)))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]} ... ({len(text)} characters)"


def _again(replay: Path | None) -> str:
    """The command that runs the test that is running again, on the case of a replay file."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    command = f"pytest {shlex.quote(test)}" if test else f"python {shlex.quote(sys.argv[0] or '-')}"
    return f"{REPLAY_VARIABLE}={shlex.quote(str(replay))} {command}" if replay else command


def _told(finding: Finding, hit_by: str, more: Collection[str], command: str) -> str:
    """A finding as text, the command last."""
    from specsim.tiers.registry import TIERS

    rows = [
        ("rule", f"{TIERS[finding.tier].rules[finding.rule].label}: {finding.sentence}"),
        ("where", finding.where or "unknown"),
        ("expected", finding.expected),
        ("actual", finding.actual),
        ("severity", str(finding.severity)),
        ("hit by", hit_by),
        *(("", line) for line in (*finding.details, *more)),
        ("signature", finding.signature),
        ("replay", command),
    ]
    return "\n".join([finding.title, *(f"   {name:<10} {value}" for name, value in rows)])


def sgl_kernel(implementation: str = "reference") -> types.ModuleType:
    """A module to be entered as `sys.modules["sgl_kernel"]`: sglang-kernel's speculative operations, for machines that
    cannot load the package. So an engine's worker runs on a CPU, or hardware is tried before it has kernels.

    `implementation`  "reference", or "kernels" for specsim's Triton kernels, which on a CPU need TRITON_INTERPRET=1

    Arguments are checked as the reference checks them: ValueError names the one that is wrong and what is allowed. Any
    other name of the package is a function that raises NotImplementedError with its name when it is called.
    """
    from specsim.contracts.registry import OPS
    from specsim.engines.sgl_kernel_module import module_of

    if implementation == "reference":
        return module_of({name: op.reference for name, op in OPS.items()})
    if implementation != "kernels":
        raise UsageError(f"there is no implementation {implementation!r}", "give 'reference' or 'kernels'")
    from specsim.kernels import KERNELS

    return module_of({kernel.__name__: kernel for kernel in KERNELS})


def assert_lossless(
    rule: Callable[..., Any], operation: str = "", *, quick: bool = False, device: str = "cpu", dtype: Any = None
) -> None:
    """`rule`, a sampling rule of verification, emits the target model's distribution exactly: no statistics, no
    tolerance.

    `operation` is verify_tree_target_only, verify_chain_rejection, verify_chain_block or verify_tree_rejection, whose
    arguments the rule takes; left out, it is the rule's own name. `quick` keeps to a few small models and trees;
    `dtype` is that of distributions and uniform draws, torch.float32 when left out. Raises AssertionError with the
    model and tree where it is furthest off, and how much more probable some outcome is than it should be, as a
    fraction; UsageError for another operation.
    """
    __tracebackhide__ = True
    import torch

    from specsim.contracts.losslessness import NAMES, distances

    name = operation or getattr(rule, "__name__", "")
    if name not in NAMES:
        raise UsageError(f"{name!r} is no sampling rule", f"name the operation it implements: {', '.join(NAMES)}")
    found = distances(name, rule, dtype=dtype or torch.float32, device=device, quick=quick)
    where, most = max(found.items(), key=lambda item: item[1])
    if most:
        off = sum(1 for value in found.values() if value)
        lines = [
            f"{name}: what is emitted is {most} = {float(most):.6f} off the target's distribution, in total variation",
            f"   {'model':<10} {where}",
            f"   {'hit by':<10} {off} of {len(found)} models and trees",
            f"   {'replay':<10} {_again(None)}",
        ]
        raise AssertionError("\n".join(lines))


def assert_no_finding(
    target: str,
    *,
    only: str = "",
    budget_seconds: float = 60.0,
    seed: int = 0,
    cases: int = 100,
    schedules: int = 500,
    known: Collection[str] = (),
    device: str = "auto",
    out: Path | str = FINDINGS,
    cache_dir: Path | str | None = None,
) -> Verdict:
    """TARGET ("model", "sglang==VERSION", "sglang@PATH[#REV]", "module:object") breaks no rule within the budget.

    `only` is a tier: ops or scheduler. `known` are signatures of findings that are let pass. Returns the
    verdict, which lists what was not run and why. Raises AssertionError with each finding; UsageError for a target that
    cannot be used, for one of which nothing could be checked, and for a release that is not in the cache, since tests
    fetch nothing.
    """
    __tracebackhide__ = True
    verdict = check_target(
        target,
        only=only,
        budget_seconds=budget_seconds,
        seed=seed,
        cases=cases,
        schedules=schedules,
        device=device,
        out=Path(out),
        cache_dir=cache_dir,
    )
    if verdict.verdict == "error":
        reasons = "; ".join(f"{entry.what}: {entry.why}" for suite in verdict.suites for entry in suite.not_run[:2])
        raise UsageError(f"nothing of {target} could be checked", reasons or "see specsim targets")
    new = [finding for finding in verdict.findings if finding.signature not in known]
    if new:
        raise AssertionError(told_findings(verdict, new))
    return verdict


def told_findings(verdict: Verdict, findings: Collection[Finding]) -> str:
    """Findings as text; each ends in the command that replays it."""
    from specsim import replay_file
    from specsim.tiers.registry import TIERS

    counted = {suite.name: suite for suite in verdict.suites}

    def of(finding: Finding) -> str:
        suite = counted[finding.tier]
        is_simulated = TIERS[finding.tier].unit == "schedules"
        unit = f"{suite.schedules} schedules" if is_simulated else "the generated cases"
        return f"{finding.count} of {unit}"

    plural = "s" if len(findings) > 1 else ""
    head = f"{len(findings)} finding{plural} on {verdict.target}"
    commands = [replay_file.command(finding.replay, verdict.target, verdict.target) for finding in findings]
    return "\n\n".join([head, *map(_told, findings, map(of, findings), [()] * len(findings), commands)])


def check_target(
    target: str,
    *,
    only: str,
    budget_seconds: float,
    seed: int,
    cases: int,
    schedules: int,
    device: str,
    out: Path,
    cache_dir: Path | str | None,
) -> Verdict:
    """The verdict on a target, or on one tier of it, as `specsim check` gives it. Fetches nothing."""
    from specsim.commands.asked import Asked
    from specsim.commands.suites import run_tiers
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache
    from specsim.report.live import LiveLine, WorkProgress
    from specsim.tiers.registry import TIERS

    if only and only not in TIERS:
        raise UsageError(f"only={only!r} is no tier", f"allowed: {', '.join(TIERS)}")
    parsed, cache = parse_target(target), open_cache(cache_dir)
    _require_fetched(parsed, cache)
    asked = Asked(
        target=parsed,
        cache=cache,
        only=only or None,
        budget_seconds=budget_seconds,
        seed=seed,
        cases=cases,
        schedules=schedules,
        out=out,
        device=device,
        hang_seconds=20.0,
    )
    return run_tiers(asked, LiveLine(WorkProgress(parsed.text), None))


def _require_fetched(parsed: Any, cache: Any) -> None:
    from specsim.engines.packages import cached_releases
    from specsim.engines.registry import ENGINES
    from specsim.engines.target import Release

    is_whole = isinstance(parsed, Release) and ENGINES[parsed.engine].kept is None
    if is_whole and parsed.version not in set(cached_releases(parsed.engine, cache)):
        command = f"specsim targets --fetch {parsed.text}"
        raise UsageError(f"the wheel of {parsed.text} is not in the cache", f"fetch it once: {command}")


def schedule(target: str, *, out: Path | str = FINDINGS, cache_dir: Path | str | None = None, **setup: Any) -> Schedule:
    """A schedule of the scheduler of TARGET ("sglang==VERSION" or "sglang@PATH[#REV]") that is written by hand:

        def test_a_retracted_request_is_answered():
            incident = schedule("sglang@.", slots=120)
            first = incident.start(prompt=20, answer=30)
            second = incident.start(prompt=8, answer=12, at=2)
            incident.retract(at=5)
            incident.abort(first, at=7)
            incident.check()

    `setup` are settings of `specsim.world.scheduler.Setup`, how the scheduler is started. UsageError for a target that
    has no scheduler, and for a release that is not in the cache.
    """
    from specsim.engines.target import parse_target
    from specsim.findings.by_hand import Schedule
    from specsim.lifting.cache import open_cache

    parsed, cache = parse_target(target), open_cache(cache_dir)
    _require_fetched(parsed, cache)
    return Schedule(parsed.text, setup, Path(out), cache.folder)


def replays(folder: Path | str) -> list[Path]:
    """The replay files of a folder, for `pytest.mark.parametrize("file", replays(FOLDER), ids=str)`.

    Raises UsageError where there is none, since a test of nothing passes.
    """
    files = sorted(Path(folder).glob("*.json"))
    if not files:
        raise UsageError(f"{folder} has no replay files", "name the folder that `specsim check --out DIR` filled")
    return files


def assert_gone(file: Path | str, target: str = "", *, hang_seconds: float = 20.0) -> None:
    """The finding of a replay file is not there on `target`, or on the target that it was found on.

    Raises AssertionError where it is, UsageError for a file that cannot be read, and unittest.SkipTest, which skips the
    test, for one that no longer applies: the target does not run it.
    """
    __tracebackhide__ = True
    stored, on, pinned = _replayed(Path(file), target, hang_seconds)
    if pinned.shown:
        raise AssertionError(_pinned_text(stored, Path(file), on, pinned.reason))


def assert_still_there(file: Path | str, target: str = "", *, hang_seconds: float = 20.0) -> None:
    """The finding of a replay file is there on `target`, or on the target that it was found on: a defect that is known
    and stays for now. The test fails on the day on which it goes.

    Raises AssertionError where it is gone, and what `assert_gone` raises for a file that cannot be used.
    """
    __tracebackhide__ = True
    stored, on, pinned = _replayed(Path(file), target, hang_seconds)
    if not pinned.shown:
        raise AssertionError(_pinned_text(stored, Path(file), on, pinned.reason))


def _replayed(file: Path, target: str, hang_seconds: float) -> tuple[Replay, str, Pinned]:
    """The replay file, the target that it ran on, and what it showed there. Skips the test where it does not apply."""
    __tracebackhide__ = True
    from specsim import replay_file
    from specsim.findings.pin import replay_pinned
    from specsim.findings.trust import require_named

    stored = replay_file.load(file)
    on = target or stored.target
    name_it = 'name it: assert_gone(FILE, "{}") or, for the plugin, --specsim-target={}'.replace("{}", on)
    require_named(file, [on], (target,), name_it)
    pinned = replay_pinned(file, on, hang_seconds)
    if not pinned.applies:
        raise unittest.SkipTest(f"{file} no longer applies: {pinned.reason}")
    return stored, on, pinned


def _pinned_text(stored: Replay, file: Path, on: str, seen: str) -> str:
    from specsim import replay_file

    rows = [("rule", stored.rule), ("seen", seen), ("signature", stored.signature)]
    rows += [("replay", replay_file.command(str(file), on, stored.target))]
    return "\n".join([stored.title, *(f"   {name:<10} {value}" for name, value in rows)])
