"""A child that has torch, triton and the tiers loaded, and answers each question in a fork of itself:
`python -m specsim.tiers.fork_server_child QUESTIONS_FD` (`specsim.isolation.questions`).

A question costs the lifting and checking alone, and no question sees what another left behind. Messages are those of
`specsim.tiers.child`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback

from specsim.isolation.processes import fork
from specsim.isolation.questions import Questions
from specsim.tiers.child import answer_envelope
from specsim.tiers.registry import TIERS


def main() -> None:
    from specsim.tiers.ops.answers import choose_device

    questions = Questions(int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    choose_device("cpu")  # a fork can use no GPU that its parent has seen
    for tier in TIERS.values():
        for name in tier.preloaded:
            importlib.import_module(name)
    while (question := questions.take()) is not None:
        process = fork()
        if process == 0:
            questions.close()
            _answer_and_end(question.content, question.pipe)
        os.close(question.pipe)
        _, status = os.waitpid(process, 0)
        questions.done(os.waitstatus_to_exitcode(status))


def _answer_and_end(content: bytes, pipe: int) -> None:
    code = 1
    try:
        answer_envelope(content, pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
