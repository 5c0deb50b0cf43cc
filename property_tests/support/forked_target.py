"""A target's child process that is a fork of the test's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from specsim.isolation.conversation import Conversation, blamed
from specsim.isolation.frames import new_nonce
from specsim.isolation.messages import Answered, Messages
from specsim.isolation.processes import fork
from specsim.tiers.child import answer
from specsim.tiers.messages import ANSWERS, Request


def forked(request: Request, hang_seconds: float, _hash_seed: str = "") -> Iterator[Any]:
    """As `specsim.tiers.process.ask`, with a fork of this process for a child, which is there at once."""
    nonce = new_nonce()
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(reader)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        messages, code = Messages(writer, nonce.hex()), 1
        try:
            answer(request, messages)
            messages.send(Answered())
            code = 0
        except SystemExit as asked:
            code = asked.code if isinstance(asked.code, int) else 0
        finally:
            os._exit(code)
    os.close(writer)
    codes: list[int] = []

    def gone() -> int | None:
        done, status = os.waitpid(pid, os.WNOHANG)
        codes.extend([os.waitstatus_to_exitcode(status)] if done else [])
        return codes[0] if codes else None

    try:
        yield from blamed(Conversation(reader, nonce, ANSWERS, gone, hang_seconds), request.target)
    finally:
        os.close(reader)
        if not codes:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
