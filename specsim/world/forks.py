"""Schedulers that are started once for each setup, and a fork of one for each schedule.

    this process   has imported the release
      starter      a fork for each setup in use: has started the scheduler
        schedule   a fork of the starter: runs one schedule, leaves its record in memory that both share, and ends

So no schedule sees what another left behind, and one that ends its process ends nothing else. Some schedulers start in
less than a fork takes: of a target that `starts_anew` there is one starter, and its fork runs many schedules, each on a
scheduler of its own.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from specsim.choices.chooser import continued, replayed, seeded
from specsim.choices.exhaustive import Scripted
from specsim.errors import UsageError, described
from specsim.isolation import fork_runner as apart
from specsim.isolation.fork_runner import Called, run_apart
from specsim.isolation.pipes import SIZE, received, send
from specsim.isolation.processes import end_fork, fork
from specsim.world.case import ScheduleCase, shortened
from specsim.world.chosen_users import Bounds, enumerating
from specsim.world.schedule import Record, run_schedule
from specsim.world.scheduler import rows_of, unknown_settings

if TYPE_CHECKING:
    from specsim.choices.chooser import RecordingChooser
    from specsim.world.rule import Check
    from specsim.world.scheduler import SchedulerTarget, Setup, StartedScheduler

T = TypeVar("T")

RECORD_BYTES_MAX, TRAIL_BYTES_MAX = 8 << 20, 1 << 20
RUNS_OF_A_FORK = 100
"""It collects no garbage."""
START_CPU_SECONDS_MAX = 20.0
"""Of the start of a scheduler, which takes less than one."""


class WantedSchedule(msgspec.Struct, frozen=True):
    """A schedule: a `case`, or choices that are made already, and where the others come from: `index` of a seed, or
    zeros (-1). With `records` each step is noted, with `traces` the functions that are run. With `bounds` users choose
    as they go when the requests of the case come, and the tape has what an exploration chooses.
    """

    tape: tuple[int, ...]
    seed: int = 0
    index: int = -1
    seconds: float = 60.0
    records: bool = False
    traces: bool = False
    case: ScheduleCase | None = None
    bounds: Bounds | None = None

    def setup(self, setups: Sequence[Setup]) -> Setup:
        """Of a table, the row that its first choice says."""
        if self.case is not None:
            return self.case.started_by()
        return setups[min(self.tape[0], len(setups) - 1) if self.tape else 0]

    def chooser(self) -> RecordingChooser:
        if self.case is not None:
            return self.case.chooser()
        if self.index < 0:
            return replayed(self.tape)
        return continued(self.tape, seeded(self.seed, "scheduler", self.index))


class EndedSchedule(msgspec.Struct, frozen=True, tag=True):
    """A schedule that ended its process, or had to be ended (`hung`). `case` is what was run until then, None where it
    ended before it ran.
    """

    hung: bool
    text: str
    case: ScheduleCase | None = None


class NotStarted(msgspec.Struct, frozen=True, tag=True):
    """A setup with which the scheduler does not start, and why."""

    why: str


class Ran(msgspec.Struct, frozen=True, tag=True):
    record: Record


Outcome = Ran | EndedSchedule | NotStarted
_outcome: msgspec.json.Decoder[Outcome] = msgspec.json.Decoder(Outcome)
_wanted = msgspec.json.Decoder(WantedSchedule)


def wanted(
    setups: Sequence[Setup], seed: int, index: int, seconds: float, worker: str = "fake", rust_tree: bool = False
) -> WantedSchedule:
    """Schedule `index` of a seed: its setup is the next of the table with that worker, all else is drawn."""
    rows = rows_of(setups, worker, rust_tree)
    return WantedSchedule((rows[index % len(rows)],), seed, index, seconds)


class Starters:
    """The starters of a target, each started when a schedule needs it. `checks` are the rules that schedules are to
    keep; `at_once` schedules run at a time, each in the hands of another starter. Close it.
    """

    def __init__(self, target: SchedulerTarget, checks: Sequence[type[Check]], at_once: int = 1) -> None:
        self._target, self._checks, self._at_once = target, checks, at_once
        freeze()
        self._starters: dict[Setup | int, _Starter] = {}
        self._asked = 0

    def run(self, schedule: WantedSchedule) -> Outcome:
        """Run a schedule. The first choice of one that is drawn is the setup's number."""
        return self._ask(schedule).outcome

    def run_all(self, schedules: Iterable[tuple[T, WantedSchedule]]) -> Iterator[tuple[T, WantedSchedule, Outcome]]:
        """Run schedules, each of them for something: that, the schedule and its outcome, in their order. Those that run
        at a time are taken before the first of them is given.
        """
        ahead: deque[tuple[T, WantedSchedule, _Pending]] = deque()
        for what, schedule in schedules:
            ahead.append((what, schedule, self._ask(schedule)))
            if len(ahead) == self._at_once:
                first, ran, asked = ahead.popleft()
                yield first, ran, asked.outcome
        for what, ran, asked in ahead:
            yield what, ran, asked.outcome

    def _ask(self, schedule: WantedSchedule) -> _Pending:
        anew = self._target.starts_anew
        setup = None if anew else schedule.setup(self._target.setups)
        named = self._asked % self._at_once if setup is None else setup
        self._asked += 1
        starter = self._starters.get(named)
        if starter is None:
            others = tuple(self._starters.values())
            starter = self._starters[named] = _Starter(self._target, setup, self._checks, others)
        return starter.ask(schedule)

    def close(self) -> None:
        for starter in self._starters.values():
            starter.close()


