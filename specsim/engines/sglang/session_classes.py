"""The release's own `Session` of its controller: what the prompt of a session's next turn is, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from specsim.engine.accounting import HostFunctionError
from specsim.engine.model import VOCABULARY
from specsim.engine.request import Request
from specsim.engine.rules.liveness import Progress
from specsim.engines.sglang import host_names as names
from specsim.engines.sglang import stubs
from specsim.engines.sglang.radix_classes import calls as calls_one
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter

PART = "session controller"

# Makes our request of what the session says of it: origin_input_ids, session and others.
Maker = Callable[..., Any]


@dataclass(slots=True)
class SessionClass:
    """The class, where it is from, and `make`, which a run sets before a session makes a request.

    `knows_ends` whether a session is notified how its turns end, `is_told` also of those that are aborted in the queue
    """

    path: str
    lifted: LiftedFunction
    knows_ends: bool
    is_told: bool
    session: Any = None
    make: Maker | None = None

    def opened(self, session_id: str) -> Any:
        """A streaming session, as the controller opens it."""
        return self.session(capacity_of_str_len=0, session_id=session_id, streaming=True)


def lift_session(
    lifter: Lifter, given: dict[str, Any], counted: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> SessionClass:
    """Lift the class of sessions."""
    places = [place for place in names.SESSION_CLASSES if lifter.source.exists(place[0])]
    if not places:
        raise DriftError(f"not found: {' or '.join(path for path, _ in names.SESSION_CLASSES)}")
    found: list[SessionClass] = []

    def make(**fields: Any) -> Any:
        maker = found[0].make
        assert maker is not None
        return maker(**fields)

    path, name = places[0]
    lifted = lifter.lift_method(path, name, {**given, names.REQUEST_CLASS[1]: make})
    present = [call for call in names.SESSION_CALLS if hasattr(lifted.value, call)]
    counting = {call: counted(getattr(lifted.value, call)) for call in present}
    is_told = any(calls_one(lifter, place, names.SESSION_ABORT) for place in names.QUEUE_ABORTS)
    session = type(name, (lifted.value,), counting)
    found.append(SessionClass(path, lifted, hasattr(session, names.SESSION_END), is_told, session))
    return found[0]


def next_turn(
    sessions: SessionClass, session: Any, request: Request, make: Maker
) -> tuple[Any, tuple[str, str] | None]:
    """The request that a session makes of a turn, whose prompt is what the client saw and sent; and, where the session
    made another one, what was expected and what it made. Raises HostFunctionError when it takes no turn.
    """
    turn = request.turn
    sessions.make = partial(_made, make)
    arrived = stubs.Fields(
        rid=turn.rid,
        input_ids=list(turn.tokens),
        session_params=stubs.Fields(id=turn.session),
        extra_key=turn.extra_key or None,
    )
    req = session.create_req(arrived, None, VOCABULARY)
    if req.refusal:
        raise HostFunctionError(PART, req.refusal, Progress.rule, f"a turn of session {turn.session} is taken")
    made = list(req.origin_input_ids)
    if made == request.prompt:
        return req, None
    req.origin_input_ids = req.origin_input_ids_unpadded = list(request.prompt)
    other = f"{len(made)} tokens" if len(made) != len(request.prompt) else "other tokens"
    return req, (f"the {len(request.prompt)} tokens that the client saw and sent", other)


def _made(make: Maker, **fields: Any) -> Any:
    req = make(fields["session"])
    req.origin_input_ids = fields["origin_input_ids"]
    req.origin_input_ids_unpadded = fields["origin_input_ids_unpadded"]
    return req
