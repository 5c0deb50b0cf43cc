"""A file is written whole or not at all, and nothing else is destroyed by it."""

from __future__ import annotations

import ast
import os
import secrets
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.replay_fixtures import FILES
from property_tests.support.source_files import product, tree_of
from property_tests.support.special_files import device, full_disk
from specsim import files, replay_file
from specsim.errors import UsageError
from specsim.files import Appended, append_text, try_file, try_folder, write_bytes, write_json, write_text

LONG = "x" * (1 << 18)  # more than a FIFO holds


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


# Regular files


def test_a_disk_that_becomes_full_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file.txt"
    write_text(file, "before")
    with full_disk(10), pytest.raises(UsageError, match=r"cannot write .*file\.txt \(File too large\)"):
        write_text(file, "after " * 100)
    assert [path.read_text() for path in file.parent.iterdir()] == ["before"]


def test_a_folder_that_cannot_be_made_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"cannot write /dev/null/x\.json"):
        write_json(Path("/dev/null/x.json"), {})


def test_text_that_utf8_cannot_say_is_escaped(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": "\ud800é"})
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == '{\n  "a": "\\ud800é"\n}\n'


def test_a_name_of_255_bytes_is_written(tmp_path: Path) -> None:
    write_text(tmp_path / ("n" * 255), "text")
    assert listed(tmp_path) == ["n" * 255]


def test_a_symbolic_link_is_kept_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, second = tmp_path / "there" / "target.txt", tmp_path / "link", tmp_path / "second"
    target.write_text("before")
    link.symlink_to("there/target.txt")
    second.symlink_to(link)
    write_text(second, "after")
    assert (target.read_text(), link.is_symlink(), second.is_symlink()) == ("after", True, True)
    assert listed(tmp_path) == ["link", "second", "target.txt", "there"]


def test_a_link_that_leads_nowhere_makes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("folder/target.txt")
    try_file(link)
    assert not (tmp_path / "folder").exists()
    write_text(link, "text")
    assert link.is_symlink()
    assert (tmp_path / "folder" / "target.txt").read_text() == "text"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for write in (try_file, lambda file: write_text(file, "")):
        with pytest.raises(UsageError, match="symbolic links"):
            write(tmp_path / "a")


def test_permissions_are_kept_and_those_of_a_new_file_are_the_umasks(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    old.chmod(0o640)
    mask = os.umask(0o027)
    try:
        write_text(new, "text")
    finally:
        os.umask(mask)
    write_text(old, "after")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new)] == [0o640, 0o640]
    os.chmod(new, 0o604)
    write_text(new, "text")
    assert stat.S_IMODE(new.stat().st_mode) == 0o604


def test_a_temporary_name_cannot_be_predicted_and_what_is_planted_there_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    names = {str(files._beside(tmp_path / "x")) for _ in range(100)}
    assert len(names) == 100
    monkeypatch.setattr(secrets, "token_hex", lambda _bytes: "guessed")
    planted = files._beside(tmp_path / "x")
    planted.symlink_to(victim)
    with pytest.raises(UsageError, match="File exists"):
        write_text(tmp_path / "x", "text")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "x").exists()


