"""The bugs that the project began with, and the size that their shrunk schedules keep to."""

from __future__ import annotations

from specsim.selfcheck.canary import SEED_BUGS, sample

# What the bugs that the project began with need at most: requests, and events after the first admission.
REQUESTS_MAX, EVENTS_MAX = 2, 12


def is_seed_bug(mutant: str) -> bool:
    return mutant.partition("-")[0] in SEED_BUGS and mutant in {each.id for each in sample()}
