"""What a run showed: pairs of a request's state and an event, marks, and the rules that it gave anything to check.

All of it is read from the scenario and the log of a run that is over, so it costs nothing when nobody wants it, and is
the same for every target and for the compiled simulator.
"""

from __future__ import annotations

from specsim.engine.event_log import Run
from specsim.engine.rules.table import CONDITIONAL
from specsim.engine.rules.views import Shown
from specsim.engine.workload import Scenario

_BECOMES = {
    "arrive": "waiting",
    "admit": "prefilling",
    "prefill": "prefilled",
    "resolve": "running",
    "retract": "retracted",
    "drop": "finished",
    "finish": "finished",
}
_OF_A_BATCH = frozenset({"launch", "prefill", "verify", "resolve", "prepare"})


def pairs(run: Run) -> set[tuple[str, int, bool, str, str]]:
    """(state, launches in flight, aborted, event, outcome) of every request at every event of it.

    The outcome is the accept length of a verification or result, with "stale" before it where it was.
    """
    states: dict[str, str] = {}
    in_flight: dict[str, int] = {}
    aborted: set[str] = set()
    found: set[tuple[str, int, bool, str, str]] = set()
    for line in run.log:
        event = line.event
        for word in line.details.split() if event in _OF_A_BATCH else (line.who,):
            who, _, outcome = word.partition(":")
            if who not in states:
                if event != "arrive":
                    continue
                states[who] = "new"
            outcome = outcome if event in ("verify", "resolve") else ""
            found.add((states[who], in_flight.get(who, 0), who in aborted, event, outcome))
            if event == "launch":
                in_flight[who] = in_flight.get(who, 0) + 1
            elif event in ("resolve", "prefill", "stale"):
                in_flight[who] = max(0, in_flight.get(who, 0) - 1)
            elif event == "abort":
                aborted.add(who)
            if outcome != "stale":
                states[who] = _BECOMES.get(event, states[who])
    return found


def rules_applied(scenario: Scenario, run: Run) -> set[str]:
    """The numbers of the conditional rules that the run gave anything to check. A rule to which few schedules do is
    where a rare schedule is worth more: one without a session says nothing about sessions.
    """
    met: dict[str, set[str]] = {}
    came_back: set[str] = set()
    for line in run.log:
        whom = [line.who]
        if line.event == "prefill":
            whom = line.details.split()
            came_back.update(met.get("retract", set()).intersection(whom))
        met.setdefault(line.event, set()).update(whom)
    turns = {turn.rid: turn for turn in scenario.workload.turns}
    shown = Shown(scenario.config, run.marks, turns, met, frozenset(came_back))
    return {check.rule.id for check in CONDITIONAL if check.applies(shown)}
