"""The operations for which a check had no time, which the next check of the target checks first."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from specsim.errors import UsageError
from specsim.files import write_json
from specsim.interrupts import SPENT
from specsim.replay_file import file_name

if TYPE_CHECKING:
    from pathlib import Path

    from specsim.lifting.cache import Cache
    from specsim.verdict import Suite


def _file(cache: Cache, target: str) -> Path:
    return cache.folder / "unjudged" / f"{file_name(target)}.json"


def recall(cache: Cache, target: str) -> tuple[str, ...]:
    """The implementations that the last check of the target did not come to; none where that is not known."""
    try:
        names = json.loads(_file(cache, target).read_text(encoding="utf-8"))["subjects"]
    except (OSError, ValueError, LookupError, TypeError):
        return ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def remember(cache: Cache, target: str, suite: Suite) -> None:
    """Note the implementations that a check did not come to, if the cache can be written."""
    names = [entry.what.partition(", ")[2] for entry in suite.not_run if entry.why == SPENT]
    if not names and not _file(cache, target).exists():
        return
    with contextlib.suppress(UsageError):
        write_json(_file(cache, target), {"subjects": names})
