"""Tensors of a kernel, over all programs of a launch at once, and Triton's arithmetic on them.

A `Tensor` holds an array `[programs, *shape]`. Its first extent is 1 where all programs hold the same, as constants,
`tl.arange` and what follows from them alone do. Types are Triton's own objects and its own rules choose the type of a
result (`type_rules`), once for each pair of types; all else is NumPy. A Python number stays one until it
meets a tensor, as a `constexpr` does.

Three types are held in another: `bfloat16` in float32 that is rounded after each operation, `int1` in bool, and a
pointer in the int64 number of an element, relative to the tensor that it points into (`Pointer`).

Undefined lanes, those that a load was not permitted to read, are marked: `undefined` is a boolean array that broadcasts
to the data, or None where every lane is defined. It follows arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import triton.language as tl

from specsim.interpreter.lockstep import limits
from specsim.interpreter.lockstep.errors import KernelError, UnsupportedError
from specsim.interpreter.lockstep.limits import LARGE, PAIRS_MAX
from specsim.interpreter.triton_names import type_rules

Array = Any
Number = int | float | bool

INT1, INT32, INT64, UINT8 = tl.int1, tl.int32, tl.int64, tl.uint8
FLOAT32, FLOAT64, BFLOAT16 = tl.float32, tl.float64, tl.bfloat16

NUMPY: Final[dict[Any, Any]] = {
    tl.int1: np.dtype(bool),
    **{getattr(tl, name): np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{getattr(tl, name): np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    **{getattr(tl, name): np.dtype(name) for name in ("float16", "float32", "float64")},
    tl.bfloat16: np.dtype(np.float32),
}
"""What a tensor of each type is held in. Other types, those of 8 and 4 bits, are not supported."""

_HELD: Final = {dtype.name: held for dtype, held in NUMPY.items()}  # Triton's own hash and comparison take long
_SIZES: Final = {dtype.name: max(1, int(dtype.primitive_bitwidth) // 8) for dtype in NUMPY}
_AS_THEY_ARE: Final = _HELD.keys() - {BFLOAT16.name, INT1.name}  # types that are held in NumPy's own
_INTEGERS: Final = frozenset(dtype.name for dtype in NUMPY if dtype.is_int())

_rules = type_rules()
_common: dict[tuple[str, bool, str, bool, bool], Any] = {}
_constants: dict[tuple[type, Any], Tensor] = {}
_beside: dict[tuple[Any, ...], tuple[Array, Any]] = {}  # by a number and the type of the tensor beside it
_compared: dict[tuple[Any, ...], Tensor] = {}  # by a number and the type of the tensor that it is compared with
CONSTANTS_MAX = 4096


class Overflow:
    """Integer arithmetic is checked while `report` is set: it is called with what did not fit."""

    report: Callable[[str, Array], None] | None = None


class Tensor:
    """A value of a kernel; the module's docstring says how it is held."""

    __slots__ = ("data", "dtype", "undefined")

    data: Array
    dtype: Any
    undefined: Array | None

    def __init__(self, data: Array, dtype: Any, undefined: Array | None = None) -> None:
        self.data = data
        self.dtype = dtype
        self.undefined = undefined
        if data.size > LARGE:
            limits.hold(data)

    def like(self, data: Array, undefined: Array | None) -> Tensor:
        """Other data of the same type."""
        return Tensor(data, self.dtype, undefined)

    # What kernels read of a tensor.

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape[1:])

    @property
    def numel(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def type(self) -> Any:
        return tl.block_type(self.dtype, list(self.shape)) if self.data.ndim > 1 else self.dtype

    def __getitem__(self, key: Any) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if any(not (k is None or k == slice(None)) for k in keys):
            raise KernelError(f"a tensor is indexed by {key}; allowed: None and `:`")
        at = (slice(None), *keys)
        undefined = None if self.undefined is None else _full(self.undefined, self.data.ndim)[at]
        return self.like(self.data[at], undefined)

    def to(self, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Tensor:
        if bitcast:
            return bitcast_to(self, dtype)
        if fp_downcast_rounding not in (None, "rtne"):
            raise KernelError(f"fp_downcast_rounding is {fp_downcast_rounding!r}; allowed: 'rtne'")
        return cast(self, dtype)

    def __bool__(self) -> bool:
        raise KernelError("a tensor stands where Python needs a truth value: is this a `tl.constexpr`?")

    __hash__ = None  # type: ignore[assignment]

    # Operators; Python's own fold constants.

    def __add__(self, other: Any) -> Tensor:
        return add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return sub(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return mul(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return mul(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return truediv(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return truediv(other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return floordiv(other, self)

    def __mod__(self, other: Any) -> Tensor:
        return mod(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return mod(other, self)

    def __and__(self, other: Any) -> Tensor:
        return bitwise_and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Tensor:
        return bitwise_or(self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Tensor:
        return bitwise_xor(self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Tensor:
        return left_shift(self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return left_shift(other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return right_shift(self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return right_shift(other, self)

    def __lt__(self, other: Any) -> Tensor:
        return less(self, other)

    def __le__(self, other: Any) -> Tensor:
        return less_equal(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return greater(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return greater_equal(self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return equal(self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return not_equal(self, other)

    def __neg__(self) -> Tensor:
        return sub(self.like(np.zeros(1, self.data.dtype), None), self)

    def __pos__(self) -> Tensor:
        return self

    def __invert__(self) -> Tensor:
        if not self.dtype.is_int():
            raise KernelError(f"`~` of a tensor of {self.dtype}")
        return self.like(~self.data, self.undefined)


class Pointer(Tensor):
    """`data` counts `unit` bytes, as many as an element has unless the pointer's type was changed, from `base`, an
    address in bytes. `span` is the memory that the pointer was made from, or None where it was made of an integer.
    """

    __slots__ = ("base", "itemsize", "span", "unit")

    base: int
    span: Any
    unit: int
    itemsize: int

    def __init__(
        self, data: Array, dtype: Any, undefined: Array | None, base: int = 0, span: Any = None, unit: int = 0
    ) -> None:
        self.data = data
        self.dtype = dtype
        self.undefined = undefined
        self.base = base
        self.span = span
        self.itemsize = itemsize_of(dtype.element_ty)
        self.unit = unit or self.itemsize

    def like(self, data: Array, undefined: Array | None) -> Pointer:
        return Pointer(data, self.dtype, undefined, self.base, self.span, self.unit)

    def addresses(self) -> Array:
        """int64, in bytes."""
        return self.data * self.unit + self.base

    def matches(self, other: Tensor) -> bool:
        """Whether the other is a pointer that counts alike."""
        return (
            isinstance(other, Pointer)
            and self.dtype == other.dtype
            and self.span is other.span
            and self.base == other.base
            and self.unit == other.unit
        )


def itemsize_of(dtype: Any) -> int:
    known = _SIZES.get(dtype.name)
    return max(1, int(dtype.primitive_bitwidth) // 8) if known is None else known


def is_bfloat16(dtype: Any) -> bool:
    return dtype.name == "bf16"  # type: ignore[no-any-return]


def numpy_of(dtype: Any) -> Any:
    try:
        return _HELD[dtype.name]
    except KeyError:
        raise UnsupportedError("a kernel", (f"tl.{dtype.name.replace('fp', 'float')}",)) from None


def constant(value: Number) -> Tensor:
    """A Python number as a tensor of the type that Triton gives it."""
    key = (type(value), value)
    known = _constants.get(key)
    if known is None or _is_zero(value):
        dtype = _type_of_number(value)
        known = Tensor(np.array([value], dtype=numpy_of(dtype)), dtype)
        if len(_constants) < CONSTANTS_MAX:
            _constants[key] = known
    return known


def _is_zero(value: Number) -> bool:
    """Whether it is 0.0 or -0.0, which are one key of a table."""
    return not value and type(value) is float


FLOAT32_MIN, FLOAT32_MAX = 2.0**-126, (2 - 2.0**-23) * 2.0**127


def _type_of_number(value: Number) -> Any:
    """That of Triton (`to_tensor` of its semantics): the narrowest of at least 32 bits that can hold it."""
    if isinstance(value, bool):
        return INT1
    if isinstance(value, int):
        for dtype in (INT32, tl.uint32, INT64, tl.uint64):
            if dtype.get_int_min_value() <= value <= dtype.get_int_max_value():
                return dtype
        raise KernelError(f"{value} fits no integer type; allowed: 64 bits")
    if isinstance(value, float):
        size = abs(value)
        narrow = size in (0.0, float("inf")) or value != value or FLOAT32_MIN <= size <= FLOAT32_MAX
        return FLOAT32 if narrow else FLOAT64
    raise KernelError(f"{value!r} of {type(value).__name__} stands where a tensor or a number is needed")


def to_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (int, float)):
        return constant(value)
    raise KernelError(f"{value!r} of {type(value).__name__} stands where a tensor or a number is needed")


def either(a: Array | None, b: Array | None) -> Array | None:
    """Where one of two operands is undefined."""
    if a is None:
        return b
    if b is None:
        return a
    dims = max(a.ndim, b.ndim)
    return _full(a, dims) | _full(b, dims)


def _full(array: Array, ndim: int) -> Array:
    """`array` with axes of extent 1 between the programs' and its own, as Triton aligns shapes from the right."""
    if array.ndim == ndim:
        return array
    if array.ndim == 1 and ndim == 2:
        return array[:, None]
    return array.reshape(array.shape[:1] + (1,) * (ndim - array.ndim) + array.shape[1:])


def paired(a: Array, b: Array) -> tuple[Array, Array]:
    """Two arrays with one number of axes."""
    if a.ndim < b.ndim:
        return _full(a, b.ndim), b
    return a, _full(b, a.ndim)


def aligned(*arrays: Array) -> Sequence[Array]:
    """The arrays with one number of axes."""
    ndim = arrays[0].ndim
    for array in arrays:
        if array.ndim != ndim:
            ndim = max(array.ndim for array in arrays)
            return [_full(array, ndim) for array in arrays]
    return arrays


def alike(*arrays: Array) -> Sequence[Array]:
    """The arrays with one shape."""
    shape = arrays[0].shape
    for array in arrays:
        if array.shape != shape:
            found: Sequence[Array] = np.broadcast_arrays(*aligned(*arrays))
            if found[0].size > PAIRS_MAX:
                limits.fit(found[0].shape, 8)
            return found
    return arrays


def to_shape(array: Array, shape: Sequence[int]) -> Array:
    """Broadcast over the axes behind the programs'."""
    array = _full(array, len(shape) + 1)
    return np.broadcast_to(array, (array.shape[0], *shape))


def rounded(data: Array) -> Array:
    """float32 as the nearest bfloat16, ties to even, held in float32."""
    bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
    up = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(data), np.float32(np.nan), up.view(np.float32))


def cast(value: Tensor, dtype: Any) -> Tensor:
    of = value.dtype
    if of is dtype:
        return value
    dtype = dtype.scalar
    if of is dtype or (of.name == dtype.name and of == dtype):
        return value
    data = value.data
    if of.name in _HELD and dtype.name in _AS_THEY_ARE:
        return Tensor(data.astype(_HELD[dtype.name]), dtype, value.undefined)
    if of.is_ptr():
        assert isinstance(value, Pointer)
        if dtype.is_ptr():
            return _pointed(value, dtype)
        if dtype.is_bool():
            return Tensor(value.addresses() != 0, INT1, value.undefined)
        return Tensor(value.addresses().astype(numpy_of(dtype)), dtype, value.undefined)
    if dtype.is_ptr():
        return Pointer(data.astype(np.int64), dtype, value.undefined, unit=1)
    if dtype.is_bool():
        return Tensor(data != 0, dtype, value.undefined)
    if is_bfloat16(dtype):
        return Tensor(rounded(data.astype(np.float32)), dtype, value.undefined)
    return Tensor(data.astype(numpy_of(dtype)), dtype, value.undefined)


def _pointed(value: Pointer, dtype: Any) -> Pointer:
    """The same addresses, of elements of another type."""
    itemsize = itemsize_of(dtype.element_ty)
    if value.unit > itemsize and value.unit % itemsize == 0:
        data = value.data * (value.unit // itemsize)
        return Pointer(data, dtype, value.undefined, value.base, value.span, itemsize)
    return Pointer(value.data, dtype, value.undefined, value.base, value.span, value.unit)


def bitcast_to(value: Tensor, dtype: Any) -> Tensor:
    of = value.dtype
    if of == dtype:
        return value
    if of.is_ptr() or dtype.is_ptr():
        return cast(value, dtype)
    if of.primitive_bitwidth != dtype.primitive_bitwidth:
        raise KernelError(f"{of} is read as {dtype}, of another size")
    data = np.ascontiguousarray(value.data)
    if is_bfloat16(of):
        data = (data.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if is_bfloat16(dtype):
        return Tensor(
            (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32), dtype, value.undefined
        )
    return Tensor(data.view(numpy_of(dtype)), dtype, value.undefined)


def _common_type(a: Any, b: Any, *, divides: bool) -> tuple[Array, Array, Any]:
    """Both operands' data, in the type in which Triton computes, and that type."""
    a_number, b_number = not isinstance(a, Tensor), not isinstance(b, Tensor)
    if a_number is b_number:
        dtype = _computed_in(a, b, divides=divides)
        return _operand(a, dtype), _operand(b, dtype), dtype
    number, tensor = (a, b) if a_number else (b, a)
    key = (type(number), number, tensor.dtype.name, a_number, divides)
    known = _beside.get(key)
    if known is None or _is_zero(number):
        dtype = _computed_in(a, b, divides=divides)
        known = _operand(number, dtype), dtype
        if len(_beside) < CONSTANTS_MAX:
            _beside[key] = known
    data, dtype = known
    other = _operand(tensor, dtype)
    return (data, other, dtype) if a_number else (other, data, dtype)


def _computed_in(a: Any, b: Any, *, divides: bool) -> Any:
    a_number, b_number = not isinstance(a, Tensor), not isinstance(b, Tensor)
    of_a = _type_of_number(a) if a_number else a.dtype
    of_b = _type_of_number(b) if b_number else b.dtype
    key = (of_a.name, a_number, of_b.name, b_number, divides)
    dtype = _common.get(key)
    if dtype is None:
        if of_a.is_ptr() or of_b.is_ptr():
            raise KernelError(f"{of_a} and {of_b} in one operation")
        try:
            dtype = _rules.computation_type_impl(of_a, a_number, of_b, b_number, divides)
        except TypeError as error:
            raise KernelError(str(error)) from None
        _common[key] = dtype
    return dtype


def _operand(value: Any, dtype: Any) -> Array:
    if isinstance(value, Tensor):
        return value.data if value.dtype is dtype else cast(value, dtype).data
    if dtype.is_int() and not dtype.is_bool():
        low, high = dtype.get_int_min_value(), dtype.get_int_max_value()
        if not low <= value <= high:
            raise KernelError(f"{value} does not fit {dtype}, the type of the tensor that it meets: {low} to {high}")
    data = np.array([value], dtype=numpy_of(dtype))
    return rounded(data) if is_bfloat16(dtype) else data


def _operation(
    compute: Callable[[Array, Array], Array],
    *,
    result: Any = None,
    integers: bool = False,
    divides: bool = False,
    modulo_2: bool = False,
    checked: str = "",
) -> Callable[[Any, Any], Tensor]:
    """An elementwise operation of two operands.

    result    its type, where it is not that of the operands
    integers  whether operands must be integers
    divides   whether Triton's rules for `/` and `%` choose the type
    modulo_2  whether NumPy's boolean operation is another than that of one bit, which is a GPU's
    checked   under `Overflow`, the name of the operation in the report
    """

    def operation(a: Any, b: Any) -> Tensor:
        if type(a) is Tensor and type(b) is Tensor and a.dtype is b.dtype and not divides:
            x, y, dtype = a.data, b.data, a.dtype
        else:
            x, y, dtype = _common_type(a, b, divides=divides)
        if x.ndim != y.ndim:
            x, y = paired(x, y)
        if integers and not dtype.is_int():
            raise KernelError(f"an operation of integers on {dtype}")
        if x.size * y.size > PAIRS_MAX:
            limits.broadcast(x.shape, y.shape)
        try:
            if modulo_2 and dtype is INT1:
                data = (compute(x.view(np.uint8), y.view(np.uint8)) & 1).astype(bool)
            else:
                data = compute(x, y)
        except ValueError:
            raise KernelError(f"shapes {list(x.shape[1:])} and {list(y.shape[1:])} do not fit together") from None
        undefined = either(getattr(a, "undefined", None), getattr(b, "undefined", None))
        if checked and Overflow.report is not None and dtype.is_int() and dtype.int_bitwidth < 64:
            exact = compute(x.astype(np.int64), y.astype(np.int64))
            if (exact != data).any():
                Overflow.report(f"int{dtype.int_bitwidth} overflow detected for operation {checked}", exact != data)
        if result is not None:
            return Tensor(data, result, undefined)
        if dtype is BFLOAT16:
            data = rounded(data)
        return Tensor(data, dtype, undefined)

    return operation


_add = _operation(np.add, modulo_2=True, checked="add")
_sub = _operation(np.subtract, modulo_2=True, checked="sub")
mul = _operation(np.multiply, modulo_2=True, checked="mul")


def add(a: Any, b: Any) -> Tensor:
    if isinstance(a, Pointer):
        return _moved(a, b, 1)
    if isinstance(b, Pointer):
        return _moved(b, a, 1)
    return _add(a, b)


def sub(a: Any, b: Any) -> Tensor:
    return _moved(a, b, -1) if isinstance(a, Pointer) else _sub(a, b)


def _moved(pointer: Pointer, offset: Any, sign: int) -> Pointer:
    """Triton reads an unsigned offset of 64 bits as signed, and a smaller one as what it says."""
    offset = to_tensor(offset)
    kind = offset.dtype.name
    if kind not in _INTEGERS:
        raise KernelError(f"{offset.dtype} is added to a pointer")
    x, y = pointer.data, offset.data
    if x.ndim != y.ndim:
        x, y = paired(x, y)
    if kind == "uint64":
        y = y.astype(np.int64)
    if pointer.unit != pointer.itemsize:
        y = y.astype(np.int64, copy=False) * (pointer.itemsize // pointer.unit)
    if x.size * y.size > PAIRS_MAX:
        limits.broadcast(x.shape, y.shape)
    try:
        data = x + y if sign > 0 else x - y
    except ValueError:
        raise KernelError(f"a pointer {list(x.shape[1:])} and an offset {list(y.shape[1:])} do not fit") from None
    return pointer.like(data, either(pointer.undefined, offset.undefined))


def _trunc(x: Array, y: Array) -> Array:
    """Division of integers towards zero, as C's."""
    return (x - np.fmod(x, y)) // y


_floordiv = _operation(_trunc, integers=True, divides=True, modulo_2=True)
mod = _operation(np.fmod, divides=True, modulo_2=True)
_divide = _operation(np.divide, divides=True)


def floordiv(a: Any, b: Any) -> Tensor:
    return _floordiv(a, b)


def truediv(a: Any, b: Any) -> Tensor:
    """Integers are divided as float32, and one beside a float as that float."""
    x, y, dtype = _common_type(a, b, divides=True)
    if not dtype.is_int():
        return _divide(a, b)
    first, second = (Tensor(v, dtype, getattr(of, "undefined", None)) for v, of in ((x, a), (y, b)))
    return _divide(cast(first, FLOAT32), cast(second, FLOAT32))


def _decides(compute: Callable[[Any, Any], Tensor], decisive: Callable[[Array], Array]) -> Callable[[Any, Any], Tensor]:
    """An operation that one operand decides alone where it is defined and holds what `decisive` says."""

    def operation(a: Any, b: Any) -> Tensor:
        found = compute(a, b)
        if found.undefined is None:
            return found
        undefined = found.undefined
        for value in (to_tensor(a), to_tensor(b)):
            decided = decisive(value.data)
            if value.undefined is not None:
                decided = np.logical_and(*np.broadcast_arrays(*aligned(decided, ~value.undefined)))
            undefined = np.logical_and(*np.broadcast_arrays(*aligned(undefined, ~decided)))
        return found.like(found.data, undefined if undefined.any() else None)

    return operation


bitwise_and = _decides(_operation(np.bitwise_and, integers=True), lambda data: data == 0)
bitwise_or = _decides(
    _operation(np.bitwise_or, integers=True),
    lambda data: data if data.dtype == np.bool_ else data == ~data.dtype.type(0),
)
bitwise_xor = _operation(np.bitwise_xor, integers=True)
left_shift = _operation(np.left_shift, integers=True, modulo_2=True)
_right_shift = _operation(np.right_shift, integers=True, modulo_2=True)


def right_shift(a: Any, b: Any) -> Tensor:
    """The first operand's type says whether its sign is kept, though an unsigned second one makes the result so."""
    if isinstance(a, Tensor) and a.dtype.is_int_signed() and isinstance(b, Tensor) and b.dtype.is_int_unsigned():
        x, y, dtype = _common_type(a, b, divides=False)
        if dtype.is_int_unsigned():
            signed = getattr(tl, f"int{dtype.int_bitwidth}")
            value, count = Tensor(x, dtype, a.undefined), Tensor(y, dtype, b.undefined)
            return cast(_right_shift(cast(value, signed), cast(count, signed)), dtype)
    return _right_shift(a, b)


def _as_compared(value: Any, other: Any) -> Tensor:
    """Unlike beside `+`, a number keeps its own type: int8 and 1000 are compared as int32."""
    if isinstance(value, Tensor) or not isinstance(other, Tensor):
        return to_tensor(value)
    key = (type(value), value, other.dtype.name)
    known = _compared.get(key)
    if known is None or _is_zero(value):
        number = constant(value)
        known = cast(number, _computed_in(number, other, divides=False))
        if len(_compared) < CONSTANTS_MAX:
            _compared[key] = known
    return known


def _comparison(compute: Callable[[Array, Array], Array]) -> Callable[[Any, Any], Tensor]:
    compare = _operation(compute, result=INT1)

    def comparison(a: Any, b: Any) -> Tensor:
        if isinstance(a, Pointer) or isinstance(b, Pointer):
            a, b = (cast(v, INT64) if isinstance(v, Pointer) else v for v in (a, b))
        return compare(_as_compared(a, b), _as_compared(b, a))

    return comparison


less = _comparison(np.less)
less_equal = _comparison(np.less_equal)
greater = _comparison(np.greater)
greater_equal = _comparison(np.greater_equal)
equal = _comparison(np.equal)
not_equal = _comparison(np.not_equal)


def maximum(a: Any, b: Any, *, nan: bool) -> Tensor:
    """`nan`: whether a NaN wins; otherwise the other operand does, on a GPU. (Triton's interpreter lets NaN win.)"""
    return (_maximum if nan else _fmax)(_wide(a), _wide(b))


def minimum(a: Any, b: Any, *, nan: bool) -> Tensor:
    return (_minimum if nan else _fmin)(_wide(a), _wide(b))


_maximum, _fmax = _operation(np.maximum), _operation(np.fmax)
_minimum, _fmin = _operation(np.minimum), _operation(np.fmin)


def _wide(value: Any) -> Tensor:
    value = to_tensor(value)
    return cast(value, FLOAT32) if is_bfloat16(value.dtype) else value


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """Undefined is a lane whose condition is, and one whose chosen side is; what is not chosen does not matter."""
    chosen = cast(to_tensor(condition), INT1)
    if isinstance(a, Pointer) or isinstance(b, Pointer):
        return _chosen_pointer(chosen, a, b)
    x, y, dtype = _common_type(a, b, divides=False)
    c = chosen.data
    if not c.ndim == x.ndim == y.ndim:
        c, x, y = aligned(c, x, y)
    if c.size * (x.size + y.size) + x.size * y.size > PAIRS_MAX:
        limits.broadcast(c.shape, x.shape, y.shape)
    try:
        data = np.where(c, x, y)
    except ValueError:
        shapes = ", ".join(str(list(v.shape[1:])) for v in (c, x, y))
        raise KernelError(f"shapes {shapes} do not fit together in where") from None
    return Tensor(data, dtype, _chosen_undefined(chosen, a, b, c))


def _chosen_undefined(chosen: Tensor, a: Any, b: Any, c: Array) -> Array | None:
    first, second = getattr(a, "undefined", None), getattr(b, "undefined", None)
    undefined = chosen.undefined
    if first is not None:
        undefined = either(undefined, _full(first, c.ndim) & c)
    if second is not None:
        undefined = either(undefined, _full(second, c.ndim) & ~c)
    return undefined


def _chosen_pointer(chosen: Tensor, a: Any, b: Any) -> Tensor:
    a, b = (v if isinstance(v, Pointer) else cast(to_tensor(v), INT64) for v in (a, b))
    if isinstance(a, Pointer) and a.matches(b):
        c, x, y = aligned(chosen.data, a.data, b.data)
        return a.like(np.where(c, x, y), _chosen_undefined(chosen, a, b, c))
    dtype = a.dtype if isinstance(a, Pointer) else b.dtype
    c, x, y = aligned(chosen.data, *(v.addresses() if isinstance(v, Pointer) else v.data for v in (a, b)))
    return Pointer(np.where(c, x, y), dtype, _chosen_undefined(chosen, a, b, c), unit=1)


def unary(compute: Callable[[Array], Array], value: Any, *, floats: bool = True) -> Tensor:
    """An elementwise operation of one operand."""
    given = to_tensor(value)
    if floats and not given.dtype.is_floating():
        raise KernelError(f"a function of floating-point numbers is given {given.dtype}")
    data = compute(given.data)
    return given.like(rounded(data) if is_bfloat16(given.dtype) else data, given.undefined)
