"""The page of bugs is what the triage list says, each bug can be seen, and the README says the same of fewer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from property_tests.support.bugs_page import of_users, page, row
from property_tests.support.checked_features import ALWAYS, FEATURES, Feature, judged_of
from property_tests.support.known_releases import RELEASES
from specsim.commands.asked import FIXTURES
from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.engines.triage import Triage
from specsim.findings.explain import fixtures_of
from specsim.lifting.source import SourceTree
from specsim.world.scheduler import Setup

ROOT = Path(__file__).parents[2]
ROWS = [" | ".join(row(entry)) for entry in of_users()]
SHOWN = [line for line in (ROOT / "README.md").read_text().splitlines() if re.match(r"\| .*(PR|issue|report)", line)]


def test_the_page_is_of_the_triage_list() -> None:
    assert (ROOT / "docs" / "bugs.md").read_text() == page(), "run `make pages`"
    assert len(ROWS) >= 10


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_what_shows_that_a_feature_is_checked_is_there(feature: Feature) -> None:
    assert set(feature.setup) <= {ALWAYS, *Setup.__slots__}
    assert feature.drawn in {"", *FACTS.features}
    assert set(feature.judged) <= judged_of(RELEASES[-1])


@pytest.mark.parametrize("version", RELEASES[-1:])
def test_the_options_are_server_arguments(release: Callable[[str], SourceTree], version: str) -> None:
    source = release(version)
    groups = [source.read(path) for path in source.paths("srt/arg_groups/fields")]
    fields = {field for text in groups for field in re.findall(r"^    (\w+): ", text, re.MULTILINE)}
    assert {feature.option for feature in FEATURES} - {""} <= fields


@pytest.mark.parametrize("entry", of_users(), ids=lambda entry: f"{entry.signature}-{entry.first}")
def test_a_replay_file_shows_each_bug_on_a_release_of_its_span(entry: Triage) -> None:
    shown = [
        one for fixture in fixtures_of(FIXTURES) if fixture.signature == entry.signature for one in fixture.shown_on
    ]
    assert any(entry.covers(target.partition("==")[2]) for target in shown if target.startswith("sglang=="))


@pytest.mark.parametrize("line", SHOWN)
def test_the_readme_says_what_the_page_says(line: str) -> None:
    _, _, _, said, _ = (cell.strip() for cell in line.split("|"))
    span, _, more = said.partition(", ")
    named = re.sub(r"\[.*\]\(docs/(.*)\)", r"\1", more)
    assert any(span in one and named in one for one in ROWS), line


def test_the_readme_shows_some() -> None:
    assert len(SHOWN) >= 5
