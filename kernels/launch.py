"""Checks of a kernel's arguments before it gets their addresses. They read no value and wait for no device."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import torch
import triton

from specsim.contracts.contract import ScalarArg, TensorArg
from specsim.contracts.registry import OPS
from specsim.errors import UsageError

P = ParamSpec("P")

ANY = "any dtype"
"""For a tensor whose rows are copied and never read as numbers."""

LOGITS = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of the logits that a model returns."""

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)

Dtypes = str | tuple[torch.dtype, ...]


def operation(**dtypes: Dtypes) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorate a host function: a call checks its arguments against the contract of the operation of its name.

    `dtypes` has the dtypes that the kernel takes beyond the contract's: `ANY`, or a tuple. Arguments with equal tuples
    must have equal dtypes.
    """

    def decorate(function: Callable[P, None]) -> Callable[P, None]:
        names = list(inspect.signature(function).parameters)
        args = OPS[function.__name__].args

        @functools.wraps(function)
        def checked(*positional: P.args, **named: P.kwargs) -> None:
            arguments = dict(zip(names, positional, strict=False)) | named
            if arguments.keys() == set(names):  # otherwise calling it says what is missing
                require_contract(args, arguments, dtypes)
            function(*positional, **named)

        return checked

    return decorate


def require_contract(
    args: tuple[TensorArg | ScalarArg, ...], arguments: Mapping[str, Any], dtypes: Mapping[str, Dtypes]
) -> None:
    """Every argument must have the contract's type, dtype and shape, and sizes of one name must be equal.

    Raises ValueError, naming the argument, what it is and what is allowed.
    """
    sizes = {arg.name: arguments[arg.name] for arg in args if isinstance(arg, ScalarArg)}
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} is {value!r}; allowed: an int, known on the host")
    tensors: dict[str, torch.Tensor] = {}
    for arg in args:
        if isinstance(arg, TensorArg):
            tensor = arguments[arg.name]
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{arg.name} is a {type(tensor).__name__}; allowed: a tensor")
            tensors[arg.name] = tensor
            _require_dtype(arg, tensor, dtypes.get(arg.name, (arg.dtype,)))
            _require_shape(arg, tensor, sizes)
    _require_equal_dtypes(tensors, dtypes)
    require_launchable(**tensors)


def _require_dtype(arg: TensorArg, tensor: torch.Tensor, allowed: Dtypes) -> None:
    if allowed != ANY and tensor.dtype not in allowed:
        names = ", ".join(str(dtype) for dtype in allowed)
        raise ValueError(f"{arg.name} has dtype {tensor.dtype}; allowed: {names}")


def _require_shape(arg: TensorArg, tensor: torch.Tensor, sizes: dict[str, int]) -> None:
    shape = tuple(tensor.shape)
    fits = len(shape) == len(arg.shape) and all(
        actual == (sizes.setdefault(dim, actual) if isinstance(dim, str) else dim)
        for dim, actual in zip(arg.shape, shape, strict=True)
    )
    if not fits:
        allowed = ", ".join(
            str(dim) if sizes.get(str(dim)) is None else f"{dim}={sizes[str(dim)]}" for dim in arg.shape
        )
        raise ValueError(f"{arg.name} has shape {list(shape)}; allowed: [{allowed}]")


def _require_equal_dtypes(tensors: Mapping[str, torch.Tensor], dtypes: Mapping[str, Dtypes]) -> None:
    alike: dict[Dtypes, str] = {}
    for name, allowed in dtypes.items():
        first = alike.setdefault(allowed, name)
        if tensors[name].dtype != tensors[first].dtype and allowed != ANY:
            raise ValueError(
                f"{name} has dtype {tensors[name].dtype}; allowed: {tensors[first].dtype}, that of {first}"
            )


def require_size(name: str, size: str, actual: int, allowed: int) -> None:
    """`actual`, the `size` of argument `name`, must be `allowed`, which follows from the other arguments."""
    if actual != allowed:
        raise ValueError(f"{name} has {size} {actual}; allowed: {allowed}, as the other arguments say")


def require_vocabulary(name: str, rows: torch.Tensor) -> int:
    """The number of rows [num_rows, vocab_size], which must have tokens."""
    if rows.shape[1] < 1:
        raise ValueError(f"{name} has vocab_size {rows.shape[1]}; allowed: 1 or more")
    return rows.shape[0]


def require_same_dtype(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """A tensor that receives rows of another must have its dtype."""
    if tensor.dtype != other.dtype:
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: {other.dtype}, that of {other_name}")


def require_launchable(**tensors: torch.Tensor) -> None:
    """All tensors must be contiguous and lie on one device that Triton can launch on.

    Raises ValueError for a tensor that is not contiguous or on another device than the first, UsageError for
    CPU tensors without Triton's interpreter.
    """
    device = next(iter(tensors.values())).device
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}; allowed: contiguous tensors")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}; allowed: {device}, the device of the first argument")
    if device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise UsageError(
            "the tensors are on the CPU, where Triton kernels run in its interpreter only",
            "set TRITON_INTERPRET=1 before triton is imported, or move the tensors to a GPU",
        )


def block_of(count: int, most: int) -> int:
    """Lanes for `count` elements: the next power of two, at most `most`."""
    return min(most, 1 << max(0, count - 1).bit_length())


def as_words(rows: torch.Tensor) -> torch.Tensor:
    """The same memory as the widest integers that fit the rows' bytes and the tensor's address, [num_rows, words].

    rows  [num_rows, ...] of any dtype, contiguous
    """
    return as_equal_words(rows)[0]


def as_equal_words(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """`as_words` of tensors whose rows are equally long, with words that fit all of them."""
    row_bytes = math.prod(tensors[0].shape[1:]) * tensors[0].itemsize
    word = next(
        word
        for word in WORDS
        if row_bytes % word.itemsize == 0 and all(tensor.data_ptr() % word.itemsize == 0 for tensor in tensors)
    )
    words = row_bytes // word.itemsize
    return [tensor.view(-1).view(word).view(tensor.shape[0], words) for tensor in tensors]
