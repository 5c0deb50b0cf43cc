"""A release or a checkout as a folder that Python can import from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specsim.engines.packages import fetch_release, open_source
from specsim.engines.sglang.scheduler.unpack import unpacked
from specsim.engines.target import CheckoutTarget, ReleaseTarget

if TYPE_CHECKING:
    from specsim.lifting.cache import Cache


def folder_of(target: ReleaseTarget | CheckoutTarget, cache: Cache) -> Path:
    """The folder that holds the package `sglang`: of a release in the cache, of a checkout where it is, of a git
    revision written into the cache. UsageError where there is none.
    """
    if isinstance(target, ReleaseTarget):
        wheel = fetch_release(target, cache)
        assert wheel is not None
        return unpacked(wheel, cache)
    source = open_source(target, cache)
    commit = getattr(source, "commit", None)
    if commit is None:
        sys.dont_write_bytecode = True  # nothing is left in a user's checkout
        path = Path(os.path.expanduser(target.path)).absolute()
        return next(root for root in (path / "python", path, path.parent) if (root / "sglang" / "srt").is_dir())
    for name in source.paths(""):
        if name.endswith(".py"):
            cache.store_text(f"unpacked/{commit}/sglang/{name}", source.read(name))
    return cache.path(f"unpacked/{commit}")
