"""Probes: one function of an engine's worker, run between recording stubs on generated cases.

The accounting tier runs host functions that call one another for a whole schedule. What a worker does between two
launches needs a model runner, attention backends and kernels, which are not there; but which of them it hands to whom,
and which logits it hands on, can be recorded and checked. A probe does that for one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specsim.choices.chooser import Chooser
from specsim.rules.table import BY_ID as RULES_OF_ACCOUNTING
from specsim.verdict import Rule, Severity

WORKER_RULES: tuple[Rule, ...] = (
    Rule(
        "W1",
        "request-penalties",
        "verification applies penalties, logit bias and min_new_tokens of each request",
        Severity.WRONG_RESULT,
    ),
    Rule("W2", "node-penalties", "verification penalises each node of a tree for its own path", Severity.BY_DESIGN),
    Rule(
        "W3",
        "stale-metadata",
        "a draft step attends with metadata that was planned for its batch",
        Severity.UNDEFINED_BEHAVIOUR,
    ),
)
# Of the accounting tier's rules those that probes hold as well.
BY_ID = {rule.id: rule for rule in WORKER_RULES} | {
    name: RULES_OF_ACCOUNTING[name] for name in ("I48", "I58", "I59", "X1", "X2", "X3")
}


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a case broke: `what` in a few words, what is right and what was seen, and lines for a reader.

    `where` and `source_hash` are of the code to blame, "" for the probe's own function.
    """

    rule: str
    what: str
    expected: str
    actual: str
    details: tuple[str, ...] = ()
    where: str = ""
    source_hash: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a case showed. `case` is the case to read and `seen` what was recorded, both as JSON takes them."""

    case: dict[str, Any]
    seen: dict[str, Any]
    broken: tuple[Broken, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A function of a target, and how it is run.

    `name`         the same for the same function of every release
    `function`     its name in this target, `where` FILE:LINE and `source_hash` the hash of its body
    `reach`        who reaches what it does
    `draw`         makes the choices of a case alone, the same as `run`
    `run`          makes a case from choices, and runs it
    """

    name: str
    function: str
    where: str
    source_hash: str
    reach: str
    draw: Callable[[Chooser], object]
    run: Callable[[Chooser], Shown]


def signature_of(probe: str, rule: str) -> str:
    """The signature of a finding: the same on every release."""
    return f"workers:{probe}:{rule}"
