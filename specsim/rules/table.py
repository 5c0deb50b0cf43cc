"""The rules of the scheduler tier, in the order in which one is broken because another is."""

from __future__ import annotations

from specsim.rules.answers import LogprobRows, Progress, UnwantedAbort, VisibleOutputs
from specsim.rules.content import BatchState, ContentRead, DraftContent
from specsim.rules.device import DeviceException, StreamRace
from specsim.rules.process import HostException, ScheduleCrash, ScheduleTimeout
from specsim.rules.requests import Admission, FinishedClaim, LengthsInOrder, VerifiedAfterAbort
from specsim.rules.sampling import GrammarState, PenalizedTokens
from specsim.rules.slots import FreeSlot, RowOwner, SlotsAtRest, TreeContent
from specsim.verdict import Rule
from specsim.world.rule import Check

_CAUSES: tuple[type[Check], ...] = (
    BatchState,
    StreamRace,
    GrammarState,
    PenalizedTokens,
    DraftContent,
    LengthsInOrder,
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
CHECKS: tuple[type[Check], ...] = (
    *_CAUSES,
    Progress,
    UnwantedAbort,
    VerifiedAfterAbort,
    Admission,
    ScheduleTimeout,
    ScheduleCrash,
)
"""All rules. Those behind _CAUSES may be broken because of these, and not because of one another."""
BY_ID: dict[str, Rule] = {check.rule.id: check.rule for check in CHECKS}


def depth_of(rule: str) -> int:
    """How far behind the causes a rule stands: one that is less deep may be why another is broken."""
    ids = [check.rule.id for check in _CAUSES]
    return ids.index(rule) if rule in ids else len(ids)
