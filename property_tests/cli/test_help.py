"""Help that can be read: in groups, whole, with examples; and for a name that is nearly right, the right one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from specsim.cli import app, main
from specsim.commands.check import CheckCommand
from specsim.commands.help_text import first_sentence
from specsim.engines.registry import ENGINES
from specsim.engines.target import parse_target
from specsim.errors import UsageError, did_you_mean, no_such

COMMANDS = getattr(get_command(app), "commands")  # noqa: B009 - a click group, which typer does not type


def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS)])
def test_h_is_help_and_nothing_of_it_is_cut_off(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [name] if name else []
    shown = help_of(capsys, monkeypatch, *command, "-h")
    assert shown == help_of(capsys, monkeypatch, *command, "--help")
    assert "..." not in re.sub(r"\S+\.\.\.", "", shown)  # OPERATION... takes several
    words = " ".join(shown.split()).replace("- ", "-")
    for parameter in COMMANDS[name].params if name else ():
        text = " ".join((getattr(parameter, "help", "") or "").split()).replace("- ", "-")
        assert text.split("\b")[0] in words or getattr(parameter, "hidden", False), parameter.name


def test_the_list_of_commands_has_the_first_sentence_of_each_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = " ".join(help_of(capsys, monkeypatch, "-h").split())
    for name, command in COMMANDS.items():
        assert f"{name} {first_sentence(command.help)}" in shown


def test_every_option_of_check_is_in_one_group() -> None:
    grouped = [name for names in CheckCommand.groups.values() for name in names]
    options = {parameter.name for parameter in COMMANDS["check"].params if parameter.param_type_name == "option"}
    assert len(grouped) == len(set(grouped))
    assert options - {"help"} == set(grouped)


def test_the_groups_of_check_stand_in_its_help_in_their_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headings = re.findall(r"^(\w.*):$", help_of(capsys, monkeypatch, "check", "-h"), re.MULTILINE)
    assert headings == ["Arguments", *CheckCommand.groups, "Options", "Examples"]


def test_the_examples_of_check_are_command_lines_that_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = help_of(capsys, monkeypatch, "check", "-h")
    assert len(CheckCommand.examples) >= 2
    for example, _text in CheckCommand.examples:
        assert f"    {example}\n" in shown
        name, *arguments = shlex.split(example)[1:]
        assert COMMANDS[name].make_context(name, arguments, resilient_parsing=True)
        options = {text for parameter in COMMANDS[name].params for text in parameter.opts}
        assert {text for text in arguments if text.startswith("-")} <= options


@pytest.mark.parametrize("option", ["--mutant", "--canary", "--pin", "--write", "--one-core"])
def test_an_option_of_developers_is_named_where_it_is(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = [] if option in ("--canary", "--one-core") else ["x"]
    with pytest.raises(SystemExit, match="2"):
        main(["check", "model", option, *value])
    said = capsys.readouterr().err
    assert f"specsim check has no option {option}" in said
    assert f"specsim dev check {option}" in said
    for command, shown in ((["check"], False), (["dev", "check"], True)):
        with pytest.raises(SystemExit, match="0"):
            main([*command, "--help"])
        assert (f"{option} " in capsys.readouterr().out) is shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("check", "-h"),
        ("check", "nowhere"),
        ("replay", "nowhere.json"),
        ("explore", "nowhere"),
        ("lossless", "nowhere"),
        ("mutants", "--of", "sglang@.", "--resume", "nowhere.json"),
    ],
    ids=" ".join,
)
def test_help_and_a_refusal_need_no_torch(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Which takes seconds to import. Help needs nothing else that is large."""
    large = {"torch", "triton"} | ({"numpy", "hypothesis", "rich"} if arguments[-1] in ("-h", "--help") else set())
    script = (
        f"import sys\nfrom specsim.cli import main\ntry:\n    main({list(arguments)!r})\nexcept SystemExit:\n    pass\n"
        f"print(sorted({large} & set(sys.modules)))\n"
    )
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert ended.stdout.splitlines()[-1] == "[]"


# Names


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["check", "sglnag==1.0"], "sglang==1.0"),
        (["check", "vlm@."], "vllm@."),
        (["check", "modle"], "model"),
        (["check", "--only", "schedular"], "scheduler"),
        (["dev", "check", "--mutant", "A02-finish"], "A02-finished"),
        (["mutants", "A02-finish"], "A02-finished"),
        (["template", "alloc_extent"], "alloc_extend"),
        (["explore", "one-reqest"], "one-request"),
        (["explain", "content_read"], "content-read"),
        (["bench", "kernel"], "kernels"),
    ],
)
def test_every_name_that_is_nearly_right_is_answered_with_the_right_one(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 2)
    assert f"Did you mean {meant}?" in said
    assert "?." not in said


def test_a_planted_defect_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    from specsim.engines.sglang.scheduler.planted import planted
    from specsim.world.planted import find

    with pytest.raises(UsageError, match=r"[Dd]id you mean .*P07"):
        find("P077", planted())


def test_the_prefix_of_every_engine_is_answered_when_one_letter_is_missing() -> None:
    for engine in ENGINES:
        with pytest.raises(UsageError, match=rf"did you mean {engine}==1.0\?"):
            parse_target(f"{engine[:-2]}{engine[-1]}==1.0")


def test_the_file_of_a_module_is_answered_with_its_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        parse_target("mine")
    assert "did you mean mine:provider" in str(refused.value)


@given(st.lists(st.text("abcd", min_size=3, max_size=6), min_size=1, unique=True))
def test_a_name_that_is_there_is_what_was_meant_and_the_suggestion_is_always_a_name(names: list[str]) -> None:
    assert did_you_mean(names[0].upper(), names).startswith(f"did you mean {names[0]}")
    near = did_you_mean("abc", names)
    assert not near or set(near.removeprefix("did you mean ").removesuffix("?").split(" or ")) <= set(names)


def test_many_names_are_listed_only_when_none_is_near() -> None:
    many = [f"name_{number}" for number in range(50)]
    assert no_such("thing", "zzz", many).remedy == f"choose one of {', '.join(many)}"
    assert no_such("thing", "name_7x", many).remedy == "did you mean name_7?"
    both = f"did you mean name_7? Choose one of {', '.join(many)}"
    assert no_such("thing", "name_7x", many, lists_all=True).remedy == both
