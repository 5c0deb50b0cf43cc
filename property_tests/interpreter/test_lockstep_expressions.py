"""Expressions of every type and shape have, in lockstep, the type and the bits that Triton's interpreter gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from property_tests.support.generated_kernels import kernel_of, outcomes, same_bits
from specsim.interpreter.lockstep.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = 3
BLOCK = 8
DTYPES = {
    "int1": torch.bool,
    **{name: getattr(torch, name) for name in ("int8", "int16", "int32", "int64")},
    **{name: getattr(torch, name) for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name: getattr(torch, name) for name in ("float16", "float32", "float64")},
}
INTEGERS = [name for name in DTYPES if "float" not in name]

KERNEL = """
@triton.jit
def put(value, out_int, out_float, out_type, at):
    tl.store(out_type, value.dtype.primitive_bitwidth * 2 + value.dtype.is_int_signed())
    if value.dtype.is_floating():
        tl.store(out_float + at, value.to(tl.float64))
    else:
        tl.store(out_int + at, value.to(tl.int64))


@triton.jit
def to(value, dtype: tl.constexpr):
    if value.dtype.is_floating() and not dtype.is_floating():
        return tl.where((value >= 0) & (value < 100), value, 7).to(dtype)
    else:
        return value.to(dtype)


@triton.jit
def integer(value):
    if value.dtype.is_floating():
        return to(value, tl.int32)
    else:
        return value


@triton.jit
def whole(value):
    if value.dtype.is_bool():
        return value.to(tl.int32)
    else:
        return value


@triton.jit
def shifted_right(value, by):
    if value.dtype.is_int_signed() and by.dtype.is_int_unsigned():
        return value >> by.to(value.dtype)
    else:
        return value >> by


@triton.jit
def kernel(x0, x1, x2, out_int, out_float, out_type, s0, s1, s2, B: tl.constexpr):
    p = tl.program_id(0)
    o = tl.arange(0, B)
    m = o < p * 2 + 3
    a = tl.load(x0 + p * B + o)
    b = tl.load(x1 + p * B + o, mask=m, other=1)
    c = tl.load(x2 + p * B + o, mask=m)
    u = tl.load(x0 + p)
    v = tl.load(x1 + p * B)
    result = EXPRESSION
    put(result, out_int, out_float, out_type, AT)
