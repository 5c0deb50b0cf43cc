"""The replay files of known findings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specsim.lifting.source import SourceTree

Release = Callable[[str], SourceTree]
FILES = sorted((Path(__file__).parents[2] / "fixtures" / "replays").glob("*.json"))
EXPECT: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text())["expect"] for file in FILES}
