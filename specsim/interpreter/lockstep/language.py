"""Triton's language, over all programs at once: by name, what compiled kernels call in its place."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import triton
import triton.language as tl

from specsim.interpreter.lockstep import blocks, control, limits, tensors
from specsim.interpreter.lockstep.blocks import Block
from specsim.interpreter.lockstep.control import Range, machine
from specsim.interpreter.lockstep.errors import KernelError
from specsim.interpreter.lockstep.tensors import (
    BFLOAT16,
    FLOAT32,
    INT1,
    INT32,
    Pointer,
    Tensor,
    aligned,
    cast,
    either,
    numpy_of,
    rounded,
    to_shape,
    to_tensor,
    unary,
)

CACHED_MAX: Final = 1 << 14


def _room(shape: Sequence[int], dtype: Any, programs: int) -> None:
    limits.fit((programs, *shape), tensors.itemsize_of(dtype))


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in (shape if isinstance(shape, (tuple, list)) else (shape,)))


# Programs and blocks.


def program_id(axis: int) -> Tensor:
    return Tensor(machine().places[axis], INT32)


def num_programs(axis: int) -> Tensor:
    return Tensor(np.array([machine().dims[axis]], np.int32), INT32)


def arange(start: int, end: int) -> Tensor:
    extent = end - start if isinstance(start, int) and isinstance(end, int) else 0
    if extent <= 0 or extent & (extent - 1):
        raise KernelError(f"arange from {start} to {end}; allowed: constants, a power of two apart")
    _room((extent,), INT32, machine().num_programs)
    return _arange(start, end) if extent <= CACHED_MAX else Tensor(np.arange(start, end, dtype=np.int32)[None], INT32)


@functools.lru_cache(maxsize=256)
def _arange(start: int, end: int) -> Tensor:
    return Tensor(np.arange(start, end, dtype=np.int32)[None], INT32)


def full(shape: Any, value: Any, dtype: Any) -> Tensor:
    shape = _shape(shape)
    _room(shape, dtype, 1)
    filled = cast(to_tensor(value), dtype)
    if filled.data.size > 1:
        return filled.like(to_shape(filled.data, shape), filled.undefined)
    data = np.empty((1, *shape), filled.data.dtype)
    data[...] = filled.data.reshape(())
    return filled.like(data, filled.undefined)


def zeros(shape: Any, dtype: Any) -> Tensor:
    return full(shape, 0, dtype)


def zeros_like(value: Tensor) -> Tensor:
    return full(value.shape, 0, value.dtype)


def broadcast_to(value: Any, *shape: Any) -> Tensor:
    value = to_tensor(value)
    shape = _shape(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
    _room(shape, value.dtype, value.data.shape[0])
    if value.data.ndim == 1:
        return _shaped(value, lambda data: to_shape(data, shape))
    return _shaped(value, lambda data: np.broadcast_to(data, (data.shape[0], *shape)))


def broadcast(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    a, b = to_tensor(a), to_tensor(b)
    x, y = aligned(a.data, b.data)
    shape = np.broadcast_shapes(x.shape[1:], y.shape[1:])
    return broadcast_to(a, *shape), broadcast_to(b, *shape)


def _shaped(value: Tensor, change: Callable[[Any], Any]) -> Tensor:
    """Another arrangement of the same elements; so of their marks."""
    if value.undefined is None:
        return value.like(change(value.data), None)
    marks = np.broadcast_to(aligned(value.undefined, value.data)[0], value.data.shape)
    return value.like(change(value.data), change(marks))


def reshape(value: Tensor, *shape: Any, can_reorder: bool = False) -> Tensor:
    shape = _shape(shape[0] if len(shape) == 1 else shape)
    value = to_tensor(value)
    if int(np.prod(shape, dtype=np.int64)) != value.numel:
        raise KernelError(f"{list(value.shape)} is reshaped to {list(shape)}, of another number of elements")
    return _shaped(value, lambda data: np.ascontiguousarray(data).reshape(data.shape[0], *shape))


def view(value: Tensor, *shape: Any) -> Tensor:
    return reshape(value, *shape)


def expand_dims(value: Any, axis: Any) -> Tensor:
    found = to_tensor(value)
    for one in sorted(_shape(axis)):
        found = _shaped(found, functools.partial(np.expand_dims, axis=one + 1 if one >= 0 else one))
    return found


def permute(value: Tensor, *dims: Any) -> Tensor:
    order = _shape(dims[0] if len(dims) == 1 else dims)
    return _shaped(value, lambda data: np.transpose(data, (0, *(axis + 1 for axis in order))))


def trans(value: Tensor, *dims: Any) -> Tensor:
    rank = len(value.shape)
    order = dims or (*builtins.range(rank - 2), rank - 1, rank - 2)
    return permute(value, *order)


def ravel(value: Tensor, can_reorder: bool = False) -> Tensor:
    return reshape(value, value.numel)


def flip(value: Tensor, dim: Any = None) -> Tensor:
    axis = len(value.shape) if dim is None else _axis(dim, len(value.shape))
    return _shaped(value, lambda data: np.flip(data, axis))


def cat(a: Tensor, b: Tensor, can_reorder: bool = False, dim: int = 0) -> Tensor:
    return _joined([a, b], lambda arrays: np.concatenate(arrays, axis=_axis(dim, len(a.shape))))


def join(a: Any, b: Any) -> Tensor:
    return _joined(list(broadcast(a, b)), lambda arrays: np.stack(arrays, axis=-1))


def _joined(parts: list[Tensor], change: Callable[[list[Any]], Any]) -> Tensor:
    programs = max(part.data.shape[0] for part in parts)
    wide = [np.broadcast_to(part.data, (programs, *part.data.shape[1:])) for part in parts]
    undefined = None
    if any(part.undefined is not None for part in parts):
        marks = [np.zeros(1, bool) if part.undefined is None else part.undefined for part in parts]
        undefined = change(
            [np.broadcast_to(aligned(mark, data)[0], data.shape) for mark, data in zip(marks, wide, strict=True)]
        )
    return parts[0].like(change(wide), undefined)


def split(value: Tensor) -> tuple[Tensor, Tensor]:
    return _shaped(value, lambda data: data[..., 0]), _shaped(value, lambda data: data[..., 1])


def interleave(a: Tensor, b: Tensor) -> Tensor:
    joined = join(a, b)
    return reshape(joined, (*joined.shape[:-2], joined.shape[-2] * 2)) if len(joined.shape) > 1 else joined


# Types and selections.


def cast_(value: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Tensor:
    return to_tensor(value).to(dtype, fp_downcast_rounding, bitcast)


def where(condition: Any, a: Any, b: Any) -> Tensor:
    return tensors.where(condition, a, b)


def maximum(a: Any, b: Any, propagate_nan: Any = tl.PropagateNan.NONE) -> Tensor:
    return tensors.maximum(a, b, nan=propagate_nan == tl.PropagateNan.ALL)


def minimum(a: Any, b: Any, propagate_nan: Any = tl.PropagateNan.NONE) -> Tensor:
    return tensors.minimum(a, b, nan=propagate_nan == tl.PropagateNan.ALL)


def clamp(value: Any, low: Any, high: Any, propagate_nan: Any = tl.PropagateNan.NONE) -> Tensor:
    return minimum(maximum(value, low, propagate_nan), high, propagate_nan)


def builtin_max(*values: Any) -> Any:
    """Python's `max` in a kernel, which is Triton's where a tensor takes part."""
    return maximum(*values) if any(isinstance(value, Tensor) for value in values) else builtins.max(*values)


def builtin_min(*values: Any) -> Any:
    return minimum(*values) if any(isinstance(value, Tensor) for value in values) else builtins.min(*values)


def cdiv(value: Any, divisor: Any) -> Any:
    return (value + (divisor - 1)) // divisor


def add(a: Any, b: Any, sanitize_overflow: bool = True) -> Tensor:
    return tensors.add(to_tensor(a), b)


def sub(a: Any, b: Any, sanitize_overflow: bool = True) -> Tensor:
    return tensors.sub(to_tensor(a), b)


def mul(a: Any, b: Any, sanitize_overflow: bool = True) -> Tensor:
    return tensors.mul(to_tensor(a), b)


# Functions.


def erf(value: Any) -> Tensor:
    return unary(lambda data: _erf(data).astype(data.dtype), value)


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none


def sigmoid(value: Tensor) -> Tensor:
    return tensors.truediv(1, tensors.add(1, unary(np.exp, -value)))


def rsqrt(value: Tensor) -> Tensor:
    return unary(lambda data: (1 / np.sqrt(data)).astype(data.dtype), value)


def absolute(value: Any) -> Tensor:
    return unary(np.abs, value, floats=False)


def fdiv(a: Any, b: Any, ieee_rounding: bool = False) -> Tensor:
    return tensors.truediv(to_tensor(a), to_tensor(b))


def div_rn(a: Any, b: Any) -> Tensor:
    return tensors.truediv(to_tensor(a), to_tensor(b))


def fma(a: Any, b: Any, c: Any) -> Tensor:
    return tensors.add(tensors.mul(to_tensor(a), b), c)


def umulhi(a: Tensor, b: Tensor) -> Tensor:
    bits = a.dtype.int_bitwidth
    if bits > 32:
        product = [(int(x) * int(y)) >> bits for x, y in np.nditer(np.broadcast_arrays(*aligned(a.data, b.data)))]
        shape = np.broadcast_shapes(*(array.shape for array in aligned(a.data, b.data)))
        return Tensor(np.array(product, a.data.dtype).reshape(shape), a.dtype, either(a.undefined, b.undefined))
    x, y = aligned(a.data.astype(np.uint64), b.data.astype(np.uint64))
    return Tensor(((x * y) >> np.uint64(bits)).astype(a.data.dtype), a.dtype, either(a.undefined, b.undefined))


# Reductions and scans.


def _axis(axis: int, rank: int) -> int:
    """The array's axis for an axis of the block."""
    if not -rank <= axis < rank:
        raise KernelError(f"axis {axis} of a block with {rank} axes")
    return axis % rank + 1


