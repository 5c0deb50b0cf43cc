"""What a check of one target is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import specsim
from specsim.findings.selection import EVERYTHING, Selection
from specsim.verdict import FAILS_BY_DEFAULT, FailOn

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.lifting.cache import Cache

FIXTURES = Path(specsim.__file__).parent / "fixtures" / "replays"
"""Replay files of known findings, which come with specsim."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a check of one target was asked for. `operation` is the one that is checked, "" for all. `attempts` at a
    smaller case or schedule of each finding, as many as each tier makes by itself for None. Without `shrinks` what is
    found stays as large as it is, and so do the signatures `known` of a baseline that is a file. The replay files in
    the folder `fixtures` are run first, None for none. A budget of infinity leaves the counts alone to end the check.
    `jobs` schedules run at a time; with `one_core` everything shares one core. `selection` and `fail_on` say what is
    reported, and what of it fails; what `allowed` matches may be not run, though it runs on a baseline. Of `lines` of
    the target's files schedules note whether they run, and with `require_reached` those that a change touches must.
    """

    target: Target
    cache: Cache
    only: str | None
    budget_seconds: float
    seed: int
    cases: int
    schedules: int
    out: Path
    device: str
    hang_seconds: float
    operation: str = ""
    bulk: bool = False
    mutant: str = ""
    worker: str = "fake"
    shrinks: bool = True
    known: frozenset[str] = frozenset()
    jobs: int = 1
    one_core: bool = False
    attempts: int | None = None
    fixtures: Path | None = FIXTURES
    selection: Selection = EVERYTHING
    fail_on: FailOn = FAILS_BY_DEFAULT
    allowed: tuple[str, ...] = ()
    lines: Mapping[str, Sequence[int]] = field(default_factory=dict)
    require_reached: bool = False

    @property
    def name(self) -> str:
        return f"{self.target.text} with mutant {self.mutant}" if self.mutant else self.target.text

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers to run: of a selection those that it may be of. A mutant is of what the scheduler tier runs."""
        if self.mutant:
            return ("scheduler",)
        from specsim.tiers.registry import TIERS

        is_default = {name: tier.by_default and tier.is_of(self.target) for name, tier in TIERS.items()}
        default = [name for name in TIERS if is_default[name] and self.selection.needs(name)]
        return (self.only,) if self.only else tuple(default)

    @property
    def enough(self) -> dict[str, int]:
        """Schedules of each tier below which a check says too little: a tenth of those of a gate."""
        from specsim.commands.limits import CI_SCHEDULES
        from specsim.tiers.registry import TIERS

        gate = replace(self, schedules=min(self.schedules, CI_SCHEDULES))
        return {tier: gate.count(tier) // 10 for tier in self.tiers if TIERS[tier].unit == "schedules"}

    def count(self, tier: str) -> int:
        """Cases of each operation, or schedules, that a tier runs at most."""
        from specsim.tiers.registry import TIERS

        return self.cases if TIERS[tier].unit == "cases" else self.schedules
