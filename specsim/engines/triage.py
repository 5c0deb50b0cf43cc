"""What is publicly known of each finding, read from `triage.toml`.

`check` prints it beside the finding; a signature that is not in the table is untriaged, and the line says so.

A finding is in one of four states, and each has its evidence: a public thread with its status (`known`), a comment in
the engine's source (`documented`), a page of docs/upstream (`new`), or what the engine says that it
means (`by design`). `load` refuses an entry that lacks it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from packaging.version import Version

from specsim.engines.registry import ENGINES
from specsim.engines.target import Checkout, Release
from specsim.lifting.versions import is_version
from specsim.verdict import REACHES, Finding, Severity

FILE = Path(__file__).with_name("triage.toml")
UNTRIAGED = f"untriaged: not in the table of findings; look for a public report, then add it to {FILE.name}"

State = Literal["known", "documented", "new", "by design"]
THREAD = re.compile(r"(?:(?:[a-z]*[A-Z]\w*|[a-z]+-[a-z]+) )?(?:(?:PR|issue) )?#\d+")
"""A public thread in a reference: `PR #N`, of another package `Package PR #N`."""


@dataclass(frozen=True, slots=True)
class Triage:
    """What is known of the findings of one signature.

    `state`       known, documented, new or by design
    `severity`    that they have, None where the entry does not say; `reaches` the kinds of reach seen on some release
                  ("unknown" for a tier that reads no configuration)
    `first`, `last`  the oldest and newest release that show it; "" for last: the newest one still does; "" for both
                  where the entry does not say
    `references`  public reports, fixes and reviews, newest first, each thread with its status
    `documented`  where the engine's source says it, "" where it does not
    `upstream`    NAME of docs/upstream/NAME.md: of what is new, or of a comment on a thread that is known
    `effect`      what a user sees, of the bugs that users meet most; "" of the others
    """

    signature: str
    state: State
    text: str
    severity: Severity | None = None
    reaches: frozenset[str] = frozenset()
    first: str = ""
    last: str = ""
    references: tuple[str, ...] = ()
    documented: str = ""
    upstream: str = ""
    effect: str = ""

    def covers(self, version: str) -> bool:
        """Whether a release lies in the span."""
        last = Version(self.last) if self.last else None
        return Version(self.first) <= Version(version) and (last is None or Version(version) <= last)

    @property
    def line(self) -> str:
        """One line for beside the finding."""
        where = ", ".join(self.sources)
        span = f", {self.span}" if self.first else ""
        return f"{self.state}{span}: {self.text} ({where})"

    @property
    def sources(self) -> tuple[str, ...]:
        """Where more is said."""
        others = (*((self.documented,) if self.documented else ()), *self.references)
        if not self.upstream:
            return others
        report = f"report in docs/upstream/{self.upstream}.md"
        return (f"{report}; see also {', '.join(others)}" if others else report,)

    @property
    def span(self) -> str:
        """The releases that show it, in words."""
        return f"from {self.first} {f'to {self.last}' if self.last else 'on'}"

    def contradiction(self, finding: Finding) -> str:
        """Where the entry and a finding differ, as text to append, "" where they agree. A race that made no token wrong
        is a metric, whatever others of its signature are.
        """
        if self.severity not in (None, finding.severity) and finding.severity is not Severity.METRIC:
            return f"; the table has severity {self.severity}"
        reach = finding.reach.split(":")[0]
        return "" if not self.reaches or reach in self.reaches else f"; the table does not have reach {reach}"


def load(text: str) -> dict[str, tuple[Triage, ...]]:
    """The entries of a table by engine. Raises ValueError, which names the entry, for one that is wrong."""
    tables = tomllib.loads(text)
    threads = tables.pop("threads", {})
    table = {
        engine: tuple(
            _entry(f"[[{engine}]] {number} {row.get('signature')!r}", row, threads)
            for number, row in enumerate(rows, 1)
        )
        for engine, rows in tables.items()
    }
    named = {thread for rows in tables.values() for row in rows for thread in _threads(row)}
    if unused := sorted(set(threads) - named):
        raise ValueError(f"[threads]: no entry refers to {', '.join(unused)}")
    return table


_ROW: Mapping[str, type] = {
    **dict.fromkeys(("signature", "state", "severity", "releases", "text", "documented", "upstream", "effect"), str),
    **dict.fromkeys(("reaches", "references"), list),
}


def _threads(row: Mapping[str, Any]) -> list[str]:
    return [thread for reference in row.get("references", ()) for thread in THREAD.findall(reference)]


def _entry(name: str, row: dict[str, Any], threads: Mapping[str, str]) -> Triage:
    for key, value in row.items():
        if not isinstance(value, _ROW.get(key, ())):
            raise ValueError(f"{name}: {key} = {value!r}; allowed are {', '.join(_ROW)}, of text or lists of text")
    if missing := {"signature", "state", "text"} - set(row):
        raise ValueError(f"{name} has no {' and no '.join(sorted(missing))}")
    state = row["state"]
    first, _, last = row.get("releases", "").partition("..")
    severity, reaches = row.get("severity"), frozenset(row.get("reaches", ()))
    unheard = sorted(set(_threads(row)) - set(threads))
    problems = {
        f"state = {state!r}": state not in get_args(State),
        f"severity = {severity!r}": severity is not None and severity not in set(Severity),
        f"reaches = {sorted(reaches - set(REACHES))}": not reaches <= set(REACHES),
        f"releases = {row.get('releases')!r}": not all(is_version(one) for one in (first, last) if one)
        or (bool(last) and Version(first) > Version(last)),
        "severity, reaches and releases go together": len({bool(severity), bool(reaches), bool(first)}) > 1,
        "what is new has an upstream": state == "new" and not row.get("upstream"),
        "only what is new or known has an upstream": state not in ("new", "known") and "upstream" in row,
        "what is known has a thread in its references": state == "known" and not _threads(row),
        "what is documented, and nothing else, says where": (state == "documented") != bool(row.get("documented")),
        "what is by design has references": state == "by design" and not row.get("references"),
        "by design is a severity, too": severity is not None
        and (severity == Severity.BY_DESIGN) != (state == "by design"),
        f"[threads] has no status of {', '.join(unheard)}": bool(unheard),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ValueError(f"{name}: {problem}")
    return Triage(
        row["signature"],
        state,
        row["text"],
        Severity(severity) if severity else None,
        reaches,
        first,
        last,
        tuple(THREAD.sub(lambda found: f"{found[0]} ({threads[found[0]]})", one) for one in row.get("references", ())),
        row.get("documented", ""),
        row.get("upstream", ""),
        row.get("effect", ""),
    )


TABLE = load(FILE.read_text(encoding="utf-8"))
"""By what pip calls an engine: two names of one package share their entries."""


def triage_of(engine: str, signature: str, version: str | None) -> Triage | None:
    """The entry of a signature: of the span that has the version; the newest where no version is known or none has."""
    entries = [entry for entry in TABLE.get(ENGINES[engine].distribution, ()) if entry.signature == signature]
    if version:
        entries = [entry for entry in entries if entry.first and entry.covers(version)] or entries
    return entries[-1] if entries else None


def triaged(target: Release | Checkout) -> frozenset[str]:
    """The signatures of the table that a release shows; of a checkout all of its engine's."""
    version = target.version if isinstance(target, Release) else ""
    entries = TABLE.get(ENGINES[target.engine].distribution, ())
    return frozenset(entry.signature for entry in entries if not version or (entry.first and entry.covers(version)))


