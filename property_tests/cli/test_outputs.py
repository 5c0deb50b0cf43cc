"""What commands write: tried before the work, alone on standard output for `-`, and lost without losing findings."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from property_tests.support.special_files import device, full_disk
from specsim import files
from specsim.cli import app, developers, main
from specsim.commands import pages
from specsim.commands.ignored_options import ALL, IGNORED
from specsim.commands.invocation import _note_file, _note_folder
from specsim.commands.pages import page_names, write_report
from specsim.errors import UsageError
from specsim.replay_file import file_name
from specsim.verdict import FORMAT

# What an option of each command that is no output names: read, or the store of a campaign.
INPUTS = {"cache_dir", "fixtures", "data", "campaign", "equivalent", "folder", "file", "repo", "resume", "store_file"}
ARGUMENTS = {
    "replay": ["no.json"],
    "pin": ["no.json"],
    "shrink": ["no.json"],
    "report": ["."],
    "template": ["fill_bonus_tokens"],
    "lossless": ["sglang@."],
    "explain": ["I32"],
    "bench": ["sim"],
    "bisect": ["no.json", "--good", "1", "--bad", "2"],
}
MORE = {("bisect", "--out"): ["--good", "1", "--bad", "2", "--rule", "I31"], ("targets", "--write"): ["sglang@."]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options_of(command: Any) -> dict[str, Any]:
    """The parameters of a command by name: what typer was told of each."""
    hints = typing.get_type_hints(command, include_extras=True)
    return {name: hint for name, hint in hints.items() if name != "return"}


def commands() -> dict[str, Callable[..., Any]]:
    """Every command by its words; `check` as its developers have it."""
    every = [(each, "") for each in app.registered_commands] + [(e, "dev ") for e in developers.registered_commands]
    named = {f"{group}{each.name or each.callback.__name__}": each.callback for each, group in every if each.callback}
    return {name: callback for name, callback in named.items() if name != "check"}


def outputs() -> list[tuple[str, str, bool]]:
    """Every option that names an output: its command, its name, and whether it names a folder."""
    found = []
    for command, callback in commands().items():
        for hint in options_of(callback).values():
            told = getattr(hint, "__metadata__", [None])[0]
            if getattr(told, "callback", None) in (_note_file, _note_folder):
                option = str(told.default)  # where typer keeps the first name
                found.append((command, option, told.callback is _note_folder))
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0), capsys.readouterr().err


def test_every_option_that_names_a_path_is_an_output_or_is_read() -> None:
    unknown = []
    for command, callback in commands().items():
        for name, hint in options_of(callback).items():
            told = getattr(hint, "__metadata__", [None])[0]
            if "Path" in str(hint) and getattr(told, "callback", None) is None and name not in INPUTS:
                unknown.append(f"{command}: {name}")
    assert unknown == []
    assert len(outputs()) >= 30


@pytest.mark.parametrize(("command", "option", "is_folder"), outputs())
def test_every_output_is_tried_before_the_work(
    command: str,
    option: str,
    is_folder: bool,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "file").write_text("")
    arguments = [*command.split(), *MORE.get((command, option), ARGUMENTS.get(command, ()))]
    code, said = refused(capsys, *arguments, option, "file/x")
    assert code == 2
    assert said.startswith(f"specsim: {option} file/x: ")
    assert "is not a folder that can be written" in said
    for wrong in ("" if is_folder else "folder/", "n" * 300):
        code, said = refused(capsys, *arguments, option, wrong)
        assert code == 2
        assert said.startswith("specsim: ")
        assert "Traceback" not in said
    assert sorted(path.name for path in here.iterdir()) == ["file"]


def test_a_wrong_command_line_stops_git_bisect_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--json", str(tmp_path)], ["--cases", "many"], ["--only", "workers", "--schedules", "3"]):
        assert refused(capsys, "check", "model", "--bisect-run", *wrong)[0] == 128


# Standard output


def test_a_dash_is_standard_output_and_nothing_else_goes_there(tmp_path: Path) -> None:
    ended = specsim(tmp_path, "targets", "--json", "-")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)
    assert "model" in ended.stderr
    assert [path for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_dev_stdout_is_standard_output_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "link"
    link.symlink_to("/proc/self/fd/1")
    with pytest.raises(SystemExit) as ended:
        main(["template", "fill_bonus_tokens", "--out", str(tmp_path / "p.py"), "--json", str(link)])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["operations"] == ["fill_bonus_tokens"]
    assert "both ask" in refused(capsys, "check", "model", "--json", "-", "--junit", str(link))[1]
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        (["template", "fill_bonus_tokens", "--out", "-"], '"""Functions of your own'),
        (["template", "fill_bonus_tokens", "--json", "-"], "{\n"),
        (["explore", "one-request", "--json", "-"], "{\n"),
        (["mutants", "A05", "--seeds", "1", "--schedules", "200", "--json", "-"], "{\n"),
    ],
)
def test_every_output_can_be_a_dash(
    arguments: list[str],
    begins: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    shown = capsys.readouterr()
    assert shown.out.startswith(begins)
    assert shown.err
    if begins == "{\n":
        json.loads(shown.out)
    assert not (here / "-").exists()


def test_a_file_of_that_name_is_still_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["template", "fill_bonus_tokens", "--json", "./-"])
    assert ended.value.code == 0
    assert json.loads((here / "-").read_text())["operations"] == ["fill_bonus_tokens"]
    assert "provider.py" in capsys.readouterr().out


