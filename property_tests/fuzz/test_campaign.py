"""A campaign loses nothing and counts once, whoever disappears; findings of a version are run again on the next."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.support.batch_results import found, result
from property_tests.support.command_line import specsim
from property_tests.support.killed_campaigns import kill_again_and_again
from specsim.cli import main
from specsim.commands import fuzz
from specsim.engines.target import parse_target
from specsim.errors import UsageError
from specsim.findings.bisect.verdicts import AskLimits
from specsim.fuzz.batches import BatchPlan, lots_of
from specsim.fuzz.campaign import CampaignOutcome, go_on
from specsim.fuzz.rerun import due, product_of, run_again
from specsim.fuzz.store import Store, StoredFinding
from specsim.fuzz.store_file import FORMAT
from specsim.fuzz.versions import version_of
from specsim.fuzz.work import Batch, BatchResult
from specsim.lifting.cache import Cache

MINE = """
from property_tests.support.own_engine import Engine

LIMIT = 3

def many(requests):
    if requests >= LIMIT:
        raise LookupError(requests)

engine, sound = Engine(many), Engine()
"""
SIGNATURE = "scheduler:X1:run:LookupError"
BATCHES = 12


@dataclass(slots=True)
class Made:
    """A pool that runs nothing: `answer` says what becomes of a batch."""

    answer: Callable[[Batch], BatchResult]
    width: int = 2
    submitted: list[Batch] = field(default_factory=list)
    interrupts: int = 0

    def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
        self.submitted.append(batch)
        future: Future[BatchResult] = Future()
        try:
            future.set_result(self.answer(batch))
        except (UsageError, KeyboardInterrupt) as error:
            future.set_exception(error)
        return future

    def interrupt(self) -> None:
        self.interrupts += 1


def plan_of(*targets: str, **tiers: list[str]) -> BatchPlan:
    return BatchPlan(3, lots_of({**{target: ["scheduler"] for target in targets}, **tiers}))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "c.db", campaign=3) as store:
        yield store


def run(store: Store, plan: BatchPlan, pool: Made, **options: Any) -> CampaignOutcome:
    limits = {"until": time.monotonic() + 60, "batches_max": BATCHES, **options}
    return go_on(plan, store, 0, pool, **limits)


# ---- the loop


@settings(max_examples=6)
@given(dies_at=st.lists(st.integers(1, 30), max_size=4))
def test_a_campaign_that_is_killed_and_goes_on_has_each_batch_once(
    tmp_path_factory: pytest.TempPathFactory, dies_at: list[int]
) -> None:
    path = tmp_path_factory.mktemp("killed") / "c.db"
    for part, answers in enumerate([*dies_at, 1000]):

        def answer(batch: Batch, left: list[int] = [answers]) -> BatchResult:  # noqa: B006 - counted down
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return result(batch, runs=batch.number + 1, features={"ops:get_last_loc kernel": 1})

        with Store.open(path) as store:
            enough = 30 - len(store.batches())
            try:
                run(store, plan_of("a", "b"), Made(answer), batches_max=enough)
            except KeyboardInterrupt:
                continue
            assert part == len(dies_at) or not answers or enough <= answers
    with Store.open(path) as store:
        assert sorted(row.number for row in store.batches()) == list(range(30))
        assert store.totals()[0] == sum(range(31))
        assert sum(covered.runs for covered in store.coverage()) == 30


def test_a_target_that_disappears_is_reported_once_and_the_others_go_on(store: Store) -> None:
    def answer(batch: Batch) -> BatchResult:
        if batch.target == "gone":
            raise UsageError("gone is not there", "restore it")
        return result(batch)

    told: list[str] = []
    pool = Made(answer)
    outcome = run(store, plan_of("a", "gone"), pool, on_stop=told.append)
    assert told == ["gone, tier scheduler: its batches stop (gone is not there; restore it)"]
    assert {row.target for row in store.batches()} == {"a"}
    numbers = [row.number for row in store.batches()]
    assert sorted(numbers) == list(range(len(numbers)))
    assert outcome.stopped.keys() == {("gone", "scheduler")}


def test_a_campaign_of_which_nothing_is_left_ends(store: Store) -> None:
    def answer(batch: Batch) -> BatchResult:
        return result(batch, runs=0, refused={"it needs a GPU": batch.count})

    told: list[str] = []
    outcome = run(store, plan_of("a", b=["ops", "scheduler"]), Made(answer), batches_max=None, on_stop=told.append)
    assert (len(told), outcome.runs) == (3, 0)
    assert all("it needs a GPU" in text for text in told)


def test_a_target_that_is_not_deterministic_is_told_and_goes_on(store: Store) -> None:
    outcome = run(store, plan_of("a"), Made(lambda batch: result(batch, ended="two runs of schedule 3 differ: x")))
    assert (outcome.nondeterministic, outcome.stopped) == ("a: two runs of schedule 3 differ: x", {})
    assert fuzz._exit_code(outcome, [], False) == 3


def test_a_full_disk_ends_the_campaign_and_says_what_it_lost(store: Store) -> None:
    store.add(result(Batch(3, 0, 0, 0, 10, "a", "scheduler")))
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    pool = Made(lambda batch: result(batch, features={f"ops:{n} kernel": 1 for n in range(2000)}, findings=(found(),)))
    outcome = run(store, plan_of("a"), pool)
    assert outcome.problem is not None
    assert "full" in outcome.problem.problem
    assert [lost.batch.number for lost in outcome.lost] == [1, 2]
    assert [row.number for row in store.batches()] == [0]
    assert fuzz._exit_code(outcome, [], False) == 2


def test_an_interrupt_ends_it_with_what_the_workers_have(store: Store) -> None:
    asked: list[int] = []
    pool = Made(lambda batch: asked.append(1) or result(batch))  # type: ignore[func-returns-value]
    outcome = run(store, plan_of("a"), pool, interrupted=lambda: len(asked) > 4, batches_max=None)
    assert (outcome.batches, len(store.batches())) == (len(asked), len(asked))


def test_a_clock_that_jumps_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1e9, 2e9, 0.0, -5.0, 3e18, *[7.0] * 100])
    monkeypatch.setattr(time, "time", lambda: next(times))
    outcome = run(store, plan_of("a"), Made(lambda batch: result(batch, findings=(found(),))))
    assert (outcome.batches, outcome.problem) == (BATCHES, None)
    assert [row.number for row in store.batches()] == list(range(BATCHES))
    (finding,) = store.findings()
    assert (finding.number, finding.count) == (0, 2 * BATCHES)


def test_only_what_the_store_did_not_have_open_is_new(store: Store) -> None:
    pool = Made(lambda batch: result(batch, findings=(found("s1"), found("s2"))))
    assert [f.signature for f in run(store, plan_of("a"), pool).new] == ["s1", "s2"]
    assert run(store, plan_of("a"), pool).new == []
    (one, _) = store.findings()
    store.mark(one, "a", "v2", "fixed")
    assert [f.signature for f in run(store, plan_of("a"), pool).new] == ["s1"]
    assert pool.submitted[-1].known == ("s1", "s2")


# ---- versions


def test_a_version_is_that_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache(tmp_path / "cache")
    package = tmp_path / "python" / "sglang" / "srt"
    package.mkdir(parents=True)
    for name, text in (("mine.py", "x = 1"), ("python/sglang/srt/a.py", "b = 2")):
        target = parse_target("mine:x" if name == "mine.py" else f"sglang@{tmp_path}")
        versions = []
        for content in (text, text + "\n", text):
            (tmp_path / name).write_text(content)
            versions.append(version_of(target, cache))
        assert versions[0] == versions[2] != versions[1]
    assert version_of(parse_target("sglang==1.2.3"), cache) == "1.2.3"
    assert version_of(parse_target("model"), cache) == version_of(parse_target("model"), cache)
    with pytest.raises(UsageError, match="does not exist"):
        version_of(parse_target("sglang@/not/there"), cache)


@pytest.mark.parametrize(
    ("target", "product"),
    [("model", "model"), ("sglang==1.2", "sglang"), ("sglang@x#y", "sglang"), ("vllm==1.2", "vllm"), ("a:b", "a:b")],
)
def test_versions_are_of_a_product(target: str, product: str) -> None:
    assert product_of(target) == product


def test_what_is_due_is_asked_once_a_version_with_the_smallest_file(store: Store) -> None:
    store.add(result(Batch(3, 0, 0, 0, 10, "sglang==1.1", "scheduler"), "1.1", findings=(found(size=(2,)),)))
    store.add(result(Batch(3, 0, 1, 0, 10, "sglang==1.2", "scheduler"), "1.2", findings=(found(size=(1,)),)))
    store.add(result(Batch(3, 0, 2, 0, 10, "model", "scheduler"), "m", findings=(found("other"),)))
    assert list(due(store, "sglang==1.2", "1.2")) == []
    ((finding, replay),) = due(store, "sglang==1.3", "1.3")
    assert (finding.target, replay.size) == ("sglang==1.2", (1,))
    store.mark(finding, "sglang==1.3", "1.3", "fixed")
    assert list(due(store, "sglang==1.3", "1.3")) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign that has found something."""
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "mine.py").write_text(MINE)
    options = ["--only", "scheduler", "--jobs", "1", "--budget-seconds", "4"]
    ended = specsim(folder, "fuzz", "mine:engine", *options, "--json", "one.json")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return folder


