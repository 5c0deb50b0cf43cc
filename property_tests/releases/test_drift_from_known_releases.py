"""What `specsim targets TARGET` says of a source: what lifts, what drifted since a known release, and what has to be
added.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from property_tests.support.command_line import specsim
from property_tests.support.known_releases import RELEASES
from property_tests.support.made_up_sources import MadeUpSource
from specsim.engines.sglang import known
from specsim.engines.sglang.known import Drift, Surveyed
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree

Release = Callable[[str], SourceTree]
VERSION, NEXT = RELEASES[2:4]
UTILS = "srt/speculative/spec_utils.py"
SLOTS = "fill_accept_out_cache_loc:function:get_src_tgt_cache_loc"


@pytest.fixture(scope="module")
def functions(release: Release, wheel_cache: Cache) -> list[Surveyed]:
    return known.survey(release(VERSION), wheel_cache)


def beside(source: SourceTree, cache: Cache) -> tuple[dict[str, Drift], list[str]]:
    """Each function of a source beside the known release, and what has to be added."""
    found = known.drifts(known.survey(source, cache), VERSION, known.load_known())
    return {drift.function.key: drift for drift in found}, known.to_add(source.version, found)


def edited(source: SourceTree, path: str, before: str, after: str) -> MadeUpSource:
    text = source.read(path)
    assert before in text
    return MadeUpSource({path: text.replace(before, after)}, base=source)


def test_the_data_file_knows_every_release() -> None:
    releases = {r for bodies in known.load_known().values() for body in bodies for r in body.releases}
    assert releases == set(RELEASES)


def test_the_data_file_is_what_the_command_makes(functions: list[Surveyed]) -> None:
    made = known.known_to_json({VERSION: functions})["functions"]
    assert made == {
        key: [{"parameters": list(b.parameters), "body_hash": b.body_hash, "releases": [VERSION]}]
        for key, bodies in known.load_known().items()
        for b in bodies
        if VERSION in b.releases
    }


def test_a_release_is_added_to_the_data_file_and_the_others_stay(functions: list[Surveyed]) -> None:
    known_before = json.loads(known.FILE.read_text())
    assert known.known_to_json(known.surveys_of(known.load_known())) == known_before
    changed = [
        replace(function, body_hash=f"{function.body_hash}, changed") for function in functions if function.where
    ]
    made = known.known_to_json({**known.surveys_of(known.load_known()), VERSION: changed})["functions"]
    for key, bodies in known_before["functions"].items():
        others = {r for body in bodies for r in body["releases"]} - {VERSION}
        assert {r for body in made[key] for r in body["releases"]} >= others
    of_version = [body["body_hash"] for bodies in made.values() for body in bodies if VERSION in body["releases"]]
    assert of_version
    assert all(body_hash.endswith(", changed") for body_hash in of_version)


def test_a_file_that_holds_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"releases": []}')
    with pytest.raises(UsageError, match=r"other\.json is no data file of known functions"):
        known.load_known(tmp_path / "other.json")


def test_a_known_release_has_not_drifted_and_nothing_has_to_be_added(functions: list[Surveyed]) -> None:
    found = known.drifts(functions, VERSION, known.load_known())
    assert {drift.state for drift in found} == {"same"}
    assert known.to_add(VERSION, found) == []


def test_a_changed_body_is_reported_by_its_hash_and_needs_nothing(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(VERSION), UTILS, "extended_len - keep_len", "extended_len - keep_len + 0")
    found, todo = beside(source, wheel_cache)
    changed = {key for key, drift in found.items() if drift.state == "changed"}
    assert changed == {f"ops:{SLOTS}"}
    assert found[f"ops:{SLOTS}"].text.startswith("body was ")
    assert todo == []


def test_a_changed_signature_is_not_run_and_has_to_be_read(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(VERSION), UTILS, "def get_src_tgt_cache_loc(", "def get_src_tgt_cache_loc(\n    fresh,")
    found, todo = beside(source, wheel_cache)
    drift = found[f"ops:{SLOTS}"]
    assert (drift.state, "signature changed" in drift.text) == ("not run", True)
    (text,) = [text for text in todo if text.startswith(SLOTS)]
    assert "the tables KERNELS and CALLERS" in text
    assert "fresh" in text


def test_a_function_that_moved_away_has_to_be_found(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(VERSION), UTILS, "def get_src_tgt_cache_loc", "def renamed")
    found, todo = beside(source, wheel_cache)
    assert found[f"ops:{SLOTS}"].state == "not run"
    assert any(text.startswith(SLOTS) and "add where it lives now" in text for text in todo)


def test_an_unknown_release_is_compared_with_the_newest_before_it(functions: list[Surveyed]) -> None:
    table = known.load_known()
    assert known.nearest_release(f"{VERSION}.post7", functions, table) == NEXT
    assert known.nearest_release("9.9.9", functions, table) == RELEASES[-1]
    assert known.nearest_release("0.0.1", functions, table) == RELEASES[0]
    assert any("releases.txt" in text for text in known.to_add("9.9.9", []))


def test_a_checkout_is_compared_with_the_release_that_it_shares_most_with(functions: list[Surveyed]) -> None:
    assert known.nearest_release(None, functions, known.load_known()) in (VERSION, NEXT)
    assert known.nearest_release(None, functions, {}) == ""


@pytest.mark.slow
def test_the_command_says_it_in_one_screen_and_as_json(release: Release, tmp_path: Path) -> None:
    release(VERSION)
    ended = specsim(tmp_path, "targets", f"sglang=={VERSION}", "--json", "survey.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "nothing has to be added" in ended.stdout
    (entry,) = json.loads((tmp_path / "survey.json").read_text())["targets"]
    assert (entry["nearest"], entry["to_add"]) == (VERSION, [])
    assert all(function["where"] or function["text"] for function in entry["functions"])
