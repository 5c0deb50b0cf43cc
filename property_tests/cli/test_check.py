"""`specsim check` from the outside: verdicts, findings, exit codes, and bad input that ends in one sentence."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from property_tests.support.wrong_providers import WRONG
from specsim.cli import main
from specsim.engines.triage import triage_of
from specsim.lifting.cache import Cache

MISBEHAVING = """
    import os
    import time

    import torch

    def hangs(predict, accept_index, accept_lens):
        while True:
            time.sleep(0.01)

    def dies(**arguments):
        os.abort()

    def right(predict, accept_index, accept_lens):
        print("a target may print what it likes")
        at = accept_index.gather(1, (accept_lens - 1).long()[:, None]).long()
        return predict[at[:, 0]]

    hanging = {"fill_bonus_tokens": hangs}
    dying = {"verify_tree_greedy": dies, "fill_bonus_tokens": right}
    printing = {"fill_bonus_tokens": right}
    number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(textwrap.dedent(WRONG))
    (tmp_path / "bad.py").write_text(textwrap.dedent(MISBEHAVING))
    (tmp_path / "broken.py").write_text("1 / 0\n")
    return tmp_path


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The replay file of a finding of `mine:provider`."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "mine.py").write_text(textwrap.dedent(WRONG))
    specsim(folder, "check", "mine:provider", "--cases", "5", "--device", "cpu")
    (file,) = (folder / "specsim-findings").glob("*.json")
    return file.read_text()


def refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str
) -> tuple[int, str]:
    """The exit code and standard error of a command line that is refused: in this process, which is sooner."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPECSIM_CACHE_DIR", str(folder / "cache"))
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0), capsys.readouterr().err


def verdict_of(folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    specsim(folder, "check", *arguments, "--json", "verdict.json", "--device", "cpu", **environment)
    data: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return data


def test_the_model_has_no_finding(folder: Path) -> None:
    ended = specsim(folder, "check", "--cases", "2", "--schedules", "16", "--device", "cpu")
    assert ended.returncode == 0, ended.stderr
    assert "pass: no findings" in ended.stdout
    assert not (folder / "specsim-findings").exists()


def test_the_verdict_has_the_documented_form(folder: Path) -> None:
    data = verdict_of(folder, "mine:provider", "--cases", "15", "--seed", "7")
    assert set(data) == {"format", "specsim", "target", "seed", "verdict", "suites", "findings"}
    assert (data["format"], data["target"], data["seed"], data["verdict"]) == (
        "specsim.verdict/2",
        "mine:provider",
        7,
        "fail",
    )
    suite, *others = data["suites"]
    assert [[entry["what"] for entry in one["not_run"]] for one in others] == [["scheduler"]]
    lists = {"judged", "not_run", "setups", "nondeterministic", "ran_lines", "coverage", "trees"}
    assert set(suite) == {"name", "cases", "schedules", "events"} | lists
    assert (suite["name"], suite["cases"], suite["schedules"], suite["events"]) == ("ops", 15, 0, 0)
    assert all(set(entry) == {"what", "why"} for entry in suite["not_run"])
    (finding,) = data["findings"]
    assert set(finding) == {
        "rule",
        "sentence",
        "title",
        "signature",
        "tier",
        "severity",
        "reach",
        "where",
        "expected",
        "actual",
        "replay",
        "count",
        "details",
        "triage",
        "changed",
        "op",
        "provider",
        "blame",
        "arguments",
        "fixture",
        "follows",
        "wait",
        "tree",
    }
    assert finding["severity"] == "wrong-result"
    assert finding["reach"] == "unknown"
    assert finding["where"] == "mine.py:2"
    assert finding["expected"] != finding["actual"]


def test_a_users_wrong_provider_gives_one_readable_minimal_finding(folder: Path) -> None:
    ended = specsim(folder, "check", "mine:provider", "--cases", "40", "--device", "cpu")
    assert ended.returncode == 1
    assert "fill_bonus_tokens: bonus_tokens[0] differs from the reference" in ended.stdout
    assert "topk=1, num_steps=1, num_draft_tokens=2, bs=1" in ended.stdout
    assert "fail: 1 finding" in ended.stdout


@pytest.mark.slow
def test_a_replay_is_the_same_in_another_process_with_another_hash_seed(folder: Path) -> None:
    specsim(folder, "check", "mine:provider", "--cases", "20", "--device", "cpu", PYTHONHASHSEED="1")
    (file,) = (folder / "specsim-findings").glob("*.json")
    first = file.read_bytes()
    for hash_seed in ("2", "random"):
        ended = specsim(folder, "replay", str(file), "--trust", PYTHONHASHSEED=hash_seed)
        assert ended.returncode == 1, ended.stderr
        assert "reproduced, bit for bit" in ended.stdout
    specsim(folder, "check", "mine:provider", "--cases", "20", "--device", "cpu", PYTHONHASHSEED="3")
    assert file.read_bytes() == first


@pytest.mark.slow
def test_a_replay_says_when_it_is_not_reproduced_and_when_the_code_has_changed(folder: Path) -> None:
    specsim(folder, "check", "mine:provider", "--cases", "20", "--device", "cpu")
    (file,) = (folder / "specsim-findings").glob("*.json")
    on_the_model = specsim(folder, "replay", str(file), "--target", "model")
    assert (on_the_model.returncode, "not reproduced" in on_the_model.stdout) == (0, True)
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "digest": "0" * 64}))
    changed = specsim(folder, "replay", str(file), "--trust")
    assert (changed.returncode, "nondeterministic" in changed.stdout) == (3, True)
    file.write_text(json.dumps({**data, "digest": "0" * 64, "source_hash": "another"}))
    assert "the code has changed" in specsim(folder, "replay", str(file), "--trust").stdout


def test_a_call_that_hangs_is_a_finding(folder: Path) -> None:
    data = verdict_of(folder, "bad:hanging", "--hang-seconds", "2", "--no-shrink")
    (finding,) = data["findings"]
    assert (finding["rule"], finding["actual"]) == ("O7", "does not end within 2 s")
    ended = specsim(folder, "replay", finding["replay"], "--target", "bad:hanging", "--hang-seconds", "2")
    assert (ended.returncode, "does not end within 2 s" in ended.stdout) == (1, True)


def test_a_call_that_ends_its_process_is_a_finding_and_the_rest_goes_on(folder: Path) -> None:
    data = verdict_of(folder, "bad:dying", "--cases", "5")
    (finding,) = data["findings"]
    assert (finding["rule"], finding["actual"]) == ("O8", "ends its process (SIGABRT)")
    checked = {entry["op"]: entry["cases"] for entry in data["suites"][0]["judged"]}
    assert checked["fill_bonus_tokens"] == 5


@pytest.mark.slow
def test_what_a_target_prints_is_not_taken_for_an_answer(folder: Path) -> None:
    assert verdict_of(folder, "bad:printing", "--cases", "5")["verdict"] == "pass"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_verdict_and_a_commit_hash_is_a_seed(folder: Path) -> None:
    commit = "3417a56b96a9ac473c673bc7bc480c20f3bc3d5f"
    first = verdict_of(folder, "mine:provider", "--cases", "10", "--seed", commit)
    again = verdict_of(folder, "mine:provider", "--cases", "10", "--seed", commit)
    assert first == again


@pytest.mark.slow
def test_a_budget_that_is_spent_is_reported_and_not_counted_as_passed(folder: Path) -> None:
    data = verdict_of(folder, "model", "--budget-seconds", "1", "--cases", "100000")
    assert data["times"]["suites"]["ops"] <= data["times"]["seconds"] < 30
    assert data["suites"][0]["cases"] >= 1


BAD_INPUT = [
    (["check", "tensorrt==0.9"], "tensorrt==0.9"),
    (["check", "sglang==not-a-version"], "not-a-version"),
    (["check", "sglang@no/such/path"], "no/such/path"),
    (["check", "no_such_module:thing"], "no_such_module"),
    (["check", "mine:absent"], "absent"),
    (["check", "bad:number"], "is a int"),
    (["check", "broken:provider"], "ZeroDivisionError"),
    (["check", "--only", "kernels"], "--only 'kernels' is unknown"),
    (["check", "--device", "tpu"], "--device 'tpu' is unknown"),
    (["check", "--seed", "x"], "--seed 'x'"),
    (["check", "mine:provider", "--out", "mine.py"], "--out mine.py"),
    (["replay", "absent.json"], "cannot read absent.json"),
    (["replay", "mine.py"], "is not complete JSON"),
    (["replay", "other.json"], "is not a specsim replay file"),
    (["replay", "future.json"], "specsim.replay/99"),
    (["replay", "binary.json"], "is not a text file"),
    (["bench", "no_such_bench"], "no_such_bench"),
    (["targets", "--fetch", "model"], "is not a release"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT, ids=[" ".join(arguments) for arguments, _ in BAD_INPUT])
def test_bad_input_is_one_clear_sentence_with_exit_code_2(
    folder: Path,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "other.json").write_text('{"a": 1}')
    (folder / "future.json").write_text('{"format": "specsim.replay/99", "specsim": "9.0"}')
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00\x80")
    before = {p.name for p in folder.iterdir()}
    if any(":" in argument for argument in arguments):  # a module of the folder is imported
        ended = specsim(folder, *arguments)
        code, text = ended.returncode, ended.stderr
    else:
        code, text = refused(capsys, monkeypatch, folder, *arguments)
    assert code == 2
    assert words in text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) == 2
    assert {p.name for p in folder.iterdir()} - before <= {"__pycache__", "cache"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "unknown_op"}, "'unknown_op'"),
        ({"tensors": {}}, "cannot be read"),
        ({"sizes": {"bs": -1}}, "sizes['bs'] is -1"),
        ({"tape": None}, "field 'tape'"),
        ({"tier": "kernels"}, "tier 'kernels' is unknown"),
        ({"tier": "scheduler"}, "field 'part' is missing"),
        ({"tape": [1, -2]}, "tape must hold integers of at least 0"),
        ({"target": "tensorrt==1.0"}, "tensorrt==1.0"),
        ({"subject": "caller:Worker.verify", "target": "sglang@nowhere"}, "nowhere"),
    ],
)
def test_a_damaged_replay_file_is_refused_by_its_field(
    folder: Path,
    stored: str,
    change: dict[str, Any],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = folder / "damaged.json"
    file.write_text(json.dumps({**json.loads(stored), **change}))
    code, text = refused(capsys, monkeypatch, folder, "replay", str(file), "--trust")
    assert code == 2
    assert words in text
    assert "Traceback" not in text


def test_a_truncated_replay_file_is_refused(folder: Path, stored: str) -> None:
    file = folder / "truncated.json"
    file.write_text(stored[:-40])
    ended = specsim(folder, "replay", str(file))
    assert (ended.returncode, "may be truncated" in ended.stderr) == (2, True)


def test_targets_lists_what_works_and_why_the_rest_does_not(folder: Path) -> None:
    ended = specsim(folder, "targets", "--json", "targets.json")
    data = json.loads((folder / "targets.json").read_text())
    assert ended.returncode == 0
    assert data["targets"][0] == {
        "target": "model",
        "tiers": ["ops", "scheduler"],
        "note": "the built-in engine with specsim's own kernels",
    }
    assert any("scheduler" in entry["tiers"] for entry in data["targets"])
    assert all(entry["why"] for entry in data["not_run"])


@pytest.mark.slow
def test_a_finding_of_a_release_is_found_and_replayed_through_the_command_line(
    folder: Path, release: Any, wheel_cache: Cache
) -> None:
    expected = json.loads((Path(__file__).parents[2] / "fixtures" / "releases.expected.json").read_text())
    version = next(v for v, e in expected.items() if e["findings"])
    release(version)
    cache = str(wheel_cache.folder)
    data = verdict_of(folder, f"sglang=={version}", "--only", "ops", "--cases", "3", SPECSIM_CACHE_DIR=cache)
    found = {finding["signature"]: finding for finding in data["findings"]}
    assert all(triage_of("sglang", signature, version) for signature in found)
    finding = found["ops:fill_bonus_tokens:caller:EAGLEWorkerV2.verify"]
    assert finding["reach"].startswith("guarded:")
    assert "caller" in finding["title"]
    ended = specsim(folder, "replay", finding["replay"], SPECSIM_CACHE_DIR=cache)
    assert (ended.returncode, "reproduced, bit for bit" in ended.stdout) == (1, True)
