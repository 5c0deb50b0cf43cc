"""Checks of a kernel's arguments before it gets their addresses. They read no value and wait for no device."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from types import CodeType
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

_NO_BUILTINS: dict[str, Any] = {"__builtins__": {}}


def checked_launch(**dtypes: Dtypes) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorate a host function: a call checks its arguments against the contract of the operation of its name.

    `dtypes` has the dtypes that the kernel takes beyond the contract's: `ANY`, or a tuple. Arguments with equal tuples
    must have equal dtypes.
    """

    def decorate(function: Callable[P, None]) -> Callable[P, None]:
        op = OPS.get(function.__name__)
        if op is None:
            raise ValueError(
                f"{function.__name__} is no operation; allowed: a name of specsim.contracts.registry.OPS. Name the "
                "kernel as its operation, and add that to OPS of its family in specsim/contracts"
            )
        check = ContractCheck(op.args, op.sizes, dtypes)
        names = list(inspect.signature(function).parameters)
        given = set(names)

        @functools.wraps(function)
        def checked(*positional: P.args, **named: P.kwargs) -> None:
            arguments = dict(zip(names, positional, strict=False)) | named
            if arguments.keys() == given:  # otherwise calling it says what is missing
                check(arguments)
            function(*positional, **named)

        return checked

    return decorate


class ContractCheck:
    """Checks that arguments have the contract's types, dtypes and shapes, and that all tensors fit one another.

    `args` and `sizes` are an operation's, `dtypes` what the kernel takes beyond the contract's. What can be prepared
    is, because a check runs at every launch.
    """

    def __init__(
        self, args: tuple[TensorArg | ScalarArg, ...], sizes: Mapping[str, CodeType], dtypes: Mapping[str, Dtypes]
    ) -> None:
        self._scalars = [arg.name for arg in args if isinstance(arg, ScalarArg)]
        self._tensors = [
            (arg.name, arg.shape, dtypes.get(arg.name, (arg.dtype,))) for arg in args if isinstance(arg, TensorArg)
        ]
        first = {dim: name for name, shape, _ in reversed(self._tensors) for dim in shape}
        self._sizes = [(first[size], size, value) for size, value in sizes.items() if size in first]
        self._numbers: dict[Any, int] = {dim: dim for dim in first if isinstance(dim, int)}
        alike: dict[Dtypes, str] = {}
        of_one_dtype = [(name, alike.setdefault(allowed, name)) for name, allowed in dtypes.items() if allowed != ANY]
        self._of_one_dtype = [(name, other) for name, other in of_one_dtype if name != other]

    def __call__(self, arguments: Mapping[str, Any]) -> None:
        """Raises ValueError, naming the argument, what it is and what is allowed."""
        known = dict(self._numbers)
        for name in self._scalars:
            value = known[name] = arguments[name]
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} is {value!r}; allowed: an int, known on the host")
        tensors: dict[str, torch.Tensor] = {}
        for name, shape, dtypes in self._tensors:
            tensor = tensors[name] = arguments[name]
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{name} is a {type(tensor).__name__}; allowed: a tensor")
            if dtypes != ANY and tensor.dtype not in dtypes:
                raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: {', '.join(map(str, dtypes))}")
            actual = tensor.shape
            fits = len(actual) == len(shape)
            for dim, size in zip(shape, actual, strict=False):
                fits = fits and known.setdefault(dim, size) == size
            if not fits:
                allowed = ", ".join(f"{dim}={known[dim]}" if dim in known else str(dim) for dim in shape)
                raise ValueError(f"{name} has shape {list(actual)}; allowed: [{allowed}]")
        for name, other in self._of_one_dtype:
            require_same_dtype(name, tensors[name], other, tensors[other])
        for name, size_name, expected in self._sizes:
            require_size(name, size_name, known[size_name], eval(expected, _NO_BUILTINS, known))
        require_launchable(**tensors)


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


def options_of(device: torch.device, num_warps: int, registers: int, splits: int) -> dict[str, Any]:
    """Of a launch of `splits` programs a row, which wait for each other if they are several. The interpreter takes no
    others than the warps.
    """
    on_gpu = {"maxnreg": registers, "launch_cooperative_grid": splits > 1} if device.type != "cpu" else {}
    return {"num_warps": num_warps, **on_gpu}


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
