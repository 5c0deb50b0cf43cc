"""Every file of JSON that a command reads is read whole or refused in one sentence, and never waited for."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specsim import cli
from specsim.errors import UsageError
from specsim.files import JSON_BYTES_MAX, read_json

ROOT = Path(__file__).parents[2]


def fifo(file: Path) -> None:
    os.mkfifo(file)


def bound(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))


def huge(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(JSON_BYTES_MAX + 1)


def holding(text: str | bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(text.encode() if isinstance(text, str) else text)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nested": (holding("[" * 200_000), "is nested too deeply"),
    "objects": (holding('{"a":' * 200_000), "is nested too deeply"),
    "cut off": (holding('{"format": "spec'), "is not complete JSON"),
    "empty": (holding(""), "is not complete JSON"),
    "not text": (holding(b"\xff\xfe{}"), "is not a text file"),
    "twice": (holding('{"a": 1, "a": 2}'), "gives 'a' twice"),
    "digits": (holding("1" * 10_000), "is not complete JSON"),
    "a FIFO": (fifo, "is a FIFO, a socket or a device"),
    "a socket": (bound, "cannot read"),
    "a folder": (Path.mkdir, "is a folder"),
    "a loop": (lambda file: file.symlink_to(file), "cannot read"),
    "huge": (huge, "has more than 64 MiB"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_json_is_refused(name: str, tmp_path: Path) -> None:
    make, words = BAD[name]
    make(tmp_path / "x")
    with pytest.raises(UsageError, match=words):
        read_json(tmp_path / "x", "give another")


def test_a_device_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "zero"
    try:
        os.mknod(file, 0o600 | 0o020000, os.makedev(1, 5))
        file.open("rb").close()
    except PermissionError:
        pytest.skip("devices cannot be made here")
    with pytest.raises(UsageError, match="a device and not a regular file"):
        read_json(file, "give another")


def test_what_is_no_number_of_json_is_read_where_tensors_are(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": NaN, "b": [Infinity, -Infinity]}')
    with pytest.raises(UsageError, match="holds NaN"):
        read_json(tmp_path / "x", "give another")
    assert str(read_json(tmp_path / "x", "", nan=True)) == "{'a': nan, 'b': [inf, -inf]}"


COMMANDS = {
    "replay": ["replay", "x.json"],
    "shrink": ["shrink", "x.json"],
    "pin": ["pin", "x.json"],
    "bisect": ["bisect", "x.json", "--good", "0", "--bad", "1"],
    "baseline": ["check", "--baseline", "x.json"],
    "counts": ["dev", "check", "--only", "ops:row_argmax", "--bulk", "--write", "x.json", "--budget-seconds", "1"],
}


@pytest.mark.parametrize("name", ["nested", "a FIFO", "not text", "twice"])
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "counts"])
def test_a_command_that_is_given_it_says_so_and_ends_with_exit_code_2(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = BAD[name]
    make(tmp_path / "x.json")
    with pytest.raises(SystemExit) as ended:
        cli.main(COMMANDS[command])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert words in said
    assert len(said.splitlines()) == 2


def test_a_report_lists_what_is_no_replay_file_and_makes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name, (make, _) in BAD.items():
        make(tmp_path / "run" / f"{name}.json")
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "run", "--json", "report.json"])
    assert ended.value.code in (None, 0, 2)
    entries = {entry["file"].removesuffix(".json"): entry for entry in read_json(Path("report.json"), "")["entries"]}
    assert {name for name, (_, words) in BAD.items() if words in entries[name]["why_not"]} == set(BAD)


# ---- where a command runs


def test_a_working_folder_that_is_gone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", str(ROOT / "fixtures" / "replays" / "slots-freed-under-a-running-request.json")])
    assert (ended.value.code, "the working folder cannot be used" in capsys.readouterr().err) == (2, True)


def test_too_few_files_that_may_be_opened_are_reported_to_be_too_few(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "specsim", "replay", "x.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, "may open 8 files, specsim needs 64" in ended.stderr) == (2, True), ended.stderr


def test_a_store_s_replay_that_is_nested_too_deeply_is_not_written(tmp_path: Path) -> None:
    from specsim.commands.campaign_pages import _write_replay

    with pytest.raises(UsageError, match="nested too deeply"):
        _write_replay(tmp_path / "x.json", "[" * 200_000)
    assert not list(tmp_path.iterdir())
    _write_replay(tmp_path / "x.json", '{"a": "[[["}')
    assert (tmp_path / "x.json").read_text() == '{"a": "[[["}'
