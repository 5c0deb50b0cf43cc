"""The matrix of many targets: on the terminal, and as a page that links each finding to a fixture."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from specsim.errors import UsageError
from specsim.files import read_json
from specsim.report.terminal import console_of, show
from specsim.tiers.registry import rule_label

MARKS = {"finding": "x", "known": "(x)", "clean": "ok", "not run": "-"}
_STYLES = {"finding": "[bold red]x[/]", "known": "[red](x)[/]", "clean": "[green]ok[/]", "not run": "[yellow]-[/]"}

# (signature, target) -> the fixture that shows it there
Links = Mapping[tuple[str, str], Path]


def fixtures_in(folder: Path) -> dict[tuple[str, str], Path]:
    """The fixtures of a folder that are expected to show their finding, by signature and target."""
    found: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.glob("*.json")):
        data = read_json(path, "give a folder of replay files", nan=True)
        try:
            for target, expect in data.get("expect", {}).items():
                if expect.get("shows") or expect.get("rules"):
                    found.setdefault((data["signature"], target), path)
        except (KeyError, AttributeError) as error:
            raise UsageError(f"{path} is not a fixture ({error})", "give a folder of replay files") from error
    return found


def print_matrix(matrix: Mapping[str, Any]) -> None:
    """A row for each finding, a column for each target, then why something was not run."""
    console = console_of(250)
    targets = [entry["target"] for entry in matrix["targets"]]
    marks = "x finding, (x) known and not met, ok clean, - not run"
    table = Table(title=marks, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("finding", overflow="fold")
    for target in targets:
        table.add_column(escape(_short(target)), justify="center", overflow="fold")
    for row in matrix["rows"]:
        table.add_row(escape(row["signature"]), *(_STYLES[row["cells"][target]["state"]] for target in targets))
    show(console, table)
    for row in matrix["rows"]:
        if row["triage"]:
            console.print(f"   {escape(row['signature'])}: {escape(row['triage'])}", soft_wrap=True)
    for text in _reasons(matrix):
        console.print(f"   not run    {escape(text)}", style="yellow", soft_wrap=True)
    found = sum(cell["state"] == "finding" for row in matrix["rows"] for cell in row["cells"].values())
    checked = sum(bool(entry.get("suites")) for entry in matrix["targets"])
    console.print(
        f"{found} cells with a finding, {len(matrix['rows'])} kinds, {checked} of {len(targets)} targets checked"
    )


def _short(target: str) -> str:
    return target.rpartition("==")[2]


def _reasons(matrix: Mapping[str, Any]) -> list[str]:
    """Why cells are not run, targets of one reason together."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in matrix["rows"]:
        for target, cell in row["cells"].items():
            if cell["state"] == "not run":
                whole = next((e["why"] for e in matrix["targets"] if e["target"] == target), "")
                what = "" if whole else row["signature"]
                targets = by_reason.setdefault((what, cell["why"]), [])
                if _short(target) not in targets:
                    targets.append(_short(target))
    texts = [f"{what + ' on ' if what else ''}{', '.join(on)}: {why}" for (what, why), on in by_reason.items()]
    seen = {cell["why"] for row in matrix["rows"] for cell in row["cells"].values()}
    return texts + [
        f"{_short(e['target'])}: {e['why']}" for e in matrix["targets"] if e["why"] and e["why"] not in seen
    ]


def page(matrix: Mapping[str, Any], command: str, links: Links, written: Path) -> str:
    """The page "which release has which bug" as Markdown. `written` is where it will lie: links are relative to it."""
    return "\n".join(["# Which release has which bug", "", *_body(matrix, command, links, written, "##")]) + "\n"


def with_tier(text: str, tier: str, matrix: Mapping[str, Any], command: str, links: Links, written: Path) -> str:
    """A page whose part of one tier is what a matrix of that tier alone says. The other parts stay."""
    heading = f"{_OF_A_TIER}{tier}`"
    others = [part for part in text.split(f"\n{_OF_A_TIER}") if not part.startswith(f"{tier}`\n")]
    lines = [heading, "", *_body(matrix, command, links, written, "###")]
    return f"\n{_OF_A_TIER}".join(part.rstrip("\n") + "\n" for part in others) + "\n" + "\n".join(lines) + "\n"


def command_of(text: str) -> str:
    """The command that made a page, "" where it says none."""
    return next((line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ specsim ")), "")


_OF_A_TIER = "## The tier `"


def _body(matrix: Mapping[str, Any], command: str, links: Links, written: Path, level: str) -> list[str]:
    targets = [entry["target"] for entry in matrix["targets"]]
    lines = [
        "Made by",
        "",
        "```console",
        f"$ {command}",
        "```",
        "",
        "`x`: the finding was seen there, by the check or by a replay of the fixture to which the link leads",
        "(`specsim replay FILE --target RELEASE`). `(x)`: the triage list has it there by the release's",
        "source, and nothing that was run met it. `ok`: what could show it was run and did not. `-`: it was",
        "not run, for a reason below. None of it is read off a changelog.",
        "",
        *_table(["finding", *map(_short, targets)], (_cells(row, targets, links, written) for row in matrix["rows"])),
        "",
        f"{level} The findings",
        "",
        *_table(
            ["finding", "rule", "severity", "reach, newest release", "what is known"],
            (
                (
                    f"`{row['signature']}`",
                    f"{rule_label(row['signature'].partition(':')[0], row['rule'])}: {row['sentence']}",
                    row["severity"],
                    _newest_reach(row, targets),
                    linked_upstream(row["triage"]),
                )
                for row in matrix["rows"]
            ),
        ),
        "",
        f"{level} What was run",
        "",
        *_table(
            ["release", "verdict", "cases", "schedules", "not run"],
            map(_coverage, matrix["targets"]),
        ),
    ]
    reasons = _reasons(matrix)
    if reasons:
        lines += ["", f"{level} Why not", "", *(line for reason in reasons for line in _item(reason))]
    return lines


def _item(text: str) -> list[str]:
    """An item of a list, in lines of at most 100 columns."""
    return textwrap.wrap(f"- {text}", 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [_line(columns), "|" + "---|" * len(columns)]
    return lines + [_line(row) for row in rows]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cells(row: Mapping[str, Any], targets: Sequence[str], links: Links, written: Path) -> list[str]:
    cells = [f"`{row['signature']}`"]
    for target in targets:
        state = row["cells"][target]["state"]
        fixture = links.get((row["signature"], target))
        mark = MARKS[state]
        if state == "finding" and fixture is not None:
            mark = f"[{mark}]({os.path.relpath(fixture, written.parent)})"
        cells.append(mark)
    return cells


def _newest_reach(row: Mapping[str, Any], targets: Sequence[str]) -> str:
    reaches = [row["cells"][target]["reach"] for target in targets if row["cells"][target]["state"] == "finding"]
    return str(reaches[-1]) if reaches else ""


def linked_upstream(text: str) -> str:
    """The triage with its report as a link."""
    before, found, rest = text.partition("docs/upstream/")
    if not found:
        return text
    name, dot, after = rest.partition(".md")
    return f"{before}[{name}](upstream/{name}.md){after if dot else rest}"


def _coverage(entry: Mapping[str, Any]) -> list[str]:
    if not entry.get("suites"):
        return [_short(entry["target"]), "not checked", "", "", entry["why"]]
    suites = entry["suites"]
    return [
        _short(entry["target"]),
        entry["verdict"],
        *(f"{sum(suite[name] for suite in suites):,}" for name in ("cases", "schedules")),
        str(sum(len(suite["not_run"]) for suite in suites)),
    ]
