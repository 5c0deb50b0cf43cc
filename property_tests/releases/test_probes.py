"""A probe says that a line was run, and changes nothing that the source does."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from specsim.lifting.probes import NAME, probed, statement_at, statement_lines, unprobed

SOURCE = '''
"""A module."""
from __future__ import annotations
import contextlib

TABLE = [1, 2]


class Batch:
    size = 3

    def filter(self, keep, *, deep=False):
        """Docstring."""
        total = (
            self.size
            + len(keep)
        )
        if deep and keep:
            total += 1
        elif keep:
            total += 2
        else:
            # nothing
            total = 0
        for item in keep:
            if item < 0:
                continue
            with contextlib.nullcontext():
                total += item
        while total > 50:
            total -= 7
        try:
            total = TABLE[total]
        except (IndexError,
                KeyError):
            total += 1
        finally:
            self.size = total

        @contextlib.contextmanager
        def inner(
            value,
        ):
            yield value * 2

        match total:
            case 1:
                total = -1
            case int() if total > 3:
                total += 4
        with inner(total) as twice: total = twice
        return [n + total for n in keep] or (lambda: total)()
'''
COMMENT = "            # nothing"
LINES = range(1, SOURCE.count("\n") + 1)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (([],), {}),
    (([1, -2, 60],), {}),
    (([3],), {"deep": True}),
    (([0],), {}),
]


def results(code: CodeType, ran: list[int]) -> list[Any]:
    names: dict[str, Any] = {"__name__": "made", "__builtins__": {**vars(__import__("builtins")), NAME: ran}}
    exec(code, names)
    batch = names["Batch"]()
    assert batch.filter.__doc__ == "Docstring."
    return [batch.filter(*arguments, **named) for arguments, named in CALLS]


def unchanged() -> CodeType:
    return compile(SOURCE, "made.py", "exec", dont_inherit=True)


def traced() -> set[int]:
    """The lines that Python says were run, of functions."""
    seen: set[int] = set()

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename == "made.py" and frame.f_code.co_name not in ("<module>", "Batch"):
            seen.update({frame.f_lineno} if event == "line" else set())
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        results(unchanged(), [])
    finally:
        sys.settrace(before)
    return seen


def test_the_statements_that_were_run_are_those_that_python_says_and_do_the_same() -> None:
    ran = [0] * (SOURCE.count("\n") + 1)
    code, spans = probed(SOURCE, "made.py")
    assert results(code, ran) == results(unchanged(), [])
    assert {line for line, is_run in enumerate(ran) if is_run} == {
        first for first, _last in spans
    }  # the calls reach all
    assert {statement_at(spans, line) for line in traced()} <= {first for first, _last in spans}
    assert set(statement_lines(SOURCE, LINES)) == {
        line
        for line in LINES
        if statement_at(spans, line) is not None and line != SOURCE.splitlines().index(COMMENT) + 1
    }


def test_a_branch_that_is_not_taken_is_not_run() -> None:
    source = "def f(is_so):\n    if is_so:\n        return 1\n    return (\n        2\n    )\n"
    code, spans = probed(source, "made.py")
    assert spans == ((1, 1), (2, 2), (3, 3), (4, 6))
    for is_so, lines in ((True, [1, 2, 3]), (False, [1, 2, 4])):
        ran = [0] * 7
        names: dict[str, Any] = {"__builtins__": {NAME: ran}}
        exec(code, names)
        assert ran == [0] * 7
        names["f"](is_so)
        assert [line for line, is_run in enumerate(ran) if is_run] == lines
    assert [statement_at(spans, line) for line in (0, 1, 5, 6, 7)] == [None, 1, 4, 4, None]


@pytest.mark.parametrize("decorator", ["triton.jit", "jit", "triton.jit(do_not_specialize=['n'])"])
def test_a_kernel_has_no_statements(decorator: str) -> None:
    assert probed(f"@{decorator}\ndef kernel(x, n):\n    return x\n", "made.py").spans == ()


def test_what_was_made_is_kept_for_a_file_until_its_source_is_another(tmp_path: Path) -> None:
    made = [probed(source, "made.py", tmp_path) for source in (SOURCE, SOURCE, "def f():\n    return 1\n")]
    assert made[0] == made[1]
    assert made[2].spans == ((1, 1), (2, 2))
    (file,) = tmp_path.iterdir()
    for content in (b"", b"damaged", file.read_bytes()[:-9]):
        file.write_bytes(content)
        assert probed(SOURCE, "made.py", tmp_path) == made[0]
    assert probed(SOURCE, "made.py", tmp_path / "none" / "there") == made[0]
    assert probed(ast.parse(SOURCE), "made.py", tmp_path).spans == made[0].spans


def test_code_without_probes_is_kept_beside_that_with_them_and_runs_as_the_source_does(tmp_path: Path) -> None:
    assert not probed("value = 1\n", "made.py", tmp_path).spans
    for source in (b"value = 2\n", b"value = 2\n", b"# -*- coding: latin-1 -*-\nvalue = '\xe9'\n", b"value = 3\n"):
        ran: dict[str, Any] = {}
        wanted: dict[str, Any] = {}
        exec(unprobed(source, "made.py", tmp_path), ran)
        exec(compile(source, "made.py", "exec"), wanted)
        assert ran["value"] == wanted["value"]
    assert len(list(tmp_path.iterdir())) == 2
    assert unprobed(b"value = 4\n", "made.py").co_filename == "made.py"
    for kept in (None, tmp_path):
        with pytest.raises(SyntaxError):
            unprobed(b"value =", "made.py", kept)


@pytest.mark.parametrize("text", ["# nothing", "", '"""A module."""', "TABLE = [1, 2]", "    size = 3"])
def test_a_line_that_no_schedule_runs_is_none(text: str) -> None:
    line = SOURCE.splitlines().index(text) + 1 if text in SOURCE.splitlines() else 23
    assert statement_lines(SOURCE, [line]) == ()


def test_a_source_that_cannot_be_read_has_no_lines() -> None:
    assert statement_lines("def f(:", [1]) == ()


def test_our_own_sources_take_probes() -> None:
    for file in sorted((Path(__file__).parents[2] / "specsim" / "tiers").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        spans = probed(text, str(file)).spans
        every = statement_lines(text, range(1, text.count("\n") + 2))
        assert {statement_at(spans, line) for line in every} == {first for first, _last in spans}
