"""Schedules of releases: what each shows, and that they are the same in two processes under two hash seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from property_tests.support.known_releases import FEW, FIXTURES, RELEASES
from property_tests.support.release_schedules import SCHEDULES, shown_by, signatures_of
from property_tests.support.replay_fixtures import EXPECT, FILES
from specsim import replay_file
from specsim.lifting.source import SourceTree
from specsim.replay_file import SchedulerReplay

ONE = FEW[2]  # every run of the tests reads it, `make test-releases` the others
FAMILIES = (ONE, RELEASES[6], RELEASES[11], RELEASES[-1])  # a release of each family of schedulers
OTHERS = [version for version in RELEASES if version != ONE]
EXPECTED = json.loads((FIXTURES / "scheduler.expected.json").read_text(encoding="utf-8"))
REPLAYS = [file for file in FILES if isinstance(replay_file.load(file), SchedulerReplay)]


def files_of(version: str) -> tuple[Path, ...]:
    """The fixtures of the tier of which it is known whether the release shows them."""
    return tuple(file for file in REPLAYS if f"sglang=={version}" in EXPECT[file.stem])


@pytest.fixture
def opened(release: Callable[[str], SourceTree], pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Skips the test where a release is not there."""

    def open_release(version: str) -> None:
        if version != ONE and not pytestconfig.getoption("--all-releases"):
            pytest.skip(f"sglang=={version} is tested by `make test-releases`")
        release(version)

    return open_release


@pytest.mark.slow
@pytest.mark.parametrize("version", [ONE, *OTHERS])
def test_schedules_of_a_release_show_what_is_expected(version: str, opened: Callable[[str], None]) -> None:
    opened(version)
    shown = shown_by(version, SCHEDULES, "0")
    assert signatures_of(shown["schedules"]) == EXPECTED[version]


@pytest.mark.parametrize("version", [ONE, *OTHERS])
def test_fixtures_show_on_a_release_what_is_expected(version: str, opened: Callable[[str], None]) -> None:
    opened(version)
    shown = shown_by(version, 0, "0", files_of(version))["files"]
    for file in files_of(version):
        stored = replay_file.load(file)
        was = EXPECT[file.stem][f"sglang=={version}"]["shows"]
        assert (stored.signature in shown[file.stem]["signatures"]) is was, file.name
        if stored.target == f"sglang=={version}":
            assert shown[file.stem]["digest"] == stored.digest, file.name


@pytest.mark.slow
@pytest.mark.parametrize("version", [ONE, *OTHERS])
def test_schedules_are_the_same_in_two_processes_under_two_hash_seeds(
    version: str, opened: Callable[[str], None]
) -> None:
    opened(version)
    first, again = (shown_by(version, SCHEDULES, seed)["schedules"] for seed in ("0", "7"))
    assert first == again


@pytest.mark.slow
@pytest.mark.parametrize("version", FAMILIES)
def test_two_hundred_schedules_are_the_same_under_two_hash_seeds(version: str, opened: Callable[[str], None]) -> None:
    opened(version)
    first, again = (shown_by(version, 200, seed)["schedules"] for seed in ("1", "7"))
    assert first == again
