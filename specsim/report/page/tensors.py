"""How a value of a tensor is drawn."""

from __future__ import annotations

import math
from typing import Any


def shade(value: Any, least: float, most: float) -> int:
    """How dark a value is, 0 to 8, between the least and the most of its tensor."""
    if isinstance(value, bool):
        return 6 if value else 0
    if not isinstance(value, int | float) or not math.isfinite(value) or most <= least:
        return 0
    return round(8 * (value - least) / (most - least))
