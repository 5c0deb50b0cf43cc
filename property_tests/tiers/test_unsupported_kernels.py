"""A kernel that the interpreter cannot run is not run, and named; one whose programs race leaves one result."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from specsim import cli
from specsim.contracts.provider import MappingProvider
from specsim.contracts.registry import OPS
from specsim.interpreter.lockstep.errors import UnsupportedError
from specsim.tiers.ops.run import PLAIN, Freedoms, Launched, LaunchHere
from specsim.tiers.ops.suite import chooser_of

OP = OPS["fill_bonus_tokens"]

PROVIDER = """
    import torch, triton
    import triton.language as tl
    from specsim.contracts.registry import REFERENCE

    right = REFERENCE["fill_bonus_tokens"]

    @triton.jit
    def with_assembly(p_out):
        if tl.program_id(0) > 7:  # never
            tl.store(p_out, tl.inline_asm_elementwise("", "=r", [], dtype=tl.int64, is_pure=True, pack=1))

    @triton.jit
    def racing(p_out):
        tl.store(p_out, tl.load(p_out) + 1)

    @triton.jit
    def racing_by_undefined_lanes(p_out):
        lanes = tl.arange(0, 4)
        x = tl.load(p_out + lanes, mask=lanes < 2)
        y = tl.load(p_out + lanes, mask=lanes < 2)
        tl.store(p_out + 2 + tl.where(tl.sum(x - y) == 0, tl.program_id(0), 0), tl.program_id(0))

    def launching(kernel):
        def call(predict, accept_index, accept_lens):
            numbers = torch.zeros(4, dtype=torch.int64)
            kernel[(2,)](numbers)
            assert kernel is not racing or numbers[0] == 2
            return right(predict, accept_index, accept_lens)
        return {"fill_bonus_tokens": call}

    p_assembly, p_racing, p_undefined = map(launching, (with_assembly, racing, racing_by_undefined_lanes))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.py").write_text(textwrap.dedent(PROVIDER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def launched(provider: str, freedoms: Freedoms) -> Launched:
    """What a run of a provider's function leaves."""
    (subject,) = MappingProvider("kernels", getattr(importlib.import_module("own"), provider)).subjects()[0]
    return LaunchHere().launch(OP, subject, OP.generate(chooser_of(0, subject, 0)), 0, freedoms)


def test_a_launch_of_what_the_interpreter_lacks_says_what_it_is_and_where() -> None:
    with pytest.raises(UnsupportedError, match=r"tl\.inline_asm_elementwise \(own\.py:11\), which with_assembly uses"):
        launched("p_assembly", PLAIN)


def test_programs_that_race_leave_what_they_do_one_after_the_other() -> None:
    found = launched("p_racing", PLAIN)
    assert "race for element 0 of p_out of two programs of racing" in found.race
    assert found.raised == ""


def test_an_undefined_lane_with_a_value_of_its_own_stays_with_the_others_though_programs_race_then() -> None:
    for freedoms in (PLAIN, Freedoms(lanes=True), Freedoms(lanes=True, apart=True)):
        assert launched("p_undefined", freedoms).undefined


def checked(folder: Path, provider: str, *options: str) -> tuple[dict[str, Any], str]:
    """The verdict of a check, and what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        cli.main(["check", f"own:{provider}", "--only", "ops", "--cases", "3", "--json", "verdict.json", *options])
    return json.loads((folder / "verdict.json").read_text()), out.getvalue()


@pytest.mark.parametrize("options", [(), ("--bulk",)])
def test_what_launches_such_a_kernel_is_not_run_and_says_why(folder: Path, options: tuple[str, ...]) -> None:
    verdict, printed = checked(folder, "p_assembly", *options)
    (suite,) = verdict["suites"]
    assert (verdict["verdict"], verdict["findings"], suite["cases"]) == ("error", [], 0)
    (why,) = [entry["why"] for entry in suite["not_run"] if entry["what"].startswith(OP.name)]
    lacks = "tl.inline_asm_elementwise (own.py:11), which with_assembly uses"
    assert why == f"the lockstep interpreter does not have {lacks}"
    assert why in printed
