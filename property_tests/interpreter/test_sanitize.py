"""Each detector of the sanitizer has a defective kernel that it flags, and that no other does; right ones pass."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from specsim import kernels
from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case, Op, Role, ScalarArg
from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL
from specsim.errors import UsageError
from specsim.interpreter.sanitizer import Kind, Report, sanitize
from specsim.interpreter.triton_names import corners

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the sanitizer watches Triton's interpreter; CUDA runs compiled kernels",
)

N = 8


@triton.jit
def copy_kernel(p_in, p_out, n, BLOCK: tl.constexpr):
    o_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_out + o_n, tl.load(p_in + o_n, mask=o_n < n, other=0), mask=o_n < n)


@triton.jit
def reads_behind_the_end_kernel(p_in, p_out, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    tl.store(p_out + o_n, tl.load(p_in + o_n + 1) * 0)


@triton.jit
def reads_its_output_kernel(p_in, p_out, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    tl.store(p_out + o_n, tl.load(p_in + o_n) + tl.load(p_out + o_n) * 0)


@triton.jit
def writes_all_but_one_kernel(p_in, p_out, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    tl.store(p_out + o_n, tl.load(p_in + o_n), mask=o_n != 3)


@triton.jit
def sums_masked_lanes_kernel(p_in, p_out, BLOCK: tl.constexpr):
    o_n = tl.arange(0, 2 * BLOCK)
    total = tl.sum(tl.load(p_in + o_n, mask=o_n < BLOCK), axis=0)
    tl.store(p_out + tl.arange(0, BLOCK), tl.full([BLOCK], 0, tl.int64) + total)


@triton.jit
def all_programs_write_the_first_kernel(p_in, p_out, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    i_pid = tl.program_id(0)
    tl.store(p_out + o_n, tl.load(p_in + o_n), mask=(o_n > 0) & (i_pid == 0))
    # Both programs write 0 in the end, in either order; what is between them is the race.
    tl.store(p_out, i_pid + 1)
    tl.store(p_out, i_pid * 0)


@triton.jit
def shifts_in_place_kernel(p_inout, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    values = tl.load(p_inout + o_n + 1, mask=o_n < BLOCK - 1, other=0)
    tl.store(p_inout + o_n, values, mask=o_n < BLOCK - 1)


@triton.jit
def shifts_in_place_with_a_barrier_kernel(p_inout, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    values = tl.load(p_inout + o_n + 1, mask=o_n < BLOCK - 1, other=0)
    tl.debug_barrier()
    tl.store(p_inout + o_n, values, mask=o_n < BLOCK - 1)


@triton.jit
def takes_a_ticket_kernel(p_counter, p_out):
    i_ticket = tl.atomic_add(p_counter, 1)
    tl.store(p_out + tl.program_id(0), i_ticket)


@triton.jit
def multiplies_in_32_bits_kernel(p_in, p_out, stride, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    row = (tl.program_id(0) + 40_000) * stride  # what would be a row's offset
    tl.store(p_out + o_n, tl.load(p_in + o_n) + row * 0)


@triton.jit
def last_one_sums_kernel(p_in, p_partial, p_counter, p_out, num_programs):
    """The pattern of a reduction in one launch: whoever draws the last ticket reads what the others wrote."""
    i_pid = tl.program_id(0)
    tl.store(p_partial + i_pid, tl.load(p_in + i_pid))
    if tl.atomic_add(p_counter, 1) == num_programs - 1:
        total = 0
        for i in range(num_programs):
            total += tl.load(p_partial + i)
        tl.store(p_out, total)
        tl.store(p_counter, 0)


@triton.jit
def last_one_sums_relaxed_kernel(p_in, p_partial, p_counter, p_out, num_programs):
    i_pid = tl.program_id(0)
    tl.store(p_partial + i_pid, tl.load(p_in + i_pid))
    if tl.atomic_add(p_counter, 1, sem="relaxed") == num_programs - 1:
        total = 0
        for i in range(num_programs):
            total += tl.load(p_partial + i)
        tl.store(p_out, total)


@triton.jit
def reads_a_half_of_what_another_program_writes_kernel(p_in, p_out, BLOCK: tl.constexpr):
    halves = p_out.to(tl.pointer_type(tl.int32))
    if tl.program_id(0) == 0:
        tl.store(p_out + tl.arange(0, BLOCK), tl.load(p_in + tl.arange(0, BLOCK)) << 32)
    elif tl.load(halves + 2 * BLOCK - 1) == 7:
        tl.store(p_in, 7)


def launch(kernel: Any, grid: int = 1, **constants: Any) -> Callable[..., None]:
    def launched(source: torch.Tensor, out: torch.Tensor) -> None:
        kernel[(grid,)](source, out, BLOCK=N, **constants)

    return launched


def adds_to_its_output(source: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(source)


def shift(kernel: Any) -> Callable[[torch.Tensor], None]:
    return lambda values: kernel[(1,)](values, BLOCK=N)


def ticket(counter: torch.Tensor, out: torch.Tensor) -> None:
    takes_a_ticket_kernel[(4,)](counter, out)


def on_a_copy(function: Callable[..., None]) -> Report:
    return sanitize(function, torch.arange(1, N + 1), torch.empty(N, dtype=torch.int64), outputs=["out"])


DEFECTS: list[tuple[Kind, Callable[[], Report], str]] = [
    (
        "out-of-bounds",
        lambda: on_a_copy(launch(reads_behind_the_end_kernel)),
        "reads_behind_the_end_kernel reads element 8 of p_in, which has 8",
    ),
    (
        "uninitialised",
        lambda: on_a_copy(launch(reads_its_output_kernel)),
        "reads_its_output_kernel reads out, which nobody has written there",
    ),
    ("unwritten", lambda: on_a_copy(launch(writes_all_but_one_kernel)), "out[3] is never written"),
    (
        "masked-lanes",
        lambda: on_a_copy(launch(sums_masked_lanes_kernel)),
        "sums_masked_lanes_kernel: out[0] depends on what masked-off lanes of a load without `other` hold",
    ),
    (
        "undefined-memory",
        lambda: on_a_copy(adds_to_its_output),
        "out[0] changes with the content of red zones and unwritten outputs",
    ),
    (
        "race-between",
        lambda: on_a_copy(launch(all_programs_write_the_first_kernel, grid=2)),
        "all_programs_write_the_first_kernel: write-write race of two programs",
    ),
    (
        "race-within",
        lambda: sanitize(shift(shifts_in_place_kernel), torch.arange(N)),
        "shifts_in_place_kernel: read-write race of two lanes, no barrier between",
    ),
    (
        "program-order",
        lambda: sanitize(ticket, torch.zeros(1, dtype=torch.int64), torch.empty(4, dtype=torch.int64), outputs=["out"]),
        "changes with the order of programs",
    ),
    (
        "int32-overflow",
        lambda: on_a_copy(launch(multiplies_in_32_bits_kernel, stride=151_936)),
        "multiplies_in_32_bits_kernel: int32 overflow detected for operation mul",
    ),
]


@pytest.mark.parametrize(("kind", "run", "text"), DEFECTS, ids=[kind for kind, _run, _text in DEFECTS])
def test_a_defect_is_flagged_by_its_detector_alone(kind: Kind, run: Callable[[], Report], text: str) -> None:
    report = run()
    assert report.kinds == {kind}, [str(flaw) for flaw in report.flaws]
    assert text in report.flaws[0].text


def test_accesses_of_two_sizes_race_where_they_overlap() -> None:
    run = launch(reads_a_half_of_what_another_program_writes_kernel, grid=2)
    report = sanitize(run, torch.arange(1, N + 1), torch.zeros(N, dtype=torch.int64))
    (flaw, *_) = (flaw for flaw in report.flaws if flaw.kind == "race-between")
    assert "read-write race of two programs" in flaw.text


def test_a_flaw_names_the_line_of_the_kernel() -> None:
    (flaw,) = on_a_copy(launch(reads_behind_the_end_kernel)).flaws
    name, line = flaw.where.split(":")
    assert name == "test_sanitize.py"
    with open(__file__, encoding="utf-8") as source:
        assert "tl.load(p_in + o_n + 1)" in source.readlines()[int(line) - 1]


def test_a_correct_kernel_has_no_flaw_and_gives_its_result() -> None:
    report = on_a_copy(launch(copy_kernel, n=N))
    assert report.flaws == ()
    assert report.launches == 1
    assert report.results["out"].tolist() == list(range(1, N + 1))


def test_a_write_behind_the_end_is_flagged_and_goes_nowhere() -> None:
    source = torch.arange(2 * N)
    report = sanitize(
        lambda source, out: copy_kernel[(2,)](source, out, 2 * N, BLOCK=N), source, torch.empty(N), outputs=["out"]
    )
    assert report.kinds == {"out-of-bounds"}
    assert "writes element 8 of p_out, which has 8" in report.flaws[0].text


def test_a_barrier_between_reading_and_writing_ends_the_race() -> None:
    report = sanitize(shift(shifts_in_place_with_a_barrier_kernel), torch.arange(N))
    assert report.flaws == ()
    assert report.results["values"].tolist() == [1, 2, 3, 4, 5, 6, 7, 7]


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [(last_one_sums_kernel, set()), (last_one_sums_relaxed_kernel, {"race-between", "race-within"})],
)
def test_a_ticket_orders_programs_if_it_acquires_and_releases(kernel: Any, kinds: set[Kind]) -> None:
    def total(source: torch.Tensor, partial: torch.Tensor, counter: torch.Tensor, out: torch.Tensor) -> None:
        kernel[(4,)](source, partial, counter, out, 4)

    tensors = [torch.arange(4), torch.empty(4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)]
    out = torch.empty(1, dtype=torch.int64)
    report = sanitize(total, *tensors, out, outputs=["partial", "out"])
    assert report.kinds == kinds, [str(flaw) for flaw in report.flaws]
    assert report.results["out"].item() == 6


def test_only_what_is_defined_must_be_written_and_is_compared() -> None:
    defined = {"out": torch.arange(N) != 3}
    arguments = (torch.arange(1, N + 1), torch.empty(N, dtype=torch.int64))
    report = sanitize(launch(writes_all_but_one_kernel), *arguments, outputs=["out"], defined=defined)
    assert report.flaws == ()


def test_a_corner_of_a_grid_that_is_too_large_to_run_shows_its_overflow() -> None:
    @triton.jit
    def first_of_each_row_kernel(p_in, p_out, stride):
        i_row = tl.program_id(0)
        tl.store(p_out + i_row, tl.load(p_in + i_row * stride, mask=i_row < 1, other=0))

    def first_of_each_row(source: torch.Tensor, out: torch.Tensor) -> None:
        first_of_each_row_kernel[(16_384,)](source, out, 151_936)

    out = torch.empty(16_384, dtype=torch.int64)
    report = sanitize(first_of_each_row, torch.arange(1), out, outputs=["out"], programs=corners)
    assert report.kinds == {"int32-overflow"}


def test_an_output_that_is_no_argument_is_refused() -> None:
    with pytest.raises(UsageError, match="'result' is named as an output"):
        sanitize(launch(copy_kernel), torch.arange(N), torch.empty(N), outputs=["result"])


def test_strides_and_arguments_by_name_stay_what_they_were() -> None:
    seen = []

    def function(a: torch.Tensor, *rest: torch.Tensor, scale: int) -> torch.Tensor:
        seen.append((a.stride(), rest[0].shape, scale))
        return a * scale

    report = sanitize(function, torch.arange(6).view(2, 3).t(), torch.arange(2), scale=3)
    assert set(seen) == {((1, 3), (2,), 3)}
    assert report.results["returned[0]"].tolist() == [[0, 9], [3, 12], [6, 15]]
    assert set(report.results) == {"a", "arg1", "returned[0]"}


def small_case(op: Op) -> Case:
    """Of forty generated cases one of the smallest with several requests."""
    made = [op.generate(seeded(9, op.name, index)) for index in range(40)]
    several = [case for case in made if case.sizes["bs"] >= 2]
    several.sort(key=lambda case: (case.sizes.get("num_nodes", 0), sum(t.numel() for t in case.tensors.values())))
    return several[2]


LAUNCHES = {"temperature_softmax": 2}


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.name not in WITHOUT_A_KERNEL], ids=lambda op: op.name)
@pytest.mark.slow(runs_one_in=3)
def test_no_kernel_of_ours_is_flagged_and_each_load_says_what_masked_lanes_hold(op: Op) -> None:
    case = small_case(op)
    expected = op.expected(case)
    tensors = {**case.tensors, **op.allocate_outputs(case)}
    arguments: dict[str, Any] = {
        arg.name: case.sizes[arg.name] if isinstance(arg, ScalarArg) else tensors[arg.name] for arg in op.args
    }
    outputs = [arg.name for arg in op.tensor_args if arg.role is Role.OUT]
    report = sanitize(getattr(kernels, op.name), outputs=outputs, defined=op.defined(case, expected), **arguments)
    assert [str(flaw) for flaw in report.flaws] == []
    assert report.without_other == ()
    adds_up_masses = op.name == "verify_chain_block" and case.sizes["num_steps"] > 1
    assert report.launches == LAUNCHES.get(op.name, 1) + adds_up_masses
