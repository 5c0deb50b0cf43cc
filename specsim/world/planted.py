"""Defects that are planted into a release on its way in, to see whether a check finds them."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specsim.errors import no_such
from specsim.lifting.planted import Planted, defect_of, edited

if TYPE_CHECKING:
    from specsim.world.packages import Edit


def load(path: Path) -> dict[str, Planted]:
    """The defects of a file, by id."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["defects"]
    return {row["id"]: Planted(**{**row, "hashes": tuple(row["hashes"])}) for row in rows}


def find(defect_ids: str, planted: Mapping[str, Planted]) -> list[Planted]:
    """The defect of an id, or those of several that are joined by "+"; or one of the source, that is said outright
    (`specsim.lifting.planted.defect_of`). UsageError where there is none.
    """
    if ":" in defect_ids:
        return [defect_of(defect_ids)]
    ids = defect_ids.upper().split("+")
    if unknown := [defect_id for defect_id in ids if defect_id not in planted]:
        raise no_such("planted defect", unknown[0], planted, lists_all=True)
    return [planted[defect_id] for defect_id in ids]


def edit_of(*defects: Planted) -> Edit:
    """Changes the source of each defect's module on its way in, and of no other."""

    def edit(module: str, source: str) -> str | ast.Module:
        changed: str | ast.Module = source
        for defect in defects:
            if module == defect.module:
                changed = edited(changed, defect)
        return changed

    return edit
