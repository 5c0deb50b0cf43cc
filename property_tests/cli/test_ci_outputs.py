"""What a check writes for machines: baselines, JUnit XML, SARIF and GitHub's annotations, whatever the text in them."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.support.command_line import specsim
from property_tests.support.findings import found
from specsim.commands import apart, one_target, outputs
from specsim.commands import suites as check_suites
from specsim.commands.asked import Asked
from specsim.engines.target import ModelTarget
from specsim.errors import UsageError
from specsim.findings import baseline
from specsim.findings.comparison import Baseline, Reach, compare
from specsim.findings.matrix import Column
from specsim.lifting.cache import Cache
from specsim.report import github, junit, sarif
from specsim.report.check import Detail
from specsim.verdict import CheckedSubject, Compared, Finding, NotRun, Severity, Suite, Verdict

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "fixtures" / "schemas" / "sarif-2.1.0.json").read_text())
FIXTURE = ROOT / "fixtures" / "replays" / "slots-freed-under-a-running-request.json"
HOSTILE = "</script>\x1b[2J\x00\r\n::error::x]]>&%0A|,file=a`[b](c)\u202e\ud800"
TEXT = st.text(max_size=40) | st.just(HOSTILE)


def finding(signature: str = "scheduler:I40:resolve", **changed: Any) -> Finding:
    texts = {"sentence": "a stale result changes nothing", "title": "a stale result moved the length"}
    seen = {"where": "srt/managers/batch.py:7", "expected": "3", "actual": "4", "count": 2}
    of_rule = {"rule": "I40", "severity": Severity.WRONG_RESULT, "reach": "default"}
    return found(signature, **{**texts, **seen, **of_rule, **changed})


def verdict(*findings: Finding, compared: Compared | None = None, checked: str = "f") -> dict[str, Any]:
    suites = [
        Suite(
            "ops",
            cases=3,
            seconds=1.5,
            judged=[CheckedSubject("f", checked, "a.py:1", 3)],
            not_run=[NotRun("g", "no g")],
        ),
        Suite("scheduler", schedules=4, events=90, seconds=2.0),
    ]
    return Verdict("model", 7, suites, list(findings), compared).to_json()


def compared(*known: str, new: tuple[str, ...] = ()) -> Compared:
    return Compared("base.json", new, known, ("scheduler:I01:prepare",), ("workers:x:W1",))


@st.composite
def verdicts(draw: st.DrawFn) -> dict[str, Any]:
    """Verdicts with any text in every place that a target can write to."""
    texts = {name: draw(TEXT) for name in ("title", "sentence", "where", "expected", "actual", "replay", "triage")}
    tier = draw(st.sampled_from(["ops", "scheduler"]))
    signature = f"{tier}:{draw(TEXT)}"
    severity = draw(st.sampled_from(list(Severity)))
    found = finding(signature, **texts, severity=severity, details=(draw(TEXT),), rule=draw(st.just("I40") | TEXT))
    held = draw(st.sampled_from([None, compared(), compared(signature)]))
    return verdict(found, compared=held, checked=draw(TEXT)) | {"target": draw(TEXT)}


def located(_target: str, where: str) -> tuple[str, int] | None:
    return (where.rpartition(":")[0], 7) if where.endswith(":7") else None


def valid(text: str) -> dict[str, Any]:
    """A SARIF log that the official schema accepts."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install specsim-llm[test]")
    data: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    return data


# SARIF


