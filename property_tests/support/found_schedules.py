"""What schedules of a release find, in a child that is there already."""

from __future__ import annotations

from specsim.lifting.cache import Cache
from specsim.tiers.messages import Found, Request
from specsim.tiers.process import ask_again

SECONDS = 60.0  # of one schedule


def found_by(target: str, cache: Cache, schedules: int, *, mutant: str = "", worker: str = "fake") -> list[str]:
    """The signatures of what the first schedules of seed 0 find, as `dev check --mutant` runs them; each once."""
    request = Request(
        tier="scheduler",
        target=target,
        cache=str(cache.folder),
        seed=0,
        count=schedules,
        seconds=SECONDS * schedules,
        hang_seconds=SECONDS,
        shrinks=False,
        mutant=mutant,
        worker=worker,
    )
    found = [message.finding.signature for message in ask_again(request, SECONDS) if isinstance(message, Found)]
    return list(dict.fromkeys(found))