def _flat(value: Any, axis: int | None) -> tuple[Tensor, int]:
    value = to_tensor(value)
    if axis is None:
        return reshape(value, value.numel), 1
    return value, _axis(axis, len(value.shape))


def _reduced(
    value: Any, axis: int | None, keep_dims: bool, compute: Callable[[Any, int], Any], dtype: Any = None
) -> Tensor:
    machine().memory.meet()
    given = to_tensor(value)
    value, at = _flat(given, axis)
    held = numpy_of(dtype or value.dtype)
    data = compute(np.ascontiguousarray(value.data), at).astype(held, copy=False)
    undefined = value.undefined
    if undefined is not None:
        undefined = np.broadcast_to(aligned(undefined, value.data)[0], value.data.shape).any(axis=at)
    if keep_dims:
        places = tuple(builtins.range(1, len(given.shape) + 1)) if axis is None else (at,)
        data = np.expand_dims(data, places)
        undefined = None if undefined is None else np.expand_dims(undefined, places)
    return Tensor(rounded(data) if (dtype or value.dtype) == BFLOAT16 else data, dtype or value.dtype, undefined)


def _summed_type(of: Any, dtype: Any) -> Any:
    if dtype is not None:
        return dtype
    if of.is_int() and of.int_bitwidth < 32:
        return INT32 if of.is_int_signed() else tl.uint32
    return of


