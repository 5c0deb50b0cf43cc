"""The process that has a target loaded and runs its batches, each in a fork of itself:
`python -m specsim.fuzz.child QUESTIONS_FD` (`specsim.isolation.questions`).

A fork costs milliseconds where loading a release costs seconds, no batch sees what another left behind, and the memory
of a batch is given back at its end. The fork writes the index of its run into memory that both have; when it dies, or
shows no new index for too long, that run is made once more alone, and its choices are written down: a run that ends
its process again is a finding, and one that does not (a busy machine, a kill from outside) is told. What the batch had
done before that run is done again. Messages are those of
`specsim.fuzz.batch_messages`.

This module imports neither torch nor triton; the target that it loads may.
"""

from __future__ import annotations

import gc
import json
import math
import mmap
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from specsim import interrupts
from specsim.choices.chooser import RecordingChooser, Tape
from specsim.deadline import Deadline
from specsim.engine.rules.failures import SCHEDULE_CRASH, SCHEDULE_TIMEOUT
from specsim.engines.target import parse_target
from specsim.errors import UsageError, described
from specsim.fuzz.batch import (
    SHRINKING,
    chooser_of,
    failure_of,
    run_batch_here,
    run_one,
    shown_as_found,
)
from specsim.fuzz.batch_messages import (
    Again,
    BatchEnd,
    BatchRequest,
    Running,
    batch_from_json,
    found_from_json,
    found_to_json,
    result_from_json,
    result_to_json,
)
from specsim.fuzz.versions import version_of
from specsim.fuzz.work import Batch, BatchResult
from specsim.isolation import phases
from specsim.isolation.frames import BadFrameError, FrameReader, Writer, new_nonce
from specsim.isolation.limits import limit_memory
from specsim.isolation.messages import Envelope, Error, Messages
from specsim.isolation.processes import fork
from specsim.isolation.questions import Questions
from specsim.lifting.cache import Cache
from specsim.tiers.accounting.answers import load_target
from specsim.tiers.child import unreadable
from specsim.verdict import NotRun

TOLD_SECONDS = 5.0
POLL_SECONDS, END_POLL_SECONDS = 0.5, 0.002
READ_BYTES = 1 << 20
START_SECONDS = 60.0  # until a fork has begun its first run
ORDER_SECONDS = 100.0  # looking for the decisive pair of events, which tells nothing meanwhile
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)  # a run that ends so may have been ended by somebody else
CHOICES_MAX = 1 << 16  # of a run whose choices are written down
NOT_BEGUN = -3
ATTEMPTS_MAX = 4  # at a batch


class SharedPage:
    """Memory that a fork and its parent have: the index of the run that comes, how often it was told, and choices."""

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 8 * (CHOICES_MAX + 3))).cast("q")

    def clear(self) -> None:
        self._numbers[0], self._numbers[1], self._numbers[2] = NOT_BEGUN, 0, 0

    def tell(self, index: int) -> None:
        numbers = self._numbers
        numbers[0] = index
        numbers[1] += 1

    @property
    def told(self) -> tuple[int, int]:
        """The index, and how many were told."""
        return self._numbers[0], self._numbers[1]

    def chosen(self, value: int) -> None:
        """Write a choice down."""
        count = self._numbers[2]
        if count < CHOICES_MAX:
            self._numbers[3 + count] = value
            self._numbers[2] = count + 1

    @property
    def tape(self) -> Tape:
        return tuple(self._numbers[3 : 3 + self._numbers[2]])


class Died(NamedTuple):
    """A fork that did not come to its end: on which run, and how."""

    run: int
    hung: bool
    text: str
    from_outside: bool


@dataclass(slots=True)
class Loaded:
    """The target that this process has, its name and version."""

    text: str
    target: Any
    version: str


def main() -> None:
    questions = Questions(int(sys.argv[1]))
    page = SharedPage()
    loaded: Loaded | None = None
    forks = Forks(questions, page)
    while (question := questions.take()) is not None:
        envelope = msgspec.convert(json.loads(question.content), Envelope)
        request = msgspec.convert(envelope.request, BatchRequest)
        messages = forks.begin(question.pipe, envelope)
        phases.listen(messages.tell_phase)
        try:
            if loaded is None:
                loaded = _load(request)
            answer = _ANSWERS[request.mode]
            answer(request, loaded, forks)
        except UsageError as error:
            messages.send(Error(problem=error.problem, remedy=error.remedy))
        except Exception as error:
            if loaded is not None:
                raise
            messages.send(unreadable(request.target, error))
        messages.close()
        forks.end()
        questions.done(0)


def _load(request: BatchRequest) -> Loaded:
    text, cache = request.target, Path(request.cache)
    version = version_of(parse_target(text), Cache(cache))
    target = load_target(text)
    # What forks only read stays one copy.
    gc.collect()
    gc.freeze()
    return Loaded(text, target, version)


