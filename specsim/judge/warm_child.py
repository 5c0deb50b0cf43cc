"""A child that has torch, triton and the tiers loaded, and answers each question in a fork of itself:
`python -m specsim.judge.warm_child MESSAGES_FD`, a request a line on standard input.

A question costs the lifting and judging alone, and no question sees what another left behind. Messages are those of
`specsim.judge.child`, and after the last one of a question:

{"event": "ended", "code": C}       the process that answered is gone; C is negative for a signal
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback

from specsim.judge.child import Messages, answer

_LOADED_BEFORE = (
    "specsim.check.order",
    "specsim.check.suite",
    "specsim.diff.finding",
    "specsim.diff.suite",
    "specsim.ops.registry",
    "specsim.targets.sglang.accounting",
    "specsim.targets.sglang.provider",
)


def main() -> None:
    from specsim.judge.ops_child import choose_device

    messages = Messages(int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    choose_device("cpu")  # a fork can use no GPU that its parent has seen
    for name in _LOADED_BEFORE:
        importlib.import_module(name)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            _answer_and_end(request, messages)
        _, status = os.waitpid(process, 0)
        messages.send("ended", code=os.waitstatus_to_exitcode(status))


def _answer_and_end(request: dict[str, object], messages: Messages) -> None:
    code = 1
    try:
        # What the target reads from its input is not the next question.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        answer(request, messages)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
