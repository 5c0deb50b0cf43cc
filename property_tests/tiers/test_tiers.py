"""What is written once for every tier holds for one that nobody has seen, and nothing else asks which tier it has."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from specsim import replay_file
from specsim.errors import UsageError
from specsim.isolation.conversation import ChildEnded
from specsim.tiers import process
from specsim.tiers.checking import run_suite
from specsim.tiers.messages import At, CheckWork, Differs, Done, End, FailureWork, Found, Request
from specsim.tiers.ops.tier import OpsTier
from specsim.tiers.registry import TIERS
from specsim.tiers.transfer import broken, found
from specsim.verdict import CheckedSubject, Finding, NotRun, Rule, Severity, Suite, Verdict

ROOT = Path(__file__).parents[2]
# What parses the user's --only, and data of releases that names tiers.
MAY_NAME_TIERS = {
    "specsim/commands/check.py",
    "specsim/commands/ignored_options.py",
    "specsim/commands/model.py",
    "specsim/engines/sglang/known.py",
    "specsim/findings/bisect/command.py",
}
RULES = MappingProxyType(
    {name: Rule(name, name.lower(), "it is so", Severity.WRONG_RESULT) for name in ("X1", "X2", "X3")}
)
DIES = "dies"


class MadeUpTier(OpsTier):
    """A fourth tier: subjects of its own, which run in its own process, and findings of its own rules."""

    name = "made-up"
    resumes_skipped = False
    end_rules = ("X3", "X2")

    def blames(self, request: Request) -> bool:
        return True

    @property
    def rules(self) -> Any:
        return RULES

    def signature_of_end(self, subject: str, rule: Rule) -> str:
        return f"made-up:{subject}:{rule.id}"


def request_of(**fields: Any) -> Request:
    of_it: dict[str, Any] = {"tier": "made-up", "target": "model", "cache": "", "seed": 0, "count": 9}
    return Request(**{**of_it, "seconds": 60.0, "hang_seconds": 1.0, **fields})


def done(subject: str, cases: int = 9) -> Done:
    return Done(subject=subject, judged=CheckedSubject(subject, "f", "f.py:1", cases), not_run=[])


def found_of(subject: str, title: str = "wrong") -> Found:
    stored = json.loads((ROOT / "fixtures" / "replays" / "bonus-token-stride.json").read_text())
    replay = replay_file.from_json(stored, ROOT)
    fields: dict[str, Any] = {"expected": "1", "actual": "2", "reach": "default", "where": "", "count": 1}
    return found(broken(RULES["X1"], title=title, signature=f"made-up:{subject}:X1", tier="made-up", **fields), replay)


Script = Sequence[Sequence[Any]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    monkeypatch.setitem(TIERS, "made-up", MadeUpTier())
    return []


def check(
    script: Script, asked: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Suite, list[Finding]]:
    """Check with children that send these messages, one after the other; DIES ends one."""
    children = iter(script)

    def ask(request: Request, _hang_seconds: float, _hash_seed: str = "") -> Iterator[Any]:
        asked.append(request)
        for message in next(children):
            if message == DIES:
                raise ChildEnded(False, "ends its process (SIGSEGV)", "")
            yield message

    monkeypatch.setattr(process, "ask", ask)
    return run_suite(request_of(), tmp_path, lambda _subject, _cases: None)


def test_a_case_that_ends_its_child_is_a_finding_and_the_other_subjects_are_run(
    asked: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = At(subject="b", index=4, count=4, place={"tape": [7]})
    script: list[list[Any]] = [
        [At(subject="a"), done("a"), At(subject="b", place={"device": "cpu"}), at, DIES],
        [found_of("b", "a case ends its process"), done("b", 5)],
        [At(subject="c"), done("c"), End(not_run=[NotRun("d", "it is not there")])],
    ]
    suite, findings = check(script, asked, tmp_path, monkeypatch)
    assert [(checked.op, checked.cases) for checked in suite.judged] == [("a", 9), ("b", 5), ("c", 9)]
    assert (suite.cases, suite.not_run) == (23, [NotRun("d", "it is not there")])
    assert [Path(finding.replay).parent for finding in findings] == [tmp_path]
    failure, last = asked[1].work, asked[2].work
    assert isinstance(failure, FailureWork)
    assert (failure.subject, failure.index, failure.place) == ("b", 4, {"device": "cpu", "tape": [7]})
    assert last == CheckWork(skip=("a", "b"), failed=("b",))


def test_what_ends_a_child_while_shrinking_keeps_the_case_that_was_hit(
    asked: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[list[Any]] = [
        [At(subject="a", index=8), At(subject="a", index=-1), DIES],
        [At(subject="a"), found_of("a"), done("a"), End(not_run=[])],
    ]
    _suite, findings = check(script, asked, tmp_path, monkeypatch)
    assert [finding.title for finding in findings] == ["wrong"]
    assert asked[1].work == CheckWork(unshrunk=("a",))


def test_a_finding_is_made_without_a_replay_file_when_whoever_writes_it_dies_too(
    asked: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: Script = [[At(subject="a", index=2), DIES], [DIES], [End(not_run=[])]]
    suite, (finding,) = check(script, asked, tmp_path, monkeypatch)
    assert (finding.signature, finding.replay) == ("made-up:a:X3", "")
    assert "the process that writes it ends its process" in finding.details[1]
    assert [(checked.op, checked.cases) for checked in suite.judged] == [("a", 3)]


def test_one_signature_is_one_finding_however_often_it_is_sent(
    asked: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [[At(subject="a"), found_of("a"), found_of("a", "shrunk"), done("a"), End(not_run=[])]]
    _suite, findings = check(script, asked, tmp_path, monkeypatch)
    assert [finding.title for finding in findings] == ["shrunk"]


def test_a_child_that_ends_before_a_case_is_no_finding(
    asked: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="ended early"):
        check([[DIES]], asked, tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="ended early"):
        check([[At(subject="a"), done("a"), DIES]], asked, tmp_path, monkeypatch)


@pytest.mark.parametrize(("gone", "left", "code"), [("made-up:a:X1", [], 3), ("", ["made-up:a:X1"], 1)])
def test_two_runs_that_differ_cost_their_finding_and_no_other(
    gone: str, left: list[str], code: int, asked: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    differs = Differs("the schedule of a", "a launch was one, and then another", gone)
    script = [[At(subject="a"), found_of("a"), done("a"), End(not_run=[], nondeterministic=[differs])]]
    suite, findings = check(script, asked, tmp_path, monkeypatch)
    assert [finding.signature for finding in findings] == left
    assert suite.nondeterministic == [NotRun(differs.what, differs.text)]
    assert Verdict("made-up", 0, [suite], findings).exit_code == code


def lines_that_ask(source: str) -> list[int]:
    """The lines that compare something with a tier's name, or ask of which class a replay file is."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            constants = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            lines += [node.lineno] if constants & {"ops"} else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            names = set(ast.unparse(node).replace(".", " ").replace(")", " ").split())
            lines += [node.lineno] if names & {"OpReplay"} else []
    return lines


def test_nothing_outside_the_tiers_asks_which_tier_it_has() -> None:
    files = [path for path in (ROOT / "specsim").rglob("*.py") if "tiers" not in path.parts]
    asking = {path.relative_to(ROOT).as_posix() for path in files if lines_that_ask(path.read_text())}
    assert asking - MAY_NAME_TIERS == set()


def test_a_question_about_the_tier_would_be_noticed() -> None:
    source = 'if tier == "ops":\n    pass\nx = isinstance(stored, replay_file.OpReplay)\ny = a in ("a", "ops")\n'
    assert lines_that_ask(source) == [1, 3, 4]
