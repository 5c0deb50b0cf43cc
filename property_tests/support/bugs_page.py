"""Run as a program: print docs/bugs.md, the bugs that users of a release meet most, from the triage list.

python -m property_tests.support.bugs_page

An entry that says what a user sees (`effect`) is on it. What is still there comes first, then what was mended last.
"""

from __future__ import annotations

from packaging.version import Version

from property_tests.support.checked_features import table
from property_tests.support.known_releases import RELEASES
from specsim.engines.triage import TABLE, Triage

HEAD = """# Bugs that you may have

For whoever runs SGLang with speculative decoding. After this page you know which of the bugs that
users notice your release has, where they are talked about, and how to see one.

Each was seen on the first and on the last release of its span, unmodified. `specsim explain SIGNATURE`
has the replay file that shows it, and the command. *Default* is what users reach without asking;
*option* needs one, such as sessions, penalties or a model with a sliding window.
[Every finding by release](releases.md) has the others.
"""

CHECKED = """## What of {release} is checked

Which tier runs which feature there. *Scheduler* is what `specsim check` runs, *release's worker* what
`--worker release` does ([the scheduler tier](scheduler.md)); *ops* names kernels and functions that
are compared with the reference ([their operations](operations.md)). An empty row is not checked at
all. A verdict lists what of this it did not run, and why.
"""


def of_users() -> list[Triage]:
    """The entries of the page, in its order."""
    entries = [entry for entry in TABLE["sglang"] if entry.effect]
    return sorted(entries, key=lambda entry: (bool(entry.last), _newest_first(entry), entry.signature))


def _newest_first(entry: Triage) -> int:
    return -RELEASES.index(entry.last or RELEASES[-1])


def row(entry: Triage) -> list[str]:
    """The cells of an entry: the bug, what a user sees, releases, who reaches it, where to read on, its signature."""
    first = f"to {entry.last}" if entry.first == RELEASES[0] and entry.last else ""
    span = first or (f"{entry.first} to {entry.last}" if entry.last else f"from {entry.first} on")
    reach = "default" if "default" in entry.reaches else "option"
    more = f"[a report](upstream/{entry.upstream}.md)" if entry.upstream else entry.references[0]
    return [entry.text, entry.effect, span, reach, more, f"`{entry.signature}`"]


def page() -> str:
    """The page, of the newest release that specsim knows."""
    columns = ["bug", "what a user sees", "releases", "reached by", "read on", "signature"]
    newest = max(RELEASES, key=Version)
    open_ones, mended = ([entry for entry in of_users() if bool(entry.last) is ended] for ended in (False, True))
    parts = [HEAD]
    for title, entries in ((f"In {newest}, the newest release here", open_ones), ("Mended since", mended)):
        lines = [columns, ["--"] * len(columns), *map(row, entries)]
        parts.append("\n".join([f"## {title}", "", *(f"| {' | '.join(cells)} |" for cells in lines), ""]))
    return "\n".join([*parts, CHECKED.format(release=newest), table(newest)])


if __name__ == "__main__":
    print(page(), end="")
