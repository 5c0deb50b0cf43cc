"""How a tensor function of SGLang is described: where it is, the stubs of what it calls, how it is called.

A tensor function is plain PyTorch that runs on the host: it is lifted without its decorators (`torch.compile`
included) and run as it is. What it calls that has no source, CUDA code of a compiled extension, is the reference's
operation; what chooses among equals (`torch.topk` leaves their order open) takes the lower index first; uniform draws
come from the case. Anything else that a release came to call says so when it is used, and the function is then not run.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from specsim.choices.chooser import replayed, seeded
from specsim.contracts.contract import Implementation, Sizes, Tensors
from specsim.contracts.provider import NotCalledError, Reach, Subject
from specsim.contracts.registry import OPS
from specsim.engines.sglang.stubs import Fields, Needed, SilentLogger, UnknownNameError, nothing
from specsim.engines.sglang.where import Place
from specsim.errors import described
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter

_REHEARSALS = 6


class Lifted(NamedTuple):
    """A function of the release with what it was given; the stubs among it are set and read around a call."""

    value: Any
    given: dict[str, Any]
    name: str = ""

    def bound(self, method: str, owner: Any) -> Any:
        """A "Class.method" that was lifted along, bound to `owner`."""
        return partial(self.given[method], owner)


@dataclass(frozen=True, slots=True)
class FunctionNames:
    """A tensor function as an implementation of an operation.

    `name`       of the subject, the same on every release and of no other one
    `places`     where it was, newest first
    `signatures` its parameters, as they were; () for a function whose parameters `launch` looks up
    `launch`     `launch(lifted, **contract arguments)` calls it and returns the operation's outputs
    `stubs`  makes what it is given in place of names of its release
    `of_release` makes more of it, from the release itself
    `follow`     names that are looked for in the release's own source, and lifted with it
    `along`      methods and functions that are lifted with it, by place; `given` has methods under their dotted names,
                 and functions, which it then calls, as a Recorder
    `kernels`    places of each Triton kernel, or host function that launches one, that it calls; those that a release
                 does not have are skipped
    `reads`      attributes that the function reads; one that does not has not got what is tested
    `role`       "caller" when it is an engine's own call, and not the operation itself
    `accepts`    sizes that the function is for
    `by_option`  whether a request or an option has to bring what is tested
    `called_from`  files of which one has to call it; where none does, whoever reaches it has put the call there
    """

    op: str
    name: str
    places: tuple[Place, ...]
    signatures: tuple[tuple[str, ...], ...]
    launch: Callable[..., Any]
    stubs: Callable[[], dict[str, Any]] = dict
    of_release: Callable[[Lifter], dict[str, Any]] = lambda _lifter: {}
    follow: frozenset[str] = frozenset()
    along: tuple[Place, ...] = ()
    kernels: tuple[tuple[Place, ...], ...] = ()
    reads: frozenset[str] = frozenset()
    role: str = "kernel"
    accepts: Callable[[Sizes], bool] = lambda _sizes: True
    called_from: tuple[str, ...] = ()
    by_option: bool = False

    @property
    def what(self) -> str:
        """How it is listed when it is not run."""
        return f"{self.op} in {self.name.partition(':')[2]}"


class Recorder:
    """A function that remembers what its calls gave; `results` is emptied by who reads it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.results: list[Any] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.results.append(self._function(*arguments, **named))
        return self.results[-1]