class _Pending:
    """A schedule that a starter was asked to run, and writes the outcome of to a pipe."""

    def __init__(self, answers: int) -> None:
        self._answers = answers

    @cached_property
    def outcome(self) -> Outcome:
        """It is waited for."""
        content = received(self._answers)
        return _outcome.decode(content) if content else NotStarted("the process that starts it ended")


class _Starter:
    """Of a setup; of all, each schedule on a scheduler of its own, where that is None."""

    def __init__(
        self, target: SchedulerTarget, setup: Setup | None, checks: Sequence[type[Check]], others: Sequence[_Starter]
    ) -> None:
        questions, self._questions = os.pipe()
        self._answers, answers = os.pipe()
        self._last: _Pending | None = None
        self._pid = fork(own_group=True)
        if self._pid == 0:
            for starter in (self, *others):
                os.close(starter._questions)
                os.close(starter._answers)
            _serve(target, setup, checks, questions, answers)
        os.close(questions)
        os.close(answers)

    def ask(self, schedule: WantedSchedule) -> _Pending:
        """One at a time: where it still runs another one, that is waited for."""
        if self._last is not None:
            _ = self._last.outcome
        self._last = _Pending(self._answers)
        with suppress(BrokenPipeError):
            send(self._questions, msgspec.json.encode(schedule))
        return self._last

    def close(self) -> None:
        os.close(self._questions)
        os.close(self._answers)
        end_fork(self._pid)


def _serve(
    target: SchedulerTarget, setup: Setup | None, checks: Sequence[type[Check]], questions: int, answers: int
) -> None:
    """In a starter: start the scheduler, then run what is wanted until the pipe closes. Does not return."""
    started = _start(target, setup) if setup is not None else None
    settle()
    runs = _Runs(target, checks, started, (questions, answers))
    while content := received(questions):
        outcome = started if isinstance(started, NotStarted) else runs.run(content)
        send(answers, msgspec.json.encode(outcome))
    runs.close()
    os._exit(0)


