"""A finding as a trace that Perfetto opens (https://ui.perfetto.dev): Chrome's trace event JSON.

Time is the number of an event, a millisecond each: the simulator has no clock. Host and streams are threads of the
process "engine", requests of "requests", where a slice is a state of the request's life. Arrows lead from a launch to
its work and on to where its result is taken, and between the two events whose order matters. Counters: slots by owner,
free slots, launches in flight. A broken rule is an instant over everything.

Of a release's scheduler, columns of its page are the steps, and streams the threads.

What has no events, a case of an operation or of a probe and a schedule that ended before its first event, is one slice
with its arguments and results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

STEP_US, SLICE_US = 1000, 900
_ENGINE, _REQUESTS = 1, 2

Event = dict[str, Any]


def trace_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The trace of a finding's payload (`specsim.report.page`)."""
    made = _of_schedule if payload.get("events") else _of_streams if payload["kind"] == "streams" else _of_call
    events = list(made(payload))
    about = {**payload["finding"], "command": payload["command"], "specsim": payload["specsim"]}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _of_schedule(payload: Mapping[str, Any]) -> Iterator[Event]:
    yield from _names(payload["agents"], payload["requests"])
    yield from _slices(payload)
    yield from _lives(payload)
    yield from _arrows(payload)
    yield from _counters(payload["changes"])
    yield from _instants(payload["violations"])


def _of_streams(payload: Mapping[str, Any]) -> Iterator[Event]:
    """A column is a step."""
    yield from _names(payload["lanes"], [request["rid"] for request in payload["requests"]])
    for box in payload["boxes"]:
        yield {
            "ph": "X",
            "name": f"{box['mark']}: {box['name']}" if box["mark"] else box["name"],
            "cat": box["kind"],
            **_span(box["from"], box["to"] + 1, _ENGINE, 1 + box["lane"]),
            "args": {"what": box["more"], "where": box["where"]},
        }
    for tid, request in enumerate(payload["requests"], 1):
        about = {"asks": request["text"], "end": request["end"]}
        at = _span(request["from"], request["to"], _REQUESTS, tid)
        yield {"ph": "X", "name": request["rid"], "cat": "life", **at, "args": about}
    pair = {"id": 1, "name": "nothing orders them", "cat": "pair"}
    marked = {box["mark"]: box for box in payload["boxes"]}
    for phase, mark in (("s", 1), ("f", 2)) if len(payload["pair"]) == 2 else ():
        box = marked[mark]
        yield {"ph": phase, **pair, "ts": box["from"] * STEP_US, "pid": _ENGINE, "tid": 1 + box["lane"]}


def _span(start: int, end: int, pid: int, tid: int) -> dict[str, int]:
    return {"ts": start * STEP_US, "dur": max(end - start, 1) * STEP_US - STEP_US + SLICE_US, "pid": pid, "tid": tid}


def _of_call(payload: Mapping[str, Any]) -> Iterator[Event]:
    """What has no events: one call, which takes a step."""
    finding = payload["finding"]
    yield from _names(["call"], [])
    tables = {title: dict(rows) for title, rows in payload["tables"].items()}
    yield {
        "ph": "X",
        "name": finding["part"] or finding["signature"],
        "cat": "call",
        "ts": 0,
        "dur": SLICE_US,
        "pid": _ENGINE,
        "tid": 1,
        "args": {**tables, "tensors": payload.get("tensors", [])},
    }
    yield from _instants(payload["violations"])


def _names(agents: Sequence[str], requests: Sequence[str]) -> Iterator[Event]:
    for pid, process, threads in ((_ENGINE, "engine", agents), (_REQUESTS, "requests", requests)):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        for tid, name in enumerate(threads, 1):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _thread(payload: Mapping[str, Any], number: int) -> dict[str, int]:
    """Where the slice of an event is."""
    agents: Sequence[str] = payload["agents"]
    return {"pid": _ENGINE, "tid": 1 + agents.index(payload["events"][number]["agent"])}


def _slices(payload: Mapping[str, Any]) -> Iterator[Event]:
    for event in payload["events"]:
        yield {
            "ph": "X",
            "name": f"{event['event']} {event['who']}".strip(),
            "cat": event["agent"],
            "ts": event["number"] * STEP_US,
            "dur": SLICE_US,
            **_thread(payload, event["number"]),
            "args": {"event": event["number"], "details": event["details"], "requests": " ".join(event["touches"])},
        }


def _lives(payload: Mapping[str, Any]) -> Iterator[Event]:
    for tid, rid in enumerate(payload["requests"], 1):
        states: list[tuple[int, str]] = []
        for number, change in enumerate(payload["changes"]):
            state = change.get(f"request {rid}", {}).get("state")
            if state is not None:
                states.append((number, state))
        # A request that a schedule does not come to has no states.
        for (start, state), (end, _) in pairwise([*states, (len(payload["events"]), "")]):
            at = {"ts": start * STEP_US, "dur": max(end - start, 1) * STEP_US, "pid": _REQUESTS, "tid": tid}
            yield {"ph": "X", "name": state, "cat": "life", **at, "args": {}}


def _arrows(payload: Mapping[str, Any]) -> Iterator[Event]:
    chains: list[list[int]] = []
    for link in payload["links"]:
        if link["kind"] == "silent":
            continue
        chain = next((chain for chain in chains if chain[-1] == link["from"]), None)
        if chain is None:
            chains.append([link["from"], link["to"]])
        else:
            chain.append(link["to"])
    named = [("launch", payload["events"][chain[0]]["launch"], chain) for chain in chains]
    order = [item["event"] for item in payload["order"] if item["event"] is not None]
    if len(order) == 2:
        named.append(("order", "order matters", order))
    for number, (category, name, chain) in enumerate(named, 1):
        for place, event in enumerate(chain):
            phase = "s" if place == 0 else "f" if place == len(chain) - 1 else "t"
            yield {
                "ph": phase,
                "id": number,
                "name": name,
                "cat": category,
                "ts": event * STEP_US + SLICE_US // 2,
                **_thread(payload, event),
                **({"bp": "e"} if phase == "f" else {}),
            }


def _counters(changes: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    owners: dict[str, str] = {}
    ever: dict[str, int] = {}
    for number, change in enumerate(changes):
        slots, lists = change.get("slots", {}), change.get("lists", {})
        for slot, leaf in slots.items():
            owners[slot] = leaf[0] if leaf else ""
        counts = Counter(owner for owner in owners.values() if owner)
        ever = {**dict.fromkeys([*ever, *counts], 0), **counts}
        if slots and ever:
            yield _counter(number, "slots of", ever)
        if "free slots" in lists:
            yield _counter(number, "free slots", {"slots": lists["free slots"]})
        if "in flight" in lists:
            yield _counter(number, "launches in flight", {"launches": len(lists["in flight"])})


def _counter(number: int, name: str, values: Mapping[str, int]) -> Event:
    return {"ph": "C", "name": name, "ts": number * STEP_US, "pid": _ENGINE, "tid": 0, "args": dict(values)}


def _instants(violations: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    for violation in violations:
        texts = {name: violation.get(name, "") for name in ("sentence", "part", "who", "expected", "actual")}
        at = {"ts": (violation["event"] or 0) * STEP_US + SLICE_US // 2, "pid": _ENGINE, "tid": 1, "s": "g"}
        yield {"ph": "i", "name": violation["rule_label"], "cat": "rule", **at, "args": texts}
