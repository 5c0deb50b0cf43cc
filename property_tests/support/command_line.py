"""The command line as a user runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def specsim(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in `folder`."""
    path = os.pathsep.join(dict.fromkeys(filter(None, [str(Path(__file__).parents[2]), *sys.path])))
    return subprocess.run(
        [sys.executable, "-m", "specsim", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "PYTHONPATH": path, "SPECSIM_CACHE_DIR": str(folder / "cache"), **environment},
    )
