"""What must be true of a release's own scheduler: rules of the accounting tier, read from real state."""

from __future__ import annotations

import msgspec

from specsim.rules.failures import HOST_EXCEPTION, SCHEDULE_CRASH, SCHEDULE_TIMEOUT
from specsim.rules.table import BY_ID as OF_ACCOUNTING
from specsim.verdict import Rule

LENGTHS = OF_ACCOUNTING["I01"]
CONTENT_READ = OF_ACCOUNTING["I05"]
FREE_SLOT = OF_ACCOUNTING["I16"]
ROW_OWNER = OF_ACCOUNTING["I18"]
LEAK_AT_IDLE = OF_ACCOUNTING["I24"]
TREE_CONTENT = OF_ACCOUNTING["I27"]
STALE_RESULT = OF_ACCOUNTING["I31"]
UNWANTED_ABORT = OF_ACCOUNTING["I39"]
VISIBLE_OUTPUTS = OF_ACCOUNTING["I40"]
SESSION_CLAIM = OF_ACCOUNTING["I53"]
PROGRESS = OF_ACCOUNTING["S1"]
RACE = OF_ACCOUNTING["S2"]
DEVICE_EXCEPTION = OF_ACCOUNTING["X6"]

RULES: tuple[Rule, ...] = (
    LENGTHS,
    CONTENT_READ,
    FREE_SLOT,
    ROW_OWNER,
    LEAK_AT_IDLE,
    TREE_CONTENT,
    STALE_RESULT,
    UNWANTED_ABORT,
    VISIBLE_OUTPUTS,
    SESSION_CLAIM,
    PROGRESS,
    RACE,
    DEVICE_EXCEPTION,
    HOST_EXCEPTION,
    SCHEDULE_TIMEOUT,
    SCHEDULE_CRASH,
)
BY_ID = {rule.id: rule for rule in RULES}


def signature_of(rule: str, part: str) -> str:
    """The signature of a finding: the same on every release. `part` has no line numbers."""
    return f"scheduler:{rule}:{part}"


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that a schedule breaks. `part` is what is to blame, without line numbers; `who` the request; `where` is
    FILE:LINE or ""; `harmless` says that no token was wrong.
    """

    rule: str
    part: str
    who: str
    expected: str
    actual: str
    where: str = ""
    details: tuple[str, ...] = ()
    harmless: bool = False

    @property
    def signature(self) -> str:
        return signature_of(self.rule, self.part)
