"""Which of Triton's language the lockstep interpreter has, and that what it has computes what Triton's own computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from property_tests.support.generated_kernels import kernel_of, outcomes, same_bits
from specsim.interpreter import missing
from specsim.interpreter.lockstep.errors import KernelError, UnsupportedError
from specsim.interpreter.lockstep.launch import run

HEAD = """
@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    p = tl.program_id(0)
    o = tl.arange(0, B)
"""


def of(body: str) -> Any:
    return kernel_of(HEAD + "\n".join(f"    {line}" for line in body.strip().splitlines()))


def agree(body: str, *tensors: torch.Tensor, n: int = 5, block: int = 8, programs: int = 3) -> list[torch.Tensor]:
    actual, expected = outcomes(of(body), (programs,), tensors, [n, block])
    assert isinstance(actual, list), actual
    assert isinstance(expected, list), expected
    assert all(same_bits(a, b) for a, b in zip(actual, expected, strict=True))
    return actual


def test_what_is_missing_is_short() -> None:
    """Older releases of Triton lack some of it themselves."""
    functions = {"tl.dot_scaled", "tl.inline_asm_elementwise", "tl.map_elementwise"}
    types = {"tl.float8e4b15", "tl.float8e4b8", "tl.float8e4nv", "tl.float8e5", "tl.float8e5b16"}
    assert set(missing()) <= functions | types
    assert "tl.dot_scaled" in missing()


@pytest.mark.parametrize("name", [name for name in missing() if "float8" not in name])
def test_name_that_is_missing_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        run(of(f"if n > 100:\n    z = {name}(x)")[(1,)], torch.zeros(1), torch.zeros(1), 1, 2)
    assert raised.value.names == (name,)
    place = raised.value.places[name]
    assert place.partition(".py:")[2] == "13"
    assert str(raised.value).startswith(f"the lockstep interpreter does not have {name} ({place}), which kernel uses")


def test_tensor_of_a_type_that_is_missing_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"a tensor of torch\.float8_e5m2 \(x\)"):
        run(of("pass")[(1,)], torch.zeros(1).to(torch.float8_e5m2), torch.zeros(1), 1, 2)


def test_type_that_is_missing_is_refused_with_its_line() -> None:
    with pytest.raises(UnsupportedError) as raised:
        run(of("z = o.to(tl.float8e5)")[(1,)], torch.zeros(1), torch.zeros(1), 1, 2)
    assert raised.value.places["tl.float8e5"].endswith(".py:12")


def test_type_that_is_missing_is_an_error_where_the_kernel_has_stored_already() -> None:
    """Another interpreter would start from what it stored."""
    with pytest.raises(KernelError, match=r"\.py:13: .* does not have tl\.float8e5"):
        run(of("tl.store(y, p)\nz = o.to(tl.float8e5)")[(1,)], torch.zeros(1), torch.zeros(1), 1, 2)


def test_name_that_triton_does_not_have_is_refused_with_its_line() -> None:
    with pytest.raises(UnsupportedError) as raised:
        run(of("o += 1\nz = tl.loaad(x)")[(1,)], torch.zeros(1), torch.zeros(1), 1, 2)
    assert "triton.language.loaad (nor does Triton " in str(raised.value)
    assert raised.value.places[raised.value.names[0]].endswith(".py:13")


def test_function_of_libdevice_is_refused() -> None:
    kernel = "\nfrom triton.language.extra import libdevice\n" + HEAD + "    tl.store(x, libdevice.rint(tl.load(x)))\n"
    with pytest.raises(UnsupportedError) as raised:
        run(kernel_of(kernel)[(1,)], torch.zeros(1), torch.zeros(1), 1, 2)
    assert raised.value.names == ("libdevice.rint",)


def test_functions_of_libdevice_that_kernels_use_are_there() -> None:
    kernel = "\nfrom triton.language.extra import libdevice\n" + HEAD + "    tl.store(y, libdevice.log1p(tl.load(x)))\n"
    result = torch.zeros(1)
    run(kernel_of(kernel)[(1,)], torch.tensor([-(2.0**-20)]), result, 1, 2)
    assert result.item() == torch.tensor(-(2.0**-20)).log1p().item()


def test_name_in_a_function_that_a_kernel_calls_is_refused_with_its_line() -> None:
    helper = "\n@triton.jit\ndef helper(x):\n    return tl.dot_scaled(x)\n"
    with pytest.raises(UnsupportedError) as raised:
        run(kernel_of(helper + HEAD + "    z = helper(x)\n")[(1,)], torch.zeros(1), torch.zeros(1), 1, 2)
    assert raised.value.places["tl.dot_scaled"].endswith(".py:10")


def test_statement_that_is_missing_is_refused_with_its_line() -> None:
    with pytest.raises(UnsupportedError) as raised:
        run(of("try:\n    z = n\nfinally:\n    z = o")[(1,)], torch.zeros(1), torch.zeros(1), 1, 2)
    assert raised.value.places["the statement `try`"].endswith(".py:12")


def test_error_function_and_random_numbers_agree() -> None:
    body = """
