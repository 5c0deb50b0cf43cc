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
        ("signature", "fill_bonus_tokens", "another signature: other(predict, accept_index, lens)"),
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
    with pytest.raises(pytest.fail.Exception, match="another signature"):
        holds_contract("fill_bonus_tokens", lambda predict: predict)
