"""What the virtual device finds: accesses that nothing orders, and those outside of what they are to."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.verdict import Rule, Severity
from specsim.world.kv import BadValue
from specsim.world.rule import Check, Run, Violation, first_of_each, notes
from specsim.world.scheduler import Fault, Noted, Race


class StreamRace(Check):
    """Two accesses to one element, one of them a write or the end of its memory, are ordered by streams, events and
    waits.
    """

    rule = Rule(
        "S2",
        "stream-race",
        "of two accesses of what streams share, one of them a write, events and waits fix the order",
        Severity.WRONG_RESULT,
    )
    defects = (notes("race", Race("row:write:read", "a write and a read"), at=(1, 2)),)

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(_by_accesses(self, race, note) for race, note in run.noted(Race))


class DeviceException(Check):
    """No access is outside of its tensor, no assertion of the device fails, and no number is read that nobody wrote."""

    rule = Rule(
        "X6",
        "device-exception",
        "the device raises nothing: every access lies inside its tensors",
        Severity.UNDEFINED_BEHAVIOUR,
    )
    defects = (notes("reads what nobody wrote", BadValue("verify", "0", "seq_lens", -1)),)

    def after(self, run: Run) -> Iterator[Violation]:
        read = (
            self.from_note(note, f"{bad.phase}:{bad.name}", "", "a value that was written", f"{bad.value} of {bad.rid}")
            for bad, note in run.noted(BadValue)
        )
        yield from first_of_each([*read, *(_by_accesses(self, fault, note) for fault, note in run.noted(Fault))])


def _by_accesses(check: Check, record: Race | Fault, note: Noted) -> Violation:
    return check.from_note(
        note,
        record.what,
        "",
        "an order",
        f"none between {record.accesses}",
        details=record.details,
        where=record.where,
        wait=record.wait,
    )
