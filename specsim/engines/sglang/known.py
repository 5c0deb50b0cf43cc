"""What lifts of one SGLang, beside what is known of every release: where each function is, its parameters and a hash of
its body.

The known ones lie in a data file to which `specsim targets A..B --write FILE` adds. A release that is not in it is
compared with the nearest: what is the same, what drifted, and what has to be added before it is tested in full.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from specsim.engines.releases import releases_of
from specsim.engines.sglang.operations import FUNCTIONS, logits
from specsim.engines.sglang.operations.not_lifted import NOT_LIFTED
from specsim.engines.sglang.provider import SglangProvider
from specsim.errors import UsageError
from specsim.files import read_json
from specsim.lifting.lift import Lifter, TextStore, parameter_names
from specsim.lifting.source import SourceTree
from specsim.lifting.versions import is_version

FORMAT = "specsim.known/1"
FILE = Path(__file__).with_name("known_functions.json")

# Where a maintainer adds what is missing.
_ADDRESSES = "specsim/engines/sglang/where.py"
_TABLES = "the tables KERNELS and CALLERS of specsim/engines/sglang/operations"
_STUBS = "specsim/engines/sglang/operations"


# Reasons that end when another function is there.
_NOTHING_TO_ADD = ("its kernel could not be lifted",)


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One function of a source. `key` is the same on every release; `where` is FILE:LINE, "" where it is not found;
    `why_not` says why it does not run, "" when it does.
    """

    key: str
    where: str = ""
    parameters: tuple[str, ...] = ()
    body_hash: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class KnownBody:
    """A body that a function has had, and the releases that have it."""

    parameters: tuple[str, ...]
    body_hash: str
    releases: tuple[str, ...]


# Functions that some releases do not have, and were not meant to have.
_KEYS = {function.what: f"ops:{function.op}:{function.name}" for function in FUNCTIONS}
_NOT_OF_EVERY_RELEASE = {*_KEYS.values(), *(f"ops:{kernel.op}" for kernel in logits.KERNELS)}

# Why calls are left alone although they could be lifted: that is no drift.
_ON_PURPOSE = {call.why for call in NOT_LIFTED}

Known = Mapping[str, Sequence[KnownBody]]


# Looking


def survey(source: SourceTree, store: TextStore) -> list[Surveyed]:
    """Every function of a source that specsim runs or would run."""
    lifter = Lifter(source, store, {})
    subjects, missing = SglangProvider(source, store).subjects()
    found = [_surveyed(lifter, f"ops:{s.op}:{s.name}", s.where, s.source_hash) for s in subjects]
    # What no release has a source of is not drift; what specsim has no table entry for is not either.
    found += [
        Surveyed(_key_of_missing(entry.what), why_not=entry.why)
        for entry in missing
        if entry.why.startswith(("not found", "signature changed", "cannot be lifted", "its kernel"))
        and entry.why not in _ON_PURPOSE
    ]
    return found


def _key_of_missing(what: str) -> str:
    """The key that an operation would have if it were there: of a kernel, of a form of it "OP (FORM)", of a call of it
    "OP in FUNCTION".
    """
    if what in _KEYS:
        return _KEYS[what]
    op, inside, function = what.partition(" in ")
    if inside:
        return f"ops:{op}:caller:{function}"
    op, _, form = what.removesuffix(")").partition(" (")
    return f"ops:{op}:kernel:{op}:{form}" if form else f"ops:{op}:kernel:{op}"


def _surveyed(lifter: Lifter, key: str, where: str, source_hash: str) -> Surveyed:
    """A function by FILE:LINE, with the parameters of the innermost function around that line."""
    path, _, line = where.rpartition(":")
    around: ast.FunctionDef | None = None
    for node in ast.walk(lifter.module(path).tree):
        if isinstance(node, ast.FunctionDef) and node.lineno <= int(line) <= (node.end_lineno or node.lineno):
            around = node if around is None or node.lineno > around.lineno else around
    return Surveyed(key, where, parameter_names(around) if around else (), source_hash)


# Comparing


@dataclass(frozen=True, slots=True)
class Drift:
    """A function beside the nearest known release. `state` is "same", "changed", "new", "gone" or "not run"; `text`
    says how, in a few words.
    """

    function: Surveyed
    state: str
    text: str