"""
AT = {
    "scalar": "p * B * B",
    "row": "p * B * B + o",
    "square": "p * B * B + o[:, None] * B + o[None, :]",
}


def is_number(text: str) -> bool:
    return text == "True" or text.lstrip("-")[0].isdigit()


class Expressions:
    """Draws the text of an expression of one shape: "scalar", "row" ([B]) or "square" ([B, B])."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def of(self, shape: str, depth: int) -> str:
        if depth <= 0:
            return self.leaf(shape)
        kinds: list[Callable[[str, int], str]] = [
            self.leaf_deep,
            self.arithmetic,
            self.arithmetic,
            self.compared,
            self.integral,
            self.divided,
            self.shifted,
            self.selected,
            self.extreme,
            self.converted,
            self.unary,
            self.function,
        ]
        if shape == "scalar":
            kinds.append(self.reduced)
        elif shape == "row":
            kinds += [self.reduced_axis, self.scanned, self.moved]
        else:
            kinds += [self.widened, self.scanned_axis, self.turned]
        return str(self.one_of(*kinds)(shape, depth - 1))

    def leaf_deep(self, shape: str, _depth: int) -> str:
        return self.leaf(shape)

    def leaf(self, shape: str) -> str:
        if shape == "scalar":
            return str(self.one_of("u", "v", "s0", "s1", "s2", "p"))
        if shape == "row":
            return str(self.one_of("a", "b", "c", "o", "m"))
        return str(
            self.one_of(
                "(whole(a)[:, None] * b[None, :])",
                "tl.where(m[:, None], b[:, None], c[None, :])",
                "(c[:, None] < o[None, :])",
            )
        )

    def other(self, shape: str, depth: int) -> str:
        """An operand that broadcasts to the shape."""
        smaller = {"scalar": ["scalar"], "row": ["scalar", "row"], "square": ["scalar", "row", "square"]}[shape]
        kind = self.one_of(*smaller, shape, "number")
        return self.number() if kind == "number" else self.of(kind, depth)

    def number(self) -> str:
        return str(
            self.one_of("0", "1", "2", "-1", "100", "1000", "70000", "3000000000", "0.5", "-1.5", "True", "1e10")
        )

    def pair(self, shape: str, depth: int, form: str = "{}") -> tuple[str, str]:
        """Two operands, of which one has the shape; `form` is what stands around each that is a tensor."""
        first, second = form.format(self.of(shape, depth)), self.other(shape, depth)
        if not is_number(second):
            second = form.format(second)
        return (first, second) if self.one_of(True, False) else (second, first)

    def integers(self, shape: str, depth: int) -> tuple[str, str]:
        """Operands of which mostly none is a float, for operators that have none."""
        return self.pair(shape, depth, self.one_of("integer({})", "integer({})", "{}"))

    def arithmetic(self, shape: str, depth: int) -> str:
        """Not of two int1, which NumPy adds otherwise than a GPU does."""
        a, b = self.pair(shape, depth, "whole({})")
        return f"({a} {self.one_of('+', '-', '*', '/')} {b})"

    def compared(self, shape: str, depth: int) -> str:
        a, b = self.pair(shape, depth)
        return f"({a} {self.one_of('<', '<=', '>', '>=', '==', '!=')} {b})"

    def integral(self, shape: str, depth: int) -> str:
        a, b = self.integers(shape, depth)
        return f"({a} {self.one_of('&', '|', '^')} {b})"

    def divided(self, shape: str, depth: int) -> str:
        """The divisor is positive: a quotient by 0 and that of the smallest by -1 are undefined."""
        a, b = self.integers(shape, depth)
        return f"({a} {self.one_of('//', '%')} tl.where({b} > 0, {b}, 3))"

    def shifted(self, shape: str, depth: int) -> str:
        """By less than 8 bits, which every type has. Not a signed integer by an unsigned one to the right: Triton's
        interpreter takes the result, which is unsigned, for signed.
        """
        a, b = self.integers(shape, depth)
        if self.one_of(True, False) and not (is_number(a) or is_number(b)):
            return f"shifted_right({a}, {b} & 7)"
        if not (is_number(a) or is_number(b)):
            return f"({a} << ({b} & 7))"
        return f"({a} {self.one_of('<<', '>>')} ({b} & 7))"

    def selected(self, shape: str, depth: int) -> str:
        a, b = self.pair(shape, depth)
        return f"tl.where({self.other(shape, depth)} > 0, {a}, {b})"

    def extreme(self, shape: str, depth: int) -> str:
        a, b = self.pair(shape, depth)
        return f"tl.{self.one_of('maximum', 'minimum')}({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"

    def converted(self, shape: str, depth: int) -> str:
        """A number beyond the range of an integer type has no defined value in it."""
        return f"to({self.of(shape, depth)}, tl.{self.one_of(*DTYPES)})"

    def unary(self, shape: str, depth: int) -> str:
        value = self.of(shape, depth)
        return str(self.one_of(f"(-whole({value}))", f"(~{value})", f"tl.abs({value})"))

    def function(self, shape: str, depth: int) -> str:
        value = self.of(shape, depth)
        dtype = self.one_of("float32", "float64", "int32", "int64", "uint64")
        if dtype == "float32":
            name = self.one_of("exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "floor", "ceil", "sigmoid", "rsqrt")
            return f"tl.{name}(to({value}, tl.float32))"
        if dtype == "float64":
            return f"to({value}, tl.float64).to(tl.int64, bitcast=True)"
        return str(self.one_of(f"tl.cdiv(to({value}, tl.{dtype}), 3)", f"tl.zeros_like({value})"))

    def moved(self, _shape: str, depth: int) -> str:
        value, other = self.of("row", depth), self.of("row", depth)
        return str(
            self.one_of(
                f"tl.flip({value}, 0)",
                f"tl.gather({value}, (to({other}, tl.int32) & 7), 0)",
                f"tl.ravel(tl.join({value}, {value}))[:, None].reshape(2, B).sum(axis=0)",
                f"tl.full([B], 3, tl.int16) * tl.max(whole({value}), axis=0, keep_dims=True)",
            )
        )

    def turned(self, _shape: str, depth: int) -> str:
        value = self.of("square", depth)
        return str(self.one_of(f"tl.trans({value})", f"tl.reshape({value}, B, B)", f"{value}.T"))

    def reduced(self, _shape: str, depth: int) -> str:
        name = self.one_of("sum", "max", "min", "argmax", "argmin", "xor_sum")
        if self.one_of(True, False):
            return f"tl.{name}({self.of('row', depth)}, axis=0)"
        if name.startswith("arg"):
            return f"tl.{name}(tl.{name}({self.of('square', depth)}, axis=1), axis=0)"
        return f"tl.{name}({self.of('square', depth)}, axis=None)"

    def reduced_axis(self, _shape: str, depth: int) -> str:
        name = self.one_of("sum", "max", "min", "argmax", "argmin", "xor_sum")
        value, axis = self.of("square", depth), self.one_of(0, 1)
        return f"tl.{name}({value}, axis={axis})"

    def scanned(self, _shape: str, depth: int) -> str:
        name, reverse = self.one_of("cumsum", "cumprod"), self.one_of("True", "False")
        return f"tl.{name}({self.of('row', depth)}, axis=0, reverse={reverse})"

    def scanned_axis(self, _shape: str, depth: int) -> str:
        value, axis, reverse = self.of("square", depth), self.one_of(0, 1), self.one_of("True", "False")
        return f"tl.{self.one_of('cumsum', 'cumprod')}({value}, axis={axis}, reverse={reverse})"

    def widened(self, _shape: str, depth: int) -> str:
        if self.one_of(True, False):
            name, value = self.one_of("sum", "max", "min"), self.of("square", depth)
            axis = self.one_of(0, 1)
            return f"({self.of('square', depth)} + tl.{name}({value}, axis={axis}, keep_dims=True))"
        a, b = self.of("row", depth), self.of("row", depth)
        return f"(({a})[:, None] {self.one_of('+', '*', '<', '&')} ({b})[None, :])"


@st.composite
def examples(draw: Any) -> tuple[str, str, list[torch.Tensor], list[int]]:
    """A kernel's text, the shape of what it computes, its tensors and its scalars."""
    shape = draw(st.sampled_from(list(AT)))
    text = Expressions(draw).of(shape, draw(st.integers(1, 4)))
    tensors = [numbers(draw, draw(st.sampled_from(list(DTYPES)))) for _ in range(3)]
    scalars = [draw(st.sampled_from([0, 1, -1, 5, 300, -(2**31), -(2**40), 2**40, 2**63])) for _ in range(3)]
    return text, shape, tensors, scalars


def numbers(draw: Any, name: str) -> torch.Tensor:
    """[PROGRAMS * BLOCK]: half small, half anything of the type."""
    dtype = DTYPES[name]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    size = (PROGRAMS * BLOCK,)
    if name == "int1":
        return torch.randint(0, 2, size, generator=generator).bool()
    small = torch.randint(0 if name.startswith("u") else -5, 6, size, generator=generator)
    any_bits = torch.randint(-(2**63), 2**63 - 1, size, generator=generator)
    if dtype.is_floating_point:
        scale = torch.tensor([1.0, 0.1, 1e-7, 1e4, 1e30, float("inf"), float("nan"), -0.0], dtype=torch.float64)
        chosen = torch.randint(0, len(scale), size, generator=generator)
        return (small.double() * torch.where(small > 2, 1.0, scale[chosen])).to(dtype)
    return torch.where(small > 2, small, any_bits).to(dtype)


def outputs() -> list[torch.Tensor]:
    size = PROGRAMS * BLOCK * BLOCK
    return [
        torch.zeros(size, dtype=torch.int64),
        torch.zeros(size, dtype=torch.float64),
        torch.zeros(1, dtype=torch.int32),
    ]


@given(examples())
@settings(max_examples=4 * settings().max_examples)
def test_expressions_have_the_bits_of_tritons_interpreter(example: Any) -> None:
    text, shape, tensors, scalars = example
    kernel = kernel_of(KERNEL.replace("EXPRESSION", text).replace("AT)", f"{AT[shape]})"))
    actual, expected = outcomes(kernel, (PROGRAMS,), [*tensors, *outputs()], [*scalars, BLOCK])
    if is_limit_of_numpy(expected):
        return
    if isinstance(actual, Exception) or isinstance(expected, Exception):
        event("raises")
        assert isinstance(actual, Exception), f"{text} raises in Triton's interpreter: {expected!r}"
        assert isinstance(expected, Exception), f"{text} raises in lockstep: {actual!r}"
        assert isinstance(actual, KernelError), f"{text} raises {actual!r}"
        return
    for a, b in zip(actual, expected, strict=True):
        assert same_bits(a, b), text


def is_limit_of_numpy(error: object) -> bool:
    """`~` of an unsigned integer, and the sum of int32 as a scalar where it overflows, make NumPy raise."""
    while isinstance(error, Exception) and error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, OverflowError)


