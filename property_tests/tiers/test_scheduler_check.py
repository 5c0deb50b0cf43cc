"""A check by the scheduler tier: known findings first, counts, what had no time, and its place beside other tiers."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.toy_scheduler import ToyTarget, toy
from specsim import replay_file
from specsim.commands.asked import Asked
from specsim.commands.one_target import alike
from specsim.engines.sglang.scheduler.imports import PACKAGES
from specsim.engines.sglang.scheduler.modules import PACKAGE
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.engines.sglang.scheduler.target import SglangScheduler
from specsim.engines.sglang.where import RUST_TREE
from specsim.engines.target import Release
from specsim.engines.triage import TABLE
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.replay_file import SchedulerReplay
from specsim.tiers.messages import At, CheckWork, End, Found, Replay, Request, Shrink, Shrunk
from specsim.tiers.registry import TIERS
from specsim.tiers.scheduler import answers
from specsim.verdict import Covered
from specsim.world.forks import wanted
from specsim.world.release import ReleaseFiles
from specsim.world.scheduler import Setup, StartedScheduler, rows_of

TOKEN = "scheduler:I40:request:another-token"


class _Sent(list[Any]):
    def send(self, message: Any) -> None:
        self.append(message)


def checked(monkeypatch: pytest.MonkeyPatch, defect: str, *, has_rust_tree: bool = False, **fields: Any) -> _Sent:
    """The messages of a check of the toy scheduler."""
    monkeypatch.setattr(answers, "load_target", lambda _request: ToyTarget(defect, has_rust_tree))
    of_it: dict[str, Any] = {"tier": "scheduler", "target": "sglang==0", "cache": "", "seed": 0, "count": 12}
    messages = _Sent()
    request = Request(**{**of_it, "seconds": 60.0, "hang_seconds": 20.0, "attempts": 20, **fields})
    answers.check(request, CheckWork(), messages)  # type: ignore[arg-type]
    return messages


def found_in(messages: _Sent, signature: str) -> list[Found]:
    return [m for m in messages if isinstance(m, Found) and m.finding.signature == signature]


def end_of(messages: _Sent) -> End:
    end = messages[-1]
    assert isinstance(end, End)
    return end


def test_the_schedule_of_a_replay_file_runs_first_and_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = found_in(checked(monkeypatch, "wrong token"), TOKEN)[-1]
    stored = SchedulerReplay(**{k: v for k, v in first.replay.items() if k in SchedulerReplay.__slots__})
    file = replay_file.save_in(tmp_path, stored)
    messages = checked(monkeypatch, "wrong token", fixtures=str(tmp_path), count=1, shrinks=False)
    known = next(n for n, m in enumerate(messages) if isinstance(m, At) and m.known == file.name)
    found = next(n for n, m in enumerate(messages) if isinstance(m, Found))
    drawn = next(n for n, m in enumerate(messages) if isinstance(m, At) and m.counts and not m.known)
    assert known < found < drawn
    assert messages[found].finding.count == 0
    assert f"the schedule of the known finding {file.name}" in messages[found].finding.details
    assert found_in(messages, TOKEN)[-1].finding.count == 1
    assert end_of(messages).schedules == 1


def test_the_schedule_of_a_replay_file_that_shows_nothing_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = found_in(checked(monkeypatch, "wrong token"), TOKEN)[-1]
    stored = SchedulerReplay(**{k: v for k, v in first.replay.items() if k in SchedulerReplay.__slots__})
    replay_file.save_in(tmp_path, stored)
    assert [m for m in checked(monkeypatch, "", fixtures=str(tmp_path)) if isinstance(m, Found)] == []


@pytest.mark.parametrize(
    ("asked", "is_shrunk"),
    [
        ({}, True),
        ({"select": ("I40",)}, True),
        ({"select": ("S1", "scheduler:I40:*"), "ignore": ("S2",)}, True),
        ({"select": ("scheduler:S1:*",)}, False),
        ({"ignore": ("I40",)}, False),
        ({"ignore": ("*:I40:*",)}, False),
        ({"select": ("I40",), "ignore": ("scheduler:I40:*",)}, False),
        ({"shrinks": False}, False),
    ],
    ids=str,
)
def test_a_finding_that_nobody_is_shown_is_not_made_smaller(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], is_shrunk: bool
) -> None:
    messages = checked(monkeypatch, "wrong token", count=3, attempts=1, **asked)
    assert found_in(messages, TOKEN)
    assert any(isinstance(message, At) and message.index == -1 for message in messages) is is_shrunk


def test_an_implementation_may_break_a_rule_that_is_asked_for_until_its_rule_is_known() -> None:
    of_it: dict[str, Any] = {"tier": "ops", "target": "model", "cache": "", "seed": 0, "count": 1, "seconds": 1.0}
    selected = Request(**of_it, hang_seconds=1.0, select=("O1",), ignore=("O2",))
    assert selected.is_shrunk("ops:move_kv:kernel:move_kv")
    assert selected.is_shrunk("ops:move_kv:kernel:move_kv", "O1")
    assert not selected.is_shrunk("ops:move_kv:kernel:move_kv", "O3")
    other = Request(**of_it, hang_seconds=1.0, select=("ops:row_argmax:*",))
    assert not other.is_shrunk("ops:move_kv:kernel:move_kv")


def test_a_schedule_counts_once_however_many_requests_show_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = checked(monkeypatch, "wrong token", count=12, shrinks=False)
    assert found_in(messages, TOKEN)[-1].finding.count <= end_of(messages).schedules


def test_what_schedules_ran_of_the_target_is_counted_by_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    end = end_of(checked(monkeypatch, "", lines={"toy.py": [3, 5, 8, 9], "gone.py": [1]}))
    assert end.schedules == 12
    assert end.coverage == {"toy.py": Covered(5, 3, ((5, 7),))}
    assert end.ran_lines == {"toy.py:3": 12, "toy.py:9": 12}


def test_the_radix_tree_in_rust_has_schedules_beside_and_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with_one, without = (checked(monkeypatch, "", has_rust_tree=has_one, count=12) for has_one in (True, False))
    assert (end_of(with_one).schedules, end_of(without).schedules) == (14, 12)
    assert end_of(with_one).trees == ["radix tree in Rust"]
    assert (
        end_of(with_one).setups == end_of(without).setups == [SETUPS[row].name for row in rows_of(SETUPS, "fake")[:12]]
    )
    assert end_of(without).trees == []


@pytest.mark.parametrize("in_python", ["", "wrong token"])
def test_a_finding_on_the_radix_tree_in_rust_says_whether_it_is_of_that_alone(
    monkeypatch: pytest.MonkeyPatch, in_python: str
) -> None:
    def start(target: ToyTarget, setup: Setup) -> StartedScheduler:
        return toy(setup, target.defect if setup.rust_tree else in_python)

    monkeypatch.setattr(ToyTarget, "start", start)
    monkeypatch.setattr(
        answers,
        "_drawn",
        lambda _request, _setups, _trees: (wanted(SETUPS, 0, i, 20.0, rust_tree=True) for i in range(4)),
    )
    found = found_in(checked(monkeypatch, "wrong token", has_rust_tree=True, shrinks=False), TOKEN)[-1].finding
    assert found.tree == ("" if in_python else "radix tree in Rust")
    assert bool(found.tree) == any("the one in Python does not show it" in line for line in found.details)


@pytest.mark.parametrize("suffix", ["", ".py", *EXTENSION_SUFFIXES, ".cpython-27-x86_64-linux-gnu.so"])
def test_a_radix_tree_that_this_python_cannot_load_is_not_run(tmp_path: Path, suffix: str) -> None:
    scheduler = object.__new__(SglangScheduler)
    scheduler._release = ReleaseFiles(tmp_path, PACKAGE)
    if suffix:
        folder = tmp_path / "sglang" / RUST_TREE
        folder.mkdir(parents=True)
        (folder / f"mem_cache{suffix}").touch()
    why_not = scheduler._why_not_rust()
    assert bool(why_not) == (suffix == ".py" or "27" in suffix)
    why = "it is not built in" if suffix == ".py" else f"mem_cache{suffix} is not for CPython 3."
    assert not why_not or why in why_not
    assert scheduler.has_rust_tree == (suffix in EXTENSION_SUFFIXES)


def test_what_had_no_time_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    end = end_of(checked(monkeypatch, "", seconds=0.0))
    assert end.schedules == 0
    assert [entry.what for entry in end.not_run][-1] == "the other schedules"
    whole = end_of(checked(monkeypatch, ""))
    assert "the other schedules" not in [entry.what for entry in whole.not_run]


def test_what_a_release_imports_in_earnest_comes_with_specsim() -> None:
    assert [name for name in sorted(PACKAGES.real) if importlib.util.find_spec(name) is None] == []


def asked(tmp_path: Path, **fields: Any) -> Asked:
    counts = {"budget_seconds": 9.0, "seed": 0, "cases": 10, "schedules": 500, "hang_seconds": 9.0}
    return Asked(
        **{
            "target": Release("sglang", "0"),
            "cache": Cache(tmp_path),
            "only": None,
            **counts,
            "out": tmp_path,
            "device": "cpu",
            **fields,
        }
    )


def test_a_check_of_a_release_runs_its_operations_and_its_scheduler(tmp_path: Path) -> None:
    default = asked(tmp_path)
    assert default.tiers == ("ops", "scheduler")
    assert [default.count(tier) for tier in ("scheduler", "ops")] == [500, 10]
    assert asked(tmp_path, only="scheduler").count("scheduler") == 500


def test_a_setup_that_a_release_refuses_is_listed_with_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(ToyTarget):
        def start(self, setup: Setup) -> Any:
            if setup.sessions:
                raise UsageError("server.py:9 refuses sessions", "use another setup")
            return super().start(setup)

    monkeypatch.setattr(answers, "load_target", lambda _request: Refusing(""))
    messages, rows = _Sent(), [SETUPS[row] for row in rows_of(SETUPS, "fake")]
    request = Request(
        tier="scheduler", target="sglang==0", cache="", seed=0, count=len(rows), seconds=60.0, hang_seconds=20.0
    )
    answers.check(request, CheckWork(), messages)  # type: ignore[arg-type]
    refused = {entry.what: entry.why for entry in end_of(messages).not_run if entry.what.startswith("setup ")}
    assert refused == {f"setup {setup.name}": "server.py:9 refuses sessions" for setup in rows if setup.sessions}
    assert end_of(messages).schedules == len(rows) - len(refused)


# ---- a schedule said outright


def stored_by(monkeypatch: pytest.MonkeyPatch, defect: str, signature: str) -> SchedulerReplay:
    found = found_in(checked(monkeypatch, defect, shrinks=False, count=4, hang_seconds=0.5), signature)[-1]
    return SchedulerReplay(**{k: v for k, v in found.replay.items() if k in SchedulerReplay.__slots__})


def replayed_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stored: SchedulerReplay, defect: str) -> Any:
    """What a replay of a file answers."""
    file = replay_file.save_in(tmp_path, stored)
    monkeypatch.setattr(answers, "load_target", lambda _request: ToyTarget(defect))
    messages = _Sent()
    request = Request(tier="scheduler", target="sglang==0", cache="", seed=0, count=1, seconds=9.0, hang_seconds=0.5)
    answers.replay(request, Replay(file=str(file)), messages)  # type: ignore[arg-type]
    return messages[-1].answer


def test_a_replay_needs_no_tape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stored = stored_by(monkeypatch, "wrong token", TOKEN)
    assert stored.choices
    other = replace(stored, tape=[5] * 9)  # as a generator reads it that draws otherwise
    answer = replayed_by(monkeypatch, tmp_path, other, "wrong token")
    assert (answer["digest"], answer["workload"]) == (stored.digest, stored.workload)


@pytest.mark.parametrize(("defect", "signature"), [("ends its process", "X3:process"), ("hangs", "X2:process")])
def test_a_schedule_that_ends_its_process_is_replayed_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, defect: str, signature: str
) -> None:
    stored = stored_by(monkeypatch, defect, f"scheduler:{signature}")
    assert stored.workload["turns"]
    answer = replayed_by(monkeypatch, tmp_path, stored, defect)
    assert [violation["signature"] for violation in answer["violations"]] == [stored.signature]
    assert replayed_by(monkeypatch, tmp_path, stored, "")["violations"] == []


def test_what_came_after_a_file_has_its_default_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stored = stored_by(monkeypatch, "wrong token", TOKEN)
    early = [{name: turn[name] for name in ("rid", "prompt", "answer", "at")} for turn in stored.workload["turns"]]
    answer = replayed_by(monkeypatch, tmp_path, replace(stored, workload={"turns": early}), "")
    assert answer["violations"] == []
    assert {turn["abort"] for turn in answer["workload"]["turns"]} == {-1}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"setup": {"page_sise": 4}}, "setup has 'page_sise', which this specsim does not know"),
        ({"setup": {"page_size": "4"}}, "setup cannot be read: Expected `int`, got `str`"),
        ({"workload": {"turns": [{"rid": "a", "promt": []}]}}, "workload has 'promt'"),
        ({"workload": {"turns": [{"rid": "a", "prompt": [1], "answer": "x", "at": 0}]}}, "workload cannot be read"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    stored = replace(stored_by(monkeypatch, "wrong token", TOKEN), **fields)
    with pytest.raises(UsageError, match=words):
        replayed_by(monkeypatch, tmp_path, stored, "")


def test_what_draws_another_schedule_now_is_replayed_and_not_shrunk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored = stored_by(monkeypatch, "wrong token", TOKEN)
    file = replay_file.save_in(tmp_path, replace(stored, tape=[0, 1]))
    messages = _Sent()
    request = Request(tier="scheduler", target="sglang==0", cache="", seed=0, count=1, seconds=9.0, hang_seconds=9.0)
    with pytest.raises(UsageError, match="its tape draws another schedule since specsim has changed"):
        answers.shrink(request, Shrink(file=str(file), attempts=5, seconds=9.0), messages)  # type: ignore[arg-type]
    answers.shrink(request, Shrink(file=str(file), attempts=0, seconds=9.0), messages)  # type: ignore[arg-type]
    assert isinstance(messages[-1], Shrunk)


def test_a_baseline_is_checked_as_its_target_is(tmp_path: Path) -> None:
    """A mutant's without the known findings, which are not run there either: they would all be gone."""
    beside = Release("sglang", "1")
    there: dict[str, Any] = {"target": beside, "out": tmp_path / "baseline", "shrinks": False}
    for here in (asked(tmp_path, schedules=5), asked(tmp_path, only="scheduler", schedules=5, attempts=9)):
        assert alike(here, beside) == replace(here, attempts=None, **there)
    here = asked(tmp_path, only="scheduler", mutant="P07", fixtures=tmp_path)
    assert alike(here, beside) == replace(here, mutant="", fixtures=None, **there)


def test_another_rule_that_a_replay_breaks_has_what_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = stored_by(monkeypatch, "wrong token", TOKEN)
    entry = next(one for one in TABLE["sglang"] if one.signature.startswith("scheduler:") and one.first)
    target = f"sglang=={entry.first}"
    violations: list[Any] = [
        {"rule": signature.split(":")[1], "part": "p", "who": "", "expected": "", "actual": "", "details": ()}
        | {"signature": signature}
        for signature in (TOKEN, entry.signature)
    ]
    answer = {"judged": True, "setup": "", "workload": {}, "events": [], "violations": violations, "digest": ""}
    lines = [line.text for line in TIERS["scheduler"].explain(stored, target, answer).lines]
    assert lines[-2:] == [entry.line, ""]
    assert sum(line.startswith("known") for line in lines) == 1
