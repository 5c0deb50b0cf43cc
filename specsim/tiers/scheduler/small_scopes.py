"""Small scopes: what a few users may do on a small scheduler, of which every schedule is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from specsim.errors import no_such
from specsim.world.chosen_users import Bounds
from specsim.world.hash_model import decoded
from specsim.world.scheduler import Setup, Turn
from specsim.world.workload import prompt_of, until_stop


@dataclass(frozen=True, slots=True)
class Scope:
    """Requests with a name, what they are about, the scheduler that they run on, and what else users may do, and how
    often.
    """

    name: str
    title: str
    setup: Setup
    turns: tuple[Turn, ...]
    bounds: Bounds = field(default_factory=Bounds)


def _setup(slots: int, rows: int = 2, steps: int = 1, topk: int = 1, draft_tokens: int = 2, **others: float) -> Setup:
    return Setup(slots=slots, rows=rows, steps=steps, topk=topk, draft_tokens=draft_tokens, **others)  # type: ignore[arg-type]


def _turn(number: int, prompt: int, answer: int, *, stop_at: int = -1, session: str = "") -> Turn:
    """A request of so many tokens for so many, which ends at a token of its answer before that with `stop_at`."""
    tokens = prompt_of(number, prompt)
    rid = f"{session}.{number}" if session else f"r{number}"
    stop = decoded(tokens, answer)[stop_at] if stop_at >= 0 else -1
    return Turn(rid, tokens, answer, 0, stop=stop, session=session)


SCOPES: tuple[Scope, ...] = (
    Scope("one-request", "one request, three tokens", _setup(20, rows=1), (_turn(0, 2, 3),)),
    Scope(
        "two-requests",
        "two requests, the second may come later",
        _setup(40),
        (_turn(0, 2, 4), _turn(1, 1, 4)),
        Bounds(delays=2),
    ),
    Scope(
        "abort",
        "two requests of which a client aborts one, at any time",
        _setup(40),
        (_turn(0, 2, 4), _turn(1, 1, 3, stop_at=1)),
        Bounds(delays=1, aborts=1),
    ),
    Scope(
        "retract",
        "two requests in the memory of one, and one retraction on demand",
        _setup(14, reserve=0.0),
        (_turn(0, 2, 4), _turn(1, 1, 4)),
        Bounds(delays=1, retractions=1),
    ),
    Scope(
        "session",
        "two turns of a session",
        _setup(40, sessions=True),
        (_turn(0, 2, 4, session="s"), _turn(1, 1, 3, session="s")),
        Bounds(delays=1),
    ),
    Scope(
        "tree",
        "one request, trees of four nodes",
        _setup(40, rows=1, steps=2, topk=2, draft_tokens=4),
        (_turn(0, 2, 4, stop_at=2),),
    ),
    Scope(
        "three-requests",
        "three requests for two rows, an abort and a retraction",
        _setup(40),
        (_turn(0, 2, 4), _turn(1, 1, 3), _turn(2, 3, 2)),
        Bounds(delays=1, aborts=1, retractions=1),
    ),
)


def scope_named(name: str) -> Scope:
    """The scope of that name; UsageError when there is none."""
    for scope in SCOPES:
        if scope.name == name:
            return scope
    raise no_such("scope", name, (scope.name for scope in SCOPES))


@cache
def expected_of(turn: Turn) -> tuple[int, ...]:
    """The answer to a request of no session, by decoding token by token."""
    return tuple(until_stop(turn, decoded(turn.prompt, turn.answer)))
