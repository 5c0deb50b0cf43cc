"""`req_to_token`: the row of each request maps its token positions to KV slots."""

from __future__ import annotations

from array import array


class RowsExhaustedError(Exception):
    """No row is free; the scheduler must look before it allocates."""


class Rows:
    """`count` rows of `width` int32 entries. Row 0 belongs to nobody: padded batch entries point there.

    `buffer` is the whole table, rows 0 to `count`, one after the other. `writes`, where it is a list, gets what is
    written: row, first column, slots.
    """

    def __init__(self, count: int, width: int) -> None:
        self.count = count
        self.width = width
        self.buffer = array("i", bytes(4 * (count + 1) * width))
        self.free_rows = list(range(1, count + 1))
        self.writes: list[tuple[int, int, list[int]]] | None = None

    def alloc(self) -> int:
        if not self.free_rows:
            raise RowsExhaustedError(f"all {self.count} rows are taken")
        return self.free_rows.pop(0)

    def free(self, row: int) -> None:
        self.free_rows.append(row)

    def read(self, row: int, start: int, end: int) -> list[int]:
        """The slots at columns `[start, end)` of a row."""
        base = row * self.width
        return self.buffer[base + start : base + end].tolist()

    def write(self, row: int, start: int, slots: list[int]) -> None:
        """Write `slots` from column `start` on. A write past the row's end runs into the next row, as it does in a
        kernel; past the table's end it hits nothing that this model has.
        """
        if self.writes is not None and slots:
            self.writes.append((row, start, list(slots)))
        base = row * self.width + start
        fitting = array("i", slots[: max(len(self.buffer) - base, 0)])
        if fitting:  # an empty slice of an array that a tensor looks at cannot be written
            self.buffer[base : base + len(fitting)] = fitting
