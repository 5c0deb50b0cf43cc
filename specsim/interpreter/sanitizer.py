"""A sanitizer for any Triton kernel, on a CPU: `report = sanitize(function, *tensors, outputs=("out",))`.

`function` launches kernels; it may be a release's wrapper, an own one, or a lambda around `kernel[grid](...)`. It is
run several times in lockstep (`lockstep`) on copies of its tensors, each inside a larger buffer. Each access is checked
lane by lane, what is undefined is followed, and results of runs are compared that differ in what must not matter:

    out-of-bounds      a lane outside the tensors of its launch, wherever it lands; it is given poison and has no effect
    uninitialised      one that depends on an output that nobody has written
    unwritten          an element of an output that is never written
    masked-lanes       a result, a branch, an address or an atomic operation that depends on what masked-off lanes of a
                       load without `other` hold, even where arithmetic cancels it
    undefined-memory   a result that depends on what red zones and unwritten outputs hold, whoever read them
    race-between       two programs of a launch, unordered, one of which writes
    race-within        two lanes of a program without a barrier between, one of which writes
    program-order      a result that depends on the order in which programs run
    int32-overflow     integer arithmetic in the kernel that does not fit its type, whatever becomes of it

What it does not see: kernels that are not Triton's (they get the poison and the red zones, and are not watched); how
lanes share threads; memory that a kernel reaches through addresses stored in tensors, unless it is named in `extra`;
whether memory that the function allocates for itself is read before it is written. On a GPU red zones and poison are
what is left: `out-of-bounds` for writes, `unwritten` and `undefined-memory`.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from specsim.contracts.contract import differing
from specsim.errors import UsageError
from specsim.interpreter.red_zones import RED_ZONE, poison_value
from specsim.interpreter.triton_names import Order, one_line

Kind = Literal[
    "out-of-bounds",
    "uninitialised",
    "unwritten",
    "masked-lanes",
    "undefined-memory",
    "race-between",
    "race-within",
    "program-order",
    "int32-overflow",
]


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong. `where` is FILE:LINE of the kernel's statement, or "" for what only results show."""

    kind: Kind
    text: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True, slots=True)
class Report:
    """What the sanitizer saw.

    flaws      the first of each kind, kernel and line
    results    tensors by argument and by place in what the function returned ("returned[0]"), after the first run
    launches   of the first run; 0 where nothing could be watched
    without_other  FILE:LINE of loads whose masked-off lanes are undefined, harmless or not
    """

    flaws: tuple[Flaw, ...]
    results: dict[str, torch.Tensor]
    launches: int
    without_other: tuple[str, ...]

    @property
    def kinds(self) -> set[Kind]:
        return {flaw.kind for flaw in self.flaws}


