"""The checks of arguments, and the one switch that turns them off.

Every check raises ValueError with the argument's name, the value that is wrong and what is allowed. Checks of
values read the tensors (on a GPU: wait for them). Inside `with unchecked():` nothing is checked, and wrong
arguments have undefined results.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import torch
    from torch import Tensor

__all__ = ["unchecked"]

_enabled: ContextVar[bool] = ContextVar("specsim_reference_validation", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Switch validation off in the current thread or task, for inputs that are known to be valid."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


def enabled() -> bool:
    """Whether arguments are checked."""
    return _enabled.get()


def require_scalar(name: str, value: int, low: int, high: int | None = None) -> None:
    """`value` must be at least `low` and, unless it is None, at most `high`."""
    if value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise ValueError(f"{name} is {value}; allowed: {allowed}")


def require_tensor(name: str, tensor: Tensor, dtype: torch.dtype, **dims: int | None) -> None:
    """`tensor` must have `dtype` and the named dimensions, in order; None stands for any size."""
    require_shape(name, tensor, dims.items())
    require_dtype(name, tensor, (dtype,))


def require_shape(name: str, tensor: Tensor, dims: Collection[tuple[str, int | None]]) -> None:
    """`tensor` must have the named dimensions, in order; None stands for any size."""
    fits = tensor.ndim == len(dims) and all(
        size is None or size == actual for (_, size), actual in zip(dims, tensor.shape, strict=True)
    )
    if not fits:
        allowed = ", ".join(dim if size is None else f"{dim}={size}" for dim, size in dims)
        raise ValueError(f"{name} has shape {list(tensor.shape)}; allowed: [{allowed}]")


def require_dtype(name: str, tensor: Tensor, allowed: Collection[torch.dtype]) -> None:
    """`tensor` must have one of the dtypes."""
    if tensor.dtype not in allowed:
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: {', '.join(map(str, allowed))}")


def require_all(valid: Tensor, name: str, values: Tensor, allowed: str) -> None:
    """Every element of the boolean tensor `valid`, which has the shape of `values`, must be True."""
    if not bool(valid.all()):
        index = (~valid).nonzero()[0].tolist()
        raise ValueError(f"{name}{index} is {values[tuple(index)].item()}; allowed: {allowed}")


def require_between(name: str, values: Tensor, low: int, high: int | None = None, *, is_nan: bool = False) -> None:
    """Every element must be at least `low` and, unless it is None, at most `high`, or NaN, if that `is_nan` says so."""
    valid = values >= low if high is None else (values >= low) & (values <= high)
    allowed = f"{low} or more" if high is None else f"{low} to {high}"
    if is_nan:
        valid, allowed = valid | values.isnan(), f"{allowed} or NaN"
    require_all(valid, name, values, allowed)


def require_distinct(name: str, values: Tensor) -> None:
    """No two elements of a 1-d tensor may be equal."""
    ordered = values.sort().values
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.shape[0]:
        raise ValueError(f"{name} holds {twice[0].item()} more than once; allowed: values without duplicates")