def sum_(input: Any, axis: int | None = None, keep_dims: bool = False, dtype: Any = None) -> Tensor:
    value = to_tensor(input)
    value = cast(value, _summed_type(value.dtype, dtype))
    return _reduced(value, axis, keep_dims, lambda data, at: np.add.reduce(data, axis=at))


def _compared(given: Any) -> Tensor:
    """Triton widens before it looks for an extreme."""
    value = to_tensor(given)
    if value.dtype.primitive_bitwidth < 32:
        return cast(value, FLOAT32 if value.dtype.is_floating() else INT32)
    return value


def _nan_last(reduce: Any) -> Callable[[Any, int], Any]:
    """A NaN is the result only of NaNs alone."""
    return lambda data, at: reduce(data, axis=at)


def _extreme(value: Any, axis: int | None, keep_dims: bool, reduce: Any, find: Any, indices: bool) -> Any:
    if not indices:
        return _reduced(_compared(value), axis, keep_dims, _nan_last(reduce))
    value = to_tensor(value)
    value = cast(value, FLOAT32) if value.dtype == BFLOAT16 else value
    best = _reduced(value, axis, keep_dims, lambda data, at: (np.max if find is np.argmax else np.min)(data, axis=at))
    return best, _reduced(value, axis, keep_dims, lambda data, at: find(data, axis=at), INT32)