def sanitize(
    function: Callable[..., Any],
    *arguments: Any,
    outputs: Sequence[str] = (),
    defined: Mapping[str, torch.Tensor] | None = None,
    extra: Sequence[torch.Tensor] = (),
    programs: Order = tuple,
    seed: int = 0,
    **named: Any,
) -> Report:
    """Run `function(*arguments, **named)` under the sanitizer; the module's docstring says what is looked for.

    outputs   names of tensor arguments that the function must write and may not read before; the names of its
              parameters, or "arg0", "arg1", ... where it has none
    defined   by output, boolean tensors of its shape: which elements must be written and are compared; all by default
    extra     tensors that kernels reach through addresses in other tensors; they are not copied
    programs  which programs of each launch run (`corners`), all by default; nothing is `unwritten` where some do not
    seed      of the order of programs in the run with another order

    Arguments are not changed. Raises UsageError for unknown outputs; what the function raises passes through.
    """
    positions = _position_names(function, len(arguments))
    bound = dict(zip(positions, arguments, strict=True)) | named
    for name in outputs:
        if not isinstance(bound.get(name), torch.Tensor):
            tensors = ", ".join(key for key, value in bound.items() if isinstance(value, torch.Tensor))
            raise UsageError(f"{name!r} is named as an output and is no tensor argument", f"name some of: {tensors}")
    on_cpu = all(value.device.type == "cpu" for value in bound.values() if isinstance(value, torch.Tensor))
    plan = _Plan(function, positions, bound, tuple(outputs), dict(defined or {}), tuple(extra), programs, on_cpu)
    first, flaws = plan.sanitized(seed)
    kept = {(flaw.kind, flaw.where or flaw.text): flaw for flaw in reversed(flaws)}
    ordered = tuple(flaw for flaw in flaws if kept[flaw.kind, flaw.where or flaw.text] is flaw)
    return Report(ordered, first.results, first.launches, tuple(sorted(first.without_other)))


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A tensor in the middle of a larger buffer; `view` is what the function gets."""

    buffer: torch.Tensor
    view: torch.Tensor
    poison: int | float | bool

    @classmethod
    def around(cls, tensor: torch.Tensor, which: int, *, is_output: bool) -> _Guarded:
        poison = poison_value(tensor.dtype, which)
        strides = tensor.stride() if 0 not in tensor.stride() else torch.empty(tensor.shape, device="meta").stride()
        span = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, strides, strict=True))
        span = span if tensor.numel() else 0
        buffer = torch.full((span + 2 * RED_ZONE,), poison, dtype=tensor.dtype, device=tensor.device)
        view = torch.as_strided(buffer, tensor.shape, strides, RED_ZONE)
        if not is_output:
            view.copy_(tensor)
        return cls(buffer, view, poison)

    def stray_write(self) -> int | None:
        """The first element outside the view that is not poison any more, relative to the view's first."""
        outside = torch.ones_like(self.buffer, dtype=torch.bool)
        torch.as_strided(outside, self.view.shape, self.view.stride(), RED_ZONE).fill_(False)
        poison = torch.full_like(self.buffer, self.poison)
        changed = (differing(self.buffer, poison) & outside).nonzero()
        return int(changed[0]) - RED_ZONE if changed.shape[0] else None


