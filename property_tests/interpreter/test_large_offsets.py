"""Offsets are checked without the tensors that they lead into, and rows lie apart where an implementation asks for
strides.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from typer.testing import CliRunner

from specsim.choices.chooser import seeded
from specsim.cli import app
from specsim.commands.counts import add_counts
from specsim.contracts.contract import Implementation
from specsim.contracts.provider import MappingProvider, Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.errors import UsageError
from specsim.interpreter.red_zones import RED_ZONE, ROW_GAP, GuardedTensor
from specsim.tiers.ops.finding import Origin, finding_of
from specsim.tiers.ops.run import run_case
from specsim.tiers.ops.suite import SuiteLimits, check_subject
from specsim.tiers.ops.written import WHOLE_MAX
from specsim.verdict import CheckedSubject, Suite, Verdict, finding_from_json

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="seen in the interpreter alone")


def subject_of(op: str, call: Implementation) -> Subject:
    (subject,) = MappingProvider("mine", {op: call}).subjects()[0]
    return subject


@triton.jit
def _rows_in_32_bits_kernel(p_in, p_out, stride):
    i_row = tl.program_id(0)
    tl.store(p_out + i_row, tl.load(p_in + i_row * stride))


@triton.jit
def _rows_in_64_bits_kernel(p_in, p_out, stride):
    i_row = tl.program_id(0).to(tl.int64)
    tl.store(p_out + i_row, tl.load(p_in + i_row * stride))


def _far(kernel: triton.JITFunction) -> Subject:
    def launch() -> None:
        kernel[(16_384,)](torch.zeros(4), torch.zeros(4), 151_936)

    return replace(subject_of("row_argmax", REFERENCE["row_argmax"]), far=launch)


@interpreted
@pytest.mark.parametrize(
    ("kernel", "rules"), [(_rows_in_32_bits_kernel, ["O11"]), (_rows_in_64_bits_kernel, [])], ids=["int32", "int64"]
)
def test_a_row_offset_that_does_not_fit_is_found_and_one_that_does_is_not(
    kernel: triton.JITFunction, rules: list[str]
) -> None:
    outcome = run_case(OPS["row_argmax"], _far(kernel), OPS["row_argmax"].generate(seeded(0, "far")))
    assert [violation.rule.id for violation in outcome.violations] == rules
    assert all("int32 overflow" in violation.title for violation in outcome.violations)


def test_rows_lie_apart_and_what_is_between_them_is_watched() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    guarded = GuardedTensor.around(tensor, 1, "cpu", ROW_GAP)
    assert guarded.view.stride() == (3 + ROW_GAP, 1)
    assert torch.equal(guarded.view, tensor)
    assert guarded.first_stray_write() is None
    guarded.buffer[RED_ZONE + 3] = 0.0
    assert guarded.first_stray_write() == 3


def test_an_implementation_that_says_it_takes_strides_and_does_not_is_found() -> None:
    def of_side_by_side(logits: torch.Tensor, nan_policy: int) -> torch.Tensor:
        rows, count = logits.shape
        flat = torch.as_strided(logits, (rows, count), (count, 1))
        found: torch.Tensor = REFERENCE["row_argmax"](flat.clone(), nan_policy)
        return found

    op, subject = OPS["row_argmax"], subject_of("row_argmax", of_side_by_side)
    case = next(
        case
        for index in range(300)
        if (case := op.generate(seeded(0, "strides", index))).sizes["num_nodes"] > 2
        and not case.tensors["logits"].isnan().any()
        and case.tensors["logits"].unique().numel() > 8  # rows that differ
    )
    assert run_case(op, subject, case).violations == ()
    assert run_case(op, replace(subject, strided=frozenset({"logits"})), case).violations


def test_a_finding_names_operation_provider_blame_and_arguments_whole() -> None:
    def wrong(predict: torch.Tensor, accept_index: torch.Tensor, accept_lens: torch.Tensor) -> torch.Tensor:
        return predict[accept_index[:, -1].long()]

    op, subject = OPS["fill_bonus_tokens"], subject_of("fill_bonus_tokens", wrong)
    found = check_subject(op, subject, seed=0, limits=SuiteLimits(20))
    assert found.counterexample is not None
    finding, _replay = finding_of(op, subject, found.counterexample, Origin("mine:wrong", 0, "cpu"))
    assert (finding.op, finding.provider, finding.blame) == ("fill_bonus_tokens", "mine:wrong", "kernel")
    tensors = found.counterexample.case.tensors
    assert all(tensor.numel() <= WHOLE_MAX for tensor in tensors.values())
    for name, tensor in tensors.items():
        assert any(line.startswith(f"{name}: ") and line.endswith(str(tensor.tolist())) for line in finding.arguments)
    verdict = Verdict("mine:wrong", 0, [Suite("ops", cases=20)], [finding])
    assert finding_from_json(json.loads(json.dumps(verdict.to_json()))["findings"][0]) == finding


def _counted(cases: int, seed: int = 0) -> Verdict:
    suite = Suite("ops", judged=[CheckedSubject("move_kv", "kernel:move_kv", "a.py:1", cases, 2, cases // 2, 0.5)])
    return Verdict("mine:provider", seed, [suite])


def test_counts_add_up_over_seeds_and_the_same_cases_count_once(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    for cases, seed, total in ((10, 0, 10), (30, 0, 30), (20, 0, 30), (5, 1, 35)):
        add_counts(path, _counted(cases, seed), "cpu")
        data = json.loads(path.read_text())
        assert (data["total"], data["operations"]) == (total, {"move_kv": total})
    assert [row["packed"] for row in data["rows"]] == [15, 2]
    path.write_text("{}")
    with pytest.raises(UsageError, match="holds something else than counts"):
        add_counts(path, _counted(1), "cpu")


@pytest.mark.slow
def test_one_operation_is_checked_in_bulk_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "right.py").write_text("from specsim.contracts.registry import REFERENCE as right\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    options = ["--bulk", "--cases", "30", "--device", "cpu", "--out", "found", "--write", "counts.json"]
    ended = CliRunner().invoke(app, ["dev", "check", "right:right", "--only", "ops:fill_bonus_tokens", *options])
    assert ended.exit_code == 0, ended.output
    counted = json.loads((tmp_path / "counts.json").read_text())
    assert counted["operations"] == {"fill_bonus_tokens": 30}
    (row,) = counted["rows"]
    assert row["launches"] > 1  # what one launch would take is spread over all sizes
    refused = CliRunner().invoke(app, ["check", "right:right", "--only", "ops:nothing", "--out", "found"])
    assert refused.exit_code != 0
