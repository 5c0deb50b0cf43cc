"""What a load gives in lanes that are masked off is followed to where it matters, though arithmetic cancels it."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch

from specsim.interpreter.sanitizer import Report, sanitize

if TYPE_CHECKING:
    from pathlib import Path

N = 8
DEFINED = 5

# By name: what a kernel stores of `x` and `y`, two loads without `other` of which the lanes behind DEFINED are masked
# off, so that it gives the same with any two equal values there; and the right form of it, which is the same of `x0`
# and `y0`, loads with `other=0`, where none is written here. `m` is the mask, `o` the lanes.
VALUES: dict[str, tuple[str, str]] = {
    "difference": ("x - y", ""),
    "difference of what follows": ("(x * 3 + 1) - (y * 3 + 1)", ""),
    "exclusive or": ("x ^ y", "tl.where(m, x ^ y, 0)"),
    "exclusive or with itself": ("x ^ x", ""),
    "times zero": ("x * 0", ""),
    "minimum with the least": ("tl.minimum(x, -9223372036854775807)", ""),
    "maximum with the largest": ("tl.maximum(x, 9223372036854775807)", ""),
    "divided by the largest": ("x // 9223372036854775807", ""),
    "remainder of one": ("x % 1", ""),
    "shifted out": ("(x << 32) << 32", ""),
    "sign of a difference": ("(x - y) >> 63", ""),
    "equality": ("(x == y).to(tl.int64) * 0", ""),
    "one or the other": ("((x < 3) | (x >= 3)).to(tl.int64)", ""),
    "neither": ("((x < 3) & (x >= 3)).to(tl.int64)", "((x < 3) & (o < 0)).to(tl.int64)"),
    "true or undefined": ("((x == y) | (x != y)).to(tl.int64)", "((x == y) | (o >= 0)).to(tl.int64)"),
    "an undefined condition": ("tl.where(x == y, 7, 7)", "tl.where(m, 7, 7)"),
    "both sides": ("tl.where(m, x, x - x)", "tl.where(m, x, 0)"),
    "the taken side": ("tl.where(o >= 0, x * 0, 1)", "tl.where(o >= 0, 1, x * 0)"),
    "float times zero": ("(x.to(tl.float32) * 0.0).to(tl.int64)", ""),
    "float difference": ("(x.to(tl.float32) - y.to(tl.float32)).to(tl.int64)", ""),
    "narrowed": ("x.to(tl.int8).to(tl.int64) * 0", ""),
    "sum of differences": ("o + tl.sum(x - y, axis=0)", ""),
    "difference of sums": ("o + tl.sum(x, axis=0) - tl.sum(y, axis=0)", "o + tl.sum(tl.where(m, x - y, 0), axis=0)"),
    "difference of maxima": ("o + tl.max(x, axis=0) - tl.max(y, axis=0)", ""),
    "difference of minima": ("o + tl.min(x, axis=0) - tl.min(y, axis=0)", ""),
    "place of the largest": ("o + tl.argmax(x, axis=0) * 0", ""),
    "exclusive or of all": ("o + tl.xor_sum(x ^ y, axis=0)", ""),
    "difference of running sums": (
        "tl.cumsum(x, axis=0) - tl.cumsum(y, axis=0)",
        "tl.where(m, tl.cumsum(x, axis=0), 0)",
    ),
    "running sum from the end": ("tl.cumsum(x - y, axis=0, reverse=True)", ""),
    "sorted": ("tl.sort(x) - tl.sort(y)", ""),
    "flipped": ("tl.flip(x) - tl.flip(y)", ""),
    "reshaped": ("o + tl.sum(tl.sum(tl.reshape(x - y, [4, 2]), axis=1), axis=0)", ""),
    "gathered": ("tl.gather(x, 7 - o, axis=0) * 0", ""),
    "gathered by an undefined place": ("tl.gather(o, x - y + (x - x), axis=0) * 0", ""),
    "an address that is read": ("tl.load(p_y + o + (x - y))", "tl.load(p_y + o + (x - y), mask=m, other=0)"),
    "the mask of a load": (
        "tl.load(p_y + o, mask=x == y, other=0) * 0",
        "tl.load(p_y + o, mask=m & (x == y), other=0)",
    ),
}
STATEMENTS: dict[str, tuple[str, str]] = {
    "kept in a loop": (
        "b = x\n    for i in range(3):\n        b = b - y\n        b = b + y\n    tl.store(p_out + o, b - x)",
        "",
    ),
    "through memory": (
        "tl.store(p_in + o, x)\n    tl.debug_barrier()\n    tl.store(p_out + o, tl.load(p_in + o) * 0)",
        "tl.store(p_in + o, x, mask=m)\n    tl.debug_barrier()\n    tl.store(p_out + o, tl.load(p_in + o))",
    ),
    "a branch": (
        "if tl.sum(x - y, axis=0) == 0:\n        tl.store(p_out + o, o)\n    else:\n        tl.store(p_out + o, o)",
        "",
    ),
    "the end of a loop": (
        "tl.store(p_out + o, o)\n    for i in range(tl.sum(x - y, axis=0) + 1):\n        tl.store(p_out + o, o)",
        "",
    ),
    "an address that is written": (
        "tl.store(p_out + o + (x - y), o)",
        "tl.store(p_out + o + (x - y), o, mask=m)\n    tl.store(p_out + o, o, mask=~m)",
    ),
    "an atomic operation": (
        "tl.store(p_out + o, o)\n    tl.debug_barrier()\n    tl.atomic_add(p_out + o, x - y)",
        "tl.store(p_out + o, o)\n    tl.debug_barrier()\n    tl.atomic_add(p_out + o, x - y, mask=m)",
    ),
}
IDIOMS = {name: tuple(form and f"tl.store(p_out + o, {form})" for form in forms) for name, forms in VALUES.items()}
IDIOMS |= STATEMENTS

KERNEL = """
@triton.jit
def kernel_{number}(p_in, p_x, p_y, p_out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(p_x + o, mask=m)
    y = tl.load(p_y + o, mask=m)
    x0 = tl.load(p_x + o, mask=m, other=0)
    y0 = tl.load(p_y + o, mask=m, other=0)
    {body}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module with a kernel for each form of each idiom."""
    path: Path = tmp_path_factory.mktemp("idioms") / "undefined_lanes_kernels.py"
    with_other = [(wrong, right or re.sub(r"\b([xy])\b", r"\g<1>0", wrong)) for wrong, right in IDIOMS.values()]
    bodies = [body for forms in with_other for body in forms]
    text = "import triton\nimport triton.language as tl\n"
    text += "".join(KERNEL.format(number=number, body=body) for number, body in enumerate(bodies))
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("undefined_lanes_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report_of(kernels: Any, number: int) -> Report:
    kernel = getattr(kernels, f"kernel_{number}")

    def launch(memory: torch.Tensor, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        kernel[(1,)](memory, x, y, out, DEFINED, BLOCK=N)

    values = torch.arange(10, 10 + N)
    return sanitize(
        launch, torch.zeros(N, dtype=torch.int64), values, values.clone(), torch.empty_like(values), outputs=["out"]
    )


@pytest.mark.parametrize("name", IDIOMS)
def test_undefined_lanes_are_found_where_arithmetic_cancels_them(kernels: Any, name: str) -> None:
    report = report_of(kernels, 2 * list(IDIOMS).index(name))
    assert report.kinds == {"masked-lanes"}, [str(flaw) for flaw in report.flaws]


@pytest.mark.parametrize("name", IDIOMS)
def test_what_ends_in_no_defined_place_is_no_finding(kernels: Any, name: str) -> None:
    report = report_of(kernels, 2 * list(IDIOMS).index(name) + 1)
    assert report.flaws == (), [str(flaw) for flaw in report.flaws]


def test_there_are_forty_idioms() -> None:
    assert len(IDIOMS) >= 40