class Forks:
    """Forks of this process, one at a time. When whoever asked is gone, the fork is ended, and this process."""

    messages: Messages  # of the question that is answered

    def __init__(self, questions: Questions, page: SharedPage) -> None:
        self.page = page
        self._questions = questions
        self._memory_bytes = 0
        self._fork = 0
        self._interrupted = False
        signal.signal(signal.SIGINT, self._pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    @property
    def interrupted(self) -> bool:
        """Whether this request was interrupted, maybe before it came."""
        return self._interrupted

    def begin(self, pipe: int, envelope: Envelope) -> Messages:
        """Begin to answer a question."""
        self._memory_bytes = envelope.memory_bytes
        self.messages = Messages(pipe, envelope.nonce)
        return self.messages

    def end(self) -> None:
        """A question is answered: an interrupt that came was of it."""
        self._interrupted = False

    def run(self, function: Callable[[], dict[str, Any]], hang_seconds: float) -> dict[str, Any] | Died:
        """What the function returns in a fork, or how the fork died."""
        self.page.clear()
        reader, writer = os.pipe()
        nonce = new_nonce()
        with interrupts.held():  # one that comes now is passed on, and waits until the fork can note it
            pid = fork()
            if pid == 0:
                os.close(reader)
                self._questions.close()
                self.messages.close()
                limit_memory(self._memory_bytes, "cpu")
                _answer_and_end(function, Writer(writer, nonce))
            self._fork = pid
        os.close(writer)
        try:
            return self._wait(reader, FrameReader(nonce), hang_seconds)
        finally:
            self._fork = 0
            os.close(reader)

    def _wait(self, pipe: int, reader: FrameReader, hang_seconds: float) -> dict[str, Any] | Died:
        answers: list[bytes] = []
        told, changed, said = self.page.told, time.monotonic(), time.monotonic()
        hung = bad = False
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            asker = selector.register(self._questions, selectors.EVENT_READ)
            while True:
                ready = [key for key, _ in selector.select(POLL_SECONDS)]
                if asker in ready and self._questions.is_asker_gone():
                    os.kill(self._fork, signal.SIGKILL)
                    os._exit(0)
                if ready and ready != [asker]:
                    chunk = os.read(pipe, READ_BYTES)
                    if not chunk:
                        break
                    try:
                        answers += reader.feed(chunk)
                    except BadFrameError:
                        bad = True
                        os.kill(self._fork, signal.SIGKILL)
                        break
                    changed = time.monotonic()
                now = time.monotonic()
                if self.page.told != told:
                    told, changed = self.page.told, now
                elif now - changed > _limit(told[0], hang_seconds):
                    hung = True
                    os.kill(self._fork, signal.SIGKILL)
                    break
                if now - said > TOLD_SECONDS:
                    said = now
                    self.messages.send(Running(index=told[0]))
        code = self._code(hang_seconds)
        if code == 0 and not hung and not bad and answers:
            whole: dict[str, Any] = json.loads(answers[0])
            return whole
        index = self.page.told[0]
        if hung:
            return Died(index, True, f"does not end within {hang_seconds:g} s", False)
        if bad:
            return Died(index, False, "writes to the descriptor of specsim's messages", False)
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raised = f": {answers[0].decode(errors='replace')}" if answers and code > 0 else ""
        return Died(index, False, f"ends its process ({name}){raised}", -code in FROM_OUTSIDE)

    def _code(self, hang_seconds: float) -> int:
        """The exit status of the fork, which has closed its pipe, and is killed where it goes on without it."""
        end = time.monotonic() + hang_seconds
        while True:
            done, status = os.waitpid(self._fork, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                os.kill(self._fork, signal.SIGKILL)
                end = math.inf
            time.sleep(END_POLL_SECONDS)

    def _pass_on(self, _number: int, _frame: object) -> None:
        self._interrupted = True
        if self._fork:
            os.kill(self._fork, signal.SIGINT)


def _limit(index: int, hang_seconds: float) -> float:
    if index == NOT_BEGUN:
        return max(hang_seconds, START_SECONDS)
    return hang_seconds if index >= SHRINKING else max(hang_seconds, ORDER_SECONDS)


def _answer_and_end(function: Callable[[], dict[str, Any]], writer: Writer) -> None:
    """In the fork: it notes interrupts, and answers."""
    code, answer = 1, ""
    try:
        interrupts.listen()
        answer = json.dumps(function())
        code = 0
    except BaseException as error:
        answer = described(error).partition("\n")[0]
    finally:
        try:
            writer.send(answer.encode(errors="replace"))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _run_batch(request: BatchRequest, loaded: Loaded, forks: Forks) -> None:
    """Run a batch. Answers with its result, whatever the target does."""
    batch = batch_from_json(request.batch)
    hang_seconds: float = request.hang_seconds
    if isinstance(loaded.target, NotRun):
        refused = BatchResult(
            batch, loaded.version, 0, 0, 0.0, 0.0, {f"{batch.tier}: {loaded.target.why}": batch.count}
        )
        forks.messages.send(BatchEnd(result=result_to_json(refused)))
        return
    started = time.monotonic()
    target, page = loaded.target, forks.page
    found: list[dict[str, Any]] = []
    ended: list[str] = []
    shrinks, count = True, batch.count
    answer = _empty(batch, loaded.version)
    while count and len(ended) < ATTEMPTS_MAX:
        part = replace(batch, count=count)

        def work(part: Batch = part, shrinks: bool = shrinks) -> dict[str, Any]:
            def stopped() -> bool:
                return interrupts.asked() or forks.interrupted

            seconds, ends = request.seconds, Deadline.from_json(request.ends_at)
            result = run_batch_here(target, part, loaded.version, page.tell, seconds, stopped, shrinks, ends)
            return result_to_json(result)

        done = forks.run(work, hang_seconds)
        if not isinstance(done, Died):
            answer = done
            break
        if done.run < 0:  # no run of the target is to blame
            ended.append(f"the process {done.text} {'at its start' if done.run == NOT_BEGUN else 'while shrinking'}")
            shrinks = shrinks and (done.run == NOT_BEGUN or done.from_outside)
            continue
        blamed, told = _alone(batch, done, loaded, forks, hang_seconds)
        found += blamed
        ended.append(told)
        if blamed:
            count = done.run - batch.first
    result = result_from_json(answer)
    whole = replace(
        result,
        batch=batch,
        runs=result.runs + len(found),
        seconds=time.monotonic() - started,
        findings=(*result.findings, *map(found_from_json, found)),
        ended="; ".join(filter(None, [*ended, result.ended])),
    )
    forks.messages.send(BatchEnd(result=result_to_json(whole)))


def _make_again(request: BatchRequest, loaded: Loaded, forks: Forks) -> None:
    """Make one run again, and say what it did."""
    batch, index = batch_from_json(request.batch), request.index
    target, page = loaded.target, forks.page
    if isinstance(target, NotRun):
        forks.messages.send(Again(version=loaded.version, checked=False, shown={"why": target.why}))
        return

    def work() -> dict[str, Any]:
        refused: dict[str, int] = {}
        page.tell(index)
        schedule = run_one(target, chooser_of(batch, index), refused)
        if schedule is None:
            return {"judged": False, "why": next(iter(refused), "")}
        findings = shown_as_found(target, batch, index, schedule)
        return {
            "judged": True,
            "digest": schedule.run.digest,
            "events": len(schedule.run.log),
            "tape": list(schedule.tape),
            "findings": [found_to_json(found) for found in findings],
        }

    answer = forks.run(work, request.hang_seconds)
    if isinstance(answer, Died):
        blamed, told = _alone(batch, answer, loaded, forks, request.hang_seconds)
        answer = {"judged": True, "digest": "", "events": 0, "tape": [], "findings": blamed, "why": told}
    checked = answer.pop("judged")
    forks.messages.send(Again(version=loaded.version, checked=checked, shown=answer))


def _empty(batch: Batch, version: str) -> dict[str, Any]:
    return result_to_json(BatchResult(batch, version, 0, 0, 0.0, 0.0))


def _alone(
    batch: Batch, died: Died, loaded: Loaded, forks: Forks, hang_seconds: float
) -> tuple[list[dict[str, Any]], str]:
    """Make the run once more on which a fork died, and write its choices down: its finding, if it ends its process this
    time too, and what to tell.
    """
    target, page = loaded.target, forks.page

    def work() -> dict[str, Any]:
        page.tell(died.run)
        run_one(target, _WrittenChooser(chooser_of(batch, died.run), page))
        return {}

    again = forks.run(work, hang_seconds)
    if not isinstance(again, Died):
        return [], f"run {died.run} {died.text}, and not when it was made again"
    if again.run != died.run or again.from_outside:
        return [], f"run {died.run} {died.text}; made again, run {again.run} {again.text}"
    tape = page.tape

    def write() -> dict[str, Any]:
        rule = (SCHEDULE_TIMEOUT if again.hung else SCHEDULE_CRASH).id
        return found_to_json(failure_of(batch, target.features, died.run, tape, rule, again.text))

    answer = forks.run(write, hang_seconds)
    return [] if isinstance(answer, Died) else [answer], f"run {died.run} {again.text}"


class _WrittenChooser(RecordingChooser):
    """The choices of `inner`, written down as they are made."""

    __slots__ = ("_inner", "_page")

    def __init__(self, inner: RecordingChooser, page: SharedPage) -> None:
        super().__init__(inner.choose)
        self._inner = inner
        self._page = page

    def choose(self, bound: int, label: str) -> int:
        value = self._inner.choose(bound, label)
        self._page.chosen(value)
        return value

    def unbias(self) -> None:
        self._inner.unbias()

    @property
    def tape(self) -> Tape:
        return self._inner.tape


_ANSWERS: dict[str, Callable[[BatchRequest, Loaded, Forks], None]] = {
    "batch": _run_batch,
    "again": _make_again,
}


if __name__ == "__main__":
    main()
