"""Options that several commands have, and what is asked of their values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specsim.errors import UsageError, did_you_mean
from specsim.isolation import environment, limits
from specsim.report.page.plain import visible

SECONDS_MAX = 1e8  # three years; the system takes no time that is much longer, and infinity least of all
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Folder for fetched wheels. Default: $SPECSIM_CACHE_DIR, else ~/.cache/specsim."),
]
DeviceOption = Annotated[str, typer.Option(help="cpu (interpreted), cuda, or auto.")]
SeedOption = Annotated[str, typer.Option("--seed", help="A number or a commit hash.")]
HangOption = Annotated[
    float, typer.Option(min=1.0, max=SECONDS_MAX, help="Seconds after which a call or schedule counts as hung.")
]


def _keep(names: list[str] | None) -> list[str] | None:
    if names:
        environment.keep(names)
    return names


def _limit(gib: float | None) -> float | None:
    if gib is not None:
        limits.set_memory(gib)
    return gib


MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory-gib",
        min=0.0,
        callback=_limit,
        show_default=f"{limits.MEMORY_GIB:g}",
        help="What a process that runs a target's code may allocate on a CPU; 0 for no limit.",
    ),
]
KeepEnvironmentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-environment",
        metavar="NAME",
        callback=_keep,
        help="Let a target see this variable of the environment too; may be repeated.",
    ),
]
LINE_MAX = 20_000  # characters of a line


def one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not among the allowed ones."""
    if value is not None and value not in allowed:
        near = did_you_mean(value, allowed)
        listed = f"allowed: {', '.join(allowed)}"
        raise UsageError(f"{option} {value!r} is unknown", f"{near} A{listed[1:]}" if near else listed)


def tell(text: str, *, err: bool = False) -> None:
    """Print a line. Text of a target in it does nothing to the terminal or the runner of a workflow."""
    typer.echo(visible(text, LINE_MAX), err=err)


def say(error: UsageError) -> None:
    """Print an error for the reader. Text of a target in it does nothing to the terminal."""
    problem, remedy = visible(error.problem), visible(f"{error.remedy[:1].upper()}{error.remedy[1:]}")
    print(f"specsim: {problem}.\n         {remedy}{'' if remedy.endswith('?') else '.'}", file=sys.stderr)
