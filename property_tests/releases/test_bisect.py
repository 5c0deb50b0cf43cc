"""`specsim bisect` around its search: which revisions it looks at, what it proves before it speaks, and what it
refuses, each in one sentence and with nothing of the repository changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from property_tests.support.known_releases import FIXTURES, RELEASES, SGLANG
from property_tests.support.known_releases import VLLM_RELEASES as VLLM
from property_tests.support.made_up_sources import MadeUpSource, cache_in
from property_tests.support.small_engine import Plan, build, git
from specsim.cli import main
from specsim.errors import NondeterministicError, UsageError
from specsim.findings.bisect import report
from specsim.findings.bisect.changes import changed_functions
from specsim.findings.bisect.command import history_of
from specsim.findings.bisect.revisions import History, Revision, commits_between, releases_between
from specsim.findings.bisect.run import Bisection, CheckedRevision, EndError, FoundChange, bisect
from specsim.findings.bisect.verdicts import BisectState, RevisionVerdict
from specsim.lifting.git import Repository
from specsim.lifting.source import GitSource
from specsim.tiers.tier import Code

PLAN = Plan(commits=24, bad=15)
GOOD, BAD, SKIPPED = (RevisionVerdict(state, f"it is {state.text}") for state in BisectState)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository and its commits; nothing in this file may change it."""
    path = tmp_path_factory.mktemp("history") / "engine"
    return path, build(path, PLAN)


