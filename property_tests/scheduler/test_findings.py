"""The scheduler tier on releases and checkouts: what it finds, and what it says of those that it cannot run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.found_schedules import found_by
from property_tests.support.known_releases import FEW, RELEASES
from property_tests.support.scheduler_checkouts import checkout, specsim
from specsim.engines.sglang.scheduler.planted import planted
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree
from specsim.tiers.scheduler.answers import PER_RUST
from specsim.world.scheduler import Setup, rows_of

RACE = "scheduler:S2:race:req_to_token:ReqToTokenPool.write<RadixCache.cache_unfinished_req:the-model"
ENDS = "scheduler:I40:request"
VERSION, NEWEST = FEW[2], FEW[-1]
OF_BOTH_TREES = list(RELEASES)[-1]
FIRST = 36  # schedules, of which two show the race
BEFORE = list(RELEASES)[list(RELEASES).index(VERSION) - 1]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scheduler.md"


def refusal(setup: Setup) -> str:
    """Why that release does not run a setup."""
    if not setup.overlap:
        return "without overlap its worker is of spec v1, and keeps the accounts itself"
    return "the release turns mixed chunks off beside EAGLE" if setup.mixed else ""


@pytest.mark.slow(runs_one_in=2)
@pytest.mark.parametrize(
    ("mutant", "part"),
    [
        ("managers.schedule_batch:ScheduleBatch.prepare_for_extend:negate:is_dllm:0", "forward-mode"),
        ("mem_cache.radix_cache:RadixCache.cache_unfinished_req:drop-keyword:dtype:0", "prefix-slots"),
    ],
)
def test_a_batch_that_says_another_form_than_its_worker_reads_is_found(
    release: Callable[[str], SourceTree], wheel_cache: Cache, mutant: str, part: str
) -> None:
    release(NEWEST)
    assert f"scheduler:S13:{part}" in found_by(f"sglang=={NEWEST}", wheel_cache, 20, mutant=f"sglang.srt.{mutant}")


@pytest.mark.slow(runs_one_in=3)
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("raise RuntimeError('no device')", "RuntimeError: no device"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("scheduler = = 3", "SyntaxError: invalid syntax"),
    ],
)
def test_a_scheduler_that_cannot_be_imported_is_not_run_with_file_and_line(tmp_path: Path, line: str, why: str) -> None:
    target = checkout(tmp_path / "tree", f"import os\n{line}\n")
    out = tmp_path / "verdict.json"
    ended = specsim("check", f"sglang@{target}", "--only", "scheduler", "--schedules", "1", "--json", out)
    assert ended.returncode == 125
    (suite,) = json.loads(out.read_text())["suites"]
    (not_run,) = suite["not_run"]
    assert why in not_run["why"]
    assert not_run["why"].endswith("srt/managers/scheduler.py:2")


def test_a_scheduler_whose_import_ends_its_process_is_a_finding(tmp_path: Path) -> None:
    target = checkout(tmp_path / "tree", "import os\nos._exit(3)\n")
    out = tmp_path / "verdict.json"
    ended = specsim(
        "check", f"sglang@{target}", "--only", "scheduler", "--schedules", "1", "--json", out, "--out", tmp_path / "out"
    )
    assert ended.returncode == 1
    assert [finding["signature"] for finding in json.loads(out.read_text())["findings"]] == ["scheduler:X3:import"]


def test_the_page_names_every_setup() -> None:
    text = PAGE.read_text()
    assert [setup.name for setup in SETUPS if f"| {setup.name} |" not in text.replace("`", "")] == []


def test_what_no_schedule_runs_adds_up() -> None:
    """The statements that the page has of each part are those of its files in the measured coverage."""
    told = PAGE.read_text().partition("file by file](../")[2]
    files = json.loads((ROOT / told.partition(")")[0]).read_text())["coverage"]
    ran, total = (sum(counts[name] for counts in files.values()) for name in ("run", "statements"))
    assert f"run {ran:,} of {total:,} statements of {len(files)}\nfiles" in PAGE.read_text()
    table = told.partition("| -- | -- | -- |\n")[2].partition("\n\n")[0]
    for part, count, _what in (line.strip("|").split("|") for line in table.splitlines()):
        named = [f"/{name}" for name in re.findall(r"`([^`]+)`", part)]
        mine = [counts for path, counts in files.items() if any(name in path for name in named)]
        assert int(count.replace(",", "")) == sum(counts["statements"] - counts["run"] for counts in mine), part


@pytest.fixture(scope="module")
def checked(
    release: Callable[[str], SourceTree], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The verdict of the first default schedules, and the replay files by signature."""
    release(VERSION)
    folder = tmp_path_factory.mktemp("scheduler")
    out = folder / "verdict.json"
    limits = ("--schedules", str(FIRST), "--attempts", "80")
    arguments = ("--only", "scheduler", *limits, "--json", out, "--out", folder)
    ended = specsim("check", f"sglang=={VERSION}", *arguments)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    verdict = json.loads(out.read_text())
    return verdict, {finding["signature"]: finding["replay"] for finding in verdict["findings"]}


