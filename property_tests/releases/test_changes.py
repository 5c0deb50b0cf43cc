"""What a change touched: the lines, and the functions around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.lifting.changes import Changes, Function
from specsim.lifting.source import SourceTree

FILE = "srt/a.py"
BEFORE = """\
class Batch:
    def filter(self, keep):
        rows = self.rows[keep]
        self.rows = rows
        self.mirror = rows.cpu()

    @property
    def size(self):
        def inner():
            return len(self.rows)
        return inner()
"""


class Text(SourceTree):
    """A tree of one file."""

    package, label, version = "sglang", "a tree", None

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, path: str) -> str:
        if path != FILE:
            raise FileNotFoundError
        return self.text

    def exists(self, path: str) -> bool:
        return path == FILE

    def paths(self, under: str) -> list[str]:
        return [FILE]


def changes(after: str) -> Changes:
    return Changes(Text(BEFORE), Text(after))


@pytest.mark.parametrize(
    ("old", "new", "touched"),
    [
        ("rows.cpu()", "rows", ("Batch.filter srt/a.py:5",)),
        ("        self.mirror = rows.cpu()\n", "", ("Batch.filter srt/a.py:4",)),
        ("        rows = self.rows[keep]\n", "", ("Batch.filter srt/a.py:2",)),
        ("return len(self.rows)", "return 0", ("Batch.size.<locals>.inner srt/a.py:10",)),
        ("@property", "@cached_property", ("Batch.size srt/a.py:7",)),
        ("self.rows", "self.rows_", ("Batch.filter srt/a.py:3", "Batch.size.<locals>.inner srt/a.py:10")),
        ("class Batch:", "class Batch(Base):", ()),
        ("", "", ()),
    ],
)
def test_a_change_is_of_the_smallest_functions_around_its_lines(old: str, new: str, touched: tuple[str, ...]) -> None:
    changed = changes(BEFORE.replace(old, new))
    functions = [
        Function("Batch.filter", FILE, 2, 5),
        Function("Batch.size", FILE, 7, 11),
        Function("Batch.size.<locals>.inner", FILE, 9, 10),
    ]
    assert changed.of(functions) == touched
    assert changed.of([Function("other", "srt/b.py", 1, 99)]) == ()


def test_a_method_without_its_class_is_named_with_it() -> None:
    changed = changes(BEFORE.replace("rows.cpu()", "rows"))
    assert changed.of([Function("filter", FILE, 2, 5)]) == ("Batch.filter srt/a.py:5",)
    assert changed.of([Function("other", FILE, 2, 5)]) == ("other srt/a.py:5",)


def test_the_functions_around_a_line_that_is_blamed_are_looked_at_alone() -> None:
    changed = changes(BEFORE.replace("rows.cpu()", "rows").replace("return inner()", "return 0"))
    assert changed.around("srt/a.py:2") == ("Batch.filter srt/a.py:5",)
    assert changed.around("srt/a.py:8") == ("Batch.size srt/a.py:11",)
    assert [changed.around(where) for where in ("srt/a.py:1", "srt/a.py:99", "srt/b.py:1", "", "srt/a.py")] == [()] * 5


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), max_size=9))
def test_the_lines_are_those_of_a_diff(old: list[str], new: list[str]) -> None:
    lines = Changes(Text("\n".join(old)), Text("\n".join(new))).lines(FILE)
    assert list(lines) == sorted(lines)
    assert (lines == ()) == (old == new)
    assert all(1 <= line <= max(1, len(new)) for line in lines)
    unchanged = [text for number, text in enumerate(new, 1) if number not in lines]
    kept = iter(old)
    assert all(text in kept for text in unchanged)  # what is left stands in the old text, in this order


def test_a_file_that_only_one_side_has_is_all_changed() -> None:
    whole, none = Text("def f():\n    return 1\n"), Text("")
    assert Changes(none, whole).around(f"{FILE}:2") == ("f srt/a.py:1",)
    assert Changes(whole, none).around(f"{FILE}:2") == ()
