"""The scheduler of a target, in a child: it is imported once, also for many questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from specsim.tiers.messages import Request
    from specsim.verdict import NotRun
    from specsim.world.scheduler import SchedulerTarget

_held: dict[str, SchedulerTarget | NotRun] = {}


def load_target(request: Request) -> SchedulerTarget | NotRun:
    """The scheduler of a target, or why it is not run. Imports the release. A mutant of the model is put into the
    reference engine.
    """
    from specsim.engines.load import load_scheduler
    from specsim.engines.target import ModelTarget, parse_target
    from specsim.lifting.cache import Cache
    from specsim.selfcheck.mutation import apply, find

    if (held := _held.get(held_by(request))) is not None:
        return held
    root = Path(request.root) if request.root else None
    target, defect = parse_target(request.target), request.mutant
    if isinstance(target, ModelTarget) and defect:
        apply(find(defect))
        defect = ""
    return load_scheduler(target, Cache(Path(request.cache)), defect, root, request.lines)


def held_by(request: Request) -> str:
    """Names what `load_target` gives, for requests that are given the same."""
    told = (request.target, request.mutant, request.cache, request.root, request.lines)
    return msgspec.json.encode(told, order="sorted").decode()


def hold(request: Request) -> None:
    """Load a target for the requests that come in forks of this process."""
    _held[held_by(request)] = load_target(request)
