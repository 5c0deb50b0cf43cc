"""`specsim explain`: every rule and every known finding, from what is known of them elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specsim.cli import main
from specsim.commands.asked import FIXTURES
from specsim.engines.triage import TABLE
from specsim.errors import UsageError
from specsim.files import read_json
from specsim.findings.explain import RULES, explain, fixtures_of
from specsim.report.explain import print_explained
from specsim.tiers.registry import TIERS

KNOWN = fixtures_of(FIXTURES)
ENTRIES = [(engine, entry) for engine, entries in TABLE.items() for entry in entries]


def printed(data: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    print_explained(data)
    return " ".join(capsys.readouterr().out.split())


def test_every_rule_of_every_tier_is_explained_by_number_by_slug_and_by_both(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(RULES) == {rule for tier in TIERS.values() for rule in tier.rules}
    for rule in RULES.values():
        data = explain(rule.id, KNOWN)
        assert data == explain(rule.slug, KNOWN) == explain(rule.label, KNOWN) == explain(rule.id.lower(), KNOWN)
        assert (data["rule"], data["sentence"], data["ignore"]) == (rule.id, rule.sentence, rule.slug)
        shown = printed(data, capsys, monkeypatch)
        for text in (rule.label, rule.sentence, rule.severity.meaning, f"--ignore '{rule.slug}'"):
            assert text in shown


def test_no_two_rules_have_one_slug() -> None:
    assert len({rule.slug for rule in RULES.values()}) == len(RULES)


def test_every_fixture_is_an_example_of_its_signature_and_of_its_rule() -> None:
    assert len(KNOWN) == len(list(FIXTURES.glob("*.json")))
    for fixture in KNOWN:
        for data in (explain(fixture.signature, KNOWN), explain(fixture.rule, KNOWN)):
            assert data["rule"] == fixture.rule
            assert any(str(fixture.file) in example["command"] for example in data["examples"])


def test_an_example_is_seen_on_the_targets_that_its_fixture_expects() -> None:
    for fixture in KNOWN:
        stored = read_json(fixture.file, "", nan=True)
        shows = {target for target, one in stored.get("expect", {}).items() if one.get("shows") or one.get("rules")}
        elsewhere = {target for target in fixture.shown_on if " with mutant " not in target}
        assert elsewhere == (shows - {"mutant", "model"} or {fixture.found_on} - {"model"} or elsewhere)


def test_every_entry_of_the_triage_list_is_known_of_its_signature() -> None:
    for engine, entry in ENTRIES:
        known = explain(entry.signature, KNOWN)["known"]
        assert (engine, entry.line) in [(one["engine"], one["text"]) for one in known]


def test_a_rule_lists_the_known_findings_that_break_it() -> None:
    known = {entry["signature"] for entry in explain("content-read", KNOWN)["known"]}
    assert known == {entry.signature for _, entry in ENTRIES if ":I05:" in entry.signature}


def test_a_new_finding_of_a_known_rule_is_explained_by_its_rule() -> None:
    data = explain("scheduler:I05:of my own", KNOWN)
    assert (data["slug"], data["known"], data["examples"]) == ("content-read", [], [])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("content-reed", "content-read"),
        ("CONTENT-READS", "content-read"),
        ("ops:alloc_extend:kernel:alloc_extent", "ops:alloc_extend:kernel:alloc_extend"),
    ],
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(typed: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"[Dd]id you mean {meant}\\?"):
        explain(typed, KNOWN)


def test_a_name_that_is_nothing_says_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "zzzzzzzz"])
    assert ended.value.code == 2
    assert "Name a rule by its number or slug" in capsys.readouterr().err


def test_json_has_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "I05", "--json", str(tmp_path / "e.json")])
    assert ended.value.code == 0
    data = json.loads((tmp_path / "e.json").read_text())
    assert (data["format"], data["slug"]) == ("specsim.explained/2", "content-read")
    assert data["sentence"] in " ".join(capsys.readouterr().out.split())
