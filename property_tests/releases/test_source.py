"""Reading SGLang's source: wheel, folder and git revision look the same, and nothing leads out of them."""

from __future__ import annotations

import os
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.known_releases import SGLANG
from specsim.engines.packages import open_source
from specsim.engines.target import Checkout, ModelTarget, PythonTarget, Release, parse_target
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.lifting.changes import Changes
from specsim.lifting.source import DirectorySource, GitSource, SourceTree, WheelSource, blob_of
from specsim.lifting.versions import is_version

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "1.2.3"
TREE = {
    "__init__.py": "",
    "version.py": f'__version__ = "{VERSION}"\n',
    "srt/__init__.py": "",
    "srt/speculative/eagle.py": "ROW = 'Zeile'\n",
    "srt/speculative/ünicode.py": "# ü\n",
}
GENERATED_VERSION = "__version__: str\n__version__ = version = '4.5.6'\n"
VERSION_BY_FALLBACK = "try:\n    from x import __version__\nexcept ImportError:\n    __version__ = '0.0.0'\n"


def write_tree(root: Path, tree: dict[str, str]) -> Path:
    for path, text in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode())
    return root


def write_wheel(path: Path, tree: dict[str, str], name: str = "sglang", version: str = VERSION) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for entry, text in tree.items():
            wheel.writestr(f"sglang/{entry}", text)
        wheel.writestr("sglang/srt/empty/", "")
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
    return path


def git(path: Path, *arguments: str) -> str:
    identity = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ended = subprocess.run(
        ["git", "-C", str(path), "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false", *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=clean | identity,
    )
    return ended.stdout.strip()


def commit_all(path: Path) -> str:
    git(path, "add", "-A")
    git(path, "commit", "-q", "--no-verify", "-m", "state")
    return git(path, "rev-parse", "HEAD")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = write_tree(tmp_path / "repository", {f"python/sglang/{name}": text for name, text in TREE.items()})
    git(path, "init", "-q")
    commit_all(path)
    return path


@pytest.fixture(params=["wheel", "repository", "unpacked", "package", "git", "git subfolder", "bare git"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> SourceTree:
    """The same tree, seven times."""
    kind: str = request.param
    if kind == "wheel":
        return WheelSource(write_wheel(tmp_path / "sglang-1.2.3-py3-none-any.whl", TREE), SGLANG)
    root = tmp_path / "root"
    folder = {"unpacked": root / "sglang", "package": root}.get(kind, root / "python" / "sglang")
    write_tree(folder, TREE)
    if "git" not in kind:
        return DirectorySource(root, SGLANG)
    git(root, "init", "-q")
    commit_all(root)
    if kind == "bare git":
        git(tmp_path, "clone", "-q", "--bare", str(root), "bare")
        return GitSource(tmp_path / "bare", "main", SGLANG)
    return GitSource(root / "python" if kind == "git subfolder" else root, "HEAD", SGLANG)


def test_every_kind_of_source_reads_the_same(source: SourceTree) -> None:
    assert source.version == VERSION
    assert source.paths("") == sorted(TREE)
    assert source.paths("srt/speculative") == ["srt/speculative/eagle.py", "srt/speculative/ünicode.py"]
    assert source.paths("srt/spec") == []
    assert source.paths("srt/nothing") == []
    for path, text in TREE.items():
        assert source.exists(path)
        assert source.read(path) == text


def test_what_is_absent_is_absent_in_every_kind_of_source(source: SourceTree) -> None:
    for path in ("srt/no.py", "no/no.py", "srt/speculative", "srt/speculative/eagle.py/x"):
        assert not source.exists(path)
        with pytest.raises(FileNotFoundError, match=r"sglang.*has no " + path):
            source.read(path)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "srt/../../x", "srt//x", "./srt", "a\\b", "a\0b", "srt/", "."])
def test_no_path_leads_out_of_any_kind_of_source(source: SourceTree, path: str) -> None:
    for access in (source.read, source.exists, source.paths):
        with pytest.raises(ValueError, match="not a plain path"):
            access(path)


def test_text_is_utf8_with_plain_newlines_and_no_byte_order_mark(tmp_path: Path) -> None:
    tree = DirectorySource(write_tree(tmp_path / "a", {"srt/x.py": "\ufeffa = 1\r\nb = 2\r\n", "srt/y.py": ""}), SGLANG)
    assert tree.read("srt/x.py") == "a = 1\nb = 2\n"
    (tmp_path / "a" / "srt" / "y.py").write_bytes(b"# caf\xe9\n")
    with pytest.raises(UsageError, match=r"srt/y\.py is not UTF-8"):
        tree.read("srt/y.py")


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({}, None),
        ({"version.py": VERSION_BY_FALLBACK}, None),
        ({"version.py": VERSION_BY_FALLBACK, "_version.py": GENERATED_VERSION}, "4.5.6"),
        ({"version.py": "this is not python"}, None),
        ({"version.py": "__version__ = compute()"}, None),
        ({"version.py": "__version__ = '7.8.9'", "_version.py": GENERATED_VERSION}, "7.8.9"),
        ({"../sglang-3.3.3.dist-info/METADATA": "Name: sglang\nVersion: 3.3.3\n",
          "version.py": "__version__ = '1'"}, "3.3.3"),
        ({"../sglang-router-3.3.3.dist-info/METADATA": "Name: sglang-router\nVersion: 3.3.3\n"}, None),
        ({"../sglang-1.1.dist-info/METADATA": "Name: sglang\nVersion: 1.1\n",
          "../sglang-1.2.dist-info/METADATA": "Name: sglang\nVersion: 1.2\n"}, None),
    ],
)  # fmt: skip
def test_a_version_is_stated_or_none(files: dict[str, str], version: str | None, tmp_path: Path) -> None:
    write_tree(tmp_path / "sglang", {"srt/__init__.py": "", **files})
    assert DirectorySource(tmp_path, SGLANG).version == version


