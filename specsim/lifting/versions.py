"""Versions of packages, as PEP 440 spells and orders them."""

from __future__ import annotations

import bisect
import difflib
import re
from collections.abc import Iterable

from packaging.version import Version

_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
VERSION_TEXT = rf"{_NUMBER}(?:\.{_NUMBER}){{1,4}}(?:(?:a|b|rc){_NUMBER})?(?:\.post{_NUMBER})?(?:\.dev{_NUMBER})?"
_VERSION = re.compile(VERSION_TEXT)


def is_version(text: str) -> bool:
    """Whether `text` is an exact version as PEP 440 spells it canonically, without epoch and local part."""
    return _VERSION.fullmatch(text) is not None


def nearest_versions(version: str, known: Iterable[str], count_max: int = 5) -> list[str]:
    """Those of `known` that look most like `version` or stand beside it in order; oldest first."""
    ordered = sorted({candidate for candidate in known if is_version(candidate)}, key=Version)
    place = bisect.bisect_left([Version(candidate) for candidate in ordered], Version(version))
    beside = ordered[max(place - 1, 0) : place + 1]
    alike = difflib.get_close_matches(version, ordered, n=count_max - len(beside), cutoff=0.6)
    return sorted({*beside, *alike}, key=Version)
