"""The adversary finds nothing in a few dozen inputs, the same ones at every run; and it finds what it looks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from property_tests.support.attack.campaign import KINDS, attack_of
from property_tests.support.attack.folder import Folder, made, snapshot
from property_tests.support.attack.oracle import failures
from property_tests.support.attack.runner import Attack, Ended

ROOT = Path(__file__).parents[2]


def attacked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "property_tests.support.attack", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )


def test_no_hostile_input_brings_a_command_down() -> None:
    ended = attacked("--inputs", "20", "--seed", "0", "--cores", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "0"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_input_is_the_same_whenever_it_is_made(kind: str, tmp_path: Path) -> None:
    for index in range(3):
        folders = [made(tmp_path / f"{index}-{time}") for time in range(2)]
        first, second = (attack_of(5, kind, index, folder) for folder in folders)
        assert first == second
        assert snapshot(folders[0]) == snapshot(folders[1])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return made(tmp_path / "input")


def aspects(folder: Folder, attack: Attack, ended: Ended, before: dict[str, str]) -> set[str]:
    return {failure.aspect for failure in failures(folder, attack, before, snapshot(folder), ended)}


@pytest.mark.parametrize(
    ("ended", "seen"),
    [
        (Ended(0, "pass\n", "", (), 1.0), set()),
        (Ended(2, "", "specsim: no such file.\n", (), 1.0), set()),
        (Ended(2, "", "", (), 1.0), {"sentences"}),
        (Ended(1, "", "", (), 1.0), {"verdicts"}),
        (Ended(1, "", "Traceback (most recent call last):\nKeyError: 3\n", (), 1.0), {"tracebacks"}),
        (Ended(None, "", "", (), 30.0), {"hangs"}),
        (Ended(-11, "", "", (), 1.0), {"exit codes"}),
        (Ended(0, "a title \x1b[2J\n", "", (), 1.0), {"controls"}),
        (Ended(0, "", "", ("sleep 300",), 1.0), {"processes"}),
    ],
)
def test_it_sees_how_a_run_goes_wrong(folder: Folder, ended: Ended, seen: set[str]) -> None:
    attack = Attack("nothing", ("check",), never_finding=True)
    assert aspects(folder, attack, ended, snapshot(folder)) == seen


def test_it_sees_what_becomes_of_files(folder: Folder) -> None:
    before = snapshot(folder)
    ended = Ended(0, "", "", (), 1.0)
    attack = Attack("nothing", ("check",), may_change=frozenset({"file", "link", "linked"}))

    def are_wrong() -> set[str]:
        return aspects(folder, attack, ended, before)

    folder.write("verdict.json", "{}")
    folder.write("file", "changed, as it may be")
    folder.write("linked", "written through its link")
    (folder.cache / "wheels").mkdir()
    assert are_wrong() == set()
    for name, content in (
        ("../outside/more", ""),
        ("../outside/file", "changed"),
        ("../home/new", ""),
        ("../tmp/left", ""),
        (".x.json.tmp", ""),
        ("half.json", "{"),
        ("test_x.py", "def broken(:"),
        ("owned", ""),
        ("folder/kept", "changed"),
    ):
        was = (folder.work / name).read_bytes() if (folder.work / name).exists() else None
        folder.write(name, content)
        assert are_wrong() == {"files"}, name
        (folder.work / name).unlink() if was is None else folder.write(name, was)
    assert are_wrong() == set()
    (folder.work / "link").unlink()
    folder.write("link", "a file where a link was")
    assert are_wrong() == {"files"}