def test_caches_of_compiled_code_are_not_source(tmp_path: Path) -> None:
    write_tree(tmp_path / "sglang", {"srt/x.py": "", "srt/__pycache__/x.cpython-311.pyc": ""})
    assert DirectorySource(tmp_path, SGLANG).paths("srt") == ["srt/x.py"]


def test_a_revision_is_read_without_touching_the_work_tree(repository: Path) -> None:
    eagle = repository / "python/sglang/srt/speculative/eagle.py"
    before = git(repository, "rev-parse", "HEAD")
    eagle.write_text("ROW = 'second'\n")
    second = commit_all(repository)
    git(repository, "tag", "v2")
    eagle.write_text("ROW = 'edited'\n")
    status = git(repository, "status", "--porcelain")
    index = (repository / ".git" / "index").read_bytes()

    assert GitSource(repository, before, SGLANG).read("srt/speculative/eagle.py") == TREE["srt/speculative/eagle.py"]
    for name in ("HEAD", "v2", "main", second, second[:10]):
        tree = GitSource(repository, name, SGLANG)
        assert tree.read("srt/speculative/eagle.py") == "ROW = 'second'\n"
        assert tree.commit == second
    assert DirectorySource(repository, SGLANG).read("srt/speculative/eagle.py") == "ROW = 'edited'\n"
    assert git(repository, "status", "--porcelain") == status
    assert (repository / ".git" / "index").read_bytes() == index


def test_dots_behind_a_branch_are_the_commit_where_head_left_it(repository: Path) -> None:
    left = git(repository, "rev-parse", "HEAD")
    git(repository, "branch", "topic")
    commit_change(repository, "ROW = 'merged by others'\n")
    git(repository, "switch", "-q", "topic")
    commit_change(repository, "ROW = 'mine'\n")
    assert GitSource(repository, "main...", SGLANG).commit == left
    assert GitSource(repository, "HEAD...", SGLANG).commit == git(repository, "rev-parse", "HEAD")
    git(repository, "switch", "-q", "--orphan", "other")
    commit_change(repository, "ROW = 'unrelated'\n")
    with pytest.raises(UsageError, match="no commit is in the history both of main and of HEAD"):
        GitSource(repository, "main...", SGLANG)


