"""Who has a server that a setup is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from property_tests.support.known_releases import NEWEST
from specsim.engines.sglang.guards import Guards, read_guards
from specsim.engines.sglang.scheduler.setups import reach_of
from specsim.lifting.source import SourceTree
from specsim.world.scheduler import Setup

OPEN = Guards("", tree_is_default=True, overlap_is_default=True)


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        (Setup(), "default"),
        (Setup(slots=64, rows=2, chunk=8, window=8, reserve=0.1, graphs=True, context=62), "default"),
        (Setup(topk=2), "default"),
        (Setup(page_size=4), "option"),
        (Setup(steps=1, draft_tokens=2), "option"),
        (Setup(sessions=True), "option"),
        (Setup(overlap=False), "option"),
        (Setup(adaptive=True), "option"),
    ],
)
def test_what_a_server_is_told_is_an_option_and_what_its_size_decides_is_not(setup: Setup, expected: str) -> None:
    assert reach_of(setup, OPEN) == expected


def test_a_guard_of_the_source_is_named() -> None:
    guarded = replace(OPEN, tree_overlap="a.py:1", session_overlap="b.py:2")
    assert reach_of(Setup(topk=2), guarded) == "guarded:a.py:1"
    assert reach_of(Setup(topk=2, overlap=False), guarded) == "option"
    assert reach_of(Setup(sessions=True), guarded) == "guarded:b.py:2"


def test_a_switch_of_the_source_makes_all_of_overlap_an_option() -> None:
    assert reach_of(Setup(), replace(OPEN, overlap_is_default=False)) == "option"


def test_the_default_setup_is_what_the_newest_release_gives_by_itself(release: Callable[[str], SourceTree]) -> None:
    assert reach_of(Setup(), read_guards(release(NEWEST))) == "default"
