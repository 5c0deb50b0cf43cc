"""Say which code a file chooses before it is run, and ask for `--trust` where that is a module."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from specsim.report.page.plain import visible

if TYPE_CHECKING:
    from pathlib import Path

    from specsim.replay_file import Replay

TrustOption = Annotated[
    bool, typer.Option("--trust", help="Run module:object that the file names: you know where it is from.")
]
GIVE_TRUST = "give --trust if you know where the file is from"
NAME_TARGETS = f"name it as a TARGET, or {GIVE_TRUST}"
NAME_TARGET = f"name it yourself with --target {{}}, or {GIVE_TRUST}"


def announce_replay(
    file: Path, stored: Replay, target: str, *, named: bool, trust: bool, remedy: str = GIVE_TRUST
) -> None:
    """Say which code a replay of the file on `target` runs, unless the target was `named` on the command line."""
    from specsim.engines.packages import require_there

    announce(file, [target], (target,) if named else (), trust, remedy)
    if not named:
        require_there(target, file, stored.source)


def announce(file: Path, texts: Iterable[str], named: Collection[str], trust: bool, remedy: str) -> None:
    """Say which of the targets that a file chooses are run and were not named. UsageError for a module among them,
    without `trust`.
    """
    from specsim.findings.trust import require_named

    for text in require_named(visible(str(file)), texts, named, remedy, trust=trust):
        print(f"specsim: {visible(str(file))} names {visible(text)}: its code is run.", file=sys.stderr)
