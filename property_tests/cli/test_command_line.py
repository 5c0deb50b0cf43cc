"""The command line from the outside: what every command takes, what it ends with, and what it shows to whom."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from property_tests.support.command_line import specsim
from property_tests.support.findings import found
from specsim import interrupts, replay_file
from specsim.choices.exhaustive import Explorer
from specsim.cli import app
from specsim.commands import doctor
from specsim.commands.options import SECONDS_MAX
from specsim.deadline import Deadline
from specsim.findings.matrix import Column, Matrix
from specsim.lifting.cache import Cache
from specsim.report.live import WorkProgress, line_of
from specsim.report.terminal import print_replay
from specsim.verdict import Suite, Verdict

_GROUP: Any = get_command(app)
COMMANDS: dict[str, Any] = {**_GROUP.commands, **_GROUP.commands["dev"].commands, "check": _GROUP.commands["check"]}
del COMMANDS["dev"]
SCHEDULE = "slots-freed-under-a-running-request"
HOSTILE = """
    import pathlib
    import time

    from property_tests.support.own_engine import Engine

    def hostile(requests):
        text = "[red]\\x1b[2J\\x1b]0;owned\\x07 <b>\\u202e\\ud800 r\\u00e9sum\\u00e9 " + "x" * 30000
        raise ValueError(text)

    def late(requests):
        with open("steps", "a") as steps:
            steps.write(".")
            if steps.tell() > 200:
                pathlib.Path("running").touch()
        if requests == 3:
            hostile(requests)

    def hanging(requests):
        pathlib.Path("running").touch()
        time.sleep(60)

    says, breaks, hangs = Engine(hostile), Engine(late), Engine(hanging)
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command_line")
    (folder / "mine.py").write_text(textwrap.dedent(HOSTILE))
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join(dict.fromkeys(filter(None, [str(Path(__file__).parents[2]), *sys.path])))
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**plain, "PYTHONPATH": path, "SPECSIM_CACHE_DIR": str(folder / "cache"), **more}


# What every command takes


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_takes_json_and_says_what_it_does(name: str) -> None:
    options = {text: option for option in COMMANDS[name].params for text in option.opts}
    assert options["--json"].help


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_time_is_longer_than_the_system_can_wait(name: str) -> None:
    times = [option for option in COMMANDS[name].params if {"--budget-seconds", "--hang-seconds"} & {*option.opts}]
    assert {option.max for option in times} <= {SECONDS_MAX}


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e30"])
@pytest.mark.parametrize("option", ["--budget-seconds", "--hang-seconds"])
def test_a_time_without_end_is_refused(option: str, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    from specsim.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["check", "model", "--only", "scheduler", "--schedules", "1", option, seconds])
    assert ended.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["doctor"], ["pin", "x.json"], ["targets"], ["explore"], ["template", "build_tree"]],
)
def test_a_seed_is_refused_where_nothing_is_drawn(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from specsim.cli import main

    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--seed", "1"])
    assert ended.value.code == 2
    assert "No such option: --seed" in capsys.readouterr().err


def test_the_shell_completes_commands(tmp_path: Path) -> None:
    ended = specsim(tmp_path, "--show-completion", "bash")
    assert (ended.returncode, "_SPECSIM_COMPLETE" in ended.stdout) == (0, True)
    asked = {"_SPECSIM_COMPLETE": "complete_bash", "COMP_WORDS": "specsim do", "COMP_CWORD": "1"}
    assert specsim(tmp_path, **asked).stdout.split() == ["doctor"]


# Exit codes


FOUND = found("ops:f:f", reach="default")


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict("model", 0, [Suite("ops", cases=1)]), 0),
        (Verdict("model", 0, [Suite("ops", cases=1)], [FOUND]), 1),
        (Verdict("model", 0, [Suite("ops")]), 125),
        (Verdict("model", 0, [Suite("ops", cases=1)], interrupted=True), 130),
        (Verdict("model", 0, [Suite("ops", cases=1)], [FOUND], interrupted=True), 1),
    ],
)
def test_the_exit_code_says_what_the_verdict_says(verdict: Verdict, code: int) -> None:
    assert verdict.exit_code == code
    column = Column("model", verdict.to_json(), "", code, 0.0)
    assert Matrix("0", [column]).exit_code == code


def test_what_no_tier_can_check_is_125_and_nondeterminism_is_3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specsim import cli
    from specsim.errors import NondeterministicError

    (folder / "empty.py").write_text("provider = {}\n")
    assert specsim(folder, "check", "empty:provider", "--only", "scheduler").returncode == 125

    def differs(*_arguments: object, **_options: object) -> None:
        raise NondeterministicError("event 3")

    monkeypatch.setattr(cli, "app", differs)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 3


