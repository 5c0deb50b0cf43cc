"""What is too much for a launch in lockstep is a sentence with the line, before the machine is short of memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from property_tests.support.generated_kernels import kernel_of
from specsim.interpreter.lockstep.errors import KernelError
from specsim.interpreter.lockstep.launch import Limits, RoomError, lockstep
from specsim.interpreter.lockstep.memory import Checks
from specsim.interpreter.lockstep.watch import Watch

ENDS = """
@triton.jit
def kernel(out, n, B: tl.constexpr):
    p = tl.program_id(0)
    o = tl.arange(0, B)
BODY
"""


def launched(body: str, grid: tuple[int, ...], *args: Any, limits: Limits | None = None, watch: bool = False) -> None:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    kernel = kernel_of(ENDS.replace("BODY", lines))
    how = (Checks(), Watch()) if watch else (None, None)
    with lockstep(*how, limits=limits or Limits(), fall_back=False):
        kernel[grid](*args)


def refused(body: str, grid: tuple[int, ...], *args: Any, limits: Limits | None = None, watch: bool = False) -> str:
    """What a KernelError says, without the file's name."""
    with pytest.raises(KernelError) as raised:
        launched(body, grid, *args, limits=limits, watch=watch)
    return str(raised.value).partition(".py:")[2] or str(raised.value)


def zeros(size: int = 8) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int32)


# Loops that do not end.


def test_loop_that_changes_nothing_is_found_after_a_thousand_iterations() -> None:
    assert refused("while n > 0:\n    x = n + 1", (2,), zeros(), 1, 2) == (
        "13: a loop never ends: for programs 0, 1, iteration 1,025 changes no variable and no memory (in kernel kernel)"
    )


def test_programs_that_wait_for_one_that_has_left_are_named() -> None:
    body = """
if p > 1:
    while tl.atomic_add(out, 0) < n:
        pass
"""
    assert refused(body, (8,), zeros(), 1, 2) == (
        "14: a loop never ends: for programs 2, 3, 4 and 3 more, iteration 1,025 changes no variable and no memory; "
        "2 others, one of which might end it on a GPU, go on only after it (in kernel kernel)"
    )


@pytest.mark.parametrize(
    "test",
    ["tl.load(out) == 0", "tl.atomic_cas(out, 0, 0) == 0", "tl.atomic_max(out, 0) == 0", "tl.atomic_xchg(out, 0) == 0"],
)
def test_waiting_for_what_nobody_stores_is_found(test: str) -> None:
    assert "changes no variable and no memory" in refused(f"while {test}:\n    pass", (2,), zeros(), 1, 2)


def test_value_that_is_read_again_and_again_is_waited_for() -> None:
    body = "x = tl.load(out)\nwhile x == 0:\n    x = tl.load(out)"
    assert "changes no variable and no memory" in refused(body, (2,), zeros(), 1, 2)


def test_loop_that_counts_is_stopped_at_the_limit() -> None:
    body = "x = n\nwhile x > 0:\n    x += 1\n    x = tl.where(x > 100, 1, x)"
    assert refused(body, (2,), zeros(), 1, 2, limits=Limits(iterations=5000)) == (
        "15: loops have run 5,000 times; allowed: 5,000 (Limits.iterations): does this one end? (in kernel kernel)"
    )


def test_loop_of_large_blocks_is_stopped_earlier() -> None:
    body = "x = o\nwhile n > 0:\n    n += 1\n    x = x + p\ntl.store(out, tl.max(x))"
    found = refused(body, (2,), zeros(), 1, 1 << 20, limits=Limits(iterations=5000))
    assert found == (
        "15: loops have run 152 times, with 319,815,680 elements of large blocks; allowed: 5,000 (Limits.iterations): "
        "does this one end? (in kernel kernel)"
    )


def test_nested_loops_share_one_limit() -> None:
    body = "for i in range(100):\n    for j in range(100):\n        if n < 0:\n            return\n        n += 1"
    assert "loops have run 5,000 times" in refused(body, (2,), zeros(), 1, 2, limits=Limits(iterations=5000))


@pytest.mark.parametrize("over", ["range(n, 2**31 - 1)", "range(2**40)", "tl.static_range(10**9)"])
def test_loop_that_would_run_too_long_is_refused_before_it_does(over: str) -> None:
    found = refused(f"for i in {over}:\n    n += 1", (2,), zeros(), 1, 2)
    assert found.startswith("12: a loop is to run ")
    assert "times; allowed: 1,048,576 for all loops together (Limits.iterations)" in found


def test_loop_that_is_left_early_may_have_a_high_bound() -> None:
    out = zeros()
    launched(
        "for i in range(n):\n    if i == 10:\n        tl.store(out + p, i)\n        return", (2,), out, 2**31 - 1, 2
    )
    assert out.tolist()[:2] == [10, 10]


def test_long_loop_that_ends_is_let_run() -> None:
    out = zeros()
    launched("x = n\nwhile x < 5000:\n    x += 1\ntl.store(out + p, x)", (2,), out, 0, 2)
    assert out.tolist()[:2] == [5000, 5000]


def test_programs_that_pass_a_barrier_late_are_waited_for() -> None:
    """Program 0 counts to 3000 in the loop in which the others wait for it."""
    out = zeros()
    body = """
x = n
while (tl.atomic_add(out, 0) == 0) & (x < 4000):
    if p == 0:
        x += 1
        if x == 3000:
            tl.atomic_xchg(out, 1)
tl.store(out + 1 + p, x)
"""
    launched(body, (4,), out, 0, 2)
    assert out.tolist()[:5] == [1, 3000, 0, 0, 0]


