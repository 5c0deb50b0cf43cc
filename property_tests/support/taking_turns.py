"""Triton's interpreter with the programs of a launch running side by side: they take turns, in an order of a seed's.

Triton's own interpreter runs one program after the other, in which a program that waits for another waits for ever.
Here each has a thread, of which one runs at a time; whose turn it is changes at loads, stores, atomics and barriers.
One program of a launch is slow, so that the others get as far ahead of it as they can.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from specsim.choices.chooser import Chooser, seeded
from specsim.interpreter.hooks import Access, watching

STAYS = 4
SLOWNESS = 8
TURNS_MAX = 2_000_000  # of a launch, after which its programs are said to wait for ever


class _Turns:
    """Whose turn it is, among the programs that are not done."""

    def __init__(self, chooser: Chooser, builder: Any) -> None:
        self.chooser, self.builder = chooser, builder
        self.waiting: dict[int, tuple[threading.Event, Any]] = {}
        self.alive: list[int] = []
        self.turns = 0
        self.slow = 0
        self.errors: list[BaseException] = []
        self.local = threading.local()

    def run(self, programs: list[tuple[Any, Callable[[], None]]]) -> None:
        self.alive, self.turns = list(range(len(programs))), 0
        self.slow = self.chooser.choose(len(programs), "slow program")
        self.waiting = {i: (threading.Event(), place) for i, (place, _program) in enumerate(programs)}
        threads = [
            threading.Thread(target=self._run_one, args=(i, program)) for i, (_place, program) in enumerate(programs)
        ]
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
        event, place = self.waiting[i]
        event.wait()
        event.clear()
        self.builder.grid_idx = place
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


class _Watcher:
    """Passes the turn on wherever memory is touched."""

    def __init__(self, turns: _Turns) -> None:
        self.turns = turns

    def launch(self, kernel: str, arguments: dict[str, Any]) -> None: ...

    def program(self, number: int) -> None: ...

    def read(self, access: Access) -> Any:
        self.turns.pass_on(int(access.addresses.flat[0]) if access.is_scalar else None)
        return access.active

    def write(self, access: Access, values: Any) -> Any:
        self.turns.pass_on()
        return access.active

    def atomic(self, access: Access, *, orders: bool) -> Any:
        self.turns.pass_on()
        return access.active

    def barrier(self) -> None:
        self.turns.pass_on()

    def overflow(self, message: str, where: str) -> None: ...

    def undefined_lanes(self, values: Any, lanes: Any, where: str, *, stray: bool) -> None: ...


class _Collected:
    """Stands for a kernel: takes down the programs of a launch as they come, and runs them with the last one."""

    def __init__(self, kernel: Any, turns: _Turns) -> None:
        self.__globals__, self.__name__ = kernel.__globals__, kernel.__name__
        self.__signature__ = inspect.signature(kernel)
        self.kernel, self.turns = kernel, turns
        self.programs: list[tuple[Any, Callable[[], None]]] = []

    def __call__(self, **arguments: Any) -> None:
        builder = self.turns.builder
        self.programs.append((builder.grid_idx, lambda: self.kernel(**arguments)))
        x, y, z = builder.grid_dim
        if len(self.programs) == x * y * z:
            self.turns.run(self.programs)


@contextmanager
def taking_turns(seed: int) -> Iterator[None]:
    """Run every launch of the interpreter that way while active."""
    from triton.runtime import interpreter

    turns = _Turns(seeded(seed, "turns"), interpreter.interpreter_builder)
    executor = interpreter.GridExecutor
    original = executor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.fn = _Collected(self.fn, turns)
        return original(self, *args, **kwargs)

    executor.__call__ = call
    try:
        with watching(_Watcher(turns)):
            yield
    finally:
        executor.__call__ = original
