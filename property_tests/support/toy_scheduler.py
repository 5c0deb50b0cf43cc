"""A scheduler of one request a step, and what it says with a defect: for tests of the scheduler tier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from types import CodeType
from typing import Any, cast

from specsim.choices.chooser import Chooser
from specsim.contracts.enumeration import Distribution, Tokens
from specsim.engines.sglang.scheduler.setups import FACTS, SETUPS
from specsim.lifting.changes import Function
from specsim.rules.table import CHECKS
from specsim.world.rule import Lie
from specsim.world.scheduler import (
    MODEL,
    Answer,
    Launch,
    Load,
    LogprobRow,
    Matched,
    Part,
    Pause,
    Pools,
    RequestState,
    Seen,
    Setup,
    StartedScheduler,
    Step,
    TreeNode,
    Turn,
)

DEFECTS = {lie.name: lie for check in CHECKS for lie in check.defects}
"""What a scheduler says that has a defect, by its name."""
TOY_SETUPS = (*SETUPS, Setup(hidden_states=True))


def decode(prompt: Sequence[int], count: int, rank: int = 0) -> list[int]:
    """Of a model whose next token is a sum."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(10 + (sum(tokens) * 7 + len(tokens) + rank) % 80)
    return tokens[len(prompt) :]


def logprobs(prompt: Sequence[int], tokens: Sequence[int], top: int) -> list[LogprobRow]:
    """The longer what comes before, the less likely a token is."""
    rows = []
    for at, token in enumerate(tokens, len(prompt)):
        likely = ((-float(at), (token + i) % 90) for i in range(top))
        rows.append(((-float(at), token), *likely))
    return rows


@dataclass(slots=True)
class _Request:
    rid: str
    prompt: tuple[int, ...]
    answer: int
    stop: int
    session: str
    stop_text: tuple[int, ...] = ()
    grammar: tuple[int, ...] = ()
    logprobs: int = -1
    hidden: str = ""
    prompt_logprobs: int = -1
    outputs: list[int] = field(default_factory=list)
    reason: str = ""
    passes: int = 0


def _ends_in(outputs: list[int], text: tuple[int, ...]) -> bool:
    return bool(text) and tuple(outputs[-len(text) :]) == text


RAN = {"toy.py": [1, 2, 9]}


