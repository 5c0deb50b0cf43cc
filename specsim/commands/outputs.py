"""What a check writes for machines: JSON, JUnit XML, SARIF, and what GitHub Actions shows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specsim.commands.invocation import output_file
from specsim.errors import UsageError
from specsim.files import append_text, attempt, save_text, try_file

if TYPE_CHECKING:
    from specsim.report.github import Place

JUnitOption = Annotated[Path | None, output_file("--junit", help="Write JUnit XML to this file.")]
SarifOption = Annotated[Path | None, output_file("--sarif", help="Write SARIF 2.1.0 to this file.")]
GithubOption = Annotated[
    bool | None,
    typer.Option(
        "--github/--no-github",
        help="Print annotations and write the step summary of GitHub Actions. Default: when GITHUB_ACTIONS is true.",
    ),
]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that were asked for, None for the others; `github` is None when it depends on where this runs."""

    junit: Path | None = None
    sarif: Path | None = None
    github: bool | None = None

    def require(self) -> None:
        """Try what no option names before the work begins: the step summary of GitHub Actions."""
        if self._summary is not None:
            try:
                try_file(self._summary)
            except UsageError as error:
                raise UsageError(f"GITHUB_STEP_SUMMARY={self._summary}: {error.problem}", "unset it") from error

    @property
    def _tells_github(self) -> bool:
        return os.environ.get("GITHUB_ACTIONS") == "true" if self.github is None else self.github

    @property
    def _summary(self) -> Path | None:
        file = os.environ.get("GITHUB_STEP_SUMMARY")
        return Path(file).absolute() if file and self._tells_github else None

    def write(self, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Write what was asked for, of verdicts as `specsim check --json` writes each."""
        if self.junit is not None:
            from specsim.report.junit import junit_of

            save_text(self.junit, junit_of(verdicts))
        if self.sarif is not None:
            from specsim.report.sarif import sarif_of

            save_text(self.sarif, sarif_of(verdicts, place_of, events_of))
        if self._tells_github:
            from specsim.report.github import annotations_of, summary_of

            for line in annotations_of(verdicts, place_of):
                typer.echo(line)
            summary = self._summary
            if summary is not None:
                attempt(lambda: append_text(summary, f"{summary_of(verdicts)}\n"))


def place_of(target: str, where: str) -> Place | None:
    """The file and line of a finding's `where` in the checkout that is checked, relative to the repository; None when
    that file is not in it. At a git revision the file is named as it lies in the work tree.
    """
    from specsim.engines.registry import ENGINES
    from specsim.engines.target import Checkout, PythonTarget, parse_target

    path, _, line = where.rpartition(":")
    if not path or not line.isdigit():
        return None
    try:
        parsed = parse_target(target)
    except UsageError:  # "model with mutant A01"
        return None
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).absolute()
    package = ENGINES[parsed.engine].source if isinstance(parsed, Checkout) else None
    folders = (
        [Path(parsed.path).expanduser().absolute() / layout for layout in (package.layouts if package else ())]
        if isinstance(parsed, Checkout)
        else [Path.cwd()]
        if isinstance(parsed, PythonTarget)
        else [Path(__file__).parents[2]]
    )
    for folder in folders:
        file = folder / path
        if file.is_file() and file.is_relative_to(root):
            return file.relative_to(root).as_posix(), int(line)
    return None


def events_of(file: str) -> list[str]:
    """The lines of the event log in a replay file; none when it has none or is not there."""
    from specsim import replay_file

    try:
        stored = replay_file.load(Path(file))
    except UsageError:
        return []
    return list(stored.events)