@pytest.mark.slow
def test_the_first_schedules_find_the_row_write_and_tokens_behind_an_end(
    checked: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    verdict, _replays = checked
    found = {finding["signature"]: finding for finding in verdict["findings"]}
    for signature in (RACE, _behind_an_end(found)):
        assert found[signature]["triage"].startswith("known, from ")
    details = [line for finding in verdict["findings"] for line in finding["details"]]
    assert not [line for line in details if "scheduler/worker.py" in line]  # a line of ours is none of the release's
    (suite,) = verdict["suites"]
    refused = {entry["what"]: entry["why"] for entry in suite["not_run"] if not entry["what"].startswith("schedules ")}
    setups = [SETUPS[row] for row in rows_of(SETUPS, "fake")]
    assert refused == {f"setup {setup.name}": why for setup in setups if (why := refusal(setup))}
    assert suite["schedules"] == FIRST - sum(bool(refusal(setups[i % len(setups)])) for i in range(FIRST))


def _behind_an_end(signatures: Iterable[str]) -> str:
    """The first of those whose request has tokens behind its stop token, its stop string or the end of its grammar."""
    return next(name for name in signatures if name.startswith(ENDS) and not name.endswith(":aborted"))


@pytest.mark.slow
def test_a_replay_file_has_one_digest_under_two_hash_seeds(checked: tuple[dict[str, Any], dict[str, Any]]) -> None:
    file = Path(checked[1][_behind_an_end(checked[1])])
    digest = json.loads(file.read_text())["digest"]
    for seed in ("0", "7"):
        ended = specsim("replay", file, hash_seed=seed)
        assert ended.returncode == 1, ended.stdout + ended.stderr
        assert digest in ended.stdout


@pytest.mark.slow
def test_a_finding_is_of_short_requests(checked: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """As drawn, a request has forty-odd tokens."""
    turns = json.loads(Path(checked[1][_behind_an_end(checked[1])]).read_text())["workload"]["turns"]
    assert sum(len(turn["prompt"]) + turn["answer"] for turn in turns) < 20 * len(turns)


@pytest.mark.slow
def test_a_schedule_runs_on_the_radix_tree_in_rust_where_this_python_can_load_it(
    release: Callable[[str], SourceTree], tmp_path: Path
) -> None:
    release(OF_BOTH_TREES)
    out = tmp_path / "verdict.json"
    limits = ("--only", "scheduler", "--schedules", str(PER_RUST), "--attempts", "0")
    ended = specsim("check", f"sglang=={OF_BOTH_TREES}", *limits, "--json", out, "--out", tmp_path)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    (suite,) = json.loads(out.read_text())["suites"]
    can_load = "radix tree in Rust" not in [entry["what"] for entry in suite["not_run"]]
    assert suite["trees"] == ["radix tree in Python", *["radix tree in Rust"] * can_load]
    assert suite["schedules"] == PER_RUST + can_load


def test_a_mutant_that_there_is_not_is_refused_with_the_list() -> None:
    ended = specsim("dev", "check", f"sglang=={VERSION}", "--only", "scheduler", "--mutant", "P99")
    assert ended.returncode == 2
    assert "there is no planted defect 'P99'" in ended.stderr
    assert all(defect in ended.stderr for defect in planted())


def test_a_mutant_of_another_release_is_refused_with_the_hash(release: Callable[[str], SourceTree]) -> None:
    release(NEWEST)
    ended = specsim("dev", "check", f"sglang=={NEWEST}", "--only", "scheduler", "--mutant", "P07", "--schedules", "1")
    assert ended.returncode == 2
    defect = planted()["P07"]
    assert f"P07 is for another {defect.function}" in ended.stderr
    assert f"planted into {', '.join(defect.hashes)} alone" in ended.stderr.lower()


def test_a_mutant_of_a_releases_source_is_found_and_its_replay_says_so(
    release: Callable[[str], SourceTree], tmp_path: Path
) -> None:
    release(VERSION)
    out, page = tmp_path / "verdict.json", tmp_path / "page.html"
    limits = ("--schedules", "1", "--attempts", "20", "--json", out, "--out", tmp_path / "found")
    ended = specsim("dev", "check", f"sglang=={VERSION}", "--only", "scheduler", "--mutant", "P07", *limits)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    verdict = json.loads(out.read_text())
    assert verdict["target"] == f"sglang=={VERSION} with mutant P07"
    files = {finding["signature"]: finding["replay"] for finding in verdict["findings"]}
    file = next(file for signature, file in files.items() if signature.startswith("scheduler:I52:"))
    assert json.loads(Path(file).read_text())["mutant"] == "P07"
    shown = specsim("replay", file, "--html", page)
    assert shown.returncode == 1
    assert f"on sglang=={VERSION} with mutant P07" in shown.stdout
    assert "reproduced, bit for bit" in shown.stdout
    assert f"sglang=={VERSION} with mutant P07" in page.read_text()
    without = specsim("replay", file, "--target", f"sglang=={NEWEST}")
    assert "with mutant" not in without.stdout


@pytest.mark.slow
def test_a_campaign_runs_schedules_of_a_release(release: Callable[[str], SourceTree], tmp_path: Path) -> None:
    release(VERSION)
    store, out = tmp_path / "campaign.db", tmp_path / "campaign.json"
    limits = ("--budget-seconds", "25", "--jobs", "1", "--store", store, "--json", out, "--out", tmp_path / "found")
    ended = specsim("fuzz", f"sglang=={VERSION}", "--only", "scheduler", *limits)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    campaign = json.loads(out.read_text())
    assert campaign["runs"] > 0
    assert campaign["events"] > campaign["runs"]  # iterations
    for found in campaign["new"]:
        assert found["tier"] == "scheduler"


@pytest.mark.slow
def test_a_replay_file_is_shrunk_pinned_and_run_by_pytest(
    checked: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    file = Path(checked[1][RACE])
    shrunk = tmp_path / "shrunk"
    ended = specsim("shrink", file, "--attempts", "60", "--out", shrunk)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (smaller,) = shrunk.glob("*.json")
    assert len(json.loads(smaller.read_text())["tape"]) <= len(json.loads(file.read_text())["tape"])
    test = tmp_path / "test_race.py"
    assert specsim("pin", smaller, "--still", "--out", test).returncode == 0
    runs = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "specsim.pytest_plugin"]
    run = [*runs, str(test), "--specsim-replays", str(shrunk)]
    pytested = subprocess.run(run, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300)
    assert "1 failed, 1 passed" in pytested.stdout, pytested.stdout  # still there, and so a failure of the replays
    assert RACE in pytested.stdout


@pytest.mark.slow
def test_bisect_names_the_release_that_took_stale_results_away(
    release: Callable[[str], SourceTree], tmp_path: Path
) -> None:
    for version in (BEFORE, VERSION):
        release(version)
    out = tmp_path / "verdict.json"
    limits = ("--schedules", "1", "--attempts", "20", "--json", out, "--out", tmp_path)
    ended = specsim("check", f"sglang=={BEFORE}", "--only", "scheduler", *limits)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    files = {finding["signature"]: finding["replay"] for finding in json.loads(out.read_text())["findings"]}
    result = tmp_path / "bisect.json"
    ends = ("--bad", f"sglang=={BEFORE}", "--good", f"sglang=={VERSION}", "--json", result)
    ended = specsim("bisect", files["scheduler:I64:committed"], *ends)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"first fixed: sglang=={VERSION}" in ended.stdout
