"""Programs that take different ways through a kernel compute, in lockstep, what each computes alone."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.support.generated_kernels import kernel_of, outcome, outcomes, same_bits
from specsim.interpreter.lockstep import launch
from specsim.interpreter.lockstep.control import Machine
from specsim.interpreter.lockstep.launch import lockstep
from specsim.interpreter.lockstep.memory import Checks
from specsim.interpreter.lockstep.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 4
CELLS = 64  # of `out`, for each program

KERNEL = """
@triton.jit
def kernel(data, out, counter, n, B: tl.constexpr):
    p = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    o = tl.arange(0, B)
    out += p * 64
    x = tl.load(data + p * 8)
    y = tl.load(data + p * 8 + 1)
    z = n
    f = y * 0.5
    a = tl.load(data + p * 8 + o)
    b = a * 0 + o
BODY
    tl.store(out, x)
    tl.store(out + 1, y)
    tl.store(out + 2, z)
    tl.store(out + 3, (f * 64).to(tl.int32))
    tl.store(out + 4 + o, a)
    tl.store(out + 8 + o, b)
"""
SCALARS, BLOCKS = ("x", "y", "z"), ("a", "b")


class Programs:
    """Draws the text of a kernel. Integers stay small: beyond 32 bits NumPy's scalars raise in Triton's interpreter."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.count = 0
        self.helpers: list[str] = []
        self.counters: list[str] = []

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    # Expressions.

    def scalar(self, depth: int = 2) -> str:
        if depth == 0 or self.one_of(True, False):
            return str(self.one_of(*SCALARS, "p", *self.counters, "1", "3", "-2"))
        first, second = self.scalar(depth - 1), self.scalar(depth - 1)
        block = self.block(depth - 1)
        return str(
            self.one_of(
                f"({first} + {second})",
                f"({first} - {second})",
                f"(x * {second})",
                f"tl.minimum({first}, {second} + y)",
                f"tl.sum({block}, axis=0)",
                f"tl.max({block}, axis=0)",
                f"tl.load(out + (({first}) & 63))",
                f"tl.where({self.condition(0)}, {first}, z)",
                f"({first} + y if {self.condition(0)} else {second} + z)",
            )
        )

    def block(self, depth: int = 2) -> str:
        if depth == 0 or self.one_of(True, False):
            return str(self.one_of(*BLOCKS, "(o + x)"))
        first, second = self.block(depth - 1), self.block(depth - 1)
        return str(
            self.one_of(
                f"({first} + {second})",
                f"({first} * {self.scalar(0)})",
                f"tl.where({first} > {self.scalar(0)}, {first}, {second})",
                f"tl.load(out + 16 + ({first} & 15), mask={second} > 0, other=7)",
                f"tl.cumsum({first}, axis=0)",
            )
        )

    def condition(self, depth: int = 1) -> str:
        first = f"{self.scalar(depth)} {self.one_of('<', '<=', '>', '==', '!=')} y"
        second = f"z > {self.scalar(0)}"
        simple = self.one_of(first, first, "p % 2 == 0", "p > 1", f"tl.max({self.one_of(*BLOCKS)}, axis=0) > z")
        if depth == 0:
            return str(simple)
        return str(
            self.one_of(
                simple, simple, "B > 2", "n > 5", f"{simple} and {second}", f"{simple} or {second}", f"not ({simple})"
            )
        )

    # Statements.

    def body(self, depth: int, *, leaves: str = "", most: int = 4) -> str:
        """`leaves` is what may be returned, by a statement under a condition."""
        return "\n".join(self.statement(depth, leaves) for _ in range(self.draw(st.integers(1, most))))

    def statement(self, depth: int, leaves: str) -> str:
        simple: list[Callable[[], str]] = [self.assigned, self.assigned, self.accumulated, self.stored]
        if self.helpers:
            simple += [self.called]
        if depth == 0:
            return str(self.one_of(*simple)())
        kinds: list[Callable[[int, str], str]] = [self.branch, self.branch, self.counted, self.repeated, self.defined]
        if leaves:
            kinds.append(self.left)
        kind = self.one_of(*simple, *kinds)
        return str(kind() if kind in simple else kind(depth - 1, leaves))

    def assigned(self) -> str:
        kind = self.one_of("scalar", "block", "float", "swap")
        if kind == "scalar":
            return f"{self.one_of(*SCALARS)} = ({self.scalar()} + 0 * x) % 1009"
        if kind == "float":
            return f"f = f * 0.5 + {self.scalar(1)}"
        if kind == "swap":
            return str(self.one_of("x, y = y, x", "a, b = b, a"))
        return f"{self.one_of(*BLOCKS)} = ({self.block()}) % 1009"

    def accumulated(self) -> str:
        return str(self.one_of(f"{self.one_of(*SCALARS)} += 1", "a += b % 7", "f += 0.25", "y -= x % 5"))

    def stored(self) -> str:
        return str(
            self.one_of(
                f"tl.store(out + (({self.scalar(1)}) & 31) + 32, x)",
                f"tl.store(out + 16 + o, {self.block(1)}, mask={self.one_of(*BLOCKS)} > {self.scalar(0)})",
                f"tl.store(out + 24 + ({self.block(0)} & 3) * 0 + o, {self.scalar(1)})",
                f"tl.atomic_add(out + 40 + (x & 7), {self.scalar(1)} % 100 + 0 * x)",
                "tl.atomic_add(counter, 1)",
                f"z = tl.atomic_max(out + 50, {self.scalar(0)} + 0 * x) % 1009",
            )
        )

    def called(self) -> str:
        name = self.one_of(*self.helpers)
        call = f"{name}({self.scalar(1)} + 0 * x, y, {self.one_of(*BLOCKS)}, out, p, n, B)"
        if name.startswith("pair"):
            return f"{self.one_of(*SCALARS)}, {self.one_of(*BLOCKS)} = {call}"
        return f"{self.one_of(*SCALARS)} = {call}"

    def branch(self, depth: int, leaves: str) -> str:
        text = f"if {self.condition()}:\n{indented(self.body(depth, leaves=leaves, most=3))}"
        if self.one_of(True, False):
            text += f"\nelif {self.condition()}:\n{indented(self.body(depth, leaves=leaves, most=2))}"
        if self.one_of(True, False):
            text += f"\nelse:\n{indented(self.body(depth, leaves=leaves, most=2))}"
        return text

    def defined(self, depth: int, leaves: str) -> str:
        """A variable that each branch defines."""
        name = self.fresh("t")
        other = self.body(depth, leaves=leaves, most=1)
        then, orelse = f"{name} = {self.scalar(1)}\n{other}", f"{other}\n{name} = x + {self.scalar(1)}"
        return (
            f"if {self.condition()}:\n{indented(then)}\nelse:\n{indented(orelse)}\n"
            f"{self.one_of(*SCALARS)} = ({name} + x) % 1009"
        )

    def left(self, depth: int, leaves: str) -> str:
        text = f"{self.body(depth, most=1)}\nreturn {leaves}".replace("return nothing", "return")
        return f"if {self.condition()}:\n{indented(text)}"

    def repeated(self, depth: int, leaves: str) -> str:
        """A `while` that ends: by its counter, if not before."""
        counter = self.fresh("w")
        body = f"{self.loop_body(depth, leaves, counter)}\n{counter} += 1"
        bound = self.one_of("(x & 3)", "5", "(y & 1) + 2", "p")
        more = f" and {self.condition(0)}" if self.one_of(True, False) else ""
        test = f"({counter} < {bound}){more} and {counter} < 6" if more or bound == "p" else f"{counter} < {bound}"
        return f"{counter} = p * 0\nwhile {test}:\n{indented(body)}"

    def counted(self, depth: int, leaves: str) -> str:
        """In Triton's interpreter the variable is a Python number, until it is assigned."""
        item, counter = self.fresh("i"), self.fresh("c")
        over = self.one_of(
            f"range({self.scalar(1)} + 0 * x & 3)",
            "range(x & 3, (y & 7), 2)",
            "range(p)",
            "tl.range(0, p % 3)",
            "tl.range((x & 3) + 4, y & 3, -1)",
            "tl.static_range(2)",
            "range(-1, B - 2)",
        )
        body = f"{counter} = {item}\n{self.loop_body(depth, leaves, counter)}"
        return f"for {item} in {over}:\n{indented(body)}"

    def loop_body(self, depth: int, leaves: str, counter: str) -> str:
        self.counters.append(counter)
        text = self.body(depth, leaves=leaves, most=3)
        self.counters.pop()
        return text

    def helper(self, depth: int) -> str:
        """A function with several returns. It computes with values that it is given, as if they were its own."""
        pair = self.one_of(True, False)
        name = self.fresh("pair" if pair else "one")
        first, last = ("x, a", "z, b") if pair else ("z + 0 * x", "x")
        head = "o = tl.arange(0, B)\nz = (x - y) % 1009\nb = a + o\nf = x * 0.25"
        text = f"{head}\n{self.body(depth, leaves=first)}\nreturn {last}"
        self.helpers.append(name)
        return f"@triton.jit\ndef {name}(x, y, a, out, p, n, B: tl.constexpr):\n{indented(text)}\n\n\n"

    def module(self) -> str:
        functions = "".join(
            self.helper(self.draw(st.integers(0, 2))).replace("tl.atomic_add(counter, 1)", "tl.atomic_add(out + 9, 1)")
            for _ in range(self.draw(st.integers(0, 2)))
        )
        body = self.body(self.draw(st.integers(1, 3)), leaves=self.one_of("", "nothing"))
        return functions + KERNEL.replace("BODY", indented(body))


