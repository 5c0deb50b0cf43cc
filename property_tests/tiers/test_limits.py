"""How much a check does: every implementation gets its first cases before any gets more, everything is checked before
anything is shrunk, and counts alone give the same bytes each time.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from specsim import cli, interrupts
from specsim.commands import skipped_operations
from specsim.commands.asked import FIXTURES
from specsim.commands.limits import CI_ATTEMPTS, CI_CASES, CI_SCHEDULES, DEFAULT_CASES, DEFAULT_SECONDS, limits_of
from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.tiers.ops import suite as suite
from specsim.tiers.ops.run import LaunchHere
from specsim.tiers.ops.suite import FIRST_ROUND, KnownCase, SuiteLimits, check_all, chooser_of
from specsim.verdict import NotRun, Suite


def subject(op: str, implementation: Any, name: str = "", **fields: Any) -> Subject:
    return Subject(op, "kernel", name or f"kernel:{op}", partial(OPS[op].call, implementation), **fields)


def right(op: str, name: str = "", **fields: Any) -> Subject:
    return subject(op, REFERENCE[op], name, **fields)


def one_more(**arguments: Any) -> Any:
    return REFERENCE["fill_bonus_tokens"](**arguments) + 1


def checked(
    subjects: list[Subject], limits: SuiteLimits, **options: Any
) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    calls: list[tuple[str, int]] = []
    results = check_all(
        OPS,
        subjects,
        seed=0,
        limits=limits,
        launcher=LaunchHere(),
        on_case=lambda subject, index: calls.append((subject.name, index)),
        **options,
    )
    return {subject.name: result for subject, result in results}, calls


THREE = ["fill_bonus_tokens", "gather_rows", "select_top_k"]


def test_every_implementation_gets_its_first_cases_before_any_gets_more() -> None:
    results, calls = checked([right(op) for op in THREE], SuiteLimits(cases=12))
    assert {name: result.cases for name, result in results.items()} == {f"kernel:{op}": 12 for op in THREE}
    first = [name for name, _index in calls[: 3 * FIRST_ROUND]]
    assert first == [f"kernel:{op}" for op in THREE for _ in range(FIRST_ROUND)]


def test_an_implementation_whose_cases_cost_much_gets_the_first_cases_too() -> None:
    results, _calls = checked([right("gather_rows", cost=1000)], SuiteLimits(cases=100))
    assert results["kernel:gather_rows"].cases == FIRST_ROUND


def test_what_an_earlier_check_did_not_come_to_is_first_in_each_round() -> None:
    _results, calls = checked([right(op) for op in THREE], SuiteLimits(cases=7), first=("kernel:select_top_k",))
    assert calls[0] == ("kernel:select_top_k", 0)


def test_results_come_in_the_order_of_the_implementations_whoever_was_first() -> None:
    results, _calls = checked([right(op) for op in THREE], SuiteLimits(cases=2), first=("kernel:select_top_k",))
    assert list(results) == [f"kernel:{op}" for op in THREE]


def test_everything_is_checked_before_anything_is_shrunk() -> None:
    _results, calls = checked([subject("fill_bonus_tokens", one_more), *map(right, THREE[1:])], SuiteLimits(cases=20))
    shrinking = [number for number, (_name, index) in enumerate(calls) if index < 0]
    assert shrinking
    assert shrinking[0] > max(number for number, (_name, index) in enumerate(calls) if index >= 0)


def test_a_finding_has_as_many_attempts_as_were_given() -> None:
    for attempts in (0, 3, 11):
        _results, calls = checked([subject("fill_bonus_tokens", one_more)], SuiteLimits(cases=4, attempts=attempts))
        assert sum(index < 0 for _name, index in calls) <= attempts + 1  # the last one runs the smallest case once more


def test_without_time_each_implementation_is_named_and_none_has_passed() -> None:
    results, _calls = checked([right(op) for op in THREE], SuiteLimits(cases=9, deadline=0.0))
    assert all(result.cut_short and result.cases == 0 for result in results.values())


SECONDS = {"fill_bonus_tokens": 0.02, "gather_rows": 0.002, "select_top_k": 0.004}  # that a case of THREE takes


@pytest.mark.parametrize(("seconds", "least"), [(2.7, [100, 100, 100]), (1.5, [40, 80, 80])])
def test_the_time_that_quick_implementations_leave_goes_to_a_slow_one(
    seconds: float, least: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of 100 cases take 2.6 seconds; those of the quick ones 0.6."""
    now = 0.0

    def taking_time(op: str) -> Any:
        def call(**arguments: Any) -> Any:
            nonlocal now
            now += SECONDS[op] / 2  # a case runs under two poisons
            return REFERENCE[op](**arguments)

        return subject(op, call)

    monkeypatch.setattr(suite, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(suite, "RELATED_EVERY", 10_000)
    results, _calls = checked([taking_time(op) for op in THREE], SuiteLimits(cases=100, deadline=seconds))
    cases = [result.cases for result in results.values()]
    assert all(count >= enough for count, enough in zip(cases, least, strict=True)), cases


def test_a_caller_of_a_wrong_kernel_is_not_checked_and_says_so() -> None:
    caller = right("fill_bonus_tokens", "caller:x", needs="kernel:fill_bonus_tokens")
    results, _calls = checked([subject("fill_bonus_tokens", one_more), caller], SuiteLimits(cases=6))
    assert (results["caller:x"].cases, results["caller:x"].why_not) == (
        0,
        "it calls fill_bonus_tokens, which is itself wrong",
    )


def test_a_known_case_is_run_first_and_is_the_counterexample_as_it_is() -> None:
    op = OPS["fill_bonus_tokens"]
    wrong = subject("fill_bonus_tokens", one_more)
    chooser = chooser_of(5, wrong, 3)
    known = KnownCase("before.json", op.generate(chooser), chooser.tape, "O1")
    results, calls = checked([wrong], SuiteLimits(cases=3), known=lambda _op, _subject: [known])
    found = results[wrong.name].counterexample
    assert found.known is known
    assert found.case is known.case
    assert found.failing == 3  # of the generated ones
    assert calls[0] == (wrong.name, 0)


def test_counts_without_a_time_end_a_check_alone() -> None:
    assert limits_of(False, None, "0", None, None, None).seconds == DEFAULT_SECONDS
    assert limits_of(False, None, "0", 3, None, None) == (math.inf, 3, 500, None)
    assert limits_of(False, None, "0", None, None, 0) == (math.inf, DEFAULT_CASES, 500, 0)
    assert limits_of(False, 9.0, "0", 3, 4, 5) == (9.0, 3, 4, 5)


def test_ci_has_fixed_counts_and_a_fixed_seed() -> None:
    assert limits_of(True, None, "0", None, None, None) == (math.inf, CI_CASES, CI_SCHEDULES, CI_ATTEMPTS)
    assert limits_of(True, None, "0", 7, None, None).cases == 7
    with pytest.raises(UsageError, match="--ci with --budget-seconds"):
        limits_of(True, 10.0, "0", None, None, None)
    with pytest.raises(UsageError, match="--ci with --seed 5"):
        limits_of(True, None, "5", None, None, None)


PROVIDER = """
    from specsim.contracts.registry import REFERENCE

    def fill_bonus_tokens(predict, accept_index, accept_lens):
        return predict[accept_index[:, -1].long()]

    p = {"fill_bonus_tokens": fill_bonus_tokens, "gather_rows": REFERENCE["gather_rows"]}
"""


def test_two_checks_by_counts_write_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(textwrap.dedent(PROVIDER))
    written = []
    for hash_seed, cores in (("1", {0}), ("2", os.sched_getaffinity(0))):
        ended = subprocess.run(
            [sys.executable, "-m", "specsim", "check", "twice:p", "--ci", "--json", "v.json", "--junit", "v.xml"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=partial(os.sched_setaffinity, 0, cores & os.sched_getaffinity(0) or os.sched_getaffinity(0)),
        )
        assert ended.returncode == 1, ended.stderr
        files = [tmp_path / "v.json", tmp_path / "v.xml", *sorted((tmp_path / "specsim-findings").glob("*.json"))]
        written.append({file.name: file.read_bytes() for file in files})
        for file in files:
            file.unlink()
    assert written[0] == written[1]
    data = json.loads(written[0]["v.json"])
    assert "times" not in data
    assert all(checked["cases"] == CI_CASES for checked in data["suites"][0]["judged"])


def test_options_that_exclude_one_another_are_refused() -> None:
    for arguments, words in (
        (["check", "--ci", "--budget-seconds", "5"], "--ci with --budget-seconds"),
        (["check", "--ci", "--seed", "5"], "--ci with --seed"),
        (["check", "--fixtures", "x", "--no-known"], "--fixtures with --no-known"),
    ):
        result = CliRunner().invoke(cli.app, arguments)
        assert isinstance(result.exception, UsageError), arguments
        assert words in str(result.exception)


def test_what_a_check_had_no_time_for_is_remembered_until_it_has(tmp_path: Path) -> None:
    cache, suite = Cache(tmp_path), Suite("ops")
    suite.not_run = [NotRun("gather_rows, kernel:gather_rows", interrupts.SPENT), NotRun("x, y", "not lifted")]
    skipped_operations.remember(cache, "mine:p", suite)
    assert skipped_operations.recall(cache, "mine:p") == ("kernel:gather_rows",)
    assert skipped_operations.recall(cache, "other:p") == ()
    skipped_operations.remember(cache, "mine:p", Suite("ops"))
    assert skipped_operations.recall(cache, "mine:p") == ()


def test_a_cache_that_cannot_be_read_or_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "unjudged").write_text("not a folder")
    suite = Suite("ops", not_run=[NotRun("a, b", interrupts.SPENT)])
    skipped_operations.remember(Cache(tmp_path), "mine:p", suite)
    assert skipped_operations.recall(Cache(tmp_path), "mine:p") == ()


def test_the_replay_files_of_known_findings_come_with_an_installation() -> None:
    root = Path(cli.__file__).parents[1]
    packaged = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["specsim"]
    assert FIXTURES.relative_to(Path(cli.__file__).parent) / "*.json" in map(Path, packaged)
    assert any(FIXTURES.glob("*.json"))