def commit_change(repository: Path, text: str) -> None:
    write_tree(repository, {"python/sglang/srt/speculative/eagle.py": text})
    commit_all(repository)


def test_a_revision_is_read_where_the_path_says_even_inside_a_git_hook(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    assert GitSource(repository, "HEAD", SGLANG).exists("srt/speculative/eagle.py")


def test_reading_a_revision_runs_no_program_that_the_repository_names(repository: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    write_tree(repository, {".gitattributes": "*.py diff=odd filter=odd\n"})
    revision = commit_all(repository)
    for key in ("core.fsmonitor", "core.pager", "diff.odd.textconv", "filter.odd.smudge", "core.sshCommand"):
        git(repository, "config", key, str(program))
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (repository / ".git" / "hooks").mkdir(exist_ok=True)
        (repository / ".git" / "hooks" / hook).symlink_to(program)
    assert GitSource(repository, revision, SGLANG).read("srt/speculative/eagle.py") == TREE["srt/speculative/eagle.py"]
    assert not ran.exists()


def test_a_link_in_a_revision_is_not_followed(repository: Path) -> None:
    (repository / "python/sglang/srt/link.py").symlink_to("/etc/passwd")
    commit_all(repository)
    assert not GitSource(repository, "HEAD", SGLANG).exists("srt/link.py")


def test_a_wheel_with_a_damaged_entry_says_so_when_it_is_read(tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "sglang-1.2.3-py3-none-any.whl", TREE)
    path.write_bytes(path.read_bytes().replace(b"ROW = 'Zeile'", b"ROW = 'Seile'"))
    with pytest.raises(UsageError, match=r"eagle\.py is damaged"):
        WheelSource(path, SGLANG).read("srt/speculative/eagle.py")


def test_a_wheel_whose_entries_climb_gives_no_path_outside(tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "sglang-1.2.3-py3-none-any.whl", TREE | {"../../evil.py": "x"})
    tree = WheelSource(path, SGLANG)
    with pytest.raises(ValueError, match="not a plain path"):
        tree.read("../../evil.py")
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_opens_as_the_source_that_it_names(cache: Cache, repository: Path, tmp_path: Path) -> None:
    wheel = write_wheel(cache.folder / "wheels" / "sglang-1.2.3-py3-none-any.whl", TREE)
    for text, kind in (
        (f"sglang=={VERSION}", WheelSource),
        (f"sglang@{wheel}", WheelSource),
        (f"sglang@{repository}", DirectorySource),
        (f"sglang@{repository}#HEAD", GitSource),
    ):
        target = parse_target(text)
        assert isinstance(target, Release | Checkout)
        tree = open_source(target, cache)
        assert isinstance(tree, kind)
        assert tree.label == text
        assert tree.version == VERSION


def test_a_path_may_start_at_the_home_folder(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_tree(tmp_path / "here", TREE)
    assert open_source(Checkout("sglang", "~/here"), cache).exists("srt/__init__.py")


@pytest.mark.parametrize(
    ("make", "text", "sentence"),
    [
        ([], "sglang@nothing", "the path nothing does not exist"),
        ([], "sglang@1.2.3", "a release is written sglang==1.2.3"),
        ([], "sglang@no#thing#HEAD", "the last # starts a revision"),
        (["folder/x.py"], "sglang@folder", "is not SGLang: there is no python/sglang/srt, sglang/srt or srt"),
        (["folder/srt"], "sglang@folder", "is not SGLang"),
        (["file"], "sglang@file", "is not SGLang's wheel: it cannot be read as a zip"),
        (["folder/srt/x.py"], "sglang@folder#HEAD", "is not in a git repository"),
    ],
)
def test_a_source_that_is_not_there_is_refused_in_one_sentence(
    make: list[str], text: str, sentence: str, tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_tree(tmp_path, dict.fromkeys(make, "")))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    target = parse_target(text)
    assert isinstance(target, Checkout)
    with pytest.raises(UsageError) as caught:
        open_source(target, cache)
    assert sentence in str(caught.value)
    assert text in str(caught.value) or "wheel" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wheel_of_another_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is the package 'sglang_router'"):
        WheelSource(write_wheel(tmp_path / "x.whl", TREE, name="sglang_router"), SGLANG)


@pytest.mark.parametrize("revision", ["nothing", "HEAD~99", "HEAD:python", "0" * 40, "a b", "nothing..."])
def test_an_unknown_revision_is_named(repository: Path, revision: str) -> None:
    with pytest.raises(UsageError, match="has no commit"):
        GitSource(repository, revision, SGLANG)


def test_the_branch_that_is_there_is_named_where_a_remote_one_is_not(repository: Path) -> None:
    subprocess.run(["git", "-C", str(repository), "branch", "left"], check=True)
    with pytest.raises(UsageError) as refused:
        GitSource(repository, "origin/left...", SGLANG)
    assert "no commit 'origin/left'" in refused.value.problem
    assert refused.value.remedy.startswith("it has 'left'")


@pytest.mark.parametrize("revision", ["-h", "--git-dir=x", "", "a\0b", "...", "a..b", "a...b..."])
def test_a_revision_cannot_be_an_option_of_git(repository: Path, revision: str) -> None:
    with pytest.raises(UsageError, match="is not a git revision"):
        GitSource(repository, revision, SGLANG)


def test_a_revision_without_sglang_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write_tree(tmp_path, {"readme": "nothing here"})
    commit_all(tmp_path)
    with pytest.raises(UsageError, match="is not SGLang"):
        GitSource(tmp_path, "HEAD", SGLANG)


def test_without_git_only_revisions_are_out_of_reach(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert DirectorySource(repository, SGLANG).version == VERSION
    with pytest.raises(UsageError, match="cannot run git"):
        GitSource(repository, "HEAD", SGLANG)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("model", ModelTarget()),
        (" model\n", ModelTarget()),
        ("sglang==1.2.3", Release("sglang", "1.2.3")),
        ("sglang==1.2.3.post1", Release("sglang", "1.2.3.post1")),
        ("sglang==1.2rc0", Release("sglang", "1.2rc0")),
        ("sglang@.", Checkout("sglang", ".")),
        ("sglang@a folder/x", Checkout("sglang", "a folder/x")),
        ("sglang@/x#main", Checkout("sglang", "/x", "main")),
        ("sglang@/x#HEAD^{/fix a bug}", Checkout("sglang", "/x", "HEAD^{/fix a bug}")),
        ("sglang@/x#y#v1", Checkout("sglang", "/x#y", "v1")),
        ("vllm==1.2.3", Release("vllm", "1.2.3")),
        ("vllm@a folder#v1", Checkout("vllm", "a folder", revision="v1")),
        ("sglang-kernel==1.2.3.post1", Release("sglang-kernel", "1.2.3.post1")),
        ("sgl-kernel@x.so", Checkout("sgl-kernel", "x.so")),
        ("my.providers:fast", PythonTarget("my.providers", "fast")),
        ("module:Class.method", PythonTarget("module", "Class.method")),
    ],
)
def test_each_form_of_target_is_understood(text: str, target: object) -> None:
    parsed = parse_target(text)
    assert parsed == target
    assert parsed.text == text.strip()
    assert parse_target(parsed.text) == parsed


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sglang=1.2.3", "did you mean sglang==1.2.3?"),
        ("sglang 1.2.3", "did you mean sglang==1.2.3?"),
        ("sglang-1.2.3", "did you mean sglang==1.2.3?"),
        ("sglang>=1.2.3", "did you mean sglang==1.2.3?"),
        ("sglang == 1.2.3", "did you mean sglang==1.2.3?"),
        ("sglang==v1.2.3", "did you mean sglang==1.2.3?"),
        ("sglang:1.2.3", "did you mean sglang==1.2.3?"),
        ("SGLang==1.2.3RC1", "did you mean sglang==1.2.3rc1?"),
        ("1.2.3", "did you mean sglang==1.2.3?"),
        ("sglang", "write the exact number of a release"),
        ("sglang==latest", "write the exact number of a release"),
        ("sglang==1.2.*", "write the exact number of a release"),
        ("sglang==1.2.3 --index-url x", "write the exact number of a release"),
        ("sglang @ ../x", "did you mean sglang@../x?"),
        ("../sglang", "did you mean sglang@../sglang?"),
        ("work/sglang", "did you mean sglang@work/sglang?"),
        ("sglang@x#", "did you mean sglang@x?"),
        ("tensorrt==1.2", "specsim reads no tensorrt; it needs a provider of your own, module:object"),
        ("modle", "did you mean model?"),
        ("Model", "did you mean model?"),
        ("my/provider.py:fast", "did you mean my.provider:fast"),
        ("my.provider.fast", "did you mean my.provider:fast?"),
    ],
)
def test_a_near_miss_is_answered_with_what_was_meant(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert repr(text) in caught.value.problem
    assert hint in caught.value.remedy
    assert caught.value.remedy.endswith(
        "llowed are model, sglang==VERSION, sglang@PATH, sglang@PATH#REV, such of vllm, sglang-kernel, sgl-kernel, "
        "flashinfer, and module:object"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "--index-url",
        "sglang@",
        "sglang@#x",
        "sglang@x#-h",
        "sglang@x\0y",
        "a:b:c",
        "a:",
        "vllm==",
        "vllm@",
        "flashinfer@x#v1",
    ],
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"[aA]llowed are"):
        parse_target(text)