def _start(target: SchedulerTarget, setup: Setup) -> StartedScheduler | NotStarted:
    if unknown := unknown_settings(setup, target.setups):
        return NotStarted(f"none of its setups has {unknown[0]}, of which it knows nothing")
    try:
        with _limited(START_CPU_SECONDS_MAX):
            return target.start(setup)
    except UsageError as error:
        return NotStarted(error.problem)
    except Exception as error:
        return NotStarted(", ".join(filter(None, (described(error), *getattr(error, "__notes__", ())))))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in here after so many CPU seconds, so that its traceback says where."""

    def late(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"its start does not end within {seconds:g} CPU seconds")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def freeze() -> None:
    """Keep the garbage collector from what the forks share: to look at an object copies its page."""
    gc.collect()
    gc.freeze()


def settle() -> None:
    """Before the first fork for a schedule, which is short and collects nothing."""
    freeze()
    gc.disable()


class _Runs:
    """Runs schedules in forks, on a scheduler that was started, or each on one that is started for it (None)."""

    def __init__(
        self,
        target: SchedulerTarget,
        checks: Sequence[type[Check]],
        started: StartedScheduler | NotStarted | None,
        pipes: Sequence[int],
    ) -> None:
        self._target, self._checks, self._started, self._pipes = target, checks, started, pipes
        self._shared, self._trail = mmap.mmap(-1, RECORD_BYTES_MAX), Trail()
        self._fork: Called | None = None
        self._left = 0

    def close(self) -> None:
        if self._fork is not None:
            self._fork.close()
            self._fork = None

    def run(self, content: bytes) -> Outcome:
        schedule = _wanted.decode(content)
        self._shared[: SIZE.size] = SIZE.pack(0)
        self._trail.begin()
        if self._started is not None or schedule.records or schedule.traces:
            ended = run_apart(lambda: self._run(schedule), schedule.seconds)
        else:
            ended = self._call(content, schedule.seconds)
        if ended is not None:
            return EndedSchedule(ended.hung, ended.text, self._trail.case(schedule.setup(self._target.setups)))
        (size,) = SIZE.unpack(self._shared[: SIZE.size])
        if not size:
            return EndedSchedule(False, "leaves no record", self._trail.case(schedule.setup(self._target.setups)))
        return _outcome.decode(self._shared[SIZE.size : SIZE.size + size])

    def _call(self, content: bytes, seconds: float) -> apart.Ended | None:
        """In a fork that has run others before."""
        if not self._left:
            self.close()
        if self._fork is None:
            self._fork, self._left = Called(lambda content: self._run(_wanted.decode(content))), RUNS_OF_A_FORK
        self._left -= 1
        ended = self._fork.call(content, seconds)
        if ended is not None:
            self.close()
        return ended

    def _run(self, schedule: WantedSchedule) -> None:
        """In a fork, which has no business with the starter's pipes: a target may write to every descriptor."""
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = ()
        self._trail.begin()
        setup = schedule.setup(self._target.setups)
        started = self._started or _start(self._target, setup)
        outcome: Outcome
        if isinstance(started, NotStarted):
            outcome = started
        else:
            try:
                outcome = Ran(self._record(started, setup, schedule))
            except Exception as error:  # what the scheduler raises is a violation: this is of the adapter
                outcome = NotStarted(f"its adapter fails: {described(error)}, {_place(error)}")
        record = msgspec.json.encode(outcome)
        if len(record) > RECORD_BYTES_MAX - SIZE.size:
            raise ValueError(f"a record of {len(record)} bytes; {RECORD_BYTES_MAX} are allowed")
        self._shared[SIZE.size : SIZE.size + len(record)] = record
        self._shared[: SIZE.size] = SIZE.pack(len(record))

    def _record(self, started: StartedScheduler, setup: Setup, schedule: WantedSchedule) -> Record:
        case, script = schedule.case, Scripted(schedule.tape)
        chooser = enumerating(script) if schedule.bounds is not None else schedule.chooser()
        if case is None:
            chooser.choose(len(self._target.setups), "setup")
        record = run_schedule(
            started,
            setup,
            self._checks,
            chooser,
            workload=case.users() if case is not None else None,
            bounds=schedule.bounds,
            records=schedule.records,
            traces=schedule.traces,
            note=self._trail.note,
        )
        if schedule.bounds is not None:
            return msgspec.structs.replace(record, tape=tuple(script.values), options=tuple(script.bounds))
        return record if case is None else msgspec.structs.replace(record, tape=schedule.tape)


class Trail:
    """What a schedule runs, noted as it is known in memory that it shares: what is left of one that ends its process.
    The workload comes first, then each choice.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, TRAIL_BYTES_MAX)
        self._end = 0

    def begin(self) -> None:
        """Forget the schedule before."""
        self._end = 0
        self._memory[: SIZE.size] = SIZE.pack(0)

    def note(self, value: Any) -> None:
        """The next thing; no more once the memory is full, which a schedule that chooses for ever gets to."""
        line = msgspec.json.encode(value)
        start, end = self._end + SIZE.size, self._end + SIZE.size + len(line)
        if end + SIZE.size > TRAIL_BYTES_MAX:
            return
        self._memory[start : end + SIZE.size] = line + SIZE.pack(0)
        self._memory[self._end : start] = SIZE.pack(len(line))
        self._end = end

    def case(self, setup: Setup) -> ScheduleCase | None:
        """What was noted; None for nothing."""
        lines, place = [], 0
        while size := SIZE.unpack(self._memory[place : place + SIZE.size])[0]:
            place += SIZE.size
            lines.append(msgspec.json.decode(self._memory[place : place + size]))
            place += size
        if not lines:
            return None
        workload, *chosen = lines
        choices: dict[str, list[int]] = {}
        for label, value in chosen:
            choices.setdefault(label, []).append(value)
        return ScheduleCase(setup.settings, workload, shortened(choices))


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}"
