"""A command as it is invoked: its outputs are tried before the work, and no option of it is ignored.

An option that names an output is made by `output_file` or `output_folder`. What they name is tried before the command
begins; `-` is standard output, which then has nothing else. What a command could not save (`specsim.files.save_text`)
is told after everything else, and the command ends with exit code 2.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from specsim.commands.help_text import write_parameters
from specsim.commands.ignored_options import refuse_ignored
from specsim.commands.options import say
from specsim.errors import UsageError
from specsim.files import (
    STANDARD_OUTPUT,
    command_outputs,
    is_replaced,
    is_standard_output,
    standard_output_alone,
    try_file,
    try_folder,
)
from specsim.verdict import USAGE

GIT_STOPS = 128  # what ends `git bisect run`
_ALONE, _OUTPUTS = "specsim.standard_output_alone", "specsim.outputs"
_Outputs = list[tuple[str, Path | None, Callable[[Path], None]]]
SHOWN_MAX = 3  # of the outputs that could not be written, in full


def output_file(*names: str, help: str, metavar: str = "FILE") -> Any:
    """An option that names a file to write, or `-`."""

    def file_of(text: str | Path) -> Path:
        if not str(text) or str(text).endswith(os.sep):
            raise UsageError(f"{names[0]} {str(text)!r} names no file", "name a file, or - for standard output")
        file = Path(text)
        if str(text) != "-" and file == STANDARD_OUTPUT:  # ./-
            return file.absolute()
        return STANDARD_OUTPUT if is_standard_output(file) else file

    return typer.Option(*names, help=help, metavar=metavar, parser=file_of, callback=_note_file)


def output_folder(*names: str, help: str, metavar: str = "FOLDER") -> Any:
    """An option that names a folder to write files into."""

    def folder_of(text: str | Path) -> Path:
        if str(text) in ("", "-"):
            raise UsageError(f"{names[0]} {str(text)!r} names no folder", "name a folder")
        return Path(text)

    return typer.Option(*names, help=help, metavar=metavar, parser=folder_of, callback=_note_folder)


def _note_file(context: typer.Context, parameter: typer.CallbackParam, value: Path | None) -> Path | None:
    _noted(context).append((parameter.opts[0], value, try_file))
    return value


def _note_folder(context: typer.Context, parameter: typer.CallbackParam, value: Path | None) -> Path | None:
    _noted(context).append((parameter.opts[0], value, try_folder))
    return value


def _noted(context: Any) -> _Outputs:
    """The outputs of a command line: option, value, and what tries it."""
    noted: _Outputs = context.meta.setdefault(_OUTPUTS, [])
    return noted


class Command(TyperCommand):
    """A command of specsim. Its help has its options by the name of the parameter in `groups`, and the `examples`, each
    with what it does.
    """

    groups: ClassVar[Mapping[str, Sequence[str]]] = {}
    examples: ClassVar[Sequence[tuple[str, str]]] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters into the help."""
        write_parameters(self, self.groups, ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                margin = " " * formatter.current_indent
                for command, text in self.examples:
                    lines = textwrap.wrap(
                        f"{text}:",
                        formatter.width,
                        initial_indent=margin,
                        subsequent_indent=margin,
                        break_long_words=False,
                        break_on_hyphens=False,
                    )
                    formatter.write("\n".join(lines) + "\n")
                    formatter.write(f"    {command}\n")  # one line, however long: it is copied whole

    def defaults(self, args: list[str]) -> dict[str, Any]:
        """The values of parameters that the command line does not name."""
        return {}

    def settle(self, context: Any) -> None:
        """Change values, now that all are known."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The command line as values. Under `git bisect run` a wrong one stops git, which would take 2 for bad."""
        bisect_run = "--bisect-run" in args
        try:
            if not extra.get("resilient_parsing"):
                extra["default_map"] = self.defaults(args) or None
            context = super().make_context(info_name, args, parent, **extra)
            self.settle(context)
            if not context.resilient_parsing:
                refuse_ignored(context)
                context.meta[_ALONE] = _tried(_noted(context))
                self._refuse_one_file_twice(context)
        except UsageError as error:
            if not bisect_run:
                raise
            say(error)
            raise typer.Exit(GIT_STOPS) from None
        except Exception as error:  # of typer, which does not name its classes
            if bisect_run and getattr(error, "exit_code", None) == USAGE:
                error.exit_code = GIT_STOPS  # type: ignore[attr-defined]
            raise
        return context

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it could not write is told at its end."""
        with ExitStack() as stack:
            if ctx.meta.get(_ALONE):
                stack.enter_context(standard_output_alone())
            failures = stack.enter_context(command_outputs())
            try:
                result = super().invoke(ctx)
            except typer.Exit:
                self._tell(ctx, failures)
                raise
            except BaseException:
                _say(failures)
                raise
            self._tell(ctx, failures)
            return result

    def _refuse_one_file_twice(self, ctx: Any) -> None:
        """Refuse an output that would replace another output, or what the command reads."""
        written = {option for option, _value, tries in _noted(ctx) if tries is try_file}
        named: dict[str, str] = {}
        for parameter in sorted(self.params, key=lambda parameter: parameter.opts[0] in written):
            values, option = ctx.params.get(parameter.name or ""), parameter.opts[0]
            for value in values if isinstance(values, list) else [values]:
                if not isinstance(value, Path) or value == STANDARD_OUTPUT:
                    continue
                place = os.path.realpath(value)
                if option in written and place in named and is_replaced(value):
                    shown = named[place] if named[place].startswith("-") else named[place].upper()
                    raise UsageError(f"{option} {value} is the file of {shown} too", "name another file")
                named[place] = option

    def _tell(self, ctx: Any, failures: list[UsageError]) -> None:
        if failures:
            _say(failures)
            raise typer.Exit(GIT_STOPS if ctx.params.get("bisect_run") else USAGE) from None


def _tried(outputs: _Outputs) -> bool:
    """Try each output. Whether one of them is standard output, which no second one may be."""
    of_standard_output = ""
    for option, value, tries in outputs:
        if value is None:
            continue
        try:
            tries(value)
        except UsageError as error:
            raise UsageError(f"{option} {value}: {error.problem}", error.remedy) from error
        if value == STANDARD_OUTPUT and of_standard_output:
            raise UsageError(f"{of_standard_output} - and {option} - both ask for standard output", "name a file")
        if value == STANDARD_OUTPUT:
            of_standard_output = option
    return bool(of_standard_output)


def _say(failures: list[UsageError]) -> None:
    """Say in one sentence what could not be written."""
    if failures:
        problems = "; ".join(failure.problem for failure in failures[:SHOWN_MAX])
        more = f"; and {len(failures) - SHOWN_MAX} more" if len(failures) > SHOWN_MAX else ""
        say(UsageError(f"{problems}{more}", failures[0].remedy))
