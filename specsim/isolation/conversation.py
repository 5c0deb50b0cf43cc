"""The parent's end of a conversation: start a child, ask it, and notice when it dies or hangs.

A call that hangs is ended after a limit; a child that dies is noticed. What comes through the pipe is checked before
anything is made of it. Imports neither torch nor triton.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, Protocol

from specsim import interrupts
from specsim.errors import UsageError
from specsim.isolation import environment, phases, processes
from specsim.isolation.frames import BadFrameError, FrameReader, new_nonce
from specsim.isolation.limits import memory_bytes
from specsim.isolation.messages import VERSION, Answered, BadMessageError, Envelope, Error, Phase, decoded, to_bytes
from specsim.isolation.processes import Patience

TAIL_BYTES = 1 << 16  # of what was printed, in which the last line is looked for
START_SECONDS_MAX = 120.0  # a child imports torch and triton, and lifts the target
POLL_SECONDS, END_POLL_SECONDS = 0.2, 0.005
READ_BYTES = 1 << 20


class ChildEnded(Exception):  # noqa: N818 - not an error: how a child process ended
    """The child died or was ended before its work was done. `hung` says which, `is_loading` that it did while
    specsim's own code ran.
    """

    def __init__(self, hung: bool, text: str, stderr: str, is_loading: bool = False) -> None:
        super().__init__(text)
        self.hung = hung
        self.text = text
        self.stderr = stderr
        self.is_loading = is_loading


def ended_early(target: str, ended: ChildEnded) -> UsageError:
    """A child that ended before any of the target's code ran: nothing of the target can be blamed."""
    return UsageError(
        f"the process that runs {target} ended early ({ended.text})",
        ended.stderr or "run `specsim targets` to see what works here",
    )


def no_answer(target: str) -> UsageError:
    return UsageError(f"the process that runs {target} gave no answer", "report this as a defect of specsim")


class ChildQuestion(Protocol):
    """A question to a child, as a msgspec struct. `hang_seconds` is the limit of one call of the target's code."""

    @property
    def target(self) -> str: ...
    @property
    def hang_seconds(self) -> float: ...


class Stopped(NamedTuple):
    """Why no more messages come: the child ended with `code`, is `hung`, or wrote what is no message."""

    code: int | None = None
    hung: bool = False
    bad: str = ""


