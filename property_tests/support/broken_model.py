"""The model with a defect, in each Python process that has a folder on its path: for tests of what becomes of runs of
the accounting tier that break a rule, differ, or end their process. Python imports `sitecustomize` by itself.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

_SITE = """
import os, time
from specsim.engine.accounting import HostFunctionError, ModelAccounting

_prepare, seen = ModelAccounting.prepare, []

def harm(requests):
{harm}

def prepare(self, batch):
    harm(len(batch))
    _prepare(self, batch)

ModelAccounting.prepare = prepare
"""


def write(folder: Path, harm: str) -> Path:
    """The file that does it. `harm` are lines of Python, run before each step of the model, of so many `requests`; a
    HostFunctionError that they raise breaks X1. `seen` is a list of the process.
    """
    file = folder / "sitecustomize.py"
    file.write_text(_SITE.format(harm=textwrap.indent(textwrap.dedent(harm).strip(), "    ")))
    return file
