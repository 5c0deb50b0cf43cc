"""Run as a program: write the rules of the scheduler tier into docs/verdict.md and docs/scheduler.md, from their code.

python -m property_tests.support.rules_page
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

from specsim.rules.table import CHECKS

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- rules of the scheduler tier, by `make pages` -->", "<!-- end of the rules -->"


def table() -> list[str]:
    """Of docs/verdict.md: what each rule says."""
    rows = [f"| {check.rule.label} | {check.rule.severity} | {check.rule.sentence} |" for check in CHECKS]
    return ["| id | severity | sentence |", "| -- | -- | -- |", *rows, *free_numbers()]


def items() -> list[str]:
    """Of docs/scheduler.md: what each rule means here."""
    lines = []
    for check in CHECKS:
        meaning = " ".join(inspect.cleandoc(check.__doc__ or "").split())
        text = f"- **{check.rule.label}**: {check.rule.sentence}. {meaning}"
        lines += textwrap.wrap(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines


def free_numbers() -> list[str]:
    """Of docs/verdict.md: by letter the number after the last one that the page names, be it of a rule or not."""
    named = re.findall(r"\b([A-Z])(\d{1,2})\b", (DOCS / "verdict.md").read_text(encoding="utf-8").split(BEGIN)[0])
    named += [(check.rule.id[0], check.rule.id[1:]) for check in CHECKS]
    last = {letter: max(int(number) for of, number in named if of == letter) for letter in "DIKMOSTX"}
    return ["", "# Free numbers", "", f"{', '.join(f'{letter}{number + 1}' for letter, number in last.items())}."]


PAGES = {"verdict.md": table, "scheduler.md": items}


def page(name: str) -> str:
    """The page as it should be."""
    text = (DOCS / name).read_text(encoding="utf-8")
    before, rest = text.split(f"{BEGIN}\n")
    _, after = rest.split(f"{END}\n")
    return "\n".join([f"{before}{BEGIN}", "", *PAGES[name](), "", f"{END}\n{after}"])


def main() -> None:
    for name in PAGES:
        (DOCS / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
