"""Several targets in one command: `sglang==A..B` is every release from A to B of the list, both included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packaging.version import Version

from specsim.engines.target import ReleaseTarget, Target, parse_target
from specsim.errors import UsageError
from specsim.lifting.versions import is_version, nearest_versions

_RELEASE, _TO = "sglang==", ".."


def expand_targets(texts: Iterable[str], releases: Sequence[str]) -> list[Target]:
    """The targets that the texts name, each once, in the order given. `releases` are those that a range can have,
    oldest first.

    Raises UsageError for a text that names none, and a range whose ends are unknown or the wrong way round.
    """
    found: dict[str, Target] = {}
    for text in texts:
        for target in _of_range(text.strip(), releases) if _is_range(text.strip()) else [parse_target(text)]:
            found.setdefault(target.text, target)
    return list(found.values())


def _is_range(text: str) -> bool:
    return text.startswith(_RELEASE) and _TO in text


def _of_range(text: str, releases: Sequence[str]) -> list[Target]:
    first, _, last = text.removeprefix(_RELEASE).partition(_TO)
    for end in (first, last):
        if end not in releases:
            known = f"the list of releases goes from {releases[0]} to {releases[-1]}"
            near = f", nearest are {', '.join(nearest_versions(end, releases))}" if is_version(end) else ""
            what = f"{end!r} is not a release that specsim knows" if end else "one end is missing"
            raise UsageError(f"TARGET {text!r}: {what}", f"{known}{near}; a single release needs no list")
    if Version(first) > Version(last):
        raise UsageError(f"TARGET {text!r} runs from newer to older", f"did you mean {_RELEASE}{last}{_TO}{first}?")
    return [ReleaseTarget(v) for v in releases[releases.index(first) : releases.index(last) + 1]]
