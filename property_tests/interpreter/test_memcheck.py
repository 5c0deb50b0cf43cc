"""Out-of-bounds accesses of interpreted kernels are seen where they happen, named, and cannot hurt."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from specsim.contracts.pointers import pointers_to
from specsim.interpreter.memcheck import memcheck
from specsim.interpreter.red_zones import POISONS, GuardedTensor


@triton.jit
def copy_kernel(source_ptr, target_ptr, n, shift, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    values = tl.load(source_ptr + o_n + shift, mask=o_n < n, other=0)
    tl.store(target_ptr + o_n, values, mask=o_n < n)


def run(n: int, shift: int, which: int = 0) -> tuple[list[str], torch.Tensor]:
    source, target = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    with memcheck(which) as log:
        copy_kernel[(1,)](source, target, n, shift, BLOCK=8)
    return [str(stray) for stray in log.strays], target


def test_a_kernel_that_stays_inside_is_not_flagged() -> None:
    strays, target = run(n=4, shift=0)
    assert strays == []
    assert target.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("which", [0, 1])
def test_a_read_behind_the_end_is_named_and_gives_poison(which: int) -> None:
    strays, target = run(n=4, shift=2, which=which)
    assert strays == ["copy_kernel reads element 4 of source_ptr, which has 4"]
    assert target.tolist() == [2, 3, POISONS[which], POISONS[which]]


def test_a_read_far_away_does_not_end_the_process() -> None:
    strays, target = run(n=4, shift=1 << 40)
    assert len(strays) == 1
    assert target.tolist() == [POISONS[0]] * 4


def test_another_tensor_that_lies_right_behind_is_not_reached() -> None:
    memory = bytearray(64)
    source, target = (torch.frombuffer(memory, dtype=torch.int64, offset=at, count=4) for at in (0, 32))
    assert target.data_ptr() == source.data_ptr() + 32
    with memcheck() as log:
        copy_kernel[(1,)](source, target, 4, 2, BLOCK=8)
    assert [str(stray) for stray in log.strays] == ["copy_kernel reads element 4 of source_ptr, which has 4"]
    assert target.tolist() == [0, 0, POISONS[0], POISONS[0]]


def test_another_part_of_the_same_tensor_is_reached() -> None:
    source, target = torch.arange(8).view(2, 4)
    with memcheck() as log:
        copy_kernel[(1,)](source, target, 2, 4, BLOCK=8)
    assert (log.strays, target.tolist()) == ([], [4, 5, 6, 7])


def test_a_write_behind_the_end_is_named_and_goes_nowhere() -> None:
    strays, target = run(n=6, shift=0)
    assert "copy_kernel writes element 4 of target_ptr, which has 4" in strays
    assert target.tolist() == [0, 1, 2, 3]


@triton.jit
def count_kernel(target_ptr, n_ptr):
    total = 0
    for _ in range(tl.load(n_ptr)):
        total += 1
    tl.store(target_ptr, total)


def test_a_loop_over_a_loaded_count_runs() -> None:
    target = torch.zeros(1, dtype=torch.int64)
    with memcheck() as log:
        count_kernel[(1,)](target, torch.tensor([3]))
    assert (target.tolist(), log.strays) == ([3], [])


def test_a_masked_lane_is_no_access() -> None:
    assert run(n=2, shift=2)[0] == []


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("which", [0, 1])
def test_a_red_zone_shows_a_write_on_either_side(dtype: torch.dtype, which: int) -> None:
    guarded = GuardedTensor.around(torch.ones(2, 3).to(dtype), which, "cpu")
    assert torch.equal(guarded.view, torch.ones(2, 3).to(dtype))
    assert guarded.first_stray_write() is None
    for index in (-1, 6):
        damaged = GuardedTensor.around(torch.ones(2, 3).to(dtype), which, "cpu")
        position = index if index < 0 else index - 6
        zone = damaged.buffer[:128] if index < 0 else damaged.buffer[-128:]
        zone[position] = not which if dtype is torch.bool else 3
        assert damaged.first_stray_write() == index


@triton.jit
def prefix_kernel(lens_ptr, starts_ptr, BLOCK: tl.constexpr, HAS_OTHER: tl.constexpr):
    pid = tl.program_id(0)
    o_before = tl.arange(0, BLOCK)
    if HAS_OTHER:
        lens = tl.load(lens_ptr + o_before, mask=o_before < pid, other=0)
    else:
        lens = tl.load(lens_ptr + o_before, mask=o_before < pid)
    tl.store(starts_ptr + pid, tl.sum(lens))


@triton.jit
def pass_on_kernel(chain_ptr):
    pid = tl.program_id(0)
    tl.store(chain_ptr + pid + 1, tl.load(chain_ptr + pid) + 1)


@pytest.mark.parametrize("has_other", [False, True])
@pytest.mark.parametrize("lanes", [False, True])
def test_masked_off_lanes_hold_poison_on_request_where_a_load_has_no_other(has_other: bool, lanes: bool) -> None:
    lens, starts = torch.tensor([2, 3]), torch.zeros(2, dtype=torch.int64)
    with memcheck(1, lanes=lanes) as log:
        prefix_kernel[(2,)](lens, starts, BLOCK=2, HAS_OTHER=has_other)
    poisoned = lanes and not has_other
    assert starts.tolist() == ([2 * POISONS[1], 2 + POISONS[1]] if poisoned else [0, 2])
    assert bool(log.without_other) is poisoned


@pytest.mark.parametrize(("backwards", "chain"), [(False, [7, 8, 9]), (True, [7, 8, 1])])
def test_programs_run_one_after_the_other_and_last_one_first_on_request(backwards: bool, chain: list[int]) -> None:
    values = torch.tensor([7, 0, 0])
    with memcheck(backwards=backwards, in_turn=True) as log:
        pass_on_kernel[(2,)](values)
    assert values.tolist() == chain
    assert list(log.races) == ["pass_on_kernel"]


def test_programs_together_all_read_before_one_writes() -> None:
    values = torch.tensor([7, 0, 0])
    with memcheck() as log:
        pass_on_kernel[(2,)](values)
    assert values.tolist() == [7, 8, 1]
    assert list(log.races) == ["pass_on_kernel"]


@triton.jit
def follow_kernel(pointers_ptr, target_ptr):
    pointer = tl.load(pointers_ptr + tl.program_id(0)).to(tl.pointer_type(tl.int64))
    tl.store(target_ptr + tl.program_id(0), tl.load(pointer))


def test_what_an_array_of_addresses_leads_to_belongs_to_the_launch() -> None:
    tensors, target = [torch.tensor([5]), torch.tensor([6])], torch.zeros(2, dtype=torch.int64)
    with memcheck() as log:
        follow_kernel[(2,)](pointers_to(tensors), target)
    assert (target.tolist(), log.strays) == ([5, 6], [])
