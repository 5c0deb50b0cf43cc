"""The life of a request: the table allows what happens in an engine, and nothing else."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.choices.chooser import seeded
from specsim.engine.lifecycle import TRANSITIONS, Event, LifecycleError, State, after
from specsim.engine.request import Turn, make_request
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.workload import draw_scenario

PAIRS = [(state, event) for state in State for event in Event]


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{s.value}-{e.value}" for s, e in PAIRS])
def test_an_event_leads_where_the_table_says_or_raises(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert after(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(LifecycleError, match=rf"'{event.value}' of a {state.value} request; allowed: \w+"):
            after(state, event)


def test_a_finished_request_stays_finished() -> None:
    with pytest.raises(LifecycleError, match="'admit' of a finished request; allowed: nothing"):
        after(State.FINISHED, Event.ADMIT)


def test_an_error_names_what_is_allowed() -> None:
    with pytest.raises(LifecycleError, match=r"'retract' of a waiting request; allowed: admit, chunk, drop$"):
        after(State.WAITING, Event.RETRACT)


def test_every_state_is_reached_from_waiting_and_leads_to_finished() -> None:
    def reached_from(start: State) -> set[State]:
        seen, todo = {start}, deque([start])
        while todo:
            state = todo.popleft()
            new = {then for (before, _), then in TRANSITIONS.items() if before is state} - seen
            seen |= new
            todo += sorted(new, key=lambda found: found.value)
        return seen

    assert reached_from(State.WAITING) == set(State)
    assert all(State.FINISHED in reached_from(state) for state in State)


def test_every_event_is_in_the_table() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)


@given(events=st.lists(st.sampled_from(Event), max_size=20))
def test_a_request_follows_the_table_and_an_event_that_it_refuses_changes_nothing(events: list[Event]) -> None:
    request = make_request(Turn("r0", (10,), 1), [])
    assert request.state is State.WAITING
    for event in events:
        was = request.state
        if (was, event) in TRANSITIONS:
            request.happens(event)
            assert request.state is TRANSITIONS[was, event]
        else:
            with pytest.raises(LifecycleError):
                request.happens(event)
            assert request.state is was


@pytest.mark.slow
def test_schedules_use_every_transition_but_a_seldom_one(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[tuple[State, Event]] = set()

    def noted(state: State, event: Event) -> State:
        used.add((state, event))
        return after(state, event)

    monkeypatch.setattr("specsim.engine.request.after", noted)
    for index in range(600):
        chooser = seeded(0, "life", index)
        checked_engine(draw_scenario(chooser), chooser).run()
    seldom = {(State.PREFILLING, Event.DROP), (State.CHUNKED, Event.RETRACT)}
    assert used | seldom == set(TRANSITIONS)
