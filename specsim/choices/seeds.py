"""A seed is a number, or a commit hash so that CI draws new cases for every commit and can repeat them."""

from __future__ import annotations

import re

from specsim.errors import UsageError

_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")


def parse_seed(text: str) -> int:
    """The seed in `text`: a decimal number from 0 to 2**64 - 1, or 7 to 64 hexadecimal digits of a commit hash.

    Digits alone are read as a decimal number, whatever their count, unless they exceed 2**64 - 1.
    """
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 64:
        return int(text)
    if _COMMIT.fullmatch(text):
        return int(text, 16) & ((1 << 64) - 1)
    raise UsageError(
        f"--seed {text!r} is neither a number from 0 to 2**64-1 nor a commit hash of 7 to 64 hex digits",
        "give for example --seed 7 or --seed $(git rev-parse HEAD)",
    )
