"""The child process that runs a target's code: `python -m specsim.tiers.child MESSAGES_FD`, its request as JSON on
standard input (`specsim.isolation.messages.Envelope`).

It answers with messages (`specsim.tiers.messages`) in frames on the file descriptor, so that nothing that a target
prints can be taken for an answer. It says whose code runs, its own or the target's, and before each case which one
comes: when it dies or hangs, the parent knows on what.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

import msgspec

from specsim import interrupts
from specsim.errors import UsageError, described
from specsim.isolation import phases
from specsim.isolation.limits import limit_memory
from specsim.isolation.messages import VERSION, Answered, Envelope, Error, Messages
from specsim.tiers.messages import Request
from specsim.tiers.registry import TIERS


def main() -> None:
    interrupts.listen()
    answer_envelope(sys.stdin.buffer.read(), int(sys.argv[1]))


def answer_envelope(content: bytes, pipe: int) -> None:
    """Answer the request of an envelope on a descriptor."""
    envelope = msgspec.convert(json.loads(content), Envelope)
    messages = Messages(pipe, envelope.nonce)
    try:
        request = msgspec.convert(envelope.request, Request)
    except msgspec.ValidationError as error:
        messages.send(Error(problem=f"a request is none: {error}", remedy="end all specsim that runs, and start again"))
        return
    limit_memory(envelope.memory_bytes, request.device)
    answer(request, messages)
    messages.send(Answered())  # what it runs may have ended it before, with exit code 0 too


def answer(request: Request, messages: Messages) -> None:
    """Answer one request. What is raised while specsim's own code runs is an error of specsim, or of what it reads."""
    phases.listen(messages.tell_phase)
    messages.tell_phase(phases.LOADING)
    try:
        if request.version != VERSION:
            raise UsageError("the command is of another specsim", "end all that run, and start again")
        module = importlib.import_module(TIERS[request.tier].answers(request))
        getattr(module, str(request.work.__struct_config__.tag))(request, request.work, messages)
    except UsageError as error:
        messages.send(Error(problem=error.problem, remedy=error.remedy))
    except Exception as error:
        if not messages.is_loading:
            raise
        messages.send(unreadable(request.target, error))


def unreadable(target: str, error: Exception) -> Error:
    """What was raised while a target was read."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Error(
        problem=f"{target} cannot be checked: specsim does not read it ({described(error)})",
        remedy=f"report this as a defect of specsim, with {os.path.basename(last.filename)}:{last.lineno}",
    )


if __name__ == "__main__":
    main()
