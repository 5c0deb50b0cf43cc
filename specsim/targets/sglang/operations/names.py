"""How an implementation of SGLang is described: a kernel with its documented launch, a place that calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from specsim.ops.contract import Sizes, Tensors


@dataclass(frozen=True, slots=True)
class KernelNames:
    """A kernel: `launch(kernel, **contract arguments)` runs it as its documentation says."""

    op: str
    names: tuple[str, ...]
    paths: tuple[str, ...]
    signatures: tuple[tuple[str, ...], ...]
    launch: Callable[..., None]


@dataclass(frozen=True, slots=True)
class CallerNames:
    """A place in the engine that calls an operation.

    `callees`      the names under which it is called there: the kernel's, or those of a host function that launches it
    `host_paths`   files of the host function, () when the kernel itself is launched
    `environment`  stands for the caller's surroundings, made from a case
    `result`       names of the callee's parameter that receives the result; () when the call returns it; None when it
                   is written into the case's own in-out tensor
    `accepts`      the configurations that the caller's class accepts; it is not judged on others
    """

    op: str
    function: str
    paths: tuple[str, ...]
    callees: tuple[str, ...]
    environment: Callable[[Sizes, Tensors], dict[str, Any]]
    result: tuple[str, ...] | None
    host_paths: tuple[str, ...] = ()
    accepts: Callable[[Sizes], bool] = lambda _sizes: True


def running_batch(**fields: Any) -> SimpleNamespace:
    """A `ScheduleBatch` or `ModelWorkerBatch` that decodes."""
    return SimpleNamespace(forward_mode=SimpleNamespace(is_idle=lambda: False), **fields)
