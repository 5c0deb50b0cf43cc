"""Real releases: what `check` says of them, found from random cases by the contract, and gone when the defect is
edited away.

What is expected, and which edits are made, is data in `fixtures/`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.made_up_sources import MadeUpSource
from specsim.choices.chooser import replayed
from specsim.contracts.registry import OPS
from specsim.engines.sglang.operations import FUNCTIONS, logits
from specsim.engines.sglang.provider import SglangProvider
from specsim.engines.sglang.releases import RELEASES, load
from specsim.lifting.cache import Cache
from specsim.lifting.lift import find_function, parse_module
from specsim.lifting.source import SourceTree
from specsim.tiers.ops.finding import signature_of
from specsim.tiers.ops.run import run_case
from specsim.tiers.ops.suite import Limits, SubjectResult, judge, worst_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
EXPECTED = json.loads((FIXTURES / "releases.expected.json").read_text())
FLIPS = json.loads((FIXTURES / "flips.json").read_text())

# What test_tensor_functions holds.
ELSEWHERE = {f.name for f in FUNCTIONS} | {f"kernel:{k.op}" for k in logits.KERNELS}
LISTED_ELSEWHERE = {f.what for f in FUNCTIONS} | {k.op for k in logits.KERNELS}
LISTED_ELSEWHERE |= {"verify_tree_target_only"}

Release = Callable[[str], SourceTree]


CASES = 24  # of a subject that costs 1; most cost 3

# Without --all-releases one is judged: the newest that the suite reads whose worker is wrong.
FEW = [line for line in (FIXTURES / "releases.txt").read_text().splitlines() if line in EXPECTED]
QUICK = {[v for v in FEW if any(":caller:" in name for name in EXPECTED[v]["findings"])][-1]}


def judge_all(
    source: SourceTree, cache: Cache, cases: int = CASES, ops: frozenset[str] = frozenset(OPS)
) -> dict[str, tuple[SubjectResult, Any]]:
    subjects, _not_run = SglangProvider(source, cache).subjects()
    subjects = [s for s in subjects if s.name not in ELSEWHERE]
    return {
        s.name: (
            judge(OPS[s.op], s, seed=0, limits=Limits(cases, attempts=0, first_round=1)),
            s,
        )
        for s in subjects
        if s.op in ops
    }


def findings(results: dict[str, tuple[SubjectResult, Any]]) -> dict[str, dict[str, str]]:
    """By signature; as `check` has it, a caller of a kernel that is itself wrong is not judged."""
    found = {}
    for name, (result, subject) in results.items():
        if result.failures and not (subject.needs in results and results[subject.needs][0].failures):
            worst = worst_of(result.failures)
            outcome = run_case(OPS[subject.op], subject, OPS[subject.op].generate(replayed(worst.tape)))
            assert outcome.of(worst.rule)
            found[signature_of(subject)] = {
                "where": subject.where,
                "reach": worst.reach,
                "rule": worst.rule.id,
                "explanation": subject.explain(),
            }
            assert name == subject.name
    return found


def without_numbers(found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Explanations without the sizes of the case that showed the finding."""
    return {name: {**each, "explanation": re.sub(r"\d+", "N", each["explanation"])} for name, each in found.items()}


@pytest.mark.parametrize("version", list(EXPECTED))
def test_a_release_has_the_findings_that_it_is_known_for_and_no_other(
    version: str, release: Release, wheel_cache: Cache, pytestconfig: pytest.Config
) -> None:
    if version not in QUICK and not pytestconfig.getoption("--all-releases"):
        pytest.skip(f"the operations of sglang=={version} are judged by `make test-releases`")
    results = judge_all(release(version), wheel_cache)
    assert without_numbers(findings(results)) == without_numbers(EXPECTED[version]["findings"])
    assert {name for name, (result, _s) in results.items() if result.cases} == set(EXPECTED[version]["judged"])


@pytest.mark.parametrize("version", list(EXPECTED))
@pytest.mark.slow(runs_one_in=3)
def test_what_a_release_cannot_run_is_listed_with_its_reason(
    version: str, release: Release, wheel_cache: Cache
) -> None:
    subjects, not_run = SglangProvider(release(version), wheel_cache).subjects()
    not_lifted = {entry.what for entry in not_run if entry.why == "specsim does not lift it from this engine yet"}
    assert sorted({entry.what for entry in not_run} - not_lifted - LISTED_ELSEWHERE) == EXPECTED[version]["not_run"]
    told_of = {entry.what.partition(" (")[0].split(" in ")[0] for entry in not_run}
    assert told_of | {s.op for s in subjects} >= set(OPS)
    assert all(entry.why for entry in not_run)


def test_every_known_release_has_its_expected_verdicts() -> None:
    assert tuple(EXPECTED) == RELEASES


