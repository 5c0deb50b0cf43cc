"""The child process that runs a target's code: `python -m specsim.tiers.child MESSAGES_FD`, its question as JSON on
standard input.

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
from typing import Any

from specsim import interrupts
from specsim.errors import UsageError, described
from specsim.isolation import phases
from specsim.isolation.frames import FRAME_BYTES_MAX, Writer
from specsim.isolation.limits import limit_memory
from specsim.tiers.messages import PROGRESS_EVENTS, VERSION, encoded

Request = dict[str, Any]

# What a request may ask for, and the function that does it. By name: each imports only what it needs.
MODES = {
    "ops.check": ("specsim.tiers.ops.child", "check"),
    "ops.replay": ("specsim.tiers.ops.child", "replay"),
    "ops.shrink": ("specsim.tiers.ops.child", "shrink"),
    "accounting.check": ("specsim.tiers.accounting.child", "check"),
    "accounting.failure": ("specsim.tiers.accounting.child", "failure"),
    "accounting.replay": ("specsim.tiers.accounting.child", "replay"),
    "accounting.shrink": ("specsim.tiers.accounting.child", "shrink"),
    "workers.check": ("specsim.tiers.workers.child", "check"),
    "workers.failure": ("specsim.tiers.workers.child", "failure"),
    "workers.replay": ("specsim.tiers.workers.child", "replay"),
    "workers.shrink": ("specsim.tiers.workers.child", "shrink"),
    "bulk.check": ("specsim.tiers.ops.bulk_child", "check"),
    "bulk.failure": ("specsim.tiers.ops.bulk_child", "failure"),
    "ops.search": ("specsim.tiers.search_child", "search_op"),
    "accounting.search": ("specsim.tiers.search_child", "search_rule"),
}


class Messages:
    """The child's end of the pipe. `is_loading` says that none of the target's code runs; from the first case on it
    does.
    """

    def __init__(self, descriptor: int, nonce: str) -> None:
        self._writer = Writer(descriptor, bytes.fromhex(nonce))
        self._phase = phases.LOADING
        self._has_cases = False

    @property
    def is_loading(self) -> bool:
        return not self._has_cases and self._phase == phases.LOADING

    def send(self, event: str, **fields: Any) -> None:
        """Send a message of `specsim.tiers.messages`."""
        content = encoded(event, fields)
        if len(content) > FRAME_BYTES_MAX:
            raise UsageError(
                f"an answer has {len(content)} bytes; {FRAME_BYTES_MAX} are allowed", "make what it is about smaller"
            )
        self._has_cases = self._has_cases or event in PROGRESS_EVENTS
        self._writer.send(content)

    def tell_phase(self, name: str) -> None:
        self._phase = name
        if not self._has_cases:
            self.send("phase", name=name, version=VERSION)

    def move_here(self) -> None:
        """In a fork that answers in place of its parent."""
        self._writer.move_here()

    def close(self) -> None:
        self._writer.close()


def main() -> None:
    interrupts.listen()
    asked = json.load(sys.stdin.buffer)
    messages = Messages(int(sys.argv[1]), asked["nonce"])
    limit_memory(asked["memory_bytes"], asked["request"].get("device", "cpu"))
    answer(asked["request"], messages)
    messages.send("answered")  # what it runs may have ended it before, with exit code 0 too


def answer(request: Request, messages: Messages) -> None:
    """Answer one request. What is raised while specsim's own code runs is an error of specsim, or of what it reads."""
    phases.listen(messages.tell_phase)
    messages.tell_phase(phases.LOADING)
    try:
        module, function = MODES[request["mode"]]
        getattr(importlib.import_module(module), function)(request, messages)
    except UsageError as error:
        messages.send("error", problem=error.problem, remedy=error.remedy)
    except Exception as error:
        if not messages.is_loading:
            raise
        messages.send("error", **unreadable(request["target"], error))


def unreadable(target: str, error: Exception) -> dict[str, str]:
    """The problem and remedy of what was raised while a target was read."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return {
        "problem": f"{target} cannot be judged: specsim does not read it ({described(error)})",
        "remedy": f"report this as a defect of specsim, with {os.path.basename(last.filename)}:{last.lineno}",
    }


if __name__ == "__main__":
    main()
