"""The option --bisect-run of commands: exit codes that `git bisect run` understands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from specsim.commands.options import say, tell
from specsim.errors import NondeterministicError, UsageError
from specsim.verdict import NOT_CHECKED

GIT_SKIPS = NOT_CHECKED  # what `git bisect run` makes of that exit code

BisectRunOption = Annotated[
    bool,
    typer.Option("--bisect-run", help="For `git bisect run`: exit 125 (skip) when the target cannot be checked."),
]


@contextmanager
def exit_codes(bisect_run: bool, of_errors: int) -> Iterator[None]:
    """With `bisect_run`, errors end with `of_errors`, and what could not be checked is skipped: `git bisect run` would
    take 2 and 3 for bad.
    """
    try:
        yield
    except typer.Exit as ended:
        if bisect_run and ended.exit_code in (2, 3):
            raise typer.Exit(GIT_SKIPS) from None
        raise
    except (UsageError, NondeterministicError) as error:
        if not bisect_run:
            raise
        say(error) if isinstance(error, UsageError) else tell(f"specsim: nondeterministic: {error}", err=True)
        raise typer.Exit(of_errors) from None


def skipping(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the option --bisect-run: its errors, and what it could not check, are skipped."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        with exit_codes(arguments["bisect_run"], of_errors=GIT_SKIPS):
            command(**arguments)

    return run
