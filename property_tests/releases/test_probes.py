"""A probe says that a line was run, and changes nothing that the source does."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.lifting.probes import NAME, probed, statement_lines

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
LINES = range(1, SOURCE.count("\n") + 1)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (([],), {}),
    (([1, -2, 60],), {}),
    (([3],), {"deep": True}),
    (([0],), {}),
]


def results(tree: ast.Module, ran: list[int]) -> list[Any]:
    names: dict[str, Any] = {"__name__": "made", "__builtins__": {**vars(__import__("builtins")), NAME: ran.append}}
    exec(compile(tree, "made.py", "exec", dont_inherit=True), names)
    batch = names["Batch"]()
    return [batch.filter(*arguments, **named) for arguments, named in CALLS]


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
        results(ast.parse(SOURCE), [])
    finally:
        sys.settrace(before)
    return seen


def test_the_lines_that_were_run_are_those_that_python_says() -> None:
    ran: list[int] = []
    results(probed(ast.parse(SOURCE), LINES), ran)
    known = set(statement_lines(SOURCE, LINES))
    assert set(ran) <= known
    assert traced() - set(ran) == set()
    assert known - set(ran) == set()  # the calls reach every statement


@given(st.sets(st.sampled_from(LINES)))
def test_probes_change_nothing_and_tell_of_their_lines_alone(lines: set[int]) -> None:
    ran: list[int] = []
    assert results(probed(ast.parse(SOURCE), lines), ran) == results(ast.parse(SOURCE), [])
    assert set(ran) == set(statement_lines(SOURCE, lines))


@pytest.mark.parametrize("text", ["# nothing", "", '"""A module."""', "TABLE = [1, 2]", "    size = 3"])
def test_a_line_that_no_schedule_runs_is_none(text: str) -> None:
    line = SOURCE.splitlines().index(text) + 1 if text in SOURCE.splitlines() else 23
    assert statement_lines(SOURCE, [line]) == ()


def test_a_source_that_cannot_be_read_has_no_lines() -> None:
    assert statement_lines("def f(:", [1]) == ()


def test_our_own_sources_take_probes() -> None:
    for file in sorted((Path(__file__).parents[2] / "specsim" / "tiers").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        every = statement_lines(text, range(1, text.count("\n") + 2))
        tree = probed(ast.parse(text), every)
        compile(tree, str(file), "exec", dont_inherit=True)
        calls = [
            n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == NAME
        ]
        assert {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)} == set(every)
