"""Made-up checkouts that have a scheduler, and specsim run on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def specsim(*arguments: str | Path, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specsim", *map(str, arguments)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=400)
    assert "Traceback" not in ended.stdout + ended.stderr
    return ended


def checkout(root: Path, scheduler: str) -> Path:
    """A checkout whose scheduler's module is this."""
    managers = root / "sglang" / "srt" / "managers"
    managers.mkdir(parents=True)
    for folder in (managers, managers.parent, managers.parent.parent):
        (folder / "__init__.py").write_text("")
    (managers / "scheduler.py").write_text(scheduler)
    return root
