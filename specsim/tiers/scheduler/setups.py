"""How a scheduler is started: a table, since each row is a start of its own, which costs about a second.

The first row is the simplest. A schedule's first choice says on which row it runs. New rows go to the end.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    Setup(worker="release"),
    Setup(worker="release", graphs=True, page_size=4, reserve=0.1),
    Setup(worker="release", topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", graphs=True, topk=2, draft_tokens=6, slots=400, page_size=4),
    Setup(worker="release", graphs=True, chunk=12, slots=112, reserve=0.1, radix=False),
    Setup(worker="release", graphs=True, sessions=True, slots=240),
    Setup(worker="release", graphs=True, steps=1, draft_tokens=2, slots=128, reserve=0.1),
    Setup(worker="release", topk=2, draft_tokens=6, slots=320, beyond_guards=True),
    Setup(worker="release", graphs=True, reserve=0.1),
    Setup(worker="release", graphs=True, topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", graphs=True, sampled=True, reserve=0.1),
    Setup(worker="release", sampled=True, topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", multi_layer=True, slots=240, reserve=0.1),
    Setup(worker="release", multi_layer=True, graphs=True, slots=240, reserve=0.1),
    Setup(worker="release", overlap=False, topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", overlap=False, graphs=True, reserve=0.1),
    Setup(worker="release", overlap=False, graphs=True, sampled=True, topk=2, draft_tokens=6, slots=320, reserve=0.1),
    Setup(worker="release", overlap=False, page_size=4, reserve=0.1),
    Setup(rust_tree=True),
    Setup(rust_tree=True, page_size=4, slots=400, window=8),
    Setup(rust_tree=True, slots=240, sessions=True),
    Setup(rust_tree=True, slots=112, chunk=12),
    Setup(rust_tree=True, worker="release", graphs=True, page_size=4, reserve=0.1),
)
WORKERS = ("fake", "release")


def row_of(tape: Sequence[int]) -> int:
    """The row that a schedule's choices say."""
    return min(tape[0], len(SETUPS) - 1) if tape else 0


def rows_of(worker: str, rust_tree: bool = False) -> tuple[int, ...]:
    """The rows on which schedules are drawn: those beyond a release's guards are for replay files alone."""
    kind = worker, rust_tree, False
    return tuple(i for i, s in enumerate(SETUPS) if (s.worker, s.rust_tree, s.beyond_guards) == kind)
