"""What a session keeps of a turn for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specsim.verdict import Rule, Severity
from specsim.world.rule import Check, Lie, Run, Violation


class SessionHistory(Check):
    """The prompt of a turn is all that its user sent and was told before, and what the turn appends. A turn that was
    aborted is none of it.
    """

    rule = Rule(
        "I53", "session-claim", "a session keeps the shorter of its visible tokens and KVready", Severity.WRONG_RESULT
    )
    defects = (
        Lie(
            "forgets a token",
            "requests",
            lambda states: [replace(s, prompt=s.prompt[1:]) if "." in s.rid else s for s in states],
        ),
    )

    def at_rest(self, run: Run) -> Iterator[Violation]:
        given = {state.rid: state.prompt for state in run.started.requests()}
        for turn, expected, answer, follows_abort in run.turns:
            is_looked_at = turn.session and turn.rid not in run.users.refusable
            if not is_looked_at or answer is None or answer.reason == "abort":
                continue
            prompt = given.get(turn.rid, expected)
            if prompt != expected:
                part = "turn:after-an-abort" if follows_abort else "turn"
                text = f"{len(expected)} tokens, {len(turn.prompt)} of them its own"
                actual = f"{len(prompt)} tokens" if len(prompt) != len(expected) else "others"
                yield self.broken(part, turn.rid, text, actual)
                return
