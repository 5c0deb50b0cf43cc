"""What ran in Triton's interpreter and not in lockstep is in the verdict, by kernel and reason."""

from __future__ import annotations

import contextlib
import io
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from specsim import cli
from specsim.contracts.provider import MappingProvider
from specsim.contracts.registry import OPS
from specsim.tiers.ops.run import PLAIN, Freedoms, LaunchHere
from specsim.tiers.ops.suite import chooser_of
from specsim.verdict import Fallback

OP = OPS["fill_bonus_tokens"]

PROVIDER = """
    import torch, triton
    import triton.language as tl
    from specsim.contracts.registry import REFERENCE

    right = REFERENCE["fill_bonus_tokens"]

    @triton.jit
    def in_lockstep(p_out):
        tl.store(p_out, 1)

    @triton.jit
    def with_assembly(p_out):
        if tl.program_id(0) > 7:  # never, and Triton's interpreter has none
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

    @triton.jit
    def raising(p_out):
        tl.static_assert(False, "never launched so")

    def launching(kernel):
        def call(predict, accept_index, accept_lens):
            kernel[(2,)](torch.zeros(4, dtype=torch.int64))
            return right(predict, accept_index, accept_lens)
        return {"fill_bonus_tokens": call}

    p_lockstep, p_assembly, p_racing, p_raising = map(launching, (in_lockstep, with_assembly, racing, raising))
    p_undefined = launching(racing_by_undefined_lanes)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fallbacks.py").write_text(textwrap.dedent(PROVIDER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.parametrize(
    ("provider", "fallback"),
    [
        ("p_lockstep", None),
        ("p_assembly", ("with_assembly", "unsupported", ("tl.inline_asm_elementwise",))),
        ("p_racing", ("racing", "race", ())),
        ("p_raising", None),
    ],
)
def test_a_launch_says_why_it_was_left_to_tritons_interpreter(
    provider: str, fallback: tuple[str, Any, tuple[str, ...]] | None
) -> None:
    import importlib

    mapping = getattr(importlib.import_module("fallbacks"), provider)
    (subject,) = MappingProvider("fallbacks", mapping).subjects()[0]
    launched = LaunchHere().launch(OP, subject, OP.generate(chooser_of(0, subject, 0)), 0, PLAIN)
    assert launched.fallback == (fallback and Fallback(OP.name, subject.name, *fallback))


def test_an_undefined_lane_with_a_value_of_its_own_stays_in_lockstep_though_programs_race_then() -> None:
    """In Triton's interpreter all such lanes hold the same, and what they do would be lost."""
    import importlib

    mapping = importlib.import_module("fallbacks").p_undefined
    (subject,) = MappingProvider("fallbacks", mapping).subjects()[0]
    case = OP.generate(chooser_of(0, subject, 0))
    for freedoms in (PLAIN, Freedoms(lanes=True), Freedoms(lanes=True, apart=True)):
        launched = LaunchHere().launch(OP, subject, case, 0, freedoms)
        assert launched.fallback is None
        assert launched.undefined


def checked(folder: Path, provider: str) -> tuple[list[dict[str, Any]], str]:
    """The fallbacks in the JSON of a check, and what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        cli.main(["check", f"fallbacks:{provider}", "--only", "ops", "--cases", "3", "-v", "--json", "verdict.json"])
    (suite,) = json.loads((folder / "verdict.json").read_text())["suites"]
    return suite["fallbacks"], out.getvalue()


def test_a_verdict_names_the_kernels_that_lockstep_lacks_and_what_it_lacks(folder: Path) -> None:
    ((fallback,), printed) = checked(folder, "p_assembly")
    assert fallback.pop("calls") >= 3  # a case is a few
    assert fallback == {
        "op": "fill_bonus_tokens",
        "subject": "kernel:fill_bonus_tokens",
        "kernel": "with_assembly",
        "why": "unsupported",
        "names": ["tl.inline_asm_elementwise"],
    }
    line = "1 kernel in Triton's interpreter, not in lockstep, which lacks tl.inline_asm_elementwise: with_assembly"
    assert f"fallback   {line}\n" in printed


def test_a_verdict_of_kernels_in_lockstep_has_no_fallback(folder: Path) -> None:
    fallbacks, printed = checked(folder, "p_lockstep")
    assert (fallbacks, "fallback   " in printed) == ([], False)
