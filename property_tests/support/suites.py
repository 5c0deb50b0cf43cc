"""Suites of others, in a process and a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What is printed is what a user's terminal of 100 columns shows, also where CI or somebody's options for pytest
    would print more.
    """
    others = ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")
    here = {name: value for name, value in os.environ.items() if name not in others}
    command = [sys.executable, "-m", "pytest", "-p", "specsim.pytest_plugin", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**here, "COLUMNS": "100", "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
