"""What must be true of a release's own scheduler: rules of the accounting tier, read from real state."""

from __future__ import annotations

import msgspec

from specsim.engine.rules.failures import HOST_EXCEPTION, SCHEDULE_CRASH, SCHEDULE_TIMEOUT
from specsim.engine.rules.launches import BatchState
from specsim.engine.rules.liveness import DeviceException, Progress
from specsim.engine.rules.radix import TreeContent
from specsim.engine.rules.requests import LengthsInOrder
from specsim.engine.rules.results import StaleResultOfFinished, UnwantedAbort, VisibleOutputs, WantedAbort
from specsim.engine.rules.rows import RowOwner
from specsim.engine.rules.sampling import GrammarState, LogprobRows, PenaltyCounts
from specsim.engine.rules.schedulers import ADMISSION
from specsim.engine.rules.slots import FreeSlot, LeakAtIdle
from specsim.engine.rules.steps import ContentRead, DraftContent
from specsim.engine.rules.streams import StreamRace
from specsim.verdict import Rule

LENGTHS = LengthsInOrder.rule
CONTENT_READ = ContentRead.rule
FREE_SLOT = FreeSlot.rule
ROW_OWNER = RowOwner.rule
LEAK_AT_IDLE = LeakAtIdle.rule
TREE_CONTENT = TreeContent.rule
STALE_RESULT = StaleResultOfFinished.rule
UNWANTED_ABORT = UnwantedAbort.rule
WANTED_ABORT = WantedAbort.rule
VISIBLE_OUTPUTS = VisibleOutputs.rule
LOGPROB_ROWS = LogprobRows.rule
PROGRESS = Progress.rule
RACE = StreamRace.rule
DEVICE_EXCEPTION = DeviceException.rule

RULES: tuple[Rule, ...] = (
    LENGTHS,
    CONTENT_READ,
    FREE_SLOT,
    ROW_OWNER,
    LEAK_AT_IDLE,
    TREE_CONTENT,
    STALE_RESULT,
    UNWANTED_ABORT,
    WANTED_ABORT,
    VISIBLE_OUTPUTS,
    LOGPROB_ROWS,
    PROGRESS,
    ADMISSION,
    BatchState.rule,
    DraftContent.rule,
    RACE,
    DEVICE_EXCEPTION,
    GrammarState.rule,
    PenaltyCounts.rule,
    HOST_EXCEPTION,
    SCHEDULE_TIMEOUT,
    SCHEDULE_CRASH,
)
BY_ID = {rule.id: rule for rule in RULES}
CAUSES = tuple(
    rule.id
    for rule in (
        BatchState.rule,
        RACE,
        GrammarState.rule,
        PenaltyCounts.rule,
        DraftContent.rule,
        LENGTHS,
        FREE_SLOT,
        CONTENT_READ,
        DEVICE_EXCEPTION,
        HOST_EXCEPTION,
        VISIBLE_OUTPUTS,
        LOGPROB_ROWS,
        TREE_CONTENT,
        STALE_RESULT,
        ROW_OWNER,
        LEAK_AT_IDLE,
    )
)
"""Rules that are broken because others are, behind these."""


def depth_of(rule: str) -> int:
    """The place of a rule among CAUSES."""
    return CAUSES.index(rule) if rule in CAUSES else len(CAUSES)


OWN_RULES: tuple[Rule, ...] = (ADMISSION,)
"""Those that no other tier holds."""


def signature_of(rule: str, part: str) -> str:
    """The signature of a finding: the same on every release. `part` has no line numbers."""
    return f"scheduler:{rule}:{part}"


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that a schedule breaks. `part` is what is to blame, without line numbers; `who` the request; `where` is
    FILE:LINE or ""; `harmless` says that no token was wrong; `at` are the operations that are to blame, in a schedule
    that was recorded; `slot` of the full pool was read for `position`, -1 for none; `when` is the iteration in which it
    was seen, -1 for at the end; `wait` the one that a race lacks, "STREAM for STREAM".
    """

    rule: str
    part: str
    who: str
    expected: str
    actual: str
    where: str = ""
    details: tuple[str, ...] = ()
    harmless: bool = False
    at: tuple[int, ...] = ()
    slot: int = -1
    position: int = -1
    when: int = -1
    wait: str = ""

    @property
    def signature(self) -> str:
        return signature_of(self.rule, self.part)