def state_of(path: Path) -> dict[str, Any]:
    """What of a repository could be changed: its files with the times of their last changes."""
    return {
        file.relative_to(path).as_posix(): (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


class Scripted:
    """A question with an answer for each commit by number; `answers` may differ from one time to the next."""

    text = "scripted"

    def __init__(self, revisions: tuple[Revision, ...], answer: Callable[[int, int], RevisionVerdict]) -> None:
        self._number = {revision.target: number for number, revision in enumerate(revisions)}
        self._answer = answer
        self.asked: list[tuple[int, str]] = []

    def check(self, target: str, _ask: Any, hash_seed: str) -> RevisionVerdict:
        number = self._number[target]
        self.asked.append((number, hash_seed))
        return self._answer(number, int(hash_seed))

    def replay(self, _target: str, _ask: Any) -> Path:
        return Path("finding.json")


def no_child(_question: Any, _hang_seconds: float, _hash_seed: str) -> Iterator[Any]:
    raise AssertionError("the scripted question asks nobody")


def bisection(
    repository: Path, good: str, bad: str, answer: Callable[[int, int], RevisionVerdict], folder: Path
) -> tuple[Bisection, Scripted]:
    places = commits_between(repository, good, bad)
    question = Scripted(places.revisions, answer)
    return Bisection(places, question, (no_child, no_child), cache_in(folder), lambda _step: None), question


def from_bad_on(number: int, _time: int) -> RevisionVerdict:
    return BAD if number >= PLAN.bad else GOOD


# What is searched


def test_the_list_of_releases_is_in_order() -> None:
    assert list(RELEASES) == sorted(set(RELEASES), key=Version)
    assert len(RELEASES) >= 17


@pytest.mark.parametrize("good_is_older", [True, False])
def test_releases_are_searched_in_order_of_time_whichever_end_is_good(good_is_older: bool) -> None:
    ends = (RELEASES[2], f"sglang=={RELEASES[9]}")
    found = releases_between(*(ends if good_is_older else reversed(ends)))
    assert [r.target for r in found.revisions] == [f"sglang=={v}" for v in RELEASES[2:10]]
    assert found.good_is_older is good_is_older


def test_a_release_that_is_newer_than_the_list_can_be_an_end() -> None:
    found = releases_between(RELEASES[-2], "9.9.9")
    assert [r.name for r in found.revisions] == [f"sglang=={v}" for v in (*RELEASES[-2:], "9.9.9")]


def test_the_releases_are_those_of_the_replay_files_engine_or_of_the_one_that_is_named() -> None:
    file = FIXTURES / "replays" / "vllm-reset-never-ends.json"
    good, _, bad = VLLM[-3:]
    for found in (history_of(good, bad, None, file), history_of(f"vllm=={good}", f"vllm=={bad}", None)):
        assert [r.target for r in found.revisions] == [f"vllm=={version}" for version in VLLM[-3:]]
    with pytest.raises(UsageError, match=rf"--bad 'sglang=={RELEASES[0]}' is no release of vllm"):
        history_of(f"vllm=={good}", f"sglang=={RELEASES[0]}", None)


@pytest.mark.parametrize(("good", "bad"), [(RELEASES[0], RELEASES[0]), ("main", RELEASES[0]), (RELEASES[0], "")])
def test_ends_that_are_no_two_releases_are_refused(good: str, bad: str) -> None:
    with pytest.raises(UsageError):
        releases_between(good, bad)


@pytest.mark.parametrize("good_is_older", [True, False])
def test_commits_are_searched_in_order_of_time_whichever_end_is_good(
    history: tuple[Path, list[str]], good_is_older: bool
) -> None:
    path, commits = history
    ends = (commits[3], "main~2")
    found = commits_between(path, *(ends if good_is_older else reversed(ends)))
    assert [r.target for r in found.revisions] == [f"sglang@{path}#{commit}" for commit in commits[3:-2]]
    assert found.revisions[PLAN.bad - 3].title == PLAN.title(PLAN.bad)
    assert found.good_is_older is good_is_older
    assert "changes that are not committed are neither checked nor touched" in found.note


def test_a_merged_branch_is_one_step_that_says_so(history: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, commits = history
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", str(path), str(copy))
    git(copy, "checkout", "-q", "-b", "side", commits[20])
    git(copy, "commit", "-q", "--allow-empty", "-m", "on the side")
    git(copy, "checkout", "-q", "main")
    git(copy, "merge", "-q", "--no-ff", "-m", "merge side", "side")
    found = commits_between(copy, commits[21], "HEAD")
    assert [(r.title, r.merged) for r in found.revisions][-2:] == [("Change 23", 0), ("merge side", 1)]
    with pytest.raises(UsageError, match="on two branches"):
        commits_between(copy, "side", commits[-1])


class Tainted:
    """A question that is bad at the commits that `commits` names."""

    text = "tainted"

    def __init__(self, commits: set[str]) -> None:
        self._commits = commits

    def check(self, target: str, _ask: Any, _hash_seed: str) -> RevisionVerdict:
        return BAD if target.rpartition("#")[2] in self._commits else GOOD

    def replay(self, _target: str, _ask: Any) -> Path:
        return Path("finding.json")


@pytest.mark.parametrize("in_the_branch", [True, False])
def test_a_merge_that_is_the_change_is_searched_in_turn(
    history: tuple[Path, list[str]], tmp_path: Path, in_the_branch: bool
) -> None:
    path, commits = history
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", str(path), str(copy))
    git(copy, "checkout", "-q", "-b", "side", commits[18])
    side = []
    for number in range(5):
        git(copy, "commit", "-q", "--allow-empty", "-m", f"side {number}\x1b[2J")
        side.append(git(copy, "rev-parse", "HEAD"))
    git(copy, "checkout", "-q", "main")
    git(copy, "merge", "-q", "--no-ff", "-m", "merge side", "side")
    merge = git(copy, "rev-parse", "HEAD")
    git(copy, "commit", "-q", "--allow-empty", "-m", "after")
    bad = {merge, git(copy, "rev-parse", "HEAD"), *(side[3:] if in_the_branch else ())}
    places = commits_between(copy, commits[10], "main")
    steps: list[CheckedRevision] = []
    found = bisect(places, Tainted(bad), (no_child, no_child), cache_in(tmp_path), steps.append)
    assert found.after.revision.target.endswith(side[3] if in_the_branch else merge)
    assert found.before.revision.target.endswith(side[2] if in_the_branch else commits[-1])
    assert "\x1b" not in found.after.revision.title
    assert any("a merge" in line for line in report.lines_of(found, [], [], Path("f"), "q")) is not in_the_branch


def test_a_bare_repository_has_a_history_too(history: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, commits = history
    git(tmp_path, "clone", "-q", "--bare", str(path), "bare")
    found = commits_between(tmp_path / "bare", commits[0], "main")
    assert [r.name for r in found.revisions] == [commit[:12] for commit in commits]


# What is proved


@pytest.mark.parametrize("good_is_older", [True, False])
def test_both_ends_and_both_sides_of_the_change_are_checked_twice(
    history: tuple[Path, list[str]], tmp_path: Path, good_is_older: bool
) -> None:
    path, commits = history
    answer = from_bad_on if good_is_older else lambda number, time: GOOD if number >= PLAN.bad else BAD
    ends = (commits[0], commits[-1]) if good_is_older else (commits[-1], commits[0])
    search, question = bisection(path, *ends, answer, tmp_path)
    found = search.run()
    assert found.what == ("first bad" if good_is_older else "first fixed")
    assert found.after.revision.target.endswith(commits[PLAN.bad])
    assert found.before.revision.target.endswith(commits[PLAN.bad - 1])
    assert found.steps == len(question.asked)
    for number in (0, len(commits) - 1, PLAN.bad - 1, PLAN.bad):
        assert {seed for asked, seed in question.asked if asked == number} == {"0", "1"}
    assert {number for number, _seed in question.asked[:4]} == {0, len(commits) - 1}


@pytest.mark.parametrize(
    ("first", "last", "says"),
    [
        (BAD, BAD, "--good .* is bad, too"),
        (GOOD, GOOD, "--bad .* is good, too"),
        (BAD, GOOD, "--bad .* is good .* and --good .* is bad"),
    ],
)
def test_labels_that_the_verdicts_contradict_are_refused(
    history: tuple[Path, list[str]], tmp_path: Path, first: RevisionVerdict, last: RevisionVerdict, says: str
) -> None:
    path, commits = history
    search, question = bisection(path, commits[0], commits[-1], lambda n, _t: last if n else first, tmp_path)
    with pytest.raises(UsageError, match=says):
        search.run()
    assert len(question.asked) == 4


@pytest.mark.parametrize("end", [0, PLAN.commits - 1])
def test_an_end_that_cannot_be_checked_is_named_with_the_reason(
    history: tuple[Path, list[str]], tmp_path: Path, end: int
) -> None:
    path, commits = history
    search, _ = bisection(
        path, commits[0], commits[-1], lambda n, t: SKIPPED if n == end else from_bad_on(n, t), tmp_path
    )
    with pytest.raises(EndError, match=f"{commits[end][:12]} cannot be checked: it is not checked"):
        search.run()


@pytest.mark.parametrize("place", [0, PLAN.bad - 1, PLAN.bad, PLAN.commits - 1])
def test_a_verdict_that_is_not_the_same_twice_ends_the_search(
    history: tuple[Path, list[str]], tmp_path: Path, place: int
) -> None:
    path, commits = history
    other = GOOD if place >= PLAN.bad else BAD
    search, _ = bisection(
        path, commits[0], commits[-1], lambda n, t: other if (n, t) == (place, 1) else from_bad_on(n, t), tmp_path
    )
    with pytest.raises(NondeterministicError, match=commits[place][:12]):
        search.run()


def test_revisions_that_cannot_be_checked_beside_the_change_are_named(
    history: tuple[Path, list[str]], tmp_path: Path
) -> None:
    path, commits = history
    dark = (PLAN.bad - 1, PLAN.bad)
    search, _ = bisection(
        path, commits[0], commits[-1], lambda n, t: SKIPPED if n in dark else from_bad_on(n, t), tmp_path
    )
    found = search.run()
    assert [step.revision.target.rpartition("#")[2] for step in found.skipped] == [commits[n] for n in dark]
    assert any("or one of" in line for line in report.lines_of(found, [], [], Path("f"), "q"))


def test_a_release_in_the_middle_that_is_withdrawn_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = releases_between(RELEASES[0], RELEASES[2])
    source = MadeUpSource({"srt/a.py": ""})

    def opened(revision: Revision, _cache: Any) -> MadeUpSource:
        if revision.target == places.revisions[1].target:
            raise UsageError(f"there is no release {revision.target} that pip can find", "give another")
        return source

    monkeypatch.setattr(Revision, "open", opened)
    question = Scripted(places.revisions, lambda n, _t: BAD if n else GOOD)
    found = Bisection(places, question, (no_child, no_child), cache_in(tmp_path), lambda _step: None).run()
    assert [step.verdict.why for step in found.skipped] == [
        f"there is no release {places.revisions[1].target} that pip can find"
    ]


def test_a_release_at_an_end_that_is_withdrawn_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def withdrawn(revision: Revision, _cache: Any) -> MadeUpSource:
        raise UsageError(f"there is no release {revision.target} that pip can find", "give another")

    monkeypatch.setattr(Revision, "open", withdrawn)
    places = releases_between(RELEASES[0], RELEASES[2])
    search = Bisection(places, Tainted(set()), (no_child, no_child), cache_in(tmp_path), lambda _step: None)
    with pytest.raises(UsageError, match="there is no release") as refused_with:
        search.run()
    assert not isinstance(refused_with.value, EndError)


# What is reported

BEFORE = MadeUpSource({"srt/old.py": "x = 1\n\n\ndef was(a):\n    b = a\n    return b + 1\n"})
AFTER = MadeUpSource(
    {"srt/new.py": "class K:\n    @property\n    def renamed(self):\n        b = a\n        return b + 2\n"}
)


def changed_between() -> FoundChange:
    before = RevisionVerdict(
        BisectState.GOOD, "holds", (Code("resolve", "srt/old.py:4", "aa"), Code("same", "srt/old.py:4", "cc"))
    )
    after = RevisionVerdict(
        BisectState.BAD,
        "broken",
        (Code("resolve", "srt/new.py:3", "bb"), Code("same", "srt/new.py:3", "cc")),
        "resolve",
    )
    revisions = [Revision(f"sglang@/e#{name}", name, f"title of {name}") for name in ("one", "two")]
    return FoundChange(CheckedRevision(revisions[0], before, 0.1), CheckedRevision(revisions[1], after, 0.1), (), 6)


def test_the_lines_of_a_function_that_changed_are_shown_with_their_numbers_even_when_it_moved() -> None:
    found = changed_between()
    (changed,) = changed_functions(found.before.verdict, found.after.verdict, BEFORE, AFTER, report.blamed_of(found))
    assert str(changed.before) == "srt/old.py:4-6 was (aa)"
    assert str(changed.after) == "srt/new.py:2-5 K.renamed (bb)"
    lines = changed.difference(40)
    assert "-6         return b + 1" in lines
    assert "+5             return b + 2" in lines


def test_of_many_lines_those_nearest_to_what_was_checked_are_shown() -> None:
    old = MadeUpSource({"srt/a.py": "def f():\n" + "".join(f"    a{n} = 1\n" for n in range(50))})
    new = MadeUpSource({"srt/a.py": "def f():\n" + "".join(f"    a{n} = 2\n" for n in range(50))})
    verdicts = [RevisionVerdict(BisectState.GOOD, "", (Code("c", "srt/a.py:30", text),)) for text in "xy"]
    (changed,) = changed_functions(verdicts[0], verdicts[1], old, new, "c")
    shown = changed.difference(6)
    assert sum(line != "..." for line in shown) == 6
    assert {"-30        a28 = 1", "+30        a28 = 2"} <= set(shown)


def test_the_report_names_the_commit_its_title_and_both_replays() -> None:
    text = "\n".join(report.lines_of(changed_between(), [], ["srt/new.py"], Path("f.json"), "q"))
    assert "first bad: two" in text
    assert "title of two" in text
    assert "specsim replay f.json --target 'sglang@/e#one'" in text
    assert "specsim replay f.json --target 'sglang@/e#two'" in text


def test_what_is_written_holds_hashes_and_line_ranges_and_no_line_of_the_code() -> None:
    found = changed_between()
    changed = changed_functions(found.before.verdict, found.after.verdict, BEFORE, AFTER, "resolve")
    written = report.to_json(found, changed, Path("f.json"), "q")
    assert written["changed"][0]["before"] == {
        "path": "srt/old.py",
        "first": 4,
        "last": 6,
        "function": "was",
        "source_hash": "aa",
    }
    assert "return" not in str(written)


# What is refused, and what is left alone


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["bisect", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("specsim: ")
    assert said.count("\n") == 2
    return said


def test_a_question_and_two_ends_are_needed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ends = ("--good", RELEASES[0], "--bad", RELEASES[1])
    assert "there is no --bad" in refused(capsys, "--good", RELEASES[0], "--rule", "I64")
    assert "nothing to ask" in refused(capsys, *ends)
    assert "--rule and --only" in refused(capsys, *ends, "--rule", "I64", "--only", "ops:build_tree")
    assert "no rule of a scheduler" in refused(capsys, *ends, "--rule", "O1")
    assert "names no operation" in refused(capsys, *ends, "--only", "scheduler")
    assert "there is no operation 'nothing'" in refused(capsys, *ends, "--only", "ops:nothing")
    assert "cannot read" in refused(capsys, *ends, str(tmp_path / "missing.json"))


def test_a_repository_that_cannot_be_searched_is_named(
    capsys: pytest.CaptureFixture[str], history: tuple[Path, list[str]], tmp_path: Path
) -> None:
    path, commits = history
    ask = ("--rule", "I64", "--good", commits[0], "--bad", "main", "--repo")
    assert "does not exist" in refused(capsys, *ask, str(tmp_path / "nowhere"))
    assert "is not a git repository" in refused(capsys, *ask, str(tmp_path))
    assert "has no commit 'v9'" in refused(capsys, *ask[:4], "--bad", "v9", "--repo", str(path))
    assert "is not a git revision" in refused(capsys, *ask[:4], "--bad=--all", "--repo", str(path))
    assert "are both" in refused(capsys, *ask[:4], "--bad", commits[0], "--repo", str(path))


def test_a_shallow_clone_says_that_its_history_is_cut(
    capsys: pytest.CaptureFixture[str], history: tuple[Path, list[str]], tmp_path: Path
) -> None:
    path, commits = history
    git(tmp_path, "clone", "-q", "--depth", "3", f"file://{path}", "shallow")
    said = refused(capsys, "--rule", "I64", "--good", commits[0], "--bad", "main", "--repo", str(tmp_path / "shallow"))
    assert "is a shallow clone" in said
    assert "fetch --unshallow" in said
    inside = commits_between(tmp_path / "shallow", commits[-2], "main")
    assert len(inside.revisions) == 2


def test_an_end_that_cannot_be_checked_exits_as_git_asks_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_arguments: object) -> int:
        raise EndError("--good A cannot be checked: it has no such tier", "give another end")

    monkeypatch.setattr("specsim.findings.bisect.command.run", cannot)
    with pytest.raises(SystemExit) as ended:
        main(["bisect", "--rule", "I64", "--good", RELEASES[0], "--bad", RELEASES[1]])
    assert ended.value.code == 125
    assert capsys.readouterr().err == (
        "specsim: --good A cannot be checked: it has no such tier.\n         Give another end.\n"
    )


def test_a_repository_of_something_else_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", str(other))
    for _ in range(2):
        git(other, "commit", "-q", "--allow-empty", "-m", "nothing")
    said = refused(capsys, "--rule", "I64", "--good", "HEAD~1", "--bad", "HEAD", "--repo", str(other))
    assert "is not SGLang" in said


def test_a_changed_work_tree_is_allowed_said_and_left_alone(history: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, commits = history
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    (copy / "python" / "sglang" / "__init__.py").write_text("changed = True\n")
    (copy / "not tracked").write_text("")
    before = state_of(copy)
    search, _ = bisection(copy, commits[0], commits[-1], from_bad_on, tmp_path)
    assert search.run().after.revision.target.endswith(commits[PLAN.bad])
    assert "neither checked nor touched" in commits_between(copy, commits[0], commits[-1]).note
    assert state_of(copy) == before
    assert git(copy, "rev-parse", "HEAD") == commits[-1]


def test_a_clean_repository_is_left_alone(history: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, commits = history
    before = state_of(path)
    search, _ = bisection(path, commits[-1], commits[0], lambda n, _t: GOOD if n >= 4 else BAD, tmp_path)
    search.run()
    assert state_of(path) == before


def test_history_is_a_value() -> None:
    assert releases_between(RELEASES[0], RELEASES[1]) == releases_between(RELEASES[0], RELEASES[1])
    assert isinstance(releases_between(RELEASES[0], RELEASES[1]), History)


@pytest.mark.parametrize(
    "revision",
    [
        *("^HEAD", "^main", "HEAD~3..HEAD", "HEAD~3...HEAD", "..", "--all", "-n1", "HEAD^@", "HEAD^!", "HEAD^{tree}"),
        *("HEAD:", "main@{upstream}", "no such branch", "\udc80", "\ud800", "HEAD\n", "HEAD\0", " ", "a" * 200_000),
    ],
)
def test_what_names_no_single_commit_is_refused(history: tuple[Path, list[str]], revision: str) -> None:
    path, commits = history
    for ends in ((revision, commits[-1]), (commits[0], revision)):
        with pytest.raises(UsageError):
            commits_between(path, *ends)
    with pytest.raises(UsageError):
        GitSource(path, revision, SGLANG)


# What a repository may name in its own configuration, each a program that git can be made to run.
PROGRAMS = {
    "core.fsmonitor": "{program}",
    "core.hooksPath": "{folder}",
    "core.pager": "{program}",
    "core.sshCommand": "{program}",
    "core.askPass": "{program}",
    "diff.external": "{program}",
    "diff.marked.textconv": "{program}",
    "diff.marked.command": "{program}",
    "filter.marked.clean": "{program}",
    "filter.marked.smudge": "{program}",
    "filter.marked.process": "{program}",
    "gpg.program": "{program}",
    "log.showSignature": "true",
    "alias.rev-parse": "!{program}",
    "alias.rev-list": "!{program}",
    "protocol.ext.allow": "always",
    "protocol.file.allow": "always",
    "remote.origin.url": "ext::{program}",
    "remote.origin.promisor": "true",
    "remote.origin.uploadpack": "{program}",
    "extensions.partialClone": "origin",
}


def test_no_program_that_a_repository_names_is_run(history: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, commits = history
    copy, folder, marker = tmp_path / "copy", tmp_path / "programs", tmp_path / "was run"
    shutil.copytree(path, copy)
    git(copy, "config", "core.repositoryFormatVersion", "1")
    folder.mkdir()
    for name in ("program", "post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman"):
        (folder / name).write_text(f'#!/bin/sh\necho "$0 $*" >> "{marker}"\n')
        (folder / name).chmod(0o755)
    attributes = copy / ".git" / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text("* filter=marked diff=marked\n")
    (copy / "python" / "sglang" / "__init__.py").write_text("changed = True\n")
    for pack in list((copy / ".git" / "objects" / "pack").glob("*.pack")):
        content = pack.read_bytes()
        shutil.rmtree(pack.parent)
        git(copy, "unpack-objects", "-q", stream=content)
    source = GitSource(copy, commits[-1], SGLANG)
    missing = git(copy, "rev-parse", f"{commits[-1]}:python/sglang/__init__.py")
    (copy / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    for name, value in PROGRAMS.items():
        git(copy, "config", name, value.format(program=folder / "program", folder=folder))
    with pytest.raises(UsageError):  # a partial clone that lacks it would fetch it
        source.read("__init__.py")
    repository = Repository(copy)
    for commit in (repository.commit(commits[-1]), repository.commit("HEAD~1")):
        repository.files_changed(commit)
        repository.merged_by(commit)
    assert commits_between(copy, commits[0], commits[-1]).revisions
    assert GitSource(copy, commits[-2], SGLANG).paths("")
    assert not marker.exists(), marker.read_text()
