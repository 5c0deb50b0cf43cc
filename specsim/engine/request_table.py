"""The requests of a run, and what the host knows of their sessions."""

from __future__ import annotations

from specsim.engine.request import Request


class RequestTable:
    """`everybody` who has arrived, in that order, and who of them waits for admission, in the order of the queue.

    `open_sessions`    sessions that have not been closed, in the order in which they began
    `histories`        the tokens of each session so far, as its client knows them
    `left`             turns that have left their session
    `retracted_turns`  by session, the last of its turns that was retracted
    """

    __slots__ = (
        "everybody",
        "histories",
        "left",
        "open_sessions",
        "retracted_turns",
        "waiting",
    )

    def __init__(self) -> None:
        self.everybody: list[Request] = []
        self.waiting: list[Request] = []
        self.open_sessions: list[str] = []
        self.histories: dict[str, list[int]] = {}
        self.left: set[str] = set()
        self.retracted_turns: dict[str, str] = {}

    def fork(self, copies: dict[Request, Request]) -> RequestTable:
        """The same of copied requests, which are in the order of `everybody`."""
        new = RequestTable.__new__(RequestTable)
        new.everybody = list(copies.values())
        new.waiting = [copies[request] for request in self.waiting]
        new.open_sessions = self.open_sessions[:]
        new.histories = dict(self.histories)
        new.left = set(self.left)
        new.retracted_turns = dict(self.retracted_turns)
        return new

    def has_session(self, request: Request) -> bool:
        """Whether a request is a session's turn, and has not left it."""
        return bool(request.turn.session) and request.rid not in self.left

    def of_session(self, session: str) -> list[Request]:
        return [request for request in self.everybody if request.turn.session == session]
