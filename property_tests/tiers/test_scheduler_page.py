"""The page of a scheduler's schedule: what the host, the streams and the requests did, and the accesses to blame."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from property_tests.support.pages import HOSTILE, Outline, payload_in
from property_tests.support.toy_scheduler import ToyTarget
from specsim.choices.chooser import Tape
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.replay_file import SchedulerReplay
from specsim.report.page.payload import PageContext, payload_of
from specsim.report.page.render import html_of
from specsim.rules.table import BY_ID, CHECKS
from specsim.tiers.registry import TIERS
from specsim.tiers.scheduler.answers import answer_of, case_of
from specsim.tiers.scheduler.page import WRONG, Lanes, play_of
from specsim.world.forks import Ran, Starters, WantedSchedule, wanted
from specsim.world.scheduler import END, MODEL, Step

HERE = PageContext("sglang==0", "specsim replay x.json", "Reproduced, bit for bit.")


def recorded(defect: str, tape: Tape = ()) -> tuple[SchedulerReplay, dict[str, Any]]:
    """The replay file of a toy's finding, and the answer of its recorded replay as JSON has it."""
    starters = Starters(ToyTarget(defect), CHECKS)
    try:
        schedule = WantedSchedule(tape) if tape else wanted(SETUPS, 0, 0, 20.0)
        first = starters.run(schedule)
        assert isinstance(first, Ran)
        case = case_of(schedule, first)
        assert case is not None
        again = starters.run(WantedSchedule(first.record.tape, records=True, case=case))
    finally:
        starters.close()
    assert isinstance(again, Ran)
    assert again.record.digest == first.record.digest
    shown = first.record.violations[0]
    stored = SchedulerReplay(
        target="sglang==0",
        tier="scheduler",
        part=shown.part,
        where="toy.py:1",
        source_hash="0" * 16,
        tape=list(first.record.tape),
        setup=case.setup,
        workload=case.workload,
        choices=case.choices,
        seed=0,
        rule=shown.rule,
        signature=shown.signature,
        title=shown.actual,
        digest=first.record.digest,
    )
    return stored, json.loads(json.dumps(answer_of(ToyTarget(), stored, again, records=True)))


@pytest.fixture(scope="module")
def race() -> tuple[SchedulerReplay, dict[str, Any]]:
    return recorded("race")


