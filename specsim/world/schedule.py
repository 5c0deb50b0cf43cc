"""One schedule: what users do, run on a started scheduler, and what was not as it must be."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from itertools import chain, repeat, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from specsim.choices.chooser import Item
from specsim.engine.rules.failures import HOST_EXCEPTION
from specsim.errors import described
from specsim.lifting.changes import Function
from specsim.lifting.ran import noting
from specsim.world import rules
from specsim.world.case import Labelled
from specsim.world.rules import Violation
from specsim.world.scheduler import Step
from specsim.world.state import broken_state
from specsim.world.users import NeverEndsError, Users
from specsim.world.workload import draw_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

    from specsim.choices.chooser import RecordingChooser
    from specsim.world.scheduler import Setup, StartedScheduler, WrongContent
    from specsim.world.workload import Workload


WRONG = frozenset((rules.VISIBLE_OUTPUTS.id, rules.TREE_CONTENT.id))
"""Beside a content that is read: with one of them a race is not harmless."""

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
    of all but the tape: equal when it is reproduced bit for bit.
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


def run_schedule(
    started: StartedScheduler,
    setup: Setup,
    chooser: RecordingChooser,
    *,
    workload: Workload | None = None,
    records: bool = False,
    traces: bool = False,
    note: Callable[[Any], None] = lambda _what: None,
) -> Record:
    """Draw what users do from the chooser, unless it is the `workload` that is given, and run it. The setup's choice
    was made. With `records` the record has `steps` and `lives`, for a page; with `traces` the target's functions that
    `ran`. `note` is told what is run as it is known: the workload in plain JSON, then (label, value) of each choice.
    """
    if records:
        started.record()
    workload = workload or draw_workload(chooser, setup, started.facts, started.decode)
    plain = workload.plain()
    note(plain)
    labelled = Labelled(chooser, note)
    users = Users(started, workload, setup)
    violations: list[Violation] = []
    codes: dict[int, CodeType] = {}
    try:
        with noting(codes) if traces else nullcontext():
            started.run(labelled, users.at)
    except NeverEndsError as error:
        violations.append(
            Violation(rule=rules.PROGRESS.id, part=error.part, who=error.who, expected="an end", actual=str(error))
        )
    except Exception as error:
        violations.append(_raised(started, error))
    else:
        violations += broken_state(started, users)
    violations += users.watch.violations
    of_sessions = frozenset(turn.rid for turn in workload.turns if turn.session)
    violations += _seen(started, of_sessions, any(violation.rule in WRONG for violation in violations))
    violations = _in_order(violations, users.iterations)
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


def _in_order(violations: list[Violation], end: int) -> list[Violation]:
    """As they came; of those of one iteration first what can cause the others. What nobody saw while it ran was seen at
    the end.
    """
    timed = [v if v.when >= 0 else msgspec.structs.replace(v, when=end) for v in violations]
    return sorted(timed, key=lambda v: (v.when, rules.depth_of(v.rule)))


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
    recorded = ("at", "slot", "position", "when", "wait")
    return {name: value for name, value in msgspec.to_builtins(violation).items() if name not in recorded}


def _lives(users: Users, started: StartedScheduler) -> dict[str, Life]:
    reasons = {answer.rid: answer.reason for answer in started.answers()}
    return {
        rid: Life(at, users.ended_at.get(rid, -1), reasons.get(rid, ""), rid in users.aborted)
        for rid, at in users.sent_at.items()
    }


def _raised(started: StartedScheduler, error: Exception) -> Violation:
    """What the scheduler raised; blamed is the innermost function of the release."""
    came_through = started.traceback_of(error)
    function, where = came_through[-1] if came_through else ("unknown", "")
    kind = type(error).__name__
    return Violation(
        rule=HOST_EXCEPTION.id,
        part=f"{function}:{kind}",
        who="",
        expected="no exception",
        actual=described(error),
        where=where,
        details=tuple(f"raised through {place} {name}" for name, place in came_through),
    )


def _seen(started: StartedScheduler, of_sessions: frozenset[str], is_wrong: bool) -> list[Violation]:
    """What the model and the device saw, one violation for each part. What a session's turn read has a part of its own:
    its KV is kept, and so goes wrong, otherwise than a request's.
    """
    found: dict[tuple[str, str], Violation] = {}
    seen = started.seen
    for content, by, at in zip(
        seen.contents, chain(seen.contents_by, repeat(0)), chain(seen.content_at, repeat(0)), strict=False
    ):
        violation = Violation(
            rule=rules.CONTENT_READ.id,
            part=f"{content.pool}:{content.holds}".replace(" ", "-") + ":session" * (content.rid in of_sessions),
            who=content.rid,
            expected=_what_belongs(content),
            actual=_what_is_there(content),
            at=(at,) if at else (),
            where=content.where,
            slot=content.slot if content.pool == "full" else -1,
            position=content.position,
            when=by,
        )
        found.setdefault((violation.rule, violation.part), violation)
    wrong = is_wrong or bool(found)
    for race, by, pair in zip(
        seen.device, chain(seen.device_by, repeat(0)), chain(seen.device_at, repeat(())), strict=False
    ):
        violation = Violation(
            rule=race.rule,
            part=race.what,
            who="",
            expected=race.expected,
            actual=race.actual,
            where=race.where,
            details=race.details,
            harmless=not wrong,
            at=pair,
            when=by,
            wait=race.wait,
        )
        found.setdefault((violation.rule, violation.part), violation)
    return list(found.values())


def _what_belongs(content: WrongContent) -> str:
    what = "token at" if content.pool == "input" else "KV of the tokens up to"
    return f"the {what} position {content.position}"


def _what_is_there(content: WrongContent) -> str:
    where = "the launch's input" if content.pool == "input" else f"slot {content.slot} of the {content.pool} pool"
    freed = f", which {content.freed_by} had freed" if content.freed_by else ""
    return f"{content.holds}, in {where}{freed}, in {content.phase}"
