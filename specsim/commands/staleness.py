"""Say that a replay file was made before a change of the simulator, and what to do about it."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from specsim.report.page.plain import visible

if TYPE_CHECKING:
    from pathlib import Path

    from specsim.replay_file import Replay


def note_stale(file: Path, stored: Replay) -> None:
    """Say on standard error that a schedule is of another simulator, and how its file is made anew."""
    from specsim.tiers.accounting.model_code import model_hash

    if stored.model_hash in ("", model_hash()):
        return
    lines = [
        f"{file} was made before a change of the simulator: its tape may stand for another schedule.",
        f"While it is reproduced, specsim shrink {shlex.quote(str(file))} makes it anew;",
        f"else find it again with specsim check {shlex.quote(stored.target)}.",
    ]
    for lead, line in zip(("specsim: ", *[" " * 9] * 2), lines, strict=True):
        print(f"{lead}{visible(line)}", file=sys.stderr)
