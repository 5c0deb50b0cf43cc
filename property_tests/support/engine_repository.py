"""A git repository with a release's package in it, as a developer of the engine has one, and mistakes of one line.

What is written here comes from the wheel in the cache, into a temporary folder. Of the release's text nothing is stored
but the names that a mistake is looked for by.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

LAYOUTS = ("python", ".")
"""Where the package lies: as in the engine's own repository, and as an unpacked wheel has it."""
BATCH = "srt/managers/schedule_batch.py"
RESULTS = "srt/managers/scheduler_components/batch_result_processor.py"
SCHEDULER = "srt/managers/scheduler.py"
SETTINGS = """
[tool.specsim]
select = ["scheduler:*"]
schedules = 5
cases = 1
attempts = 1
"""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One line of a function, changed: the first that matches `line` becomes `instead`."""

    file: str
    function: str
    line: str
    instead: str


MISTAKES = {
    "a retracted request keeps its committed length": Mistake(
        BATCH, "reset_for_retract", r"self\.(kv\.)?kv_committed_len = 0", "pass"
    ),
    "a stale result of a retracted request counts": Mistake(
        RESULTS, "_resolve_spec_v2_tokens", r"\w+\.is_retracted or ", ""
    ),
    "the tail of a mixed batch is not committed": Mistake(
        RESULTS, "process_batch_result_prefill", r"(?<=kv_committed_len \+= )1", "0"
    ),
    "a mirror on the CPU is not filtered": Mistake(BATCH, "filter_batch", r"self\.req_pool_indices_cpu = .*", "pass"),
    "the rows of a batch are not filtered": Mistake(BATCH, "filter_batch", r"self\.req_pool_indices = .*", "pass"),
}
IN_VLLM = {
    "a block's hash leaves out those before it": Mistake(
        "v1/core/kv_cache_utils.py", "request_block_hasher", r"prev_block_hash_value = block_hash$", "pass"
    ),
    "a preempted request keeps its computed tokens": Mistake(
        "v1/core/sched/scheduler.py", "_preempt_request", r"request\.num_computed_tokens = 0", "pass"
    ),
}


class EngineRepository:
    """The repository at `root`, whose one commit is HEAD, `main` and `origin/main`."""

    def __init__(self, root: Path, wheel: Path, layout: str, settings: str, package: str = "sglang") -> None:
        self.root, self.package = root, root / layout / package
        with zipfile.ZipFile(wheel) as archive:  # without libraries, which no repository has
            archive.extractall(root / layout, [name for name in archive.namelist() if not name.endswith(".so")])
        (root / "pyproject.toml").write_text(settings)
        self.git("init", "-q", "-b", "change")
        self.git("add", "-A")
        self.git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "base")
        for branch in ("heads/main", "remotes/origin/main"):
            self.git("update-ref", f"refs/{branch}", "HEAD")

    def git(self, *arguments: str) -> str:
        ended = subprocess.run(["git", "-C", str(self.root), *arguments], capture_output=True, text=True, check=True)
        return ended.stdout

    def make(self, mistake: Mistake) -> None:
        """Change the one line; it is not committed."""
        file = self.package / mistake.file
        lines = file.read_text().splitlines(keepends=True)
        start = next(i for i, line in enumerate(lines) if re.match(rf" *def {mistake.function}\(", line))
        at = next(i for i in range(start, len(lines)) if re.search(mistake.line, lines[i]))
        lines[at] = re.sub(mistake.line, mistake.instead, lines[at])
        file.write_text("".join(lines))

    def replace(self, name: str, old: str, new: str) -> None:
        """Change a text wherever it stands in a file of the package; it must stand there."""
        file = self.package / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def restore(self) -> None:
        """The tree as it was committed, with nothing beside it."""
        self.git("checkout", "-q", "--", ".")
        self.git("clean", "-qfdx")


def main(folder: str, mistake: str) -> None:
    """Make the repository of the newest release that every test run reads, with a mistake that is not committed."""
    from property_tests.support.known_releases import NEWEST, SGLANG
    from specsim.lifting.cache import open_cache
    from specsim.lifting.fetch import fetch_wheel

    EngineRepository(Path(folder), fetch_wheel(SGLANG, NEWEST, open_cache(None)), "python", "").make(MISTAKES[mistake])


if __name__ == "__main__":
    main(*sys.argv[1:])
