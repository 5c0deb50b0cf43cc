"""Rows of `req_to_token`: who owns each, and who writes it."""

from __future__ import annotations

from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import Admitted, OwnerSeen, RowsCounted, RowsWritten
from specsim.verdict import Rule, Severity


class RowOwner(Check):
    rule = Rule("I18", "row-owner", "every row is free or owned, once", Severity.LEAK)
    after = (OwnerSeen, RowsCounted, Admitted)

    def check(self, view: OwnerSeen | RowsCounted | Admitted) -> Broken | None:
        if isinstance(view, Admitted):
            return self.broken(view.part, view.request.rid, "a row", "none") if view.now.row is None else None
        if isinstance(view, OwnerSeen):
            row, name = view.owner.row, view.owner.name
            if row in view.owner_of_row:
                actual = f"row {row} belongs to {view.owner_of_row[row]} and {name}"
                return self.broken(view.part, "", "every row has one owner", actual)
            return None
        free, count = view.rows.free_rows, view.rows.count
        if len(set(free)) != len(free) or set(free) & set(view.owned) or len(free) + len(view.owned) != count:
            actual = f"free {sorted(free)}, owned {sorted(view.owned)}"
            return self.broken(view.part, "", f"{count} rows, free or owned", actual)
        return None


class RowWrites(Check):
    rule = Rule(
        "I20",
        "row-writes",
        "preparing a request writes its own row only, in the columns that it newly allocates",
        Severity.WRONG_RESULT,
    )
    after = (RowsWritten,)

    def check(self, view: RowsWritten) -> Broken | None:
        row, column = view.stray[0]
        return self.broken("prepare", "", "other entries unchanged", f"row {row}, column {column} is written")
