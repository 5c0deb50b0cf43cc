"""A child that has torch, triton and the tiers loaded, and answers each question in a fork of itself:
`python -m specsim.judge.warm_child QUESTIONS_FD` (`specsim.isolation.questions`).

A question costs the lifting and judging alone, and no question sees what another left behind. Messages are those of
`specsim.judge.child`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

from specsim.isolation.limits import limit_memory
from specsim.isolation.processes import fork
from specsim.isolation.questions import Questions
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

    questions = Questions(int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    choose_device("cpu")  # a fork can use no GPU that its parent has seen
    for name in _LOADED_BEFORE:
        importlib.import_module(name)
    while (question := questions.take()) is not None:
        process = fork()
        if process == 0:
            questions.close()
            _answer_and_end(json.loads(question.content), question.pipe)
        os.close(question.pipe)
        _, status = os.waitpid(process, 0)
        questions.done(os.waitstatus_to_exitcode(status))


def _answer_and_end(asked: dict[str, Any], pipe: int) -> None:
    code = 1
    try:
        messages = Messages(pipe, asked["nonce"])
        limit_memory(asked["memory_bytes"], "cpu")
        answer(asked["request"], messages)
        messages.send("answered")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