class Conversation:
    """The messages of one question, from the pipe and until whoever answers is gone.

    `kinds` is the union of the messages that may come. `gone()` is the exit status of that process, None while it is
    there; `bell` is a descriptor that becomes readable when it goes, where there is one; `said()` is the last line that
    it printed; `pid` is the process, 0 where it is not known. The limit of a call that runs the target's code is
    `hang_seconds`. `is_answered` says that the last message came.
    """

    def __init__(
        self,
        pipe: int,
        nonce: bytes,
        kinds: Any,
        gone: Callable[[], int | None],
        hang_seconds: float,
        said: Callable[[], str] = str,
        bell: int | None = None,
        pid: int = 0,
    ) -> None:
        self._pipe = pipe
        self._reader = FrameReader(nonce)
        self._kinds = kinds
        self._gone = gone
        self._said = said
        self._bell = bell
        self._pid = pid
        self._hang_seconds = hang_seconds
        self._limit_s = START_SECONDS_MAX
        self._is_loading = True  # whose code runs, as far as was said
        self.is_answered = False

    def __iter__(self) -> Iterator[Any]:
        """Raises UsageError when the child says so, ChildEnded when it does not come to the end of its work."""
        for event in self._events():
            match event:
                case Stopped():
                    if not self.is_answered or event.hung or event.bad:
                        raise ChildEnded(event.hung, self._how(event), self._said(), self._is_loading)
                    return
                case Phase():
                    if event.version != VERSION:
                        raise UsageError("the child is of another specsim", "end all that run, and start again")
                    self._is_loading = event.name == phases.LOADING
                    self._limit_s = START_SECONDS_MAX if self._is_loading else self._hang_seconds
                case Error():
                    raise UsageError(event.problem, event.remedy)
                case Answered():
                    self.is_answered = True
                case _:
                    self._is_loading = self._is_loading and not event.in_progress
                    self._limit_s = self._hang_seconds if event.in_progress else START_SECONDS_MAX
                    self.is_answered = event.is_last
                    yield event

    def _how(self, stopped: Stopped) -> str:
        """How it stopped, as the end of a sentence about the process."""
        if stopped.hung:
            return f"does not end within {self._limit_s:g} s"
        if stopped.bad:
            return f"writes to the descriptor of specsim's messages ({stopped.bad})"
        code = stopped.code or 0
        return f"ends its process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"

    def _events(self) -> Iterator[Any]:
        os.set_blocking(self._pipe, False)
        with selectors.DefaultSelector() as selector:
            pipe_key = (selector.register(self._pipe, selectors.EVENT_READ), selectors.EVENT_READ)
            if self._bell is not None:
                selector.register(self._bell, selectors.EVENT_READ)
            is_open = True
            patience = Patience(self._pid, self._limit_s)
            while True:
                ready = selector.select(POLL_SECONDS if is_open else END_POLL_SECONDS)
                # Whoever is gone before the pipe is emptied has nothing more to say.
                code = None if ready == [pipe_key] else self._gone()
                while is_open:
                    try:
                        chunk = os.read(self._pipe, READ_BYTES)
                    except BlockingIOError:
                        break
                    if not chunk:
                        is_open = False
                        selector.unregister(self._pipe)
                        code = 0 if self.is_answered and self._bell is None else self._gone()
                        break
                    for event in self._taken(chunk):
                        yield event
                        patience = Patience(self._pid, self._limit_s)
                if code is not None:
                    yield Stopped(code=code)
                elif patience.is_over:
                    yield Stopped(hung=True)

    def _taken(self, chunk: bytes) -> Iterator[Any]:
        """What a part of the stream completes."""
        bad = ""
        try:
            contents = self._reader.feed(chunk)
        except BadFrameError as error:
            contents, bad = error.before, str(error)
        for content in contents:
            try:
                yield decoded(content, self._kinds)
            except BadMessageError as error:
                yield Stopped(bad=str(error))
        if bad:
            yield Stopped(bad=bad)


def blamed(conversation: Conversation, target: str) -> Iterator[Any]:
    """The messages; a child that ends while specsim's own code runs is a UsageError."""
    try:
        yield from conversation
    except ChildEnded as ended:
        if ended.is_loading:
            raise ended_early(target, ended) from None
        raise


def envelope(request: ChildQuestion, nonce: bytes) -> bytes:
    """A question as a child takes it."""
    return to_bytes(Envelope(nonce=nonce.hex(), memory_bytes=memory_bytes(), request=request))


@contextmanager
def child(
    module: str, request: ChildQuestion, kinds: Any, hash_seed: str, hang_seconds: float
) -> Iterator[Conversation]:
    """Start `python -m MODULE MESSAGES_FD`, which takes its question from standard input. `hash_seed` is its
    PYTHONHASHSEED, "" for this process' own.
    """
    nonce = new_nonce()
    asked = envelope(request, nonce)
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as stderr:
        try:
            process = processes.start(
                [sys.executable, "-m", module, str(writer)],
                environment.of_target(hash_seed=hash_seed),
                stdin=subprocess.PIPE,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[writer],
                holds_interrupts=True,
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(asked)
                process.stdin.close()
            except BrokenPipeError:
                pass
            with interrupts.passed_on(process.pid):
                yield Conversation(
                    reader, nonce, kinds, process.poll, hang_seconds, lambda: tail(stderr), pid=process.pid
                )
        finally:
            os.close(reader)
            processes.end(process)


def tail(stderr: IO[bytes], start: int = 0) -> str:
    """The last line that was printed from the byte `start` on, "" for none."""
    stderr.seek(max(start, stderr.seek(0, os.SEEK_END) - TAIL_BYTES))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
