"""Git's history of a repository, read and never changed: no lock, no hook, no index, no work tree, no network.

Only objects and references are read. A repository's own configuration may name programs (filters, hooks, a file system
monitor, text converters, transports, pagers); nothing here makes git run one. Configuration of the user and of the
system is the user's own, and stays: it holds `safe.directory`.

A history is followed along first parents: a branch that was merged is one step, the merge, and a history of its own
(`merged_by`).
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from specsim.errors import UsageError

_OPTIONS = (
    "--no-pager",
    "--no-replace-objects",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "i18n.logOutputEncoding=UTF-8",
)
_SETTINGS = {
    "GIT_ALLOW_PROTOCOL": "none",  # no transport, whatever the repository allows, where git has no NO_LAZY_FETCH
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_PLACES = (  # set inside hooks and by `git bisect run`; they would name another repository than `-C PATH`
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)


def run_git(label: str, path: Path, *arguments: str, question: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """git in the folder `path`, whatever the surroundings say; `question` is what it reads. UsageError, which begins
    with `label`, when there is no git.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _PLACES} | _SETTINGS
    command = ["git", *_OPTIONS, "-C", str(path), *arguments]
    try:
        return subprocess.run(command, input=question, capture_output=True, check=False, env=environment)
    except OSError as error:
        raise UsageError(
            f"{label}: cannot run git: {error.strerror or error}",
            "install git, or leave #REV away to read the folder as it is",
        ) from error


MERGE_BASE = "..."
"""Behind a revision, as `git diff REV...` has it: the commit where HEAD left it."""


def is_revision(text: str) -> bool:
    """Whether git can take `text` for one commit, and neither for an option nor for a set of commits."""
    is_text = text.isprintable() and not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text)
    return bool(text) and is_text and not text.startswith(("-", "^")) and ".." not in text


