"""What the cases of operations are made of: named draws, from a counter for thousands of cases or from choices for one.

A maker states the cases of an operation once, over `Draws`. With `CounterDraws` request b follows from its case number
alone, on any device. With `ChosenDraws` the requests of a small batch have numbers too, and one choice for each draw
says whether it is that of the numbers or something simpler, the same for every request and column: a tape holds the
numbers, and what shrinking overrode. All-zero choices give the simplest case.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser
from specsim.contracts import counter_rng

STREAMS = 48
"""Values that a number gives each draw, of which the choice of the draw takes one."""

CONSTANTS = 8
"""A choice of a draw may be one of so many small values, in place of those of the numbers."""

LABELS_MAX = 2**20  # what `labels` are below
PADDING_ONE_IN = 8


class Draws(Protocol):
    """The draws of a batch of requests; `what` names a draw, and draws of different names are independent.

    count   requests of the batch, n
    device  where the tensors of the draws are
    """

    @property
    def count(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def below(self, what: str, bound: Tensor | int, columns: int | None = None) -> Tensor:
        """Numbers from 0 to `bound` - 1, [n] or [n, columns] int64; `bound` may be a tensor that broadcasts."""
        ...

    def labels(self, what: str, columns: int | None = None) -> Tensor:
        """Numbers from 0 to LABELS_MAX - 1, [n] or [n, columns] int64, that tell requests and columns apart."""
        ...

    def uniform(self, what: str, columns: int) -> Tensor:
        """Dyadic numbers in [0, 1), [n, columns] float32, that tell requests and columns apart."""
        ...

    def fractions(self, what: str, columns: int) -> Tensor:
        """Numbers from 0 to 2^31 - 1, [columns, n] int64: multiples of 2^-31 that pick from a number not yet known."""
        ...

    def order(self, what: str, columns: int) -> Tensor:
        """The numbers from 0 to `columns` - 1 in some order, for each request [n, columns] int64."""
        ...

    def order_of_all(self, what: str, columns: int = 1) -> Tensor:
        """The numbers from 0 to n * `columns` - 1, each once, in some order [n, columns] int64."""
        ...

    def common(self, what: str, bound: int) -> int:
        """A number from 0 to `bound` - 1 that the batch has in common."""
        ...

    def padding(self) -> Tensor:
        """Which requests [n] are padding: an eighth of them, anywhere in the batch; of a single case not all."""
        ...


class CounterDraws:
    """Draws of case numbers [n] int64, on their device; see `specsim.contracts.counter_rng`."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids

    @property
    def count(self) -> int:
        return self._ids.shape[0]

    @property
    def device(self) -> torch.device:
        return self._ids.device

    def below(self, what: str, bound: Tensor | int, columns: int | None = None) -> Tensor:
        return counter_rng.below(self._ids, what, bound, columns)

    def labels(self, what: str, columns: int | None = None) -> Tensor:
        return counter_rng.below(self._ids, what, LABELS_MAX, columns)

    def uniform(self, what: str, columns: int) -> Tensor:
        return counter_rng.uniform(self._ids, what, columns)

    def fractions(self, what: str, columns: int) -> Tensor:
        return counter_rng.words_by_column(self._ids, what, columns) >> 32

    def order(self, what: str, columns: int) -> Tensor:
        return counter_rng.words(self._ids, what, columns).argsort(dim=1)

    def order_of_all(self, what: str, columns: int = 1) -> Tensor:
        return counter_rng.words(self._ids, what, columns).flatten().argsort().view(self.count, columns)

    def common(self, what: str, bound: int) -> int:
        return int(counter_rng.below(self._ids, what, bound).sum()) % bound

    def padding(self) -> Tensor:
        return self.below("padding request", PADDING_ONE_IN) == PADDING_ONE_IN - 1


class ChosenDraws:
    """Draws of case numbers, each of which a choice may override by something simpler.

    The last STREAMS values of a choice are those of the numbers, the first of them as `CounterDraws` has it.
    """

    __slots__ = ("_chooser", "_ids")

    def __init__(self, ids: Tensor, chooser: Chooser) -> None:
        self._ids = ids
        self._chooser = chooser

    @property
    def count(self) -> int:
        return self._ids.shape[0]

    @property
    def device(self) -> torch.device:
        return self._ids.device

    def _choose(self, what: str, simple: int) -> tuple[int, CounterDraws]:
        """A number below `simple`, or `simple` and draws of the numbers."""
        chosen = self._chooser.choose(simple + STREAMS, what)
        stream = max(0, chosen - simple)
        return min(chosen, simple), CounterDraws(self._ids + (stream << 32))

    def _counted(self, columns: int | None) -> Tensor:
        """The numbers from 0 on, [n] or [n, columns]."""
        count = self.count * (1 if columns is None else columns)
        return torch.arange(count, device=self.device).view(self.count, *(() if columns is None else (columns,)))

    def below(self, what: str, bound: Tensor | int, columns: int | None = None) -> Tensor:
        simple = min(CONSTANTS, bound) if isinstance(bound, int) else CONSTANTS
        value, numbered = self._choose(what, simple)
        if value == simple:
            return numbered.below(what, bound, columns)
        shape = (self.count,) if columns is None else (self.count, columns)
        constant = torch.full(shape, value, dtype=torch.int64, device=self.device)
        return constant if isinstance(bound, int) else torch.minimum(constant, bound - 1)

    def labels(self, what: str, columns: int | None = None) -> Tensor:
        value, numbered = self._choose(what, 1)
        return numbered.labels(what, columns) if value else self._counted(columns)

    def uniform(self, what: str, columns: int) -> Tensor:
        value, numbered = self._choose(what, 1)
        if value:
            return numbered.uniform(what, columns)
        return (1 + self._counted(columns)).to(torch.float32) / (1 << (self.count * columns).bit_length())

    def fractions(self, what: str, columns: int) -> Tensor:
        value, numbered = self._choose(what, CONSTANTS)
        if value == CONSTANTS:
            return numbered.fractions(what, columns)
        return torch.full((columns, self.count), value * (2**31 // CONSTANTS), dtype=torch.int64, device=self.device)

    def order(self, what: str, columns: int) -> Tensor:
        value, numbered = self._choose(what, 1)
        if value:
            return numbered.order(what, columns)
        return torch.arange(columns, device=self.device).repeat(self.count, 1)

    def order_of_all(self, what: str, columns: int = 1) -> Tensor:
        value, numbered = self._choose(what, 1)
        return numbered.order_of_all(what, columns) if value else self._counted(columns)

    def common(self, what: str, bound: int) -> int:
        value, numbered = self._choose(what, min(CONSTANTS, bound))
        return numbered.common(what, bound) if value == min(CONSTANTS, bound) else value

    def padding(self) -> Tensor:
        is_padding = self.below("padding request", PADDING_ONE_IN) == PADDING_ONE_IN - 1
        is_padding[0] &= ~is_padding.all()
        return is_padding
