"""A schedule said outright, as a replay file has it: how the scheduler is started, what its users do, and the choices
of the run, by what they are for.

A tape stands for a schedule only while the generator that reads it stays as it is. A case is that schedule whatever the
generator does later: a setting, a field of a request or a kind of choice that came after it has its default there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

from specsim.choices.chooser import Chooser, RecordingChooser
from specsim.errors import UsageError
from specsim.world.scheduler import Setup, Turn
from specsim.world.workload import Workload

T = TypeVar("T")


class ScheduleCase(msgspec.Struct, frozen=True):
    """`setup` has what differs from the default setup, `workload` is a `Workload` in plain JSON, and `choices` has what
    was chosen for each label while the scheduler ran, without the zeros at the end.
    """

    setup: dict[str, Any]
    workload: dict[str, Any]
    choices: dict[str, list[int]]

    def started_by(self) -> Setup:
        """UsageError for a setup that there is not."""
        _known(self.setup, Setup, "setup")
        return _read(self.setup, Setup, "setup")

    def users(self) -> Workload:
        """UsageError for a workload that there is not."""
        _known(self.workload, Workload, "workload")
        for turn in self.workload.get("turns", ()):
            _known(turn, Turn, "workload")
        return _read(self.workload, Workload, "workload")

    def chooser(self) -> RecordingChooser:
        """The choices of each label in their order, then zeros."""
        left = {label: iter(values) for label, values in self.choices.items()}
        return RecordingChooser(lambda _bound, label: next(left.get(label, iter(())), 0))


class Labelled:
    """A chooser that tells what it chose for what, and is told nothing of it."""

    def __init__(self, chooser: Chooser, note: Callable[[tuple[str, int]], None] = lambda _choice: None) -> None:
        self._chooser = chooser
        self._note = note
        self._chosen: dict[str, list[int]] = {}

    def choose(self, bound: int, label: str) -> int:
        value = self._chooser.choose(bound, label)
        self._chosen.setdefault(label, []).append(value)
        self._note((label, value))
        return value

    @property
    def choices(self) -> dict[str, list[int]]:
        return shortened(self._chosen)


def shortened(chosen: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """By label, sorted, without the zeros at the end: a missing choice is a zero."""
    ends = {
        label: max((at for at, value in enumerate(values, 1) if value), default=0) for label, values in chosen.items()
    }
    return {label: chosen[label][: ends[label]] for label in sorted(chosen) if ends[label]}


def _read(plain: Mapping[str, Any], kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"the schedule's {what} cannot be read: {error}", "give a file that specsim wrote") from None


def _known(plain: Any, kind: Any, what: str) -> None:
    names = {one.name for one in fields(kind)}
    unknown = sorted(set(plain) - names) if isinstance(plain, Mapping) else []
    if unknown:
        raise UsageError(
            f"the schedule's {what} has {', '.join(map(repr, unknown))}, which this specsim does not know",
            f"it knows {', '.join(sorted(names))}",
        )
