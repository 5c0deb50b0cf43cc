"""A user's own functions: the adapter that is written for them, the fixture, and what is said of a wrong one."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from specsim.cli import main
from specsim.commands.template import source_of, template
from specsim.contracts.provider import MappingProvider
from specsim.contracts.registry import OPS, REFERENCE
from specsim.errors import UsageError
from specsim.pytest_plugin import Hold, holds_contract

__all__ = ["holds_contract"]  # the fixture

WRONG = """
    import torch
    from specsim.contracts.registry import REFERENCE

    def other(predict, accept_index, lens):
        return predict

    def mutates(predict, accept_index, accept_lens):
        predict += 1
        return REFERENCE["fill_bonus_tokens"](predict - 1, accept_index, accept_lens)

    not_a_function = {"fill_bonus_tokens": 7}
    signature = {"fill_bonus_tokens": other}
    mutation = {"fill_bonus_tokens": mutates}
    unknown = {"fill_bonus_token": other}
    half = {
        "fill_bonus_tokens": REFERENCE["fill_bonus_tokens"], "fill_bonus_token": other, "row_argmax": lambda rows: rows
    }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "wrong.py").write_text(textwrap.dedent(WRONG))
    return folder


@pytest.mark.parametrize("operation", list(OPS))
def test_every_operation_has_a_template_that_names_what_its_contract_passes(operation: str) -> None:
    namespace: dict[str, Any] = {}
    exec(source_of("mine", [OPS[operation]]), namespace)
    subjects, _not_run = MappingProvider("mine", namespace["provider"]).subjects()
    assert [subject.op for subject in subjects] == [operation]


def test_a_template_passes_as_it_is_written(folder: Path) -> None:
    template(["fill_bonus_tokens", "row_argmax"], folder / "adapter.py")
    ended = specsim(folder, "check", "--provider", "adapter:provider", "--cases", "5", "--device", "cpu")
    assert (ended.returncode, "no findings, 10 cases" in ended.stdout) == (0, True), ended.stdout + ended.stderr
    with pytest.raises(UsageError, match="there already"):
        template(["row_argmax"], folder / "adapter.py")


@pytest.mark.parametrize(
    ("name", "operation", "words"),
    [
        ("not_a_function", "fill_bonus_tokens", "7 is a int, not a function"),
        ("signature", "fill_bonus_tokens", "accept_index, lens): 'lens' is none of the contract's arguments"),
        ("unknown", "fill_bonus_token", "specsim has no operation of this name"),
    ],
)
def test_what_cannot_be_called_is_not_run_and_named(name: str, operation: str, words: str) -> None:
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(WRONG), namespace)
    subjects, not_run = MappingProvider("wrong", namespace[name]).subjects()
    assert not subjects
    (why,) = [entry.why for entry in not_run if entry.what == operation]
    assert words in why


def test_without_an_operation_template_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    template()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(OPS)
    assert [line.rstrip(":") for line in lines if not line.startswith("  ")] == list(
        dict.fromkeys(op.family for op in OPS.values())
    )


def test_a_template_has_the_contract_with_the_sizes_that_follow_and_the_form_that_writes_in_place() -> None:
    text = source_of("mine", [OPS["verify_tree_greedy"]])
    assert "accept_width = num_steps + 1] int32, prefilled with -1" in text
    assert "target_predict, num_steps, predicts, accept_index, accept_token_num)" in text


def test_a_finding_of_ones_own_is_explained_made_smaller_and_has_a_page(folder: Path) -> None:
    specsim(folder, "check", "--provider", "wrong:mutation", "--cases", "3", "--device", "cpu")
    file = "specsim-findings/wrong-mutation-ops-fill_bonus_tokens-kernel-fill_bonus_tokens.json"
    for named in ("ops:fill_bonus_tokens:kernel:fill_bonus_tokens", file):
        explained = specsim(folder, "explain", named)
        assert explained.returncode == 0, explained.stderr
        assert "changed-input (O3)" in explained.stdout
        assert file in explained.stdout
    refused = specsim(folder, "shrink", file)
    assert (refused.returncode, "--target wrong:mutation" in refused.stderr) == (2, True)
    smaller = specsim(folder, "shrink", file, "--target", "wrong:mutation", "--attempts", "20")
    assert (smaller.returncode, "nothing smaller was found in 20 attempts" in smaller.stdout) == (0, True)
    none = specsim(folder, "report", "specsim-findings")
    assert (none.returncode, "0 findings, and 1 file without a page" in none.stdout) == (125, True), none.stderr
    page = specsim(folder, "report", "specsim-findings", "--target", "wrong:mutation")
    assert (page.returncode, "1 finding" in page.stdout) == (0, True), page.stderr


def test_a_function_that_was_not_run_does_not_pass(folder: Path) -> None:
    ended = specsim(folder, "check", "--provider", "wrong:half", "--cases", "3", "--device", "cpu")
    assert ended.returncode == 4, ended.stdout + ended.stderr
    *_, verdict, what_to_do, one, two = ended.stdout.splitlines()
    assert verdict.startswith("incomplete: no findings, 2 not checked")
    assert "what to mend" in what_to_do
    assert one.startswith("not checked: ops:fill_bonus_token (specsim has no operation of this name; did you mean")
    assert two.startswith("not checked: ops:row_argmax (it cannot be called as its contract says")


def test_a_finding_in_ones_own_function_ends_with_exit_code_1(folder: Path) -> None:
    ended = specsim(folder, "check", "--provider", "wrong:mutation", "--cases", "3", "--device", "cpu")
    shown = "changed-input (O3): inputs come back unchanged" in ended.stdout
    assert (ended.returncode, shown) == (1, True), ended.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "--provider", "nowhere:provider"], "no module 'nowhere'"),
        (["check", "model", "--provider", "wrong:mutation"], "--provider with a TARGET"),
        (["template", "no_such_operation"], "there is no operation 'no_such_operation'"),
        (["template", "row_argmax", "--out", "not a module.py"], "not a module that Python imports"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_the_fixture_holds_a_function_against_its_contract(
    holds_contract: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    holds_contract("fill_bonus_tokens", REFERENCE["fill_bonus_tokens"], cases=5)
    with pytest.raises(pytest.fail.Exception, match=r"bonus_tokens has dtype torch\.int64"):
        holds_contract("fill_bonus_tokens", lambda predict, accept_index, accept_lens: accept_lens.long(), cases=5)
    with pytest.raises(pytest.fail.Exception, match="cannot be called as its contract says"):
        holds_contract("fill_bonus_tokens", lambda predict: predict)
