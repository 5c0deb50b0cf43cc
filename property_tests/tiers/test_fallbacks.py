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
from specsim.tiers.ops.run import PLAIN, LaunchHere
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
    def with_block_pointers(p_out):
        block = tl.make_block_ptr(p_out, (1,), (1,), (0,), (1,), (0,))
        tl.store(block, tl.load(block))

    @triton.jit
    def racing(p_out):
        tl.store(p_out, tl.load(p_out) + 1)

    @triton.jit
    def raising(p_out):
        tl.static_assert(False, "never launched so")

    def launching(kernel):
        def call(predict, accept_index, accept_lens):
            kernel[(2,)](torch.zeros(1, dtype=torch.int64))
            return right(predict, accept_index, accept_lens)
        return {"fill_bonus_tokens": call}

    p_lockstep, p_blocks, p_racing, p_raising = map(launching, (in_lockstep, with_block_pointers, racing, raising))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fallbacks.py").write_text(textwrap.dedent(PROVIDER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("provider", "fallback"),
    [
        ("p_lockstep", None),
        ("p_blocks", ("with_block_pointers", "unsupported", ("tl.make_block_ptr",))),
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


def checked(folder: Path, provider: str) -> tuple[list[dict[str, Any]], str]:
    """The fallbacks in the JSON of a check, and what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        cli.main(["check", f"fallbacks:{provider}", "--only", "ops", "--cases", "3", "--json", "verdict.json"])
    (suite,) = json.loads((folder / "verdict.json").read_text())["suites"]
    return suite["fallbacks"], out.getvalue()


def test_a_verdict_names_the_kernels_that_lockstep_lacks_and_what_it_lacks(folder: Path) -> None:
    ((fallback,), printed) = checked(folder, "p_blocks")
    assert fallback.pop("calls") >= 3  # a case is a few
    assert fallback == {
        "op": "fill_bonus_tokens",
        "subject": "kernel:fill_bonus_tokens",
        "kernel": "with_block_pointers",
        "why": "unsupported",
        "names": ["tl.make_block_ptr"],
    }
    line = "1 kernel in Triton's interpreter, not in lockstep, which lacks tl.make_block_ptr: with_block_pointers"
    assert f"fallback   {line}\n" in printed


def test_a_verdict_of_kernels_in_lockstep_has_no_fallback(folder: Path) -> None:
    fallbacks, printed = checked(folder, "p_lockstep")
    assert (fallbacks, "fallback   " in printed) == ([], False)
