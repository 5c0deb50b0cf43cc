"""What is publicly known of each finding, read from `triage.toml`.

`check` prints it beside the finding; a signature that is not in the table is new, and the line says so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from specsim.engines.registry import ENGINES
from specsim.lifting.versions import is_version, version_key
from specsim.verdict import Finding, Severity

FILE = Path(__file__).with_name("triage.toml")
NEW = f"new: not in the table of known findings; look for a public report, then add it to {FILE.name}"

Kind = Literal["known", "unknown", "by design"]
REACHES = frozenset({"default", "option", "guarded", "not called", "unknown"})


@dataclass(frozen=True, slots=True)
class Triage:
    """What is known of the findings of one signature.

    `severity`    that they have, None where the entry does not say; `reaches` the kinds of reach seen on some release
                  ("unknown" for a tier that reads no configuration)
    `first`, `last`  the oldest and newest release that show it; "" for last: the newest one still does; "" for both
                  where the entry does not say
    `references`  public reports, fixes and reviews, newest first
    `upstream`    NAME of docs/upstream/NAME.md for what is unknown
    """

    signature: str
    kind: Kind
    text: str
    severity: Severity | None = None
    reaches: frozenset[str] = frozenset()
    first: str = ""
    last: str = ""
    references: tuple[str, ...] = ()
    upstream: str = ""

    def covers(self, version: str) -> bool:
        """Whether a release lies in the span."""
        last = version_key(self.last) if self.last else None
        return version_key(self.first) <= version_key(version) and (last is None or version_key(version) <= last)

    @property
    def line(self) -> str:
        """One line for beside the finding."""
        where, report = ", ".join(self.references), f"docs/upstream/{self.upstream}.md"
        if not self.first:
            return f"{self.kind}: {self.text} ({f'to send: {report}' if self.upstream else f'the like: {where}'})"
        if self.upstream:
            where = f"report in {report}{f'; see also {where}' if where else ''}"
        until = f"to {self.last}" if self.last else "on"
        return f"{self.kind}, from {self.first} {until}: {self.text}{f' ({where})' if where else ''}"

    def contradiction(self, finding: Finding, version: str | None) -> str:
        """Where the entry and a finding differ, as text to append, "" where they agree. A race that made no token wrong
        is a metric, whatever others of its signature are.
        """
        if self.severity not in (None, finding.severity) and finding.severity is not Severity.METRIC:
            return f"; the table has severity {self.severity}"
        if self.first and version and not self.covers(version):
            return "; the table does not have it in this release"
        reach = finding.reach.split(":")[0]
        return "" if not self.reaches or reach in self.reaches else f"; the table does not have reach {reach}"


def load(text: str) -> dict[str, tuple[Triage, ...]]:
    """The entries of a table by engine. Raises ValueError, which names the entry, for one that is wrong."""
    return {
        engine: tuple(
            _entry(f"[[{engine}]] {number} {row.get('signature')!r}", row) for number, row in enumerate(rows, 1)
        )
        for engine, rows in tomllib.loads(text).items()
    }


_ROW: Mapping[str, type] = {
    **dict.fromkeys(("signature", "kind", "severity", "releases", "text", "upstream"), str),
    **dict.fromkeys(("reaches", "references"), list),
}


def _entry(name: str, row: dict[str, Any]) -> Triage:
    for key, value in row.items():
        if not isinstance(value, _ROW.get(key, ())):
            raise ValueError(f"{name}: {key} = {value!r}; allowed are {', '.join(_ROW)}, of text or lists of text")
    if missing := {"signature", "kind", "text"} - set(row):
        raise ValueError(f"{name} has no {' and no '.join(sorted(missing))}")
    first, _, last = row.get("releases", "").partition("..")
    severity, reaches = row.get("severity"), frozenset(row.get("reaches", ()))
    problems = {
        f"kind = {row['kind']!r}": row["kind"] not in get_args(Kind),
        f"severity = {severity!r}": severity is not None and severity not in set(Severity),
        f"reaches = {sorted(reaches - REACHES)}": not reaches <= REACHES,
        f"releases = {row.get('releases')!r}": not all(is_version(one) for one in (first, last) if one)
        or (bool(last) and version_key(first) > version_key(last)),
        "severity, reaches and releases go together": len({bool(severity), bool(reaches), bool(first)}) > 1,
        "what is unknown has an upstream, and nothing else has one": (row["kind"] == "unknown") != ("upstream" in row),
        "what is not unknown has references": row["kind"] != "unknown" and not row.get("references"),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ValueError(f"{name}: {problem}")
    return Triage(
        row["signature"],
        row["kind"],
        row["text"],
        Severity(severity) if severity else None,
        reaches,
        first,
        last,
        tuple(row.get("references", ())),
        row.get("upstream", ""),
    )


TABLE = load(FILE.read_text(encoding="utf-8"))
"""By what pip calls an engine: two names of one package share their entries."""


def triage_of(engine: str, signature: str, version: str | None) -> Triage | None:
    """The entry of a signature: of the span that has the version; the newest where no version is known or none has."""
    entries = [entry for entry in TABLE.get(ENGINES[engine].distribution, ()) if entry.signature == signature]
    if version:
        entries = [entry for entry in entries if entry.first and entry.covers(version)] or entries
    return entries[-1] if entries else None


def is_known_in(target: str, signature: str) -> bool:
    """Whether an entry of the signature has the release ENGINE==VERSION in its span."""
    engine, _, version = target.partition("==")
    entry = triage_of(engine, signature, version) if engine in ENGINES and version else None
    return entry is not None and bool(entry.first) and entry.covers(version)


def triage_line(engine: str, finding: Finding, version: str | None) -> str:
    """What is known of a finding, one line, with a warning where the table says otherwise than the finding."""
    entry = triage_of(engine, finding.signature, version)
    return entry.line + entry.contradiction(finding, version) if entry else NEW