@pytest.mark.parametrize("flip", FLIPS, ids=[flip["name"] for flip in FLIPS])
@pytest.mark.slow(runs_one_in=2)
def test_editing_the_defect_in_or_out_flips_the_verdict(
    flip: dict[str, Any], release: Release, wheel_cache: Cache
) -> None:
    edited = edit_call_argument(release(flip["release"]), flip)
    found = findings(judge_all(edited, wheel_cache, 25, frozenset({"fill_bonus_tokens"})))
    signature = f"ops:fill_bonus_tokens:{flip['subject']}"
    assert found.get(signature, {}).get("reach") == flip["reach"]
    assert set(found) == ({signature} if flip["reach"] else set())


def edit_call_argument(source: SourceTree, flip: dict[str, Any]) -> MadeUpSource:
    """The source with one positional argument of one call replaced."""
    module = parse_module(source, flip["path"])
    calls = [
        node
        for node in ast.walk(find_function(module, flip["function"]))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == flip["callee"]
    ]
    (call,) = calls
    argument = call.args[flip["argument"]]
    lines = module.text.splitlines(keepends=True)
    assert argument.lineno == argument.end_lineno
    line = lines[argument.lineno - 1]
    lines[argument.lineno - 1] = line[: argument.col_offset] + flip["becomes"] + line[argument.end_col_offset :]
    return MadeUpSource({flip["path"]: "".join(lines)}, base=source)


def subtract_one_more(source: SourceTree, path: str, function: str) -> MadeUpSource:
    """The source with the first `- 1` of a function made `- 2`."""
    module = parse_module(source, path)
    ones = [
        node.right
        for node in ast.walk(find_function(module, function))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Constant)
    ]
    lines = module.text.splitlines(keepends=True)
    line = lines[ones[0].lineno - 1]
    lines[ones[0].lineno - 1] = f"{line[: ones[0].col_offset]}2{line[ones[0].end_col_offset :]}"
    return MadeUpSource({path: "".join(lines)}, base=source)


def test_a_changed_signature_is_not_run_and_not_a_pass(release: Release, wheel_cache: Cache) -> None:
    flip = FLIPS[0]
    source = release(flip["release"])
    text = source.read(flip["kernel_path"]).replace(f"def {flip['callee']}(", f"def {flip['callee']}(new_argument, ")
    subjects, not_run = SglangProvider(MadeUpSource({flip["kernel_path"]: text}, base=source), wheel_cache).subjects()
    assert all(s.op != "fill_bonus_tokens" for s in subjects)
    reasons = {entry.what: entry.why for entry in not_run}
    assert reasons["fill_bonus_tokens"].startswith("signature changed: ")
    assert "new_argument" in reasons["fill_bonus_tokens"]
    assert reasons[f"fill_bonus_tokens in {flip['function']}"] == "its kernel could not be lifted"


def test_a_removed_function_is_not_run_and_not_a_pass(release: Release, wheel_cache: Cache) -> None:
    flip = FLIPS[0]
    source = release(flip["release"])
    text = source.read(flip["kernel_path"]).replace(f"def {flip['callee']}(", "def gone(")
    _subjects, not_run = SglangProvider(MadeUpSource({flip["kernel_path"]: text}, base=source), wheel_cache).subjects()
    assert any(entry.what == "fill_bonus_tokens" and entry.why.startswith("not found") for entry in not_run)


def test_a_kernel_that_is_itself_wrong_is_one_finding_and_its_callers_are_not_checked(
    release: Release, wheel_cache: Cache
) -> None:
    flip = FLIPS[0]
    source = release(flip["release"])
    provider = SglangProvider(subtract_one_more(source, flip["kernel_path"], flip["callee"]), wheel_cache)
    subjects, _not_run = provider.subjects()
    kernel, *callers = [s for s in subjects if s.op == "fill_bonus_tokens"]
    result = judge(OPS["fill_bonus_tokens"], kernel, seed=0, limits=Limits(20))
    assert result.counterexample is not None
    assert {caller.needs for caller in callers} == {kernel.name}


def test_make_test_releases_runs_every_file_that_has_tests_of_all_releases() -> None:
    folder = Path(__file__).parents[1]
    (listed,) = re.findall(r"^RELEASE_TESTS := (.*)$", (folder.parent / "Makefile").read_text(), re.MULTILINE)
    for path in folder.rglob("test_*.py"):
        text = path.read_text()
        if "--all-releases" in text or ("expected.json" in text and "release: Release" in text):
            places = {path.relative_to(folder.parent).as_posix(), path.parent.relative_to(folder.parent).as_posix()}
            assert places & set(listed.split()), path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1.0\nlatest\n", "'latest' is not a version"),
        ("1.1\n1.0\n", "1.0 stands after 1.1"),
        ("1.0\n1.0\n", "each once"),
    ],
)
def test_a_wrong_list_of_releases_is_an_error_that_names_the_line(text: str, problem: str) -> None:
    assert load("# oldest first\n1.0\n1.0.post1  # a fix\n") == ("1.0", "1.0.post1")
    with pytest.raises(ValueError, match=problem):
        load(text)
