"""Every fixture is a replay file with the verdict that is expected on each target, and gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from property_tests.support.command_line import specsim
from property_tests.support.replay_fixtures import EXPECT, FILES, Release
from property_tests.support.seed_bugs import EVENTS_MAX, REQUESTS_MAX
from specsim import replay_file
from specsim.choices.chooser import replayed
from specsim.contracts.provider import MappingProvider, Provider, Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.engine.accounting_target import AccountingTarget, ModelTarget
from specsim.engines.probe import Probe
from specsim.engines.sglang.accounting import SglangHostTarget
from specsim.engines.sglang.probes import probes_of
from specsim.engines.sglang.provider import SglangProvider
from specsim.lifting.cache import Cache
from specsim.replay_file import OpReplay, ScheduleReplay, SchedulerReplay, WorkerReplay
from specsim.tiers.accounting.schedules import run_schedule
from specsim.tiers.ops.finding import case_of
from specsim.tiers.ops.run import run_case
from specsim.tiers.workers.probing import digest_of, run_probe

# Those of the scheduler tier are in property_tests/scheduler/test_releases.py: a process runs all of a release.
CELLS = [
    (file, target)
    for file in FILES
    if not isinstance(replay_file.load(file), SchedulerReplay)
    for target in EXPECT[file.stem]
    if target != "mutant"
]


@pytest.mark.parametrize(("file", "target"), CELLS, ids=[f"{file.stem} on {target}" for file, target in CELLS])
def test_a_fixture_gives_the_verdict_expected_of_the_target(
    file: Path, target: str, release: Release, wheel_cache: Cache
) -> None:
    replay = replay_file.load(file)
    expect = EXPECT[file.stem][target]
    if isinstance(replay, OpReplay):
        _hold_case(file, replay, target, expect, release, wheel_cache)
    elif isinstance(replay, WorkerReplay):
        _hold_probe(replay, target, expect, release, wheel_cache)
    else:
        assert isinstance(replay, ScheduleReplay)
        _hold_schedule(replay, target, expect, release, wheel_cache)


SUBJECTS: dict[str, list[Subject]] = {}  # of each target, lifted once


def _hold_case(
    file: Path, replay: OpReplay, target: str, expect: dict[str, Any], release: Release, cache: Cache
) -> None:
    op = OPS[replay.op]
    if target not in SUBJECTS:
        SUBJECTS[target] = _provider_of(target, release, cache).subjects()[0]
    subjects = SUBJECTS[target]
    of_op = [s for s in subjects if s.op == replay.op]
    subject = next((s for s in of_op if s.name == replay.subject), of_op[0])
    on_gpu = target == "triton" and torch.cuda.is_available()
    outcome = run_case(op, subject, case_of(op, replay, file), "cuda" if on_gpu else "cpu")
    assert [violation.rule.id for violation in outcome.violations] == expect["rules"]
    if target == replay.target:
        assert outcome.digest == replay.digest


def _provider_of(target: str, release: Release, cache: Cache) -> Provider:
    if target == "reference":
        return MappingProvider("reference", REFERENCE)
    if target == "triton":
        from specsim.kernels import provider

        return provider()
    return SglangProvider(release(target.removeprefix("sglang==")), cache)


ACCOUNTINGS: dict[str, AccountingTarget] = {"model": ModelTarget()}  # of each target, lifted once


def _accounting_of(target: str, release: Release, cache: Cache) -> AccountingTarget:
    if target not in ACCOUNTINGS:
        ACCOUNTINGS[target] = SglangHostTarget(release(target.removeprefix("sglang==")), cache)
    return ACCOUNTINGS[target]


def _hold_schedule(replay: ScheduleReplay, target: str, expect: dict[str, Any], release: Release, cache: Cache) -> None:
    accounting = _accounting_of(target, release, cache)
    schedule = run_schedule(accounting, replayed(replay.tape))
    assert schedule is not None
    shown = [violation.signature for violation in schedule.run.violations]
    assert (replay.signature in shown) is expect["shows"], shown


SHOWN = [
    (file, target)
    for file, target in CELLS
    if EXPECT[file.stem][target].get("shows") and isinstance(replay_file.load(file), ScheduleReplay)
]


# (requests, events): what is forgotten by a retraction shows when the request has been prefilled again and runs, too
# little room at the launch after two long ones; who retracts without a pause takes the last of a batch, which is a
# session's turn only beside a turn of another one.
SIZES = {
    "I59": (4, 24),
    "I07": (1, 13),
    "accounting:I53:retracted:session controller": (4, 29),
    "accounting:S4:left:session match": (4, 29),
}


@pytest.mark.parametrize(("file", "target"), SHOWN, ids=[f"{file.stem} on {target}" for file, target in SHOWN])
@pytest.mark.slow(runs_one_in=16)
def test_a_schedule_is_as_small_on_every_release_that_shows_its_bug_as_is_promised_of_the_model(
    file: Path, target: str, release: Release, wheel_cache: Cache
) -> None:
    replay = replay_file.load(file)
    assert isinstance(replay, ScheduleReplay)
    accounting = _accounting_of(target, release, wheel_cache)
    schedule = run_schedule(accounting, replayed(replay.tape), stop_at=replay.signature)
    assert schedule is not None
    assert schedule.violation(replay.signature)
    requests_max, events_max = SIZES.get(replay.signature, SIZES.get(replay.rule, (REQUESTS_MAX, EVENTS_MAX)))
    assert len(schedule.scenario.workload.turns) <= requests_max
    log = schedule.run.log
    admitted = next((event.number for event in log if event.event == "admit"), 0)  # a turn may not get that far
    assert len(log) - admitted <= events_max


PROBES: dict[str, dict[str, Probe]] = {}  # of each release, lifted once


def _hold_probe(replay: WorkerReplay, target: str, expect: dict[str, Any], release: Release, cache: Cache) -> None:
    version = target.removeprefix("sglang==")
    if version not in PROBES:
        PROBES[version] = {probe.name: probe for probe in probes_of(release(version), cache)[0]}
    probe = PROBES[version][replay.probe]
    shown = run_probe(probe, replayed(replay.tape))
    assert (replay.rule in [broken.rule for broken in shown.broken]) is expect["shows"], shown.broken
    assert shown.case == replay.case
    if target == replay.target:
        assert digest_of(shown) == replay.digest


MUTANTS = [file for file in FILES if "mutant" in EXPECT[file.stem]]


@pytest.mark.parametrize("file", MUTANTS, ids=[file.stem for file in MUTANTS])
@pytest.mark.slow(runs_one_in=3)
def test_the_models_mutant_shows_what_the_fixture_was_made_of(file: Path, tmp_path: Path) -> None:
    ended = specsim(tmp_path, "replay", str(file))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "reproduced" in ended.stdout


def test_there_are_fixtures_of_every_tier() -> None:
    assert {type(replay_file.load(file)) for file in FILES} == {OpReplay, ScheduleReplay, WorkerReplay, SchedulerReplay}
