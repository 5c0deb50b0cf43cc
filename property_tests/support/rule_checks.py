"""Evaluates the rules of the accounting tier on views, as a checker does."""

from __future__ import annotations

from collections.abc import Iterable

from specsim.engine.rules.table import RULES, checks_after


def broken_by(views: Iterable[object]) -> list[str]:
    """The numbers of the rules that do not hold, in the order in which they are evaluated."""
    checks = checks_after(RULES)
    return [check.rule.id for view in views for check in checks[type(view)] if check.check(view) is not None]
