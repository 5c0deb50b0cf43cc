"""Who waits, and need not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.rules.waiting import Admission, GivingWay, Holding, Packing, Retraction, spare
from specsim.world.rule import Run
from specsim.world.scheduler import Load, Setup, Turn
from specsim.world.users import Moment
from specsim.world.workload import Workload


def retracted(before: Load, load: Load, *, setup: Setup, **was: bool) -> list[str]:
    rule = Retraction(setup, FACTS)
    assert list(rule.while_running(Moment(4, before, 0, **was))) == []
    return [f"{one.part} {one.who}" for one in rule.while_running(Moment(5, load, 0))]


def test_nobody_is_retracted_while_there_is_room_for_all_who_run() -> None:
    need = 2 * spare(Setup(), FACTS)
    ran = (("r0", 9, 12), ("r1", 9, 12))
    before, load = Load((), 0, need, 4, ran, 99), Load((("r1", 40),), 0, need + 12, 5, ran[:1], 99)
    assert retracted(before, load, setup=Setup()) == ["room r1"]
    assert retracted(Load((), 0, need - 1, 4, ran, 99), load, setup=Setup()) == []
    assert retracted(before, Load((("r1", 40),), 0, need + 11, 5, ran[:1], 99), setup=Setup()) == []
    assert retracted(before, Load((("r2", 40),), 0, need + 12, 5, ran, 99), setup=Setup()) == []
    assert retracted(before, load, setup=Setup(), is_paused=True) == []
    assert retracted(before, load, setup=Setup(), is_reset=True) == []
    assert retracted(before, load, setup=Setup(priorities=True)) == []
    assert retracted(before, load, setup=Setup(connector=True)) == []


def test_of_who_is_in_the_middle_of_a_prefill_and_of_each_kind_of_layers_the_next_step_has_room() -> None:
    ran = (("r0", 9, 12), ("r1", 9, 12))
    for setup, chunked in ((Setup(), True), (Setup(window=8), False), (Setup(window=8), True)):
        need = (2 * spare(setup, FACTS) + setup.chunk * chunked) * len(setup.pages)
        load = Load((("r1", 40),), 0, need + 12, 5, ran[:1], 99)
        assert retracted(Load((), 0, need, 4, ran, 99, chunked=chunked), load, setup=setup) == ["room r1"]
        assert retracted(Load((), 0, need - 1, 4, ran, 99, chunked=chunked), load, setup=setup) == []


def admits_late(**users_did: bool) -> bool:
    """Whether a request that fits waits for too long, once another one has ended, if each time users do that."""
    rule = Admission(Setup(), FACTS)
    fits = Load((("r1", 9),), 0, 160, 6, (), 99)
    moments = (Moment(iteration, fits, 1, **users_did) for iteration in range(FACTS.patience))
    return bool([one for moment in moments for one in rule.while_running(moment)])


def test_who_fits_is_admitted_also_beside_a_reset_of_the_cache_and_not_in_a_pause() -> None:
    assert admits_late()
    assert admits_late(is_reset=True)
    assert not admits_late(is_paused=True)


def holds(claims_and_windows: list[tuple[int, int]], setup: Setup) -> list[bool]:
    """Whether a request that claims so much, and has so many slots of the window, has too many in each iteration."""
    rule, found = Holding(setup, FACTS), []
    for iteration, (claimed, windows) in enumerate(claims_and_windows):
        load = Load((), 0, 9, 4, (("r0", claimed, claimed),), 999, windows=(windows,))
        found.append([one.part for one in rule.while_running(Moment(iteration, load, 0))] == ["window"])
    return found


def test_a_request_has_slots_of_a_window_for_the_steps_under_way_and_the_window_alone() -> None:
    setup = Setup(window=8)
    steps, drafts = FACTS.ahead + 2, (FACTS.ahead + 1) * setup.draft_tokens
    most = spare(setup, FACTS) + 8 + 1 + FACTS.window_lag
    begins = [(100 * number, 100 * number + most) for number in range(1, steps)]  # of none the result may have come
    first, then = (
        (100 * steps, 100 * (steps - 1) + drafts + most),
        (100 * steps + 100, 100 * (steps - 1) + drafts + most),
    )
    assert holds([*begins, first, then], setup) == [False] * (steps + 1)
    assert holds([*begins, first, (then[0], then[1] + 1)], setup) == [*[False] * steps, True]
    waits = [first] * 3
    assert holds([*begins, *waits, then], setup) == [False] * (steps + 3)  # nothing of it is launched meanwhile
    assert holds([*begins, first, (100, 100 + most)], setup) == [False] * (steps + 1)  # it was retracted


def gives_way(
    rid: str, *, setup: Setup | None = None, in_order: bool = True, priorities: str = "aabb", **users_did: bool
) -> list[str]:
    """What is wrong where one of "k", "l" and "m" has to wait, as "n" does; of priorities "b" is higher."""
    facts = replace(FACTS, in_order=in_order, priorities=tuple(range(2)))
    ranks = zip("klmn", map("ab".index, priorities), strict=True)
    turns = tuple(Turn(each, (1, 2), 4, at=0, priority=rank) for each, rank in ranks)
    ran = tuple((each, 9, 12) for each in "klm")
    load = Load(((rid, 40),), 0, 0, 4, tuple(each for each in ran if each[0] != rid), 99)
    rule = GivingWay(setup or Setup(priorities=True), facts)
    assert list(rule.while_running(Moment(4, Load((), 0, 0, 4, ran, 99), 0))) == []
    assert list(rule.while_running(Moment(5, load, 0, **users_did))) == []
    users: Any = SimpleNamespace(workload=Workload(turns))
    return [f"{one.part} {one.who} {one.when}" for one in rule.after(Run(SimpleNamespace(), users))]


def test_the_least_urgent_one_gives_way() -> None:
    assert gives_way("m") == ["urgent m 5"]
    assert gives_way("k") == gives_way("l") == []
    assert gives_way("m", priorities="bbba") == []  # one that waits is no one who could
    assert gives_way("m", setup=Setup()) == []
    assert gives_way("m", is_paused=True) == gives_way("m", is_reset=True) == []
    assert gives_way("m", in_order=False) == []


TWO = (("k", 30), ("l", 30))


def left_out(
    *,
    waiting: tuple[tuple[str, int], ...] = TWO,
    prompts: tuple[int, int] = (10, 12),
    setup: Setup | None = None,
    free: int = 160,
    free_rows: int = 6,
    ran: tuple[str, ...] = (),
    chunked: bool = False,
    grammar: tuple[int, ...] = (),
    session: str = "",
    begins: tuple[str, ...] = ("k",),
    came: str = "",
    stays: bool = True,
    **users_did: bool,
) -> list[str]:
    """What is wrong where "k" begins and "l" does not, beside those that ran."""
    turns = tuple(
        Turn(rid, tuple(range(length)), 9, at=0, grammar=grammar, session=session)
        for rid, length in zip("kl", prompts, strict=True)
    )
    lengths = tuple((rid, 9, 12) for rid in ran)
    before = Load(waiting, 30 * len(ran), free, free_rows, lengths, 99, chunked)
    left = tuple(each for each in waiting if stays and each[0] not in begins)
    load = Load(left, 0, free, free_rows, (*lengths, *((rid, 9, 12) for rid in (*begins, *came))), 99)
    rule = Packing(setup or Setup(), FACTS)
    assert [*rule.while_running(Moment(4, before, 0)), *rule.while_running(Moment(5, load, 0, **users_did))] == []
    users: Any = SimpleNamespace(workload=Workload(turns))
    return [f"{one.part} {one.who} {one.when}" for one in rule.after(Run(SimpleNamespace(), users))]


def test_a_prefill_takes_all_who_wait_and_fit() -> None:
    assert left_out() == ["left-out l 5"]
    assert left_out(begins=()) == left_out(begins=("k", "l")) == []
    assert left_out(stays=False) == []  # it was aborted


def test_a_prefill_has_room_for_all_by_rows_tokens_and_slots() -> None:
    assert left_out(free_rows=2) == ["left-out l 5"]
    assert left_out(free_rows=1) == []
    assert left_out(prompts=(20, 12)) == ["left-out l 5"]
    assert left_out(prompts=(20, 13)) == []
    assert left_out(prompts=(16, 12), ran=("m",)) == ["left-out l 5"]
    assert left_out(prompts=(16, 13), ran=("m",)) == []
    assert left_out(prompts=(16, 13), setup=Setup(page_size=16), free=300) == ["left-out l 5"]
    assert left_out(prompts=(16, 17), setup=Setup(page_size=16), free=300) == []
    least = 60 + Setup().rows * (FACTS.ahead * Setup().draft_tokens + 1)
    assert left_out(free=least) == ["left-out l 5"]
    assert left_out(free=least - 1) == []
    assert left_out(free=least + 15, setup=Setup(watermark=0.1)) == []
    assert left_out(free=least + 16, setup=Setup(watermark=0.1)) == ["left-out l 5"]


def test_what_else_may_keep_a_request_out_of_a_prefill() -> None:
    assert left_out(chunked=True) == []
    assert left_out(grammar=(7, 8)) == []
    assert left_out(session="s") == []
    assert left_out(ran=("l",)) == []  # it has run before
    assert left_out(came="m") == []
    assert left_out(is_paused=True) == left_out(is_reset=True) == []