def indented(text: str) -> str:
    return textwrap.indent(text, "    ")


@st.composite
def examples(draw: Any) -> tuple[str, tuple[int, ...], list[torch.Tensor], int]:
    """A module, a grid, the tensors and `n`."""
    text = Programs(draw).module()
    grid = draw(st.sampled_from([(1,), (3,), (7,), (3, 2)]))
    programs = grid[0] * (grid[1] if len(grid) > 1 else 1)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    data = torch.randint(-9, 10, (programs * 8,), generator=generator, dtype=torch.int32)
    out = torch.randint(-9, 10, (programs * CELLS,), generator=generator, dtype=torch.int32)
    return text, grid, [data, out, torch.zeros(1, dtype=torch.int32)], draw(st.integers(0, 9))


def check(text: str, a: Any, b: Any) -> None:
    for one in (a, b):
        if isinstance(one, Exception):
            raise AssertionError(f"{text}\nraises") from one
    for x, y in zip(a, b, strict=True):
        assert same_bits(x, y), f"{text}\n{x.tolist()}\n{y.tolist()}"


@given(examples())
@settings(max_examples=4 * settings().max_examples)
def test_programs_that_part_compute_what_each_computes_alone(example: Any) -> None:
    text, grid, tensors, n = example
    kernel = kernel_of(text)
    actual, expected = outcomes(kernel, grid, tensors, [n, BLOCK])
    check(text, actual, expected)


