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
