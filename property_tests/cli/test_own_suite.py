"""What others use in their own suites: assertions, strategies, the plugin. A failure ends in its replay command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import unittest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st

from property_tests.support import own_engine
from property_tests.support.suites import run_pytest
from specsim import strategies
from specsim.contracts.registry import OPS, REFERENCE
from specsim.contracts.tree import DraftTree
from specsim.errors import UsageError
from specsim.pytest_plugin import pytest_collection_modifyitems
from specsim.reference import verify_chain_rejection
from specsim.testing import (
    REPLAY_VARIABLE,
    assert_gone,
    assert_lossless,
    assert_matches,
    assert_no_finding,
    replays,
    told_findings,
)
from specsim.verdict import Finding, Severity, Suite, Verdict
from specsim.world.scheduler import Setup
from specsim.world.workload import FEATURES, Workload

ROOT = Path(__file__).parents[2]
FREED = ROOT / "fixtures" / "replays" / "slots-freed-under-a-running-request.json"
OPERATION = "fill_bonus_tokens"


def last_column(predict: torch.Tensor, accept_index: torch.Tensor, accept_lens: torch.Tensor) -> torch.Tensor:
    return predict[accept_index[:, -1].long()]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(REPLAY_VARIABLE, raising=False)


def message_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as failed:
        call(*arguments, **options)
    return str(failed.value)


# ---- assertions


def test_a_mismatch_is_reported_on_the_smallest_case_and_replays_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_matches(OPERATION, REFERENCE[OPERATION], cases=5)
    text = message_of(assert_matches, OPERATION, last_column, cases=20)
    assert "accept_index = [[0, -1]]" in text
    assert re.search(r"hit by +\d+ of 20 generated cases", text)
    found = re.fullmatch(rf" +replay +{REPLAY_VARIABLE}=(\S+) pytest (\S+)", text.splitlines()[-1])
    assert found
    assert found[2].strip("'").endswith("::test_a_mismatch_is_reported_on_the_smallest_case_and_replays_it_alone")
    monkeypatch.setenv(REPLAY_VARIABLE, found[1])
    again = message_of(assert_matches, OPERATION, last_column)
    assert again.splitlines()[0] == f"{OPERATION}, the case of {found[1]}"
    assert again.splitlines()[-1].startswith(f"{REPLAY_VARIABLE}={found[1]} pytest ")
    calls = []

    def counted(predict: torch.Tensor, accept_index: torch.Tensor, accept_lens: torch.Tensor) -> Any:
        calls.append(predict.tolist())
        return REFERENCE[OPERATION](predict, accept_index, accept_lens)

    assert_matches(OPERATION, counted)
    assert {tuple(predict) for predict in calls} == {(2**17, 2**17 + 1)}


def test_a_function_that_cannot_be_called_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(UsageError, match="no operation of this name; did you mean fill_bonus_tokens"):
        assert_matches("fill_bonus_token", last_column)
    with pytest.raises(UsageError, match="cannot be called as its contract says"):
        assert_matches(OPERATION, lambda predict: predict)


def test_a_kernel_that_has_neither_a_gpu_nor_the_interpreter_is_no_finding() -> None:
    def launched(predict: torch.Tensor, accept_index: torch.Tensor, accept_lens: torch.Tensor) -> None:
        raise RuntimeError("0 active drivers ([]). There should only be one.")  # as Triton says it

    with pytest.raises(UsageError, match=r"neither a GPU nor Triton's interpreter") as raised:
        assert_matches(OPERATION, launched, cases=3)
    assert "TRITON_INTERPRET=1" in raised.value.remedy


def test_a_rule_that_is_off_is_reported_with_the_exact_distance() -> None:
    assert_lossless(verify_chain_rejection, quick=True)

    def halved(**given: Any) -> Any:
        return verify_chain_rejection(**{**given, "uniform_final": given["uniform_final"] / 2})

    text = message_of(assert_lossless, halved, "verify_chain_rejection", quick=True)
    assert re.match(r"verify_chain_rejection: what is emitted is \d+/\d+ = 0\.\d+ off the target's distribution", text)
    assert re.search(r"replay +pytest \S+::test_a_rule_that_is_off", text.splitlines()[-1])
    with pytest.raises(UsageError, match="'halved' is no sampling rule; name the operation"):
        assert_lossless(halved)


def finding(signature: str) -> Finding:
    told = (signature, "scheduler", Severity.LEAK, "unknown", "a.py:3", "1", "2", f"{signature} .json", 3)
    return Finding("I16", "every slot has an owner", "a slot has no owner", *told, ("detail",))


def test_each_finding_of_a_target_ends_in_the_command_that_replays_it() -> None:
    verdict = Verdict("model", 0, [Suite("scheduler", schedules=40)], [finding("a"), finding("b")])
    text = told_findings(verdict, verdict.findings)
    assert text.startswith("2 findings on model\n\na slot has no owner\n")
    assert "hit by     3 of 40 schedules" in text
    assert [part.splitlines()[-1].split(maxsplit=1) for part in text.split("\n\n")[1:]] == [
        ["replay", f"specsim replay '{name} .json'"] for name in "ab"
    ]


def test_known_findings_are_let_pass_and_nothing_checked_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_with(*verdicts: Verdict) -> None:
        left = iter(verdicts)
        monkeypatch.setattr("specsim.testing.check_target", lambda *_target, **_options: next(left))

    found = Verdict("model", 0, [Suite("scheduler", schedules=40)], [finding("a"), finding("b")])
    ends_with(found, found, Verdict("model", 0, [Suite("ops")]))
    assert "1 finding on model" in message_of(assert_no_finding, "model", known=["a"])
    assert assert_no_finding("model", known=["a", "b"]) is found
    with pytest.raises(UsageError, match="nothing of model could be checked"):
        assert_no_finding("model")


def test_a_target_that_cannot_be_used_is_refused_and_nothing_is_fetched(tmp_path: Path) -> None:
    for target, words in (("sglang", "is not a target"), ("sglang==9.9.9", r"not in the cache; fetch it once")):
        with pytest.raises(UsageError, match=words):
            assert_no_finding(target, cache_dir=tmp_path)
    with pytest.raises(UsageError, match="only='kernels' is no tier"):
        assert_no_finding("model", only="kernels")


def test_replay_files_are_parameters_and_a_finding_that_is_there_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FREED in replays(FREED.parent)
    with pytest.raises(UsageError, match="has no replay files"):
        replays(".")
    from specsim.findings.pin import Pinned

    answers = {
        json.loads(FREED.read_text())["target"]: Pinned(True, True, "seen"),
        "sglang@.": Pinned(True, False, ""),
        "old": Pinned(False, False, "gone"),
    }
    monkeypatch.setattr("specsim.findings.pin.replay_pinned", lambda _file, target, _seconds: answers[target])
    assert message_of(assert_gone, FREED).splitlines()[-1].split(maxsplit=1) == ["replay", f"specsim replay {FREED}"]
    assert_gone(FREED, "sglang@.")
    with pytest.raises(unittest.SkipTest, match="no longer applies: gone"):
        assert_gone(FREED, "old")


# ---- the plugin

SUITE = """
    from property_tests.support.own_engine import Engine

    engine = Engine(lambda requests: [][requests])

    def test_of_a_target(specsim_target):
        assert specsim_target == "test_mine:engine"
