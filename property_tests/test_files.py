"""A file is written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from specsim.errors import UsageError
from specsim.files import write_json, write_text


def test_a_disk_that_becomes_full_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "folder" / "file.txt"
    write_text(file, "before")
    whole = Path.write_text

    def half(path: Path, text: str, **options: str) -> int:
        whole(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(UsageError, match=r"cannot write .*file\.txt \(No space left on device\)"):
        write_text(file, "after")
    assert [path.read_text() for path in file.parent.iterdir()] == ["before"]


def test_a_folder_that_cannot_be_made_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"cannot write /dev/null/x\.json"):
        write_json(Path("/dev/null/x.json"), {})


def test_text_that_utf8_cannot_say_is_escaped(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": "\ud800é"})
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == '{\n  "a": "\\ud800é"\n}\n'
