"""A shallow copy, for whoever forks a run: faster than `copy.copy`, and of compiled classes too."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def shallow_copy(instance: T) -> T:
    """A new instance with the same attributes, whose values both share."""
    of: Any = instance
    if not hasattr(of, "__dict__"):  # a compiled class, which knows how to copy itself
        return of.__copy__()  # type: ignore[no-any-return]
    new = object.__new__(type(of))
    new.__dict__ = of.__dict__.copy()  # faster than an update
    return new  # type: ignore[no-any-return]
