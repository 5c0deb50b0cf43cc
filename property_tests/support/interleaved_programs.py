"""Triton's interpreter with the programs of a launch running side by side: they take turns, in an order of a seed's.

Triton's own interpreter runs one program after the other, in which a program that waits for another waits for ever.
Here each has a thread, of which one runs at a time; whose turn it is changes at loads, stores, atomics and barriers.
One program of a launch is slow, so that the others get as far ahead of it as they can.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from specsim.choices.chooser import Chooser, seeded
from specsim.interpreter.triton_names import mend_interpreter

STAYS = 4
SLOWNESS = 8
TURNS_MAX = 2_000_000  # of a launch, after which its programs are said to wait for ever
TOUCHING = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas", "create_barrier")
"""The interpreter's methods at which the turn may pass on."""


class _Program(NamedTuple):
    """A program of a launch. `enter` makes it the one whose number `tl.program_id` gives, whenever it goes on."""

    run: Callable[[], None]
    enter: Callable[[], None]


class _Turns:
    """Whose turn it is, among the programs that are not done."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.waiting: dict[int, tuple[threading.Event, Callable[[], None]]] = {}
        self.alive: list[int] = []
        self.turns = 0
        self.slow = 0
        self.errors: list[BaseException] = []
        self.local = threading.local()

    def run(self, programs: Sequence[_Program]) -> None:
        self.alive, self.turns = list(range(len(programs))), 0
        self.slow = self.chooser.choose(len(programs), "slow program")
        self.waiting = {i: (threading.Event(), program.enter) for i, program in enumerate(programs)}
        threads = [threading.Thread(target=self._run_one, args=(i, p.run)) for i, p in enumerate(programs)]
        for thread in threads:
            thread.start()
        self._wake(self.chooser.choose(len(programs), "first program"))
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _run_one(self, i: int, program: Callable[[], None]) -> None:
        self.local.number = i
        self._wait(i)
        try:
            program()
        except BaseException as error:
            self.errors.append(error)
        self.alive.remove(i)
        if self.alive:
            self._wake(self.alive[self.chooser.choose(len(self.alive), "next program")])

    def _wait(self, i: int) -> None:
        event, enter = self.waiting[i]
        event.wait()
        event.clear()
        enter()
        if self.errors:
            raise RuntimeError("another program failed")

    def _wake(self, i: int) -> None:
        self.waiting[i][0].set()

    def pass_on(self, address: int | None = None) -> None:
        """Perhaps let another program go on; surely if this one reads one `address` again and again."""
        i = getattr(self.local, "number", None)
        if i is None:
            return
        is_idle = address is not None and address == getattr(self.local, "address", None)
        self.local.address = address
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise RuntimeError("the programs wait for each other for ever")
        if i != self.slow and not is_idle and self.chooser.choose(STAYS, "whether to stay") > 0:
            return
        after = self.alive[self.chooser.choose(len(self.alive), "next program")]
        if after == self.slow and not is_idle and self.chooser.choose(SLOWNESS, "whether the slow program goes on") > 0:
            after = i
        if after != i:
            self._wake(after)
            self._wait(i)


class _Programs:
    """In place of a kernel: collects the programs of a launch, and has them take turns with the last one."""

    def __init__(self, kernel: Any, builder: Any, turns: _Turns) -> None:
        self.__globals__, self.__name__ = kernel.__globals__, kernel.__name__
        self.__signature__ = inspect.signature(kernel)
        self.kernel, self.builder, self.turns = kernel, builder, turns
        self.programs: list[_Program] = []

    def __call__(self, **arguments: Any) -> None:
        place = self.builder.grid_idx
        enter = lambda: setattr(self.builder, "grid_idx", place)  # noqa: E731
        self.programs.append(_Program(lambda: self.kernel(**arguments), enter))
        if len(self.programs) == math.prod(self.builder.grid_dim):
            self.turns.run(self.programs)


@contextmanager
def interleaved_programs(seed: int) -> Iterator[None]:
    """Run every launch of the interpreter that way while active."""
    from triton.runtime import interpreter

    mend_interpreter()
    turns = _Turns(seeded(seed, "turns"))
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    calls = {name: vars(builder)[name] for name in TOUCHING}
    launches = executor.__call__

    def touching(name: str) -> Callable[..., Any]:
        def touch(of: Any, *args: Any, **kwargs: Any) -> Any:
            is_scalar = name == "create_masked_load" and args[0].data.size == 1
            turns.pass_on(int(args[0].data.flat[0]) if is_scalar else None)
            return calls[name](of, *args, **kwargs)

        return touch

    def launch(of: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = of.fn
        of.fn = _Programs(kernel, interpreter.interpreter_builder, turns)
        try:
            return launches(of, *args, **kwargs)
        finally:
            of.fn = kernel

    try:
        executor.__call__ = launch
        for name in TOUCHING:
            setattr(builder, name, touching(name))
        with np.errstate(all="ignore"):  # a GPU has no warnings either
            yield
    finally:
        executor.__call__ = launches
        for name, call in calls.items():
            setattr(builder, name, call)