def test_two_outputs_cannot_both_be_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capsys, "check", "model", "--json", "-", "--junit", "-")
    assert code == 2
    assert "--json - and --junit - both ask for standard output" in said
    assert refused(capsys, "check", "model", "--out", "-") == (
        2,
        "specsim: --out '-' names no folder.\n         Name a folder.\n",
    )
    assert "a baseline is read" in refused(capsys, "check", "model", "--baseline", "-", "--update-baseline")[1]


def test_what_a_program_prints_past_python_does_not_reach_standard_output() -> None:
    program = (
        "import os, pathlib; from specsim.files import *\n"
        "with standard_output_alone():\n"
        "    print('printed'); os.write(1, b'past'); os.system('echo by a process')\n"
        "    write_text(STANDARD_OUTPUT, 'alone')\n"
        "print(' after', end='')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    assert ended.stdout == "alone after"
    assert all(text in ended.stderr for text in ("printed", "past", "by a process"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "model", "--json", "x", "--junit", "./x"], "--junit x is the file of --json too"),
        (["replay", "mine", "--json", "link"], "--json link is the file of FILE too"),
        (["fuzz", "--store", "c.db", "--json", "c.db"], "--json c.db is the file of --store too"),
        (
            ["report", "--campaign", "a.db", "--campaign", "b.db", "--json", "b.db"],
            "--json b.db is the file of --campa",
        ),
    ],
)
def test_an_output_replaces_neither_another_one_nor_what_is_read(
    arguments: list[str],
    words: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "mine").write_text("mine")
    (here / "link").symlink_to("mine")
    code, said = refused(capsys, *arguments)
    assert code == 2
    assert said.startswith(f"specsim: {words}")
    assert sorted(path.name for path in here.iterdir()) == ["link", "mine"]


# What cannot be written at the end


BREAKS = """
from property_tests.support.own_engine import Engine


def third(requests):
    if requests == 3:
        raise LookupError("three")


engine = Engine(third)
"""


def test_findings_are_printed_and_the_rest_is_saved_when_an_output_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full, summary = device(tmp_path / "full", stat.S_IFCHR, 1, 7), tmp_path / "summary.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(full))
    (tmp_path / "breaks.py").write_text(BREAKS)
    options = ["--only", "scheduler", "--schedules", "3", "--no-shrink", "--out", "found"]
    with pytest.raises(SystemExit) as ended:
        main(["check", "breaks:engine", *options, "--json", str(full), "--junit", "j.xml", "--sarif", "s.json"])
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert "fail: 1 finding" in shown.out
    assert "::error" in shown.out
    assert shown.err.splitlines()[-2:] == [
        f"specsim: cannot write {full} (No space left on device); cannot write {full} (No space left on device).",
        "         Free some space, or name a file elsewhere.",
    ]
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"breaks.py", "found", "full", "j.xml", "s.json"}
    assert not summary.exists()
    assert len(list((tmp_path / "found").iterdir())) == 1