"""


def test_a_target_and_replay_files_of_the_command_line_are_tests(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("\n".join(line[4:] for line in SUITE.splitlines()))
    (tmp_path / "kept").mkdir()
    shutil.copy(FREED, tmp_path / "kept")
    target = "--specsim-target=test_mine:engine"
    chosen = ["-k", "scheduler or of_a_target or kept", "--specsim-budget-seconds=1"]
    ended = run_pytest(tmp_path, target, "--specsim-target=model", "--specsim-replays=kept", *chosen, "--co", "-q")
    assert ended.stdout.splitlines()[:6] == [
        "test_mine.py::test_of_a_target[test_mine:engine]",
        "test_mine.py::test_of_a_target[model]",
        "specsim::test_mine:engine::scheduler",
        "specsim::model::scheduler",
        f"specsim::kept/{FREED.name}::test_mine:engine",
        f"specsim::kept/{FREED.name}::model",
    ], ended.stdout + ended.stderr
    ended = run_pytest(tmp_path, "-v", target, *chosen)
    assert ended.returncode == 1
    assert "1 failed, 1 passed" in ended.stdout
    lines = ended.stdout.splitlines()
    last = lines[next(i for i, line in enumerate(lines) if "short test summary" in line) - 1]
    replay = re.fullmatch(r" +replay +specsim replay (\S+) --target test_mine:engine", last)
    assert replay, ended.stdout
    assert Path(replay[1]).is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"specsim_target": ["sglang"]}, "specsim: TARGET 'sglang' is not a target"),
        ({"specsim_replays": ["empty"]}, "has no replay files"),
    ],
)
def test_a_command_line_that_cannot_be_tested_is_refused(
    options: dict[str, list[str]], words: str, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    config: Any = SimpleNamespace(getoption=lambda name: options.get(name, []), rootpath=tmp_path)
    session: Any = SimpleNamespace(config=pytestconfig)
    with pytest.raises(pytest.UsageError, match=words):
        pytest_collection_modifyitems(session, config, [])


def test_without_a_target_its_tests_are_skipped_and_the_plugin_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_of_a_target(specsim_target): ...\ndef test_other(): ...\n")
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    heavy = {'torch', 'triton', 'numpy', 'rich', 'typer', 'specsim.testing', 'specsim.strategies'}\n"
        "    print('imported', *(heavy & set(sys.modules)))\n"
    )
    ended = run_pytest(tmp_path, "-q", "-rs")
    assert "no target: give --specsim-target=TARGET" in ended.stdout
    assert "1 passed, 1 skipped" in ended.stdout
    assert "imported\n" in ended.stdout


def test_importing_the_plugin_loads_few_modules() -> None:
    """Every run of a user's suite imports it, so nothing may come in unnoticed that takes long."""
    program = "import sys, specsim.pytest_plugin\nprint(*sorted(n for n in sys.modules if n.startswith('specsim')))"
    command = [sys.executable, "-c", program]
    loaded = subprocess.check_output(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True).split()
    assert set(loaded) == {"specsim", "specsim.pytest_plugin"}