# Where the lockstep interpreter follows a GPU, and Triton's does not.

SMALL = """
@triton.jit
def kernel(x, y, out, s):
    o = tl.arange(0, 2)
    a = tl.load(x + o)
    b = tl.load(y + o)
    tl.store(out + o, EXPRESSION)
"""


def computed(text: str, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, s: object = 0) -> Any:
    """[2] of `dtype`, or what was raised: in lockstep, and in Triton's interpreter."""
    kernel = kernel_of(SMALL.replace("EXPRESSION", text))
    found = outcomes(kernel, (1,), [a, b, torch.zeros(2, dtype=dtype)], [s])
    return tuple(one if isinstance(one, Exception) else one[2].tolist() for one in found)


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    a = torch.tensor([1.0, 1 + 2**-7], dtype=torch.bfloat16)
    b = torch.tensor([1.5 * 2**-8, 2**-8], dtype=torch.bfloat16)
    actual, _ = computed("a + b", a, b, torch.float32)
    assert actual == [1 + 2**-7, 1 + 2**-6]
    assert actual == (a + b).tolist()


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extreme_of_a_nan_and_a_number_is_the_number(name: str) -> None:
    a, b = torch.tensor([float("nan"), 1.0]), torch.tensor([2.0, float("nan")])
    actual, expected = computed(f"tl.{name}(a, b)", a, b, torch.float32)
    assert actual == [2.0, 1.0]
    assert all(value != value for value in expected)