tl.store(y + p * B + o, tl.math.erf(tl.load(x + p * B + o)))
tl.store(y + 32 + p * B + o, tl.rand(n + p, o))
tl.store(y + 64 + p * B + o, tl.randint(n, o + p * B).to(tl.float32))
tl.store(y + 96 + p * B + o, tl.erf(tl.randn(n + p, o * 70000)))
"""
    agree(body, torch.randn(32, generator=torch.Generator().manual_seed(0)), torch.zeros(128), n=2**31 - 5)


def test_condition_of_a_while_may_have_a_hint() -> None:
    """Triton's interpreter takes it for true."""
    y = torch.zeros(3, dtype=torch.int32)
    run(of("while tl.condition(n > p, disable_licm=True):\n    n -= 1\ntl.store(y + p, n)")[(3,)], y, y, 5, 2)
    assert y.tolist() == [0, 1, 2]


def integers(*sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(-99, 99, (size,), generator=generator, dtype=torch.int32) for size in sizes]


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("checked", ["(0, 1)", "(1, 0)"])
def test_block_pointers_load_and_store_what_they_cover(padding: str, checked: str) -> None:
    """A matrix [n, 6] in tiles [4, 4], some of which reach beyond it."""
    body = f"""
from_x = tl.make_block_ptr(x, (n, 6), (6, 1), (p * 4 - 1, 0), (4, 4), (1, 0))
to_y = tl.make_block_ptr(y, shape=(12, 8), strides=(8, 1), offsets=(p * 4, 0), block_shape=(4, 4), order=(1, 0))
for i in range(2):
    tile = tl.load(from_x, boundary_check={checked}, padding_option="{padding}")
    tl.store(to_y, tile.to(to_y.dtype.element_ty), boundary_check={checked})
    from_x = tl.advance(from_x, (0, 4))
    to_y = tl.advance(to_y, [0, 4])
"""
    found = agree(body, torch.arange(1.0, 55.0), torch.zeros(96), n=9)
    row = [float("nan")] * 8 if padding == "nan" else [0.0] * 8
    assert str(found[1].reshape(12, 8)[0].tolist()) == str(row)
    assert found[1].reshape(12, 8)[1].tolist()[:6] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_block_pointers_of_programs_that_part_are_merged() -> None:
    body = """
block = tl.make_block_ptr(x, (24,), (1,), (p * B,), (B,), (0,))
if p == 1:
    block = tl.advance(block, (3,))
tl.store(y + p * B + o, tl.load(block, boundary_check=(0,), padding_option="zero"))
"""
    found = agree(body, *integers(24, 24))
    assert torch.equal(found[1][8:16], found[0][11:19])


def test_tensor_descriptors_load_and_store_what_they_cover() -> None:
    body = """
from_x = tl.make_tensor_descriptor(x, shape=[n, 8], strides=[8, 1], block_shape=[4, 4])
to_y = tl.make_tensor_descriptor(y, [12, 8], [8, 1], [4, 4])
tile = from_x.load([p * 4, 4])
to_y.store([p * 4, 0], tile)
tl.store_tensor_descriptor(to_y, [p * 4, 4], tl.load_tensor_descriptor(from_x, [p * 4, 0]) + 1)
"""
    found = agree(body, torch.arange(1.0, 73.0), torch.zeros(96), n=9)
    assert found[1].reshape(12, 8)[9].tolist() == [0.0] * 4 + [1.0] * 4


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_tensor_descriptors_of_a_launch_load_and_store_what_they_cover(padding: str) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    kernel = of("y.store([p * 4, 0], x.load([p * 4 - 1, 4]))\ntl.static_assert(x.dtype == tl.float32)")
    results = []
    for launch in (run, lambda launched, *args: launched(*args)):
        x, y = torch.arange(1.0, 73.0).reshape(9, 8), torch.zeros(12, 8)
        of_x, of_y = (TensorDescriptor.from_tensor(tensor, [4, 4]) for tensor in (x, y))
        of_x.padding = padding
        launch(kernel[(3,)], of_x, of_y, 9, 8)
        results.append(y)
    assert same_bits(*results)
    assert results[0][1].tolist() == [5.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        ("x, [n, 8], [8, 2], [4, 4]", "the last stride of a tensor descriptor is 2; allowed: 1"),
        ("x, [n, 8], [9, 1], [4, 4]", "a stride of a tensor descriptor is no multiple of 16 bytes"),
        ("x + 1, [n, 8], [8, 1], [4, 4]", "the base of a tensor descriptor is no multiple of 16 bytes"),
        ("x, [n, 8], [8, 1], [4, 2]", "the last axis of a descriptor's block has 8 bytes; allowed: 16 and more"),
        ("x, [n], [8, 1], [4, 4]", "1 shape of a block with 2 axes"),
    ],
)
def test_tensor_descriptor_that_no_gpu_has_is_refused(made: str, wrong: str) -> None:
    with pytest.raises(KernelError, match=r"\.py:12: ") as raised:
        run(of(f"z = tl.make_tensor_descriptor({made})")[(1,)], torch.zeros(8), torch.zeros(8), 1, 2)
    assert wrong in str(raised.value)


def test_block_pointer_beyond_its_tensor_is_an_access_outside() -> None:
    body = "tl.store(y + o, tl.load(tl.make_block_ptr(x, (4,), (1,), (0,), (B,), (0,))))"
    with pytest.raises(KernelError, match="reads element 4 of x, which has 4"):
        run(of(body)[(1,)], torch.zeros(4), torch.zeros(8), 1, 8)