def test_a_replay_on_a_target_that_does_not_run_it_is_125_and_not_passed(capsys: pytest.CaptureFixture[str]) -> None:
    fixtures = Path(__file__).parents[2] / "fixtures" / "replays"
    schedule, case = (replay_file.load(fixtures / f"{name}.json") for name in (SCHEDULE, "bonus-token-stride"))
    assert isinstance(schedule, replay_file.SchedulerReplay)
    assert isinstance(case, replay_file.OpReplay)
    assert print_replay(schedule, "model", {"judged": False, "why": "it has no such setup"}) == 125
    assert print_replay(case, "model", {"judged": False, "subject": "f"}) == 125
    assert capsys.readouterr().out.count("not checked") == 2


# Interrupts


def interrupted(folder: Path, *arguments: str, times: int = 1) -> tuple[int, str, str]:
    """Run the command line in a group of its own, interrupt it once the target runs; exit code and output."""
    (folder / "running").unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "specsim", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(folder),
        # make runs tests in the background, where interrupts may be ignored from the start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        waited = time.monotonic() + 60
        while not (folder / "running").exists() and time.monotonic() < waited:
            time.sleep(0.02)
        for _ in range(times):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.3)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, stdout, stderr


def test_an_interrupt_keeps_what_was_found_and_says_how_to_go_on(folder: Path) -> None:
    arguments = ("--schedules", "1000000", "--only", "scheduler", "--out", "found", "--json", "v.json", "--seed", "9")
    code, stdout, stderr = interrupted(folder, "check", "mine:breaks", *arguments)
    assert code == 1, stderr
    assert "Traceback" not in stderr
    assert "Once more ends it at once" in stderr
    assert "specsim check mine:breaks --seed 9" in stderr
    assert "interrupted" in next(line for line in stdout.splitlines() if line.startswith("fail: "))
    data = json.loads((folder / "v.json").read_text())
    (finding,) = data["findings"]
    assert data["interrupted"]
    assert Path(folder / finding["replay"]).is_file()
    assert {"what": "the other schedules", "why": interrupts.WHY} in data["suites"][0]["not_run"]


def test_a_second_interrupt_ends_it_at_once(folder: Path) -> None:
    started = time.monotonic()
    code, _, stderr = interrupted(folder, "check", "mine:hangs", "--only", "scheduler", times=2)
    assert code == 130
    assert "Traceback" not in stderr
    assert time.monotonic() - started < 50


def test_an_exploration_that_is_stopped_counts_what_it_saw() -> None:
    from specsim.tiers.scheduler.exploration import explore
    from specsim.tiers.scheduler.small_scopes import SCOPES

    explorer = Explorer()
    explorer.stop()
    explored = explore(SCOPES[0], explorer).explored
    assert not explored.complete
    assert explored.states == explorer.counted


def test_an_interrupt_that_came_before_is_reported_and_forgotten_at_the_end() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts.gentle():
            signal.raise_signal(signal.SIGINT)
            assert interrupts.asked()
            with interrupts.told(lambda: told.append(1)):
                assert told == [1]
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
        assert not interrupts.asked()
        assert told == [1, 1]
    finally:
        signal.signal(signal.SIGINT, before)


# Budgets


def test_no_work_begins_after_the_budget_and_a_line_reports_it(tmp_path: Path) -> None:
    from specsim.commands.pages import write_report
    from specsim.selfcheck import mutant_table
    from specsim.selfcheck.mutation import find

    assert mutant_table.hunt_all([find("A01")], stopped=lambda: True) == []
    assert mutant_table.hunt_all([find("A01")], deadline=Deadline.after(0.0)) == []
    fixture = Path(__file__).parents[2] / "fixtures" / "replays" / f"{SCHEDULE}.json"
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "a.json").write_text(fixture.read_text())
    json_file, pages = tmp_path / "r.json", tmp_path / "pages"
    write_report(tmp_path / "found", pages, tmp_path, lambda *_: {}, None, json_file, budget_seconds=-1.0)
    (entry,) = json.loads(json_file.read_text())["entries"]
    assert entry["why_not"].startswith("the time budget was spent")


def test_a_budget_for_shrinking_keeps_what_there_is(folder: Path) -> None:
    specsim(folder, "check", "mine:says", "--only", "scheduler", "--schedules", "1", "--no-shrink", "--out", "large")
    (file,) = (folder / "large").glob("*.json")
    arguments = ("--budget-seconds", "0.1", "--attempts", "1000000", "--out", "small", "--json", "s.json")
    ended = specsim(folder, "shrink", str(file), "--trust", *arguments)
    assert ended.returncode == 0, ended.stderr
    sizes = json.loads((folder / "s.json").read_text())
    assert sizes["after"]["choices"] <= sizes["before"]["choices"]
    assert (folder / sizes["replay"]).is_file()


# The live line


@given(
    st.builds(
        WorkProgress,
        what=st.text(max_size=9) | st.just("x\x1b\u202e" * 999),
        budget_seconds=st.none() | st.floats(1, 1e6),
        now=st.text(max_size=9),
        done=st.none() | st.integers(0, 10**9),
        of=st.integers(0, 10**9),
        events=st.none() | st.integers(0, 10**12),
        findings=st.none() | st.integers(0, 99),
    ),
    st.floats(0, 1e6),
)
def test_the_line_is_one_line_of_printable_text(progress: WorkProgress, elapsed: float) -> None:
    line = line_of(progress, elapsed)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", line)
    assert len(line) < 2000 * 6


