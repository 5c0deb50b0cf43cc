"""The states on the page of a release's schedule: nothing is called wrong that is not, and what was read wrongly is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from property_tests.support.known_releases import NEWEST
from property_tests.support.replay_fixtures import EXPECT, FILES
from specsim import replay_file
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree
from specsim.replay_file import SchedulerReplay
from specsim.rules.table import BY_ID
from specsim.tiers.process import ask_again
from specsim.tiers.replaying import replay, request_of
from specsim.verdict import Severity

TARGET = f"sglang=={NEWEST}"
STORED = {file.stem: replay_file.load(file) for file in FILES}
OURS = [name for name, stored in STORED.items() if isinstance(stored, SchedulerReplay) and TARGET in EXPECT[name]]
READS = [name for name in OURS if STORED[name].rule == "I05" and EXPECT[name][TARGET]["shows"]]
GONE = [name for name in OURS if not EXPECT[name][TARGET]["shows"]]


@pytest.fixture(scope="module")
def recorded(release: Callable[[str], SourceTree], wheel_cache: Cache) -> Callable[[str], dict[str, Any]]:
    """The answer to a recorded replay of a fixture on the newest release that every run reads."""

    @cache
    def run(name: str) -> dict[str, Any]:
        release(NEWEST)
        (file,) = [one for one in FILES if one.stem == name]
        return replay(request_of(STORED[name], TARGET, wheel_cache.folder, 30.0), file, ask=ask_again, record=True)

    return run


def wrong(states: list[dict[str, Any]]) -> Iterator[tuple[int, str, list[Any]]]:
    """Slots that two have, or that hold what they should not."""
    for number, state in enumerate(states):
        for slot, leaf in state["slots"].items():
            if " and " in leaf[0] or (leaf[3] and leaf[2] != leaf[3]):
                yield number, slot, leaf


def broken(answer: dict[str, Any]) -> list[str]:
    """The rules that a schedule broke, but for those of what is only counted."""
    rules = [BY_ID[violation["signature"].split(":")[1]] for violation in answer["violations"]]
    return [rule.id for rule in rules if rule.severity is not Severity.METRIC]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if i % 5 else ()) for i, n in enumerate(GONE)])
def test_nothing_is_wrong_in_a_schedule_that_breaks_no_rule(
    name: str, recorded: Callable[[str], dict[str, Any]]
) -> None:
    answer = recorded(name)
    recording = answer["recording"]
    assert recording["unreadable"] == ""
    assert len(recording["states"]) == sum(step[1] == "mark" for step in recording["steps"])
    owned = [leaf for state in recording["states"] for leaf in state["slots"].values() if leaf[3]]
    assert owned
    if not broken(answer):
        assert list(wrong(recording["states"])) == []


def test_there_are_schedules_that_break_no_rule(recorded: Callable[[str], dict[str, Any]]) -> None:
    assert any(not broken(recorded(name)) for name in GONE[::5])


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if i else ()) for i, n in enumerate(READS)])
def test_the_slot_that_was_read_is_named_with_what_it_holds(
    name: str, recorded: Callable[[str], dict[str, Any]]
) -> None:
    from specsim.tiers.registry import TIERS

    answer = recorded(name)
    stored = STORED[name]
    page = TIERS["scheduler"].page(stored, TARGET, answer)
    (violation,) = [v for v in page.parts["violations"] if v["signature"] == stored.signature]
    if stored.signature not in answer["recording"]["read"]:
        assert ":window:" in stored.signature
        return
    slot, position = answer["recording"]["read"][stored.signature]
    leaf = page.parts["play"]["changes"][violation["event"]]["slots"][str(slot)]
    assert (leaf[0], leaf[1], leaf[3]) == (violation["who"], position, f"{violation['who']}@{position}")
    assert leaf[2] != leaf[3]
