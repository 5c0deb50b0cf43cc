"""The lockstep interpreter gives the bits of a GPU, on the values where Triton's own interpreter does not, too."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
import torch

from specsim.interpreter import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BOTH = (
    "x + y",
    "x - y",
    "x * y",
    "tl.maximum(x, y)",
    "tl.minimum(x, y)",
    "tl.where(x < y, x, y)",
    "(x <= y).to(tl.int32) + 2 * (x == y).to(tl.int32) + 4 * (x > y).to(tl.int32) + 8 * (x != y).to(tl.int32)",
    "x * 3 + 1",
    "tl.sum(tl.where(o < 4, x, x * 0 + 1), axis=0) + x",
    "tl.max(x, axis=0) + tl.min(x, axis=0) * 0 + x",
)
OF_FLOATS = (
    "x / tl.where(y == 0, x * 0 + 1, y)",
    "tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)",
    "tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)",
    "x.to(tl.float16)",
    "x.to(tl.bfloat16)",
    "x.to(tl.float32)",
    "-x",
    "tl.abs(x)",
)
OF_INTEGERS = (
    "x & y",
    "x | y",
    "x ^ y",
    "~x",
    "x << 3",
    "x >> 3",
    "x // tl.where(y == 0, y + 1, y)",
    "x % tl.where(y == 0, y + 1, y)",
    "x.to(tl.int8)",
    "x.to(tl.int16)",
    "x.to(tl.uint32)",
    "x.to(tl.int64)",
    "x.to(tl.float32)",
    "x.to(tl.float64)",
    "tl.cumsum(x, axis=0)",
    "tl.argmax(x, axis=0) + tl.argmin(x, axis=0) * 100",
)
VALUES: dict[bool, list[float]] = {
    True: [0.0, -0.0, 1.0, -1.0, 1.5, 2.5, 0.1, 1e-3, 65504.0, 1e5, -3.75, float("inf"), float("-inf"), float("nan")],
    False: [0, 1, 2, 3, 5, 7, 8, 100, 126, 127, -1, -2, -128, 77, 12345, 2**31 - 1],
}
KERNEL = """
@triton.jit
def {name}(p_x, p_y, p_out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(p_x + o)
    y = tl.load(p_y + o)
    result = {expression}
    tl.store(p_out + o, result)
"""


def expressions_of(dtype: str) -> tuple[str, ...]:
    return BOTH + (OF_FLOATS if dtype in FLOATS else OF_INTEGERS)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("expressions") / "expressions_of_a_gpu.py"
    known = dict.fromkeys(BOTH + OF_FLOATS + OF_INTEGERS)
    text = "import triton\nimport triton.language as tl\n"
    text += "".join(KERNEL.format(name=f"kernel_{i}", expression=expression) for i, expression in enumerate(known))
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("expressions_of_a_gpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {expression: getattr(module, f"kernel_{i}") for i, expression in enumerate(known)}


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[256] each: every pair of sixteen values."""
    values = (VALUES[dtype.is_floating_point] * 2)[:16]
    if dtype.is_floating_point:
        row = torch.tensor(values, dtype=torch.float64).to(dtype)
    else:
        row = torch.tensor(values, dtype=torch.int64).to(dtype)
    x, y = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    wide = row.view(torch.int64) if dtype == torch.uint64 else row
    pairs = [wide[index.flatten()].contiguous() for index in (x, y)]
    return (pairs[0].view(dtype), pairs[1].view(dtype)) if dtype == torch.uint64 else (pairs[0], pairs[1])


def types_out(expression: str, dtype: str) -> str:
    """A type of the output that keeps every bit of the result."""
    if ".to(tl.float16)" in expression or ".to(tl.bfloat16)" in expression or ".to(tl.float32)" in expression:
        return "float32"
    if dtype in FLOATS and "int32" not in expression:
        return "float64" if dtype == "float64" else "float32"
    return "float64" if ".to(tl.float64)" in expression else "int64"


@pytest.mark.parametrize(
    ("dtype", "expression"),
    [(dtype, expression) for dtype in FLOATS + INTEGERS for expression in expressions_of(dtype)],
)
def test_an_expression_gives_a_gpus_bits(kernels: Any, dtype: str, expression: str) -> None:
    x, y = operands(getattr(torch, dtype))
    out = torch.zeros(256, dtype=getattr(torch, types_out(expression, dtype)))
    on_gpu = out.cuda()
    kernels[expression][(1,)](x.cuda(), y.cuda(), on_gpu, BLOCK=256)
    run(kernels[expression][(1,)], x, y, out, BLOCK=256)
    expected = on_gpu.cpu()
    same = (out == expected) | ((out != out) & (expected != expected))
    if "tl.sum" in expression and dtype in FLOATS:
        same |= (out - expected).abs() <= 1e-2 * expected.abs()  # a GPU adds in another order
    if " / " in expression and dtype != "float64":
        same |= (out - expected).abs() <= 2**-22 * expected.abs()  # Triton's `/` of float32 is div.full.f32: 2 ulp
    assert bool(same.all()), [
        (x[i].item(), y[i].item(), out[i].item(), expected[i].item()) for i in (~same).nonzero()[:4, 0].tolist()
    ]
