"""The benchmark of both interpreters times what it says, and counts what lockstep leaves to Triton as equally fast."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl
from typer.testing import CliRunner

from specsim.bench import interpreter
from specsim.cli import app
from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.errors import UsageError
from specsim.interpreter.lockstep import language
from specsim.report.interpreters import summary

if TYPE_CHECKING:
    from collections.abc import Callable

OP = OPS["fill_bonus_tokens"]


def subject(function: Callable[..., Any]) -> Subject:
    return Subject(OP.name, "kernel", f"kernel:{OP.name}", partial(OP.call, function))


def entries(function: Callable[..., Any]) -> list[dict[str, Any]]:
    return json.loads(json.dumps(interpreter.entries_of("mine", subject(function), 1)))  # type: ignore[no-any-return]


@triton.jit
def printing_kernel(accepted, N: tl.constexpr):
    i_row = tl.program_id(0)
    tl.device_print("row", i_row)
    tl.store(accepted + i_row, tl.load(accepted + i_row))


def test_every_case_is_timed_plain_and_checked() -> None:
    from specsim import kernels

    found = entries(getattr(kernels, OP.name))
    ways = [(entry["shape"]["case"], entry["shape"]["way"]) for entry in found]
    assert ways == [(case, way) for case in ("drawn 0", "drawn 1", "large 2") for way in ("plain", "checked")]
    for entry in found:
        theirs, ours = entry["peers"]
        assert (theirs["name"], ours["name"]) == ("Triton's", "lockstep")
        assert ours["ratio"] == pytest.approx(theirs["median"] / ours["median"])
        assert entry["programs"] >= 1
        assert entry["lacks"] == ""


def test_a_function_that_launches_no_triton_kernel_has_no_entry() -> None:
    assert entries(REFERENCE[OP.name]) == []


def test_a_kernel_that_is_left_to_triton_counts_as_equally_fast_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(language.NAMES, "device_print")

    def leaves(**arguments: Any) -> Any:
        printing_kernel[(2,)](torch.zeros(2, dtype=torch.int32), 2)
        return REFERENCE[OP.name](**arguments)

    found = entries(leaves)
    assert {entry["peers"][1]["ratio"] for entry in found} == {1.0}
    told = summary(found)
    assert "left to Triton: 1 of 1 kernels" in told
    assert any(line.startswith(f"left to Triton: {OP.name}, for printing_kernel: ") for line in told)
    assert capsys.readouterr().out  # Triton printed the rows


def test_the_summary_has_means_of_all_cases_and_of_large_grids() -> None:
    def entry(way: str, programs: int, ratio: float) -> dict[str, Any]:
        kind = "drawn" if programs == 1 else "large"
        shape = {"provider": "mine", "kernel": "k", "case": f"{kind} {programs}", "way": way}
        peers = [{"ratio": 1.0, "median": ratio}, {"ratio": ratio, "median": 1.0}]
        return {"shape": shape, "programs": programs, "lacks": "", "compiling_ms": 3.0, "peers": peers}

    told = summary([entry("plain", 1, 2.0), entry("plain", 64, 32.0), entry("checked", 1, 0.5)])
    assert told == [
        "plain, geometric means: all cases 8.0 (2), as `check` draws them 2.0 (1), 64 programs and more 32.0 (1)",
        "plain, least: 2.00 (k, 1 programs)",
        "checked, geometric means: all cases 0.5 (1), as `check` draws them 0.5 (1)",
        "checked, least: 0.50 (k, 1 programs)",
        "compiled once, a kernel: 3.0 ms, on average",
        "left to Triton: none of 1 kernels",
    ]


def test_a_wide_row_is_a_case_of_the_full_benchmark() -> None:
    op = OPS["top_p_renorm_probs"]
    own = Subject(op.name, "kernel", f"kernel:{op.name}", partial(op.call, REFERENCE[op.name]))
    assert all(kind != "wide" for kind, _ in interpreter.cases_of(op, own))
    *_, (kind, case) = interpreter.cases_of(op, own, full=True)
    assert (kind, case.tensors["probs"].shape) == ("wide", (1, 32_000))


def test_target_is_an_option_of_this_benchmark_alone() -> None:
    refused = CliRunner().invoke(app, ["bench", "kernels", "--target", "model"])
    assert isinstance(refused.exception, UsageError)
    assert "--target without interpreter" in str(refused.exception)
