"""What `specsim explain` prints of a rule or a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import markup

from specsim.report.page.plain import visible
from specsim.report.terminal import INDENT, console_of, print_row, wrapped
from specsim.verdict import REACHES, Severity

EXAMPLES_MAX = 3


def print_explained(data: Mapping[str, Any]) -> None:
    """Print what `specsim.findings.explain.explain` returned."""
    console = console_of()
    rule = f"{data['slug']} ({data['rule']}): {data['sentence']}" if data["rule"] else ""
    for line in wrapped(visible(data["signature"] or rule), console.width, INDENT):
        console.print(f"[bold]{markup.escape(line)}[/]", soft_wrap=True)
    if data["signature"] and rule:
        print_row(console, "rule", rule)
    if data["severity"]:
        print_row(console, "matters", f"{data['severity']}: {Severity(data['severity']).meaning}")
    for reach in REACHES:
        if any(reach in entry["reaches"] for entry in data["known"]) and data["signature"]:
            print_row(console, "reach", f"{reach}: {REACHES[reach]}")
    if data["tiers"]:
        print_row(console, "checked", f"in {', '.join(data['tiers'])}")
    for entry in data["known"]:
        of = "" if data["signature"] else f" ({entry['signature']})"
        print_row(console, "known", f"{entry['engine']}: {entry['text']}{of}")
    if not data["known"]:
        print_row(console, "known", "no release is known to have it")
    for example in data["examples"][:EXAMPLES_MAX]:
        print_row(console, "example", example["title"])
        print_row(console, "", f"seen on {_shortened(example['shown_on'])}")
        console.print(f"{INDENT}[bold]{markup.escape(visible(example['command']))}[/]", soft_wrap=True)
    if (more := len(data["examples"]) - EXAMPLES_MAX) > 0:
        print_row(console, "", f"and {more} more, which --json lists")
    if not data["examples"]:
        print_row(console, "example", "none: no known finding breaks it")
    print_row(console, "ignore", f"specsim check TARGET --ignore '{data['ignore']}'")


def _shortened(targets: Sequence[str]) -> str:
    """Targets in a row; the engine of several releases is named once."""
    shown, before = [], ""
    for target in targets:
        engine, mark, version = target.partition("==")
        shown.append(version if mark and engine == before else target)
        before = engine if mark else ""
    return ", ".join(shown)
