"""Defects that are planted into a release's scheduler to see whether the tier finds them: `planted.toml`.

They were written by someone who had read the release's source and none of specsim's rules. P01 to P30 are mistakes in
admission, filtering, merging, retraction, aborts, chunks, sessions, caches and results; Q01 to Q08 and R01 to R08 leave
out one wait or synchronisation each, of an older and of a newer release.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specsim.errors import UsageError
from specsim.lifting.planted import Planted, edited

if TYPE_CHECKING:
    from specsim.engines.sglang.scheduler.imports import Edit


@cache
def planted() -> dict[str, Planted]:
    """The defects by id."""
    text = Path(__file__).with_name("planted.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["defects"]
    return {row["id"]: Planted(**{**row, "hashes": tuple(row["hashes"])}) for row in rows}


def find(defect_id: str) -> Planted:
    """The defect of that id. UsageError where there is none."""
    found = planted().get(defect_id.upper())
    if found is None:
        raise UsageError(f"there is no planted defect {defect_id!r}", f"choose one of {', '.join(planted())}")
    return found


def edit_of(defect: Planted) -> Edit:
    """Changes the source of the defect's module on its way in, and of no other."""
    return lambda module, source: edited(source, defect) if module == defect.module else source
