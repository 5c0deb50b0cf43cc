"""Control flow of programs that run in lockstep: which of them take part in a statement.

`Machine.active` says so: a boolean array [programs], or None where all do. A condition that is one thing for some
programs and another for others (`mixed`) has both branches run, each with its programs active; what a branch assigned
is then merged into the values that the others have. A loop runs until none is left in it. Compiled kernels call what is
here (`compiler` shows how).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from specsim.interpreter.lockstep.errors import KernelError
from specsim.interpreter.lockstep.limits import Room
from specsim.interpreter.lockstep.tensors import (
    INT1,
    Array,
    Pointer,
    Tensor,
    aligned,
    bitwise_and,
    bitwise_or,
    cast,
    constant,
    either,
    to_tensor,
    where,
)

REPEATS_FROM = 1 << 10
"""From this iteration on, at each power of two, a `while` is looked at for one that changes nothing."""


class Unbound:
    """What a variable holds before it is assigned."""

    def __repr__(self) -> str:
        return "a variable that was not assigned"


UNBOUND = Unbound()


class Machine:
    """The programs of a launch that run together.

    places  [programs] int32 for each of the grid's three axes
    dims    extents of the grid
    first   number of the first of these programs in the launch
    iterations  how many their loops may run, together
    """

    def __init__(
        self, places: tuple[Array, Array, Array], dims: tuple[int, int, int], memory: Any, first: int, iterations: int
    ) -> None:
        self.places, self.dims, self.memory, self.first = places, dims, memory, first
        self.iterations_max = self.iterations = iterations
        Room.work = 0
        self.num_programs = int(places[0].size)
        self.active: Array | None = None
        self.keys: dict[Any, Array] = {}

    def undefined_branch(self) -> None:
        """A condition is undefined for a program that takes part."""
        self.memory.undefined_use("a branch")


class _Current:
    machine: Machine


def machine() -> Machine:
    """The machine whose programs run."""
    return _Current.machine


def install(machine: Machine) -> None:
    _Current.machine = machine


def truth(condition: Any, of: Machine) -> Any:
    """A condition as True or False, where it is one thing for all active programs, or as an array [programs]."""
    if not isinstance(condition, Tensor):
        return bool(condition)
    data = condition.addresses() if isinstance(condition, Pointer) else condition.data
    if data.ndim > 1:
        if data.size != data.shape[0]:
            raise KernelError(f"a block {list(condition.shape)} is a condition; allowed: a scalar")
        data = data.reshape(-1)
    undefined = condition.undefined
    if undefined is not None:
        seen = np.broadcast_to(undefined.reshape(undefined.shape[0], -1)[:, 0], data.shape)
        if (seen if of.active is None or seen.size == 1 else seen & of.active).any():
            of.undefined_branch()
    if data.size == 1:
        return bool(data[0])
    holds = data if data.dtype == np.bool_ else data != 0
    active = of.active
    if active is None:
        if holds.all():
            return True
        return holds if holds.any() else False
    if not (holds & active).any():
        return False
    return holds if (active & ~holds).any() else True


def merged(mask: Array, new: Any, old: Any) -> Any:
    """Where `mask`, the first; elsewhere the second. Nothing that may be used where their shapes do not fit."""
    if new is old or old is UNBOUND:
        return new
    if new is UNBOUND:
        return old
    if isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old):
        values = [merged(mask, a, b) for a, b in zip(new, old, strict=True)]
        return type(new)(*values) if hasattr(new, "_fields") else tuple(values)
    if not isinstance(new, Tensor) and not isinstance(old, Tensor) and type(new) is type(old) and new == old:
        return new
    a, b = to_tensor(new), to_tensor(old)
    m, x, y = aligned(mask, a.data, b.data)
    if not _fit(x.shape, y.shape):
        return UNBOUND
    if a.dtype != b.dtype or (isinstance(a, Pointer) and not a.matches(b)):
        return where(Tensor(mask, INT1), a, b)
    undefined = None
    if a.undefined is not None or b.undefined is not None:
        first = np.zeros(1, bool) if a.undefined is None else a.undefined
        second = np.zeros(1, bool) if b.undefined is None else b.undefined
        undefined = np.where(*aligned(mask, first, second))
    return a.like(np.where(m, x, y), undefined)


def _fit(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a == b or all(x == y or x == 1 or y == 1 for x, y in zip(a, b, strict=True))


def merge(mask: Array, new: tuple[Any, ...], old: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(merged(mask, a, b) for a, b in zip(new, old, strict=True))


class Frame:
    """One call of a kernel or of a function that it calls."""

    __slots__ = ("entry", "loops", "machine", "returned")

    def __init__(self) -> None:
        self.machine = _Current.machine
        self.entry = self.machine.active
        self.returned: Array | None = None
        self.loops: list[Loop] = []

    def gone(self) -> Array | None:
        """Programs that take no part in what follows in the innermost loop: they returned, or left the iteration."""
        gone = self.returned
        if self.loops:
            gone = either(gone, either(self.loops[-1].left, self.loops[-1].skipped))
        return gone

    def remaining(self, mask: Array | None) -> Array | None:
        gone = self.gone()
        if gone is None:
            return mask
        return ~gone if mask is None else mask & ~gone

    def give(self, value: Any, before: Any) -> Any:
        """`return value`: the value of all programs that have returned so far."""
        of = self.machine
        if self.returned is None and of.active is self.entry:
            self.returned = np.ones(of.num_programs, bool)
            return value
        mask = np.ones(of.num_programs, bool) if of.active is None else of.active
        if before is not UNBOUND:
            value = merged(mask, value, before)
        self.returned = either(self.returned, mask)
        of.active = np.zeros(of.num_programs, bool)
        return value

    @property
    def done(self) -> bool:
        """Whether every program that called has returned. Makes them active again if so."""
        if self.returned is None:
            return False
        left = ~self.returned if self.entry is None else self.entry & ~self.returned
        if left.any():
            return False
        self.machine.active = self.entry
        return True

    def end(self) -> None:
        self.machine.active = self.entry

    def rest(self) -> Rest:
        return Rest(self)

    def branch(self, condition: Any) -> Branch:
        return Branch(self, condition)

    def loop(self) -> Loop:
        return Loop(self)

    def each(self, values: Any, leaves: bool) -> ForLoop:
        return ForLoop(self, values, leaves)


class Rest:
    """What follows a statement in which programs may have returned, or left the iteration: for the others."""

    __slots__ = ("any", "mask", "partial")

    def __init__(self, frame: Frame) -> None:
        of = frame.machine
        mask = frame.remaining(of.active)
        of.active = mask
        self.any = mask is None or bool(mask.any())
        self.partial = mask is not None and self.any and not bool(mask.all())
        self.mask = mask


class Branch:
    """An `if`. `then` and `orelse` say whether a branch runs, `mixed` whether each is for some programs."""

    __slots__ = ("frame", "mask", "mixed", "orelse", "saved", "then")

    def __init__(self, frame: Frame, condition: Any) -> None:
        of = frame.machine
        self.frame = frame
        holds = truth(condition, of)
        self.mixed = not isinstance(holds, bool)
        if self.mixed:
            self.then = self.orelse = True
            self.saved = of.active
            self.mask = holds if self.saved is None else holds & self.saved
            of.active = self.mask
        else:
            self.then, self.orelse = holds, not holds

    def flip(self) -> None:
        self.frame.machine.active = ~self.mask if self.saved is None else self.saved & ~self.mask

    def join(self, then: tuple[Any, ...], orelse: tuple[Any, ...]) -> tuple[Any, ...]:
        self.frame.machine.active = self.frame.remaining(self.saved)
        return merge(self.mask, then, orelse)


class Loop:
    """A `while`. `mask` are the programs of the iteration, `partial` says that others have left before."""

    __slots__ = ("before", "count", "entry", "frame", "left", "mask", "partial", "skipped")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.entry = frame.machine.active
        self.mask: Array | None = self.entry
        self.partial = False
        self.left: Array | None = None
        self.skipped: Array | None = None
        self.count = 0
        self.before: tuple[Any, ...] | None = None
        frame.loops.append(self)
        frame.machine.iterations += 1  # which `prepare` counts
        self.prepare()

    def prepare(self) -> bool:
        """Make the programs active that are still in the loop; whether there are any."""
        of = self.frame.machine
        of.iterations -= 1
        if of.iterations < Room.work:
            ran = of.iterations_max - of.iterations - 1
            large = f", with {Room.work << 16:,} elements of large blocks" if Room.work else ""
            raise KernelError(
                f"loops have run {ran:,} times{large}; allowed: {of.iterations_max:,} (Limits.iterations): "
                "does this one end?"
            )
        self.skipped = None
        self.mask = self.frame.remaining(self.mask)
        of.active = self.mask
        return self.mask is None or bool(self.mask.any())

    def again(self, *values: Any) -> bool:
        """`prepare` of a `while`, given all that an iteration may change besides memory."""
        self.count += 1
        if self.before is not None:
            before, self.before = self.before, None
            if all(map(_same, before, (self.frame.machine.memory.changes, self.mask, *values))):
                raise KernelError(self._endless())
        if self.count >= REPEATS_FROM and self.count & (self.count - 1) == 0:
            self.before = (self.frame.machine.memory.changes, self.mask, *values)
        return self.prepare()

    def _endless(self) -> str:
        of = self.frame.machine
        waiting = np.ones(of.num_programs, bool) if self.mask is None else self.mask
        numbers = (np.flatnonzero(waiting)[:3] + of.first).tolist()
        count = int(np.count_nonzero(waiting))
        more = f" and {count - 3:,} more" if count > 3 else ""
        who = f"program{'s' if count > 1 else ''} {', '.join(map(str, numbers))}{more}"
        text = f"a loop never ends: for {who}, iteration {self.count:,} changes no variable and no memory"
        others = of.num_programs - count
        return text + (
            f"; {others:,} others, one of which might end it on a GPU, go on only after it" if others else ""
        )

    def test(self, condition: Any) -> bool:
        """Whether programs are left that run the body, which are made active."""
        holds = truth(condition, self.frame.machine)
        if holds is False:
            return False
        if holds is not True:
            self.mask = holds if self.mask is None else holds & self.mask
            self.frame.machine.active = self.mask
        self.partial = self.mask is not None and self.mask is not self.entry
        return True

    def leave(self) -> None:
        """`break`."""
        of = self.frame.machine
        self.left = either(self.left, np.ones(of.num_programs, bool) if of.active is None else of.active)
        of.active = np.zeros(of.num_programs, bool)

    def skip(self) -> None:
        """`continue`."""
        of = self.frame.machine
        self.skipped = either(self.skipped, np.ones(of.num_programs, bool) if of.active is None else of.active)
        of.active = np.zeros(of.num_programs, bool)

    def end(self) -> None:
        self.frame.loops.pop()
        self.frame.machine.active = self.frame.remaining(self.entry)


def _same(a: Any, b: Any) -> bool:
    """Whether two values of a variable are the same, bit by bit."""
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return all(map(_same, a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and _same(a.data, b.data)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and not isinstance(a, (Tensor, np.ndarray)) and bool(a == b)


class ForLoop(Loop):
    """A `for` over a `Range`, or over what Python iterates. `leaves`: whether programs may leave it before it ends."""

    __slots__ = ("leaves", "values")

    def __init__(self, frame: Frame, values: Any, leaves: bool) -> None:
        super().__init__(frame)
        self.values, self.leaves = values, leaves

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.values, Range):
            yield from self._counted(self.values)
            return
        if isinstance(self.values, range):
            self._will_run(len(self.values))
        for value in self.values:
            if not self.prepare():
                return
            self.partial = self.mask is not None and self.mask is not self.entry
            yield value

    def _will_run(self, times: int) -> None:
        of = self.frame.machine
        if times > of.iterations and not self.leaves:
            raise KernelError(
                f"a loop is to run {times:,} times; allowed: {of.iterations_max:,} for all loops together "
                "(Limits.iterations)"
            )

    def _counted(self, over: Range) -> Iterator[Tensor]:
        start, trips = over.start.data, over.trips(self.frame.machine)
        step = over.step.data
        most = int((trips if self.mask is None else np.where(self.mask, trips, 0)).max()) if trips.size else 0
        self._will_run(most)
        for i in range(most):
            if trips.size > 1:
                goes_on = trips > i
                if not goes_on.all():
                    self.mask = goes_on if self.mask is None else self.mask & goes_on
            if not self.prepare():
                return
            self.partial = self.mask is not None and self.mask is not self.entry
            yield Tensor(start + (step * i).astype(start.dtype), over.start.dtype)


class Range:
    """`range` and `tl.range`: bounds may differ by program. The variable has the common type of the bounds."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, first: Any, second: Any = None, step: Any = None, **_hints: Any) -> None:
        start, stop = (0, first) if second is None else (first, second)
        bounds = [to_tensor(value) for value in (start, stop, 1 if step is None else step)]
        for bound in bounds:
            if bound.data.ndim > 1 or not bound.dtype.is_int():
                raise KernelError(f"a range over {bound.type}; allowed: integers")
        wide = max((bound.dtype for bound in bounds), key=lambda dtype: dtype.int_bitwidth)
        self.start, self.stop, self.step = (cast(bound, wide) for bound in bounds)

    def trips(self, of: Machine) -> Array:
        """[programs], or [1]: how often each runs the body."""
        if any(bound.undefined is not None for bound in (self.start, self.stop, self.step)):
            truth(Tensor(self.stop.data, INT1, either(self.start.undefined, self.stop.undefined)), of)
        start, stop, step = (bound.data.astype(np.int64) for bound in (self.start, self.stop, self.step))
        if (step == 0).any():
            raise KernelError("a range has a step of 0")
        return np.maximum(0, -((start - stop) // step))


def variable(value: Any) -> Any:
    """What an assignment stores: Triton makes a tensor of a number, unless it is annotated as a constexpr."""
    kind = type(value)
    if kind is int or kind is float or kind is bool:
        return constant(value)
    if kind is tuple:
        return tuple(variable(item) for item in value)
    return value


def conjunction(first: Any, second: Callable[[], Any]) -> Any:
    """`and`: of constants as Python does, of tensors elementwise."""
    if isinstance(first, Tensor):
        return bitwise_and(_logical(first), _logical(second()))
    return first and second()


def disjunction(first: Any, second: Callable[[], Any]) -> Any:
    if isinstance(first, Tensor):
        return bitwise_or(_logical(first), _logical(second()))
    return first or second()


def _logical(value: Any) -> Tensor:
    return cast(to_tensor(value), INT1)


def negation(value: Any) -> Any:
    return ~_logical(value) if isinstance(value, Tensor) else not value


def choice(condition: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
    """`then if condition else orelse`: each side is evaluated for the programs that take it."""
    of = _Current.machine
    holds = truth(condition, of)
    if isinstance(holds, bool):
        return then() if holds else orelse()
    saved = of.active
    of.active = mask = holds if saved is None else holds & saved
    try:
        first = then()
        of.active = ~mask if saved is None else saved & ~mask
        return merged(mask, first, orelse())
    finally:
        of.active = saved
