"""Real releases: what `check` says of them, found from random cases by the contract, and gone when the defect is
edited away.

What is expected, and which edits are made, is data in `fixtures/`.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.known_releases import FEW, FIXTURES, NEWEST, RELEASES
from property_tests.support.made_up_sources import MadeUpSource, edited
from property_tests.support.release_expectations import MADE_BY, check_all, findings, operations_not_run
from specsim.contracts.registry import OPS
from specsim.engines.releases import load
from specsim.engines.sglang.provider import SglangProvider
from specsim.engines.sglang.where import places
from specsim.interpreter.lockstep.launch import lockstep
from specsim.lifting.cache import Cache
from specsim.lifting.lift import find_function, parse_module
from specsim.lifting.source import SourceTree
from specsim.tiers.ops.suite import SuiteLimits, check_subject, chooser_of

EXPECTED = json.loads((FIXTURES / "releases.expected.json").read_text())
FLIPS = json.loads((FIXTURES / "flips.json").read_text())

Release = Callable[[str], SourceTree]

# Without --all-releases one is checked: the newest that the suite reads whose worker is wrong.
QUICK = {[v for v in FEW if any(":caller:" in name for name in EXPECTED[v]["findings"])][-1]}


def without_numbers(found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Explanations without the sizes of the case that showed the finding."""
    return {name: {**each, "explanation": re.sub(r"\d+", "N", each["explanation"])} for name, each in found.items()}


@pytest.mark.parametrize("version", list(EXPECTED))
def test_a_release_has_the_findings_that_it_is_known_for_and_no_other(
    version: str, release: Release, wheel_cache: Cache, pytestconfig: pytest.Config
) -> None:
    if version not in QUICK and not pytestconfig.getoption("--all-releases"):
        pytest.skip(f"the operations of sglang=={version} are checked by `make test-releases`")
    results = check_all(release(version), wheel_cache)
    assert without_numbers(findings(results)) == without_numbers(EXPECTED[version]["findings"])
    assert {name for name, (result, _s) in results.items() if result.cases} == set(EXPECTED[version]["judged"])


@pytest.mark.parametrize("version", list(EXPECTED))
@pytest.mark.slow(runs_one_in=3)
def test_what_a_release_cannot_run_is_listed_with_its_reason(
    version: str, release: Release, wheel_cache: Cache
) -> None:
    subjects, not_run = SglangProvider(release(version), wheel_cache).subjects()
    assert operations_not_run(release(version), wheel_cache) == EXPECTED[version]["not_run"]
    told_of = {entry.what.partition(" (")[0].split(" in ")[0] for entry in not_run}
    assert told_of | {s.op for s in subjects} >= set(OPS)
    assert all(entry.why for entry in not_run)


@pytest.mark.parametrize("name", MADE_BY)
def test_every_known_release_has_an_entry_in_every_file_of_expectations(name: str) -> None:
    assert list(json.loads((FIXTURES / f"{name}.expected.json").read_text())) == list(RELEASES), "see `make expected`"
    assert set(FEW) <= set(RELEASES)


@pytest.mark.parametrize("flip", FLIPS, ids=[flip["name"] for flip in FLIPS])
@pytest.mark.slow(runs_one_in=2)
def test_editing_the_defect_in_or_out_flips_the_verdict(
    flip: dict[str, Any], release: Release, wheel_cache: Cache
) -> None:
    edited = edit_call_argument(release(flip["release"]), flip)
    found = findings(check_all(edited, wheel_cache, 25, frozenset({"fill_bonus_tokens"})))
    signature = f"ops:fill_bonus_tokens:{flip['subject']}"
    assert found.get(signature, {}).get("reach") == flip["reach"]
    assert set(found) == ({signature} if flip["reach"] else set())


def test_an_other_in_the_two_loads_that_alloc_extend_subtracts_ends_its_finding(
    release: Release, wheel_cache: Cache
) -> None:
    """Its sums are right while the masked-off lanes of both hold the same, and under each of two poisons they do."""
    (path,) = [p for p in release(NEWEST).paths("srt/mem_cache") if p.endswith("triton_ops/allocator.py")]
    mended = edited(release(NEWEST), path, r"(mask=\w+ <= pid)\)", r"\1, other=0)", within="alloc_extend_kernel")
    only = frozenset({"alloc_extend"})
    found = findings(check_all(release(NEWEST), wheel_cache, 25, only))
    assert {name: each["rule"] for name, each in found.items()} == {"ops:alloc_extend:kernel:alloc_extend": "O4"}
    assert findings(check_all(mended, wheel_cache, 25, only)) == {}


# By what is wrong: what the kernel has there, and what takes its place.
WRONG_STEPS = {
    "a temperature that is not divided by": (r"key = value / temperature -", "key = value -"),
    "noise that is no exponential's": (r"-libdevice\.log1p\(-uniform\)", "uniform"),
    "logits that are kept without what the draft before adds": (
        r"value\.to\(L\.dtype\.element_ty\)",
        "tl.load(X + row * XS + i, in_shard, 0)",
    ),
    "a token behind the vocabulary": (r"valid = i < WIDTH", "valid = i < PADDED"),
}


@pytest.mark.parametrize("wrong", WRONG_STEPS)
def test_a_wrong_step_with_random_numbers_of_its_own_is_found(wrong: str, release: Release, wheel_cache: Cache) -> None:
    (path,) = [path for path, _name in places("MarkovSampleStep")]
    source, op = edited(release(RELEASES[-1]), path, *WRONG_STEPS[wrong]), OPS["markov_frequencies"]
    (subject,) = [s for s in SglangProvider(source, wheel_cache, op=op.name).subjects()[0] if s.op == op.name]

    def is_wrong(index: int) -> bool:
        case = op.generate(chooser_of(0, subject, index))
        if not subject.accepts(case.sizes):
            return False
        case.sizes["draws"] = 2**12
        with lockstep():
            results = subject.run(case.sizes, {**case.clone().tensors, **op.allocate_outputs(case)})
        return any(bool(each.any()) for each in op.wrong(case, op.expected(case), results).values())

    assert any(map(is_wrong, range(16)))


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
    result = check_subject(OPS["fill_bonus_tokens"], kernel, seed=0, limits=SuiteLimits(20))
    assert result.counterexample is not None
    assert {caller.needs for caller in callers} == {kernel.name}


def test_make_test_releases_runs_every_file_that_has_tests_of_all_releases() -> None:
    folder = Path(__file__).parents[1]
    command = ["make", "-s", "--eval", "show: ; @echo $(RELEASE_TESTS)", "show"]
    shown = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=True).stdout
    listed = {folder.parent / path for path in shown.split()}
    for path in folder.rglob("test_*.py"):
        text = path.read_text()
        reads_the_list = "--all-releases" in text or re.search(r"import .*\bRELEASES\b", text)
        if reads_the_list or ("expected.json" in text and "release: Release" in text):
            assert path in listed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1.0\nlatest\n", "Invalid version: 'latest'"),
        ("1.1\n1.0\n", "1.0 stands after 1.1"),
        ("1.0\n1.0\n", "each once"),
    ],
)
def test_a_wrong_list_of_releases_is_an_error_that_names_the_line(text: str, problem: str) -> None:
    assert load("# oldest first\n1.0\n1.0.post1  # a fix\n") == ("1.0", "1.0.post1")
    with pytest.raises(ValueError, match=problem):
        load(text)
