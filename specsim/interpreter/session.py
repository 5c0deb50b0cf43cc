"""Every launch of a Triton kernel in a session of pytest, in lockstep: `pytest --specsim-interpreter`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from specsim.interpreter.lockstep.launch import Launches

Way = Literal["checked", "plain"]


class Session:
    """Runs launches in lockstep until it is closed; a kernel that lockstep cannot run is run in Triton's interpreter.

    `checked`: what launches do wrong is kept. `plain`: an access outside of its tensors raises KernelError. To be made
    before modules with kernels are imported.
    """

    def __init__(self, way: Way) -> None:
        os.environ.setdefault("TRITON_INTERPRET", "1")
        from specsim.interpreter.lockstep.launch import Strict, lockstep
        from specsim.interpreter.lockstep.sanitize import LaunchesWatch

        self._flaws: dict[str, None] = {}
        self._active = ExitStack()
        checks = Strict() if way == "plain" else LaunchesWatch(self._flag)
        watch = checks.watch if isinstance(checks, LaunchesWatch) else None
        self.launches: Launches = self._active.enter_context(lockstep(checks, watch))

    def _flag(self, kind: str, text: str, where: str) -> None:
        self._flaws[f"{kind}: {text} ({where})"] = None

    def flaws(self) -> list[str]:
        """What launches did wrong since the last call, each once, with its line."""
        found = list(self._flaws)
        self._flaws.clear()
        return found

    def told(self) -> list[str]:
        """What was run, and what was left to Triton."""
        count = self.launches.count
        lines = [f"{count} launch{'es' * (count != 1)} in lockstep"]
        if not count:
            lines = ["no launch by a test itself; assert_matches checks the launches of what it calls, races included"]
        fallen_back = sorted(self.launches.fallen_back.items())
        return lines + [f"left to Triton: {kernel}, for {', '.join(names)}" for kernel, names in fallen_back]

    def close(self) -> None:
        self._active.close()
