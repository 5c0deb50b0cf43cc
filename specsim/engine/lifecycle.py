"""The life of a request. Everything that moves a request from one state to another is in this table.

An event that the table does not allow raises with state and event: it is a defect of the simulator, not of what it
tests.
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Where a request is. A retracted request waits again; a finished one stays finished."""

    WAITING = "waiting"  # holds no memory, unless its session does
    CHUNKED = "chunked"  # a part of its prefill is launched
    PREFILLING = "prefilling"  # launched, its first token is not known to the host
    RUNNING = "running"
    FINISHED = "finished"


class Event(enum.Enum):
    """What happens to a request."""

    CHUNK = "chunk"  # admitted, or continued, with a part of its prefill that is not the last
    ADMIT = "admit"  # with all of its prefill, or the last part of it
    FIRST_TOKEN = "first token"
    FINISH = "finish"
    RETRACT = "retract"
    DROP = "drop"  # answered while waiting, or for want of memory, without another result


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.ADMIT): State.PREFILLING,
    (State.WAITING, Event.CHUNK): State.CHUNKED,
    (State.CHUNKED, Event.CHUNK): State.CHUNKED,
    (State.CHUNKED, Event.ADMIT): State.PREFILLING,
    (State.CHUNKED, Event.RETRACT): State.WAITING,
    (State.CHUNKED, Event.DROP): State.FINISHED,
    (State.WAITING, Event.DROP): State.FINISHED,
    (State.PREFILLING, Event.FIRST_TOKEN): State.RUNNING,
    (State.PREFILLING, Event.RETRACT): State.WAITING,
    (State.PREFILLING, Event.DROP): State.FINISHED,
    (State.RUNNING, Event.FINISH): State.FINISHED,
    (State.RUNNING, Event.RETRACT): State.WAITING,
    (State.RUNNING, Event.DROP): State.FINISHED,
}


class LifecycleError(Exception):
    """An event that the life of a request does not allow."""


def after(state: State, event: Event) -> State:
    """The state after `event`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        allowed = ", ".join(sorted(e.value for s, e in TRANSITIONS if s is state)) or "nothing"
        raise LifecycleError(f"{event.value!r} of a {state.value} request; allowed: {allowed}") from None
