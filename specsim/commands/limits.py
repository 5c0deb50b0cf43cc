"""How much a check does: until a time is over, or fixed counts.

Without any option a check ends after a minute or when every count is reached, whatever comes first. Counts that are
given without a time are counts alone: no clock decides anything, so two runs give the same bytes. `--ci` is that with
counts that are chosen for a gate of pull requests (docs/ci.md says how, and what they miss).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from specsim.errors import UsageError

DEFAULT_SECONDS = 60.0
DEFAULT_CASES = 100
DEFAULT_SCHEDULES = 500
CI_CASES, CI_SCHEDULES, CI_ATTEMPTS = 40, 200, 100


class CommandLimits(NamedTuple):
    """`seconds` of wall time, infinity for none; counts as `specsim check` has them."""

    seconds: float
    cases: int
    schedules: int
    attempts: int | None


def limits_of(
    ci: bool, seconds: float | None, seed: str, cases: int | None, schedules: int | None, attempts: int | None
) -> CommandLimits:
    """What the options of a check ask for; None for one that was not given."""
    if not ci:
        counted = any(count is not None for count in (cases, schedules, attempts))
        default = math.inf if counted else DEFAULT_SECONDS
        return CommandLimits(
            default if seconds is None else seconds, cases or DEFAULT_CASES, schedules or DEFAULT_SCHEDULES, attempts
        )
    if seconds is not None:
        raise UsageError("--ci with --budget-seconds", "--ci ends by counts: --cases, --schedules, --attempts")
    if seed != "0":
        raise UsageError(f"--ci with --seed {seed}", "--ci has a fixed seed, so that a new commit changes no verdict")
    return CommandLimits(
        math.inf,
        cases or CI_CASES,
        schedules or CI_SCHEDULES,
        CI_ATTEMPTS if attempts is None else attempts,
    )
