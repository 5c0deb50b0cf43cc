"""Triton's interpreter with the programs of a launch running side by side: they take turns, in an order of a seed's.

Triton's own interpreter runs one program after the other, in which a program that waits for another waits for ever.
Here each has a thread, of which one runs at a time; whose turn it is changes at loads, stores, atomics and barriers.
One program of a launch is slow, so that the others get as far ahead of it as they can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specsim.choices.chooser import Chooser, seeded
from specsim.interpreter.triton_interpreter import Access, Launch, ProgramRun, observed

STAYS = 4
SLOWNESS = 8
TURNS_MAX = 2_000_000  # of a launch, after which its programs are said to wait for ever


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

    def run(self, programs: Sequence[ProgramRun]) -> None:
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


class _Observer:
    """Passes the turn on wherever memory is touched."""

    def __init__(self, turns: _Turns) -> None:
        self.turns = turns

    def launch(self, launch: Launch) -> None: ...

    def program(self, number: int) -> None: ...

    def load(self, access: Access) -> Any:
        self.turns.pass_on(int(access.addresses.flat[0]) if access.is_scalar else None)
        return access.active

    def store(self, access: Access, values: Any) -> Any:
        self.turns.pass_on()
        return access.active

    def atomic(self, access: Access, *, orders: bool) -> Any:
        self.turns.pass_on()
        return access.active

    def barrier(self) -> None:
        self.turns.pass_on()

    def overflow(self, message: str, where: str) -> None: ...

    def undefined(self, access: Access, values: Any, lanes: Any, *, stray: bool) -> None: ...


@contextmanager
def interleaved_programs(seed: int) -> Iterator[None]:
    """Run every launch of the interpreter that way while active."""
    turns = _Turns(seeded(seed, "turns"))
    with observed(_Observer(turns), runner=turns.run):
        yield
