"""Every fixture is a replay file with the verdict that is expected on each target, and gives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specsim import replay_file
from specsim.diff.finding import case_of
from specsim.diff.run import run_case
from specsim.ops.provider import MappingProvider, Provider
from specsim.ops.registry import OPS, REFERENCE
from specsim.targets.cache import Cache
from specsim.targets.sglang.provider import SglangProvider
from specsim.targets.source import SourceTree

FILES = sorted((Path(__file__).parents[1] / "fixtures" / "replays").glob("*.json"))
CELLS = [(file, target) for file in FILES for target in json.loads(file.read_text())["expect"]]


@pytest.mark.parametrize(("file", "target"), CELLS, ids=[f"{file.stem} on {target}" for file, target in CELLS])
def test_a_fixture_gives_the_verdict_expected_of_the_target(
    file: Path, target: str, release: Callable[[str], SourceTree], wheel_cache: Cache
) -> None:
    expect: dict[str, Any] = json.loads(file.read_text())["expect"][target]
    replay = replay_file.load(file)
    op = OPS[replay.op]
    subjects, _not_run = provider_of(target, release, wheel_cache).subjects()
    of_op = [s for s in subjects if s.op == replay.op]
    named = [s for s in of_op if s.name == replay.subject]
    subject = named[0] if named else of_op[0]
    on_gpu = target == "triton" and torch.cuda.is_available()
    outcome = run_case(op, subject, case_of(op, replay, file), "cuda" if on_gpu else "cpu")
    assert [violation.rule.id for violation in outcome.violations] == expect["rules"]
    if target == replay.target:
        assert outcome.digest == replay.digest


def provider_of(target: str, release: Callable[[str], SourceTree], cache: Cache) -> Provider:
    if target == "reference":
        return MappingProvider("reference", REFERENCE)
    if target == "triton":
        from specsim.kernels import provider

        return provider()
    return SglangProvider(release(target.removeprefix("sglang==")), cache)


def test_there_are_fixtures() -> None:
    assert FILES
    assert all(json.loads(file.read_text())["expect"] for file in FILES)
