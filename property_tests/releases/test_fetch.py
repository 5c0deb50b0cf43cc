"""Fetching a release: the version asked for is the version used, and nothing half-written stays behind."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from property_tests.support.known_releases import SGLANG
from specsim.engines.packages import cached_releases
from specsim.errors import UsageError
from specsim.lifting import fetch
from specsim.lifting.cache import Cache, open_cache
from specsim.lifting.fetch import PipResult, fetch_wheel, wheel_problem
from specsim.lifting.versions import nearest_versions

VERSION = "1.2.3"
NO_MATCH = (
    "ERROR: Could not find a version that satisfies the requirement sglang==1.2.3 (from versions: {})\n"
    "ERROR: No matching distribution found for sglang==1.2.3\n"
)
REFUSED = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None)) after connection broken by "
    "'NewConnectionError('<HTTPConnection object>: Failed to establish a new connection: "
    "[Errno 111] Connection refused')': /simple/sglang/\n"
)
UNRESOLVED = REFUSED.replace("[Errno 111] Connection refused", "[Errno -3] Temporary failure in name resolution")
BLOCKED = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.', "
    "OSError('Tunnel connection failed: 403 Forbidden'))': /simple/sglang/\n"
)

Answer = PipResult | Callable[[Path], PipResult]


class FakePip:
    """Answers one run after the other, the last answer for ever; an answer may write into pip's -d folder."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> PipResult:
        self.commands.append(list(command))
        answer = self.answers[min(len(self.commands), len(self.answers)) - 1]
        return answer if isinstance(answer, PipResult) else answer(Path(command[command.index("-d") + 1]))


def delivers(
    name: str = "sglang",
    version: str = VERSION,
    entries: Sequence[str] = ("sglang/srt/x.py",),
    *,
    truncated: bool = False,
) -> Callable[[Path], PipResult]:
    def answer(folder: Path) -> PipResult:
        write_wheel(folder / f"sglang-{VERSION}-cp311-cp311-linux.whl", name, version, entries)
        if truncated:
            path = folder / f"sglang-{VERSION}-cp311-cp311-linux.whl"
            path.write_bytes(path.read_bytes()[:-30])
        return PipResult(0, "")

    return answer


def write_wheel(path: Path, name: str, version: str, entries: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            f"{name}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense: several\n        lines\n",
        )
        for entry in entries:
            wheel.writestr(entry, "X = 1\n" * 40)
    return path


def files(cache: Cache) -> list[str]:
    return sorted(str(path.relative_to(cache.folder)) for path in cache.folder.rglob("*") if path.is_file())


def folders(cache: Cache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir() if path.is_dir()) if cache.folder.exists() else []


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def refusal(pip: FakePip, cache: Cache) -> UsageError:
    with pytest.raises(UsageError) as caught:
        fetch_wheel(SGLANG, VERSION, cache, pip=pip)
    assert files(cache) == []
    assert folders(cache) in ([], ["wheels"])
    return caught.value


def test_a_wheel_is_fetched_once_and_found_again_without_pip(cache: Cache) -> None:
    pip = FakePip(delivers())
    path = fetch_wheel(SGLANG, VERSION, cache, pip=pip)
    assert fetch_wheel(SGLANG, VERSION, cache, pip=pip) == path
    assert len(pip.commands) == 1
    assert files(cache) == [f"wheels/sglang-{VERSION}-cp311-cp311-linux.whl"]
    assert folders(cache) == ["wheels"]
    assert cached_releases("sglang", cache) == [VERSION]


def test_pip_gets_the_exact_version_no_dependencies_and_no_source_builds(cache: Cache) -> None:
    pip = FakePip(delivers())
    fetch_wheel(SGLANG, VERSION, cache, pip=pip)
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"} <= set(command)
    assert command[-1] == f"sglang=={VERSION}"
    assert Path(command[command.index("-d") + 1]).is_relative_to(cache.folder)


def test_a_wheel_put_there_by_hand_is_as_good_as_a_fetched_one(cache: Cache) -> None:
    by_hand = write_wheel(
        cache.folder / "wheels" / f"sglang-{VERSION}-py3-none-any.whl", "SGLang", VERSION, ["sglang/srt/x.py"]
    )
    assert fetch_wheel(SGLANG, VERSION, cache, pip=FakePip(PipResult(1, "never asked"))) == by_hand


@pytest.mark.parametrize(
    "version",
    ["", "1", "--index-url", "1.2.3 --pre", "1.2.3;x", "../1.2", "1.2.*", "1.2.3\n", "*", "1.2.3-1"],
)
def test_what_is_no_version_never_reaches_pip(version: str, cache: Cache) -> None:
    pip = FakePip(delivers())
    with pytest.raises(UsageError, match="not a version"):
        fetch_wheel(SGLANG, version, cache, pip=pip)
    assert pip.commands == []
    assert not cache.folder.exists()


