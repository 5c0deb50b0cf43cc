"""`pytest --specsim-interpreter` runs the Triton kernels of a suite on a CPU, and fails tests for their flaws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from property_tests.support.suites import run_pytest

SUITE = """\
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def copy(p_in, p_out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_out + o, tl.load(p_in + o, mask=o < n, other=0), mask=o < n)


@triton.jit
def branches_on_a_lane_that_is_masked_off(p_in, p_out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(p_in + o, mask=o < 3), axis=0)
    if total > 0:
        tl.store(p_out, total)


@triton.jit
def all_write_the_first(p_in, p_out):
    tl.store(p_out, tl.load(p_in + tl.program_id(0)))


@triton.jit
def prints(p_in, p_out):
    tl.store(p_out, tl.rand(1, tl.load(p_in)) + tl.inline_asm_elementwise("", "=r,r", [1.0], tl.float32, True, 1))


def tensors():
    return torch.arange(1, 5, dtype=torch.float32), torch.zeros(4)


def test_right():
    source, out = tensors()
    copy[(2,)](source, out, 4, BLOCK=2)
    assert out.tolist() == [1, 2, 3, 4]


def test_reads_behind_the_end():
    source, out = tensors()
    copy[(4,)](source, out, 5, BLOCK=2)


def test_fails_by_itself_too():
    source, out = tensors()
    copy[(4,)](source, out, 5, BLOCK=2)
    assert out.tolist() == [0, 0, 0, 0]


def test_branches():
    branches_on_a_lane_that_is_masked_off[(1,)](*tensors(), BLOCK=4)


@pytest.fixture
def raced():
    all_write_the_first[(2,)](*tensors())


def test_races_in_a_fixture(raced):
    pass


def test_cannot_be_run():
    with pytest.raises(Exception):
        prints[(1,)](*tensors())
"""
END = "element 4 of p_in, which has 4"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_kernels.py").write_text(SUITE)
    return tmp_path


@pytest.mark.parametrize("interpreted", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_a_test_fails_for_what_its_launches_do_wrong(suite: Path, interpreted: str) -> None:
    ended = run_pytest(suite, "--specsim-interpreter", "-rA", TRITON_INTERPRET=interpreted)
    told = ended.stdout
    assert "3 failed, 2 passed, 1 error" in told, told + ended.stderr
    for test in ("test_right", "test_cannot_be_run"):
        assert f"PASSED test_kernels.py::{test}" in told
    assert f"out-of-bounds: copy reads {END} (test_kernels.py:10)" in told
    assert "FAILED test_kernels.py::test_fails_by_itself_too - assert [" in told
    assert re.search(r"^FAILED test_kernels.py::\w+ - Failed: out-of-bounds: \w+ reads element ", told, re.MULTILINE)
    assert told.count(f"out-of-bounds: copy reads {END}") == 2
    assert "masked-lanes: branches_on_a_lane_that_is_masked_off: a branch depends on" in told
    assert "race-between: all_write_the_first: write-write race of two programs, for element 0 of p_out (" in told


def test_what_is_left_to_triton_is_in_the_summary(suite: Path) -> None:
    ended = run_pytest(suite, "--specsim-interpreter", "-k", "right or cannot")
    assert "specsim: 1 launch in lockstep" in ended.stdout, ended.stdout + ended.stderr
    assert "specsim: left to Triton: prints, for tl." in ended.stdout


@pytest.mark.slow  # workers of pytest-xdist, each of which imports torch
def test_without_checks_an_access_behind_the_end_still_fails(suite: Path) -> None:
    ended = run_pytest(suite, "--specsim-interpreter-plain", "-n", "2", "-p", "xdist", "-rA")
    assert "2 failed, 4 passed" in ended.stdout, ended.stdout + ended.stderr
    assert f"KernelError: test_kernels.py:10: reads {END} (in kernel copy)" in ended.stdout
    assert "launches in lockstep" in ended.stdout


def test_without_the_option_launches_are_tritons(suite: Path) -> None:
    ended = run_pytest(suite, "-k", "race or right", TRITON_INTERPRET="1")
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "lockstep" not in ended.stdout