def resolved(label: str, path: Path, revision: str) -> str | subprocess.CompletedProcess[bytes]:
    """The full hash of the commit that a revision names, REV... the merge base of it and HEAD; or how git ended.
    UsageError for what is no revision.
    """
    name = revision.removesuffix(MERGE_BASE)
    if not is_revision(name):
        raise UsageError(f"{revision!r} is not a git revision", "give one commit: its hash, a tag or a branch")
    commit = _hash(run_git(label, path, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"))
    if name == revision or not isinstance(commit, str):
        return commit
    return _hash(run_git(label, path, "merge-base", commit, "HEAD"))


def nearest_tag(label: str, path: Path, revision: str, pattern: str) -> str:
    """The last tag of a pattern, such as "v*", that a revision has behind it; "" where there is none, and of a folder
    that lies in a repository without being in its history.
    """
    commit = resolved(label, path, revision)
    if not isinstance(commit, str) or not run_git(label, path, "ls-tree", commit, ".").stdout:
        return ""
    ended = run_git(label, path, "describe", "--tags", "--abbrev=0", f"--match={pattern}", commit)
    return ended.stdout.decode("utf-8", "replace").strip() if ended.returncode == 0 else ""


def _hash(ended: subprocess.CompletedProcess[bytes]) -> str | subprocess.CompletedProcess[bytes]:
    answer = ended.stdout.decode("ascii", "replace").split()
    commit = answer[-1] if answer else ""
    return commit if ended.returncode == 0 and re.fullmatch("[0-9a-f]{40,64}", commit) else ended


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit by its full hash, the hashes of its parents, and the first line of its message."""

    hash: str
    parents: tuple[str, ...]
    subject: str


class Repository:
    """A git repository at `path`. UsageError when there is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise UsageError(f"--repo {path} does not exist", "name a checkout of the engine's repository")
        if not path.is_dir() or self._git("rev-parse", "--git-dir").returncode:
            ended = self._git("rev-parse", "--git-dir") if path.is_dir() else None
            if ended is not None and b"dubious ownership" in ended.stderr:
                raise UsageError(
                    f"git refuses {path}, which belongs to another user",
                    f"allow it with git config --global --add safe.directory {path}",
                )
            raise UsageError(f"--repo {path} is not a git repository", "name a checkout of the engine's repository")
        self.is_shallow = self._output("rev-parse", "--is-shallow-repository").strip() == "true"

    def commit(self, revision: str) -> Commit:
        """The commit that a revision names. UsageError when there is none."""
        found = resolved(f"--repo {self.path}", self.path, revision)
        if not isinstance(found, str):
            why, remedy = "has no commit", "give a commit, a tag or a branch that it has"
            if self.is_shallow:
                why = "is a shallow clone, which has no commit"
                remedy = f"fetch the history with git -C {self.path} fetch --unshallow --tags"
            raise UsageError(f"the repository {self.path} {why} {revision!r}", remedy)
        return self._commits("--max-count=1", found)[0]

    def between(self, older: Commit, newer: Commit) -> list[Commit]:
        """The commits from `older` to `newer`, both included, oldest first, along first parents.

        Raises UsageError when `older` is not an ancestor of `newer`, as when they are on two branches.
        """
        if not self.is_ancestor(older, newer):
            raise self._unrelated(older, newer)
        chain = self._commits("--first-parent", "--ancestry-path", f"^{older.hash}", newer.hash)
        return [older, *reversed(chain)]

    def merged_by(self, merge: Commit) -> list[list[Commit]]:
        """The branches that a merge brought, each from where it left the history that it was merged into to its last
        commit, oldest first; none for a commit that is no merge.
        """
        branches = []
        for parent in merge.parents[1:]:
            ended = self._git("merge-base", merge.parents[0], parent)
            if ended.returncode == 0:
                base = self.commit(ended.stdout.decode().split()[0])
                branches.append(self.between(base, self.commit(parent)))
        return [branch for branch in branches if len(branch) > 1]

    def is_ancestor(self, older: Commit, newer: Commit) -> bool:
        """Whether `older` is reached from `newer` by way of parents, or is it."""
        return self._git("merge-base", "--is-ancestor", older.hash, newer.hash).returncode == 0

    def files_changed(self, commit: Commit) -> list[str]:
        """The paths that a commit changed, against its first parent."""
        listed = self._output("diff-tree", "--root", "-r", "-m", "--first-parent", "--name-only", "-z", commit.hash)
        return [path for path in listed.split("\0")[1:] if path]

    def _unrelated(self, one: Commit, other: Commit) -> UsageError:
        pair = f"{one.hash[:12]} and {other.hash[:12]}"
        if self.is_shallow:
            return UsageError(
                f"the repository {self.path} is a shallow clone, in which no history joins {pair}",
                f"fetch the history with git -C {self.path} fetch --unshallow",
            )
        ended = self._git("merge-base", one.hash, other.hash)
        base = ended.stdout.decode().strip()[:12]
        return UsageError(
            f"{pair} are on two branches",
            f"check {base}, where they diverge, and give it in place of one of them"
            if base
            else "give two of one history",
        )

    def _commits(self, *arguments: str) -> list[Commit]:
        listed = self._output("rev-list", "--format=%H%n%P%n%s", *arguments, "--")
        lines = listed.removesuffix("\n").split("\n")
        # Before each: a line "commit HASH".
        return [
            Commit(lines[i + 1], tuple(lines[i + 2].split()), lines[i + 3].strip()) for i in range(0, len(lines) - 3, 4)
        ]

    def _git(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return run_git(f"--repo {self.path}", self.path, *arguments)

    def _output(self, *arguments: str) -> str:
        ended = self._git(*arguments)
        if ended.returncode:
            said = ended.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
            raise UsageError(f"git {arguments[0]} fails in {self.path}: {said[-1]}", "check it with git fsck")
        return ended.stdout.decode("utf-8", "replace")
