"""Fixes that a release can take back: its table is read, and the lines that it names are changed on their way in."""

from __future__ import annotations

from pathlib import Path

import pytest

from property_tests.support.known_releases import NEWEST
from property_tests.support.made_up_sources import MadeUpSource
from specsim.engines.sglang import where
from specsim.engines.sglang.scheduler import reverted as module
from specsim.engines.sglang.scheduler.reverted import reverted
from specsim.engines.target import Release
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree

TARGET = Release("sglang", "made-up")
QUEUES = """
class Queue:
    def take(self, count):
        if count:
            self.count = count
            # says why
            self.taken += 1
        return self.count

    def give(self, count):
        self.count = count
"""
TABLE = '''
FIRST = """
patches:
  - target: sglang.srt.queues.Queue.take
    edits:
      - match: |
          self.count = count
        prepend: |
          if count > 1:
              return None
      - match: |
          self.taken += 1
        append: |
          self.taken += 2
      - match: |
          return self.count
        replacement: ""
  - target: sglang.srt.tables.width
    edits:
      - match: |
          # one more
          return 2
        replacement: |
          return 1
"""
OTHER = """
patches:
  - target: sglang.srt.queues.Queue.take
    edits:
      - match: "self.nothing = count"
        replacement: "pass"
"""
GONE = """
patches:
  - target: sglang.srt.queues.Queue.gone
    edits: []
"""
FIXES: dict = {11: FIRST, 12: OTHER, 13: GONE}
'''
SOURCE = {
    where.FIXES: TABLE,
    "srt/queues.py": QUEUES,
    "srt/tables.py": "def width():\n    # one more\n    return 2\n",
}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> SourceTree:
    made = MadeUpSource(SOURCE)
    monkeypatch.setattr(module, "open_source", lambda _target, _cache: made)
    return made


def test_lines_of_the_named_functions_alone_are_changed(source: SourceTree) -> None:
    edit = reverted(TARGET, Cache(Path("none")), 11)
    assert edit("sglang.srt.tables", source.read("srt/tables.py")) == "def width():\n    return 1\n"
    assert edit("sglang.srt.others", "x = 1\n") == "x = 1\n"
    assert edit("sglang.srt.queues", QUEUES) == QUEUES.replace(
        """            self.count = count
            # says why
            self.taken += 1
        return self.count
""",
        """            if count > 1:
                return None
            self.count = count
            # says why
            self.taken += 1
            self.taken += 2
""",
    )


@pytest.mark.parametrize(
    ("number", "said", "remedy"),
    [
        (12, "lines that its table names are in Queue.take 0 times", "SGLang itself cannot"),
        (13, "there is no Queue.gone", "another release"),
        (14, "PR14", "PR11, PR12, PR13"),
    ],
)
def test_what_cannot_be_taken_back_is_refused(source: SourceTree, number: int, said: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        reverted(TARGET, Cache(Path("none")), number)
    assert remedy in error.value.remedy, error.value.remedy


def test_a_release_without_a_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUpSource({"srt/queues.py": QUEUES})
    monkeypatch.setattr(module, "open_source", lambda _target, _cache: made)
    with pytest.raises(UsageError, match="no table of fixes"):
        reverted(TARGET, Cache(Path("none")), 11)


# Releases

TAKEN_BACK = (25015, 26329, 26972, 27360)
"""What the newest release can take back."""
OF_OTHER_LINES = (27338, 27460)
"""What its table has, and names lines for that its functions do not have."""


@pytest.mark.release(NEWEST)
@pytest.mark.parametrize("number", TAKEN_BACK)
def test_a_fix_that_a_release_can_take_back_is_taken_back(number: int, wheel_cache: Cache) -> None:
    edit = reverted(Release("sglang", NEWEST), wheel_cache, number)
    assert edit("sglang.srt.others", "x = 1\n") == "x = 1\n"


@pytest.mark.release(NEWEST)
@pytest.mark.parametrize("number", OF_OTHER_LINES)
def test_a_fix_that_a_release_cannot_take_back_any_more_is_refused(number: int, wheel_cache: Cache) -> None:
    with pytest.raises(UsageError, match="cannot be taken back"):
        reverted(Release("sglang", NEWEST), wheel_cache, number)
