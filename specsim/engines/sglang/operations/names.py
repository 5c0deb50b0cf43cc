"""How an implementation of SGLang is described: a kernel with its documented launch, a place that calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.provider import Reach
from specsim.engines.sglang.guards import Guards


def overlap_worker(guards: Guards, sizes: Sizes) -> Reach:
    """Who reaches what the overlap workers call."""
    return guards.reach_of_overlap_worker(sizes)


def always(_guards: Guards, _sizes: Sizes) -> Reach:
    """Every server reaches it."""
    return "default"


def by_option(guards: Guards, sizes: Sizes) -> Reach:
    """What no server does unasked, like workers without overlap or several draft layers."""
    reach = guards.reach_of_overlap_worker(sizes)
    return "option" if reach == "default" else reach


def without_overlap(_guards: Guards, _sizes: Sizes) -> Reach:
    """The workers of before the overlap ones, to which a server falls back or is told to."""
    return "option"


@dataclass(frozen=True, slots=True)
class KernelNames:
    """A kernel, or a host function that launches it: `launch(kernel, **contract arguments)` runs it as its
    documentation says.

    `variant`  tells it from another kernel of the same operation, "" for the first one
    `accepts`  the sizes that it is made for; it is not judged on others
    `cost`     how many times as long a case takes in Triton's interpreter as one of a small kernel; it is judged on as
               many fewer
    `reach`    who reaches it with these sizes
    `strided`  arguments whose strides the host function asks for
    `called_from`  folders in which a call of it, or of the host function NAME_func, may stand; () when there surely is
                   one
    """

    op: str
    names: tuple[str, ...]
    paths: tuple[str, ...]
    signatures: tuple[tuple[str, ...], ...]
    launch: Callable[..., Any]
    variant: str = ""
    accepts: Callable[[Sizes], bool] = lambda _sizes: True
    cost: int = 3
    reach: Callable[[Guards, Sizes], Reach] = overlap_worker
    called_from: tuple[str, ...] = ()
    strided: frozenset[str] = frozenset()

    @property
    def subject(self) -> str:
        """What the subject of the kernel is called."""
        return f"kernel:{self.op}:{self.variant}" if self.variant else f"kernel:{self.op}"


@dataclass(frozen=True, slots=True)
class CallerNames:
    """A place in the engine that calls an operation.

    `function`     "Class.method" or function, under the first name that it had, which is what it is called here
    `callees`      the names under which it is called there: the kernel's, or those of a host function that launches it
    `host_paths`   files of the host function, () when the kernel itself is launched
    `environment`  stands for the caller's surroundings, made from a case
    `result`       names of the callee's parameter that receives the result; () when the call returns it; None when it
                   is written into the case's own in-out tensor
    `accepts`      the configurations that the caller's class accepts; it is not judged on others
    `moved`        other (function, path) where it stands in other releases
    `other_length` the buffer that receives the result has a length of its own: what is beyond the contract's is not
                   looked at, what it lacks was never written
    `variant`      of the kernel that it calls
    `which`        of several calls in the function, from 0 on; None when there is one
    `outputs`      what the call returns, as the operation's outputs; None when it is that already
    `written`      for several outputs that are parameters of the callee, the names of each
    `cost`, `reach`, `called_from`  as for a kernel
    """

    op: str
    function: str
    paths: tuple[str, ...]
    callees: tuple[str, ...]
    environment: Callable[[Sizes, Tensors], dict[str, Any]]
    result: tuple[str, ...] | None
    host_paths: tuple[str, ...] = ()
    accepts: Callable[[Sizes], bool] = lambda _sizes: True
    moved: tuple[tuple[str, str], ...] = ()
    other_length: bool = False
    variant: str = ""
    which: int | None = None
    outputs: Callable[[Any], tuple[Any, ...]] | None = None
    written: tuple[tuple[str, ...], ...] = ()
    cost: int = 3
    reach: Callable[[Guards, Sizes], Reach] = overlap_worker
    called_from: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """(function, path) of everywhere that the call may stand."""
        return (*((self.function, path) for path in self.paths), *self.moved)

    @property
    def needs(self) -> str:
        """The subject of the kernel that it calls."""
        return f"kernel:{self.op}:{self.variant}" if self.variant else f"kernel:{self.op}"


def running_batch(**fields: Any) -> SimpleNamespace:
    """A `ScheduleBatch` or `ModelWorkerBatch` that decodes."""
    return SimpleNamespace(forward_mode=SimpleNamespace(is_idle=lambda: False), **fields)


def power_of_two(count: int) -> int:
    """The power of two that `count`, 1 or more, fits in: what a block of that many lanes is made of."""
    return 1 << (count - 1).bit_length()
