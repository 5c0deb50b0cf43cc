"""What is run is what was fetched, and what is read cannot do harm: wheels that were changed or made to fill the
memory, a cache in the wrong place, stores and corpora that somebody damaged.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
from pathlib import Path

import pytest

from property_tests.support.known_releases import SGLANG
from specsim.engines.packages import cached_releases, fetch_package
from specsim.errors import UsageError
from specsim.lifting import archive
from specsim.lifting.archive import MEMBER_BYTES_MAX, ArchiveError, open_archive, read_member
from specsim.lifting.cache import Cache
from specsim.lifting.checksums import require_noted, sha256_of
from specsim.lifting.fetch import PipResult, fetch_wheel, wheel_problem
from specsim.lifting.source import DirectorySource, WheelSource

VERSION = "1.2.3"
METADATA = f"sglang-{VERSION}.dist-info/METADATA"
HEADERS = f"Name: sglang\nVersion: {VERSION}\n"


def write_wheel(path: Path, source: str = "X = 1\n", metadata: str = HEADERS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(METADATA, metadata)
        wheel.writestr("sglang/srt/a.py", source)
    return path


def pip_delivers(command: object) -> PipResult:
    assert isinstance(command, list)
    write_wheel(Path(command[command.index("-d") + 1]) / f"sglang-{VERSION}-py3-none-any.whl")
    return PipResult(0, "")


def no_pip(_command: object) -> PipResult:
    return PipResult(1, "never asked")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(autouse=True)
def _own_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_fetched_wheel_that_was_changed_is_not_run(cache: Cache) -> None:
    wheel = fetch_wheel(SGLANG, VERSION, cache, pip=pip_delivers)
    before = sha256_of(wheel)
    write_wheel(wheel, "import os; os.system('true')\n")
    with pytest.raises(UsageError, match="was changed after it was stored") as refused:
        fetch_wheel(SGLANG, VERSION, cache, pip=no_pip)
    assert before in refused.value.problem
    assert sha256_of(wheel) in refused.value.problem
    wheel.unlink()
    assert sha256_of(fetch_wheel(SGLANG, VERSION, cache, pip=pip_delivers)) == before


def test_another_name_for_the_wheel_hides_no_change(cache: Cache) -> None:
    wheel = fetch_wheel(SGLANG, VERSION, cache, pip=pip_delivers)
    wheel.unlink()
    write_wheel(wheel.with_name(f"sglang-{VERSION}-cp311-cp311-linux_x86_64.whl"), "Y = 2\n")
    with pytest.raises(UsageError, match="was changed after it was stored"):
        fetch_wheel(SGLANG, VERSION, cache, pip=no_pip)


def test_a_wheel_put_there_by_hand_is_noted_when_it_is_first_used(cache: Cache) -> None:
    wheel = write_wheel(cache.folder / "wheels" / f"sglang-{VERSION}-py3-none-any.whl")
    assert fetch_wheel(SGLANG, VERSION, cache, pip=no_pip) == wheel
    write_wheel(wheel, "Y = 2\n")
    with pytest.raises(UsageError, match="remove the note") as refused:
        fetch_wheel(SGLANG, VERSION, cache, pip=no_pip)
    Path(refused.value.remedy.rpartition("the note ")[2]).unlink()
    assert fetch_wheel(SGLANG, VERSION, cache, pip=no_pip) == wheel


def test_the_notes_lie_outside_the_cache_and_are_the_user_s_own(cache: Cache, tmp_path: Path) -> None:
    wheel = fetch_wheel(SGLANG, VERSION, cache, pip=pip_delivers)
    notes = tmp_path / "state" / "specsim" / "checksums"
    (kept,) = notes.iterdir()
    assert kept.read_text() == f"{sha256_of(wheel)}  {wheel}\n"
    assert notes.stat().st_mode & 0o077 == kept.stat().st_mode & 0o077 == 0
    assert not list(cache.folder.rglob("*.sha256"))


@pytest.mark.parametrize("note", [b"", b"\xff" * 200, b"0" * 64, b"z" * 64 + b"  x", b"A" * 70])
def test_a_damaged_note_is_no_traceback(cache: Cache, tmp_path: Path, note: bytes) -> None:
    wheel = fetch_wheel(SGLANG, VERSION, cache, pip=pip_delivers)
    (kept,) = (tmp_path / "state" / "specsim" / "checksums").iterdir()
    kept.write_bytes(note)
    if note[:1] == b"0":
        with pytest.raises(UsageError):
            fetch_wheel(SGLANG, VERSION, cache, pip=no_pip)
    else:
        assert fetch_wheel(SGLANG, VERSION, cache, pip=no_pip) == wheel


def test_without_a_place_for_notes_a_wheel_is_still_fetched(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file")
    assert fetch_wheel(SGLANG, VERSION, cache, pip=pip_delivers).is_file()
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "")
    assert fetch_wheel(SGLANG, VERSION, cache, pip=no_pip).is_file()


def test_what_is_kept_of_another_package_is_checked_too(cache: Cache) -> None:
    def pip(command: object) -> PipResult:
        assert isinstance(command, list)
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / "vllm-1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("vllm/v1/a.py", "X = 1\n")
            wheel.writestr("vllm-1.2.dist-info/METADATA", "Name: vllm\nVersion: 1.2\n")
        return PipResult(0, "")

    stored = fetch_package("vllm", "1.2", cache, pip=pip)
    assert fetch_package("vllm", "1.2", cache, pip=no_pip) == stored
    with zipfile.ZipFile(stored, "a") as changed:
        changed.writestr("vllm/v1/b.py", "Y = 2\n")
    with pytest.raises(UsageError, match="was changed after it was stored"):
        fetch_package("vllm", "1.2", cache, pip=no_pip)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        require_noted(tmp_path, tmp_path)


# Zips


def stating(path: Path, name: str, size: int) -> Path:
    """Let the zip state `size` bytes for the member `name`, as one does that is made to fill the memory."""
    content = bytearray(path.read_bytes())
    for signature, size_at, name_at in ((b"PK\x03\x04", 22, 30), (b"PK\x01\x02", 24, 46)):
        start = content.find(signature)
        while start >= 0:
            if content[start + name_at : start + name_at + len(name)] == name.encode():
                struct.pack_into("<I", content, start + size_at, size)
            start = content.find(signature, start + 4)
    path.write_bytes(bytes(content))
    return path


@pytest.mark.parametrize("size", [MEMBER_BYTES_MAX + 1, 4_000_000_000])
def test_metadata_of_gigabytes_is_refused_without_being_read(tmp_path: Path, size: int) -> None:
    wheel = stating(write_wheel(tmp_path / "a.whl"), METADATA, size)
    problem = wheel_problem(wheel, SGLANG)
    assert problem == f"its entry {METADATA} has {size} bytes, and at most {MEMBER_BYTES_MAX} are read"
    with pytest.raises(UsageError, match="at most"):
        WheelSource(wheel, SGLANG)


def test_a_source_file_of_gigabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    source = WheelSource(stating(write_wheel(tmp_path / "a.whl"), "sglang/srt/a.py", 4_000_000_000), SGLANG)
    with pytest.raises(UsageError, match="at most"):
        source.read("srt/a.py")


def test_a_wheel_of_many_gigabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "a.whl")
    content = wheel.read_bytes()
    with wheel.open("wb") as padded:  # a zip may begin anywhere in its file
        padded.seek(archive.ARCHIVE_BYTES_MAX)
        padded.write(content)
    with pytest.raises(UsageError, match="at most"):
        WheelSource(wheel, SGLANG)


def test_no_more_is_read_of_a_member_than_its_zip_states(tmp_path: Path) -> None:
    wheel = stating(write_wheel(tmp_path / "a.whl", "X = 1\n" * 100_000), "sglang/srt/a.py", 60)
    with open_archive(wheel) as opened, pytest.raises(ArchiveError, match="cannot be read"):  # its CRC is of more
        read_member(opened, "sglang/srt/a.py")


def test_a_wheel_whose_entries_are_too_many_bytes_together_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "TOTAL_BYTES_MAX", 100)
    problem = wheel_problem(write_wheel(tmp_path / "a.whl", "X = 1\n" * 100), SGLANG, read_all=True)
    assert problem is not None
    assert "at most 100 are read" in problem


@pytest.mark.parametrize("method", [1, 97, 99])
def test_a_compression_that_python_lacks_is_one_sentence(tmp_path: Path, method: int) -> None:
    wheel = write_wheel(tmp_path / "a.whl")
    content = bytearray(wheel.read_bytes())
    for signature, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = content.rfind(signature)
        struct.pack_into("<H", content, start + at, method)
    wheel.write_bytes(bytes(content))
    with pytest.raises(UsageError, match="damaged in the wheel"):
        WheelSource(wheel, SGLANG).read("srt/a.py")


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_wheel_with_a_flipped_byte_is_one_sentence(tmp_path: Path, at: int) -> None:
    wheel = write_wheel(tmp_path / "a.whl")
    content = bytearray(wheel.read_bytes())
    content[at % len(content)] ^= 0xFF
    wheel.write_bytes(bytes(content))
    with contextlib.suppress(UsageError, FileNotFoundError):
        WheelSource(wheel, SGLANG).read("srt/a.py")


def test_a_checkout_with_a_fifo_or_a_huge_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "srt").mkdir()
    os.mkfifo(tmp_path / "srt" / "fifo.py")
    with (tmp_path / "srt" / "huge.py").open("wb") as huge:
        huge.truncate(MEMBER_BYTES_MAX + 1)
    source = DirectorySource(tmp_path, SGLANG)
    with pytest.raises(FileNotFoundError):
        source.read("srt/fifo.py")
    with pytest.raises(UsageError, match="at most"):
        source.read("srt/huge.py")


# The cache


def test_a_filled_cache_may_be_read_only(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def lifted(): ...\n"
    stored = cache.store_text("lifted/a.py", text)
    before = stored.stat().st_mtime_ns

    def refuses(*_arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuses)
    assert cache.store_text("lifted/a.py", text) == stored
    assert stored.stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="Read-only"):
        cache.store_text("lifted/a.py", text + "\n")


def test_a_cache_folder_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    cache = Cache(tmp_path / "cache")
    assert cached_releases("sglang", cache) == []
    with pytest.raises(UsageError, match="in the cache"):
        fetch_wheel(SGLANG, VERSION, cache, pip=pip_delivers)
    with pytest.raises(UsageError, match="in the cache"):
        fetch_package("vllm", "1.2", cache, pip=pip_delivers)
