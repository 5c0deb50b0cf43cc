"""The files of a release that this process has imported: its lines, functions and statements."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specsim.lifting import ran
from specsim.lifting.changes import Function
from specsim.lifting.probes import Span, probed
from specsim.world.packages import Probes

if TYPE_CHECKING:
    from types import CodeType


class ReleaseFiles:
    """A release that lies unpacked in `root`. Files are named by their path below its package."""

    def __init__(self, root: Path, package: str, probes: Probes | None = None) -> None:
        self.root, self.probes = root, probes or Probes()
        self.folder = f"{root / package}/"

    def below(self, file: str) -> str:
        """The name of a file; "" for one that is not the release's."""
        return file.removeprefix(self.folder) if file.startswith(self.folder) else ""

    @property
    def imported(self) -> tuple[str, ...]:
        """The files with probes that were imported."""
        return tuple(self.probes.spans)

    def statements(self, file: str) -> tuple[Span, ...]:
        """The first and last line of each statement of a function of a file, sorted."""
        if file not in self.probes.spans:
            path = Path(self.folder, file)
            self.probes.spans[file] = probed(path.read_text(encoding="utf-8"), str(path), self.probes.kept).spans
        return self.probes.spans[file]

    def traceback_of(self, error: BaseException) -> list[tuple[str, str]]:
        """The functions of the release that an error came through, each with FILE:LINE, the innermost one last."""
        return [(name, place) for name, place in self._frames(error) if name]

    def functions_of(self, codes: Iterable[CodeType]) -> tuple[Function, ...]:
        """Those of the release among code that ran, by file and line."""
        return ran.functions_of(codes, self.below)

    def raised_at(self, error: BaseException) -> str:
        """The innermost line that an error came through, as text to append."""
        places = [place for _name, place in self._frames(error)]
        return f", {places[-1]}" if places else ""

    def _frames(self, error: BaseException) -> Iterator[tuple[str, str]]:
        frames = [(one.name, one.filename, one.lineno or 0) for one in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            frames.append(("", error.filename or "", error.lineno or 0))
        return ((name, f"{below}:{line}") for name, file, line in frames if (below := self.below(file)))
