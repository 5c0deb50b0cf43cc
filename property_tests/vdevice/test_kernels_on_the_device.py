"""Triton kernels take their turn on the virtual device, and read and write exactly the elements that they touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from specsim.choices.chooser import replayed
from specsim.interpreter.lockstep.errors import UnsupportedError
from specsim.vdevice import Device, Finding, simulate


@triton.jit  # type: ignore[untyped-decorator]
def with_assembly(table: Any) -> None:
    tl.store(table, tl.inline_asm_elementwise("", "=r", [], dtype=tl.float32, is_pure=True, pack=1))


POLICIES = [(0,), (1,), (2, 0), (2, 1), (3, 1, 1, 2, 2, 1, 3, 1, 1)]


@triton.jit  # type: ignore[untyped-decorator]
def add_rows(table: Any, rows: Any, amount: Any, width: tl.constexpr) -> None:
    row = tl.load(rows + tl.program_id(0))
    at = table + row * width + tl.arange(0, width)
    tl.store(at, tl.load(at) + amount)


@triton.jit  # type: ignore[untyped-decorator]
def fill_first(table: Any, n: Any, width: tl.constexpr) -> None:
    lanes = tl.arange(0, width)
    tl.store(table + lanes, 7, mask=lanes < n)


@triton.jit  # type: ignore[untyped-decorator]
def through_addresses(addresses: Any, width: tl.constexpr) -> None:
    at = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.int64)) + tl.arange(0, width)
    tl.store(at, tl.load(at) + 1)


def findings_of(program: Callable[[Device], None], tape: tuple[int, ...]) -> list[Finding]:
    with simulate(replayed(tape)) as device:
        program(device)
    return device.findings


@pytest.mark.parametrize("tape", POLICIES)
def test_a_launch_takes_its_turn(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)) as device:
        table = torch.zeros(4, 4, dtype=torch.int64, device="cuda")
        add_rows[(2,)](table, torch.tensor([1, 3], device="cuda"), 5, width=4)
        table += 1
        assert table.tolist() == [[1] * 4, [6] * 4, [1] * 4, [6] * 4]
    assert device.findings == []


@pytest.mark.parametrize("tape", POLICIES)
@pytest.mark.parametrize(("first", "second", "kinds"), [([0, 1], [2, 3], set()), ([0, 1], [1, 2], {"race"})])
def test_only_rows_that_two_launches_share_race(
    tape: tuple[int, ...], first: list[int], second: list[int], kinds: set[str]
) -> None:
    def program(device: Device) -> None:
        table = torch.zeros(4, 4, dtype=torch.int64, device="cuda")
        rows = torch.tensor([first, second], device="cuda")
        device.track_elements(table, "table")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        add_rows[(2,)](table, rows[0], 5, width=4)
        with torch.cuda.stream(side):
            add_rows[(2,)](table, rows[1], 5, width=4)

    found = findings_of(program, tape)
    assert {finding.kind for finding in found} == kinds
    for finding in found:
        assert (finding.memory, finding.first.what, finding.second.what) == ("table", "add_rows", "add_rows")


def test_a_store_that_changes_nothing_does_not_race() -> None:
    def program(device: Device) -> None:
        table = torch.zeros(4, 4, dtype=torch.int64, device="cuda")
        row = torch.tensor([2], device="cuda")
        device.track_elements(table, "table")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        table[2]  # a view reads nothing
        part = table[row]
        with torch.cuda.stream(side):
            add_rows[(1,)](table, row, 0, width=4)
        del part

    assert findings_of(program, (1,)) == []


def test_a_kernel_that_the_interpreter_cannot_run_is_named() -> None:
    lacks = r"does not have tl\.inline_asm_elementwise \(test_kernels_on_the_device\.py:\d+\), which with_assembly uses"
    with simulate(replayed(())), pytest.raises(UnsupportedError, match=lacks):
        with_assembly[(1,)](torch.zeros(4, device="cuda"))


@pytest.mark.parametrize("tape", POLICIES)
@pytest.mark.parametrize("n", [0, 1])
def test_a_store_whose_lanes_are_masked_off_writes_nothing(n: int, tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        table = torch.zeros(4, dtype=torch.int64, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            fill_first[(1,)](table, n, width=4)
        table + 1

    assert len(findings_of(program, tape)) == n


def test_a_launch_that_only_reads_does_not_write_its_tensors() -> None:
    def program(_device: Device) -> None:
        table = torch.zeros(4, 4, dtype=torch.int64, device="cuda")
        rows = torch.tensor([1], device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        add_rows[(1,)](table, rows, 5, width=4)
        with torch.cuda.stream(side):
            rows + 1

    assert findings_of(program, (1,)) == []


@pytest.mark.parametrize("tape", POLICIES)
def test_an_access_outside_of_the_storage_is_a_finding(tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        table = torch.zeros(4, 4, dtype=torch.int64, device="cuda")
        add_rows[(1,)](table, torch.tensor([4], device="cuda"), 5, width=4)
        assert table.sum().item() == 0

    (found,) = {finding.identity: finding for finding in findings_of(program, tape)}.values()
    assert found.kind == "out-of-bounds"
    assert found.memory == "add_rows"


@pytest.mark.parametrize("tape", POLICIES)
def test_memory_behind_addresses_is_followed(tape: tuple[int, ...]) -> None:
    def program(_device: Device, *, waits: bool) -> None:
        pools = [torch.zeros(4, dtype=torch.int64, device="cuda") for _ in range(2)]
        addresses = torch.tensor([pool.data_ptr() for pool in pools], device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            through_addresses[(2,)](addresses, width=4)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
            assert pools[1].tolist() == [1, 1, 1, 1]
        pools[0].zero_()

    assert findings_of(lambda device: program(device, waits=True), tape) == []
    assert [found.kind for found in findings_of(lambda device: program(device, waits=False), tape)] == ["race"]


@pytest.mark.parametrize("tape", POLICIES)
def test_a_launch_reads_no_memory_whose_address_it_is_not_given(tape: tuple[int, ...]) -> None:
    def program(_device: Device) -> None:
        pools = [torch.zeros(4, dtype=torch.int64, device="cuda") for _ in range(2)]
        addresses = torch.tensor([pool.data_ptr() for pool in pools], device="cuda")
        side, table = torch.cuda.Stream(), torch.zeros(4, 4, dtype=torch.int64, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            add_rows[(1,)](table, torch.tensor([1], device="cuda"), 5, width=4)
        pools[0].zero_()  # of other memory than that of the launch
        assert addresses.shape == (2,)

    assert findings_of(program, tape) == []


def test_a_kernel_in_python_that_fails_is_a_finding() -> None:
    with simulate(replayed([0])) as device:
        out = torch.empty(2, device="cuda")
        device.launch(lambda access: access.failed(ValueError("no such row")), writes=[out], name="operation")
        torch.cuda.synchronize()
    (found,) = device.findings
    assert (found.kind, found.memory, "no such row" in found.detail) == ("device-assert", "operation", True)


def test_a_tensor_of_the_host_is_refused() -> None:
    with simulate(replayed([0])):
        table = torch.zeros(4, 4, dtype=torch.int64, device="cuda")
        with pytest.raises(ValueError, match="cpu tensor"):
            add_rows[(1,)](table, torch.tensor([1]), 5, width=4)
