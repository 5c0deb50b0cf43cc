"""The rules of the accounting tier: every `Check` of the modules below, found there.

Rules of one event are evaluated in the order in which they stand here: by module, then by place in the module. It
decides which rule a run stops at where several are broken at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from specsim.engine.rules import (
    failures,
    launches,
    liveness,
    radix,
    requests,
    results,
    rows,
    sampling,
    sessions,
    slots,
    steps,
    streams,
    window,
)
from specsim.engine.rules.rule import Check
from specsim.verdict import Rule

_MODULES = (rows, slots, window, radix, sessions, launches, requests, results, steps, sampling, streams, liveness)
# By letter: invariants, the drafter, kernels, masks, rows of logprobs, schedules, and what raises, hangs or dies. A
# number is permanent: a new rule takes the one after the last of its letter. Some are missing: their statements are no
# rules of their own, and docs/verdict.md says which rule breaks instead.
_LETTERS = "IDKMTSX"


def _number(rule: Rule) -> tuple[int, int]:
    return _LETTERS.index(rule.id[0]), int(rule.id[1:])


def _checks() -> Iterable[Check]:
    for module in _MODULES:
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, Check) and each is not Check:
                yield each()


CHECKS: tuple[Check, ...] = tuple(_checks())
_WITHOUT_A_CHECK = [each for each in vars(failures).values() if isinstance(each, Rule)]
RULES: tuple[Rule, ...] = tuple(sorted([*(check.rule for check in CHECKS), *_WITHOUT_A_CHECK], key=_number))
BY_ID = {rule.id: rule for rule in RULES}

# The checks that say to which schedules they apply; the others apply to nearly every one.
CONDITIONAL: tuple[Check, ...] = tuple(check for check in CHECKS if "applies" in vars(type(check)))


@cache
def checks_after(rules: tuple[Rule, ...]) -> dict[type, tuple[Check, ...]]:
    """By event, the checks of these rules that are evaluated after it; for every event that any rule is evaluated
    after.
    """
    events = dict.fromkeys(event for check in CHECKS for event in check.after)
    return {event: tuple(c for c in CHECKS if event in c.after and c.rule in rules) for event in events}
