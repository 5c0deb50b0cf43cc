"""Small scopes: scenarios of which every schedule can be run.

`delays` is how often a schedule may let a request arrive, or be admitted, later than it could: without a bound there
is no end of schedules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsim.engine.config import EngineConfig
from specsim.engine.model import EOS, FIRST_ORDINARY_TOKEN, STOP
from specsim.engine.request import Turn
from specsim.engine.workload import Scenario, Workload
from specsim.errors import no_such


@dataclass(frozen=True, slots=True)
class Scope:
    """A scenario with a name, what it is about, and its bound on delays."""

    name: str
    title: str
    scenario: Scenario
    delays: int


def _scope(
    name: str,
    title: str,
    turns: tuple[Turn, ...],
    *,
    delays: int = 0,
    aborts: int = 0,
    retractions: int = 0,
    requests_in_pool: int = 2,
    rows: int = 2,
    overlap: bool = True,
    num_steps: int = 1,
    topk: int = 1,
    num_draft_tokens: int = 2,
) -> Scope:
    lengths: dict[str, int] = {}
    for turn in turns:
        place = turn.session or turn.rid
        lengths[place] = lengths.get(place, 0) + len(turn.tokens) + turn.max_new_tokens
    config = EngineConfig(
        num_steps=num_steps,
        topk=topk,
        num_draft_tokens=num_draft_tokens,
        context_len=max(lengths.values()),
        rows=rows,
        overlap=overlap,
    )
    config = replace(config, pool_slots=config.request_slots_max * requests_in_pool)
    return Scope(name, title, Scenario(config, Workload(turns, aborts, retractions)), delays)


def _turn(
    number: int, prompt_len: int, max_new_tokens: int, *, special: int = 0, at: int = 0, session: str = ""
) -> Turn:
    first = FIRST_ORDINARY_TOKEN + 1000 * (number + 1)
    return Turn(
        f"{session}t{number}" if session else f"r{number}",
        tuple(range(first, first + prompt_len)),
        max_new_tokens,
        {at: special} if special else {},
        session=session,
    )


SCOPES: tuple[Scope, ...] = (
    _scope("one-request", "one request, three tokens", (_turn(0, 2, 3),), requests_in_pool=1, rows=1),
    _scope("two-requests", "two requests, the second may come later", (_turn(0, 2, 4), _turn(1, 1, 4)), delays=2),
    _scope(
        "abort",
        "two requests of which a client aborts one, at any time",
        (_turn(0, 2, 4), _turn(1, 1, 3, special=EOS, at=1)),
        delays=1,
        aborts=1,
    ),
    _scope(
        "retract",
        "two requests in the memory of one, and one retraction on demand",
        (_turn(0, 2, 4), _turn(1, 1, 4)),
        delays=1,
        retractions=1,
        requests_in_pool=1,
    ),
    _scope("session", "two turns of a session", (_turn(0, 2, 4, session="s"), _turn(1, 1, 3, session="s")), delays=1),
    _scope(
        "tree",
        "one request, trees of four nodes",
        (_turn(0, 2, 4, special=STOP, at=2),),
        num_steps=2,
        topk=2,
        num_draft_tokens=4,
        requests_in_pool=1,
        rows=1,
    ),
    _scope(
        "three-requests",
        "three requests for two rows, an abort and a retraction",
        (_turn(0, 2, 4), _turn(1, 1, 3), _turn(2, 3, 2)),
        delays=1,
        aborts=1,
        retractions=1,
    ),
)


def scope_named(name: str) -> Scope:
    """The scope of that name; UsageError when there is none."""
    for scope in SCOPES:
        if scope.name == name:
            return scope
    raise no_such("scope", name, (scope.name for scope in SCOPES))
