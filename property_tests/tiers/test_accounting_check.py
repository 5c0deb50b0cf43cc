"""The accounting tier from the outside: schedules, mutants, replays, shrinking, and what bad input ends as."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def verdict_of(folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    specsim(folder, "dev", "check", *arguments, "--only", "accounting", "--json", "verdict.json", **environment)
    data: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return data


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is in a replay file of a bug that was put back into the model."""
    folder = tmp_path_factory.mktemp("found")
    (finding,) = verdict_of(folder, "model", "--mutant", "A01", "--schedules", "60")["findings"]
    data: dict[str, Any] = json.loads((folder / finding["replay"]).read_text())
    return data


@pytest.mark.slow
def test_the_model_is_simulated_and_reports_nothing(folder: Path) -> None:
    data = verdict_of(folder, "model", "--schedules", "300")
    (suite,) = data["suites"]
    assert (data["verdict"], suite["name"], suite["schedules"], suite["cases"]) == ("pass", "accounting", 300, 0)
    assert suite["events"] > 5000
    assert {part["kind"] for part in suite["seam"]} == {"model"}


IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
# The rule that is named first for each bug that is put back; two of them at every run, all by the nightly profile.
MUTANTS = {
    "A01": {"accounting:I53:short:session save"},
    "A02-finished": {"accounting:I31:resolve"},
    "A02-retracted": {"accounting:I32:resolve"},
    "A03": {"accounting:I53:long:session save"},
    "D02": {"accounting:I42:bonus"},
}


@pytest.mark.parametrize("mutant", list(MUTANTS) if IS_NIGHTLY else ["A01", "D02"])
@pytest.mark.slow(runs_one_in=3)
def test_a_bug_that_is_put_back_into_the_model_is_found_and_replayed(folder: Path, mutant: str) -> None:
    data = verdict_of(folder, "model", "--mutant", mutant, "--schedules", "100")
    found = {finding["signature"]: finding for finding in data["findings"]}
    assert set(found) >= MUTANTS[mutant]
    finding = found[min(MUTANTS[mutant])]
    assert finding["count"] >= 1
    for hash_seed in ("1", "random"):
        ended = specsim(folder, "replay", finding["replay"], PYTHONHASHSEED=hash_seed)
        assert ended.returncode == 1, ended.stderr
        assert "reproduced, bit for bit" in ended.stdout
    on_the_model = json.loads((folder / finding["replay"]).read_text())
    (folder / "sound.json").write_text(json.dumps({**on_the_model, "mutant": ""}))
    ended = specsim(folder, "replay", "sound.json")
    assert (ended.returncode, "not reproduced" in ended.stdout) == (0, True)


def test_a_replay_shows_every_event_on_a_line_under_a_key_of_the_columns(folder: Path, stored: dict[str, Any]) -> None:
    (folder / "found.json").write_text(json.dumps(stored))
    shown = specsim(folder, "replay", "found.json").stdout.splitlines()
    start = next(i for i, line in enumerate(shown) if line.lstrip().startswith("#  agent"))
    events = [line for line in shown[start + 1 :] if re.match(r" +\d+  (host|device) ", line)]
    assert [int(line.split()[0]) for line in events] == list(range(len(events)))
    assert len(events) >= 5
    assert any("I53" in line for line in shown[start:])


def test_shrinking_makes_a_smaller_schedule_of_the_same_defect(folder: Path, stored: dict[str, Any]) -> None:
    for padding in (6, 5, 4, 3, 2, 1, 0):  # a longer tape that shows the same
        candidate = {**stored, "tape": [*stored["tape"], *([1] * padding)]}
        (folder / "large.json").write_text(json.dumps(candidate))
        if specsim(folder, "replay", "large.json").returncode in (1, 3):
            break
    ended = specsim(folder, "shrink", "large.json", "--out", "smaller")
    assert ended.returncode == 0, ended.stderr
    (smaller,) = (folder / "smaller").iterdir()
    data = json.loads(smaller.read_text())
    assert len(data["tape"]) <= len(candidate["tape"])
    assert data["signature"] == stored["signature"]
    assert specsim(folder, "replay", str(smaller)).returncode == 1


def test_a_replay_from_before_a_change_of_the_simulator_says_so(folder: Path, stored: dict[str, Any]) -> None:
    (folder / "old.json").write_text(json.dumps({**stored, "model_hash": "0" * 16, "digest": "0" * 32}))
    ended = specsim(folder, "replay", "old.json")
    assert ended.returncode == 1
    assert "before a change of the simulator" in ended.stdout
    (folder / "odd.json").write_text(json.dumps({**stored, "digest": "0" * 32}))
    ended = specsim(folder, "replay", "odd.json")
    assert (ended.returncode, "nondeterministic" in ended.stdout) == (3, True)


def test_any_tape_is_valid(folder: Path, stored: dict[str, Any]) -> None:
    (folder / "wild.json").write_text(json.dumps({**stored, "tape": [10**9] * 500}))
    ended = specsim(folder, "replay", "wild.json")
    assert ended.returncode in (0, 1)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dev", "check", "model", "--mutant", "Z99"], "there is no mutant 'Z99'"),
        (["dev", "check", "sglang@.", "--mutant", "A01"], "--mutant A01 with sglang@."),
        (["shrink", "absent.json"], "cannot read absent.json"),
        (["shrink", "calm.json"], "does not show accounting:I53:short:session save"),
    ],
)
def test_bad_input_is_one_clear_sentence_with_exit_code_2(folder: Path, arguments: list[str], words: str) -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "replays" / "session-one-token-short.json"
    (folder / "calm.json").write_text(json.dumps({**json.loads(fixture.read_text()), "tape": [], "mutant": ""}))
    ended = specsim(folder, *arguments)
    assert ended.returncode == 2, ended.stdout
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
