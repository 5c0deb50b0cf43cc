"""`id()` and the default `hash()` of a release's objects: numbers in the order in which they are first asked for.

Both are addresses, which differ from process to process, and with them the order of a set of nodes or the tie that a
dictionary by `id` decides. A release that sorts, evicts or frees in such an order would give another schedule each
time. Where the program is the same, so is the order of these numbers.

What the interpreter itself hashes by address stays so: functions, classes and None (before Python 3.12).
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import types
import weakref
from collections.abc import Callable
from typing import Any

from specsim.world.clock import overridden

MODULUS = 2**61 - 1
"""Of Python's own hashes of numbers."""
MULTIPLIER = 0x9E3779B97F4A7C15
"""Spreads the numbers (Knuth, The Art of Computer Programming 6.4), so that sets of objects are not in their order by
chance alone: code that needs an order shows that it has none.
"""

_BY_ADDRESS: Any = object.__hash__


class Numbers:
    """A number for each object of a process, while it lives."""

    def __init__(self) -> None:
        self._by_address: dict[int, int] = {}
        self._kept: dict[int, Any] = {}
        self._next = 0

        def by_number(value: object) -> int:
            return self.of(value) * MULTIPLIER % MODULUS

        self._hash = by_number

    def of(self, value: object) -> int:
        """The number of an object: the next one where it has none."""
        address = builtins.id(value)
        number = self._by_address.get(address)
        if number is None:
            self._next += 1
            number = self._by_address[address] = self._next
            self._hold(value, address)
        return number

    def _hold(self, value: object, address: int) -> None:
        """See to it that no other object gets this number with the address."""
        try:
            self._kept[address] = weakref.ref(value, lambda _gone: self._forget(address))
        except TypeError:  # it takes no weak reference: keep it
            self._kept[address] = value

    def _forget(self, address: int) -> None:
        self._by_address.pop(address, None)
        self._kept.pop(address, None)

    def names(self) -> dict[str, Any]:
        """What the modules of a release get as builtins."""
        return {"id": self.of, "__build_class__": self._build_class}

    def modules(self) -> dict[str, types.ModuleType]:
        """What the modules of a release get in place of real modules."""
        return {"dataclasses": overridden(dataclasses, dataclass=self._dataclass)}

    def _build_class(self, body: Callable[..., Any], name: str, *bases: Any, **named: Any) -> Any:
        built = builtins.__build_class__(body, name, *bases, **named)
        return self._hashed(built) if isinstance(built, type) and not issubclass(built, type) else built

    def _dataclass(self, built: Any = None, /, **options: Any) -> Any:
        """A data class says by its options how it is hashed, unless it has a hash of its own: it has none yet."""
        if built is None:
            return lambda later: self._dataclass(later, **options)
        if vars(built).get("__hash__") is self._hash:
            type.__delattr__(built, "__hash__")
        return self._hashed(dataclasses.dataclass(built, **options))

    def _hashed(self, built: type) -> type:
        """The class; its objects are hashed by their numbers where they would be by address."""
        if built.__hash__ is _BY_ADDRESS:
            with contextlib.suppress(AttributeError, TypeError):  # a metaclass that refuses
                type.__setattr__(built, "__hash__", self._hash)
        return built
