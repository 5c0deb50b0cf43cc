"""The functions of a target that were run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

from specsim.lifting.changes import Function


@contextmanager
def noting(codes: dict[int, CodeType]) -> Iterator[None]:
    """Note each function that is called in here, by the address of its code, which all of them keep alive."""

    def note(frame: FrameType, event: str, _of: object) -> None:
        if event == "call":
            codes[id(frame.f_code)] = frame.f_code

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def functions_of(codes: Iterable[CodeType], file_of: Callable[[str], str]) -> tuple[Function, ...]:
    """The functions of a target among those that were noted, sorted. `file_of` takes the name of a code's file to that
    of the target, relative to its package, "" for one that is not the target's.
    """
    found = {
        Function(
            code.co_qualname,
            file_of(code.co_filename),
            code.co_firstlineno,
            max(line or 0 for _, _, line in code.co_lines()),
        )
        for code in codes
        if not code.co_name.startswith("<")  # a comprehension is of the function around it
    }
    return tuple(sorted((one for one in found if one.file), key=lambda one: (one.file, one.first, one.name)))
