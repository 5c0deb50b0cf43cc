"""An engine whose requests a test can read, and choosers that draw whole schedules from Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from specsim.choices.chooser import Chooser, RecordingChooser
from specsim.engine.accounting import ModelAccounting, Observed
from specsim.engine.loop import Engine
from specsim.engine.request import Request
from specsim.engine.rules.checked_engine import checked_parts
from specsim.engine.workload import Scenario

# Long enough for whole schedules; each byte is a fraction of the bound of a choice, so that every value is as likely.
fractions = st.one_of(st.binary(max_size=80), st.binary(min_size=150, max_size=300))


def fractional(raw: bytes) -> RecordingChooser:
    """The choices that fractions make, then zeros."""
    remaining = iter(raw)
    return RecordingChooser(lambda bound, _label: next(remaining, 0) * bound >> 8)


class Watched(Engine):
    """An engine whose requests can be looked at when it has run."""

    def visible(self) -> dict[str, list[int]]:
        """What the client of each request that nobody aborted has seen."""
        return {r.rid: r.outputs[: observed(r).finished_len] for r in self.requests.everybody if not r.abort_wanted}


def watched(scenario: Scenario, chooser: Chooser) -> Watched:
    return Watched(scenario, chooser, *checked_parts(scenario))


def observed(request: Request) -> Observed:
    return ModelAccounting.observe(ModelAccounting.__new__(ModelAccounting), request)
