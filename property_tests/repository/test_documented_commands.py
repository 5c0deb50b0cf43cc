"""Every command and snippet of README and docs: known to the command line at every run, run by `make nightly`.

A page's blocks run from top to bottom in one folder that has the checkout's data. A comment before one changes that:

    <!-- file NAME -->          the block is a file of that name, for the blocks after it
    <!-- with NAME=VALUE -->    words of the block to replace first; in quotes where they have blanks
    <!-- not run: WHY -->

Lines shown below a command must be in what it prints, `...` standing for anything, seconds for any number of them; the
number of a finding and how often it was hit depend on the machine.
Blocks of `pycon` are doctests of other files.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from specsim.cli import app

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*?) -->\n+)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`specsim ([a-z]+)((?: [^`|\n]*)?)`")
KINDS = {"console", "python", "pycon", "", "text", "yaml", "toml", "json", "mermaid", "bash"}
SECONDS_MAX = 1800
WRITTEN = {
    "docs/commands.md": "not run: it has the usage of each command, and is written by `make pages`",
    "docs/releases.md": "not run: an hour; it writes this page, which test_matrix.py makes for few releases",
    "docs/vllm-releases.md": "not run: it fetches 23 wheels, and writes this page, as docs/releases.md is written",
}
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `mark` is the comment before it."""

    page: str
    kind: str
    mark: str
    text: str

    def runnable(self) -> bool:
        return self.kind in ("console", "python") and not self.mark.startswith("not run: ")

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command with the lines that are shown below it."""
        text = self.text
        for pair in shlex.split(self.mark.removeprefix("with ")) if self.mark.startswith("with ") else ():
            name, _, value = pair.partition("=")
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", value, text)
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield command, [line for line in shown if line.strip() not in ("", "...")]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    mark = WRITTEN.get(page, "")
    return [Block(page, found["kind"], mark or found["mark"] or "", found["text"]) for found in BLOCK.finditer(text)]


def commands_of_cli() -> dict[str, Any]:
    commands: dict[str, Any] = getattr(get_command(app), "commands")  # noqa: B009 - a click group
    return commands


def test_there_is_something_to_run_and_every_mark_is_one_of_three() -> None:
    everything = [block for page in PAGES for block in blocks(page)]
    assert sum(block.runnable() for block in everything) > 30
    assert {block.kind for block in everything} <= KINDS
    odd = [block.mark for block in everything if not re.match(r"$|file \S+$|with .+=|not run: .{10}", block.mark)]
    assert odd == []


@pytest.mark.parametrize("page", PAGES)
def test_the_command_line_knows_every_command_and_option(page: str) -> None:
    commands = commands_of_cli()
    shown = [block for block in blocks(page) if block.kind == "console" and block.mark != WRITTEN["docs/commands.md"]]
    lines = [line for block in shown for line, _ in block.commands()]
    told = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("specsim ")]
    inline = INLINE.findall((ROOT / page).read_text(encoding="utf-8"))
    told += [[name, *rest.split()] for name, rest in inline if "--" in rest or name in commands]
    for name, *rest in told:
        assert name in commands, f"{page}: specsim {name}"
        command = commands[name]
        if name == "dev" and rest:
            assert rest[0] in command.commands, f"{page}: specsim dev {rest[0]}"
            command = command.commands[rest[0]]
        shown_of = (parameter for parameter in command.params if not getattr(parameter, "hidden", False))
        options = {option for parameter in shown_of for option in parameter.opts} | {"--help"}
        given = {word.split("=")[0].strip(",.;)") for word in rest if word.startswith("--")}
        assert given <= options, f"{page}: specsim {name} {' '.join(rest)}"


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.kind == "python" for block in blocks(page))])
def test_every_snippet_compiles(page: str) -> None:
    for block in blocks(page):
        if block.kind == "python":
            compile(block.text, page, "exec")


NUMBERS = r"[\\d. of]+"  # of a finding, and how often it was hit: a time budget goes further on a faster machine


def pattern_of(line: str) -> str:
    """What a line that is shown stands for."""
    pattern = re.escape(" ".join(line.split()).replace("...", "\0")).replace("\0", ".*")
    pattern = re.sub(r"^\d+\\\.\\ |(?<=hit\\ by\\ )\d+\\ of\\ \d+", NUMBERS, pattern)
    pattern = re.sub(r"\d+\\ \d+\\ complete$", r"\\d+\\ \\d+\\ complete", pattern)  # states a second, and MiB
    pattern = re.sub(r"\d+(\\\.\d+)?\\ a\\ second", r"[\\d.]+\\ a\\ second", pattern)
    return re.sub(r"\d+(\\\.\d+)?\\ s\b", r"[\\d.]+\\ s", pattern)


def test_lines_of_a_command_are_compared_but_for_seconds_and_what_is_left_out() -> None:
    assert re.search(pattern_of("bad     3.1 s  of ... (x)"), "bad 12.40 s of anything (x)")
    assert not re.search(pattern_of("bad 3.1 s"), "good 3.1 s")
    assert re.search(pattern_of("1. a: wrong"), "12. a: wrong")
    assert re.search(pattern_of("abort   364  456  604  253  complete"), "abort 364 456 318 99 complete")
    assert not re.search(pattern_of("abort   364  456  604  253  complete"), "abort 364 457 604 253 complete")
    assert re.search(pattern_of("   hit by   16 of 33 generated cases"), "hit by 3 of 7 generated cases")
    assert not re.search(pattern_of("   hit by   16 of 33 generated cases"), "hit by 3 of 7 schedules")


@pytest.mark.skipif(not NIGHTLY, reason="the commands of the documentation are run by `make nightly`")
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.runnable() for block in blocks(page))])
def test_every_command_and_snippet_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    for name in ("fixtures", "bench", "docs", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTEST_PLUGINS": "specsim.pytest_plugin",
        "PATH": os.pathsep.join([str(programs(tmp_path)), os.environ["PATH"]]),
        "TRITON_INTERPRET": "1",
        "COLUMNS": "200",  # as in a pipe: pytest-xdist has set it to 80
    }
    environment.pop("HYPOTHESIS_PROFILE")
    for block in blocks(page):
        if block.mark.startswith("file "):
            (tmp_path / block.mark.removeprefix("file ")).write_text(block.text)
        elif block.runnable() and block.kind == "python":
            assert run([sys.executable, "-c", block.text], tmp_path, environment).returncode == 0, block.text
        elif block.runnable():
            for command, shown in block.commands():
                ended = run(["bash", "-c", command], tmp_path, environment)
                assert ended.returncode in (0, 1), f"{command}\n{ended.stdout}\n{ended.stderr}"
                printed = [" ".join(line.split()) for line in (ended.stdout + ended.stderr).splitlines()]
                for line in shown:
                    found = any(re.search(pattern_of(line), out) for out in printed)
                    assert found, f"{page}: {command} does not print {line!r}\n{ended.stdout}\n{ended.stderr}"


@pytest.mark.skipif(not NIGHTLY, reason="the site of the documentation is built by `make nightly`, and by `make docs`")
def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="MkDocs is not installed: pip install 'specsim-llm[docs]' adds it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ended = run(command, ROOT, dict(os.environ))
    assert ended.returncode == 0, ended.stderr


def programs(folder: Path) -> Path:
    """A folder with `specsim` and `pytest` of this checkout and this Python."""
    made = folder / ".programs"
    made.mkdir()
    for name in ("specsim", "pytest", "python"):
        module = f"-m {name} " if name != "python" else ""
        (made / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        (made / name).chmod(0o755)
    return made


def run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
