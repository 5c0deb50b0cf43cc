"""What is known of each finding: all that releases show is in the table, and nothing contradicts it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from property_tests.support.findings import found
from property_tests.support.known_releases import RELEASES
from specsim.engines.sglang.operations import FUNCTIONS
from specsim.engines.triage import TABLE, THREAD, UNTRIAGED, Triage, known_line, load, triage_line, triage_of
from specsim.report.matrix import linked_upstream
from specsim.rules.table import BY_ID as RULES_OF_SCHEDULER
from specsim.tiers.ops.rules import BY_ID as RULES_OF_OPS
from specsim.verdict import Severity

ROOT = Path(__file__).parents[2]
TRIAGE = TABLE["sglang"]
FIXTURES = ROOT / "fixtures"
UPSTREAM = ROOT / "docs" / "upstream"
REPLAY = re.compile(r"specsim replay (fixtures/replays/\S+\.json)(?: --target (\S+))?")
PAGE = ROOT / "docs" / "releases.md"
RULES = {
    "ops": RULES_OF_OPS,
    "scheduler": RULES_OF_SCHEDULER,
}


def seen() -> list[tuple[str, str, str]]:
    """Signature, release and reach of each finding that the tests expect of releases."""
    found = []
    for version, expected in json.loads((FIXTURES / "releases.expected.json").read_text()).items():
        found += [(signature, version, told["reach"]) for signature, told in expected["findings"].items()]
    for version, expected in json.loads((FIXTURES / "functions.expected.json").read_text()).items():
        for subject, broken in expected["findings"].items():
            (op,) = [f.op for f in FUNCTIONS if f.name == subject]
            found += [(f"ops:{op}:{subject}", version, rule.split()[1]) for rule in broken]
    return found


@pytest.mark.parametrize(("signature", "version", "reach"), seen())
def test_every_finding_of_a_release_is_in_the_table_with_its_release_and_reach(
    signature: str, version: str, reach: str
) -> None:
    entry = triage_of("sglang", signature, version)
    assert entry is not None
    assert entry.covers(version)
    assert reach.split(":")[0] in entry.reaches


def test_a_span_has_no_release_on_which_the_tests_see_nothing() -> None:
    tier = "ops"
    fixtures = [json.loads(path.read_text()) for path in sorted((FIXTURES / "replays").glob("*.json"))]
    for version, expected in json.loads((FIXTURES / "releases.expected.json").read_text()).items():
        shown = set(expected["findings"]) | {
            fixture["signature"]
            for fixture in fixtures
            if fixture["tier"] == tier and fixture["expect"].get(f"sglang=={version}", {}).get("rules")
        }
        shown |= {signature for signature, of, _reach in seen() if (of, signature.split(":")[0]) == (version, tier)}
        covered = {entry.signature for entry in TRIAGE if entry.covers(version)}
        assert {name for name in covered if name.startswith(f"{tier}:")} == shown


def test_the_severity_of_an_operation_is_that_of_the_rule_that_it_breaks() -> None:
    for version, expected in json.loads((FIXTURES / "releases.expected.json").read_text()).items():
        for signature, told in expected["findings"].items():
            entry = triage_of("sglang", signature, version)
            assert entry is not None
            assert entry.severity == RULES_OF_OPS[told["rule"]].severity


@pytest.mark.parametrize("entry", TRIAGE, ids=[f"{entry.signature} {entry.first}" for entry in TRIAGE])
def test_an_entry_is_complete(entry: Triage) -> None:
    tier, *rest = entry.signature.split(":")
    if tier != "ops":
        rule = next(RULES[tier][word] for word in rest if word in RULES[tier])
        assert entry.severity == rule.severity
    assert entry.first in RELEASES
    assert entry.last in (*RELEASES, "")
    assert entry.reaches
    assert entry.reaches <= {"default", "option", "guarded", "not called"}
    assert (entry.state == "by design") is (entry.severity is Severity.BY_DESIGN)


ALL = [(engine, entry) for engine, entries in TABLE.items() for entry in entries]
EACH = pytest.mark.parametrize(("engine", "entry"), ALL, ids=[f"{e} {one.signature} {one.first}" for e, one in ALL])


@EACH
def test_what_is_new_has_a_page_and_what_is_known_a_thread(engine: str, entry: Triage) -> None:
    if entry.state == "new":
        assert entry.upstream
    if entry.state == "known":
        assert any(THREAD.search(reference) for reference in entry.references)
    if entry.upstream:
        assert (UPSTREAM / f"{entry.upstream}.md").is_file()
        assert f"docs/upstream/{entry.upstream}.md" in entry.line
    assert (entry.state == "documented") is bool(entry.documented)
    assert entry.line.startswith(f"{entry.state}, from " if entry.first else f"{entry.state}: ")


@EACH
def test_each_thread_is_named_with_its_status(engine: str, entry: Triage) -> None:
    for reference in entry.references:
        for thread in THREAD.finditer(reference):
            assert reference[thread.end() :].startswith(" (")


def test_a_reverted_change_is_named_with_the_one_that_relands_it() -> None:
    reverted = [entry for _engine, entry in ALL if any("reverted by" in one for one in entry.references)]
    assert reverted
    for entry in reverted:
        assert any("the reland" in one for one in entry.references), entry.signature


def test_each_report_says_what_an_issue_needs() -> None:
    notes = {"history", "hardening", "min-p-ignored-at-verification", "offsets-in-32-bits"}
    for page in UPSTREAM.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert "fixtures/replays/" in text
        wanted = ["**Suggested fix.**", "**Checked.**", "**Reproduction.**"]
        if page.stem not in notes:
            wanted += ["**Versions.**", "**Server arguments.**", "**What happens.**", "**Expected.**", "**Actual.**"]
        if page.stem not in ("history", "hardening"):
            assert [word for word in wanted if word not in text] == [], page.name
            assert re.search(r"^(Reported as|Known (as|for)|.*[Nn]ot found in \d+ search)", text, re.MULTILINE), (
                page.name
            )


def test_each_replay_of_a_report_shows_its_finding_on_the_release_that_it_names() -> None:
    named = [pair for page in UPSTREAM.glob("*.md") for pair in REPLAY.findall(page.read_text(encoding="utf-8"))]
    assert named
    for name, target in named:
        stored = json.loads((ROOT / name).read_text())
        told = stored["expect"][target or stored["target"]]
        shows = told["shows"] if "shows" in told else stored["rule"] in told["rules"]
        assert shows, f"{name} on {target}"


def test_what_is_gone_or_withdrawn_is_history_and_still_shown_by_its_fixture() -> None:
    text = (UPSTREAM / "history.md").read_text(encoding="utf-8")
    for _engine, entry in ALL:
        if entry.upstream == "history" and entry.last:
            names = {path.name for path in (FIXTURES / "replays").glob("*.json") if entry.signature in path.read_text()}
            assert any(name in text for name in names), entry.signature


def test_the_page_of_releases_says_what_the_table_says() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| .* \| (\w+(?: design)?, from [^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows
    for signature, told in rows:
        lines = [linked_upstream(entry.line) for entry in TRIAGE if entry.signature == signature]
        assert any(told.startswith(line) for line in lines), signature


def test_two_defects_of_one_signature_have_spans_apart() -> None:
    for one, two in combinations(TRIAGE, 2):
        if one.signature == two.signature:
            assert not any(one.covers(version) and two.covers(version) for version in RELEASES)


def test_every_report_is_of_an_entry() -> None:
    reports = {path.stem for path in UPSTREAM.glob("*.md")}
    assert reports == {entry.upstream for entries in TABLE.values() for entry in entries if entry.upstream}


FINDING = found("scheduler:I64:committed", severity=Severity.WRONG_RESULT, reach="default")


THREADS = '[threads]\n"issue #1" = "open"\n'
LAST = RELEASES[1]  # the last release that has it


def test_what_the_table_says_otherwise_is_reported_beside_the_finding() -> None:
    entry = triage_of("sglang", FINDING.signature, LAST)
    assert entry is not None
    assert entry.contradiction(FINDING) == ""
    assert "severity" in entry.contradiction(replace(FINDING, severity=Severity.LEAK))
    assert entry.contradiction(replace(FINDING, severity=Severity.METRIC)) == ""  # a race without a wrong token
    assert "reach unknown" in entry.contradiction(replace(FINDING, reach="unknown"))
    assert triage_line("sglang", FINDING, LAST).startswith(f"known, from {RELEASES[0]} to {LAST}: ")
    assert triage_line("sglang", replace(FINDING, signature="scheduler:I99:x"), LAST) == UNTRIAGED


@pytest.mark.parametrize(
    ("version", "evidence"),
    [
        (RELEASES[-1], None),  # a later release
        (RELEASES[-1], [LAST]),  # a later checkout, which shows what shows it on a release that has it
        ("", [LAST]),  # a checkout that says nothing of itself
        (LAST, []),  # one on which no replay file shows it
        (LAST, [RELEASES[-1]]),  # or only one that shows another defect, on later releases
    ],
)
def test_what_may_be_another_defect_is_not_called_known(version: str, evidence: list[str] | None) -> None:
    told = triage_line("sglang", FINDING, version, evidence)
    assert told.startswith(f"looks like what releases from {RELEASES[0]} to {LAST} have: ")


def test_a_checkout_has_a_known_finding_where_its_version_and_a_replay_file_say_so() -> None:
    assert triage_line("sglang", FINDING, LAST, [LAST]).startswith(f"known, from {RELEASES[0]} to {LAST}: ")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('state = "by_design"', "state = 'by_design'"),
        ('state = "new"', "what is new has an upstream"),
        ('state = "documented"', "what is documented, and nothing else, says where"),
        ('state = "by design"', "by design is a severity, too"),
        ('documented = "scheduler.py:1"', "what is documented, and nothing else, says where"),
        ('references = ["a comment"]', "what is known has a thread in its references"),
        ('references = ["PR #2"]', "[threads] has no status of PR #2"),
        ('severity = "bad"', "severity = 'bad'"),
        ('reaches = ["default", "everybody"]', "reaches = ['everybody']"),
        ('releases = "0.5.x.."', "releases = '0.5.x..'"),
        ('releases = "2.0..1.0"', "releases = '2.0..1.0'"),
        ("references = []", "what is known has a thread in its references"),
        ("text = 3", "text = 3"),
        ('since = "1.0"', "since = '1.0'"),
    ],
)
def test_a_wrong_entry_is_an_error_that_names_it(line: str, problem: str) -> None:
    entry = {
        "signature": 'signature = "ops:a"',
        "state": 'state = "known"',
        "severity": 'severity = "leak"',
        "reaches": 'reaches = ["default"]',
        "releases": 'releases = "1.0.."',
        "text": 'text = "it leaks"',
        "references": 'references = ["issue #1"]',
    }
    lines = "\n".join((entry | {line.split(" ")[0]: line}).values())
    with pytest.raises(ValueError, match=re.escape(problem)) as raised:
        load(f"{THREADS}[[sglang]]\n{lines}\n")
    assert str(raised.value).startswith("[[sglang]] 1 'ops:a'")


def test_a_status_of_a_thread_that_no_entry_names_is_an_error() -> None:
    with pytest.raises(ValueError, match="no entry refers to issue #1"):
        load(THREADS)


def test_an_entry_without_a_signature_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 None has no signature"):
        load('[[sglang]]\nstate = "known"\ntext = "it leaks"\n')


def test_a_release_with_a_defect_in_it_has_nothing_that_is_known() -> None:
    signature, release = "scheduler:I39:request", f"sglang=={RELEASES[-1]}"
    assert known_line(release, signature)
    for target in (f"{release} with mutant P08", "sglang==", "sglang@.", "model", "sglang"):
        assert not known_line(target, signature)
