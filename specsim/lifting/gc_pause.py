"""When garbage is collected: not during a lift."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collection meanwhile: the trees of large files are a million objects, and none of them is garbage.
    Looking for it takes half of a lift.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
