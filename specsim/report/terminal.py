"""What the commands print. Plain when the output is not a terminal; NO_COLOR is honoured (rich does both)."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from rich import box, markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specsim.replay_file import Replay
from specsim.report.interpreters import print_interpreters
from specsim.report.inventory import left_out, summary
from specsim.report.kernels import CEILING, print_kernels
from specsim.report.page.plain import visible
from specsim.tiers.registry import TIERS
from specsim.tiers.tier import Line, State
from specsim.verdict import FINDING, NONDETERMINISM, NOT_CHECKED, PASS

TEXT_MAX = 20_000  # characters of one text, such as the elements of a tensor
WIDTH_WITHOUT_TERMINAL = 200
LABEL = 10  # columns of the names of rows
INDENT = " " * (LABEL + 4)  # of the further lines of a row


def console_of(width_without_terminal: int = WIDTH_WITHOUT_TERMINAL) -> Console:
    """Standard output, as wide as COLUMNS says, else as the terminal is; without a terminal as wide as given."""
    console = Console(highlight=False, emoji=False, soft_wrap=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console = Console(highlight=False, emoji=False, width=width_without_terminal)
    return console


def escape(text: str) -> str:
    """Text of a target for the console: neither markup nor a control character of it means anything."""
    return markup.escape(visible(text, TEXT_MAX))


def print_mutants(columns: Sequence[str], rows: Sequence[Sequence[str]], missed: Sequence[str]) -> None:
    """A row for each mutant, and a line with those that no seed found."""
    console = console_of()
    table = table_of(f"{len(rows)} mutants", *columns)
    for cells in rows:
        table.add_row(*cells)
    show(console, table)
    console.print(f"not found: {' '.join(missed) or 'none'}")


def table_of(title: str, *columns: str) -> Table:
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """Lines of at most `width` columns, broken at blanks alone: a word that is longer, such as a path, stays whole."""
    beginning = text[: len(text) - len(text.lstrip())]
    lines = textwrap.wrap(
        text.lstrip(),
        max(width, len(indent) + 1),
        initial_indent=beginning,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [text]


def print_row(console: Console, name: str, text: str, style: str = "") -> None:
    """Print a row: its name, and its text in as many lines as it takes."""
    for line in wrapped(f"   {name:<{LABEL}} {visible(text, TEXT_MAX)}", console.width, INDENT):
        console.print(markup.escape(line), style=style or None, soft_wrap=True)


def show(console: Console, made: Table) -> None:
    """Print a table; where its words do not fit into columns, a line for each row, without styles."""
    columns = [[str(column.header), *map(str, column.cells)] for column in made.columns]
    longest = (max(len(word) for cell in column for word in Text.from_markup(cell).plain.split()) for column in columns)
    if sum(2 + length for length in longest) <= console.width:
        console.print(made)
        return
    console.print(made.title)
    for row in zip(*columns, strict=True):
        text = "  ".join(Text.from_markup(cell).plain for cell in row if cell)
        for line in wrapped(text, console.width, "    "):
            console.print(markup.escape(line), soft_wrap=True)
    console.print()


def print_replay(stored: Replay, target: str, answer: dict[str, Any], verified: bool = False) -> int:
    """What a replay showed; returns the exit code."""
    console = console_of()
    tier = TIERS[stored.tier]
    explanation, outcome = tier.explain(stored, target, answer), tier.outcome(stored, target, answer)
    console.print(f"[bold]{escape(explanation.name)}[/]{escape(explanation.about)}")
    _print_line(console, Line("found on", f"{stored.target}: {stored.title}"))
    if outcome.state is not State.NOT_RUN:
        for line in explanation.lines:
            _print_line(console, line)
        if verified:
            _print_line(
                console, Line("verified", f"{explanation.same} the same in two processes, under two hash seeds")
            )
    if outcome.state is State.SHOWN:
        return _print_reproduced(console, stored, target, answer["digest"], outcome.same_code)
    style, what, code = _ENDS[outcome.state]
    console.print(f"[{style}]{what}[/] {escape(target)}: {escape(outcome.reason)}", soft_wrap=True)
    return code


_ENDS = {
    State.GONE: ("bold green", "not reproduced on", PASS),
    State.NOT_RUN: ("bold yellow", "not checked on", NOT_CHECKED),
    State.UNHEARD: ("bold yellow", "not checked on", NOT_CHECKED),
}


def _print_line(console: Console, line: Line) -> None:
    opened, closed = {"": ("", ""), "rule": ("[bold red]", "[/]")}[line.style]
    text = escape(line.text)
    if line.label is None:
        console.print(f"{opened}{text}{closed}", soft_wrap=True)
    else:
        console.print(f"   {opened}{escape(line.label):<10}{closed} {text}", soft_wrap=True)


def _print_reproduced(console: Console, stored: Replay, target: str, digest: str, same_code: bool) -> int:
    """Say how a finding that shows again does so; returns the exit code."""
    if target != stored.target:
        console.print(f"[bold red]reproduced[/] on {escape(target)}")
    elif digest == stored.digest:
        console.print("[bold red]reproduced[/], bit for bit")
    elif not same_code:
        console.print("[bold red]reproduced[/]; the code has changed since it was found, so the digest is another")
    else:
        console.print(f"[bold yellow]nondeterministic[/]: digest {digest}, was {stored.digest}")
        return NONDETERMINISM
    return FINDING


def print_targets(listing: dict[str, Any]) -> None:
    console = console_of()
    table = table_of(f"devices: {', '.join(listing['devices'])}", "target", "tiers", "note")
    for target in listing["targets"]:
        table.add_row(escape(target["target"]), ", ".join(target["tiers"]) or "none", escape(target["note"]))
    show(console, table)
    for entry in listing["not_run"]:
        console.print(f"   not run    {escape(entry['what'])}: {escape(entry['why'])}", style="yellow", soft_wrap=True)
    console.print(f"   cache      {escape(listing['cache'])}", soft_wrap=True)


def print_doctor(data: dict[str, Any]) -> None:
    """What is installed, which tiers work, and a line with the command for each missing piece."""
    console = console_of()
    table = table_of("pieces", "piece", "found", "for")
    for piece in data["pieces"]:
        missing = "[red]missing[/]" if piece["needed"] else "[yellow]missing[/]"
        table.add_row(escape(piece["name"]), escape(piece["found"]) or missing, escape(piece["why"]))
    show(console, table)
    table = table_of("tiers", "tier", "device", "works", "note")
    for tier in data["tiers"]:
        works = "[green]yes[/]" if tier["works"] else "[yellow]no[/]"
        table.add_row(tier["tier"], tier["device"], works, escape(tier["note"]))
    show(console, table)
    for piece in data["pieces"]:
        if piece["add"]:
            console.print(f"   add {escape(piece['name'])}: [bold]{escape(piece['add'])}[/]", soft_wrap=True)


def print_survey(survey: dict[str, Any], brief: bool) -> None:
    """What lifts of a target: a line a function, or with `brief` one line, then what has to be added."""
    console = console_of()
    states = [function["state"] for function in survey["functions"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    beside = f"beside {survey['nearest']}" if survey["nearest"] else "no release is known"
    if brief:
        console.print(f"{escape(survey['target'])}, {beside}: {counts}", soft_wrap=True)
    else:
        table = table_of(f"{survey['target']}, {beside}: {counts}", "function", "state", "how", "where", "body")
        styles = {"same": "green", "changed": "yellow", "new": "yellow", "gone": "red", "not run": "red"}
        for function in survey["functions"]:
            state = f"[{styles[function['state']]}]{function['state']}[/]"
            table.add_row(
                escape(function["name"]), state, escape(function["text"]), function["where"], function["body_hash"]
            )
        show(console, table)
    for text in survey["to_add"]:
        console.print(f"   to add     {escape(text)}", style="yellow", soft_wrap=True)
    if not survey["to_add"] and not brief:
        console.print("nothing has to be added")


def print_inventory(entry: dict[str, Any]) -> None:
    """A row for each kernel for speculation of a target, and for each compiled function that it uses."""
    console = console_of()
    table = table_of(summary(entry), "kernel", "where", "operation", "called")
    for kernel in [*entry["kernels"], *entry["compiled"]]:
        operations = ", ".join(kernel["operations"]) or f"[yellow]{escape(left_out(kernel))}[/]"
        table.add_row(escape(kernel["name"]), kernel["where"], operations, ", ".join(map(escape, kernel["callers"])))
    show(console, table)


def print_lossless(rows: Sequence[dict[str, Any]]) -> None:
    """A row for each target and kind of drafts; what is not known below, with its reason."""
    console = console_of()
    table = table_of("total variation from decoding token by token", "target", "drafts", "outcomes", "off")
    for row in rows:
        off = row["off"] or ("fails" if row["failed"] else "not run")
        table.add_row(escape(row["target"]), row["drafts"], f"{row['outcomes']:,}" if row["off"] else "-", off)
    show(console, table)
    for row in rows:
        if not row["off"]:
            word, why = ("fails", row["failed"]) if row["failed"] else ("not run", row["not_run"])
            console.print(f"   {word}    {escape(row['target'])}, {row['drafts']}: {escape(why)}", soft_wrap=True)


def print_bench_environment(environment: dict[str, Any]) -> None:
    console = console_of()
    for name, value in environment.items():
        console.print(f"   {name:<12} {escape(str(value))}", soft_wrap=True)


def print_bench_entry(entry: dict[str, Any]) -> None:
    """The entry's table, peers with medians and ratios; of a benchmark that has one table for all of its kernels a line
    on standard error.
    """
    if entry.get("left_out"):
        return
    if _has_a_table_with_others(entry):
        measured = (f"{peer['name']} {peer['median']:,.1f}" for peer in entry["peers"] if peer["median"] is not None)
        print(f"{_title(entry)}: {', '.join(measured) or 'not run'} {entry['unit']}", file=sys.stderr, flush=True)
        return
    unit, ratio = f"median {entry['unit']}", entry.get("ratio", "times the reference")
    table = table_of(_title(entry), "peer", unit, ratio)
    for peer in entry["peers"]:
        if peer.get("not_run"):
            table.add_row(peer["name"], "not run", escape(peer["not_run"]))
        else:
            table.add_row(
                f"{peer['name']} ({peer['timing']})",
                f"{peer['median']:,.1f}",
                "-" if peer["ratio"] is None else f"{peer['ratio']:.2f}",
            )
    show(console_of(), table)


def print_bench_rest(entries: list[dict[str, Any]]) -> None:
    """The tables of many entries, and a line for each benchmark of which rows were left out, with these."""
    console = console_of()
    print_interpreters(console, print_kernels(console, [entry for entry in entries if not entry.get("left_out")]))
    left_out: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        if why := entry.get("left_out"):
            left_out.setdefault((entry["name"], why), []).append(_shape(entry) or "all of it")
    for (name, why), shapes in left_out.items():
        console.print(f"   not run    {name}: {why}: {escape('; '.join(shapes))}", soft_wrap=True)


def _has_a_table_with_others(entry: dict[str, Any]) -> bool:
    return "kernel" in entry or "programs" in entry or entry["name"].startswith(CEILING)


def _title(entry: dict[str, Any]) -> str:
    return f"{entry.get('kernel', entry['name'])}: {_shape(entry)}"


def _shape(entry: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in entry["shape"].items())
