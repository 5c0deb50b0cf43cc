"""Every fixture is a replay file with the verdict that is expected on each target, and gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from property_tests.support.replay_fixtures import EXPECT, FILES, Release
from specsim import replay_file
from specsim.contracts.provider import MappingProvider, Provider, Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.engines.sglang.provider import SglangProvider
from specsim.lifting.cache import Cache
from specsim.replay_file import OpReplay, SchedulerReplay
from specsim.tiers.ops.finding import case_of
from specsim.tiers.ops.run import run_case

# Those of the scheduler tier are in property_tests/scheduler/test_releases.py: a process runs all of a release.
CELLS = [
    (file, target)
    for file in FILES
    if not isinstance(replay_file.load(file), SchedulerReplay)
    for target in EXPECT[file.stem]
]


@pytest.mark.parametrize(("file", "target"), CELLS, ids=[f"{file.stem} on {target}" for file, target in CELLS])
def test_a_fixture_gives_the_verdict_expected_of_the_target(
    file: Path, target: str, release: Release, wheel_cache: Cache
) -> None:
    replay = replay_file.load(file)
    expect = EXPECT[file.stem][target]
    assert isinstance(replay, OpReplay)
    _hold_case(file, replay, target, expect, release, wheel_cache)


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


def test_there_are_fixtures_of_every_tier() -> None:
    assert {type(replay_file.load(file)) for file in FILES} == {OpReplay, SchedulerReplay}