def test_two_writers_of_one_name_do_not_tear_each_other(tmp_path: Path) -> None:
    file, texts = tmp_path / "x", ["a" * 500_000, "b" * 500_000]
    write_text(file, texts[0])

    def write_often(text: str) -> None:
        for _ in range(20):
            write_text(file, text)

    writers = [threading.Thread(target=write_often, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    seen = []
    while any(writer.is_alive() for writer in writers):
        seen.append(file.read_text())
    assert set(seen) <= set(texts)
    assert listed(tmp_path) == ["x"]


def test_what_is_added_comes_after_what_was_there_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for text in ("one\n", "two\n"):
        append_text(tmp_path / "link", text)
    assert (tmp_path / "file").read_text() == "one\ntwo\n"


# What is no regular file


def test_a_folder_is_refused(tmp_path: Path) -> None:
    for write in (try_file, lambda file: write_text(file, "")):
        with pytest.raises(UsageError, match=r"is a folder|Is a directory"):
            write(tmp_path)
    assert listed(tmp_path) == []


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = device(tmp_path / "null", stat.S_IFCHR, 1, 3)
    try_file(null)
    write_text(null, "text")
    append_text(null, "text")
    assert stat.S_ISCHR(null.stat().st_mode)
    assert listed(tmp_path) == ["null"]


def test_a_full_device_is_one_sentence(tmp_path: Path) -> None:
    full = device(tmp_path / "full", stat.S_IFCHR, 1, 7)
    try_file(full)
    with pytest.raises(UsageError, match=r"cannot write .*full \(No space left on device\)"):
        write_text(full, "text")
    assert stat.S_ISCHR(full.stat().st_mode)


def test_a_fifo_stays_a_fifo_and_its_reader_gets_all(tmp_path: Path) -> None:
    fifo, got = tmp_path / "fifo", []
    os.mkfifo(fifo)
    try_file(fifo)  # which its reader does not notice
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
    reader.start()
    write_text(fifo, LONG)
    reader.join()
    assert got == [LONG]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_fifo_that_nobody_opens_or_reads_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "READER_SECONDS", 0.2)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(UsageError, match=r"nobody opened it for reading within 0\.2 s"):
        write_text(fifo, "text")
    lazy = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(UsageError, match=r"nobody read from it for 0\.2 s"):
            write_text(fifo, LONG)
    finally:
        os.close(lazy)


def test_a_socket_gets_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    got: list[Any] = []

    def serve() -> None:
        with server.accept()[0] as connection:
            got.extend(iter(lambda: connection.recv(1 << 16), b""))

    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try_file(Path("socket"))
        write_text(Path("socket"), LONG)
        thread.join()
    assert b"".join(got).decode() == LONG
    assert stat.S_ISSOCK(Path("socket").stat().st_mode)


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_a_descriptor_of_this_process_is_written_where_it_stands(folder: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    descriptor = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"before ")
    inode = os.fstat(descriptor).st_ino
    try:
        for number in (writer, descriptor):
            try_file(Path(folder, str(number)))
            write_text(Path(folder, str(number)), "text")
        assert os.read(reader, 100) == b"text"
    finally:
        for number in (reader, writer, descriptor):
            os.close(number)
    assert (tmp_path / "x").read_text() == "before text"
    assert (tmp_path / "x").stat().st_ino == inode


# Trying


def test_trying_leaves_everything_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    before = file.stat()
    try_file(file)
    try_file(tmp_path / "a" / "b" / "x.json")
    try_folder(tmp_path / "c" / "d")
    assert listed(tmp_path) == ["file"]
    assert (file.read_text(), file.stat().st_mtime_ns) == ("mine", before.st_mtime_ns)


def test_what_cannot_be_written_is_refused_by_trying(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for tried in (tmp_path / "file" / "x", Path("/proc/nothing/x"), tmp_path / ("n" * 300)):
        with pytest.raises(UsageError, match=r"cannot write|is not a folder that can be written"):
            try_file(tried)
        with pytest.raises(UsageError, match="cannot write"):
            write_bytes(tried, b"")


def test_a_read_only_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    file.chmod(0o444)
    if os.access(file, os.W_OK):  # root may
        monkeypatch.setattr(os, "access", lambda *_arguments: False)
    for write in (try_file, lambda path: write_text(path, "other")):
        with pytest.raises(UsageError, match="it is read-only"):
            write(file)
    assert file.read_text() == "mine"


def test_what_is_appended_to_is_closed_twice_without_harm(tmp_path: Path) -> None:
    appended = Appended(tmp_path / "x")
    appended.add(b"text")
    appended.close()
    appended.close()
    assert (tmp_path / "x").read_text() == "text"


# Nobody else writes

_WRITES = {"write_text", "write_bytes", "touch", "mkdir", "symlink_to", "hardlink_to", "copytree", "copyfile", "copy2"}
_OF_OS = {"open", "replace", "rename", "link", "symlink", "makedirs", "mknod", "mkfifo", "truncate"}
MAY = {
    "specsim/world/unpack.py: os.rename",  # a folder of the cache that is whole
    "specsim/lifting/source.py: mkdir",  # into a scratch folder of the cache
    "specsim/lifting/source.py: write_bytes",  # likewise
}


def writes_of(path: str, tree: ast.Module) -> set[str]:
    """What of a module writes files without `specsim.files`."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function, values = node.func, [*node.args, *(keyword.value for keyword in node.keywords)]
        modes = {value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)}
        of_descriptor = any(keyword.arg == "closefd" for keyword in node.keywords)  # which is open already
        names_a_mode = not of_descriptor and any(
            mode and set(mode) <= set("rwxabt+") and set(mode) & set("wxa+") for mode in modes
        )
        if isinstance(function, ast.Name) and function.id == "open" and names_a_mode:
            found.add(f"{path}: open")
        elif isinstance(function, ast.Attribute):
            of_os = isinstance(function.value, ast.Name) and function.value.id == "os"
            if function.attr in _WRITES or (function.attr == "open" and names_a_mode and not of_os):
                found.add(f"{path}: {function.attr}")
            elif of_os and function.attr in _OF_OS and "O_RDONLY" not in ast.dump(node):
                found.add(f"{path}: os.{function.attr}")
    return found


def test_only_one_module_writes_files() -> None:
    found = {each for path in product().values() for each in writes_of(path, tree_of(path))}
    assert {each for each in found if not each.startswith("specsim/files.py: ")} == MAY


def test_the_search_for_writers_would_notice() -> None:
    lines = ["open(a, 'w')", "a.open(mode='xb')", "a.write_text('')", "os.open(a, os.O_WRONLY)", "os.replace(a, b)"]
    assert [len(writes_of("x.py", ast.parse(line))) for line in lines] == [1] * len(lines)
    lines = ["open(a)", "a.open('rb')", "write_text(a, '')", "os.open(a, os.O_RDONLY)", "a.replace('w', 'a')"]
    assert [len(writes_of("x.py", ast.parse(line))) for line in lines] == [0] * len(lines)


# ---- the folder of findings


def test_git_ignores_the_folder_of_findings_that_a_command_makes_and_no_other(tmp_path: Path) -> None:
    stored = replay_file.load(FILES[0])
    mine = tmp_path / "mine" / replay_file.FINDINGS
    mine.mkdir(parents=True)
    for folder in (mine, tmp_path / "named", tmp_path / replay_file.FINDINGS):
        for _ in range(2):
            assert replay_file.load(replay_file.save_in(folder, stored)) == stored
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob(".gitignore")] == [
        "specsim-findings/.gitignore"
    ]
    assert (tmp_path / replay_file.FINDINGS / ".gitignore").read_text() == "*\n"