def test_a_recorded_schedule_has_the_digest_of_one_that_is_not(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    stored, answer = race
    assert answer["digest"] == stored.digest
    assert answer["recording"]["steps"]


def test_host_and_streams_are_lanes_in_the_order_in_which_they_run(
    race: tuple[SchedulerReplay, dict[str, Any]],
) -> None:
    payload = payload_of(*race, HERE)
    assert payload["kind"] == "streams"
    assert payload["lanes"] == ["host", "schedule", "forward"]
    assert {box["lane"] for box in payload["boxes"]} == {0, 1, 2}
    assert all(0 <= box["from"] <= box["to"] < payload["columns"] for box in payload["boxes"])
    waits = [box for box in payload["boxes"] if box["kind"] == "wait"]
    assert waits
    for box in waits:  # what the host waits for runs while it does
        assert any(other["lane"] == 2 and box["from"] < other["from"] <= box["to"] for other in payload["boxes"])


def test_the_two_accesses_of_a_race_are_marked_and_joined(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    payload = payload_of(*race, HERE)
    marked = {box["mark"]: box for box in payload["boxes"] if box["mark"]}
    assert sorted(marked) == [1, 2]
    assert (marked[1]["name"], marked[1]["lane"]) == ("write", 1)
    assert (marked[2]["name"], marked[2]["lane"]) == ("verify", 2)
    first, second = (access["text"] for access in payload["pair"])
    first_pass = int(race[1]["events"][0].split()[0])
    assert first == f"copy_ on schedule, by Rows.write at toy.py:7, launched in iteration {first_pass}"
    assert second.startswith("verify on forward, by the model")
    html = html_of(payload)
    assert html.count("nothing orders them") == 1
    for mark in (1, 2):
        assert f'href="#access{mark}"' in html
        assert f'id="access{mark}"' in html


def test_an_order_leads_from_what_is_waited_for_to_what_waits(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    payload = payload_of(*race, HERE)
    boxes = {(box["lane"], box["from"]): box for box in payload["boxes"]}
    orders = [link for link in payload["links"] if link["kind"] == "order"]
    assert orders
    for link in orders:
        assert boxes[link["lane"], link["from"]]["name"] == "write"
        assert boxes[link["to_lane"], link["to"]]["name"] == "verify"
        assert link["from"] < link["to"]


def test_requests_live_from_their_arrival_to_their_end(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    stored, answer = race
    payload = payload_of(stored, answer, HERE)
    starts = {iteration["number"]: iteration["from"] for iteration in payload["iterations"]}
    assert len(payload["requests"]) == len(answer["recording"]["lives"])
    for request in payload["requests"]:
        sent, ended, reason, _ = answer["recording"]["lives"][request["rid"]]
        assert (request["from"], request["to"], request["end"]) == (starts[sent], starts[ended], reason)
        assert request["passes"]
        assert all(request["from"] <= at["at"] < request["to"] for at in request["passes"])


def test_the_request_of_a_wrong_token_is_marked() -> None:
    stored, answer = recorded("wrong token")
    payload = payload_of(stored, answer, HERE)
    assert [request["rid"] for request in payload["requests"] if request["wrong"]] == [payload["finding"]["who"]]
    assert 'id="wrong"' in html_of(payload)


def test_the_page_loads_nothing_and_shows_hostile_names_as_text(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    stored, answer = race
    text = json.dumps(answer)
    for rid, name in zip(list(answer["recording"]["lives"])[:2], HOSTILE[:2], strict=False):
        text = text.replace(f'"{rid}"', json.dumps(name))
    html = html_of(payload_of(stored, json.loads(text), HERE))
    outline = Outline(html)
    assert [link for link in outline.links if not link.startswith(("#", "data:,"))] == []
    assert not any("onerror" in names for _, names in outline.elements)
    assert "on" not in {name[:2] for _, names in outline.elements for name in names}
    assert payload_in(html)["kind"] == "streams"


def test_the_lines_around_what_is_blamed_are_shown_coloured(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    lines = ["def f():", '    """<b>', "    two", '    """', "    return 1 < 2  # so"]
    shown = PageContext(
        "sglang==0", "x", "", source={"where": "a.py:7", "first": 3, "line": 7, "lines": lines, "note": ""}
    )
    html = html_of(payload_of(*race, shown))
    rows = re.findall(r"<tr.*?>.*?</tr>", html.partition('aria-label="Source"')[2].partition("</table>")[0])
    texts = [unescape(re.sub("<.*?>", "", row)) for row in rows]
    assert texts == [f"{number}{line}" for number, line in enumerate(lines, 3)]
    assert 'class="here"' in rows[4]
    assert '<span class="keyword">return</span>' in rows[4]
    assert all('class="literal"' in row for row in rows[1:4])


# ---- going through the events


def playing(**fields: Any) -> dict[str, Any]:
    """A recording of two passes and the iteration between them, in which request a reads a slot."""
    steps = [
        Step("host", "mark", "iteration 0"),
        Step("host", "mark", "extend", who="a"),
        Step("forward", "run", "extend", MODEL, number=5, n=1),
        Step("host", "mark", "iteration 1"),
        Step("host", "mark", END),
    ]
    empty: dict[str, Any] = {"slots": {}, "cells": {}, "owners": {}, "lists": {"free rows": 2}}
    owned = {**empty, "slots": {"3": ["a", 0, "b@4", ""]}, "owners": {"a": [1, 1, 1, 0, 0]}}
    return {
        "steps": steps,
        "states": [empty, empty, owned, {**empty, "lists": {"free rows": 1}}],
        "unreadable": "",
        "lives": {"a": [0, 1, "stop", False]},
        "pool": {"slots": 9, "page_size": 1, "rows": 2},
        "blamed": {},
        "read": {},
        **fields,
    }


TURNS = [{"rid": "a", "abort": -1}]


def played(recording: dict[str, Any], **blamed: str) -> dict[str, Any]:
    play = play_of(recording, recording["steps"], TURNS, blamed, [{"number": 0, "from": 0}, {"number": 1, "from": 4}])
    assert play is not None
    return play


def test_an_event_has_what_users_did_and_what_it_changed() -> None:
    play = played(playing())
    assert [event["line"].split() for event in play["events"]] == [
        *(["0", "iteration", "0", "arrives", "a"], ["1", "extend", "a"], ["2", "iteration", "1", "ended", "a"]),
    ]
    assert [event["column"] for event in play["events"]] == [0, 0, 4]
    assert play["changes"][1] == {"slots": {"3": ["a", 0, "b@4", ""]}, "owners": {"a": [1, 1, 1, 0, 0]}}
    assert play["changes"][2]["slots"] == {"3": None}


def test_a_slot_that_was_read_with_other_content_is_wrong_in_the_event_of_the_read() -> None:
    recording = playing(blamed={"s": [5]}, read={"s": [3, 0]})
    play = played(recording, signature="s", who="a")
    assert play["changes"][1]["slots"] == {"3": ["a", 0, "b@4", "a@0"]}


@pytest.mark.parametrize(("rule", "where"), list(WRONG.items()))
def test_the_field_or_list_that_a_rule_is_about_is_named(rule: str, where: tuple[str, str]) -> None:
    assert rule in BY_ID
    assert played(playing(), rule=rule, who="a")["wrong"] == {"kind": where[0], "name": where[1], "who": "a"}


def test_without_states_there_is_nothing_to_go_through(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    recording = playing(states=[], unreadable="KeyError: 'x'")
    assert play_of(recording, recording["steps"], TURNS, {}, []) is None
    stored, answer = race
    payload = payload_of(stored, {**answer, "recording": {**answer["recording"], "unreadable": "a reason"}}, HERE)
    assert payload["play"] is None
    assert "could not be read: a reason." in payload["notes"][-1]
    assert 'id="player"' not in html_of(payload)


def test_the_same_is_there_as_text(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    payload = payload_of(*race, HERE)
    (text,) = re.findall(r"<pre.*?>(.*?)</pre>", html_of(payload), re.DOTALL)
    assert len(re.findall("^  |^<strong>  ", text, re.MULTILINE)) == len(payload["boxes"])
    assert text.count("<strong>") == 2


def test_what_was_not_recorded_has_a_page_of_its_launches(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    stored, answer = race
    page = TIERS["scheduler"].page(stored, "sglang==0", {**answer, "recording": None})
    assert page.kind == "probe"
    assert page.parts["tables"]["Launches"]


def test_an_order_is_of_what_is_launched_behind_it_however_late_the_rest_runs() -> None:
    steps = [
        Step("host", "launch", "early", "f at a.py:1", 1, "forward"),
        Step("host", "launch", "write", "g at a.py:2", 2, "schedule"),
        Step("forward", "order", "wait for schedule", "h at a.py:3", 0, "schedule", 1),
        Step("host", "launch", "late", "i at a.py:4", 3, "forward"),
        Step("forward", "run", "early", "f at a.py:1", 1, "forward", 1),
        Step("schedule", "run", "write", "g at a.py:2", 2, "schedule", 1),
        Step("forward", "run", "late", "i at a.py:4", 3, "forward", 2),
    ]
    plain = Lanes(steps, ()).plain((), {}, "")
    (order,) = (link for link in plain["links"] if link["kind"] == "order")
    names = {(box["lane"], box["from"]): box["name"] for box in plain["boxes"]}
    assert (names[order["lane"], order["from"]], names[order["to_lane"], order["to"]]) == ("g", "i")
