"""Help on the command line: options in groups, and no text that is cut off. It needs no rich, so it answers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperGroup

OPTIONS = "Options"


class Group(TyperGroup):
    """The commands: what each does is its first sentence, whole."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in lines as wide as the terminal."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(command.help or "")) for name, command in commands if command])


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, in one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."


def write_parameters(command: Any, groups: Mapping[str, Sequence[str]], ctx: Any, formatter: Any) -> None:
    """The parameters of a command: its arguments, then its options by name of the parameter in `groups`, last those
    that are in none.
    """
    of_parameter = {name: group for group, names in groups.items() for name in names}
    records: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *groups, OPTIONS)}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            other = "Arguments" if parameter.param_type_name == "argument" else OPTIONS
            records[of_parameter.get(parameter.name, other)].append(record)
    for group, rows in records.items():
        if rows:
            with formatter.section(group):
                formatter.write_dl(rows)
