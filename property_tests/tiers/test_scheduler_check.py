"""A check by the scheduler tier: known findings first, counts, what had no time, and its place beside other tiers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.toy_scheduler import ToyTarget
from specsim import replay_file
from specsim.commands.suites import Asked, _lanes
from specsim.engines.real_scheduler import Setup
from specsim.engines.sglang.scheduler.imports import REAL
from specsim.engines.target import ReleaseTarget
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.replay_file import SchedulerReplay
from specsim.tiers.messages import At, Check, End, Found, Request
from specsim.tiers.registry import TIERS
from specsim.tiers.scheduler import answers
from specsim.tiers.scheduler.setups import SETUPS, rows_of

TOKEN = "scheduler:I40:request"


class _Sent(list[Any]):
    def send(self, message: Any) -> None:
        self.append(message)


def checked(monkeypatch: pytest.MonkeyPatch, defect: str, **fields: Any) -> _Sent:
    """The messages of a check of the toy scheduler."""
    monkeypatch.setattr(answers, "load_target", lambda _request: ToyTarget(defect))
    of_it: dict[str, Any] = {"tier": "scheduler", "target": "sglang==0", "cache": "", "seed": 0, "count": 12}
    messages = _Sent()
    request = Request(**{**of_it, "seconds": 60.0, "hang_seconds": 20.0, "attempts": 20, **fields})
    answers.check(request, Check(), messages)  # type: ignore[arg-type]
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


def test_a_schedule_counts_once_however_many_requests_show_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = checked(monkeypatch, "wrong token", count=12, shrinks=False)
    assert found_in(messages, TOKEN)[-1].finding.count <= end_of(messages).schedules


def test_what_had_no_time_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    end = end_of(checked(monkeypatch, "", seconds=0.0))
    assert end.schedules == 0
    assert [entry.what for entry in end.not_run][-1] == "the other schedules"
    whole = end_of(checked(monkeypatch, ""))
    assert "the other schedules" not in [entry.what for entry in whole.not_run]


def test_what_a_release_imports_in_earnest_comes_with_specsim() -> None:
    assert [name for name in sorted(REAL) if importlib.util.find_spec(name) is None] == []


def asked(tmp_path: Path, **fields: Any) -> Asked:
    counts = {"budget_seconds": 9.0, "seed": 0, "cases": 10, "schedules": 500, "strategy": "swarm", "hang_seconds": 9.0}
    return Asked(
        **{
            "target": ReleaseTarget("0"),
            "cache": Cache(tmp_path),
            "only": None,
            **counts,
            "out": tmp_path,
            "device": "cpu",
            **fields,
        }
    )


def test_a_check_of_a_release_runs_every_tier_and_one_of_five_schedules_of_its_scheduler(tmp_path: Path) -> None:
    default = asked(tmp_path)
    assert set(default.tiers) == set(TIERS)
    assert [default.count(tier) for tier in ("accounting", "scheduler", "ops")] == [500, 100, 10]
    assert asked(tmp_path, only="scheduler").count("scheduler") == 500


def test_a_scheduler_runs_beside_the_simulator_and_the_operations() -> None:
    assert _lanes(tuple(TIERS)) == [("ops",), ("scheduler",), ("workers", "accounting")]
    assert _lanes(("accounting",)) == [("accounting",)]
    assert _lanes(("ops", "accounting")) == [("ops",), ("accounting",)]


def test_a_setup_that_a_release_refuses_is_listed_with_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(ToyTarget):
        def start(self, setup: Setup) -> Any:
            if setup.sessions:
                raise UsageError("server.py:9 refuses sessions", "use another setup")
            return super().start(setup)

    monkeypatch.setattr(answers, "load_target", lambda _request: Refusing(""))
    messages, rows = _Sent(), [SETUPS[row] for row in rows_of("fake")]
    request = Request(
        tier="scheduler", target="sglang==0", cache="", seed=0, count=len(rows), seconds=60.0, hang_seconds=20.0
    )
    answers.check(request, Check(), messages)  # type: ignore[arg-type]
    refused = {entry.what: entry.why for entry in end_of(messages).not_run if entry.what.startswith("setup ")}
    assert refused == {f"setup {setup.name}": "server.py:9 refuses sessions" for setup in rows if setup.sessions}
    assert end_of(messages).schedules == len(rows) - len(refused)
