"""The table of tests that every run need not repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from property_tests.support.deep import DEEP, is_left_out


@pytest.mark.parametrize("name", DEEP)
def test_what_the_table_names_is_there(name: str) -> None:
    file, function = name.split("::")
    assert f"def {function}(" in next(Path(__file__).parents[1].rglob(file)).read_text()


def test_one_in_so_many_runs_and_what_is_not_named_always() -> None:
    name = next(name for name, every in DEEP.items() if every == 3)
    seen: dict[str, int] = {}
    assert [is_left_out(f"property_tests/{name}[{i}]", seen) for i in range(5)] == [False, True, True, False, True]
    assert is_left_out(f"property_tests/{next(name for name, every in DEEP.items() if not every)}", seen)
    assert not is_left_out(
        "property_tests/selfcheck/test_deep.py::test_one_in_so_many_runs_and_what_is_not_named_always", seen
    )