def test_a_truncated_cached_wheel_is_fetched_again(cache: Cache) -> None:
    path = fetch_wheel(SGLANG, VERSION, cache, pip=FakePip(delivers()))
    path.write_bytes(path.read_bytes()[:100])
    assert cached_releases("sglang", cache) == []
    pip = FakePip(delivers())
    assert wheel_problem(fetch_wheel(SGLANG, VERSION, cache, pip=pip), SGLANG, VERSION) is None
    assert len(pip.commands) == 1


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (delivers(name="sglang_kernel"), "is the package 'sglang_kernel'"),
        (delivers(version="1.2.30"), "metadata says version '1.2.30'"),
        (delivers(version="1.2.3.post1"), "metadata says version '1.2.3.post1'"),
        (delivers(entries=["sglang/other.py"]), "has no folder sglang/srt"),
        (delivers(truncated=True), "cannot be read as a zip"),
        (PipResult(0, ""), "left 0 wheels"),
    ],
)
def test_a_wheel_that_is_not_the_release_asked_for_is_refused_and_removed(
    answer: Answer, sentence: str, cache: Cache
) -> None:
    assert sentence in str(refusal(FakePip(answer), cache))


def test_damage_in_the_middle_of_a_fetched_wheel_is_found(cache: Cache) -> None:
    def answer(folder: Path) -> PipResult:
        path = write_wheel(folder / "sglang-1.2.3-py3-none-any.whl", "sglang", VERSION, ["sglang/srt/x.py"])
        path.write_bytes(path.read_bytes().replace(b"X = 1\nX = 1\n", b"X = 1\nX = 2\n", 1))
        return PipResult(0, "")

    assert "sglang/srt/x.py is damaged" in str(refusal(FakePip(answer), cache))


def test_a_wheel_for_any_python_and_platform_will_do(cache: Cache) -> None:
    none = PipResult(1, NO_MATCH.format("1.0.0, 1.1.0"))
    pip = FakePip(none, none, delivers())
    fetch_wheel(SGLANG, VERSION, cache, pip=pip)
    own, *foreign = pip.commands
    assert "--platform" not in own
    assert "--python-version" not in own
    for command in foreign:
        assert command.count("--platform") > 1
        assert command[command.index("--implementation") + 1] == "cp"
    pythons = [command[command.index("--python-version") + 1] for command in foreign]
    assert len(set(pythons)) == len(pythons) == 2


def test_an_unknown_version_is_answered_with_the_nearest_known_ones(cache: Cache) -> None:
    pip = FakePip(PipResult(1, NO_MATCH.format("0.1.0, 1.1.0, 1.2.2")), PipResult(1, NO_MATCH.format("1.2.4, 1.10.0")))
    error = refusal(pip, cache)
    assert f"no release sglang=={VERSION}" in error.problem
    assert "1.2.2, 1.2.4" in error.remedy
    assert len(pip.commands) == 5  # the interpreter's own tags, then one call for each Python


def test_an_index_without_sglang_is_distinguished_from_an_unknown_version(cache: Cache) -> None:
    assert "no release of sglang at all" in refusal(FakePip(PipResult(1, NO_MATCH.format("none"))), cache).problem


@pytest.mark.parametrize(
    ("stderr", "cause"),
    [
        (REFUSED + NO_MATCH.format("none"), "Connection refused"),
        (UNRESOLVED + NO_MATCH.format("none"), "Temporary failure in name resolution"),
        (BLOCKED + NO_MATCH.format("none"), "Tunnel connection failed: 403 Forbidden"),
        (
            "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='x'): Read timed out.",
            "Read timed out",
        ),
        ("ERROR: HTTP error 403 while getting it", "HTTP error 403"),
    ],
)
def test_no_network_is_not_reported_as_an_unknown_version(stderr: str, cause: str, cache: Cache) -> None:
    pip = FakePip(PipResult(1, stderr))
    error = refusal(pip, cache)
    assert f"no connection to the package index ({cause}" in error.problem
    assert "pip download" in error.remedy
    assert len(pip.commands) == 1


def test_an_index_reached_only_in_part_says_what_it_had(cache: Cache) -> None:
    error = refusal(FakePip(PipResult(1, REFUSED + NO_MATCH.format("1.2.2, 1.3.0"))), cache)
    assert "Connection refused; what it could reach has 1.2.2, 1.3.0" in error.problem


@pytest.mark.parametrize(
    ("stderr", "problem", "remedy"),
    [
        ("/x/python: No module named pip\n", "has no pip", "ensurepip"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
         "no space left", "--cache-dir"),
        ("WARNING: beside the point\nERROR: The moon is full\nNotice: after\n",
         "pip says 'The moon is full'", "python -m pip download"),
        ("", "pip says 'nothing'", f"sglang=={VERSION}"),
        ("ERROR: bad page at scheme://name:secret@index/x\n", "bad page at scheme://index/x", "by hand"),
    ],
)  # fmt: skip
def test_each_failure_of_pip_is_one_sentence_and_a_way_out(
    stderr: str, problem: str, remedy: str, cache: Cache
) -> None:
    pip = FakePip(PipResult(1, stderr))
    error = refusal(pip, cache)
    assert problem in error.problem
    assert remedy in error.remedy
    assert "\n" not in str(error)
    assert len(pip.commands) == 1