@given(examples())
def test_programs_in_groups_and_under_watch_compute_the_same(example: Any) -> None:
    text, grid, tensors, n = example
    kernel = kernel_of(text)
    with lockstep(fall_back=False):
        together = outcome(kernel, grid, tensors, [n, BLOCK])
    with lockstep(Checks(), Watch(), fall_back=False):
        check(text, outcome(kernel, grid, tensors, [n, BLOCK]), together)
    with pytest.MonkeyPatch.context() as patch, lockstep(fall_back=False):
        patch.setattr(launch, "ELEMENTS_MAX", 2 * BLOCK)
        check(text, outcome(kernel, grid, tensors, [n, BLOCK]), together)


def test_large_blocks_part_a_grid_and_a_large_number_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
@triton.jit
def kernel(out, n, B: tl.constexpr):
    tl.store(out + tl.program_id(0) * B + tl.arange(0, B), n)
"""
    begun: list[int] = []

    class Counted(Machine):
        def __init__(self, *given: Any) -> None:
            begun.append(1)
            super().__init__(*given)

    monkeypatch.setattr(launch, "Machine", Counted)
    kernel, n = kernel_of(source), launch.ELEMENTS_MAX
    groups = []
    for elements in (n, 2 * BLOCK):
        monkeypatch.setattr(launch, "ELEMENTS_MAX", elements)
        with lockstep(fall_back=False):
            found = outcome(kernel, (8,), [torch.zeros(8 * BLOCK, dtype=torch.int64)], [n, BLOCK])
        assert isinstance(found, list), found
        assert found[0].tolist() == [n] * 8 * BLOCK
        groups.append(len(begun))
        begun.clear()
    assert groups == [1, 4]


def test_one_value_for_a_block_is_stored_under_watch() -> None:
    source = """
@triton.jit
def kernel(values, out, B: tl.constexpr):
    p, o = tl.program_id(0), tl.arange(0, B)
    tl.store(out + p * B + o, tl.load(values + p))
"""
    values, out = torch.tensor([0, 5]), torch.zeros(8, dtype=torch.int64)
    with lockstep(Checks(), Watch(), fall_back=False):
        found = outcome(kernel_of(source), (2,), [values, out], [4])
    assert isinstance(found, list), found
    assert found[1].tolist() == [0] * 4 + [5] * 4


@pytest.mark.parametrize("condition", ["values", "values + 1", "not values", "values and p > 0", "p > 0 or values"])
def test_a_pointer_to_memory_holds_as_a_condition(condition: str) -> None:
    """As of a tensor that may be left out: its address is not 0, wherever in the memory it points to."""
    source = f"""
@triton.jit
def kernel(values, out, left_out):
    p = tl.program_id(0)
    number = 0
    if {condition}:
        number = tl.load(values + p)
    if left_out:
        number = 9
    tl.store(out + p, number)
"""
    values, out = torch.tensor([3, 5], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    actual, expected = outcomes(kernel_of(source), (2,), [values, out], [None])
    check(source, actual, expected)
