"""Schedules end, and the device raises nothing on the way."""

from __future__ import annotations

from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import DeviceRaised, StillPending
from specsim.verdict import Rule, Severity


class Progress(Check):
    rule = Rule("S1", "progress", "every request ends", Severity.WRONG_RESULT)
    after = (StillPending,)

    def check(self, view: StillPending) -> Broken | None:
        return self.broken("loop", "", "every request ends", view.reason)


class DeviceException(Check):
    rule = Rule(
        "X6",
        "device-exception",
        "the device raises nothing: every access lies inside its tensors",
        Severity.UNDEFINED_BEHAVIOUR,
    )
    after = (DeviceRaised,)

    def check(self, view: DeviceRaised) -> Broken | None:
        return self.broken("device", "", "no exception", view.text)