class ToyScheduler:
    """See `specsim.world.scheduler.StartedScheduler`."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.facts = setup, replace(FACTS, in_order=True, caches=False)
        self.seen = Seen(ran=RAN)
        self._requests: dict[str, _Request] = {}
        self._paused = self._records = False
        self._sessions: dict[str, tuple[int, ...]] = {}

    def decode(self, prompt: Sequence[int], count: int, rank: int = 0) -> list[int]:
        return decode(prompt, count, rank)

    def expected(self, turn: Turn, prompt: Sequence[int], _said: Sequence[int] = ()) -> list[int]:
        return decode(prompt, len(turn.grammar) or turn.answer)

    def logprobs(self, turn: Turn, prompt: Sequence[int], tokens: Sequence[int]) -> list[LogprobRow]:
        return logprobs(prompt, tokens, turn.logprobs)

    def content_of(self, tokens: Sequence[int]) -> int:
        return hash(tuple(tokens))

    def slot_content(self, slot: int) -> int:
        return self.content_of((1, 2)[: slot + 1])

    def window_content(self, slot: int) -> int:
        return self.slot_content(slot)

    def generate(self, turn: Turn) -> Any:
        request = _Request(
            turn.rid,
            turn.prompt,
            turn.answer,
            turn.stop,
            turn.session,
            turn.stop_text,
            turn.grammar,
            turn.logprobs,
            turn.hidden,
            turn.prompt_logprobs,
            reason="abort" if turn.refused else "",
        )
        return lambda: self._add(request)

    def _add(self, request: _Request) -> None:
        if request.session:
            request.prompt = (*self._sessions.get(request.session, ()), *request.prompt)
        assert not self._paused  # a server holds requests back
        self._requests[request.rid] = request

    def abort(self, rid: str) -> Any:
        return lambda: self._abort([rid])

    def abort_all(self) -> Any:
        return lambda: self._abort(list(self._requests))

    def _abort(self, rids: list[str]) -> None:
        for rid in rids:
            if rid in self._requests and not self._requests[rid].reason:
                self._requests[rid].reason = "abort"

    def flush(self) -> Any:
        return lambda: None

    def pause(self, pause: Pause) -> Any:
        return partial(setattr, self, "_paused", True)

    @property
    def has_paused(self) -> bool:
        return True

    def resume(self) -> Any:
        return partial(setattr, self, "_paused", False)

    def open_session(self, name: str, timeout: float) -> Any:
        return lambda: None

    def close_session(self, name: str) -> Any:
        return lambda: None

    def leap(self, seconds: float) -> None:
        return None

    def record(self) -> None:
        self._records = True

    def run(self, chooser: Chooser, script: Callable[[int], Sequence[Any] | None]) -> None:
        iteration = 0
        while (messages := script(iteration)) is not None:
            self._note(Step("host", "mark", f"iteration {iteration}"))
            for message in messages:
                message()
            for request in self._requests.values():
                if not request.reason and not self._paused:
                    self._note_pass(request)
                    self._step(request, 1 + chooser.choose(self.setup.draft_tokens, "accept"))
                    self.seen.launches.append(Launch(iteration, "decode", (request.rid,)))
                    request.passes += 1
            iteration += 1

    def _note(self, *steps: Step) -> None:
        self.seen.steps += steps if self._records else ()

    def _note_pass(self, request: _Request) -> None:
        """A row is written on one stream, and read by the model on another, which waits for it."""
        number = 1 + sum(step.kind == "launch" for step in self.seen.steps)
        n, write = (number + 1) // 2, "Rows.write at toy.py:7"
        self._note(
            Step("host", "launch", "copy_", write, number, "schedule"),
            Step("schedule", "run", "copy_", write, number, "schedule", n),
            Step("host", "mark", "decode", who=request.rid),
            Step("forward", "order", "wait for schedule", "run_batch at toy.py:8", 0, "schedule", n),
            Step("host", "launch", "verify", MODEL, number + 1, "forward"),
            Step("host", "wait", "wait for forward", "results at toy.py:9", 0, "forward", n, len(self.seen.steps) + 6),
            Step("forward", "run", "verify", MODEL, number + 1, "forward", n),
        )

    def _step(self, request: _Request, accepted: int) -> None:
        tokens = decode((*request.prompt, *request.outputs), accepted)
        for token in tokens:
            if not request.reason:
                request.outputs.append(token)
                stops = token == request.stop or _ends_in(request.outputs, request.stop_text)
                stops = stops or tuple(request.outputs) == request.grammar
                request.reason = "stop" if stops else "length" if len(request.outputs) >= request.answer else ""
        if request.session and request.reason:
            self._sessions[request.session] = (*request.prompt, *request.outputs)

    @property
    def is_idle(self) -> bool:
        return all(request.reason for request in self._requests.values())

    def load(self) -> Load:
        running = [r for r in self._requests.values() if not r.reason]
        return Load((), 0, self.setup.slots, self.setup.rows, tuple((r.rid, 0, 1) for r in running), 100)

    def traceback_of(self, error: BaseException) -> list[tuple[str, str]]:
        return [("run", "toy.py:9"), ("_step", "toy.py:1")]

    def functions_of(self, codes: Iterable[CodeType]) -> tuple[Function, ...]:
        mine = (code for code in codes if code.co_filename == __file__ and not code.co_name.startswith("<"))
        found = {Function(code.co_qualname, "toy.py", code.co_firstlineno, code.co_firstlineno) for code in mine}
        return tuple(sorted(found, key=lambda one: one.first))

    def requests(self) -> Iterator[RequestState]:
        for r in self._requests.values():
            claimed = len(r.prompt) + len(r.outputs) - 1
            yield RequestState(r.rid, r.prompt, tuple(r.outputs), r.reason, claimed, claimed, -1, 0)

    def answers(self) -> Iterator[Answer]:
        for r in self._requests.values():
            yield Answer(
                r.rid,
                tuple(r.outputs),
                r.reason,
                len(r.prompt),
                len(r.outputs),
                tuple(logprobs(r.prompt, r.outputs, r.logprobs)) if max(r.logprobs, r.prompt_logprobs) >= 0 else (),
                0,
                r.passes,
                self._matched(r),
                self._parts(r),
                tuple(r.outputs),
                self._drafts(r),
                (r.passes,) if not self._drafts(r) else (),
                self._hidden(r),
                self._of_prompt(r),
            )

    def _hidden(self, r: _Request) -> tuple[int, ...]:
        text = (*r.prompt, *r.outputs[:-1])
        first = {"all": 0, "last": len(text) - 1}.get(r.hidden, len(text))
        return tuple(self.content_of(text[: at + 1]) for at in range(first, len(text)))

    def _of_prompt(self, r: _Request) -> tuple[LogprobRow, ...]:
        start = r.prompt_logprobs
        if start < 0:
            return ()
        return (((-1, r.prompt[start]),), *logprobs(r.prompt[: start + 1], r.prompt[start + 1 :], r.logprobs))

    def _drafts(self, r: _Request) -> int:
        return max(0, len(r.outputs) - r.passes)

    def _matched(self, r: _Request) -> Matched:
        if r.reason in ("", "abort"):
            return None
        if r.reason == "length":
            return r.answer
        return r.stop_text if _ends_in(r.outputs, r.stop_text) else r.outputs[-1]

    def _parts(self, r: _Request) -> tuple[Part, ...]:
        """An answer in two parts, of which the last has its end."""
        if not r.outputs:
            return (Part(0, 0, bool(r.reason)),)
        first = len(r.outputs) - 1
        return (Part(first, first, False), Part(1, len(r.outputs), bool(r.reason)))

    def pools(self) -> Pools:
        slots, rows = self.setup.slots, self.setup.rows
        return Pools(slots, slots - 2, 2, rows, rows, -1, -1, -1, [], [TreeNode((1, 2), (0, 1))])

    @property
    def tree(self) -> str:
        return "radix tree in Rust" if self.setup.rust_tree else ""


class Lying:
    """A scheduler that does as another one does, and says of it what a lie makes of it."""

    def __init__(self, scheduler: ToyScheduler, lie: Lie) -> None:
        self._scheduler, self._lie = scheduler, lie

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._scheduler, name)
        if name != self._lie.of:
            return value
        if not callable(value):
            return self._lie.says(value)

        def said(*given: Any) -> Any:
            returned = value(*given)
            return self._lie.says(list(returned) if isinstance(returned, Iterator) else returned)

        return said


def toy(setup: Setup, defect: str = "") -> StartedScheduler:
    scheduler = ToyScheduler(setup)
    return cast("StartedScheduler", Lying(scheduler, DEFECTS[defect])) if defect else scheduler


@dataclass(slots=True)
class ToyTarget:
    """See `specsim.world.scheduler.SchedulerTarget`."""

    defect: str = ""
    has_rust_tree: bool = False
    starts_anew: bool = False
    setups: Sequence[Setup] = TOY_SETUPS
    where: str = "toy.py:1"
    source_hash: str = "0" * 16

    @property
    def imported(self) -> tuple[str, ...]:
        return ("toy.py", "other.py")

    def statements(self, file: str) -> tuple[tuple[int, int], ...]:
        """Of a made-up source, of which each schedule runs RAN."""
        return {"toy.py": ((1, 1), (2, 4), (5, 7), (6, 6), (9, 9))}.get(file, ())

    def reach(self, setup: Setup) -> str:
        return "option" if setup.sessions else "default"

    def lacks(self, worker: str) -> tuple[tuple[str, str], ...]:
        return ()

    def start(self, setup: Setup) -> StartedScheduler:
        return toy(setup, self.defect)

    def outcomes(self, setup: Setup, length: int) -> tuple[Distribution, Iterator[tuple[Tokens, Fraction]]]:
        """A first token of two, one of which it answers too often with a defect."""
        half = Fraction(1, 2)
        answered = {(0,): half + Fraction(1, 16) * bool(self.defect), (1,): half - Fraction(1, 16) * bool(self.defect)}
        return {(0,): half, (1,): half}, iter(answered.items())
