"""Every schedule of a small scope of a scheduler that cannot be copied: each is run from its start, depth first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import structs

from specsim import interrupts
from specsim.choices.exhaustive import following
from specsim.rules.table import CHECKS
from specsim.tiers.messages import At, BrokenSchedule, End, ExploredByRuns
from specsim.tiers.scheduler.answers import SUBJECT, violations_of
from specsim.tiers.scheduler.loading import load_target
from specsim.tiers.scheduler.small_scopes import scope_named
from specsim.verdict import NotRun
from specsim.world.case import ScheduleCase
from specsim.world.forks import NotStarted, Ran, Starters, WantedSchedule
from specsim.world.workload import Workload, told

if TYPE_CHECKING:
    from specsim.choices.chooser import Tape
    from specsim.isolation.messages import Messages
    from specsim.tiers.messages import Explore, Request


def explore(request: Request, work: Explore, messages: Messages) -> None:
    """Run the schedules of a scope until they or the request's seconds are over. Below a schedule that ends its process
    nothing is known of what else could be chosen: then it is not complete.
    """
    end = time.monotonic() + request.seconds
    target = load_target(request)
    if isinstance(target, NotRun):
        messages.send(End(not_run=[target]))
        return
    scope = scope_named(work.scope)
    case = ScheduleCase(scope.setup.settings, Workload(scope.turns).plain(), {})
    schedules, complete = 0, True
    broken: dict[str, BrokenSchedule] = {}
    script: Tape | None = ()
    options: Tape = ()
    starters = Starters(target, CHECKS)
    try:
        while script is not None:
            if time.monotonic() >= end or interrupts.asked():
                complete = False
                break
            messages.send(At(subject=SUBJECT, index=schedules, count=schedules, counts={"schedules": schedules}))
            outcome = starters.run(WantedSchedule(script, seconds=request.hang_seconds, case=case, bounds=scope.bounds))
            if isinstance(outcome, NotStarted):
                messages.send(End(not_run=[NotRun(f"scope {scope.name}", outcome.why)]))
                return
            schedules += 1
            values, lines = script, tuple[str, ...]()
            if isinstance(outcome, Ran):
                values, options = outcome.record.tape, outcome.record.options
                users = (f"{who}: {what}" for who, what in told(outcome.record.workload))
                lines = (*users, *outcome.record.events)
            else:
                complete = False
            for violation in violations_of(outcome):
                first = broken.get(violation.signature)
                title = f"{violation.who or violation.part}: expected {violation.expected}, got {violation.actual}"
                broken[violation.signature] = (
                    BrokenSchedule(choices=values, lines=lines, title=title)
                    if first is None
                    else structs.replace(first, count=first.count + 1)
                )
            script = following(values, options[: len(values)])
    finally:
        starters.close()
    messages.send(ExploredByRuns(schedules=schedules, complete=complete, broken=broken))
