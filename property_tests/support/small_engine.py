"""A git history of a small engine of our own, in SGLang's layout, with one defect in it: what `specsim bisect` searches
in tests. No line of it comes from an engine.

It has one kernel and the worker that calls it, the operation `fill_bonus_tokens`. From commit `bad` on, until `fixed`,
the worker hands the kernel the wrong stride; at `renamed` the kernel moves to another file under another name; each of
`unbuildable` leaves a file that is no Python, or a worker without its kernel, and the next commit mends it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "python/sglang/srt"
KERNEL_FILES = (f"{PACKAGE}/speculative/eagle_info_v2.py", f"{PACKAGE}/speculative/triton_ops/eagle.py")
WORKER_FILE = f"{PACKAGE}/speculative/eagle_worker_v2.py"

KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def {name}({first}, accept_lens, {result}, {stride}: tl.constexpr):
    """One program a request."""
    i_request = tl.program_id(0)
    o_last = i_request * {stride} + tl.load(accept_lens + i_request) - 1
    tl.store({result} + i_request, tl.load({first} + o_last))
'''
NAMES = (
    {"name": "fill_new_verified_id", "first": "verified_id", "result": "new_verified_id", "stride": "num_draft_tokens"},
    {
        "name": "fill_bonus_tokens",
        "first": "accept_tokens",
        "result": "bonus_tokens_ptr",
        "stride": "accept_stride",
    },
)
WORKER = '''
import torch

from {module} import {name}


class EAGLEWorkerV2:
    """The worker of a small engine; commit {number}."""

    def verify(self, batch):
        predict, accept_lens, accept_index = self.sample(batch)
        bs = len(accept_lens)
        tokens_of_paths = predict[accept_index]
        bonus = torch.empty_like(accept_lens)
        if not batch.forward_mode.is_idle():
            {name}[(bs,)](tokens_of_paths, accept_lens, bonus, {stride})
        return bonus
'''
RIGHT, WRONG = "accept_index.shape[1]", "self.speculative_num_draft_tokens"


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in which commit, by number from 0."""

    commits: int
    bad: int
    fixed: int = 1_000_000
    renamed: int = 0
    unbuildable: frozenset[int] = frozenset()

    def title(self, number: int) -> str:
        if number == self.bad:
            return "Pass the worker's own number of draft tokens"
        if number == self.fixed:
            return "Pass the width of the accepted path"
        if number == self.renamed:
            return "Move the kernel to triton_ops, and rename it"
        return f"Half of a change ({number})" if number in self.unbuildable else f"Change {number}"

    def files(self, number: int) -> dict[str, str]:
        """All files at one commit, by path."""
        moved = number >= self.renamed
        names, kernel_file = NAMES[moved], KERNEL_FILES[moved]
        module = kernel_file.removeprefix("python/").removesuffix(".py").replace("/", ".")
        stride = WRONG if self.bad <= number < self.fixed else RIGHT
        worker = WORKER.format(module=module, name=names["name"], number=number, stride=stride)
        files = {"python/sglang/__init__.py": "", kernel_file: KERNEL.format(**names), WORKER_FILE: worker}
        if number in self.unbuildable:
            if number % 2:
                files[WORKER_FILE] += "    def unfinished(self:\n"
            else:
                files[kernel_file] = "import triton\n"
        return files


def build(path: Path, plan: Plan) -> list[str]:
    """Make the repository; the hashes of its commits, oldest first."""
    return import_commits(path, ((plan.title(number), plan.files(number)) for number in range(plan.commits)))


def import_commits(path: Path, commits: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """Make a repository of commits, each a title and all its files, with `git fast-import`. The last is checked out."""
    git(path.parent, "init", "-q", "-b", "main", str(path))
    stream = b"".join(_commands(commits))
    git(path, "fast-import", "--quiet", "--export-marks=.git/marks", stream=stream)
    git(path, "reset", "-q", "--hard")
    marks = dict(line.split() for line in (path / ".git" / "marks").read_text().splitlines())
    return [marks[mark] for mark in sorted(marks, key=lambda mark: int(mark[1:]))]


def _commands(commits: Iterable[tuple[str, Mapping[str, str]]]) -> Iterator[bytes]:
    for number, (title, files) in enumerate(commits, 1):
        yield b"commit refs/heads/main\nmark :%d\ncommitter nobody <nobody> %d +0000\n" % (
            number,
            1_700_000_000 + number,
        )
        yield b"data %d\n%s\ndeleteall\n" % (len(title.encode()), title.encode())
        for name, text in files.items():
            content = text.encode()
            yield b"M 100644 inline %s\ndata %d\n%s\n" % (name.encode(), len(content), content)


def git(path: Path, *arguments: str, stream: bytes = b"") -> str:
    """Run git in the folder, as nobody, whatever the surroundings say."""
    identity = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ended = subprocess.run(
        ["git", "-C", str(path), "-c", "commit.gpgsign=false", *arguments],
        input=stream,
        check=True,
        capture_output=True,
        env=clean | identity,
    )
    return ended.stdout.decode().strip()
