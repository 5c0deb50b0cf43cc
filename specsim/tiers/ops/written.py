"""Tensors as text: whole where they are small, with runs of one value counted where they are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

WHOLE_MAX = 64
"""Tensors of up to so many elements are written element by element."""
TEXT_MAX = 400
RUN_MIN = 4


def written(shape: Sequence[int], data: Sequence[Any]) -> str:
    """Nested lists, as `tolist` prints them; of more than WHOLE_MAX elements `[0.0, 4096 times -inf]`, and no more
    than TEXT_MAX characters of that.
    """
    parts = [str(value) for value in data]
    for axis in reversed(range(len(shape))):
        extent = shape[axis]
        rows = [parts[row * extent : (row + 1) * extent] for row in range(math.prod(shape[:axis]))]
        parts = ["[" + ", ".join(row if len(data) <= WHOLE_MAX else _with_runs(row)) + "]" for row in rows]
    text = parts[0]
    if len(data) > WHOLE_MAX and len(text) > TEXT_MAX:
        return f"{text[:TEXT_MAX]} ... (whole in the replay file)"
    return text


def _with_runs(row: Sequence[str]) -> list[str]:
    found: list[str] = []
    for value, run in groupby(row):
        count = len(list(run))
        found += [f"{count} times {value}"] if count >= RUN_MIN else [value] * count
    return found
