"""Versions of packages, as PEP 440 spells and orders them."""

from __future__ import annotations

import bisect
import difflib
import re
from collections.abc import Iterable

_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
VERSION_TEXT = rf"{_NUMBER}(?:\.{_NUMBER}){{1,4}}(?:(?:a|b|rc){_NUMBER})?(?:\.post{_NUMBER})?(?:\.dev{_NUMBER})?"
_VERSION = re.compile(VERSION_TEXT)
_VERSION_PARTS = re.compile(
    r"(?P<release>[0-9.]*[0-9])(?:(?P<pre>a|b|rc)(?P<pre_number>[0-9]+))?"
    r"(?:\.post(?P<post>[0-9]+))?(?:\.dev(?P<dev>[0-9]+))?"
)


def is_version(text: str) -> bool:
    """Whether `text` is an exact version as PEP 440 spells it canonically, without epoch and local part."""
    return _VERSION.fullmatch(text) is not None


def version_key(version: str) -> tuple[tuple[int, ...], tuple[int, int], int, float]:
    """A sort key in the order of PEP 440: development, pre-release, release, post-release.

    Raises `ValueError` for what `is_version` refuses.
    """
    parts = _VERSION_PARTS.fullmatch(version) if is_version(version) else None
    if parts is None:
        raise ValueError(f"{version!r} is not a version")
    release = [int(number) for number in parts["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    post = -1 if parts["post"] is None else int(parts["post"])
    if parts["pre"] is not None:
        phase = (("a", "b", "rc").index(parts["pre"]), int(parts["pre_number"]))
    elif parts["dev"] is not None and post < 0:
        phase = (-1, 0)  # a development version of a release comes before the release's own pre-releases
    else:
        phase = (3, 0)
    return (tuple(release), phase, post, float("inf") if parts["dev"] is None else int(parts["dev"]))


def nearest_versions(version: str, known: Iterable[str], count_max: int = 5) -> list[str]:
    """Those of `known` that look most like `version` or stand beside it in order; oldest first."""
    ordered = sorted({candidate for candidate in known if is_version(candidate)}, key=version_key)
    place = bisect.bisect_left([version_key(candidate) for candidate in ordered], version_key(version))
    beside = ordered[max(place - 1, 0) : place + 1]
    alike = difflib.get_close_matches(version, ordered, n=count_max - len(beside), cutoff=0.6)
    return sorted({*beside, *alike}, key=version_key)