def test_findings_are_printed_when_the_disk_has_no_room_for_their_replays(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "breaks.py").write_text(BREAKS)
    with full_disk(1000), pytest.raises(SystemExit) as ended:
        main(["check", "breaks:engine", "--only", "scheduler", "--schedules", "3", "--no-shrink"])
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert "fail: 1 finding" in shown.out
    assert "none was written" in shown.out
    assert "/specsim-findings/breaks-engine-" in shown.err.splitlines()[-2]
    assert "(File too large)" in shown.err.splitlines()[-2]
    written = {path.name for path in here.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert written == {".gitignore", "breaks.py"}


def test_the_step_summary_is_tried_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    code, said = refused(capsys, "check", "model", "--github", "--out", str(tmp_path / "found"))
    assert code == 2
    assert said.startswith(f"specsim: GITHUB_STEP_SUMMARY={tmp_path}: ")


def test_outside_of_a_command_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        files.save_text(tmp_path, "")


@pytest.mark.parametrize("options", [[], ["--junit", "-"]])
def test_a_full_standard_output_loses_what_is_printed_and_nothing_else(options: list[str], tmp_path: Path) -> None:
    full = device(tmp_path / "full", stat.S_IFCHR, 1, 7)
    command = [sys.executable, "-m", "specsim", "check", "model", "--only", "scheduler", "--schedules", "1", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with full.open("wb") as stdout:
        ended = subprocess.run(
            [*command, "--json", "v.json"],
            cwd=tmp_path,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment,
            timeout=60,
        )
    assert ended.returncode == 2
    assert "No space left on device" in ended.stderr.splitlines()[-2]
    assert "Traceback" not in ended.stderr
    assert json.loads((tmp_path / "v.json").read_text())["verdict"] == "pass"


# Names


def test_a_name_that_is_too_long_is_cut_and_stays_another_one() -> None:
    names = [file_name(f"target-{'x' * 300}{end}") for end in ("a", "b", "\ud800")]
    assert len(set(names)) == 3
    assert all(len(f"{name}.json") <= 255 for name in names)
    assert names[0].endswith("-82c5dbc7346ee9a4")
    assert file_name("sglang==0.1-ops:x") == "sglang-0.1-ops-x"


def test_no_two_replays_share_a_page() -> None:
    assert page_names(["a b", "a:b", "a-b-2", "a-b", "index", "x" * 300]) == [
        *("a-b.html", "a-b-2.html", "a-b-2-2.html", "a-b-3.html", "index-2.html"),
        f"{file_name('x' * 300)}.html",
    ]


# specsim report


def payload(*_of: Any) -> dict[str, Any]:
    names = ("rule_label", "title", "signature", "sentence", "target", "severity", "verdict", "where")
    return {"finding": dict.fromkeys(names, "x"), "kind": "x"}


def reported(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setattr(pages, "payload_of", payload)
    monkeypatch.setattr("specsim.report.page.render.html_of", lambda _payload: "page")
    html = folder / "html" if folder.is_dir() else Path(f"{folder}.html")
    write_report(folder, html, folder, lambda *_of: {"violations": []}, None, **options)


def replays(folder: Path, *names: str) -> None:
    fixture = next((Path(__file__).parents[2] / "fixtures" / "replays").glob("*.json")).read_text()
    for name in names:
        (folder / f"{name}.json").write_text(fixture)


def test_a_report_counts_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replays(tmp_path, "a b", "a-b", "c")
    (tmp_path / "d.json").write_text("{}")
    reported(tmp_path, monkeypatch, json_file=tmp_path / "list")
    said = capsys.readouterr().out
    assert len(list((tmp_path / "html").glob("*.html"))) == 4
    assert "index.html: 3 findings, and 1 file without a page" in said
    assert "without a page: d.json: " in said
    assert len(json.loads((tmp_path / "list").read_text())["entries"]) == 4


def test_a_report_of_a_verdict_has_what_is_new_first_and_takes_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays(tmp_path, "old", "new")
    found = [
        {
            "signature": name,
            "replay": f"{name}.json",
            "triage": f"of {name}",
            "changed": ["f a.py:3"],
            "reach": "option",
        }
        for name in ("old", "new")
    ]
    verdict = {"format": FORMAT, "findings": found, "baseline": {"known": ["old"], "name": "base"}}
    (tmp_path / "specsim.json").write_text(json.dumps(verdict))
    monkeypatch.chdir(tmp_path.parent)  # its files are found beside it
    reported(tmp_path / "specsim.json", monkeypatch, json_file=tmp_path / "list")
    entries = json.loads((tmp_path / "list").read_text())["entries"]
    assert [(entry["file"], entry["group"]) for entry in entries] == [("new.json", "New"), ("old.json", "Not new")]
    index = (tmp_path / "specsim.json.html" / "index.html").read_text()
    assert index.index("<h2>New <small>1</small></h2>") < index.index("of new") < index.index("<h2>Not new")
    assert "<dt>changed</dt><dd>f a.py:3</dd>" in index


def test_a_report_of_a_folder_has_what_nobody_knows_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays(tmp_path, "a", "b")
    known = json.loads((tmp_path / "a.json").read_text()) | {"target": "sglang==9.9", "signature": "a:known:one"}
    (tmp_path / "a.json").write_text(json.dumps(known))
    monkeypatch.setattr("specsim.engines.triage.known_line", lambda _target, sig: "known" if "known" in sig else "")
    reported(tmp_path, monkeypatch, json_file=tmp_path / "list")
    entries = json.loads((tmp_path / "list").read_text())["entries"]
    assert [entry["file"] for entry in entries] == ["b.json", "a.json"]


def test_a_report_of_what_is_no_verdict_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text, problem in (
        ("x.json", "{}", "is no verdict of this specsim"),
        ("y.json", json.dumps({"format": FORMAT, "findings": []}), "names no replay file"),
        ("z.json", None, "is not there"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        code, said = refused(capsys, "report", str(tmp_path / name), "--html", str(tmp_path / "html"))
        assert (code, problem in said, (tmp_path / "html").exists()) == (2, True, False), said


def test_a_folder_that_is_not_here_is_asked_for_with_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    replays(tmp_path, "a")
    stored = json.loads((tmp_path / "a.json").read_text()) | {"target": "sglang@.", "source": "commit 1a2b3c4d5e6f"}
    (tmp_path / "a.json").write_text(json.dumps(stored))
    code, said = refused(capsys, "replay", "a.json")
    assert code == 2
    assert "a.json was found on sglang@., commit 1a2b3c4d5e6f, and sglang@. is not SGLang" in said
    assert "--target sglang@PATH" in said


def test_a_report_of_no_replay_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("report", str(tmp_path), "--html", str(tmp_path / "html"))
    code, said = refused(capsys, *arguments)
    assert (code, "there is no replay file in" in said, (tmp_path / "html").exists()) == (2, True, False)
    (tmp_path / "v.json").write_text("{}")
    code, said = refused(capsys, *arguments)
    assert (code, "no file in" in said, (tmp_path / "html" / "index.html").exists()) == (2, True, True)


def test_a_report_goes_on_when_a_page_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replays(tmp_path, "a", "b")
    (tmp_path / "html" / "a.html").mkdir(parents=True)
    with files.command_outputs() as failures:
        reported(tmp_path, monkeypatch)
    assert [failure.problem for failure in failures] == [f"cannot write {tmp_path}/html/a.html (Is a directory)"]
    assert "index.html: 1 finding, and 1 file without a page" in capsys.readouterr().out


# No option is ignored

BESIDE: Sequence[tuple[str, Sequence[str], str]] = [
    ("dev", ["check", "--canary", "--json", "x"], "--json with --canary"),
    ("dev", ["check", "--canary", "--no-shrink"], "--no-shrink with --canary"),
    ("check", ["model", "--only", "ops:row_argmax", "--schedules", "3"], "--schedules with --only ops:row_argmax"),
    ("dev", ["check", "--provider", "a:b", "--mutant", "A01"], "--mutant with --provider"),
    ("check", ["model", "--only", "scheduler", "--device", "cpu"], "--device with --only scheduler"),
    ("check", ["model", "--only", "scheduler", "--cases", "3"], "--cases with --only scheduler"),
    ("dev", ["check", "model", "--mutant", "A01", "--cases", "3"], "--cases with --mutant"),
    ("dev", ["check", "model", "--mutant", "A01", "--no-known"], "--no-known with --mutant"),
    ("check", ["model", "--no-shrink", "--attempts", "3"], "--attempts with --no-shrink"),
    ("check", ["model", "--only", "ops", "--bulk", "--no-shrink"], "--no-shrink with --bulk"),
    ("check", ["sglang@.", "--only", "ops:build_tree", "--jobs", "2"], "--jobs with --only ops:build_tree"),
    ("check", ["model", "a:b", "--update-baseline"], "--baseline with several targets"),
    ("report", ["--campaign", "c.db", "--data", "."], "--data with --campaign"),
    ("report", ["--campaign", "c.db", "--target", "model"], "--target with --campaign"),
    ("targets", ["sglang@.", "--fetch", "sglang==0.1"], "--fetch with a TARGET"),
    ("targets", ["--fetch", "sglang==0.1", "--json", "x"], "--json with --fetch"),
    ("targets", ["sglang@.", "--write", "x"], "--write with sglang@."),
    ("bench", ["interpreter", "--device", "cpu"], "--device with interpreter"),
    ("mutants", ["--only", "ops", "--schedules", "3"], "--schedules with --only ops"),
    ("mutants", ["--write", "x", "--budget-seconds", "3"], "--budget-seconds with --write"),
    ("fuzz", ["--again", "0:1", "--jobs", "2"], "--jobs with --again"),
    ("fuzz", ["--again", "0:1", "--store", "there.db", "--only", "ops"], "--only with --again of the store there.db"),
    ("fuzz", ["model", "--again", "0:1", "--store", "there.db"], "TARGET with --again of the store there.db"),
    ("bisect", ["x.json", "--cases", "3"], "--cases with a replay file"),
    ("bisect", ["--rule", "I31", "--cases", "3"], "--cases with --rule"),
    ("bisect", ["--only", "ops:x", "--schedules", "3"], "--schedules with --only"),
    ("replay", ["schedule.json", "--device", "cpu"], "--device with a finding of the scheduler tier"),
]


@pytest.mark.parametrize(("command", "arguments", "words"), BESIDE)
def test_an_option_that_would_be_ignored_is_refused(
    command: str,
    arguments: Sequence[str],
    words: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "there.db").write_text("")
    fixtures = (Path(__file__).parents[2] / "fixtures" / "replays").glob("*.json")
    schedule = next(text for file in sorted(fixtures) if '"tier": "scheduler"' in (text := file.read_text()))
    (here / "schedule.json").write_text(schedule)
    code, said = refused(capsys, command, *arguments)
    assert code == 2
    assert said.startswith(f"specsim: {words}")
    assert sorted(path.name for path in here.iterdir()) == ["schedule.json", "there.db"]


def test_the_table_of_ignored_options_names_options_that_are_there() -> None:
    by_name = {words.split()[-1]: callback for words, callback in commands().items()}
    for command, rules in IGNORED.items():
        known = set(options_of(by_name[command]))
        for rule in rules:
            assert rule.names == ALL or set(rule.names) <= known, command
            assert set(rule.kept) <= known, command


def test_a_store_that_is_no_file_gets_no_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    code, said = refused(capsys, "fuzz", "model", "--store", str(tmp_path / "fifo"), "--out", str(tmp_path))
    assert (code, "fifo is not a regular file" in said) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["fifo"]


def test_a_lock_is_not_made_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "c.db.lock").symlink_to(victim)
    code, said = refused(capsys, "fuzz", "model", "--store", str(tmp_path / "c.db"), "--out", str(tmp_path))
    assert (code, "cannot write beside" in said) == (2, True)
    assert victim.read_text() == "mine"
