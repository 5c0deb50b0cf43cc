"""Defects that are planted into a release's scheduler and worker to see whether the tier finds them: `planted.toml`.

They were written by someone who had read the release's source and none of specsim's rules. P01 to P30 are mistakes in
admission, filtering, merging, retraction, aborts, chunks, sessions, caches and results; Q01 to Q08 and R01 to R08 leave
out one wait or synchronisation each, of an older and of a newer release. A coarser barrier covers two of those: they do
harm when it is left out, too (`--mutant Q07+Q06`). W01 to W10 are one-statement mistakes in and around the worker: its
graph runners, its attention plan, its write window, its sampling.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specsim.errors import no_such
from specsim.lifting.planted import Planted, edited

if TYPE_CHECKING:
    from specsim.world.packages import Edit


@cache
def planted() -> dict[str, Planted]:
    """The defects by id."""
    text = Path(__file__).with_name("planted.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["defects"]
    return {row["id"]: Planted(**{**row, "hashes": tuple(row["hashes"])}) for row in rows}


WORKERS = ("sglang.srt.layers.", "sglang.srt.model_executor.", "sglang.srt.speculative.")
"""Modules in whose place a fake worker stands."""


def worker_of(defect: Planted) -> str:
    """The worker with which a defect is run: "fake", or "release" for one in the release's own."""
    return "release" if defect.module.startswith(WORKERS) else "fake"


def find(defect_ids: str) -> list[Planted]:
    """The defect of an id, or those of several that are joined by "+". UsageError where there is none."""
    ids = defect_ids.upper().split("+")
    if unknown := [defect_id for defect_id in ids if defect_id not in planted()]:
        raise no_such("planted defect", unknown[0], planted(), lists_all=True)
    return [planted()[defect_id] for defect_id in ids]


def edit_of(*defects: Planted) -> Edit:
    """Changes the source of each defect's module on its way in, and of no other."""

    def edit(module: str, source: str) -> str | ast.Module:
        changed: str | ast.Module = source
        for defect in defects:
            if module == defect.module:
                changed = edited(changed, defect)
        return changed

    return edit
