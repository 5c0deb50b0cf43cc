"""Every command accepts every replay file: those of the fixtures, which `check` wrote, on the target of each.

The children are forks of two warm ones, so that a command costs a replay and no start of torch. One fixture of each
tier and kind of tape at every run, all by the nightly profile.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.replay_fixtures import FILES, Release
from specsim import cli, replay_file
from specsim.findings.bisect.verdicts import AskLimits, BisectState, FileQuestion
from specsim.isolation.fork_server import ForkServer
from specsim.lifting.cache import open_cache
from specsim.tiers import process
from specsim.tiers.messages import Request
from specsim.tiers.process import HASH_SEEDS, fork_server

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
OFTEN = ("bonus-token-stride", "draft-slots-race")
"""Of the operations, and of a mutant of the model. test_findings.py has one of a scheduler."""
REPLAYS = [file for file in FILES if IS_NIGHTLY or file.stem in OFTEN]


@pytest.fixture(scope="module")
def children() -> Iterator[dict[str, ForkServer]]:
    warm = {seed: fork_server(seed) for seed in HASH_SEEDS}
    yield warm
    for child in warm.values():
        child.close()


@pytest.fixture
def _warm(children: dict[str, ForkServer], monkeypatch: pytest.MonkeyPatch) -> None:
    cold = process.ask

    def ask(request: Request, hang_seconds: float, hash_seed: str = "") -> Iterator[Any]:
        if request.mutant:  # it changes the simulator before that is imported
            return cold(request, hang_seconds, hash_seed)
        return children[hash_seed or HASH_SEEDS[0]].ask(request, hang_seconds)

    monkeypatch.setattr(process, "ask", ask)


def ran(*arguments: str) -> tuple[int, str]:
    """The exit code of a command and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    code = ended.value.code
    return code if isinstance(code, int) else 0, said.getvalue()


def available(file: Path, release: Release) -> str:
    """The replay's target; skips the test where it is not in the cache."""
    target = replay_file.load(file).target
    if target.startswith("sglang=="):
        release(target.removeprefix("sglang=="))
    return target


@pytest.mark.parametrize("file", REPLAYS, ids=[file.stem for file in REPLAYS])
@pytest.mark.usefixtures("_warm")
def test_every_command_accepts_every_replay_file(file: Path, release: Release, tmp_path: Path) -> None:
    target = available(file, release)
    holds_for_every_command(file, tmp_path)
    if target != "model":  # a mutant is of no revision
        limits = AskLimits(open_cache(None).folder, tmp_path)
        verdict = FileQuestion(file, limits).check(target, process.ask, HASH_SEEDS[0])
        assert verdict.state is BisectState.BAD, verdict


def holds_for_every_command(file: Path, folder: Path, options: Sequence[str] = ()) -> None:
    """Each command of one replay file that is reproduced, in this process."""
    stored = replay_file.load(file)
    page, answer = folder / "page.html", folder / "answer.json"
    code, said = ran(
        *("replay", str(file), "--verify", "--html", str(page), "--json", str(answer)),
        *options,
    )
    assert code == 1, said
    assert "reproduced" in said
    assert page.stat().st_size
    assert json.loads(answer.read_text())["exit_code"] == 1
    code, said = ran("shrink", str(file), "--attempts", "3", "--out", str(folder / "shrunk"), *options)
    assert code == 0, said
    (smaller,) = (folder / "shrunk").iterdir()
    assert replay_file.load(smaller).signature == stored.signature
    code, said = ran("pin", str(file), "--trust", "--out", str(folder / "test_pinned.py"))
    assert code == 0, said
    (folder / "run").mkdir()
    (folder / "run" / file.name).write_bytes(file.read_bytes())
    code, said = ran("report", str(folder / "run"), "--html", str(folder / "report"), *options)
    assert code == 0, said
    assert len(list((folder / "report").glob("*.html"))) == 2, said


ENDING = """
import os
import time

from property_tests.support.own_engine import Engine


def dies(**arguments):
    os.abort()


def hangs(predict, accept_index, accept_lens):
    time.sleep(60)


def raises(requests):
    raise ValueError("not run")


dying_operation = {"verify_tree_greedy": dies}
hanging_operation = {"fill_bonus_tokens": hangs}
dying, hanging, raising = Engine(lambda _: os._exit(0)), Engine(lambda _: time.sleep(60)), Engine(raises)
"""


@pytest.mark.parametrize(
    ("name", "rule"),
    [("dying_operation", "O8"), ("hanging_operation", "O7"), ("dying", "X3"), ("hanging", "X2"), ("raising", "X1")],
)
def test_every_command_accepts_the_replay_of_what_ends_its_process_or_raises(
    name: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not IS_NIGHTLY and name != "raising":
        pytest.skip("seconds long: in `make nightly`")
    (tmp_path / "ending.py").write_text(ENDING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tier = "ops" if "operation" in name else "scheduler"
    limits = ["--hang-seconds", "2"] if "hang" in name else []
    counts = ["--cases", "2", "--device", "cpu"] if tier == "ops" else ["--schedules", "2"]
    options = ["--only", tier, *counts, *limits]
    code, said = ran("check", f"ending:{name}", *options)
    assert code == 1, said
    (file,) = (tmp_path / "specsim-findings").glob("*.json")
    assert replay_file.load(file).rule == rule
    (tmp_path / "made").mkdir()
    holds_for_every_command(file, tmp_path / "made", [*limits, "--trust"])
