"""The command line as a user runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def specsim(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in `folder`, as in a pipe: as wide as that is unless the environment says COLUMNS."""
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    path = os.pathsep.join(dict.fromkeys(filter(None, [str(Path(__file__).parents[2]), *sys.path])))
    return subprocess.run(
        [sys.executable, "-m", "specsim", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**plain, "PYTHONPATH": path, "SPECSIM_CACHE_DIR": str(folder / "cache"), **environment},
    )
