"""Where choices come from: `choose(bound, label) -> int` is the only source of nondeterminism.

A generator of cases or schedules asks a chooser for a number below `bound` and says in `label` what the number
is for. Choice 0 is the simplest one. The numbers that were chosen are the *tape*: the same tape gives the same case
on every machine and Python, and a smaller tape gives a simpler case, which is what makes shrinking work.

Every tape is valid. One that is too short continues with zeros, and a value that does not fit below its bound is
clamped to `bound - 1`; so a shrinker may cut and edit a tape freely, and a tape survives changes of the generator.

This module imports neither torch nor triton.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

Tape = tuple[int, ...]
T = TypeVar("T")

_MASK64 = (1 << 64) - 1


class Chooser(Protocol):
    """`choose(bound, label)` returns an integer in `[0, bound)`; `bound` is at least 1."""

    def choose(self, bound: int, label: str) -> int: ...


class Item(NamedTuple):
    """The choices [start, end) of a tape make one of so many things; choice `counted` said how many."""

    counted: int
    start: int
    end: int


class RecordingChooser:
    """A chooser that writes its tape. `source(bound, label)` proposes; what fits is recorded and returned. `items` are
    those of `each`.
    """

    __slots__ = ("_source", "_tape", "items")

    def __init__(self, source: Callable[[int, str], int]) -> None:
        self._source = source
        self._tape: list[int] = []
        self.items: list[Item] = []

    def choose(self, bound: int, label: str) -> int:
        if bound < 1:
            raise ValueError(f"choose(bound={bound}, label={label!r}): bound must be at least 1")
        value = self._source(bound, label)
        if not 0 <= value < bound:
            value = 0 if value < 0 else bound - 1
        self._tape.append(value)
        return value

    @property
    def place(self) -> int:
        """How many choices there were."""
        return len(self._tape)

    @property
    def tape(self) -> Tape:
        """The choices so far, without the zeros at the end (a missing choice is a zero)."""
        end = self.place
        while end and self._tape[end - 1] == 0:
            end -= 1
        return tuple(self._tape[:end])


def seeded(seed: int, *path: str | int) -> RecordingChooser:
    """Choices from `stream(seed, *path)`."""
    return RecordingChooser(stream(seed, *path))


def stream(seed: int, *path: str | int) -> Callable[[int, str], int]:
    """Numbers from a counter-based generator keyed by `seed` and `path` (suite, subject, index of the case).

    The key is a SHA-256 of both, the stream is SplitMix64: no global state, and any case is made again from its
    numbers alone.
    """
    material = "\x1f".join([str(seed), *map(str, path)]).encode()
    state = int.from_bytes(hashlib.sha256(material).digest()[:8], "big")

    def source(bound: int, _label: str) -> int:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & _MASK64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
        return ((z ^ (z >> 31)) * bound) >> 64

    return source


def replayed(tape: Sequence[int]) -> RecordingChooser:
    """The choices of a tape, then zeros."""
    remaining = iter(tape)
    return RecordingChooser(lambda _bound, _label: next(remaining, 0))


def continued(tape: Sequence[int], chooser: Chooser) -> RecordingChooser:
    """The choices of a tape, then those of `chooser`."""
    remaining = iter(tape)

    def source(bound: int, label: str) -> int:
        value = next(remaining, None)
        return chooser.choose(bound, label) if value is None else value

    return RecordingChooser(source)


def between(chooser: Chooser, low: int, high: int, label: str) -> int:
    """An integer in `[low, high]`; `low` is the simplest."""
    return low + chooser.choose(high - low + 1, label)


def pick(chooser: Chooser, options: Sequence[T], label: str) -> T:
    """One of `options`; the first is the simplest."""
    return options[chooser.choose(len(options), label)]


def sample(chooser: Chooser, population: int, count: int, label: str) -> list[int]:
    """`count` distinct integers of `range(population)`, in the order drawn; all-zero choices give 0, 1, 2, ..."""
    pool = list(range(population))
    return [pool.pop(chooser.choose(len(pool), label)) for _ in range(count)]


def each(chooser: Chooser, low: int, high: int, label: str) -> Iterator[int]:
    """Draw a number in `[low, high]` now, and count up to it later. What is drawn between one number and the next makes
    one thing: a chooser that records notes it, so that a shrinker can leave the thing out with all its choices.
    """
    count = between(chooser, low, high, label)
    if not isinstance(chooser, RecordingChooser):
        return iter(range(count))
    return _noted(chooser, count, chooser.place - 1)


def _noted(chooser: RecordingChooser, count: int, counted: int) -> Iterator[int]:
    for number in range(count):
        start = chooser.place
        yield number
        chooser.items.append(Item(counted, start, chooser.place))
