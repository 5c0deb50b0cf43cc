"""--select, --ignore and --fail-on: what a check reports, and which of it fails."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.command_line import specsim
from property_tests.support.findings import found
from property_tests.support.wrong_providers import WRONG
from specsim.cli import main
from specsim.errors import UsageError
from specsim.findings.comparison import Baseline, Reach, compare
from specsim.findings.explain import RULES
from specsim.findings.matrix import Column, Matrix, cell_of
from specsim.findings.selection import EVERYTHING, Selection, fail_on_of, selection_of
from specsim.report.check import Detail, print_verdict
from specsim.tiers.registry import TIERS
from specsim.verdict import FAILS_BY_DEFAULT, REACHES, CheckedSubject, FailOn, Finding, Severity, Suite, Verdict

KINDS = st.tuples(st.sampled_from(list(REACHES)), st.sampled_from(list(Severity)))
BONUS = "ops:fill_bonus_tokens:kernel:fill_bonus_tokens"


def finding(signature: str = BONUS, rule: str = "O1", reach: str = "default", severity: str = "leak") -> Finding:
    where = "guarded:a.py:1" if reach == "guarded" else reach
    return found(signature, rule=rule, severity=Severity(severity), reach=where)


def verdict(*findings: Finding, **more: Any) -> Verdict:
    return Verdict("model", 0, [Suite("ops", cases=9)], list(findings), **more)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["check", "model", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


# Which are reported


@pytest.mark.parametrize(
    "pattern", ["O1", "o1", "equals-reference", "equals-reference (O1)", BONUS, "ops:*", "*_tokens"]
)
def test_a_finding_is_selected_by_rule_number_slug_signature_or_glob(pattern: str) -> None:
    assert selection_of([pattern], []).takes(finding())
    assert not selection_of([], [pattern]).takes(finding())
    assert not selection_of([pattern], []).takes(finding("workers:another:I58", "I58"))


def test_what_is_ignored_is_ignored_though_it_is_selected() -> None:
    assert not Selection(("O1",), ("ops:*",)).takes(finding())
    assert Selection((), ()).takes(finding()) == EVERYTHING.takes(finding()) is True


def test_every_rule_can_be_selected_by_number_and_by_slug() -> None:
    for rule in RULES.values():
        assert selection_of([rule.slug], [rule.id]) == Selection((rule.id,), (rule.id,))


def test_a_check_reports_what_is_selected_and_names_the_rest_as_ignored(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(WRONG))
    common = ("check", "mine:provider", "--cases", "3", "--device", "cpu", "--no-shrink", "--json", "v.json")
    ended = specsim(tmp_path, *common, "--ignore", "equals-reference")
    data = json.loads((tmp_path / "v.json").read_text())
    assert (ended.returncode, data["verdict"], data["findings"], data["ignored"]) == (0, "pass", [], [BONUS])
    assert "no findings, 1 ignored" in ended.stdout
    assert "1 with a finding" in ended.stdout  # what is ignored is not ok
    ended = specsim(tmp_path, *common, "--select", "ops:fill_*", "--fail-on", "default")
    data = json.loads((tmp_path / "v.json").read_text())
    assert (ended.returncode, data["verdict"], len(data["findings"])) == (0, "pass", 1)
    assert data["fail_on"] == "default/by-design"
    assert "pass: 1 finding below --fail-on default/by-design" in ended.stdout


def test_an_ignored_finding_is_not_gone_from_a_baseline_and_no_cell_calls_it_clean() -> None:
    shown = verdict(ignored=(BONUS,))
    shown.suites[0].judged.append(CheckedSubject("fill_bonus_tokens", "kernel:fill_bonus_tokens", "", 9))
    compared = compare(shown, Baseline("b", frozenset({BONUS}), Reach()))
    assert (compared.gone, compared.not_judged) == ((), (BONUS,))
    assert cell_of(Column("model", shown.to_json(), "", 0, 0.0), BONUS).state == "not run"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("content-reed", "content-read"), ("opps:fill", "ops"), ("equals_reference", "equals-reference")],
)
@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_a_pattern_that_is_no_rule_and_no_signature_is_refused_with_what_was_meant(
    option: str, typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, option, typed)
    assert f"{option} {typed!r} is no rule and no signature" in said
    assert f"Did you mean {meant}?" in said


# Which fail


@given(KINDS, KINDS)
def test_a_finding_fails_from_the_reach_and_the_severity_on_that_are_named(
    of_it: tuple[str, Severity], least: tuple[str, Severity]
) -> None:
    found = finding(reach=of_it[0], severity=of_it[1])
    reaches, severities = list(REACHES), list(Severity)
    reached = reaches.index(of_it[0]) <= reaches.index(least[0])
    expected = reached and severities.index(of_it[1]) <= severities.index(least[1])
    assert FailOn(*least).fails(found) == expected
    assert verdict(found, fail_on=FailOn(*least)).exit_code == int(expected)
    assert fail_on_of(FailOn(*least).text) == FailOn(*least)


@given(KINDS)
def test_what_is_by_design_or_not_called_does_not_fail_by_default(kind: tuple[str, Severity]) -> None:
    reach, severity = kind
    fails = reach != "not called" and severity is not Severity.BY_DESIGN
    assert FAILS_BY_DEFAULT.fails(finding(reach=reach, severity=severity)) == fails


def test_one_half_of_fail_on_leaves_the_other_open() -> None:
    assert fail_on_of("option") == FailOn("option", Severity.BY_DESIGN)
    assert fail_on_of("leak") == FailOn("not called", Severity.LEAK)
    assert fail_on_of("not-called/metric") == FailOn("not called", Severity.METRIC)


@pytest.mark.parametrize(("typed", "meant"), [("defalt", "default"), ("option/leek", "leak"), ("", "REACH is one of")])
def test_a_fail_on_that_is_neither_is_refused_with_what_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as error:
        fail_on_of(typed)
    assert meant in error.value.remedy


def test_a_known_finding_of_a_baseline_fails_nothing_whatever_fail_on_says() -> None:
    shown = verdict(finding(), fail_on=fail_on_of("by-design"))
    shown.baseline = compare(shown, Baseline("b", frozenset({BONUS}), Reach()))
    assert shown.exit_code == 0


def test_a_matrix_fails_when_the_check_of_a_target_does() -> None:
    data = verdict(finding(severity="by-design")).to_json()
    assert Matrix("0", [Column("model", data, "", 0, 0.0)]).exit_code == 0
    assert Matrix("0", [Column("model", data, "", 0, 0.0), Column("mine:p", data, "", 1, 0.0)]).exit_code == 1


def test_findings_that_do_not_fail_are_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(verdict(finding(severity="by-design")), Detail(quiet=True))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line] == ["1.", "pass:"]


def test_a_tier_of_which_nothing_is_selected_is_not_run() -> None:
    needed = {
        text: [tier for tier in TIERS if selection_of([text], ()).needs(tier)]
        for text in ("ops:*", "content-read", "*:I05:*", "*retract*")
    }
    assert needed == {
        "ops:*": ["ops"],
        "content-read": ["scheduler"],
        "*:I05:*": list(TIERS),
        "*retract*": list(TIERS),
    }
    assert all(selection_of((), ["ops:*"]).needs(tier) for tier in TIERS)
