"""What a lifted function is given in place of the rest of its release.

A name that was not thought of is harmless until it is used, and then says so: a release that came to use it is not run
instead of tested wrongly.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

# Modules of the standard library that releases use in these functions.
_STANDARD = {module.__name__: module for module in (abc, copy, dataclasses, math, weakref)}


class UnknownNameError(Exception):
    """A lifted function uses a name of its release that has no stub."""


class Needed(Mapping[str, Any]):
    """The names that a lift is given: `given`, what the file itself defines for those of `lifted`, and for every other
    one a value that cannot be used.
    """

    def __init__(self, given: Mapping[str, Any], lifted: frozenset[str] = frozenset()) -> None:
        self._given = {**_STANDARD, **given}
        self._lifted = lifted

    def __contains__(self, name: object) -> bool:
        return name not in self._lifted

    def __getitem__(self, name: str) -> Any:
        return self._given[name] if name in self._given else _Unknown(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


class _Unknown:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise UnknownNameError(f"it uses {self._name}.{attribute}, which has no stub")

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        raise UnknownNameError(f"it calls {self._name}, which has no stub")

    def __bool__(self) -> bool:
        raise UnknownNameError(f"it asks for {self._name}, which has no stub")


class Fields:
    """An object of the release with the fields given; any other field is None. It can be referred to weakly."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


class SwitchedOff:
    """A configuration in which every switch is off: false, and so is each part of it."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, *_arguments: Any, **_named: Any) -> SwitchedOff:
        return self

    def __getattr__(self, name: str) -> SwitchedOff:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


OFF = SwitchedOff()


def nothing(*_arguments: Any, **_named: Any) -> None:
    """A call that has no effect on what is tested."""


class SilentLogger:
    """Warnings of the release are not specsim's output."""

    warning = warning_once = info = debug = error = staticmethod(nothing)
