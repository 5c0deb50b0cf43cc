"""The rules of schedulers: first those that may be why others are broken, then the rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from types import ModuleType

from specsim.rules import (
    answers,
    content,
    counters,
    device,
    process,
    requests,
    reuse,
    sampling,
    sessions,
    slots,
    steps,
    waiting,
)
from specsim.rules.answers import LogprobRows, VisibleOutputs
from specsim.rules.cache_events import CacheEvents
from specsim.rules.content import Agreement, BatchState, ContentRead, DraftContent
from specsim.rules.counters import AcceptedDrafts
from specsim.rules.device import DeviceException, StreamRace
from specsim.rules.process import HostException
from specsim.rules.requests import FinishedClaim, LengthsInOrder
from specsim.rules.sampling import GrammarState, PenalizedTokens, PenaltiesAfterRetraction
from specsim.rules.slots import FreeSlot, RowOwner, SlotsAtRest, SlotsOfStep, TreeContent
from specsim.rules.waiting import QueueTime
from specsim.verdict import Rule
from specsim.world.rule import Check

_CAUSES: tuple[type[Check], ...] = (
    BatchState,
    Agreement,
    LengthsInOrder,
    StreamRace,
    GrammarState,
    PenalizedTokens,
    SlotsOfStep,
    DraftContent,
    FreeSlot,
    ContentRead,
    DeviceException,
    HostException,
    VisibleOutputs,
    LogprobRows,
    TreeContent,
    FinishedClaim,
    RowOwner,
    SlotsAtRest,
)
"""Each may be broken because one before it is."""


def _of(module: ModuleType) -> Iterator[type[Check]]:
    """The rules of a module, as they stand there. A class that is no rule has no `rule`."""
    for each in vars(module).values():
        is_here = isinstance(each, type) and each.__module__ == module.__name__
        if is_here and issubclass(each, Check) and "rule" in vars(each):
            yield each


_MODULES = (answers, content, counters, device, process, requests, reuse, sampling, sessions, slots, steps, waiting)
_LAST: tuple[type[Check], ...] = (QueueTime, AcceptedDrafts, PenaltiesAfterRetraction, CacheEvents)
"""None of these hides another: what is counted and told makes nothing wrong, and tokens that lost penalties make wrong
have a finding of their own.
"""
CHECKS: tuple[type[Check], ...] = (
    *_CAUSES,
    *(check for check in chain.from_iterable(map(_of, _MODULES)) if check not in (*_CAUSES, *_LAST)),
    *_LAST,
)
"""All rules. Those behind _CAUSES may be broken because of these, and not because of one another."""
BY_ID: dict[str, Rule] = {check.rule.id: check.rule for check in CHECKS}


def depth_of(rule: str) -> int:
    """How far behind the causes a rule stands: one that is less deep may be why another is broken."""
    ids = [check.rule.id for check in _CAUSES]
    return ids.index(rule) if rule in ids else len(ids)