def load_known(file: Path = FILE) -> dict[str, list[KnownBody]]:
    """The known functions of all releases; empty where the data file is not there."""
    if not file.is_file():
        return {}
    data = read_json(file, "name a data file of known functions, or one that is not there yet")
    try:
        return {
            key: [KnownBody(tuple(b["parameters"]), b["body_hash"], tuple(b["releases"])) for b in bodies]
            for key, bodies in data["functions"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is no data file of known functions ({error!r})", "name another file") from error


def surveys_of(known: Known) -> dict[str, list[Surveyed]]:
    """What a data file says of each release, as a survey of it."""
    surveys: dict[str, list[Surveyed]] = {}
    for key, bodies in known.items():
        for body in bodies:
            for release in body.releases:
                surveys.setdefault(release, []).append(Surveyed(key, "", body.parameters, body.body_hash))
    return surveys


def known_to_json(surveys: Mapping[str, Sequence[Surveyed]]) -> dict[str, Any]:
    """The data file of the surveys of many releases."""
    functions: dict[str, list[dict[str, Any]]] = {}
    for release in sorted(surveys, key=Version):
        for function in surveys[release]:
            if not function.body_hash:
                continue
            bodies = functions.setdefault(function.key, [])
            same = [b for b in bodies if (b["parameters"], b["body_hash"]) == _identity(function)]
            if same:
                same[0]["releases"].append(release)
            else:
                parameters, hashed = _identity(function)
                bodies.append({"parameters": parameters, "body_hash": hashed, "releases": [release]})
    return {"format": FORMAT, "functions": {key: functions[key] for key in sorted(functions)}}


def _identity(function: Surveyed) -> tuple[list[str], str]:
    return list(function.parameters), function.body_hash


def nearest_release(version: str | None, functions: Sequence[Surveyed], known: Known) -> str:
    """The known release to compare with: the newest that is not newer; without a version, the one that shares most
    bodies. "" when none is known.
    """
    releases = sorted({r for bodies in known.values() for body in bodies for r in body.releases}, key=Version)
    if not releases:
        return ""
    if version and is_version(version):
        older = [release for release in releases if Version(release) <= Version(version)]
        return older[-1] if older else releases[0]
    bodies = {(f.key, f.body_hash) for f in functions}

    def shared(release: str) -> int:
        return sum((k, b.body_hash) in bodies for k, of_key in known.items() for b in of_key if release in b.releases)

    return max(releases, key=shared)


def drifts(functions: Sequence[Surveyed], release: str, known: Known) -> list[Drift]:
    """Each function beside the release."""
    found = [_drift(function, release, known) for function in functions]
    there = {function.key for function in functions}
    for key, bodies in known.items():
        if key not in there and any(release in body.releases for body in bodies):
            found.append(Drift(Surveyed(key), "gone", f"{release} has it"))
    return found


def _drift(function: Surveyed, release: str, known: Known) -> Drift:
    before = next((body for body in known.get(function.key, ()) if release in body.releases), None)
    absent = function.why_not.startswith(("not found", _NOTHING_TO_ADD[0]))
    if absent and known and before is None:
        return Drift(function, "same", f"{release} does not have it either")
    if not function.where:
        if before is None and function.key in _NOT_OF_EVERY_RELEASE:
            return Drift(function, "same", "not of this release")
        return (
            Drift(function, "not run", function.why_not)
            if function.why_not
            else Drift(function, "same", "not of this release")
        )
    if function.why_not:
        return Drift(function, "not run", function.why_not)
    if before is None:
        return Drift(function, "new", f"{release or 'no known release'} does not have it")
    if before.parameters != function.parameters:
        was, now = (f"({', '.join(p)})" for p in (before.parameters, function.parameters))
        return Drift(function, "changed", f"parameters were {was}, are {now}")
    if before.body_hash != function.body_hash:
        return Drift(function, "changed", f"body was {before.body_hash}, is {function.body_hash}")
    return Drift(function, "same", f"as in {release}")


def to_add(version: str | None, found: Sequence[Drift]) -> list[str]:
    """What a maintainer has to add, a sentence each."""
    todo = []
    for drift in found:
        function, why = drift.function, drift.text
        if drift.state != "not run" or why.startswith(_NOTHING_TO_ADD):
            continue
        what = function.key.partition(":")[2]
        if why.startswith("signature changed"):
            todo.append(f"{what}: read what the new parameters mean, then list them in {_TABLES} ({why})")
        elif why.startswith("not found"):
            todo.append(f"{what}: add where it lives now to {_ADDRESSES} ({why})")
        else:
            todo.append(f"{what}: give it what it needs in {_STUBS} ({why})")
    if version and is_version(version) and version not in releases_of("sglang"):
        todo.append(
            f"add {version!r} to specsim/engines/sglang/releases.txt, and to {FILE.name} by `specsim targets --write`"
        )
    return todo


def to_json(target: str, nearest: str, found: Sequence[Drift], todo: Sequence[str]) -> dict[str, Any]:
    return {
        "target": target,
        "nearest": nearest,
        "functions": [
            {
                "name": drift.function.key,
                "state": drift.state,
                "text": drift.text,
                "where": drift.function.where,
                "parameters": list(drift.function.parameters),
                "body_hash": drift.function.body_hash,
            }
            for drift in found
        ],
        "to_add": list(todo),
    }