def max_(
    input: Any,
    axis: int | None = None,
    return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Any:
    return _extreme(input, axis, keep_dims, np.fmax.reduce, np.argmax, return_indices)


def min_(
    input: Any,
    axis: int | None = None,
    return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Any:
    return _extreme(input, axis, keep_dims, np.fmin.reduce, np.argmin, return_indices)


def argmax(input: Any, axis: int, tie_break_left: bool = True, keep_dims: bool = False) -> Tensor:
    return max_(input, axis, True, tie_break_left, keep_dims)[1]  # type: ignore[no-any-return]


def argmin(input: Any, axis: int, tie_break_left: bool = True, keep_dims: bool = False) -> Tensor:
    return min_(input, axis, True, tie_break_left, keep_dims)[1]  # type: ignore[no-any-return]


def xor_sum(input: Any, axis: int | None = None, keep_dims: bool = False) -> Tensor:
    return _reduced(input, axis, keep_dims, lambda data, at: np.bitwise_xor.reduce(data, axis=at))


def reduce_or(input: Any, axis: int | None = None, keep_dims: bool = False) -> Tensor:
    return _reduced(input, axis, keep_dims, lambda data, at: np.bitwise_or.reduce(data, axis=at))


def softmax(x: Any, dim: int | None = None, keep_dims: bool = False, ieee_rounding: bool = False) -> Tensor:
    axis = 0 if dim is None else dim
    shifted = tensors.sub(x, max_(x, axis, keep_dims=keep_dims))
    powers = unary(np.exp, shifted)
    return tensors.truediv(powers, sum_(powers, axis, keep_dims=keep_dims))


def cumsum(input: Any, axis: int = 0, reverse: bool = False, dtype: Any = None) -> Tensor:
    value = to_tensor(input)
    value = cast(value, FLOAT32) if value.dtype == BFLOAT16 else value
    value = cast(value, _summed_type(value.dtype, dtype))
    return _scanned(value, axis, reverse, lambda data, at: np.cumsum(data, axis=at, dtype=data.dtype))


def cumprod(input: Any, axis: int = 0, reverse: bool = False) -> Tensor:
    value = to_tensor(input)
    value = cast(value, FLOAT32) if value.dtype == BFLOAT16 else value
    return _scanned(value, axis, reverse, lambda data, at: np.cumprod(data, axis=at, dtype=data.dtype))


def _scanned(value: Tensor, axis: int, reverse: bool, compute: Callable[[Any, int], Any]) -> Tensor:
    machine().memory.meet()
    at = _axis(axis, len(value.shape))

    def scan(data: Any, of: Callable[[Any, int], Any]) -> Any:
        data = np.flip(data, at) if reverse else data
        found = of(data, at)
        return np.flip(found, at) if reverse else found

    undefined = value.undefined
    if undefined is not None:
        undefined = np.broadcast_to(aligned(undefined, value.data)[0], value.data.shape)
        undefined = scan(undefined, lambda data, at: np.logical_or.accumulate(data, axis=at))
    return value.like(scan(value.data, compute), undefined)


def reduce(input: Any, axis: int | None, combine_fn: Any, keep_dims: bool = False) -> Any:
    """Elements are combined one after the other, from the first."""
    machine().memory.meet()
    values = list(input) if isinstance(input, tuple) else [input]
    flat = [_flat(value, axis) for value in values]
    at = flat[0][1]
    parts = [value for value, _ in flat]
    state = tuple(_taken(part, 0, at) for part in parts)
    for i in builtins.range(1, parts[0].data.shape[at]):
        found = combine_fn(*state, *(_taken(part, i, at) for part in parts))
        state = found if isinstance(found, tuple) else (found,)
    done = [cast(to_tensor(value), part.dtype) for value, part in zip(state, parts, strict=True)]
    if keep_dims:
        places = tuple(builtins.range(1, len(to_tensor(values[0]).shape) + 1)) if axis is None else (at,)
        done = [_shaped(value, lambda data: np.expand_dims(data, places)) for value in done]
    return tuple(done) if isinstance(input, tuple) else done[0]


def associative_scan(input: Any, axis: int, combine_fn: Any, reverse: bool = False) -> Any:
    machine().memory.meet()
    values = list(input) if isinstance(input, tuple) else [input]
    at = _axis(axis, len(values[0].shape))
    extent = values[0].data.shape[at]
    order = list(builtins.range(extent - 1, -1, -1)) if reverse else list(builtins.range(extent))
    state = tuple(_taken(value, order[0], at) for value in values)
    steps = [state]
    for i in order[1:]:
        found = combine_fn(*state, *(_taken(value, i, at) for value in values))
        state = found if isinstance(found, tuple) else (found,)
        steps.append(state)
    if reverse:
        steps.reverse()
    done = []
    for k, value in enumerate(values):
        columns = [cast(to_tensor(step[k]), value.dtype) for step in steps]
        done.append(_joined(columns, lambda arrays: np.stack(arrays, axis=at)))
    return tuple(done) if isinstance(input, tuple) else done[0]


def _taken(value: Tensor, i: int, at: int) -> Tensor:
    return _shaped(value, lambda data: data.take(i, axis=at))


def gather(src: Tensor, index: Tensor, axis: int) -> Tensor:
    machine().memory.meet()
    at = _axis(axis, len(src.shape))
    programs = builtins.max(src.data.shape[0], index.data.shape[0])
    data, places = (np.broadcast_to(v.data, (programs, *v.data.shape[1:])) for v in (src, index))
    places = places.astype(np.int64, copy=False)
    if places.size and not (int(places.min()) >= 0 and int(places.max()) < data.shape[at]):
        of = machine()
        outside = (places < 0) | (places >= data.shape[at])
        if of.active is not None:
            outside = outside & aligned(of.active, outside)[0]
        if outside.any():
            raise KernelError(f"gather reads lane {int(places[outside][0])} of {data.shape[at]}")
        places = np.clip(places, 0, data.shape[at] - 1)
    undefined = index.undefined
    if src.undefined is not None:
        marks = np.broadcast_to(aligned(src.undefined, data)[0], data.shape)
        undefined = either(undefined, np.take_along_axis(marks, places, axis=at))
    return src.like(np.take_along_axis(data, places, axis=at), undefined)


def histogram(value: Tensor, num_bins: int, mask: Any = None) -> Tensor:
    machine().memory.meet()
    programs = builtins.max(value.data.shape[0], 1 if mask is None else to_tensor(mask).data.shape[0])
    data = np.broadcast_to(value.data, (programs, *value.data.shape[1:]))
    lanes = np.ones(data.shape, bool) if mask is None else np.broadcast_to(to_tensor(mask).data, data.shape)
    _room((num_bins,), INT32, programs)
    counts = [np.bincount(row[on], minlength=num_bins)[:num_bins] for row, on in zip(data, lanes, strict=True)]
    undefined = None
    if value.undefined is not None:
        undefined = np.broadcast_to(aligned(value.undefined, data)[0], data.shape).any(axis=1, keepdims=True)
    return Tensor(np.array(counts, np.int32), INT32, undefined)


def sort(x: Tensor, dim: int | None = None, descending: bool = False) -> Tensor:
    machine().memory.meet()
    at = len(x.shape) if dim is None else _axis(dim, len(x.shape))
    undefined = None
    if x.undefined is not None:
        undefined = np.broadcast_to(aligned(x.undefined, x.data)[0], x.data.shape).any(axis=at, keepdims=True)
    data = np.sort(x.data, axis=at)
    return x.like(np.flip(data, at) if descending else data, undefined)


def dot(a: Tensor, b: Tensor, acc: Any = None, *_how: Any, out_dtype: Any = FLOAT32, **_more: Any) -> Tensor:
    machine().memory.meet()
    programs = builtins.max(a.data.shape[0], b.data.shape[0])
    held = numpy_of(INT32 if a.dtype.is_int() else out_dtype)
    _room((*a.shape[:-1], b.shape[-1]), out_dtype, programs)
    x, y = (np.broadcast_to(v.data, (programs, *v.data.shape[1:])) for v in (a, b))
    data = np.stack([np.matmul(x[p], y[p], dtype=held) for p in builtins.range(programs)])
    found = Tensor(data, INT32 if a.dtype.is_int() else out_dtype, None)
    if a.undefined is not None or b.undefined is not None:
        rows = np.zeros(x.shape, bool) if a.undefined is None else np.broadcast_to(aligned(a.undefined, x)[0], x.shape)
        columns = (
            np.zeros(y.shape, bool) if b.undefined is None else np.broadcast_to(aligned(b.undefined, y)[0], y.shape)
        )
        found.undefined = rows.any(axis=-1, keepdims=True) | columns.any(axis=-2, keepdims=True)
    return found if acc is None else found + acc


# Memory.


def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Tensor:
    if isinstance(pointer, Block):
        other = pointer.other(padding_option or "")
        pointer, mask = pointer.lanes(_shape(boundary_check))
    return machine().memory.load(pointer, mask, other)  # type: ignore[no-any-return]


def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    if isinstance(pointer, Block):
        pointer, mask = pointer.lanes(_shape(boundary_check))
    machine().memory.store(pointer, value, mask)


def _atomic(combine: Callable[..., Any]) -> Callable[..., Tensor]:
    def update(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Tensor:
        found: Tensor = machine().memory.update(pointer, mask, [val], combine, orders=sem != "relaxed")
        return found

    return update


atomic_add = _atomic(lambda old, value: old + value)
atomic_max = _atomic(builtins.max)
atomic_min = _atomic(builtins.min)
atomic_and = _atomic(lambda old, value: old & value)
atomic_or = _atomic(lambda old, value: old | value)
atomic_xor = _atomic(lambda old, value: old ^ value)
atomic_xchg = _atomic(lambda old, value: value)


def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> Tensor:
    combine = lambda old, same, new: new if old == same else old  # noqa: E731
    found: Tensor = machine().memory.update(pointer, None, [cmp, val], combine, orders=sem != "relaxed")
    return found


ATOMICS: Final = frozenset(
    (atomic_add, atomic_max, atomic_min, atomic_and, atomic_or, atomic_xor, atomic_xchg, atomic_cas)
)


# Hints, and what only debugs.


def same(value: Any, *_hints: Any, **_more: Any) -> Any:
    return value


def nothing(*_args: Any, **_kwargs: Any) -> None: ...


def barrier(*_args: Any, **_kwargs: Any) -> None:
    machine().memory.barrier()


def static_assert(condition: Any, msg: str = "") -> None:
    if not condition:
        raise KernelError(f"a static assertion fails: {msg}")


def device_assert(condition: Any, msg: str = "", mask: Any = None) -> None: ...


NAMES: Final[dict[str, Any]] = {
    "abs": absolute,
    "add": add,
    "advance": blocks.advance,
    "arange": arange,
    "argmax": argmax,
    "argmin": argmin,
    "associative_scan": associative_scan,
    "assume": nothing,
    "atomic_add": atomic_add,
    "atomic_and": atomic_and,
    "atomic_cas": atomic_cas,
    "atomic_max": atomic_max,
    "atomic_min": atomic_min,
    "atomic_or": atomic_or,
    "atomic_xchg": atomic_xchg,
    "atomic_xor": atomic_xor,
    "broadcast": broadcast,
    "broadcast_to": broadcast_to,
    "cast": cast_,
    "cat": cat,
    "cdiv": cdiv,
    "ceil": lambda x: unary(np.ceil, x),
    "clamp": clamp,
    "cos": lambda x: unary(np.cos, x),
    "cumprod": cumprod,
    "cumsum": cumsum,
    "debug_barrier": barrier,
    "device_assert": device_assert,
    "device_print": nothing,
    "div_rn": div_rn,
    "dot": dot,
    "erf": erf,
    "exp": lambda x: unary(np.exp, x),
    "exp2": lambda x: unary(np.exp2, x),
    "expand_dims": expand_dims,
    "fdiv": fdiv,
    "flip": flip,
    "floor": lambda x: unary(np.floor, x),
    "fma": fma,
    "full": full,
    "gather": gather,
    "gdc_launch_dependents": nothing,
    "gdc_wait": nothing,
    "histogram": histogram,
    "interleave": interleave,
    "join": join,
    "load": load,
    "load_tensor_descriptor": blocks.load_tensor_descriptor,
    "log": lambda x: unary(np.log, x),
    "log2": lambda x: unary(np.log2, x),
    "make_block_ptr": blocks.make_block_ptr,
    "make_tensor_descriptor": blocks.make_tensor_descriptor,
    "max": max_,
    "max_constancy": same,
    "max_contiguous": same,
    "maximum": maximum,
    "min": min_,
    "minimum": minimum,
    "mul": mul,
    "multiple_of": same,
    "num_programs": num_programs,
    "permute": permute,
    "program_id": program_id,
    "ravel": ravel,
    "reduce": reduce,
    "reduce_or": reduce_or,
    "reshape": reshape,
    "rsqrt": rsqrt,
    "sigmoid": sigmoid,
    "sin": lambda x: unary(np.sin, x),
    "softmax": softmax,
    "sort": sort,
    "split": split,
    "sqrt": lambda x: unary(np.sqrt, x),
    "sqrt_rn": lambda x: unary(np.sqrt, x),
    "static_assert": static_assert,
    "static_print": nothing,
    "store": store,
    "store_tensor_descriptor": blocks.store_tensor_descriptor,
    "sub": sub,
    "sum": sum_,
    "to_tensor": to_tensor,
    "trans": trans,
    "umulhi": umulhi,
    "view": view,
    "where": where,
    "xor_sum": xor_sum,
    "zeros": zeros,
    "zeros_like": zeros_like,
}
"""By the name of a function of Triton's language."""

LIBDEVICE: Final[dict[str, Callable[..., Any]]] = {"log1p": lambda x: unary(np.log1p, x)}
"""By the name of a function of libdevice."""

INSTEAD: Final[dict[Any, Any]] = {
    builtins.range: Range,
    builtins.max: builtin_max,
    builtins.min: builtin_min,
    builtins.print: nothing,
    tl.range: Range,
    tl.static_range: builtins.range,
    **({tl.condition: lambda value, *_hints, **_more: value} if hasattr(tl, "condition") else {}),
    tl.tensor: Tensor,
    tl.constexpr: lambda value: value,
    triton.cdiv: cdiv,
}
"""By the object that a name stands for outside of a kernel."""

_MEMBERS: Final = (
    "abs argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg "
    "atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum erf exp exp2 expand_dims flip floor gather histogram "
    "log log2 max min permute ravel reduce reduce_or reshape rsqrt sigmoid sin softmax sort split sqrt sqrt_rn store "
    "sum trans view xor_sum"
)
for _name in _MEMBERS.split():
    setattr(Tensor, _name, NAMES[_name])
for _name, _member in {
    "T": property(trans),
    "logical_and": lambda self, other: control.conjunction(self, lambda: other),
    "logical_or": lambda self, other: control.disjunction(self, lambda: other),
}.items():
    setattr(Tensor, _name, _member)

__all__ = ["ATOMICS", "INSTEAD", "INT1", "LIBDEVICE", "NAMES", "Pointer"]