def test_the_line_says_schedules_speed_findings_and_time_left() -> None:
    progress = WorkProgress("checking model", budget_seconds=60.0)
    progress.take({"schedules": 0, "events": 0, "findings": 0}, elapsed=10.0)
    progress.take({"schedules": 40, "events": 5000, "findings": 1}, elapsed=20.0)
    assert line_of(progress, 20.0) == "checking model: 40 schedules, 1 finding, 500 events/s, 40 s left"
    progress.schedules_of = 50
    assert line_of(progress, 20.0).endswith("40 of 50 schedules, 1 finding, 500 events/s, 2 s left")
    assert line_of(WorkProgress("hunting", done=10, of=40), 30.0) == "hunting: 10 of 40, 1 min 30 s left"


def test_the_line_adds_up_the_tiers_that_run_at_once() -> None:
    progress = WorkProgress("checking sglang==0")
    for tier, schedules in (("one", 40), ("scheduler", 2), ("one", 50)):
        progress.take({"tier": tier, "schedules": schedules, "events": 10 * schedules, "findings": 1}, elapsed=0.0)
    assert line_of(progress, 10.0) == "checking sglang==0: 52 schedules, 2 findings, 52 events/s"


# Terminals, locales and folders


def in_a_terminal(folder: Path, *arguments: str, columns: int, **more: str) -> tuple[int, str]:
    """Run the command line in a terminal of so many columns; exit code and all that it printed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "specsim", *arguments],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(folder, TERM="xterm-256color", COLUMNS=str(columns), LINES="24", **more),
    )
    os.close(theirs)
    shown = b""
    try:
        while select.select([ours], [], [], 60)[0]:
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            shown += chunk
    finally:
        os.close(ours)
    return process.wait(), shown.decode(errors="replace")


def test_hostile_text_in_a_terminal_of_20_columns_is_spelled_out(folder: Path) -> None:
    check = ("check", "mine:says", "--only", "scheduler", "--schedules", "2", "--no-shrink")
    code, shown = in_a_terminal(folder, *check, columns=20)
    assert code == 1, shown
    assert "Traceback" not in shown
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown
    assert "\\x1b[2J" in shown
    assert "with a finding" in " ".join(ESCAPES.sub("", shown).split())
    assert "\x1b[1;31m" in shown
    code, plain = in_a_terminal(folder, "targets", columns=20, NO_COLOR="1")
    assert (code, "not run" in plain) == (0, True)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)


def test_a_locale_without_unicode_spells_out_what_it_lacks(folder: Path) -> None:
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    arguments = ("--only", "scheduler", "--schedules", "2", "--no-shrink", "--junit", "j.xml", "--json", "h.json")
    ended = specsim(folder, "check", "mine:says", *arguments, **plain)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout.isascii()
    assert "r\\xe9sum\\xe9" in ended.stdout
    assert "\\ud800" in json.loads((folder / "h.json").read_text())["findings"][0]["actual"]


@pytest.mark.parametrize("option", ["--out", "--json", "--junit", "--sarif"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from specsim.cli import main

    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["check", "model", "--only", "scheduler", option, str(tmp_path / "file" / "x")])
    assert ended.value.code == 2
    assert "is not a folder that can be written" in capsys.readouterr().err


# specsim doctor


def test_doctor_lists_pieces_and_tiers_with_a_command_for_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specsim.cli import main

    monkeypatch.setattr(doctor, "probe", lambda: ({}, "ModuleNotFoundError: No module named 'torch'"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json", str(tmp_path / "d.json"), "--cache-dir", str(tmp_path)])
    assert ended.value.code == 2
    data = json.loads((tmp_path / "d.json").read_text())
    pieces = {piece["name"]: piece for piece in data["pieces"]}
    assert pieces["torch"]["add"].split()[1:5] == ["-m", "pip", "install", pieces["torch"]["add"].split()[4]]
    assert pieces["git"]["add"] == "apt-get install git"
    assert pieces["releases of sglang"]["add"].startswith("specsim targets --fetch sglang==")
    for piece in data["pieces"]:
        assert piece["found"] or piece["add"] or piece["name"] == "GPU", piece
    works = {(tier["tier"], tier["device"]): tier["works"] for tier in data["tiers"]}
    assert not works[("ops", "cpu")]
    assert not works[("scheduler", "cpu")]


def test_doctor_believes_torch_when_it_can_be_imported() -> None:
    imported = {"torch": "2", "triton": "3", "cuda": "13", "gpus": ["H200"]}
    works = {(tier.tier, tier.device): tier.note for tier in doctor.tiers(imported, "") if tier.works}
    assert works[("ops", "cuda")] == "H200"
    assert next(doctor._cached(Cache(Path("/nowhere")))).add.count("--fetch") > 1