@settings(max_examples=max(20, settings().max_examples // 4))  # a validation takes long
@given(verdicts())
def test_sarif_is_valid_whatever_the_text(data: dict[str, Any]) -> None:
    valid(sarif.sarif_of([data], located, lambda _file: [HOSTILE, "   1  host    arrive    r0"]))


def test_sarif_has_rules_fingerprints_places_and_what_is_new() -> None:
    found = [finding(), finding("scheduler:S3:resolve", rule="S3", severity=Severity.METRIC)]
    data = verdict(*found, compared=compared("scheduler:I40:resolve", new=("scheduler:S3:resolve",)))
    (run,) = valid(sarif.sarif_of([data], located, lambda _file: ()))["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["I40", "S3"]
    assert [result["ruleIndex"] for result in run["results"]] == [0, 1]
    assert [result["level"] for result in run["results"]] == ["error", "warning"]
    assert [result["baselineState"] for result in run["results"]] == ["unchanged", "new"]
    one = run["results"][0]
    assert one["partialFingerprints"] == {sarif.FINGERPRINT: "scheduler:I40:resolve"}
    assert one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "srt/managers/batch.py"
    assert one["locations"][0]["physicalLocation"]["region"] == {"startLine": 7}
    assert [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]] == [
        "not run: g: no g"
    ]


def test_the_launches_of_a_schedule_are_a_code_flow_a_kind_a_thread() -> None:
    stored = json.loads(FIXTURE.read_text())
    found = finding(replay=str(FIXTURE))
    log = valid(sarif.sarif_of([verdict(found)], located, outputs.events_of))
    (flow,) = log["runs"][0]["results"][0]["codeFlows"]
    steps = [step for thread in flow["threadFlows"] for step in thread["locations"]]
    assert {thread["id"] for thread in flow["threadFlows"]} == {"extend", "decode"}
    in_order = sorted(steps, key=lambda step: step["executionOrder"])
    shown = [step["location"]["message"]["text"] for step in in_order]
    assert shown == [" ".join(line.split()) for line in stored["events"]]
    assert [step["importance"] == "essential" for step in in_order] == [*[False] * (len(shown) - 1), True]


def test_a_finding_with_thousands_of_events_keeps_the_last_ones() -> None:
    lines = [f"{number:>4}  host    arrive    r{number}" for number in range(5000)]
    text = sarif.sarif_of([verdict(finding(replay="f.json"))], located, lambda _file: lines)
    (flow,) = valid(text)["runs"][0]["results"][0]["codeFlows"]
    assert flow["message"]["text"] == f"5000 events, the first {5000 - sarif.EVENTS_MAX} left out"
    assert flow["threadFlows"][0]["locations"][-1]["location"]["message"]["text"].endswith("r4999")


# JUnit XML


@given(verdicts())
def test_junit_counts_what_it_lists_whatever_the_text(data: dict[str, Any]) -> None:
    root = ElementTree.fromstring(junit.junit_of([data]).encode())
    cases = root.findall("testsuite/testcase")
    counts = [len(cases), len(root.findall(".//failure")), len(root.findall(".//skipped"))]
    assert [int(root.get(name, "")) for name in ("tests", "failures", "skipped")] == counts
    known = data["findings"][0]["signature"] in (data.get("baseline") or {"known": ()})["known"]
    assert counts[1] == int(not known)


def test_junit_has_the_finding_with_the_command_that_replays_it() -> None:
    root = ElementTree.fromstring(junit.junit_of([verdict(finding(replay="a.json"))]).encode())
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.text is not None
    assert failure.text.splitlines()[-1] == "specsim replay a.json"
    assert {case.get("name") for case in root.iter("testcase")} == {
        "f, f",
        "g",
        "4 schedules, 90 events",
        "scheduler:I40:resolve",
    }


# GitHub


@given(verdicts())
def test_an_annotation_is_one_line_that_nothing_in_it_can_leave(data: dict[str, Any]) -> None:
    for line in github.annotations_of([data], located):
        assert "\n" not in line
        assert "\r" not in line
        command = re.fullmatch(r"::(error|warning|notice) ([^:]*)::.*", line)
        assert command
        named = [field.partition("=")[0] for field in command[2].split(",")]
        assert named in (["title"], ["file", "line", "title"])
    text = github.summary_of([data])
    assert not re.search(r"<(?!/?(code|details|summary)>)", text)
    assert all(ord(character) >= 32 or character == "\n" for character in text)


def test_only_what_is_new_is_annotated_and_the_summary_has_both() -> None:
    found = [finding(), finding("scheduler:S3:resolve", title="too long")]
    data = verdict(*found, compared=compared("scheduler:I40:resolve"))
    (line,) = github.annotations_of([data], located)
    assert line.startswith("::error file=srt/managers/batch.py,line=7,title=visible-outputs (I40)%3A too long::")
    text = github.summary_of([data])
    assert "1 new finding, 1 as in base.json" in text
    assert "| known | visible-outputs (I40) | a stale result moved the length |" in text.partition("<details>")[2]
    assert "| new | visible-outputs (I40) | too long | srt/managers/batch.py:7 |" in text.partition("<details>")[0]
    assert "No longer found: <code>scheduler:I01:prepare</code>" in text


def test_a_place_is_relative_to_the_repository_of_the_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "engine" / "python" / "sglang" / "srt" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    target = f"sglang@{tmp_path / 'engine'}"
    assert outputs.place_of(target, "srt/a.py:3") == ("engine/python/sglang/srt/a.py", 3)
    assert outputs.place_of(f"{target}#0123abc", "srt/a.py:3") == ("engine/python/sglang/srt/a.py", 3)
    for other, where in ((target, "srt/gone.py:3"), (target, ""), ("model with mutant A01", "srt/a.py:3")):
        assert outputs.place_of(other, where) is None


# Baselines


@given(st.sets(TEXT, min_size=1, max_size=4), st.sets(TEXT, max_size=4))
def test_a_baseline_is_read_back_as_it_was_written(found: set[str], kept: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "base.json"
        findings = [{"signature": signature, "rule": "I1", "title": "t", "where": ""} for signature in found]
        verdict = {"target": "model", "findings": findings, "suites": []}
        baseline.save(file, verdict, kept - found)
        assert baseline.load(file).signatures == found | kept


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not complete JSON"),
        (b"[]", "has format None"),
        (b"\xff\xfe", "is not a text file"),
        (b'{"format": "specsim.matrix/1"}', "has format 'specsim.matrix/1'"),
        (b'{"format": "specsim.baseline/1", "findings": []}', "reads 'specsim.baseline/2'"),
        (b'{"format": "specsim.baseline/2"}', "field 'findings' is not a list"),
        (b'{"format": "specsim.baseline/2", "findings": [{"rule": "x"}]}', "findings[0] has no signature"),
        (b'{"format": "specsim.baseline/2", "findings": [], "ran": "all"}', "field 'ran' is not a list"),
    ],
)
def test_a_damaged_baseline_is_refused_by_what_is_wrong_with_it(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "base.json").write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(words)):
        baseline.load(tmp_path / "base.json")


