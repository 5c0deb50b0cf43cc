"""Lifting takes what a function needs and nothing else, and says what it could not take."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from property_tests.support.made_up_sources import MadeUpSource, cache_in
from specsim.errors import UsageError
from specsim.lifting.lift import DriftError, Lifter

SOURCE = {
    "srt/ops.py": '''
        """Made up."""
        from __future__ import annotations

        import flashinfer
        import torch
        import triton
        import triton.language as tl

        from sglang.srt.tables import WIDTH, double
        from sglang.srt.probes import is_cuda
        from torch.of_another_machine import fast

        _ON_CUDA = is_cuda()
        print("importing the release")


        def shift(x):
            # a comment
            return x + STEP


        STEP: int = 3


        def widen(x):
            return double(x) * WIDTH if _ON_CUDA else None


        def needs_flashinfer(x):
            return flashinfer.run(x)


        def needs_another_torch(x):
            return fast(x)


        class Step:
            @classmethod
            def by(cls, x):
                return cls, x + STEP


        def needs_nothing_known(x):
            return undefined_name(x)


        @triton.jit
        def add_one_kernel(x_ptr, n: tl.constexpr):
            offset = tl.arange(0, n)
            tl.store(x_ptr + offset, tl.load(x_ptr + offset) + 1)


        def add_one(x: SomeTypeThatIsNotThere) -> AnotherOne:
            add_one_kernel[(1,)](x, x.numel())
            return x
    ''',
    "srt/tables.py": """
        WIDTH = 7


        def double(x):
            return 2 * x
    """,
}


@pytest.fixture
def lifter(tmp_path: Path) -> Lifter:
    return Lifter(MadeUpSource(SOURCE), cache_in(tmp_path), {"is_cuda": lambda: True})


def test_a_function_is_lifted_with_the_names_it_uses_and_the_module_is_not_imported(
    lifter: Lifter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lifter.lift("srt/ops.py", "shift").value(4) == 7
    assert capsys.readouterr().out == ""


def test_names_of_the_package_are_followed_and_shims_win(lifter: Lifter) -> None:
    assert lifter.lift("srt/ops.py", "widen").value(1) == 14


def test_a_method_of_a_class_is_lifted_with_its_class(lifter: Lifter) -> None:
    lifted = lifter.lift("srt/ops.py", "Step.by")
    owner, result = lifted.value(4)
    assert (owner.__name__, result, lifted.parameters) == ("Step", 7, ("cls", "x"))


def test_line_numbers_are_those_of_the_source(lifter: Lifter) -> None:
    lifted = lifter.lift("srt/ops.py", "shift")
    line = MadeUpSource(SOURCE).read("srt/ops.py").splitlines().index("def shift(x):") + 1
    assert lifted.where == f"srt/ops.py:{line}"
    assert lifted.value.__code__.co_firstlineno == line
    assert "return x + STEP" in inspect.getsource(lifted.value)


def test_a_kernel_runs_and_its_unknown_annotations_do_not_matter(lifter: Lifter) -> None:
    lifted = lifter.lift("srt/ops.py", "add_one")
    on = "cuda" if torch.cuda.is_available() else "cpu"
    assert lifted.value(torch.zeros(4, device=on)).tolist() == [1.0] * 4
    assert lifted.parameters == ("x",)


def test_the_hash_sees_code_and_neither_comments_nor_position(lifter: Lifter, tmp_path: Path) -> None:
    commented = {
        **SOURCE,
        "srt/ops.py": SOURCE["srt/ops.py"].replace("# a comment", "# another\n\n\n            # one"),
    }
    changed = {**SOURCE, "srt/ops.py": SOURCE["srt/ops.py"].replace("x + STEP", "x - STEP")}
    original = lifter.lift("srt/ops.py", "shift").body_hash
    assert (
        Lifter(MadeUpSource(commented), cache_in(tmp_path), {"is_cuda": bool}).lift("srt/ops.py", "shift").body_hash
        == original
    )
    assert (
        Lifter(MadeUpSource(changed), cache_in(tmp_path), {"is_cuda": bool}).lift("srt/ops.py", "shift").body_hash
        != original
    )


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("srt/ops.py", "absent", "not found: absent in srt/ops.py"),
        ("srt/absent.py", "shift", "not found: srt/absent.py"),
        ("srt/ops.py", "needs_flashinfer", "needs flashinfer, which specsim does not import"),
        ("srt/ops.py", "needs_another_torch", "srt/ops.py needs torch.of_another_machine: No module named"),
        ("srt/ops.py", "needs_nothing_known", "not found: undefined_name in srt/ops.py"),
    ],
)
def test_what_cannot_be_lifted_is_named(lifter: Lifter, path: str, name: str, message: str) -> None:
    with pytest.raises(DriftError, match=message.replace("(", r"\(")):
        lifter.lift(path, name)


@pytest.mark.parametrize(
    ("text", "place"), [("def f(:\n", r"srt/ops\.py:1 is not Python"), ("(" * 100_000, r"srt/ops\.py"), ("\0", "null")]
)
def test_source_that_is_not_python_cannot_be_checked(tmp_path: Path, text: str, place: str) -> None:
    lifter = Lifter(MadeUpSource({"srt/ops.py": text}), cache_in(tmp_path), {})
    with pytest.raises(UsageError, match=place):
        lifter.lift("srt/ops.py", "f")
