"""Schedules that are written by hand, as calls: what they run, what they refuse, and a finding written down as one."""

from __future__ import annotations

import re
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specsim.testing as own
from property_tests.support.command_line import specsim
from property_tests.support.known_releases import NEWEST
from property_tests.support.replay_fixtures import FILES
from specsim import replay_file
from specsim.engines.sglang.scheduler.setups import FACTS, SETUPS
from specsim.errors import UsageError
from specsim.findings import by_hand
from specsim.findings.by_hand import Schedule
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree
from specsim.replay_file import SchedulerReplay
from specsim.testing import schedule
from specsim.world.case import ScheduleCase

ROOT = Path(__file__).parents[2]
TARGET = f"sglang=={NEWEST}"
STORED = {file.stem: stored for file in FILES if isinstance(stored := replay_file.load(file), SchedulerReplay)}
SHOWN = "turn-after-a-retracted-and-aborted-one"  # of each release from the second one on


@pytest.fixture
def incident(release: Callable[[str], SourceTree], wheel_cache: Cache, tmp_path: Path) -> Callable[..., Schedule]:
    release(NEWEST)
    return lambda **setup: schedule(TARGET, out=tmp_path / "found", cache_dir=wheel_cache.folder, **setup)


@pytest.fixture
def written(tmp_path: Path) -> Schedule:
    """One that is never run."""
    return Schedule(TARGET, {}, tmp_path, tmp_path)


def test_what_is_written_is_what_runs(incident: Callable[..., Schedule]) -> None:
    written = incident(slots=120)
    first, second = written.start(20, 30), written.start(8, 12, at=2)
    written.retract(at=5)
    written.abort(first, at=7)
    shown = written.check()
    assert shown.passed == ()
    launches = [line.split() for line in shown.launches]
    assert launches[0][1:] == ["extend", first]
    assert [line[1:] for line in launches].count(["extend", first, second]) == 1  # again, after the retraction
    assert first not in launches[-1]


def test_the_example_of_the_page_runs(incident: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(from specsim\.testing import schedule\n.*?)```", text, re.DOTALL)
    monkeypatch.setattr(own, "schedule", lambda _target, **setup: incident(**setup))
    names: dict[str, Any] = {}
    exec(block, names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test()


def test_the_longest_prompt_that_is_drawn_is_answered_and_a_longer_one_is_refused(
    incident: Callable[..., Schedule],
) -> None:
    context = next(setup.context for setup in SETUPS if setup.context)

    def answered(prompt: int) -> tuple[str, ...]:
        written = incident(context=context)
        written.start(prompt, context - prompt)
        return written.check(only=["I39"], known=["scheduler:I39:request:by-itself"]).passed

    longest = context - FACTS.answer_room
    assert answered(longest) == ()
    assert answered(longest + 1) == ("scheduler:I39:request:by-itself",)


def test_a_rule_that_does_not_hold_fails_with_a_replay_file(incident: Callable[..., Schedule], tmp_path: Path) -> None:
    def write() -> Schedule:
        written = incident(sessions=True, slots=240)
        turn = written.start(10, 40, session="s")
        written.start(4, 5, at=1, session="s")
        written.pause(5, 6, retracts=True)
        written.abort(turn, at=6)
        return written

    with pytest.raises(AssertionError, match=r"expected 4 tokens, 4 of them its own, got 31 tokens") as raised:
        write().check()
    signature = STORED[SHOWN].signature
    assert signature in str(raised.value)
    (file,) = (tmp_path / "found").glob("*.json")
    assert str(raised.value).endswith(f"specsim replay {file}")
    assert replay_file.load(file).signature == signature
    assert write().check(known=[signature], only=["I53", "I40"]).passed == (signature,)


@pytest.mark.parametrize("name", STORED)
def test_a_finding_is_written_down_as_calls_that_show_it(name: str, written: Schedule) -> None:
    stored = STORED[name]
    found: list[Schedule] = []

    def made(target: str, **setup: object) -> Schedule:
        found.append(Schedule(target, setup, written._out, written._cache))
        return found[0]

    text = by_hand.source_of(stored)
    body, _, check = text.rpartition("\n")
    exec(body, {"schedule": made, "TARGET": stored.target})
    assert check == f"incident.check(only=['{stored.rule}'])"
    assert all(len(line) <= 116 for line in text.splitlines())
    again = found[0]._stored()
    assert (again.setup, again.choices) == (stored.setup, stored.choices)
    assert again.workload == ScheduleCase(stored.setup, stored.workload, stored.choices).users().plain()


def test_a_setup_that_the_release_refuses_skips_the_test(incident: Callable[..., Schedule]) -> None:
    written = incident(rust_tree=True)
    written.start()
    with pytest.raises(unittest.SkipTest, match="is not started so"):
        written.check()


def test_what_cannot_be_run_is_refused_with_what_is_allowed(written: Schedule) -> None:
    def refused(call: Callable[..., object], *given: object, match: str, **named: object) -> None:
        with pytest.raises(UsageError, match=match):
            call(*given, **named)

    refused(written.check, match="without a request")
    rid = written.start(at=3)
    refused(written.start, rid=rid, match="already")
    refused(written.start, colour=1, match="no field 'colour'")
    refused(written.start, abort=1, match="no field 'abort'")
    refused(written.start, 0, match="0 tokens for 8")
    refused(written.start, at=-1, match="iteration -1")
    refused(written.abort, "r9", at=4, match="no request 'r9'")
    refused(written.abort, rid, at=2, match="arrives at 3")
    refused(written.pause, 1, 0, match="0 iterations")
    refused(written.accept, 5, match="from 1 to 4")
    refused(Schedule(TARGET, {"worker": "release"}, Path(), Path()).accept, 1, match="ranks")
    refused(written.device, "slow", match="eager, lazy, lag")
    refused(written.choose, "accept", -1, match="at least 0")
    refused(written.check, only=["I99"], match="no rule 'I99'")
    written.start(hidden="last")
    refused(written.check, match="hidden_states=True")
    refused(Schedule(TARGET, {"colour": 1}, Path(), Path()).accept, 1, match="colour")


def test_a_target_without_a_scheduler_is_refused(tmp_path: Path) -> None:
    written = schedule("specsim.contracts.registry:OPS", out=tmp_path)
    written.start()
    with pytest.raises(UsageError):
        written.check()


def test_a_test_is_written_whole_and_never_over_another(tmp_path: Path) -> None:
    (file,) = [file for file in FILES if file.stem == SHOWN]
    test = tmp_path / "test_incident.py"
    ended = specsim(tmp_path, "pin", str(file), "--schedule", "--target", TARGET, "--out", test.name)
    assert (ended.returncode, ended.stdout.strip()) == (0, test.name), ended.stderr
    assert list(tmp_path.iterdir()) == [test]
    names: dict[str, Any] = {}
    exec(test.read_text(), names)
    assert names["TARGET"] == TARGET
    assert [name for name in names if name.startswith("test_")] == ["test_scheduler_i53_turn_after_an_abort_is_gone"]
    for more, problem in (((), "is there already"), (("--still",), "--schedule with --still")):
        again = specsim(tmp_path, "pin", str(file), "--schedule", "--out", test.name, *more)
        assert again.returncode == 2
        assert problem in again.stderr
    other = next(file for file in FILES if not isinstance(replay_file.load(file), SchedulerReplay))
    refused = specsim(tmp_path, "pin", str(other), "--schedule", "--out", "test_other.py")
    assert refused.returncode == 2
    assert "is of the" in refused.stderr