def test_float_argument_is_float32() -> None:
    a = torch.ones(2, dtype=torch.float64)
    actual, expected = computed("a * s", a, a, torch.float64, 0.1)
    assert actual == [torch.tensor(0.1, dtype=torch.float32).item()] * 2
    assert expected == [0.1] * 2


def test_integer_argument_beyond_32_bits_is_int64() -> None:
    a = torch.ones(2, dtype=torch.int32)
    actual, expected = computed("a * (s * s)", a, a, torch.int64, 2**31)
    assert actual == [2**62] * 2
    assert expected != actual


@pytest.mark.parametrize(
    ("operator", "result"), [("+", [0, 1]), ("-", [0, 1]), ("*", [1, 0])], ids=["plus", "minus", "times"]
)
def test_booleans_are_added_and_multiplied_as_one_bit(operator: str, result: list[int]) -> None:
    a, b = torch.tensor([True, False]), torch.tensor([True, True])
    actual, _ = computed(f"(a {operator} b).to(tl.int32)", a, b, torch.int32)
    assert actual == result


def test_shift_to_the_right_keeps_the_sign_of_what_is_shifted() -> None:
    a, b = torch.tensor([-4, 4], dtype=torch.int32), torch.tensor([1, 1], dtype=torch.uint32)
    actual, expected = computed("a >> b", a, b, torch.int64)
    assert actual == [2**32 - 2, 2]  # the bits of -2 as uint32, which is the type of the result
    assert expected == [-2, 2]


def test_complement_of_unsigned_integers_has_the_other_bits() -> None:
    a = torch.tensor([0, 200], dtype=torch.uint8)
    actual, expected = computed("(~a).to(tl.int32)", a, a, torch.int32)
    assert actual == [255, 55]
    assert is_limit_of_numpy(expected)


def test_sum_of_int32_wraps_around() -> None:
    a = torch.tensor([2**31 - 1, 1], dtype=torch.int32)
    actual, expected = computed("tl.sum(a, axis=0) + o", a, a, torch.int64)
    assert actual == [-(2**31), -(2**31) + 1]
    assert is_limit_of_numpy(expected)


def test_a_number_that_is_compared_keeps_its_own_type() -> None:
    a = torch.tensor([5, -5], dtype=torch.int8)
    assert computed("(a < 1000).to(tl.int32)", a, a, torch.int32) == ([1, 1], [1, 1])
    b = torch.tensor([0.1, 0.0], dtype=torch.float16)  # 0.1 as float16 is less than 0.1 as float32
    assert computed("(a < 0.1).to(tl.int32)", b, b, torch.int32) == ([1, 1], [1, 1])