@given(st.text(max_size=30) | st.text("sglanm:=@#.-/0123456789 rcpost", max_size=30))
def test_any_text_is_a_target_that_survives_a_round_trip_or_is_refused(text: str) -> None:
    try:
        target = parse_target(text)
    except UsageError:
        return
    assert parse_target(target.text) == target
    if isinstance(target, Release):
        assert is_version(target.version)
    if isinstance(target, Checkout) and target.revision is not None:
        assert target.revision[0] != "-"


@pytest.mark.parametrize(
    "text", ["1.0-1", "01.2", "1.2.3.", "1..2", "1.2+local", "1!2.0", "v1.2", "1.2 ", "١.٢", "1.2.post"]
)
def test_other_spellings_of_versions_are_refused(text: str) -> None:
    assert not is_version(text)


def test_what_is_no_file_is_not_among_the_files_of_a_folder(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    (package / "srt" / "folder.py").mkdir(parents=True)
    (package / "srt" / "file.py").write_text("x = 1\n")
    os.mkfifo(package / "srt" / "fifo.py")
    for name, leads_to in (("link.py", "file.py"), ("loop.py", "loop.py"), ("dangling.py", "nowhere.py")):
        (package / "srt" / name).symlink_to(leads_to)
    source = DirectorySource(tmp_path, SGLANG)
    assert source.paths("") == ["srt/file.py", "srt/link.py"]
    assert [path for path in source.paths("") if not source.exists(path)] == []


def test_git_knows_a_file_by_its_content(repository: Path) -> None:
    source = GitSource(repository, "HEAD", SGLANG)
    for path, text in TREE.items():
        named = source.blob(path)
        assert named == blob_of(text.encode(), named) == git(repository, "rev-parse", f"HEAD:python/sglang/{path}")
        assert named != blob_of(text.encode() + b"#", named)
        assert named != blob_of(text.encode()[::-1], named) or text == text[::-1]
    assert source.blob("srt/absent.py") == ""


def test_the_lines_of_functions_that_a_checkout_changed_are_found_by_file(repository: Path) -> None:
    base = GitSource(repository, "HEAD", SGLANG)
    file = repository / "python" / "sglang" / "srt" / "made.py"
    file.write_text("A = 1\n\n\ndef f():\n    # a comment\n    return A\n")
    changed = Changes(base, DirectorySource(repository, SGLANG)).files("srt")
    assert changed == {"srt/made.py": (4, 6)}
    commit_all(repository)
    at_head = GitSource(repository, "HEAD", SGLANG)
    assert Changes(base, at_head).files("srt") == changed
    assert Changes(at_head, DirectorySource(repository, SGLANG)).files("srt") == {}
