"""Where functions live: one that has moved is drift, and one line of the table of addresses has it run again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from property_tests.support.known_releases import NEWEST, RELEASES, SGLANG
from property_tests.support.moved_function import made_up_wheel, moved
from specsim.engines.sglang import known
from specsim.engines.sglang.where import PLACES, files, places
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree, WheelSource

Release = Callable[[str], SourceTree]
ADDRESSES = "specsim/engines/sglang/where.py"
ELSEWHERE = "srt/speculative/steps.py"
_NEWEST = Version(RELEASES[-1])
FRESH = f"{_NEWEST.major}.{_NEWEST.minor}.{_NEWEST.micro + 1}"
"""The release after the newest."""

OF_DECODE = "ops:assign_req_to_token_pool:caller:EagleDraftInputV2Mixin.prepare_for_decode"
MOVES = {  # of a name in the table: the calls that stand in its function
    (NEWEST, "prepare_for_decode"): {OF_DECODE},
    (RELEASES[-1], "prepare_for_decode"): {OF_DECODE},
    (RELEASES[-1], "run_eagle_verify"): {
        "ops:fill_bonus_tokens:caller:EAGLEWorkerV2.verify",
        "ops:verify_commit_outputs:caller:run_eagle_verify",
        "ops:verify_commit_outputs:caller:run_eagle_verify, chains",
        "ops:verify_logits_greedy:caller:EAGLEWorkerV2.verify, whole",
    },
}


def run_with_one_more_line(wheel: Path, keys: set[str], *line: str) -> dict[str, Any]:
    ops = ",".join(sorted({key.split(":")[1] for key in keys}))
    command = [sys.executable, "-m", "property_tests.support.moved_function", str(wheel), ops, *line]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True)
    data: dict[str, Any] = json.loads(ended.stdout)
    return data


@pytest.mark.parametrize(("version", "name"), list(MOVES))
def test_a_function_that_moved_is_drift_until_its_address_has_one_more_line(
    version: str, name: str, release: Release, wheel_cache: Cache, tmp_path: Path
) -> None:
    source, keys = release(version), MOVES[version, name]
    old = next(place for place in places(name) if source.exists(place[0]) and _name(place) in source.read(place[0]))
    new = (ELSEWHERE, _name(old))
    wheel = made_up_wheel(tmp_path, source, FRESH, moved(source, old, new))
    found = known.drifts(known.survey(WheelSource(wheel, SGLANG), wheel_cache), version, known.load_known())
    assert {drift.function.key for drift in found if drift.state != "same"} == keys
    assert {drift.state for drift in found if drift.function.key in keys} == {"not run"}
    assert any(f"add where it lives now to {ADDRESSES}" in text for text in known.to_add(FRESH, found))
    made = run_with_one_more_line(wheel, keys, name, *new)
    assert {key for key, where in made["run"].items() if where.startswith(f"{ELSEWHERE}:")} == keys
    assert made["wrong"] == []


def _name(place: tuple[str, str]) -> str:
    return place[1].rpartition(".")[2]


def test_a_method_without_a_line_of_its_own_is_where_its_class_is() -> None:
    assert "FutureMap._resolve_spec_extras" not in PLACES
    assert places("FutureMap._resolve_spec_extras") == tuple(
        (path, f"{name}._resolve_spec_extras") for path, name in places("FutureMap")
    )


def test_every_name_has_places_and_each_of_them_once() -> None:
    for name in PLACES:
        assert files(name)
        assert len(set(places(name))) == len(places(name))
