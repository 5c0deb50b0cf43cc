"""How a scheduler is started: a table, since each row is a start of its own, which costs about a second.

The first row is the simplest. A schedule's first choice says on which row it runs.
"""

from __future__ import annotations

from specsim.engines.real_scheduler import Setup

SETUPS: tuple[Setup, ...] = (
    Setup(),
    Setup(page_size=4, slots=400, window=8),
    Setup(page_size=4, reserve=0.1),
    Setup(sessions=True, slots=240),
    Setup(page_size=16, slots=256),
    Setup(radix=False, reserve=0.1),
    Setup(chunk=12, slots=112),
    Setup(priorities=True, slots=120),
    Setup(window=8, slots=240, reserve=0.1),
    Setup(slots=128, steps=1, draft_tokens=2, reserve=0.1),
    Setup(sessions=True, slots=240, page_size=4, reserve=0.1),
    Setup(window=8, slots=400, radix=False, chunk=12),
    Setup(reserve=0.1, overlap=False),
    Setup(chunk=12, reserve=0.1, mixed=True),
)