@pytest.mark.slow(runs_one_in=2)
def test_a_campaign_says_what_is_new_and_how_to_see_it_again(folder: Path) -> None:
    data = json.loads((folder / "one.json").read_text())
    (new,) = data["new"]
    assert (data["exit_code"], new["signature"], new["target"]) == (1, SIGNATURE, "mine:engine")
    assert data["stored"]["runs"] == data["runs"]
    (file,) = (folder / "specsim-findings").glob("*.json")
    again = specsim(
        folder, "fuzz", "--again", f"0:{new['run']}", "--store", ".specsim/campaign.db", "--out", "again", "--trust"
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"{SIGNATURE}: " in again.stdout
    assert len(list((folder / "again").iterdir())) == 1
    assert specsim(folder, "replay", str(file), "--target", "mine:engine").returncode == 1


@pytest.mark.slow
def test_a_replay_file_that_cannot_be_written_is_reported_with_the_run_that_makes_it_again(folder: Path) -> None:
    """There is a folder of its name: nothing half-written stays, and the store has the finding."""
    (written,) = (folder / "specsim-findings").glob("*.json")
    (folder / "full" / written.name).mkdir(parents=True)
    options = ["--only", "scheduler", "--jobs", "1", "--budget-seconds", "4", "--store", "full.db", "--out", "full"]
    ended = specsim(folder, "fuzz", "mine:engine", *options)
    assert f"cannot write full/{written.name} (" in ended.stdout + ended.stderr
    again = re.search(r"specsim (fuzz --again 0:\d+ --trust --store full.db)\n", ended.stdout + ended.stderr)
    assert again is not None
    assert [path.name for path in (folder / "full").iterdir()] == [written.name]
    assert f"{SIGNATURE}: " in specsim(folder, *again[1].split(), "--out", "made").stdout


def test_findings_are_run_again_on_a_version_that_mends_or_keeps_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    told: list[tuple[str, str]] = []

    def tell(finding: StoredFinding, verdict: str, why: str) -> None:
        told.append((finding.signature, verdict))

    path = tmp_path / "c.db"
    path.write_bytes((folder / ".specsim" / "campaign.db").read_bytes())
    with Store.open(path) as store:
        for version, limit in (("still", 3), ("mended", 99), ("back", 2)):
            (tmp_path / "mine.py").write_text(MINE.replace("LIMIT = 3", f"LIMIT = {limit}"))
            limits = AskLimits(tmp_path / "cache", tmp_path)
            run_again(store, "mine:engine", version, limits, lambda: True, tell)
            run_again(store, "mine:engine", version, limits, lambda: True, tell)
        (finding,) = store.findings()
        assert (finding.state, finding.last_seen) == ("open", "back")
        assert [verdict for _, verdict in told] == ["shown", "fixed", "shown"]


# ---- the command line


def says(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["fuzz", *arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return int(ended.value.code or 0), captured.out + captured.err


def newer(path: Path) -> None:
    with Store.open(path) as store:
        store.set_meta(format=str(FORMAT + 1), specsim="9.0")


def of_somebody_else(path: Path) -> None:
    path.write_text("text, and not a database at all" * 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "2/2"], "there is no shard 2 of 2"),
        (["--shard", "x"], "is no shard"),
        (["--jobs", "0"], "is no number of processes"),
        (["--jobs", "many"], "is no number of processes"),
        (["--seed", "not-a-seed"], "is neither a number"),
        (["--only", "gpu"], "is unknown"),
        (["sgl-kernel@.", "--only", "scheduler"], "none of the targets has that tier"),
        (["--resume"], "there is no campaign in"),
        (["--again", "7"], "is no run"),
        (["--again", "0:99999999", "--only", "ops"], "ends with run"),
        (["sglang@/not/there"], "does not exist"),
        (["nonsense"], "is not a target"),
        (["--json", "/dev/null/x.json"], "--json"),
    ],
)
def test_bad_input_is_one_sentence_and_makes_no_store(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = says(capsys, *arguments)
    assert (code, message in text) == (2, True), text
    assert (
        not (tmp_path / ".specsim" / "campaign.db").exists()
        or Store.open(tmp_path / ".specsim" / "campaign.db", read_only=True).batches() == []
    )


@pytest.mark.parametrize(
    ("make", "message"), [(newer, f"has format '{FORMAT + 1}'"), (of_somebody_else, "is no store")]
)
def test_a_store_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / "c.db")
    code, text = says(capsys, "--resume", "--store", str(tmp_path / "c.db"))
    assert (code, message in text) == (2, True), text


