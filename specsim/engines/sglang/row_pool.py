"""The release's own pool of `req_to_token` rows in place of the model's: its table is the engine's buffer, and the
engine sees which of its rows are free.

Not run: pools of models that keep a state beside the rows (Mamba), which the simulated model does not have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from specsim.engine.memory.rows import Rows
from specsim.engines.sglang import host_names as names
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter

PART = "row pool"

# What the pool wraps the making of its table in, which on a machine without a GPU does nothing.
_NOT_SAVED = SimpleNamespace(region=lambda *_arguments, **_named: contextlib.nullcontext())
SUPPLIED = {
    "TorchMemorySaverAdapter": SimpleNamespace(create=lambda **_named: _NOT_SAVED),
    "GPU_MEMORY_TYPE_KV_CACHE": "kv_cache",
}


class ReleasedRows(NamedTuple):
    """The pool of a release: where it is, and the class, whose calls keep the engine's list of free rows."""

    path: str
    lifted: LiftedFunction
    pool: Any


def lift_rows(
    lifter: Lifter, given: dict[str, Any], counted: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> ReleasedRows:
    """Lift the pool. DriftError when its rows are not those of the engine, whose row 0 belongs to nobody."""
    path, name = names.ROW_POOL
    lifted = lifter.lift_method(path, name, {**given, **SUPPLIED})
    try:
        small = _made(lifted.value, 2, 3)
        first, shape = min(small.free_slots), tuple(small.req_to_token.shape)
    except Exception as error:
        raise DriftError(f"{lifted.where} {name} cannot be made: {type(error).__name__}: {error}") from error
    if (first, shape) != (1, (3, 3)):
        raise DriftError(f"{lifted.where} {name} hands out row {first}, and the engine keeps row 0 for padded batches")
    return ReleasedRows(path, lifted, _listed(lifted.value, counted))


def make_rows(released: Any, rows: Rows) -> Any:
    """A pool over the engine's rows."""
    pool = _made(released, rows.count, rows.width)
    pool.req_to_token = torch.frombuffer(rows.buffer, dtype=torch.int32).view(rows.count + 1, rows.width)
    pool.rows = rows
    rows.free_rows = pool.free_slots
    return pool


def _made(released: Any, size: int, width: int) -> Any:
    return released(size=size, max_context_len=width, device="cpu", enable_memory_saver=False)


def _listed(released: Any, counted: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """The class, whose list of free rows is the engine's too, after each call that may make a new one."""

    def reported(method: Callable[..., Any]) -> Callable[..., Any]:
        method = counted(method)

        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            answer = method(self, *arguments, **named)
            self.rows.free_rows = self.free_slots  # the list itself: sessions of some releases append to it
            return answer

        return call

    return type(released.__name__, (released,), {name: reported(getattr(released, name)) for name in ("alloc", "free")})
