"""Defects are planted into the syntax tree of one function, where its hash says that it is the one that was meant."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from specsim.errors import UsageError
from specsim.lifting.lift import body_hash
from specsim.lifting.planted import EDITS, Planted, defects_in, edited, text_of
from specsim.world.planted import find

SOURCE = """
class Queue:
    def take(self, items, limit):
        self.seen_count.clear()
        count = limit - 1
        if items and len(items) > limit:
            count = 0
        self.count = count
        self.last = self.count
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
        ("drop-call", "clear", 0, "self.seen_count.clear()", "pass"),
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
        ("plus-one", "1", 0, "limit - 1", "limit - 2"),
        ("drop-jump", "return", 0, "return dict(count=count, limit=limit)", "pass"),
        ("wrong-field", "seen_count>count", 0, "self.seen_count.clear", "self.count.clear"),
        ("wrong-field", "count>seen_count", 0, "= self.count", "= self.seen_count"),
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


def test_a_wrong_field_has_a_word_of_its_name_in_common_with_the_right_one() -> None:
    source = "def f(self):\n    return self.seq_lens + self.extend_lens + self.spec_topk + self.a_b + self.a_c\n"
    names = {one.name for one, _line in defects_in("m", source, {2}) if one.edit == "wrong-field"}
    assert names == {"seq_lens>extend_lens", "extend_lens>seq_lens"}


def test_a_jump_to_where_all_goes_anyway_is_no_defect() -> None:
    source = """def f(items):
    for item in items:
        if not item:
            continue
        if item > 3:
            continue
        else:
            with item:
                continue
    if items:
        return
    while items:
        return None
    if items:
        return 3
    else:
        return None
"""
    assert [line for one, line in defects_in("m", source, range(20)) if one.edit == "drop-jump"] == [4, 11, 13, 15]


def test_what_is_read_before_it_is_assigned_changes_places() -> None:
    text = ast.unparse(edited(SOURCE, defect("read-before", "count", 0)))
    assert text.index("self.last = self.count") < text.index("self.count = count")


def test_each_defect_of_a_source_can_be_planted_and_changes_a_function_alone() -> None:
    before = ast.dump(ast.parse(SOURCE))
    found = list(defects_in("queue_of_tests", SOURCE, range(100)))
    assert {one.edit for one, _line in found} == set(EDITS)
    assert len({one.id for one, _line in found}) == len(found)
    for one, line in found:
        assert find(one.id, {}) == [one]
        tree = edited(SOURCE, one)
        compile(tree, "queue", "exec")
        assert ast.dump(tree) != before, one.id
        assert SOURCE.splitlines()[line - 1].strip(), one.id


def test_defects_are_of_the_lines_that_are_asked_for_and_of_what_runs_there() -> None:
    source = (
        "def take(items: list[int] = [1 - 1]) -> int:\n    assert items > 3\n    count: int = 2\n    return count\n"
    )
    found = [(one.id, line) for one, line in defects_in("m", source, range(10))]
    assert found == [
        ("m:take:drop-assignment:count:0", 3),
        ("m:take:drop-jump:return:0", 4),
        ("m:take:read-before:count:0", 3),
    ]
    assert [one.id for one, _line in defects_in("m", source, {4})] == ["m:take:drop-jump:return:0"]


@pytest.mark.parametrize(
    "text", ["m:f:drop-call:x", "m:f:drop-call:x:", "m:f:unknown:x:0", "m:f:drop-call:x:-1", ":::::"]
)
def test_a_defect_that_says_none_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="no defect") as error:
        find(text, {})
    assert "MODULE:FUNCTION:EDIT:NAME:NTH" in error.value.remedy


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