def test_a_second_campaign_on_a_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(tmp_path / "c.db"):
        code, text = says(capsys, "--resume", "--store", str(tmp_path / "c.db"))
    assert (code, f"is being written by a campaign in process {os.getpid()}" in text) == (2, True)


def test_a_campaign_that_is_there_is_not_begun_anew_unseen(folder: Path) -> None:
    ended = specsim(folder, "fuzz", "mine:engine")
    assert ended.returncode == 2
    assert "holds a campaign" in ended.stderr


@pytest.mark.slow
def test_every_night_the_commit_is_the_seed_and_a_canary_that_is_not_found_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_SHA", commit)
    monkeypatch.setattr(fuzz, "_missed_canaries", lambda: ["A01"])
    options = [
        "mine:sound",
        "--nightly",
        "--only",
        "scheduler",
        "--jobs",
        "1",
        "--budget-seconds",
        "4",
        "--json",
        "o.json",
    ]
    code, text = says(capsys, *options)
    assert (code, "the canary A01 was NOT FOUND" in text) == (1, True), text
    data = json.loads((tmp_path / "o.json").read_text())
    assert (data["campaign"], data["missed_canaries"]) == (int(commit, 16) & ((1 << 64) - 1), ["A01"])
    monkeypatch.setattr(fuzz, "_missed_canaries", list)
    code, text = says(capsys, *options, "--seed", "77")  # goes on with the store of the workflow
    assert (code, json.loads((tmp_path / "o.json").read_text())["campaign"]) == (0, 77), text
    with Store.open(tmp_path / ".specsim" / "campaign.db", read_only=True) as store:
        assert {row.campaign for row in store.batches()} == {77, data["campaign"]}
        assert len({row.number for row in store.batches()}) == len(store.batches()) >= 2


def test_a_night_without_a_commit_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("GITHUB_SHA", "CI_COMMIT_SHA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code, text = says(capsys, "--nightly")
    assert (code, "there is no commit here" in text) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_an_interrupt_keeps_what_was_done_and_says_how_to_go_on(tmp_path: Path, number: int) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    process = subprocess.Popen(
        [sys.executable, "-m", "specsim", "fuzz", "mine:sound", "--only", "scheduler", "--jobs", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    time.sleep(6.0)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stdout + stderr
    assert "specsim fuzz --resume --trust --store .specsim/campaign.db goes on" in stderr
    counted = re.match(r"(\d+) runs in 2 batches", stdout)
    assert counted, stdout
    assert int(counted[1]) > 0


def test_kills_at_random_moments_lose_nothing_and_count_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m property_tests.support.killed_campaigns 1000` is the deep form."""
    monkeypatch.chdir(tmp_path)
    killed = kill_again_and_again(tmp_path, int(os.environ.get("SPECSIM_KILLS", "2")), seed=3)
    assert killed.wrong == []
    assert killed.batches > 0
