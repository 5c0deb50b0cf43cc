"""`specsim targets --kernels`: which of a target's kernels for speculation run in an operation."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.engines.registry import ENGINES
from specsim.errors import UsageError

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.lifting.cache import Cache
    from specsim.tiers.ops.inventory import InventoryRow

FORMAT = "specsim.kernels/1"


def list_kernels(texts: list[str], json_file: Path | None, write: Path | None, cache_dir: Path | None) -> None:
    """Print the kernels of each target; write them to a file, and as a page."""
    from specsim.engines.ranges import expand_targets
    from specsim.files import save_json, save_text
    from specsim.lifting.cache import open_cache
    from specsim.report.inventory import page
    from specsim.report.terminal import print_inventory

    if not texts:
        raise UsageError("--kernels without targets", f"name a release or a checkout of {_engines()}")
    cache = open_cache(cache_dir)
    entries = []
    for target in expand_targets(texts):
        entries.append(_entry(target, cache))
        print_inventory(entries[-1])
    if json_file is not None:
        save_json(json_file, {"format": FORMAT, "targets": entries})
    if write is not None:
        save_text(write, page(entries, f"specsim targets --kernels {shlex.join(texts)} --write {write}"))


def _entry(target: Target, cache: Cache) -> dict[str, Any]:
    from specsim.engines.target import Checkout, Release

    if not isinstance(target, Release | Checkout) or not ENGINES[target.engine].speculation:
        raise UsageError(
            f"TARGET {target.text!r} has no Triton kernels to list", f"name a release or a checkout of {_engines()}"
        )
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    from specsim.engines.load import load_provider
    from specsim.engines.packages import open_source
    from specsim.tiers.ops.inventory import compiled_inventory, inventory

    subjects, _missing = load_provider(target, cache).subjects()
    source = open_source(target, cache)
    return {
        "target": target.text,
        "kernels": [_listed(row) for row in inventory(target.engine, source, subjects)],
        "compiled": [_listed(row) for row in compiled_inventory(target.engine, source)],
    }


def _listed(row: InventoryRow) -> dict[str, Any]:
    return {
        "name": row.place.name,
        "where": f"{row.place.path}:{row.place.line}",
        "operations": list(row.operations),
        "callers": list(row.callers),
        "why": row.why,
    }


def _engines() -> str:
    return " or ".join(name for name, engine in ENGINES.items() if engine.speculation)