def test_the_entry_point_has_the_modules_name_so_that_it_is_loaded_once_however_it_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"specsim.pytest_plugin": "specsim.pytest_plugin"}


# ---- profiles


def test_profiles_do_not_inherit_a_derandomised_default(monkeypatch: pytest.MonkeyPatch) -> None:
    derandomised = settings.register_profile("ours", derandomize=True, max_examples=7)
    assert derandomised is None
    before = settings.default
    settings.load_profile("ours")  # as Hypothesis loads its own `ci` where CI is set
    try:
        strategies.register_profiles("specsim-")
        for name, examples in strategies.EXAMPLES.items():
            profile = settings.get_profile(f"specsim-{name}")
            assert (profile.derandomize, profile.max_examples, profile.deadline) == (False, examples, None)
    finally:
        assert before is not None
        settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


# ---- strategies


@given(st.data(), st.integers(1, 5), st.integers(1, 4), st.integers(2, 9))
def test_trees_keep_to_their_limits(data: st.DataObject, topk: int, num_steps: int, nodes: int) -> None:
    limits = {"topk_max": topk, "num_steps_max": num_steps, "num_draft_tokens_max": nodes}
    tree: DraftTree = data.draw(strategies.draft_trees(**limits))
    assert 2 <= len(tree.parents) <= nodes
    assert tree.parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(tree.parents[1:], start=1))
    assert max(map(len, tree.children())) <= topk
    assert max(len(tree.path(node)) for node in range(len(tree.parents))) <= num_steps + 1


def test_the_simplest_tree_is_a_root_and_a_draft() -> None:
    quick = settings(max_examples=20)
    assert find(strategies.draft_trees(), lambda _tree: True, settings=quick).parents == [-1, 0]


@pytest.mark.parametrize(
    ("what", "holds"),
    [
        ("a shared maximum", lambda rows: int((rows == rows.max()).sum()) > 1),
        ("zeros of both signs", lambda rows: {0.0, -0.0} and len(set(map(str, rows.flatten().tolist()))) == 2),
        ("a subnormal", lambda rows: bool(((rows != 0) & (rows.abs() < 2.0**-126)).any())),
        ("an overflowing sum", lambda rows: not bool(rows.abs().sum().isfinite())),
        ("one token that is allowed", lambda rows: int(rows.isfinite().sum()) == 1),
        ("a NaN", lambda rows: bool(rows.isnan().any())),
    ],
)
def test_logits_have(what: str, holds: Callable[[torch.Tensor], bool]) -> None:
    found = find(strategies.logits(1, 5, allow_nan=True), holds)
    assert (found.shape, found.dtype) == ((1, 5), torch.float32), what


@given(st.data(), st.integers(1, 3), st.integers(1, 40))
def test_logits_are_finite_where_that_is_asked_for(data: st.DataObject, rows: int, vocab_size: int) -> None:
    drawn = data.draw(strategies.logits(rows, vocab_size, allow_infinity=False))
    assert (tuple(drawn.shape), bool(drawn.isfinite().all())) == ((rows, vocab_size), True)


@given(strategies.cache_layouts())
def test_a_layout_has_whole_pages_and_nobodys_page_0(layout: strategies.CacheLayout) -> None:
    page_size, table, rows, seq_lens = layout
    whole = table[:, : table.shape[1] // page_size * page_size].reshape(-1, page_size)
    assert bool((whole[:, 0] % page_size == 0).all())
    assert bool((whole == whole[:, :1] + torch.arange(page_size)).all())
    assert int(table.min()) >= page_size
    assert int(seq_lens.max()) <= table.shape[1]
    assert all(row > 0 or length == 0 for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True))


@given(strategies.batches())
def test_batches_are_valid_inputs(batch: Any) -> None:
    op = OPS["verify_tree_greedy"]
    assert set(batch.tensors) == {arg.name for arg in op.tensor_args if arg.role.value != "out"}
    op.expected(batch)


@given(strategies.workloads(replace(own_engine.FACTS, features=frozenset(FEATURES)), Setup(sessions=True)))
def test_workloads_fit_the_engine(workload: Workload) -> None:
    assert workload.turns
    assert all(len(turn.prompt) + turn.answer <= own_engine.FACTS.context for turn in workload.turns)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: strategies.cases("none"), "there is no operation 'none'"),
        (lambda: strategies.draft_trees(topk_max=0), "topk_max=0"),
        (lambda: strategies.draft_trees(num_draft_tokens_max=1), "num_draft_tokens_max=1"),
        (lambda: strategies.logits(0), "rows=0"),
        (lambda: strategies.logits(1, 0), "vocab_size=0"),
    ],
)
def test_what_no_strategy_can_draw_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()