@dataclass(slots=True)
class _SanitizedRun:
    flaws: list[Flaw]
    results: dict[str, torch.Tensor]
    launches: int
    without_other: set[str]
    written: dict[str, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class _Plan:
    function: Callable[..., Any]
    positions: list[str]
    bound: dict[str, Any]
    outputs: tuple[str, ...]
    defined: dict[str, torch.Tensor]
    extra: tuple[torch.Tensor, ...]
    programs: Order
    on_cpu: bool

    def sanitized(self, seed: int) -> tuple[_SanitizedRun, list[Flaw]]:
        """The first run, and the flaws of all."""
        first = self.run()
        flaws = list(first.flaws)
        if self.on_cpu:
            seen = self.run(marks=True)
            flaws += [flaw for flaw in seen.flaws if flaw.kind == "uninitialised"]
        if self.programs is tuple:
            flaws += self.unwritten(first)
        shuffle = random.Random(seed)
        known = any(flaw.kind == "uninitialised" for flaw in flaws)
        if not known:
            flaws += self.variant(first, "undefined-memory", "the content of red zones and unwritten outputs", memory=1)
        if self.on_cpu:
            shuffled = lambda some: shuffle.sample(list(some), len(some))  # noqa: E731
            flaws += self.variant(first, "program-order", "the order of programs", order=shuffled)
        return first, flaws

    def run(self, *, memory: int = 0, order: Order = tuple, marks: bool = False) -> _SanitizedRun:
        """`marks`: follow what nobody wrote, instead of lanes that are masked off."""
        guarded = {
            name: _Guarded.around(value, memory, is_output=name in self.outputs)
            for name, value in self.bound.items()
            if isinstance(value, torch.Tensor)
        }
        named = {name: guarded[name].view if name in guarded else value for name, value in self.bound.items()}
        positional = [named.pop(name) for name in self.positions]
        outputs = {name: guarded[name].view for name in self.outputs}
        flaws: list[Flaw] = []
        flag = functools.partial(_flag, flaws)
        plain = not (memory or marks or order is not tuple)
        launches, without_other = 0, set[str]()
        written: dict[str, torch.Tensor | None] = dict.fromkeys(outputs)
        if not self.on_cpu:
            returned = self.function(*positional, **named)
        else:
            from specsim.interpreter.lockstep.launch import lockstep
            from specsim.interpreter.lockstep.sanitize import LockstepWatch

            seen = LockstepWatch(flag, outputs, memory=marks)
            is_plain_order = order is tuple and self.programs is tuple
            chosen: Order = tuple if is_plain_order else lambda programs: order(self.programs(programs))
            with lockstep(seen, seen.watch, extra=self.extra, order=chosen, overflow=plain, fall_back=False):
                returned = self.function(*positional, **named)
            seen.end(lambda name: self._mask(name, outputs[name]))
            launches, without_other = seen.launches, seen.loads_without_other
            written = {name: _by_element(outputs[name], known) for name, known in seen.written.items()}
        for name, tensor in guarded.items():
            stray = tensor.stray_write()
            if stray is not None:
                flag("out-of-bounds", f"element {stray} of {name}, shape {list(tensor.view.shape)}, is written")
        results = {name: tensor.view.detach().to("cpu", copy=True) for name, tensor in guarded.items()}
        for i, value in enumerate(returned if isinstance(returned, (tuple, list)) else (returned,)):
            if isinstance(value, torch.Tensor):
                results[f"returned[{i}]"] = value.detach().to("cpu", copy=True)
        return _SanitizedRun(flaws, results, launches, without_other, written)

    def variant(
        self, first: _SanitizedRun, kind: Kind, what: str, *, memory: int = 0, order: Order = tuple
    ) -> list[Flaw]:
        """What another run shows that differs from the first in `what` alone."""
        try:
            run = self.run(memory=memory, order=order)
        except Exception as error:  # the first run had none, so it is what differs that raises it
            return [Flaw(kind, f"raises {one_line(error)}, depending on {what}")]
        seen = {(flaw.kind, flaw.where) for flaw in first.flaws}
        fresh = [flaw for flaw in run.flaws if (flaw.kind, flaw.where) not in seen]
        changed = self.first_difference(first, run)
        if fresh and kind != "program-order":
            return [Flaw(kind, f"{fresh[0].text}, depending on {what}", fresh[0].where)]
        return [Flaw(kind, f"{changed} changes with {what}")] if changed else fresh

    def unwritten(self, run: _SanitizedRun) -> list[Flaw]:
        flaws = []
        for name in self.outputs:
            missing = (~self._written(name, run) & self._mask(name, run.results[name])).nonzero()
            if missing.shape[0]:
                at = [int(i) for i in missing[0]]
                flaws.append(Flaw("unwritten", f"{name}{at} is never written"))
        return flaws

    def first_difference(self, first: _SanitizedRun, other: _SanitizedRun) -> str:
        for name, result in first.results.items():
            if other.results[name].shape != result.shape:
                return f"the shape of {name}"
            differs = differing(result, other.results[name]) & self._mask(name, result)
            if name in self.outputs:
                differs &= self._written(name, first)
            changed = differs.nonzero()
            if changed.shape[0]:
                return f"{name}{[int(i) for i in changed[0]]}"
        return ""

    def _written(self, name: str, run: _SanitizedRun) -> torch.Tensor:
        written = run.written[name]
        if written is None:  # nobody watched: what still is poison was not written
            poison = poison_value(run.results[name].dtype, 0)
            written = differing(run.results[name], torch.full_like(run.results[name], poison))
        return written

    def _mask(self, name: str, like: torch.Tensor) -> torch.Tensor:
        mask = self.defined.get(name)
        return torch.ones_like(like, dtype=torch.bool) if mask is None else mask.cpu()


def _position_names(function: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` arguments by position; "arg0", ... for those that have none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        parameters = {}.values()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in by_position]
    return [names[i] if i < len(names) else f"arg{i}" for i in range(count)]


def _flag(flaws: list[Flaw], kind: Kind, text: str, where: str = "") -> None:
    """Note the first of each kind and line."""
    if all((flaw.kind, flaw.where) != (kind, where) for flaw in flaws):
        flaws.append(Flaw(kind, text, where))


def _by_element(tensor: torch.Tensor, written: Any) -> torch.Tensor | None:
    """Which elements kernels have written, by bytes; None where they wrote none, so that nobody can say."""
    if not written.any():
        return None
    elements = torch.from_numpy(written.reshape(-1, tensor.element_size()).all(axis=1))
    return torch.as_strided(elements, tensor.shape, tensor.stride(), 0).clone()