def test_a_python_that_does_not_start_counts_as_one_without_pip(tmp_path: Path) -> None:
    result = fetch.run_pip([str(tmp_path / "no-python"), "-m", "pip"])
    assert result.code != 0
    assert "No module named pip" in result.stderr


def test_ctrl_c_leaves_nothing_behind(cache: Cache) -> None:
    def interrupted(folder: Path) -> PipResult:
        (folder / "sglang-half.whl").write_bytes(b"PK")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_wheel(SGLANG, VERSION, cache, pip=FakePip(interrupted))
    assert files(cache) == []
    assert folders(cache) == []


def test_a_full_disk_leaves_nothing_behind(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_source: object, target: object) -> None:
        target.write(b"PK")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    error = refusal(FakePip(delivers()), cache)
    assert "No space left on device" in error.problem
    assert "SPECSIM_CACHE_DIR" in error.remedy


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"cannot write .*file.*SPECSIM_CACHE_DIR"):
        fetch_wheel(SGLANG, VERSION, Cache(tmp_path / "file"), pip=FakePip(delivers()))


def test_two_that_fetch_the_same_wheel_at_once_both_succeed(cache: Cache) -> None:
    both_inside = threading.Barrier(2, timeout=10)

    def answer(folder: Path) -> PipResult:
        both_inside.wait()
        return delivers()(folder)

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch_wheel(SGLANG, VERSION, cache, pip=FakePip(answer))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert len(files(cache)) == 1
    assert folders(cache) == ["wheels"]


def test_without_a_network_the_real_pip_is_answered_within_seconds(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "2")

    def bounded(command: Sequence[str]) -> PipResult:
        ended = subprocess.run(command, capture_output=True, check=False, encoding="utf-8", timeout=60)
        return PipResult(ended.returncode, ended.stderr)

    with pytest.raises(UsageError, match="no connection to the package index") as caught:
        fetch_wheel(SGLANG, VERSION, cache, pip=bounded)
    assert "Connection refused" in caught.value.problem
    assert files(cache) == []


def test_cached_releases_are_listed_in_order_and_only_when_they_can_be_read(cache: Cache) -> None:
    assert cached_releases("sglang", cache) == []
    for version in ("1.10.0", "1.2.0", "1.2.0.post1", "1.2.0rc1"):
        write_wheel(
            cache.folder / "wheels" / f"sglang-{version}-py3-none-any.whl",
            "sglang",
            version,
            ["sglang/srt/x.py"],
        )
    (cache.folder / "wheels" / "sglang-1.3.0-py3-none-any.whl").write_bytes(b"PK")
    (cache.folder / "wheels" / "notes.txt").write_text("mine")
    assert cached_releases("sglang", cache) == ["1.2.0rc1", "1.2.0", "1.2.0.post1", "1.10.0"]


def test_the_nearest_versions_include_the_neighbours_in_order() -> None:
    known = ["1.2.1", "1.2.2", "1.2.10", "1.3.0", "2.0.0", "not a version"]
    near = nearest_versions("1.2.9", known)
    assert {"1.2.2", "1.2.10"} <= set(near)
    assert near == sorted(near, key=known.index)
    assert nearest_versions("9.9.9", ["1.0.0", "1.1.0"]) == ["1.1.0"]
    assert nearest_versions("9.9.9", []) == []


def test_the_cache_folder_is_the_option_then_the_environment_then_the_home(tmp_path: Path) -> None:
    environ = {"SPECSIM_CACHE_DIR": str(tmp_path / "variable"), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    assert open_cache(tmp_path / "option", environ).folder == tmp_path / "option"
    assert open_cache(None, environ).folder == tmp_path / "variable"
    assert open_cache("", environ | {"SPECSIM_CACHE_DIR": ""}).folder == tmp_path / "xdg" / "specsim"
    home = Path("~/.cache/specsim").expanduser()
    assert open_cache(None, {}).folder == home
    assert open_cache(None, {"XDG_CACHE_HOME": "relative"}).folder == home
    assert not (tmp_path / "option").exists()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/../../x", "/etc/x", "a//b", "./a", "a/", "a\\b", "a\0b", "C:x", "a/./b"],
)
def test_a_name_that_could_leave_the_cache_is_refused(name: str, cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a plain relative name"):
        cache.store_text(name, "text")
    assert list(tmp_path.iterdir()) == []


def test_stored_text_appears_whole_and_replaces_what_was_there(cache: Cache) -> None:
    path = cache.store_text("lifted/a.py", "first")
    assert cache.store_text("lifted/a.py", "zweite Fassung: ü") == path == cache.folder / "lifted" / "a.py"
    assert path.read_bytes() == "zweite Fassung: ü".encode()
    assert files(cache) == ["lifted/a.py"]


def test_a_store_that_fails_keeps_the_old_file_and_no_other(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache.store_text("lifted/a.py", "old")

    def full(_source: object, _target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match=r"a\.py in the cache: No space left on device"):
        cache.store_text("lifted/a.py", "new")
    assert path.read_text() == "old"
    assert files(cache) == ["lifted/a.py"]
