"""Tensors of a case as a page shows them: rows and columns, a window of those that are large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ROWS_MAX, COLUMNS_MAX = 64, 48


def tensors_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Inputs, then outputs beside what they should be."""
    found = [_shown(name, "input", tensor) for name, tensor in answer.get("inputs", {}).items()]
    outputs = answer.get("outputs", {})
    for name, expected in answer.get("expected", {}).items():
        output = outputs.get(name)
        if output is None:
            found.append(_shown(name, "expected", expected))
        else:
            found.append(
                _shown(name, "output", output["actual"], expected["data"], output["defined"], output["differs"])
            )
    return found


def _shown(
    name: str,
    role: str,
    tensor: Mapping[str, Any],
    expected: Sequence[Any] | None = None,
    defined: Sequence[bool] | None = None,
    differs: Sequence[bool] | None = None,
) -> dict[str, Any]:
    shape, data = list(tensor["shape"]), list(tensor["data"])
    columns = shape[-1] if shape else 1
    rows = len(data) // columns if columns else 0
    first = (differs or [False]).index(True) if any(differs or ()) else 0
    row = _window(first // columns if columns else 0, rows, ROWS_MAX)
    column = _window(first % columns if columns else 0, columns, COLUMNS_MAX)

    def cut(values: Sequence[Any] | None) -> list[list[Any]] | None:
        if values is None:
            return None
        return [[values[i * columns + j] for j in column] for i in row]

    whole = len(row) == rows and len(column) == columns
    note = "" if whole else f"{len(row)} of {rows} rows, {len(column)} of {columns} columns"
    return {
        "name": name,
        "role": role,
        "shape": shape,
        "indices": [_index(i, shape[:-1]) for i in row],
        "first": column.start,
        "values": cut(data),
        "expected": cut(expected),
        "defined": cut(defined),
        "differs": cut(differs),
        "count": sum(map(bool, differs or ())),
        "note": note,
    }


def _window(at: int, extent: int, most: int) -> range:
    start = max(0, min(at - most // 2, extent - most))
    return range(start, min(extent, start + most))


def _index(row: int, leading: Sequence[int]) -> str:
    """Row `row` by its leading indices: "1, 0"; "" for a vector."""
    index = []
    for extent in reversed(leading):
        index.append(row % extent)
        row //= extent
    return ", ".join(map(str, reversed(index)))
