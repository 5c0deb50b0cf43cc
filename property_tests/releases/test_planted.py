"""Defects are planted into the syntax tree of one function, where its hash says that it is the one that was meant."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from specsim.errors import UsageError
from specsim.lifting.lift import body_hash
from specsim.lifting.planted import Planted, edited, text_of

SOURCE = """
class Queue:
    def take(self, items, limit):
        self.seen.clear()
        count = limit - 1
        if items and len(items) > limit:
            count = 0
        self.count = count
        return dict(count=count, limit=limit)
"""
HASH = body_hash(ast.parse(SOURCE).body[0].body[0])  # type: ignore[attr-defined]


def defect(
    edit: str, name: str, nth: int = 0, *, module: str = "queue_of_tests", hashes: tuple[str, ...] = ()
) -> Planted:
    return Planted(id="P", title="", module=module, function="Queue.take", hashes=hashes, edit=edit, name=name, nth=nth)


@pytest.mark.parametrize(
    ("edit", "name", "nth", "gone", "there"),
    [
        ("drop-call", "clear", 0, "self.seen.clear()", "pass"),
        ("drop-assignment", "count", 2, "self.count = count", "pass"),
        ("empty", "count", 0, "count = limit - 1", "count = None"),
        ("never", "limit", 0, "if items", "if False"),
        ("always", "items", 0, "if items", "if True"),
        ("negate", "items", 0, "if items and", "if not (items and"),
        ("drop-operand", "limit", 0, "items and", "items and items"),
        ("shift-comparison", "limit", 0, "> limit", ">= limit"),
        ("plus-one", "limit", 0, "= limit - 1", "= limit + 1 - 1"),
        ("minus-one", "limit", 1, "> limit", "> limit - 1"),
        ("swap-operands", "limit", 0, "limit - 1", "1 - limit"),
        ("drop-keyword", "limit", 0, "limit=limit", "dict(count=count)"),
    ],
)
def test_an_edit_changes_its_place_alone(edit: str, name: str, nth: int, gone: str, there: str) -> None:
    text = ast.unparse(edited(SOURCE, defect(edit, name, nth)))
    before = ast.unparse(ast.parse(SOURCE))
    assert gone in before
    assert there in text
    changed = [pair for pair in zip(before.splitlines(), text.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 1


@pytest.mark.parametrize(
    ("edit", "name", "nth"), [("drop-call", "nothing", 0), ("drop-call", "clear", 1), ("unknown", "clear", 0)]
)
def test_an_edit_without_a_place_is_refused(edit: str, name: str, nth: int) -> None:
    with pytest.raises(UsageError, match="P"):
        edited(SOURCE, defect(edit, name, nth))


def test_a_function_of_another_hash_is_refused() -> None:
    assert edited(SOURCE, defect("drop-call", "clear", hashes=(HASH,)))
    with pytest.raises(UsageError, match=r"another Queue\.take"):
        edited(SOURCE, defect("drop-call", "clear", hashes=("0" * 16,)))


def test_a_function_that_was_changed_stands_where_it_stood() -> None:
    """For what reads its source by its line; of the others each line is as it was."""
    first = "\n@decorated\ndef first(x):\n    # says why\n    y = x - 1\n\n    return y\n"
    source = f"import os\n{first}\n\ndef other(x): return x  # one line\n"
    text = text_of(source, edited(source, replace(defect("plus-one", "x"), function="first")))
    lines = text.splitlines()
    assert lines[2:6] == ["@decorated", "def first(x):", "    y = x + 1 - 1", "    return y"]
    assert len(lines) == len(source.splitlines())
    assert (lines[0], lines[-1]) == (source.splitlines()[0], source.splitlines()[-1])
    assert text_of(source, ast.parse(source)) == source