def entry_at(target: str, signature: str) -> Triage | None:
    """The entry of a signature on a release ENGINE==VERSION, as `triage_of`; None for what is no engine's."""
    engine, _, version = target.partition("==")
    return triage_of(engine, signature, version) if engine in ENGINES else None


def known_line(target: str, signature: str) -> str:
    """The line of the entry of a signature that has the release ENGINE==VERSION in its span; "" where none has, or the
    target is another, such as a release with a defect in it.
    """
    version = target.partition("==")[2]
    entry = entry_at(target, signature) if is_version(version) else None
    return entry.line if entry is not None and entry.first and entry.covers(version) else ""


def is_known_in(target: str, signature: str) -> bool:
    """Whether an entry of the signature has the release ENGINE==VERSION in its span."""
    return bool(known_line(target, signature))


def triage_line(engine: str, finding: Finding, version: str, evidence: Collection[str] | None = None) -> str:
    """What is known of a finding, one line, with a warning where the table says otherwise than the finding. Of a
    `version` outside an entry's span, or an unknown one (""), no more is said than what has the signature.

    A checkout may have anything in it: `evidence` are the releases that show what shows the finding there, too, the
    replay file of a known finding; without one of the span nothing is known of it. None for a release, of whose
    findings the tests replay each.
    """
    entry = triage_of(engine, finding.signature, version)
    if entry is None:
        return UNTRIAGED
    is_covered = bool(version) and (not entry.first or entry.covers(version))
    is_shown = evidence is None or any(not entry.first or entry.covers(release) for release in evidence)
    if (is_covered and is_shown) or (evidence is None and not entry.first):
        return entry.line + entry.contradiction(finding)
    span = f"releases {entry.span}" if entry.first else "releases"
    return f"looks like what {span} have: {entry.text} ({', '.join(entry.sources)})"
