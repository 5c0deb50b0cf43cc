"""The simulator moves accepted KV by a provider's kernel: a right one changes nothing, a wrong one is content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from property_tests.support.command_line import specsim
from specsim.engine.accounting_target import ModelTarget
from specsim.errors import UsageError
from specsim.reference.kv import move_kv
from specsim.tiers.accounting.kernel_move import mover, to_content, to_rows
from specsim.tiers.accounting.schedules import chooser_of, run_schedule

SCHEDULES = 30
HERE = "property_tests.engine.test_kernels_in_the_simulator"


def one_after_the_other(buffer: Tensor, target: Tensor, source: Tensor) -> None:
    """Right only where no target is read later."""
    for to, of in zip(target.flip(0).tolist(), source.flip(0).tolist(), strict=True):
        buffer[to] = buffer[of]


def moves_nothing(buffer: Tensor, target: Tensor, source: Tensor) -> None:
    pass


def raises(buffer: Tensor, target: Tensor, source: Tensor) -> None:
    raise RuntimeError("no such slot")


RIGHT = {"move_kv": move_kv}
WRONG = {"move_kv": one_after_the_other}
LAZY = {"move_kv": moves_nothing}
RAISING = {"move_kv": raises}
OTHERS = {"fill_bonus_tokens": moves_nothing}


def target_with(kernels: str) -> ModelTarget:
    target = ModelTarget()
    target.move = mover(kernels, Path())
    return target


@given(content=st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_rows_of_the_kernel_hold_the_content_exactly(content: list[int]) -> None:
    assert to_rows(content).dtype == torch.float32
    assert to_content(to_rows(content)) == content


@pytest.mark.parametrize("kernels", ["reference", f"{HERE}:RIGHT"])
def test_schedules_are_the_same_by_event_and_content(kernels: str) -> None:
    own, by_kernel = ModelTarget(), target_with(kernels)
    trees = 0
    for index in range(SCHEDULES):
        one, other = run_schedule(own, chooser_of(0, index)), run_schedule(by_kernel, chooser_of(0, index))
        assert one is not None
        assert other is not None
        assert (one.run.digest, other.run.violations) == (other.run.digest, ())
        trees += one.scenario.config.topk > 1
    assert trees > 5


@pytest.mark.parametrize("kernels", ["WRONG", "LAZY"])
def test_a_wrong_kernel_is_found_by_the_rule_of_content(kernels: str) -> None:
    target = target_with(f"{HERE}:{kernels}")
    schedules = [run_schedule(target, chooser_of(0, index)) for index in range(SCHEDULES)]
    broken = {violation.rule.id for schedule in schedules if schedule for violation in schedule.run.violations}
    assert broken == {"I43"}


@pytest.mark.slow
def test_the_command_finds_it_and_its_replay_uses_the_same_kernel(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    arguments = ("dev", "check", "model", "--only", "accounting", "--schedules", "60", "--kernels", f"{HERE}:LAZY")
    ended = specsim(tmp_path, *arguments, "--json", "verdict.json", PYTHONPATH=root)
    assert ended.returncode == 1, ended.stderr
    (finding,) = json.loads((tmp_path / "verdict.json").read_text())["findings"]
    assert finding["signature"] == "accounting:I43:move"
    ended = specsim(tmp_path, "replay", finding["replay"], "--trust", PYTHONPATH=root)
    assert (ended.returncode, "reproduced, bit for bit" in ended.stdout) == (1, True)


def test_a_kernel_that_raises_is_a_finding() -> None:
    target = target_with(f"{HERE}:RAISING")
    schedule = run_schedule(target, chooser_of(0, 0))
    assert schedule is not None
    (violation,) = schedule.run.violations
    assert (violation.rule.id, "RuntimeError: no such slot" in violation.actual) == ("X6", True)


def test_a_provider_without_the_operation_is_refused() -> None:
    with pytest.raises(UsageError, match="it has no move_kv"):
        mover(f"{HERE}:OTHERS", Path())


def test_only_the_model_has_a_place_for_kernels(tmp_path: Path) -> None:
    ended = specsim(tmp_path, "dev", "check", f"{HERE}:RIGHT", "--kernels", "reference")
    assert (ended.returncode, "check model --kernels" in ended.stderr) == (2, True)
