"""A verdict beside a baseline: what cannot run any more does not pass; what the baseline could not show is not new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from property_tests.support.findings import found
from specsim.errors import UsageError
from specsim.findings import baseline
from specsim.findings.comparison import GONE, Baseline, Reach, changed_of, compare, not_checked, not_reached, reach_of
from specsim.findings.selection import names_of
from specsim.interrupts import SPENT
from specsim.report.check import Detail, print_verdict
from specsim.verdict import Changed, CheckedSubject, Finding, NotRun, Suite, Verdict

IMPORT = "it is not imported: ModuleNotFoundError: No module named 'brand_new_package', srt/managers/scheduler.py:19"


def ops(*names: str, not_run: tuple[NotRun, ...] = ()) -> Suite:
    judged = [CheckedSubject(name, f"kernel:{name}", "a.py:1", 3) for name in names]
    return Suite("ops", cases=3 * len(names), judged=judged, not_run=list(not_run))


def scheduler(*setups: str, not_run: tuple[NotRun, ...] = (), schedules: int = 20) -> Suite:
    ran = schedules if setups else 0
    return Suite("scheduler", schedules=ran, events=9, setups=list(setups), not_run=list(not_run))


def verdict(*suites: Suite, findings: tuple[Finding, ...] = ()) -> Verdict:
    return Verdict("sglang@.", 0, list(suites), list(findings))


def reach(*suites: Suite) -> Reach:
    return reach_of(verdict(*suites).to_json()["suites"])


def finding(signature: str, **changed: Any) -> Finding:
    return found(signature, **{"rule": "I05", "reach": "default", "where": "a.py:1", **changed})


def names(entries: tuple[NotRun, ...]) -> dict[str, str]:
    return {entry.what: entry.why for entry in entries}


BASE = (ops("f", "g"), scheduler("default", "page_size=4"))


def test_a_tier_that_ran_on_the_base_and_cannot_run_here_does_not_pass() -> None:
    here = verdict(ops("f", "g"), scheduler(not_run=(NotRun("scheduler", IMPORT),)))
    here.not_checked = not_checked(here, reach(*BASE))
    assert names(here.not_checked) == {"scheduler": IMPORT}
    assert (here.verdict, here.exit_code) == ("incomplete", 4)


def test_nor_does_a_setup_or_an_operation() -> None:
    lost = (NotRun("g", "not found: g in a.py"),)
    here = verdict(ops("f", not_run=lost), scheduler("default", not_run=(NotRun("setup page_size=4", "no attribute"),)))
    entries = not_checked(here, reach(*BASE))
    assert names(entries) == {"ops:g:kernel:g": lost[0].why, "scheduler:page_size=4": "no attribute"}
    vanished = not_checked(verdict(ops("f"), scheduler("default")), reach(*BASE))
    assert names(vanished) == {"ops:g:kernel:g": GONE, "scheduler:page_size=4": GONE}


def test_nothing_is_missed_that_did_not_run_on_the_base_or_was_not_asked_for() -> None:
    here = verdict(ops("f", "g"), scheduler("default", "page_size=4"))
    assert not_checked(here, Reach()) == ()
    assert not_checked(here, reach(*BASE)) == ()
    assert not_checked(verdict(ops("f", "g")), reach(*BASE)) == ()  # --only ops
    assert not_checked(verdict(ops("f")), reach(*BASE), operation="f") == ()


@pytest.mark.parametrize("allowed", ["scheduler", "sched*"])
def test_what_is_allowed_not_to_run_passes(allowed: str) -> None:
    here = verdict(ops("f", "g"), scheduler(not_run=(NotRun("scheduler", IMPORT),)))
    here.not_checked = not_checked(here, reach(*BASE), allowed=(allowed,))
    assert here.exit_code == 0


@pytest.mark.parametrize(("typed", "meant"), [("schedular", "did you mean scheduler? A name"), ("x", "one of ops")])
def test_a_name_of_no_tier_is_refused_with_what_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as error:
        names_of([typed])
    assert meant in error.value.remedy
    assert names_of(["ops:f:*", "*"]) == ("ops:f:*", "*")


def test_a_gate_that_ran_too_little_says_so() -> None:
    late = NotRun("g, kernel:g", SPENT)
    few = scheduler("default", "page_size=4", schedules=1, not_run=(NotRun("the other schedules", SPENT),))
    entries = not_checked(verdict(ops("f", not_run=(late,)), few), reach(*BASE), enough={"scheduler": 10})
    assert names(entries) == {
        "ops:g, kernel:g": SPENT,
        "scheduler": "1 schedules are too few: at least 10 say something",
    }
    nothing = scheduler(not_run=(NotRun("setup default", SPENT), NotRun("the other schedules", SPENT)))
    assert names(not_checked(verdict(ops("f", "g"), nothing), reach(*BASE))) == {"scheduler": SPENT}


def test_fewer_schedules_than_could_be_are_enough_when_all_were_run_that_were_asked_for() -> None:
    assert not_checked(verdict(*BASE), reach(*BASE), enough={"scheduler": 100}) == ()


SIGNATURE = "scheduler:I05:full:nothing"


def test_a_finding_of_what_the_base_could_not_run_is_not_new() -> None:
    there = reach(ops("f", "g"), scheduler(not_run=(NotRun("scheduler", IMPORT),)))
    here = verdict(*BASE, findings=(finding(SIGNATURE),))
    here.baseline = compare(here, Baseline("base", frozenset(), there))
    assert (here.baseline.new, here.baseline.not_compared) == ((), (SIGNATURE,))
    assert (here.baseline.tiers_here, here.baseline.tiers_there) == (("ops", "scheduler"), ("ops",))
    here.not_checked = not_checked(here, there)
    assert names(here.not_checked) == {"scheduler": f"not run on base: {IMPORT}"}
    assert (here.new, here.exit_code) == ([], 4)


def test_a_finding_that_the_base_did_not_get_to_is_new_when_its_replay_shows_nothing_there() -> None:
    there = reach(ops("f", "g"), scheduler("default", not_run=(NotRun("the other schedules", SPENT),)))
    here = verdict(*BASE, findings=(finding(SIGNATURE),))
    assert compare(here, Baseline("base", frozenset(), there)).not_compared == (SIGNATURE,)
    assert compare(here, Baseline("base", frozenset(), there), {SIGNATURE}).new == (SIGNATURE,)


def test_a_finding_of_a_function_that_the_base_has_not_is_new() -> None:
    there = reach(ops("f", not_run=(NotRun("g", "not found: g in a.py"), NotRun("h", "it could not be lifted"))))
    here = verdict(ops("f", "g", "h"), findings=(finding("ops:g:kernel:g"), finding("ops:h:kernel:h")))
    compared = compare(here, Baseline("base", frozenset(), there))
    assert (compared.new, compared.not_compared) == (("ops:g:kernel:g",), ("ops:h:kernel:h",))


def test_a_baseline_file_says_what_was_run(tmp_path: Path) -> None:
    here = verdict(ops("f", not_run=(NotRun("g", "not found: g in a.py"), NotRun("h", "not lifted"))), BASE[1])
    baseline.save(tmp_path / "known.json", here.to_json(), ())
    read = baseline.load(tmp_path / "known.json").reach
    assert read.ran == {"ops", "ops:f:kernel:f", "scheduler", "scheduler:default", "scheduler:page_size=4"}
    assert dict(read.not_run) == {"ops": {"h": "it was not run"}}
    assert not_checked(here, read) == ()
    here.suites[0].judged.clear()
    assert names(not_checked(here, read)) == {"ops:f:kernel:f": GONE}


def test_what_is_not_checked_stands_at_the_end_of_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    here = verdict(ops("f", "g"), scheduler(not_run=(NotRun("scheduler", IMPORT),)))
    here.baseline = compare(here, Baseline("base", frozenset(), reach(*BASE)))
    here.not_checked = not_checked(here, reach(*BASE))
    for detail in (Detail(), Detail(quiet=True), Detail(verbose=True)):
        print_verdict(here, detail)
        printed = " ".join(capsys.readouterr().out.split())
        assert "incomplete: no new findings, 0 known from base, 0 gone, 1 not checked" in printed
        assert printed.endswith(f"not checked: scheduler ({IMPORT})")


@pytest.mark.parametrize("is_required", [False, True])
def test_changed_lines_that_no_schedule_ran_stand_at_the_end(
    capsys: pytest.CaptureFixture[str], is_required: bool
) -> None:
    here = verdict(ops("f"), scheduler("default"))
    here.suites[-1].ran_lines = {"srt/a.py:3": 31}
    here.changed = changed_of({"srt/a.py": (3, 7)}, here)
    assert here.changed == Changed(("srt/a.py:3", "srt/a.py:7"), ("srt/a.py:7",), 31)
    if is_required:
        here.not_checked = not_reached(here)
    print_verdict(here, Detail())
    printed = " ".join(capsys.readouterr().out.split())
    assert "change 1 of 2 lines of functions that it touches run by the scheduler tier, each in up to 31" in printed
    assert printed.endswith("changed and not run by any schedule: srt/a.py:7")
    assert here.exit_code == (4 if is_required else 0)


def test_nothing_is_said_of_a_change_where_no_schedule_could_have_run_it() -> None:
    assert changed_of({"srt/a.py": (3,)}, verdict(ops("f"))) is None