class _Launched:
    """A kernel, or a host function that launches it. It does not run while the function that calls it is rehearsed:
    nothing watches its accesses then, and one outside its tensors would end the process.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.runs = True

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        launch: Callable[..., Any] = self._kernel[grid] if self.runs else nothing
        return launch

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._kernel(*arguments, **named) if self.runs else None


def function_subject(lifter: Lifter, names: FunctionNames, reach: Callable[[Sizes], Reach]) -> Subject:
    """The subject of a tensor function. Raises DriftError when it is not there, has parameters that are not known, or
    needs something that has no stub: it is run on a few cases.
    """
    lifter.forget_values()
    found, lifted = _lift(lifter, names)
    if names.signatures and found.parameters not in names.signatures:
        raise DriftError(f"signature changed: {found.where} {found.name}({', '.join(found.parameters)})")
    if unread := names.reads - lifter.attributes:
        raise DriftError(f"not found: {', '.join(sorted(unread))} in {found.where} {found.name}")
    run = partial(_run, names.op, partial(names.launch, lifted))
    launched = [value for value in lifted.given.values() if isinstance(value, _Launched)]
    for kernel in launched:
        kernel.runs = False
    _rehearse(names, found, run)
    for kernel in launched:
        kernel.runs = True
    return Subject(
        op=names.op,
        role="caller" if names.role == "caller" else "kernel",
        name=names.name,
        run=run,
        where=found.where,
        accepts=names.accepts,
        reach=_reach(lifter, names, found, reach),
        source_hash=found.body_hash,
        on_cpu=True,
    )


def _lift(lifter: Lifter, names: FunctionNames) -> tuple[LiftedFunction, Lifted]:
    for path, name in names.places:
        if not lifter.source.exists(path):
            continue
        try:
            lifter.look(path, name)
        except DriftError:
            continue
        given = {**_EVERYWHERE, **names.stubs(), **names.of_release(lifter), **_kernels(lifter, names)}
        for along in reversed(names.along):  # where there are several of a name, the newest place has the last word
            if lifter.source.exists(along[0]):
                try:
                    value = lifter.lift_method(*along, Needed(given, names.follow | {along[1]})).value
                    given[along[1]] = value if "." in along[1] else Recorder(value)
                except DriftError:
                    continue
        found = lifter.lift_method(path, name, Needed(given, names.follow | {name}))
        return found, Lifted(found.value, given, name)
    places = ", ".join(f"{name} in {path}" for path, name in names.places)
    raise DriftError(f"not found: {places}")


def _reach(
    lifter: Lifter, names: FunctionNames, found: LiftedFunction, of_worker: Callable[[Sizes], Reach]
) -> Callable[[Sizes], Reach]:
    if not _is_called(lifter, names, found):
        return lambda _sizes: f"guarded:{found.where}"
    if not names.by_option:
        return of_worker
    return lambda sizes: "option" if of_worker(sizes) == "default" else of_worker(sizes)


def _is_called(lifter: Lifter, names: FunctionNames, found: LiftedFunction) -> bool:
    call = re.compile(rf"(?<!def ){re.escape(found.name.split('.')[-1])}\(")
    texts = [lifter.source.read(path) for path in names.called_from if lifter.source.exists(path)]
    return not names.called_from or any(call.search(text) for text in texts)


def _kernels(lifter: Lifter, names: FunctionNames) -> dict[str, Any]:
    found = {}
    for places in names.kernels:
        for path, name in places:
            if lifter.source.exists(path) and name in lifter.module(path).definitions:
                found[name] = _Launched(lifter.lift(path, name).value)
                break
    return found


def _run(op: str, implementation: Implementation, sizes: Sizes, tensors: Tensors) -> Tensors:
    try:
        return OPS[op].call(implementation, sizes, tensors)
    except UnknownNameError as error:
        raise NotCalledError(str(error)) from error


def _rehearse(names: FunctionNames, found: LiftedFunction, run: Callable[[Sizes, Tensors], Tensors]) -> None:
    op = OPS[names.op]
    for number in range(_REHEARSALS):
        case = op.generate(seeded(0, names.op, names.name, number) if number else replayed(()))
        if not names.accepts(case.sizes):
            continue
        try:
            run(case.sizes, {**case.clone().tensors, **op.allocate_outputs(case)})
        except NotCalledError as error:
            if isinstance(error.__cause__, UnknownNameError):
                raise DriftError(f"cannot be lifted: {found.where} {found.name}: {error}") from error
        except (AttributeError, NameError, TypeError) as error:
            text = described(error)
            raise DriftError(f"cannot be lifted: {found.where} {found.name} raises {text} with stubs") from error
        except Exception:
            return  # the release's own doing: its cases say so


# Stubs


class TorchWithoutTies:
    """`torch`, where equal values have an order: of those that `topk` chooses from, the lower index first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def topk(values: torch.Tensor, k: int, dim: int = -1, **_options: Any) -> Any:
        ordered, index = values.sort(dim=dim, descending=True, stable=True)
        return torch.return_types.topk((ordered.narrow(dim, 0, k), index.narrow(dim, 0, k)))


class TorchWithHigherTies:
    """`torch`, whose `topk` takes the higher index of equal values first, as it may."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def topk(values: torch.Tensor, k: int, dim: int = -1, **options: Any) -> Any:
        best, index = TorchWithoutTies.topk(values.flip(dim), k, dim, **options)
        return torch.return_types.topk((best, values.shape[dim] - 1 - index))


def fast_topk(values: torch.Tensor, topk: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The release's function of this name, which is `torch.topk`, without ties."""
    best = TorchWithoutTies.topk(values, topk, dim)
    return best.values, best.indices


# What host functions call that changes no result on an NVIDIA machine with the defaults.
_EVERYWHERE: Mapping[str, Any] = {
    "torch": TorchWithoutTies(),
    "F": torch.nn.functional,
    "IntEnum": enum.IntEnum,
    "fast_topk": fast_topk,
    "logger": SilentLogger(),
    "maybe_detect_oob": nothing,
    "maybe_detect_nan": nothing,
    "maybe_detect_inf": nothing,
    "sanitize_nan_logits": nothing,
    "next_power_of_2": lambda n: 1 << (n - 1).bit_length() if n > 0 else 1,
    "_is_cuda": True,
    **{f"_is_{name}": False for name in ("hip", "npu", "xpu", "cpu", "musa", "mps")},
}

__all__ = [
    "Fields",
    "FunctionNames",
    "Lifted",
    "TorchWithHigherTies",
    "TorchWithoutTies",
    "fast_topk",
    "function_subject",
]
