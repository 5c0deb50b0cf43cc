"""The child process that runs a target's code: `python -m specsim.judge.child MESSAGES_FD`, its request as JSON on
standard input.

It answers with JSON lines on the file descriptor, so that nothing that a target prints can be taken for an answer.
Before each case it says which one comes: when it dies or hangs, the parent knows on what.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from specsim import interrupts
from specsim.errors import UsageError

Request = dict[str, Any]

# What a request may ask for, and the function that does it. By name: each imports only what it needs.
MODES = {
    "ops.check": ("specsim.judge.ops_child", "check"),
    "ops.failure": ("specsim.judge.ops_child", "failure"),
    "ops.replay": ("specsim.judge.ops_child", "replay"),
    "ops.shrink": ("specsim.judge.ops_child", "shrink"),
    "accounting.check": ("specsim.judge.accounting_child", "check"),
    "accounting.failure": ("specsim.judge.accounting_child", "failure"),
    "accounting.replay": ("specsim.judge.accounting_child", "replay"),
    "accounting.shrink": ("specsim.judge.accounting_child", "shrink"),
    "workers.check": ("specsim.judge.workers_child", "check"),
    "workers.failure": ("specsim.judge.workers_child", "failure"),
    "workers.replay": ("specsim.judge.workers_child", "replay"),
    "workers.shrink": ("specsim.judge.workers_child", "shrink"),
    "bulk.check": ("specsim.judge.bulk_child", "check"),
    "bulk.failure": ("specsim.judge.bulk_child", "failure"),
    "ops.search": ("specsim.judge.search_child", "search_op"),
    "accounting.search": ("specsim.judge.search_child", "search_rule"),
}


class Messages:
    """The child's end of the pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, event: str, **fields: Any) -> None:
        data = (json.dumps({"event": event, **fields}) + "\n").encode()
        while data:
            data = data[os.write(self._fd, data) :]


def main() -> None:
    interrupts.listen()
    messages = Messages(int(sys.argv[1]))
    answer(json.load(sys.stdin), messages)
    messages.send("answered")  # what it runs may have ended it before, with exit code 0 too


def answer(request: Request, messages: Messages) -> None:
    """Answer one request."""
    try:
        module, function = MODES[request["mode"]]
        getattr(importlib.import_module(module), function)(request, messages)
    except UsageError as error:
        messages.send("error", problem=error.problem, remedy=error.remedy)


if __name__ == "__main__":
    main()
