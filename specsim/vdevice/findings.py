"""What the virtual device reports: two accesses that nothing orders, and the place of each in the user's code."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Literal, NamedTuple

import torch

Kind = Literal["race", "host-read", "pinned-reuse", "use-after-free", "out-of-bounds", "device-assert"]
"""What is wrong with two accesses to one memory.

race            two streams access it, one of them writes, and nothing orders them
host-read       the host reads it while a copy to it may be in flight
pinned-reuse    the host writes pinned memory that a copy in flight reads or writes
use-after-free  it was freed while another stream's use was unordered, and the allocator gave it to the next tensor
out-of-bounds   a Triton kernel left its tensors
device-assert   an operation failed on the device: an index out of range, for example
"""

Frame = tuple[CodeType, int]
"""The code and the instruction of a call; its line is worked out when a finding names it."""

Site = tuple[Frame, ...]
"""The innermost call in the user's code, then its callers."""

CALLERS_MAX = 3

Identity = tuple[str, str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Access:
    """One of the two accesses.

    stream    its stream's name; "host" for the host
    what      the operation, the kernel, or what the host did
    file, line, function  the innermost frame of the user's code
    callers   the frames that called it, "FUNCTION at FILE:LINE", the nearest first
    """

    stream: str
    what: str
    file: str
    line: int
    function: str
    callers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} on {self.stream} in {self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Finding:
    """Two accesses to `memory` in the order in which the program made them. `detail` says which elements, or why."""

    kind: Kind
    memory: str
    first: Access
    second: Access
    detail: str = ""

    @property
    def identity(self) -> Identity:
        """Equal for one defect met twice: without lines, streams and elements."""
        return (
            self.kind,
            self.memory,
            self.first.function,
            self.first.what,
            self.second.function,
            self.second.what,
        )

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.kind} on {self.memory}{detail}: {self.first}, then {self.second}"


class Place(NamedTuple):
    """A site in words."""

    file: str
    line: int
    function: str
    callers: tuple[str, ...]


def place_of(site: Site) -> Place:
    if not site:
        return Place("?", 0, "?", ())
    (code, _), *callers = site
    called = tuple(f"{of.co_qualname} at {of.co_filename}:{_line(of, at)}" for of, at in callers)
    return Place(code.co_filename, _line(*site[0]), code.co_qualname, called)


def _line(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


_LIBRARIES = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
_GENERATED = ("<frozen", "<string>", "<eval")  # but not "<stdin>" or a notebook's cell
_STANDARD = sysconfig.get_paths()["stdlib"]


def is_user_code(filename: str) -> bool:
    """Whether a file is neither PyTorch's, specsim's nor the standard library's."""
    if filename.startswith(_GENERATED) or filename.startswith(_LIBRARIES):
        return False
    return not filename.startswith(_STANDARD) or "site-packages" in filename


class Sites:
    """Finds the place in the user's code that is making a call."""

    def __init__(self, is_site: Callable[[str], bool]) -> None:
        self._is_site = is_site
        self._known: dict[str, bool] = {}

    def here(self) -> Site:
        known, frame, found = self._known, sys._getframe(1), []
        current: object = frame
        while current is not None:
            code = frame.f_code
            name = code.co_filename
            is_site = known.get(name)
            if is_site is None:
                is_site = known[name] = bool(self._is_site(name))
            if is_site:
                found.append((code, frame.f_lasti))
                if len(found) > CALLERS_MAX:
                    break
            if frame.f_back is None:
                break
            current = frame = frame.f_back
        return tuple(found)
