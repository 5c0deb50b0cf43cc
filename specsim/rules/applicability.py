"""Which rules a schedule gave anything to judge. A rule that most schedules never ask is where a rare schedule is worth
more: a schedule without a session says nothing about sessions.

It is read from the scenario and the log of a run that is over, so it costs nothing when nobody asks, and is the same
for every target and for the compiled simulator. Rules that nearly every schedule asks are not told apart.
"""

from __future__ import annotations

from specsim.engine.event_log import Run
from specsim.engine.workload import Scenario

# Rules of the tree, of what a drafter keeps, of tree-shaped drafts and of streams: asked when the configuration has it.
_OF_CONFIGURATION = {
    "radix": ("I09", "I19", "I25", "I28", "I56"),
    "draft_layers": ("D1", "I48"),
    "streams": ("S2",),
}
# Rules of one interleaving or step of a life, by its mark.
_OF_A_MARK = {
    "stale_result_of_finished": ("I31",),
    "stale_result_of_retracted": ("I32",),
    "finish: abort": ("I38",),
    "session resumed": ("I54", "S4"),
}
CONDITIONAL = frozenset(
    {rule for rules in [*_OF_CONFIGURATION.values(), *_OF_A_MARK.values()] for rule in rules}
    | {"I30", "I53", "I55", "I57", "I58", "I59", "I60", "I61", "I63", "M1", "T6"}
)


def rules_applied(scenario: Scenario, run: Run) -> set[str]:
    """Those of `CONDITIONAL` that the run held against something."""
    config, turns = scenario.config, {turn.rid: turn for turn in scenario.workload.turns}
    by_event: dict[str, set[str]] = {}
    came_back: set[str] = set()
    for line in run.log:
        whom = [line.who]
        if line.event == "prefill":
            whom = line.details.split()
            came_back.update(by_event.get("retract", set()).intersection(whom))
        by_event.setdefault(line.event, set()).update(whom)
    prefilled = by_event.get("prefill", set())
    found = {rule for mark, rules in _OF_A_MARK.items() if mark in run.marks for rule in rules}
    if not prefilled:
        return found
    found |= {rule for name, rules in _OF_CONFIGURATION.items() if getattr(config, name) for rule in rules}
    if config.topk > 1 and "verify" in by_event:
        found.add("M1")
    if config.radix and config.window:
        found.add("I63")
    aborted = by_event.get("abort", set()) | by_event.get("timeout", set())
    for rid in by_event.get("finish", set()):
        if not turns[rid].session:
            found |= {"I30"} if config.radix else set()
        elif rid not in aborted:
            found |= {"I53", "I55"}
    if any(turns[rid].session for rid in aborted | by_event.get("drop", set())):
        found.add("I57")
    for rid in prefilled:
        turn = turns[rid]
        if turn.return_logprob:
            found.add("T6")
        if turn.sampling is not None and turn.sampling.grammar is not None:
            found |= {"I60", "I61"}
        if turn.sampling is not None and turn.sampling.is_penalized:
            found |= {"I58", "I59"} if rid in came_back else {"I58"}
    return found
