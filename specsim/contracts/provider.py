"""Providers: which operations somebody implements, and what is known of each implementation.

The smallest provider is a mapping from operation names to callables (`{"fill_bonus_tokens": my_function}`). What
specsim itself lifts from a release says more: where the code stands, which configurations reach it, and whether it is
an operation called as its documentation says (a *kernel*) or the launch as an engine's own code makes it (a *caller*).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from specsim.contracts.contract import Implementation, Op, Role, Sizes, Tensors
from specsim.errors import did_you_mean
from specsim.verdict import NO_OPERATION, OTHER_CALL, NotRun

Reach = str  # "default" | "option" | "guarded:FILE:LINE" | "not called" | "unknown"


@dataclass(frozen=True, slots=True)
class Subject:
    """One implementation of one operation, as it is tested.

    `run`      `run(sizes, tensors)` runs it and returns the outputs by name; `tensors` holds every tensor argument of
               the contract, outputs preallocated, and is written in place. Raises WrongResultError for outputs that do
               not fit.
    `name`     unique within the provider and stable across releases, e.g. "caller:EAGLEWorkerV2.verify"
    `where`    FILE:LINE of the code, relative to the root of its package, or "" when it has none
    `accepts`  the sizes for which the implementation claims to work; others are skipped
    `reach`    who can reach the failing configuration, given its sizes
    `explain`  one more sentence on a failing case, or ""
    `needs`    name of a subject that must pass for this one to be tested (a caller needs its kernel), or ""
    `cost`     how many times as long a case takes as one of a small kernel: it is tested with as many fewer
    `source_hash`  hash of the code that is tested, "" if unknown
    `strided`  arguments whose strides it reads: their rows need not lie side by side
    `on_cpu`   whether it is host code that runs on a CPU alone
    `far`      launches it at sizes of which only the strides are made; only its offsets are then tested
    """

    op: str
    role: Literal["kernel", "caller"]
    name: str
    run: Callable[[Sizes, Tensors], Tensors]
    where: str = ""
    accepts: Callable[[Sizes], bool] = lambda _sizes: True
    reach: Callable[[Sizes], Reach] = lambda _sizes: "unknown"
    explain: Callable[[], str] = lambda: ""
    needs: str = ""
    cost: int = 1
    source_hash: str = ""
    strided: frozenset[str] = frozenset()
    on_cpu: bool = False
    far: Callable[[], None] | None = None


class NotCalledError(Exception):
    """A caller's code does not make its call in the configuration of the case: the case is skipped."""


class Provider(Protocol):
    """What a target offers at the ops tier."""

    name: str

    def subjects(self) -> tuple[list[Subject], list[NotRun]]:
        """The implementations to test, kernels before the callers that need them, and what is missing."""
        ...


class MappingProvider:
    """A provider made from a mapping of operation names to callables. `accepts` says for which sizes
    single operations are tested; the others are for all.
    """

    def __init__(
        self,
        name: str,
        mapping: Mapping[str, Implementation],
        reach: Reach = "unknown",
        accepts: Mapping[str, Callable[[Sizes], bool]] | None = None,
    ) -> None:
        self.name = name
        self._mapping = dict(mapping)
        self._reach = reach
        self._accepts = dict(accepts or {})

    def subjects(self) -> tuple[list[Subject], list[NotRun]]:
        from specsim.contracts.registry import OPS

        if not self._mapping:
            return [], [NotRun("operations", f"{self.name} provides none")]
        found: list[Subject] = []
        missing = [
            NotRun(str(name), f"{NO_OPERATION}; {did_you_mean(str(name), OPS) or '`specsim template` lists them'}")
            for name in self._mapping
            if name not in OPS
        ]
        for op in OPS:
            if op in self._mapping and (refusal := _refusal(OPS[op], self._mapping[op])):
                missing.append(NotRun(op, refusal))
            elif op in self._mapping:
                call = self._mapping[op]
                found.append(
                    Subject(
                        op,
                        "kernel",
                        f"kernel:{op}",
                        partial(OPS[op].call, call),
                        where=_where(call),
                        accepts=self._accepts.get(op, lambda _sizes: True),
                        reach=lambda _sizes: self._reach,
                    )
                )
            else:
                missing.append(NotRun(op, f"{self.name} does not provide it"))
        return found, missing


def _refusal(op: Op, call: object) -> str:
    """Why something cannot be called as an operation's contract says, "" when it can."""
    if not callable(call):
        return f"{OTHER_CALL}{call!r:.80} is a {type(call).__name__}, not a function"
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return ""  # of a builtin: the call itself says
    outs = {arg.name for arg in op.tensor_args if arg.role is Role.OUT}
    inputs = [arg.name for arg in op.args if arg.name not in outs]
    named = outs if outs and outs <= set(signature.parameters) else set()
    try:
        signature.bind(**dict.fromkeys([*inputs, *named]))
    except TypeError as error:
        name = getattr(call, "__name__", type(call).__name__)
        others = [n for n in signature.parameters if n not in {arg.name for arg in op.args}]
        meant = f" ({near})" if others and (near := did_you_mean(others[0], inputs)) else ""
        why = f"{others[0]!r} is none of the contract's arguments{meant}" if others else str(error)
        return f"{OTHER_CALL}{name}{signature}: {why}; it is called with {', '.join(inputs)} by name"
    return ""


def _where(call: Implementation) -> str:
    """FILE:LINE of a function, the file by its module's name; "" for a callable that is not a function."""
    function = inspect.unwrap(call)
    if not inspect.isfunction(function) or not function.__module__:
        return ""
    return f"{function.__module__.replace('.', '/')}.py:{function.__code__.co_firstlineno}"
