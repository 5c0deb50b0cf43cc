"""What `specsim check` prints: at the end what is important, and in as little as can be read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.command_line import specsim
from specsim import interrupts
from specsim.commands import suites
from specsim.commands.asked import Asked
from specsim.engines.sglang.provider import lift_first
from specsim.engines.target import ModelTarget
from specsim.lifting.cache import Cache
from specsim.lifting.lift import DriftError
from specsim.report.check import (
    FINDING_LINES_MAX,
    LAST_LINES,
    SHOWN_IN_FULL,
    Detail,
    kind_of,
    print_verdict,
    shortened,
)
from specsim.report.github import where_of
from specsim.report.terminal import wrapped
from specsim.verdict import REACHES, CheckedSubject, Compared, Finding, NotRun, Severity, Suite, Verdict

Printed = Callable[..., list[str]]
LONG = "srt/managers/" + "/".join(["scheduler_output_processor_mixin"] * 3) + ".py:1234"


def finding(name: str, reach: str = "default", severity: Severity = Severity.LEAK, **more: object) -> Finding:
    texts = {"sentence": "it is so", "title": f"{name}: it is not so", "expected": "1", "actual": "2"}
    fields = {**texts, "where": "srt/a.py:1", "replay": f"found/{name}.json", "count": 1, "blame": "kernel", **more}
    signature = f"ops:{name}:kernel:{name}"
    return Finding("O1", signature=signature, tier="ops", severity=severity, reach=reach, **fields)  # type: ignore[arg-type]


def verdict(*findings: Finding, not_run: tuple[NotRun, ...] = (), ok: int = 3) -> Verdict:
    names = [*(one.signature.split(":")[1] for one in findings), *(f"right_{number}" for number in range(ok))]
    judged = [CheckedSubject(name, f"kernel:{name}", "srt/a.py:1", 9) for name in names]
    suite = Suite("ops", cases=9 * len(names), judged=judged, not_run=list(not_run))
    return Verdict("sglang==0", 0, [suite], list(findings))


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Printed:
    """The lines that a verdict prints where COLUMNS is so many."""

    def lines(shown: Verdict, detail: Detail = Detail(), columns: int = 100) -> list[str]:  # noqa: B008
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        print_verdict(shown, detail)
        return capsys.readouterr().out.splitlines()

    return lines


# The order


@given(st.lists(st.tuples(st.sampled_from(list(REACHES)), st.sampled_from(list(Severity)), st.text("abc", min_size=1))))
def test_what_reaches_most_users_comes_first_then_what_is_worst(drawn: list[tuple[str, Severity, str]]) -> None:
    found = [finding(name, reach.replace("guarded", "guarded:a.py:1"), severity) for reach, severity, name in drawn]
    ordered = sorted(found, key=lambda one: one.order_key)
    places = [(list(REACHES).index(one.reach.partition(":")[0]), list(Severity).index(one.severity)) for one in ordered]
    assert places == sorted(places)
    for one, other in itertools.pairwise(ordered):
        alike = (one.reach, one.severity) == (other.reach, other.severity)
        assert not alike or one.signature <= other.signature


def test_a_wrong_result_by_default_comes_before_undefined_behaviour_that_an_option_reaches() -> None:
    first, second = finding("b", "default", Severity.WRONG_RESULT), finding("a", "option", Severity.UNDEFINED_BEHAVIOUR)
    assert sorted([second, first], key=lambda one: one.order_key) == [first, second]
    same_reach = finding("a", "default", Severity.UNDEFINED_BEHAVIOUR)
    assert sorted([same_reach, first], key=lambda one: one.order_key) == [first, same_reach]


def test_what_runs_what_a_change_touched_comes_first() -> None:
    first, second = finding("b", "not called", changed=("f srt/a.py:1",)), finding("a")
    assert sorted([second, first], key=lambda one: one.order_key) == [first, second]


def test_every_output_has_the_findings_in_this_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [finding("a", "option"), finding("b", "not called"), finding("c", "default")]
    monkeypatch.setattr(suites, "_run", lambda *_arguments: (Suite("ops", cases=1), found))
    asked = Asked(ModelTarget(), Cache(tmp_path), "ops", 1.0, 0, 1, 1, tmp_path, "cpu", 1.0)
    checked = suites.run_tiers(asked, Mock())
    assert [one["signature"][4] for one in checked.to_json()["findings"]] == ["c", "a", "b"]


# What is printed


def test_the_verdict_and_what_to_do_are_the_last_lines(printed: Printed) -> None:
    index, blank, shown, advice = printed(verdict(finding("a")))[-4:]
    assert (index.split()[0], blank) == ("1.", "")
    assert shown.startswith("fail: 1 finding, ")
    assert "specsim replay FILE" in advice
    assert printed(verdict())[-2].startswith("pass: no findings, ")
    assert printed(Verdict("model", 0, [Suite("ops")]))[-2].startswith("error: nothing could be checked")


def test_what_is_not_known_of_a_finding_has_no_line(printed: Printed) -> None:
    lines = printed(verdict(finding("a", "unknown", where="")))
    assert not any(line.startswith(("   where", "   reach")) for line in lines)


def test_a_finding_names_what_the_change_touched_and_stands_there(printed: Printed) -> None:
    changed = tuple(f"Batch.f{number} srt/b.py:{number}" for number in range(1, 7))
    found = finding("a", where="", changed=changed)
    lines = printed(verdict(found))
    at = lines.index("   changed    Batch.f1, srt/b.py:1")
    assert lines[at + 3 : at + 5] == [
        "              Batch.f4, srt/b.py:4",
        "              2 more of what this case runs",
    ]
    assert "srt/b.py:1" in next(line for line in lines if line.endswith("default"))
    assert where_of({"changed": list(changed), "where": "srt/a.py:9"}) == found.place == "srt/b.py:1"
    assert where_of({"where": "srt/a.py:9"}) == finding("a", where="srt/a.py:9").place == "srt/a.py:9"


def test_what_a_baseline_knows_is_counted_and_what_is_gone_is_named(printed: Printed) -> None:
    shown = verdict()
    shown.baseline = Compared("b", (), ("ops:a:kernel:a", "ops:b:kernel:b"), ("ops:c:kernel:c",), ())
    assert [line for line in printed(shown) if line.startswith(("   baseline", "   known", "   gone"))] == [
        "   baseline   b: 2 known, 1 gone; -v lists them",
        "   gone       ops:c:kernel:c",
    ]
    assert sum(line.startswith("   known") for line in printed(shown, Detail(verbose=True))) == 2


def test_each_finding_has_a_line_and_the_first_three_stand_before_them_in_full(printed: Printed) -> None:
    names = ["aa", "bb", "cc", "dd", "ee"]
    lines = printed(verdict(*map(finding, names)))
    index = [line for line in lines if line.endswith("default")]
    assert [line.split() for line in index] == [
        [f"{number}.", "equals-reference", name, "srt/a.py:1", "default"] for number, name in enumerate(names, 1)
    ]
    in_full = [line for line in lines if line.startswith("   signature")]
    assert [line.split(":")[1] for line in in_full] == names[:SHOWN_IN_FULL]
    verbose = printed(verdict(*map(finding, names)), Detail(verbose=True))
    assert sum(line.startswith("   signature") for line in verbose) == 5


def test_quiet_prints_the_verdict_and_a_line_a_finding_alone(printed: Printed) -> None:
    lines = printed(verdict(finding("aa"), finding("bb"), not_run=(NotRun("x", "y"),)), Detail(quiet=True))
    assert [line.split()[0] for line in lines if line] == ["1.", "2.", "fail:"]


def test_a_clean_run_fits_on_a_screen(printed: Printed) -> None:
    not_run = tuple(NotRun(f"op_{number}", f"not found: kernel_{number} in srt/a.py") for number in range(90))
    assert len(printed(verdict(ok=60, not_run=not_run))) <= 40


def test_a_check_of_the_model_fits_on_a_screen(tmp_path: Path) -> None:
    ended = specsim(tmp_path, "check", "--cases", "1", "--schedules", "2", "--device", "cpu", COLUMNS="100")
    lines = ended.stdout.splitlines()
    assert (ended.returncode, lines[-2].partition(":")[0]) == (0, "pass"), ended.stderr
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_rows_that_are_ok_are_counted_and_listed_when_asked_for(printed: Printed) -> None:
    shown = verdict(finding("aa"), ok=7)
    assert "   ops        8 implementations, 72 cases: 7 ok, 1 with a finding" in printed(shown)
    assert not any("right_3" in line for line in printed(shown))
    assert any("right_3" in line for line in printed(shown, Detail(verbose=True)))


def test_a_finding_in_full_is_at_most_25_lines_and_ends_with_its_command(printed: Printed) -> None:
    long = finding("aa", arguments=tuple(f"x{number} = {'1, ' * 60}" for number in range(60)))
    lines = printed(verdict(long))
    first = next(number for number, line in enumerate(lines) if line.startswith("1. aa"))
    last = next(number for number, line in enumerate(lines) if line.startswith("   replay"))
    assert last - first + 1 <= FINDING_LINES_MAX
    assert lines[last].endswith("specsim replay found/aa.json")
    cut = next(number for number, line in enumerate(lines) if "more lines with -v" in line)
    assert last - cut - 2 == LAST_LINES  # the signature stands between
    assert any("x59 = " in line for line in printed(verdict(long), Detail(verbose=True)))


# What was not run


def test_what_was_not_run_is_one_line_with_counts_by_kind(printed: Printed) -> None:
    with pytest.raises(DriftError) as drifted:
        lift_first(Mock(), ())
    entries = (
        NotRun("a", interrupts.SPENT),
        NotRun("b", str(drifted.value)),
        NotRun("c", "it is CUDA code"),
        NotRun("d", "mine:provider does not provide it"),
    )
    shown = verdict(not_run=entries)
    (line,) = [line for line in printed(shown, columns=120) if line.startswith("   not run")]
    assert line == (
        "   not run    1 for the time budget, 2 absent in this target, 1 not supported; --show-not-run lists them"
    )
    listed = printed(shown, Detail(not_run=True))
    assert [line.split()[2] for line in listed if line.startswith("   not run")] == ["a:", "b:", "c:", "d:"]


def test_a_check_that_could_check_nothing_says_why_unasked(printed: Printed) -> None:
    lines = printed(Verdict("model", 0, [Suite("ops", not_run=[NotRun("tier ops", "torch is not installed")])]))
    assert any("tier ops: torch is not installed" in line for line in lines)


def test_an_interrupt_is_a_kind_of_its_own() -> None:
    assert kind_of(NotRun("the other schedules", interrupts.WHY)) == "for the interrupt"


# Widths


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_columns_but_for_a_word_and_no_path_is_broken(
    columns: int, verbose: bool, printed: Printed
) -> None:
    found = finding("assign_draft_cache_locs_contiguous", where=LONG, details=("word " * 60, LONG))
    lines = printed(verdict(found, not_run=(NotRun("x", "y " * 90),)), Detail(verbose=verbose, not_run=True), columns)
    for line in lines:
        assert len(line) <= columns or len(line.split()) <= 3 or "specsim replay" in line, line
    assert any(LONG in line for line in lines)


@given(st.lists(st.text("abc/-.", min_size=1, max_size=30), min_size=1), st.integers(20, 90))
def test_wrapping_breaks_at_blanks_alone(words: list[str], width: int) -> None:
    lines = wrapped(" ".join(words), width, "    ")
    assert " ".join(lines).split() == words
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


@given(st.lists(st.text("ab", min_size=1, max_size=9), min_size=1), st.integers(0, 60))
def test_a_path_that_is_shortened_keeps_its_last_part(parts: list[str], room: int) -> None:
    path = "/".join(parts)
    short = shortened(path, room)
    assert short.removeprefix(".../") in path
    assert short.rpartition("/")[2] == parts[-1]
    assert len(short) <= max(room, len(parts[-1]))


def test_a_row_of_a_table_whose_words_do_not_fit_is_a_line(printed: Printed) -> None:
    shown = verdict(ok=1)
    shown.suites[0].judged[0] = CheckedSubject("right", "kernel:right", LONG, 9)
    lines = printed(shown, Detail(verbose=True), 80)
    at = lines.index("ops  right")
    assert [line.strip() for line in lines[at + 1 : at + 3]] == [LONG, "9  ok"]
