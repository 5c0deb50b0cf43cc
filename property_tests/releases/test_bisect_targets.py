"""`specsim bisect` on real targets: a history of two hundred commits that this test makes, and releases in the cache.

Where each defect of the releases began or ended is data in `fixtures/bisect.expected.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from property_tests.support.command_line import specsim
from property_tests.support.made_up_sources import MadeUpSource
from property_tests.support.small_engine import Plan, build
from specsim.engines.sglang.provider import SglangProvider
from specsim.findings.bisect.changes import changed_functions
from specsim.findings.bisect.command import question_of
from specsim.findings.bisect.report import blamed_of
from specsim.findings.bisect.revisions import History, commits_between, releases_between
from specsim.findings.bisect.run import Bisection, EndError, FoundChange
from specsim.findings.bisect.verdicts import AskLimits, BisectQuestion
from specsim.isolation.fork_server import ForkServer
from specsim.lifting.cache import Cache
from specsim.lifting.lift import LiftedFunction, Lifter
from specsim.lifting.source import SourceTree
from specsim.tiers.process import fork_server

FIXTURES = Path(__file__).parents[2] / "fixtures"
EXPECTED: list[dict[str, str]] = json.loads((FIXTURES / "bisect.expected.json").read_text())
STRIDE = FIXTURES / "replays" / "bonus-token-stride.json"

Release = Callable[[str], SourceTree]
Children = tuple[ForkServer, ForkServer]


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    one, two = fork_server("0"), fork_server("1")
    yield one, two
    one.close()
    two.close()


def run(history: History, question: BisectQuestion, children: Children, cache: Cache) -> FoundChange:
    asks = (children[0].ask, children[1].ask)
    return Bisection(history, question, asks, cache, lambda _step: None).run()


def limits(cache: Cache, out: Path) -> AskLimits:
    return AskLimits(cache.folder, out, cases=20, schedules=30)


def seconds_of_children() -> float:
    """CPU seconds of the processes that this one started and that have ended: other work on the machine adds none."""
    times = os.times()
    return times.children_user + times.children_system


LONG = Plan(commits=200, bad=137, renamed=90, unbuildable=frozenset({20, 33, *range(99, 104), 120, 135, 149, 150, 151}))


@pytest.mark.slow
def test_the_bad_commit_of_two_hundred_is_found_in_half_a_minute_and_nothing_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    commits = build(path, LONG)
    used = seconds_of_children()
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    ended = specsim(
        *(tmp_path, "bisect", "--only", "ops:fill_bonus_tokens", "--repo", str(path)),
        *("--good", commits[0], "--bad", "main", "--json", "found.json"),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert seconds_of_children() - used < 30
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["what"], found["exact"]) == ("first bad", True)
    assert found["after"] == {
        "target": f"sglang@{path}#{commits[LONG.bad]}",
        "title": LONG.title(LONG.bad),
        "verdict": "bad",
        "why": found["after"]["why"],
    }
    assert found["verdicts"] <= 20
    (changed,) = found["changed"]
    assert changed["name"] == "caller:EAGLEWorkerV2.verify"
    assert changed["after"]["path"] == "srt/speculative/eagle_worker_v2.py"
    for line in ("self.speculative_num_draft_tokens)", f"title      {LONG.title(LONG.bad)}", commits[LONG.bad]):
        assert line in ended.stdout


def test_of_an_operation_what_belongs_to_it_is_lifted_and_nothing_else(
    wheel_cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.removeprefix("python/sglang/"): text for path, text in Plan(commits=2, bad=1).files(1).items()}
    source, op = MadeUpSource(files), "fill_bonus_tokens"
    among_all = [(s.name, s.source_hash) for s in SglangProvider(source, wheel_cache).subjects()[0] if s.op == op]
    lifted: list[str] = []
    lift = Lifter.lift

    def noted(lifter: Lifter, path: str, name: str) -> LiftedFunction:
        lifted.append(name)
        return lift(lifter, path, name)

    monkeypatch.setattr(Lifter, "lift", noted)
    alone, not_run = SglangProvider(source, wheel_cache, op).subjects()
    assert [(s.name, s.source_hash) for s in alone] == among_all
    assert {entry.what.split()[0] for entry in not_run} <= {op}
    assert lifted == [op]
    assert SglangProvider(source, wheel_cache, "row_argmax").subjects()[0] == []


@pytest.mark.slow
def test_a_fix_is_found_with_the_newer_end_good_across_a_rename(
    children: Children, wheel_cache: Cache, tmp_path: Path
) -> None:
    plan = Plan(commits=16, bad=2, fixed=9, renamed=9, unbuildable=frozenset({11, 12}))
    commits = build(tmp_path / "engine", plan)
    places = commits_between(tmp_path / "engine", "main", commits[2])
    found = run(places, question_of(STRIDE, None, None, limits(wheel_cache, tmp_path)), children, wheel_cache)
    assert found.what == "first fixed"
    assert (found.after.revision.target, found.skipped) == (f"sglang@{tmp_path / 'engine'}#{commits[9]}", ())


@pytest.mark.parametrize("question", ["file", "operation"])
@pytest.mark.slow
def test_a_commit_whose_worker_cannot_be_read_is_not_taken_for_a_good_one(
    question: str, children: Children, wheel_cache: Cache, tmp_path: Path
) -> None:
    plan = Plan(commits=6, bad=3, unbuildable=frozenset({2, 3}))
    commits = build(tmp_path / "engine", plan)
    places = commits_between(tmp_path / "engine", commits[0], "main")
    file, only = (STRIDE, None) if question == "file" else (None, "ops:fill_bonus_tokens")
    found = run(places, question_of(file, None, only, limits(wheel_cache, tmp_path)), children, wheel_cache)
    assert [step.revision.target.rpartition("#")[2] for step in found.skipped] == commits[2:4]
    assert "srt/speculative/eagle_worker_v2.py" in found.skipped[1].verdict.why


def test_a_tier_that_a_revision_lacks_is_reported(children: Children, wheel_cache: Cache, tmp_path: Path) -> None:
    build(tmp_path / "engine", Plan(commits=2, bad=1))
    places = commits_between(tmp_path / "engine", "main~1", "main")
    with pytest.raises(EndError, match=r"--bad .* cannot be checked: .* is not run: it is not imported"):
        run(places, question_of(None, "I64", None, limits(wheel_cache, tmp_path)), children, wheel_cache)


@pytest.mark.slow
def test_git_bisect_run_understands_the_exit_codes_of_a_replay(tmp_path: Path) -> None:
    commits = build(tmp_path / "engine", Plan(commits=2, bad=0, unbuildable=frozenset({1})))

    def code(file: str, commit: str) -> int:
        target = f"sglang@{tmp_path / 'engine'}#{commit}"
        return specsim(tmp_path, "replay", file, "--target", target, "--bisect-run").returncode

    assert [code(str(STRIDE), commit) for commit in commits] == [1, 125]
    assert code("missing.json", commits[0]) == 128


# Two of them at every run, all by the nightly profile and by `make test-releases`.
OFTEN = EXPECTED if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else [EXPECTED[0], EXPECTED[-1]]


@pytest.mark.parametrize("expected", EXPECTED, ids=[expected["name"] for expected in EXPECTED])
@pytest.mark.slow
def test_a_defect_of_the_releases_begins_or_ends_where_it_is_known_to(
    expected: dict[str, str],
    children: Children,
    release: Release,
    wheel_cache: Cache,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    if expected not in OFTEN and not pytestconfig.getoption("--all-releases"):
        pytest.skip("searched by `make test-releases`")
    places = releases_between(expected["good"], expected["bad"])
    for revision in places.revisions:
        release(revision.target.removeprefix("sglang=="))
    question = asked(expected, wheel_cache, tmp_path)
    found = run(places, question, children, wheel_cache)
    ends = [step.revision.target.removeprefix("sglang==") for step in (found.before, found.after)]
    assert (found.what, *ends, found.skipped) == (expected["what"], expected["before"], expected["after"], ())
    sources = [step.revision.open(wheel_cache) for step in (found.before, found.after)]
    changed = changed_functions(found.before.verdict, found.after.verdict, sources[0], sources[1], blamed_of(found))
    assert expected["changed"] in [each.name for each in changed]
    assert question.replay(found.bad.revision.target, children[0].ask).is_file()


def asked(expected: dict[str, str], cache: Cache, out: Path) -> BisectQuestion:
    file = FIXTURES / "replays" / f"{expected['file']}.json" if "file" in expected else None
    return question_of(file, expected.get("rule"), expected.get("only"), limits(cache, out))
