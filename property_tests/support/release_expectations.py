"""Run as a program: write what the tests expect of releases into `fixtures/*.expected.json`, by checking them.

make expected VERSIONS="A B"

An entry that is there is made anew, so a release has to be read by a person before its difference is committed. The
tests of `property_tests/releases` compare with the same functions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packaging.version import Version

from property_tests.support.known_releases import FIXTURES
from property_tests.support.release_schedules import SCHEDULES, shown_by, signatures_of
from specsim.contracts.contract import Case
from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS
from specsim.engines.packages import open_source
from specsim.engines.sglang.operations import FUNCTIONS, logits
from specsim.engines.sglang.provider import SglangProvider
from specsim.engines.target import Release
from specsim.files import read_json, write_json
from specsim.lifting.cache import Cache, open_cache
from specsim.lifting.source import SourceTree
from specsim.tiers.ops.finding import signature_of
from specsim.tiers.ops.run import Outcome, run_case
from specsim.tiers.ops.suite import DRAWS_PER_CASE_MAX, SubjectResult, SuiteLimits, check_subject, chooser_of

# Tensor functions, and the few kernels beside them: functions.expected.json has these, releases.expected.json the rest.
FUNCTION_NAMES = {f.name for f in FUNCTIONS} | {f"kernel:{k.op}" for k in logits.KERNELS}
LISTED_FUNCTIONS = {f.what for f in FUNCTIONS} | {k.op for k in logits.KERNELS}
NOT_LIFTED = "specsim does not lift it from this engine yet"

# Operations: kernels, and the lines that call them

CASES = 24  # of a subject that costs 1; most cost 3


def check_all(
    source: SourceTree, cache: Cache, cases: int = CASES, ops: frozenset[str] = frozenset(OPS)
) -> dict[str, tuple[SubjectResult, Any]]:
    subjects, _not_run = SglangProvider(source, cache).subjects()
    subjects = [s for s in subjects if s.name not in FUNCTION_NAMES]
    return {
        s.name: (
            check_subject(OPS[s.op], s, seed=0, limits=SuiteLimits(cases, attempts=0, first_round=1)),
            s,
        )
        for s in subjects
        if s.op in ops
    }


def findings(results: dict[str, tuple[SubjectResult, Any]]) -> dict[str, dict[str, str]]:
    """By signature; as `check` has it, a caller of a kernel that is itself wrong is not checked."""
    found = {}
    for name, (result, subject) in results.items():
        if result.failures and not (subject.needs in results and results[subject.needs][0].failures):
            worst = result.counterexample
            assert worst is not None
            assert not worst.missed, f"{name} breaks {worst.rule.id} in some runs of a case: {worst.outcome}"
            found[signature_of(subject)] = {
                "where": subject.where,
                "reach": worst.reach,
                "rule": worst.rule.id,
                "explanation": worst.explanation,
            }
            assert name == subject.name
    return found


def operations_not_run(source: SourceTree, cache: Cache) -> list[str]:
    """What of a release's operations is listed as not run, without what is never lifted of this engine."""
    _subjects, not_run = SglangProvider(source, cache).subjects()
    not_lifted = {entry.what for entry in not_run if entry.why == NOT_LIFTED}
    elsewhere = LISTED_FUNCTIONS | {"verify_tree_target_only"}
    return sorted({entry.what for entry in not_run} - not_lifted - elsewhere)


def _of_operations(source: SourceTree, cache: Cache) -> dict[str, Any]:
    results = check_all(source, cache)
    return {
        "findings": findings(results),
        "judged": sorted(name for name, (result, _subject) in results.items() if result.cases),
        "not_run": operations_not_run(source, cache),
    }


# Tensor functions

CASES_OF_A_FUNCTION = 12


def functions_of(source: SourceTree, cache: Cache) -> tuple[dict[str, Subject], dict[str, str]]:
    """The tensor functions of a source by name, and which are not run with the reason."""
    subjects, not_run = SglangProvider(source, cache).subjects()
    return (
        {s.name: s for s in subjects if s.name in FUNCTION_NAMES},
        {e.what: e.why for e in not_run if e.what in LISTED_FUNCTIONS},
    )


def outcomes(subject: Subject, cases: int) -> list[tuple[Case, Outcome]]:
    """What the first cases that the subject accepts show; nothing is shrunk."""
    op = OPS[subject.op]
    found: list[tuple[Case, Outcome]] = []
    for index in range(DRAWS_PER_CASE_MAX * cases):
        case = op.generate(chooser_of(0, subject, index))
        if len(found) < cases and subject.accepts(case.sizes):
            outcome = run_case(op, subject, case)
            found += [(case, outcome)] if outcome.checked else []
    return found


def of_functions(source: SourceTree, cache: Cache) -> dict[str, Any]:
    """The entry of functions.expected.json: for each finding its rules and reaches."""
    subjects, not_run = functions_of(source, cache)
    shown = {name: outcomes(subject, CASES_OF_A_FUNCTION) for name, subject in subjects.items()}
    broken = {
        name: {(v.rule.id, subjects[name].reach(case.sizes).split(":")[0]) for case, o in found for v in o.violations}
        for name, found in shown.items()
    }
    return {
        "findings": {name: [" ".join(words) for words in sorted(rules)] for name, rules in broken.items() if rules},
        "judged": [name for name, found in shown.items() if found],
        "not_run": sorted(not_run),
    }


# Schedulers


def _of_scheduler(source: SourceTree, cache: Cache) -> list[str]:
    """What its first schedules show."""
    return signatures_of(shown_by(source.version, SCHEDULES, "0")["schedules"])


MADE_BY: dict[str, Callable[[SourceTree, Cache], Any]] = {
    "releases": _of_operations,
    "functions": of_functions,
    "scheduler": _of_scheduler,
}
"""What makes an entry of `fixtures/NAME.expected.json`, by NAME."""


def write(file: Path, version: str, entry: Any) -> None:
    """Put the entry of a release into a file, in the order of releases."""
    entries = {**read_json(file, "restore it from git"), version: entry}
    write_json(file, {each: entries[each] for each in sorted(entries, key=Version)})


def main() -> None:
    """Write the entries of the releases that are named, of every file or of those that --only names."""
    parser = argparse.ArgumentParser(description="What the tests expect of releases, by checking them: minutes each.")
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="a release that is in the cache")
    parser.add_argument("--only", action="append", choices=MADE_BY, help="one of the files; may be repeated")
    asked = parser.parse_args()
    cache = open_cache()
    for version in asked.versions:
        source = open_source(Release("sglang", version), cache)
        for name in asked.only or MADE_BY:
            file = FIXTURES / f"{name}.expected.json"
            entry = MADE_BY[name](source, cache)
            is_new = json.loads(file.read_text()).get(version) != entry
            write(file, version, entry)
            print(f"{version}: {file.name}: {'written' if is_new else 'as it was'}", flush=True)


if __name__ == "__main__":
    main()