# Grids.


def test_grid_of_a_million_programs_runs_in_groups() -> None:
    out = torch.zeros(1_000_000, dtype=torch.int32)
    launched("tl.store(out + p, p + tl.sum(o, axis=0))", (1_000_000,), out, 0, 64)
    assert torch.equal(out, torch.arange(1_000_000, dtype=torch.int32) + 2016)


def test_million_programs_with_atomic_operations_that_wait_for_none_run_in_groups() -> None:
    out = zeros()
    launched("tl.atomic_add(out, tl.sum(o, axis=0))", (20_000,), out, 0, 1024, limits=Limits(block_bytes=1 << 26))
    assert out.tolist()[0] == 20_000 * 1023 * 512 % 2**32 - 2**32 * (20_000 * 1023 * 512 % 2**32 >= 2**31)


def test_programs_that_wait_for_one_another_are_too_many_for_their_blocks() -> None:
    body = "x = tl.load(out + (o + p) % 8)\nwhile tl.atomic_add(out, 0) < 0:\n    pass"
    assert refused(body, (1_000_000,), zeros(), 0, 1024) == (
        "11: a block [1024] takes 3,906 MiB for 1,000,000 programs that run together; allowed: 512 MiB "
        "(Limits.block_bytes): make the block smaller, or launch fewer programs (in kernel kernel)"
    )


def test_grid_that_is_too_large_is_refused() -> None:
    assert refused("pass", (2**31 - 1, 65535), zeros(), 0, 2) == (
        "the grid (2147483647, 65535) has 140,735,340,806,145 programs; allowed: 16,777,216 (Limits.programs): launch "
        "fewer"
    )


@pytest.mark.parametrize("grid", [(-1,), (1, 1, 1, 1), ()])
def test_grid_that_is_none_is_refused(grid: tuple[int, ...]) -> None:
    assert refused("pass", grid, zeros(), 0, 2) == f"the grid is {grid}; allowed: one to three extents, none below 0"


# Blocks.


def test_block_of_a_million_elements_runs() -> None:
    out = torch.zeros(1 << 20, dtype=torch.int32)
    launched("tl.store(out + o, o * 2)", (1,), out, 0, 1 << 20)
    assert torch.equal(out, torch.arange(1 << 20, dtype=torch.int32) * 2)


@pytest.mark.parametrize(
    "text",
    [
        "o[:, None] + o[None, :]",
        "tl.where(o[:, None] > 3, o[None, :], 0)",
        "tl.zeros([B, B], tl.int32)",
        "tl.broadcast_to(o[:, None], [B, B])",
        "tl.load(out + (o[:, None] + o[None, :]))",
        "tl.load(out + o[:, None], mask=o[None, :] < 0, other=0)",
        "tl.dot(tl.zeros([B, 16], tl.float32), tl.zeros([16, B], tl.float32))",
    ],
)
def test_square_of_a_large_block_is_refused_before_it_is_made(text: str) -> None:
    found = refused(f"x = {text}", (1,), zeros(1 << 16), 0, 1 << 16)
    assert found.startswith("12: a block [65536, 65536] takes ")
    assert "allowed: 512 MiB (Limits.block_bytes)" in found


def test_programs_run_in_smaller_groups_where_blocks_turn_out_larger() -> None:
    """[64, 64, 64] of 256 programs would take 512 MiB in 8 bytes; the arguments show 64 alone."""
    out = torch.zeros(256, dtype=torch.int32)
    body = "x = (o[:, None, None] + o[None, :, None]) + o[None, None, :] * (p + 0 * n)\n"
    launched(f"{body}tl.store(out + p, tl.max(x.to(tl.int64)))", (256,), out, 1, 64, limits=Limits(block_bytes=1 << 26))
    assert out.tolist() == [126 + 63 * p for p in range(256)]


def test_blocks_that_live_at_once_are_counted() -> None:
    body = "\n".join(f"x{i} = o * {i + 2} + p" for i in range(20)) + "\n" + "tl.store(out, tl.max(x0 + x19))"
    found = refused(body, (4,), zeros(), 0, 1 << 20, limits=Limits(live_bytes=1 << 26))
    assert "the blocks of a program take 68 MiB at once; allowed: 64 MiB (Limits.live_bytes)" in found


def test_blocks_that_died_are_not_counted() -> None:
    body = "x = o * 0\nfor i in range(100):\n    x = x + i + p\ntl.store(out + p, tl.max(x))"
    out = zeros()
    launched(body, (2,), out, 0, 1 << 20, limits=Limits(live_bytes=1 << 27))
    assert out.tolist()[:2] == [4950, 5050]


def test_accesses_that_are_kept_to_find_races_are_counted() -> None:
    body = "for i in range(100):\n    tl.store(out + (o & 7), tl.load(out + ((o + i) & 7)))"
    found = refused(body, (16,), zeros(), 0, 1 << 12, limits=Limits(log_bytes=1 << 20), watch=True)
    assert "the accesses of a launch, which are kept to find races, take 1 MiB; allowed: 1 MiB" in found


def test_room_that_is_lacking_is_an_error_of_its_own() -> None:
    with pytest.raises(RoomError):
        launched("x = o[:, None] + o[None, :]", (1,), zeros(), 0, 1 << 16)
