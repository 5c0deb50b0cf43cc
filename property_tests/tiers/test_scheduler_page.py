"""The page of a scheduler's schedule: what the host, the streams and the requests did, and the accesses to blame."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from property_tests.support.pages import HOSTILE, Outline, payload_in
from property_tests.support.toy_scheduler import ToyTarget
from specsim.choices.chooser import Tape
from specsim.engines.real_scheduler import Step
from specsim.replay_file import SchedulerReplay
from specsim.report.page.payload import Shown, payload_of
from specsim.report.page.render import html_of
from specsim.report.perfetto import trace_of
from specsim.tiers.registry import TIERS
from specsim.tiers.scheduler.answers import answer_of
from specsim.tiers.scheduler.forks import Ran, Starters, Wanted, wanted
from specsim.tiers.scheduler.page import Lanes

HERE = Shown("sglang==0", "specsim replay x.json", "Reproduced, bit for bit.")


def recorded(defect: str, tape: Tape = ()) -> tuple[SchedulerReplay, dict[str, Any]]:
    """The replay file of a toy's finding, and the answer of its recorded replay as JSON has it."""
    starters = Starters(ToyTarget(defect))
    try:
        first = starters.run(Wanted(tape) if tape else wanted(0, 0, 20.0))
        assert isinstance(first, Ran)
        again = starters.run(Wanted(first.record.tape, records=True))
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
        workload=first.record.workload,
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


def test_no_line_of_the_targets_source_is_on_the_page(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    shown = Shown("sglang==0", "x", "", source={"where": "a.py:1", "first": 1, "line": 1, "lines": ["x"], "note": ""})
    assert payload_of(*race, shown)["source"] is None


def test_the_same_is_there_as_text(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    payload = payload_of(*race, HERE)
    (text,) = re.findall(r"<pre.*?>(.*?)</pre>", html_of(payload), re.DOTALL)
    assert len(re.findall("^  |^<strong>  ", text, re.MULTILINE)) == len(payload["boxes"])
    assert text.count("<strong>") == 2


def test_perfetto_gets_a_slice_for_each_box(race: tuple[SchedulerReplay, dict[str, Any]]) -> None:
    payload = payload_of(*race, HERE)
    trace = trace_of(payload)["traceEvents"]
    names = [event["args"]["name"] for event in trace if event["ph"] == "M" and event["name"] == "thread_name"]
    assert names[:3] == payload["lanes"]
    slices = [event for event in trace if event["ph"] == "X" and event["pid"] == 1]
    assert len(slices) == len(payload["boxes"])
    assert json.dumps(trace)


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