@pytest.mark.parametrize(
    ("text", "update", "words"),
    [
        ("absent.json", False, "there is no baseline absent.json"),
        ("sglang@.", True, "--update-baseline with the target"),
        ("vllm==one", False, "vllm==one"),
    ],
)
def test_a_baseline_that_is_neither_file_nor_target_is_refused(text: str, update: bool, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        check_suites.baseline_of(text, update)


def test_what_could_not_be_checked_here_is_not_gone() -> None:
    known = frozenset({"scheduler:I01:prepare", "ops:f:f", "ops:g:g", "workers:x:W1", "scheduler:I40:resolve"})
    suites = [
        Suite("ops", cases=3, judged=[CheckedSubject("f", "f", "a.py:1", 3)], not_run=[NotRun("g", "no g")]),
        Suite("scheduler", schedules=4, events=90),
    ]
    held = compare(Verdict("model", 0, suites, [finding()]), Baseline("b", frozenset(known), Reach()))
    assert (held.known, held.new) == (("scheduler:I40:resolve",), ())
    assert held.gone == ("ops:f:f", "scheduler:I01:prepare")
    assert held.not_judged == ("ops:g:g", "workers:x:W1")
    suites[1].not_run.append(NotRun("the other schedules", "the time budget was spent"))
    held = compare(Verdict("model", 0, suites, [finding()]), Baseline("b", frozenset(known), Reach()))
    assert held.gone == ("ops:f:f",)


def test_a_baseline_lets_known_findings_pass_and_new_ones_fail(tmp_path: Path) -> None:
    arguments = ("dev", "check", "model", "--mutant", "A05", "--schedules", "12")
    written = specsim(tmp_path, *arguments, "--baseline", "base.json", "--update-baseline", "--no-shrink")
    assert written.returncode == 0, written.stderr
    assert written.stdout.splitlines()[-1] == "written: 1 finding in the baseline base.json"
    entries = json.loads((tmp_path / "base.json").read_text())["findings"]
    assert [entry["signature"] for entry in entries] == ["scheduler:I66:slots:lost"]
    files = ("--junit", "j.xml", "--sarif", "s.json", "--json", "v.json")
    summary = str(tmp_path / "summary.md")
    again = specsim(
        tmp_path, *arguments, "--baseline", "base.json", *files, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=summary
    )
    assert (again.returncode, "no new findings, 1 known" in again.stdout) == (0, True)
    assert "::error" not in again.stdout
    assert "| known | slots-at-rest (I66) |" in Path(summary).read_text()
    data = json.loads((tmp_path / "v.json").read_text())
    assert data["baseline"]["known"] == ["scheduler:I66:slots:lost"]
    assert valid((tmp_path / "s.json").read_text())["runs"][0]["results"][0]["baselineState"] == "unchanged"
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("failures") == "0"


@pytest.mark.parametrize(
    "column", [Column("model", {}, "it hangs", 2, 1.0), Column("model", {"verdict": "error"}, "", 125, 1.0)]
)
def test_of_a_baseline_that_cannot_be_checked_no_finding_is_lost(
    column: Column, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(apart, "check_apart", lambda *_arguments: column)
    found = Verdict("model", 0, [Suite("scheduler", schedules=1)], [finding()])
    monkeypatch.setattr(one_target, "verdict_of", lambda _asked: found)
    asked = Asked(ModelTarget(), Cache(tmp_path), None, 1.0, 0, 1, 1, tmp_path, "cpu", 1.0)
    files = [tmp_path / name for name in ("v.json", "j.xml", "s.sarif")]
    written = outputs.Outputs(files[1], files[2], False)
    code = one_target.check_one_target(asked, written, files[0], "model", False, False, None, Detail())
    last = " ".join(capsys.readouterr().out.rpartition("not compared: ")[2].split())
    assert (code, last.startswith("the baseline model cannot be checked")) == (125, True)
    assert all("stale result" in file.read_text() for file in files)
    assert json.loads(files[0].read_text())["not_compared"].startswith("the baseline model cannot be checked")


def test_a_baseline_is_checked_with_every_option_of_a_gate(tmp_path: Path) -> None:
    """Its findings are not shrunk, so that the attempts of --ci are not of it."""
    arguments = ("check", "model", "--ci", "--baseline", "model", "--only", "scheduler", "--schedules", "1")
    for more in (("--no-shrink",), ("--attempts", "2")):
        ended = specsim(tmp_path, *arguments, *more, "--json", "v.json")
        assert (ended.returncode, "no new findings, 0 known from model" in ended.stdout) == (0, True), ended.stderr
        assert json.loads((tmp_path / "v.json").read_text())["baseline"]["tiers_there"] == ["scheduler"]


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        ("sglang@.#no-such-branch", "the repository has no commit 'no-such-branch'"),
        ("sglang@nowhere", "the path nowhere does not exist"),
        ("sglang@.", "is not SGLang"),
        ("old.json", "has format 'specsim.baseline/1', this specsim reads"),
    ],
)
def test_what_is_wrong_with_a_baseline_is_said_before_anything_is_checked(
    baseline: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "old.json").write_text('{"format": "specsim.baseline/1", "findings": []}')
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    ended = specsim(tmp_path, "check", "model", "--ci", "--baseline", baseline)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in " ".join(ended.stderr.split())


def test_a_baseline_that_is_a_target_is_checked_in_the_same_run(tmp_path: Path) -> None:
    arguments = ("dev", "check", "model", "--mutant", "A05", "--schedules", "12")
    ended = specsim(tmp_path, *arguments, "--baseline", "model", "--json", "v.json", "--github", "--no-shrink")
    assert (ended.returncode, "1 new finding, 0 known from model" in ended.stdout) == (1, True), ended.stderr
    assert "::error title=slots-at-rest (I66)" in ended.stdout
    (found,) = json.loads((tmp_path / "v.json").read_text())["findings"]
    assert found["signature"] == "scheduler:I66:slots:lost"
