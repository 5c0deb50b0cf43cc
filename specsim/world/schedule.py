"""One schedule: what users do, run on a started scheduler, and what was not as it must be."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from specsim.choices.chooser import Item
from specsim.lifting.changes import Function
from specsim.lifting.ran import noting
from specsim.world.case import Labelled
from specsim.world.chosen_users import ChosenUsers
from specsim.world.fakes import NotRunError
from specsim.world.rule import Rules, Run, Violation
from specsim.world.scheduler import Step
from specsim.world.users import Users
from specsim.world.workload import draw_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

    from specsim.choices.chooser import RecordingChooser
    from specsim.world.chosen_users import Bounds
    from specsim.world.rule import Check
    from specsim.world.scheduler import Setup, StartedScheduler
    from specsim.world.workload import Workload


STEPS_MAX = 20_000
"""That a record holds of a schedule which was recorded: far more than one that was shrunk has."""


class Life(NamedTuple):
    """A request: iterations of its arrival and its end (-1 for none), why it ended, and whether its user aborted it."""

    sent: int
    ended: int
    reason: str
    aborted: bool


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule showed, on a `setup` that has these `settings`. `tape` are all its choices, the setup's first,
    where it was drawn, and `choices` those of the run by label; `events` are lines to read, one a launch. `digest` is
    of all but the tape: equal when it is reproduced bit for bit. `options`, of one of all schedules of a scope: how
    many there were at each choice of its tape.
    """

    tape: tuple[int, ...]
    setup: str
    settings: dict[str, Any]
    workload: dict[str, Any]
    choices: dict[str, list[int]]
    iterations: int
    requests: int
    violations: tuple[Violation, ...]
    events: tuple[str, ...]
    digest: str
    items: tuple[Item, ...] = ()
    steps: tuple[Step, ...] = ()
    lives: dict[str, Life] = {}
    states: tuple[dict[str, dict[str, Any]], ...] = ()
    unreadable: str = ""
    ran: tuple[Function, ...] = ()
    ran_lines: dict[str, list[int]] = {}
    tree: str = ""
    options: tuple[int, ...] = ()


def run_schedule(
    started: StartedScheduler,
    setup: Setup,
    checks: Sequence[type[Check]],
    chooser: RecordingChooser,
    *,
    workload: Workload | None = None,
    bounds: Bounds | None = None,
    records: bool = False,
    traces: bool = False,
    note: Callable[[Any], None] = lambda _what: None,
) -> Record:
    """Draw what users do from the chooser, unless it is the `workload` that is given, run it, and see which of the
    rules hold that are checked. The setup's choice was made. With `bounds` users choose as they go when the requests of
    `workload` come and what else they do. With `records` the record has `steps` and `lives`, for a
    page; with `traces` the target's functions that `ran`. `note` is told what is run as it is known: the workload in
    plain JSON, then (label, value) of each choice.
    """
    if records:
        started.record()
    workload = workload or draw_workload(chooser, setup, started.facts, started.decode)
    plain = workload.plain()
    note(plain)
    labelled = Labelled(chooser, note)
    rules = Rules(checks, setup, started.facts)
    users = (
        Users(started, workload, setup, rules.at)
        if bounds is None
        else ChosenUsers(started, workload.turns, bounds, setup, rules.at, chooser)
    )
    run = Run(started, users)
    codes: dict[int, CodeType] = {}
    try:
        with noting(codes) if traces else nullcontext():
            started.run(labelled, users.at)
    except NotRunError:  # it says of the adapter, and not of the target
        raise
    except Exception as error:
        run.error = error
    plain = users.workload.plain()
    violations = rules.broken(run)
    events = tuple(launch.line for launch in started.seen.launches)
    content = [setup.name, plain, users.iterations, [plain_violation(v) for v in violations], events]
    digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
    return Record(
        tape=chooser.tape,
        setup=setup.name,
        settings=setup.settings,
        workload=plain,
        choices=labelled.choices,
        iterations=users.iterations,
        requests=len(workload.turns),
        violations=tuple(violations),
        events=events,
        digest=digest,
        items=tuple(chooser.items),
        steps=tuple(started.seen.steps[:STEPS_MAX]),
        lives=_lives(users, started) if records else {},
        states=tuple(started.seen.states),
        unreadable=started.seen.unreadable,
        ran=started.functions_of(codes.values()),
        ran_lines=started.seen.ran,
        tree=started.tree,
    )


def first_other_launch(one: Sequence[str], other: Sequence[str]) -> tuple[int, str, str] | None:
    """Where the launches of two runs part: the number of the launch, from 1 on, and what it is in each; None where they
    are the same. Each is "ITERATION KIND REQUESTS".
    """
    for number, (was, now) in enumerate(zip_longest(one, other, fillvalue="no launch"), 1):
        if was != now:
            return number, " ".join(was.split()), " ".join(now.split())
    return None


def plain_violation(violation: Violation) -> dict[str, Any]:
    """As JSON takes it, without what only a recorded schedule has."""
    recorded = ("at", "slot", "position", "when", "wait", "is_last")
    return {name: value for name, value in msgspec.to_builtins(violation).items() if name not in recorded}


def _lives(users: Users, started: StartedScheduler) -> dict[str, Life]:
    reasons = {answer.rid: answer.reason for answer in started.answers()}
    return {
        rid: Life(at, users.ended_at.get(rid, -1), reasons.get(rid, ""), rid in users.aborted)
        for rid, at in users.sent_at.items()
    }
