"""Which lines of a lifted function ran, and a single value of a function as a function of its own."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from property_tests.support.made_up_sources import MadeUpSource, cache_in
from specsim.lifting.function_lines import lines_of
from specsim.lifting.lift import DriftError, Lifter

SOURCE = {
    "srt/host.py": '''
        def sign(x):
            """Which side of zero."""
            if x > 0:
                side = 1
            elif x < 0:
                side = -1
            else:
                side = 0
            for _ in range(0):
                side = None
            return side


        class Runner:
            def make_pools(self, size):
                spare = 4
                if self.tokens is not None:
                    spare += self.tokens
                self.pool = make(size + spare)
                self.other = unknown.of(size)
    '''
}
PATH = "srt/host.py"


@pytest.fixture
def lifter(tmp_path: Path) -> Lifter:
    return Lifter(MadeUpSource(SOURCE), cache_in(tmp_path), {})


@pytest.mark.parametrize(
    ("x", "side", "run"), [(2, 1, {4, 5, 10, 12}), (-2, -1, {4, 6, 7, 10, 12}), (0, 0, {4, 6, 9, 10, 12})]
)
def test_the_lines_that_run_are_counted_and_nothing_else_changes(
    lifter: Lifter, x: int, side: int, run: set[int]
) -> None:
    lifted = lifter.lift_method(PATH, "sign", {})
    assert lifted.value(x) == side
    assert lifter.lines_run[PATH] == run
    assert lifted.value.__code__.co_firstlineno == 2


def test_a_docstring_is_no_line_and_every_statement_is(lifter: Lifter) -> None:
    function = ast.parse(textwrap.dedent(SOURCE[PATH])).body[0]
    assert lines_of(function) == {4, 5, 6, 7, 9, 10, 11, 12}


class Options:
    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens


def test_the_statements_of_a_local_variable_are_a_function(lifter: Lifter) -> None:
    lifted = lifter.lift_local(PATH, "Runner.make_pools", "spare", {})
    assert [lifted.value(Options(tokens), 1) for tokens in (None, 3)] == [4, 7]
    assert lifted.where == "srt/host.py:17"


def test_a_variable_that_is_not_there_is_drift(lifter: Lifter) -> None:
    with pytest.raises(DriftError, match=r"not found: width of Runner\.make_pools"):
        lifter.lift_local(PATH, "Runner.make_pools", "width", {})
