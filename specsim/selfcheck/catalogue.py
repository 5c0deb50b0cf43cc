"""The mutants of the model and the known bugs that they re-create: `known_bugs.toml` and `blind_mutants.toml`, checked.

Blind mutants were written by someone who had read neither the rules nor their checks, and are scored apart.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

Table = TypeVar("Table", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A one-line change of the model.

    `title`       what is wrong, one sentence
    `references`  where the bug was reported or fixed
    `module`      import name of the module that is changed
    `line`        the line that is replaced, without its indentation; it occurs in the module exactly once
    `becomes`     what it is replaced by, one line, which gets the same indentation
    """

    id: str
    title: str
    references: tuple[str, ...]
    module: str
    line: str
    becomes: str


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A bug that an engine had. `why_not` says in one line why no mutant re-creates it; empty when one does."""

    id: str
    title: str
    references: tuple[str, ...]
    why_not: str
    mutants: tuple[Mutant, ...]

    @property
    def bug_class(self) -> str:
        return CLASSES[self.id[0]]


def bug_of(mutant: Mutant) -> str:
    """The id of the known bug that a mutant re-creates."""
    return mutant.id.partition("-")[0]


# ---- the files


class _MutantRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str
    title: str
    references: tuple[str, ...] = ()
    module: str
    line: str
    becomes: str

    def mutant(self, references: tuple[str, ...] = ()) -> Mutant:
        return Mutant(self.id, self.title, self.references or references, self.module, self.line, self.becomes)


class _BugRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str
    title: str
    references: tuple[str, ...]
    why_not: str = ""
    mutants: tuple[_MutantRow, ...] = ()

    def bug(self) -> KnownBug:
        mutants = tuple(row.mutant(self.references) for row in self.mutants)
        return KnownBug(self.id, self.title, self.references, self.why_not, mutants)


class KnownBugs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of known_bugs.toml."""

    classes: dict[str, str]
    bugs: tuple[_BugRow, ...]


class BlindMutants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of blind_mutants.toml."""

    mutants: tuple[_MutantRow, ...]


def read(text: str, form: type[Table]) -> Table:
    """A table of that form. Raises ValueError, which names the place, for text that has another one."""
    return msgspec.convert(tomllib.loads(text), form, str_keys=True)


def load(name: str, form: type[Table]) -> Table:
    """The table in a file beside this module. Raises ValueError, which names file and place, for one that is wrong."""
    try:
        return read(Path(__file__).with_name(name).read_text(encoding="utf-8"), form)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def require_consistent(classes: Iterable[str], bugs: Iterable[KnownBug]) -> None:
    """Raise ValueError for known bugs that contradict themselves or one another."""
    seen: set[str] = set()
    for bug in bugs:
        names = [mutant.id.lower() for mutant in bug.mutants]
        problems = {
            "its class is not listed": bug.id[:1] not in classes,
            "it has neither mutants nor why_not, or both": bool(bug.mutants) == bool(bug.why_not),
            "an id is there twice": len(names) > len(set(names)) or bool(seen & {bug.id.upper(), *names}),
            "a mutant has the id of another bug": any(bug_of(mutant) != bug.id for mutant in bug.mutants),
            "a mutant changes nothing": any(mutant.line == mutant.becomes for mutant in bug.mutants),
        }
        seen |= {bug.id.upper(), *names}
        for problem, is_there in problems.items():
            if is_there:
                raise ValueError(f"known bug {bug.id!r}: {problem}")


_KNOWN = load("known_bugs.toml", KnownBugs)
CLASSES = _KNOWN.classes
BUGS: tuple[KnownBug, ...] = tuple(row.bug() for row in _KNOWN.bugs)
require_consistent(CLASSES, BUGS)
CATALOGUE: tuple[Mutant, ...] = tuple(
    sorted((mutant for bug in BUGS for mutant in bug.mutants), key=lambda mutant: mutant.id)
)
BLIND: tuple[Mutant, ...] = tuple(row.mutant() for row in load("blind_mutants.toml", BlindMutants).mutants)
