"""A child that has torch, triton and the tiers loaded, and answers each question in a fork of itself:
`python -m specsim.tiers.fork_server_child QUESTIONS_FD` (`specsim.isolation.questions`).

    this process   has torch, triton and the tiers
      holder       a fork of it that has imported the target of the last question, too, where its tier does so
        answer     a fork of the holder, or of this process, for each question

A question costs the lifting and checking alone, and no question sees what another left behind. Messages are those of
`specsim.tiers.child`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

import msgspec

from specsim.isolation.limits import limit_memory
from specsim.isolation.messages import Envelope
from specsim.isolation.processes import end_fork, fork
from specsim.isolation.questions import CODE, Question, Questions, put
from specsim.tiers.child import answer_envelope
from specsim.tiers.messages import Request
from specsim.tiers.registry import TIERS

_READY = b"+"


def main() -> None:
    from specsim.tiers.ops.answers import choose_device

    questions = Questions(int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    choose_device("cpu")  # a fork can use no GPU that its parent has seen
    for tier in TIERS.values():
        for name in tier.preloaded:
            importlib.import_module(name)
    holder: TargetHolder | None = None

    def answered(question: Question) -> int:
        nonlocal holder
        held = _held_by(question)
        if held and (holder is None or holder.held != held):
            if holder is not None:
                holder.close()
            holder = TargetHolder(question, held, questions)
        code = holder.answered(question) if held and holder is not None else None
        return _in_a_fork(question, questions) if code is None else code

    _serve(questions, answered)


def _serve(questions: Questions, answered: Callable[[Question], int]) -> None:
    """Take questions as long as there are some. `answered` is the exit status of whoever answers one."""
    while (question := questions.take()) is not None:
        code = answered(question)
        os.close(question.pipe)
        questions.done(code)


class TargetHolder:
    """Has loaded the target of a question, and answers each question about it in a fork. One that cannot load it, or
    not in the time that a question has, answers none: whoever asks is to see for itself.
    """

    def __init__(self, question: Question, held: str, questions: Questions) -> None:
        self.held = held
        request = _request_of(question)
        self._control, theirs = socket.socketpair()
        self._pid = fork(own_group=True)
        if self._pid == 0:
            questions.close()
            self._control.close()
            _hold_and_serve(question, theirs)
        theirs.close()
        self._control.settimeout(request.hang_seconds)
        try:
            self._is_there = self._control.recv(len(_READY)) == _READY
        except TimeoutError:
            self._is_there = False
        self._control.settimeout(None)

    def answered(self, question: Question) -> int | None:
        """The exit status of whoever answered a question; None where nobody does."""
        if not self._is_there:
            return None
        told = b""
        with contextlib.suppress(OSError):
            put(self._control, question.content, question.pipe)
            told = self._control.recv(CODE.size)
        self._is_there = len(told) == CODE.size
        return int(CODE.unpack(told)[0]) if self._is_there else -signal.SIGKILL

    def close(self) -> None:
        self._control.close()
        end_fork(self._pid)


def _hold_and_serve(question: Question, control: socket.socket) -> None:
    """In a holder. Does not return."""
    request, code = _request_of(question), 0
    os.close(question.pipe)
    try:
        limit_memory(_envelope_of(question).memory_bytes, request.device)
        importlib.import_module(TIERS[request.tier].loader).hold(request)
        control.sendall(_READY)
        questions = Questions(control.detach())
        _serve(questions, lambda taken: _in_a_fork(taken, questions))
    except BaseException:  # whoever asks sees it for itself
        code = 1
    finally:
        os._exit(code)


def _held_by(question: Question) -> str:
    """What a holder would have for a question, "" where there is nothing to hold."""
    try:
        request = _request_of(question)
        loader = TIERS[request.tier].loader
        return str(importlib.import_module(loader).held_by(request)) if loader else ""
    except (msgspec.ValidationError, KeyError):  # which is said where it is answered
        return ""


def _envelope_of(question: Question) -> Envelope:
    return msgspec.convert(json.loads(question.content), Envelope)


def _request_of(question: Question) -> Request:
    return msgspec.convert(_envelope_of(question).request, Request)


def _in_a_fork(question: Question, questions: Questions) -> int:
    """Answer a question in a fork of this process; returns its exit status."""
    process = fork()
    if process == 0:
        questions.close()
        _answer_and_end(question.content, question.pipe)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


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
