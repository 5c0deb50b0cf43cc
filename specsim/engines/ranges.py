"""Several targets in one command: `ENGINE==A..B` is every release from A to B of the list, both included."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import Version

from specsim.engines.registry import ENGINES
from specsim.engines.releases import releases_of
from specsim.engines.target import Release, Target, parse_target
from specsim.errors import UsageError
from specsim.lifting.versions import is_version, nearest_versions

_TO = ".."


def expand_targets(texts: Iterable[str]) -> list[Target]:
    """The targets that the texts name, each once, in the order given. A range has releases that are known.

    Raises UsageError for a text that names none, and a range whose ends are unknown or the wrong way round.
    """
    found: dict[str, Target] = {}
    for text in texts:
        engine, _, ends = text.strip().partition("==")
        is_range = _TO in ends and engine in ENGINES and bool(releases_of(engine))
        for target in _of_range(engine, ends) if is_range else [parse_target(text)]:
            found.setdefault(target.text, target)
    return list(found.values())


def _of_range(engine: str, ends: str) -> list[Target]:
    text, releases = f"{engine}=={ends}", releases_of(engine)
    first, _, last = ends.partition(_TO)
    for end in (first, last):
        if end not in releases:
            known = f"the list of releases goes from {releases[0]} to {releases[-1]}"
            near = f", nearest are {', '.join(nearest_versions(end, releases))}" if is_version(end) else ""
            what = f"{end!r} is not a release that specsim knows" if end else "one end is missing"
            raise UsageError(f"TARGET {text!r}: {what}", f"{known}{near}; a single release needs no list")
    if Version(first) > Version(last):
        raise UsageError(f"TARGET {text!r} runs from newer to older", f"did you mean {engine}=={last}{_TO}{first}?")
    return [Release(engine, v) for v in releases[releases.index(first) : releases.index(last) + 1]]
