"""Who waits, and need not."""

from __future__ import annotations

from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.rules.waiting import Retraction, spare
from specsim.world.scheduler import Load, Setup
from specsim.world.users import Moment


def retracted(before: Load, load: Load, *, setup: Setup, was_paused: bool = False) -> list[str]:
    rule = Retraction(setup, FACTS)
    assert list(rule.while_running(Moment(4, before, 0, was_paused))) == []
    return [f"{one.part} {one.who}" for one in rule.while_running(Moment(5, load, 0, False))]


def test_nobody_is_retracted_while_there_is_room_for_all_who_run() -> None:
    need = 2 * spare(Setup(), FACTS)
    ran = (("r0", 9, 12), ("r1", 9, 12))
    before, load = Load((), 0, need, 4, ran, 99), Load((("r1", 40),), 0, need + 12, 5, ran[:1], 99)
    assert retracted(before, load, setup=Setup()) == ["room r1"]
    assert retracted(Load((), 0, need - 1, 4, ran, 99), load, setup=Setup()) == []
    assert retracted(before, Load((("r1", 40),), 0, need + 11, 5, ran[:1], 99), setup=Setup()) == []
    assert retracted(before, Load((("r2", 40),), 0, need + 12, 5, ran, 99), setup=Setup()) == []
    assert retracted(before, load, setup=Setup(), was_paused=True) == []
    assert retracted(before, load, setup=Setup(priorities=True)) == []
