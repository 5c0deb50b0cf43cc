"""The mutants of the reference engine and the known bugs that they re-create: `known_bugs.toml`, checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

Table = TypeVar("Table", bound=msgspec.Struct)

OF_NO_BUG = "Z"
"""The class of mutants that re-create no known bug."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A one-line change of the reference engine.

    `title`       what is wrong, one sentence
    `references`  where the bug was reported or fixed
    `line`        the line that is replaced, without its indentation; it occurs in the module exactly once
    `becomes`     what it is replaced by, one line, which gets the same indentation
    """

    id: str
    title: str
    references: tuple[str, ...]
    line: str
    becomes: str


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A bug that an engine had. Of one that no mutant re-creates exactly one of three says what there is instead.

    `found_by`  what finds it: a planted defect of a release, the check of an operation, or a replay file
    `to_plant`  the defect to plant into a release, where nothing finds it yet
    `why_not`   why nothing is to find it
    """

    id: str
    title: str
    references: tuple[str, ...]
    found_by: str
    to_plant: str
    why_not: str
    mutants: tuple[Mutant, ...]

    @property
    def bug_class(self) -> str:
        return CLASSES[self.id[0]]


def bug_of(mutant: Mutant) -> str:
    """The id of the known bug that a mutant re-creates; its own for one that re-creates none."""
    return mutant.id.partition("-")[0]


# ---- the file


class _MutantRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str
    title: str
    references: tuple[str, ...] = ()
    line: str
    becomes: str

    def mutant(self, references: tuple[str, ...] = ()) -> Mutant:
        return Mutant(self.id, self.title, self.references or references, self.line, self.becomes)


class _BugRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str
    title: str
    references: tuple[str, ...]
    found_by: str = ""
    to_plant: str = ""
    why_not: str = ""
    mutants: tuple[_MutantRow, ...] = ()

    def bug(self) -> KnownBug:
        mutants = tuple(row.mutant(self.references) for row in self.mutants)
        return KnownBug(self.id, self.title, self.references, self.found_by, self.to_plant, self.why_not, mutants)


class KnownBugs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of known_bugs.toml. `mutants` are those that re-create no known bug."""

    classes: dict[str, str]
    bugs: tuple[_BugRow, ...]
    mutants: tuple[_MutantRow, ...] = ()


def read(text: str, form: type[Table]) -> Table:
    """A table of that form. Raises ValueError, which names the place, for text that has another one."""
    return msgspec.convert(tomllib.loads(text), form, str_keys=True)


def load(name: str, form: type[Table]) -> Table:
    """The table in a file beside this module. Raises ValueError, which names file and place, for one that is wrong."""
    try:
        return read(Path(__file__).with_name(name).read_text(encoding="utf-8"), form)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def require_consistent(classes: Iterable[str], bugs: Iterable[KnownBug], mutants: Iterable[Mutant] = ()) -> None:
    """Raise ValueError for known bugs that contradict themselves or one another, and for `mutants` of no bug."""
    seen: set[str] = set()
    for bug in bugs:
        names = [mutant.id.lower() for mutant in bug.mutants]
        said = sum(map(bool, (bug.mutants, bug.found_by, bug.to_plant, bug.why_not)))
        problems = {
            "its class is not listed": bug.id[:1] not in classes,
            "it has not one of mutants, found_by, to_plant and why_not": said != 1,
            "an id is there twice": len(names) > len(set(names)) or bool(seen & {bug.id.upper(), *names}),
            "a mutant has the id of another bug": any(bug_of(mutant) != bug.id for mutant in bug.mutants),
            "a mutant changes nothing": any(mutant.line == mutant.becomes for mutant in bug.mutants),
        }
        seen |= {bug.id.upper(), *names}
        _require(f"known bug {bug.id!r}", problems)
    for mutant in mutants:
        problems = {
            f"its class is not {OF_NO_BUG}": mutant.id[:1] != OF_NO_BUG or OF_NO_BUG not in classes,
            "an id is there twice": mutant.id.lower() in seen,
            "it changes nothing": mutant.line == mutant.becomes,
        }
        seen.add(mutant.id.lower())
        _require(f"mutant {mutant.id!r}", problems)


def _require(what: str, problems: dict[str, bool]) -> None:
    for problem, is_there in problems.items():
        if is_there:
            raise ValueError(f"{what}: {problem}")


_KNOWN = load("known_bugs.toml", KnownBugs)
CLASSES = _KNOWN.classes
BUGS: tuple[KnownBug, ...] = tuple(row.bug() for row in _KNOWN.bugs)
_OF_NO_BUG = tuple(row.mutant() for row in _KNOWN.mutants)
require_consistent(CLASSES, BUGS, _OF_NO_BUG)
CATALOGUE: tuple[Mutant, ...] = tuple(
    sorted((*(mutant for bug in BUGS for mutant in bug.mutants), *_OF_NO_BUG), key=lambda mutant: mutant.id)
)
