"""Run as a program: write the rules of the scheduler tier into docs/verdict.md and docs/scheduler.md, from their code.

python -m property_tests.support.rules_page
"""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

from specsim.rules.table import CHECKS

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- rules of the scheduler tier, by `make pages` -->", "<!-- end of the rules -->"


def table() -> list[str]:
    """Of docs/verdict.md: what each rule says."""
    rows = [f"| {check.rule.label} | {check.rule.severity} | {check.rule.sentence} |" for check in CHECKS]
    return ["| id | severity | sentence |", "| -- | -- | -- |", *rows]


def items() -> list[str]:
    """Of docs/scheduler.md: what each rule means here."""
    lines = []
    for check in CHECKS:
        meaning = " ".join(inspect.cleandoc(check.__doc__ or "").split())
        text = f"- **{check.rule.label}**: {check.rule.sentence}. {meaning}"
        lines += textwrap.wrap(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines


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
