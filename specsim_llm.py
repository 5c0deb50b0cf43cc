"""The console script `specsim`: it starts `specsim.cli`, or says in one sentence that another package is in its place.

The package index has another project that is called specsim and is imported as specsim. This module is the one thing of
ours outside that folder, so it is there when the folder is not ours.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

NAME = "specsim-llm"
OF_THE_OTHER = "quickspecsim.py"
USAGE = 2


def clash() -> str:
    """What is wrong with the package `specsim` that would be imported, a sentence; "" when it is ours alone."""
    spec = find_spec("specsim")  # which does not import it
    if spec is None or spec.origin is None:
        return "the package specsim is not there"
    init = Path(spec.origin)
    is_ours = NAME in init.read_text(encoding="utf-8", errors="replace")
    if is_ours and not init.with_name(OF_THE_OTHER).exists():
        return ""
    return f"{init.parent} has files of another package, a spectrograph simulator that is called specsim, too"


def main() -> None:
    """Run the command line, unless it would be somebody else's."""
    problem = clash()
    if problem:
        remedy = f"pip uninstall -y specsim {NAME}, then pip install {NAME}; the two cannot share an environment"
        print(f"specsim: {problem}.\n         Install {NAME} alone: {remedy}.", file=sys.stderr)
        raise SystemExit(USAGE)
    from specsim.cli import main as run

    run()
