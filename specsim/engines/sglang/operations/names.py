"""How an implementation of SGLang is described: a kernel with its documented launch, a place that calls it.

A launch is stated once, as data: the tier makes it and compares what it wrote, a benchmark prepares it and times it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.provider import Reach
from specsim.engines.sglang.guards import Guards
from specsim.engines.sglang.where import Place, places


def overlap_worker(guards: Guards, sizes: Sizes) -> Reach:
    """Who reaches what the overlap workers call."""
    return guards.reach_of_overlap_worker(sizes)


def always(_guards: Guards, _sizes: Sizes) -> Reach:
    """Every server reaches it."""
    return "default"


def paged(_guards: Guards, sizes: Sizes) -> Reach:
    """Who reaches the allocator of pages: pages of 64 tokens are the default on Blackwell, and those of one token have
    an allocator of their own unless an option asks for another (`PagedTokenToKVPoolAllocator(` in a release).
    """
    return "default" if sizes["page_size"] > 1 else "option"


def by_option(guards: Guards, sizes: Sizes) -> Reach:
    """What no server does by default, like workers without overlap or several draft layers."""
    reach = guards.reach_of_overlap_worker(sizes)
    return "option" if reach == "default" else reach


def without_overlap(_guards: Guards, _sizes: Sizes) -> Reach:
    """The workers of before the overlap ones, to which a server falls back, or which an option chooses."""
    return "option"


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A launch of a kernel on a grid, or a call of the host function that launches it, with its arguments.

    `grid`      of the kernel; None for a host function
    `returned`  gives the operation's outputs, of what the function returns; None where all are written in place
    """

    arguments: tuple[Any, ...]
    grid: tuple[int, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    returned: Callable[[Any], Any] | None = None

    def bound(self, function: Any) -> Callable[[], Any]:
        """The launch of that kernel or host function, of which nothing is left to prepare."""
        return partial(function if self.grid is None else function[self.grid], *self.arguments, **self.options)


def on_grid(grid: tuple[int, ...], *arguments: Any, **options: Any) -> KernelLaunch:
    """A launch of the kernel itself."""
    return KernelLaunch(arguments, grid, options)


def host_call(*arguments: Any, returned: Callable[[Any], Any] | None = None, **options: Any) -> KernelLaunch:
    """A call of the host function that launches it."""
    return KernelLaunch(arguments, None, options, returned)


def as_is(returned: Any) -> Any:
    """The outputs of a function that returns them as the contract has them."""
    return returned


def words(text: str) -> tuple[str, ...]:
    """The parameters of a function, by their names in order."""
    return tuple(text.split())


def named(tensors: Tensors, text: str) -> tuple[torch.Tensor, ...]:
    """The tensors of these names."""
    return tuple(tensors[name] for name in text.split())


@dataclass(frozen=True, slots=True)
class KernelNames:
    """A kernel, or a host function that launches it: `launch(sizes, tensors)` is how its documentation says to run it
    on a case, None where nothing is launched. Raises NotCalledError where it is for other cases.

    `places`   where releases have it, newest first
    `variant`  distinguishes it from another kernel of the same operation, "" for the first one
    `accepts`  the sizes that it is made for; it is not tested on others
    `cost`     how many times as long a case takes on a CPU as one of a small kernel; it is tested on as many fewer
    `reach`    who reaches it with these sizes
    `prepare`  makes what `launch` calls of the function; it may raise DriftError
    `strided`  arguments whose strides the host function reads
    `called_from`  folders in which a call of it, or of the host function NAME_func, may stand; () when there surely is
                   one
    """

    op: str
    places: tuple[Place, ...]
    signatures: tuple[tuple[str, ...], ...]
    launch: Callable[[Sizes, Tensors], KernelLaunch | None]
    variant: str = ""
    accepts: Callable[[Sizes], bool] = lambda _sizes: True
    cost: int = 3
    reach: Callable[[Guards, Sizes], Reach] = overlap_worker
    called_from: tuple[str, ...] = ()
    prepare: Callable[[Any], Any] = lambda function: function
    strided: frozenset[str] = frozenset()

    @property
    def subject(self) -> str:
        """What the subject of the kernel is called."""
        return f"kernel:{self.op}:{self.variant}" if self.variant else f"kernel:{self.op}"


@dataclass(frozen=True, slots=True)
class CallerNames:
    """A place in the engine that calls an operation.

    `function`     "Class.method" or function, under the first name that it had, which is what it is called here
    `places`       where the call stands in each release, newest first
    `callees`      the names under which it is called there: the kernel's, or those of a host function that launches it
    `host`         places of the host function, () when the kernel itself is launched
    `environment`  stubs of the caller's surroundings, made from a case
    `result`       names of the callee's parameter that receives the result; () when the call returns it; None when it
                   is written into the case's own in-out tensor
    `accepts`      the configurations that the caller's class accepts; it is not tested on others
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
    places: tuple[Place, ...]
    callees: tuple[str, ...]
    environment: Callable[[Sizes, Tensors], dict[str, Any]]
    result: tuple[str, ...] | None
    host: tuple[Place, ...] = ()
    accepts: Callable[[Sizes], bool] = lambda _sizes: True
    other_length: bool = False
    variant: str = ""
    which: int | None = None
    outputs: Callable[[Any], tuple[Any, ...]] | None = None
    written: tuple[tuple[str, ...], ...] = ()
    cost: int = 3
    reach: Callable[[Guards, Sizes], Reach] = overlap_worker
    called_from: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """The subject of the kernel that it calls."""
        return f"kernel:{self.op}:{self.variant}" if self.variant else f"kernel:{self.op}"


def option_kernel(op: str, function: str, signatures: str | tuple[str, ...], launch: Any, **more: Any) -> KernelNames:
    """What servers reach with an option, by the words of its parameters."""
    known = (signatures,) if isinstance(signatures, str) else signatures
    return KernelNames(op, places(function), tuple(map(words, known)), launch, **{"reach": by_option, **more})


def running_batch(**fields: Any) -> SimpleNamespace:
    """A `ScheduleBatch` or `ModelWorkerBatch` that decodes."""
    return SimpleNamespace(forward_mode=SimpleNamespace(is_idle=lambda: False), **fields)


def power_of_two(count: int) -> int:
    """The power of two that `count`, 1 or more, fits in: what a block of that many lanes is made of."""
    return 1 << (count - 1).bit_length()
