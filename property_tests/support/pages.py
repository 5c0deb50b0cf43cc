"""Pages for tests: one of a schedule that is made up, and payloads that are made up from it."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from specsim.replay_file import OpReplay, SchedulerReplay
from specsim.report.page.payload import PageContext, payload_of
from specsim.rules.content import ContentRead
from specsim.world.scheduler import END, MODEL, Step

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "fixtures" / "replays" / "slots-freed-under-a-running-request.json"

HOSTILE = (
    "</script><img src=x onerror=window.ran=1>",
    "__proto__",
    'a"b onclick="window.ran=1',
    "\x1b[31m\x00\u202egnp.exe\ud800",
    "x" * 30_000,
)


COMMAND = "specsim replay x.json"
HERE = PageContext("model", COMMAND, "Reproduced, bit for bit.")
TURN = {"prompt": [5, 6], "answer": 2, "at": 0, "abort": -1, "session": "", "stop": -1, "priority": 0}


def _state(length: int, others: int, *, free: int) -> dict[str, dict[str, Any]]:
    """Two requests in rows 1 and 2, the first with so many tokens in slots 3 and on, the other in slots 7 and on."""
    state: dict[str, dict[str, Any]] = {"slots": {}, "cells": {}, "owners": {}, "lists": {"free slots": free}}
    for rid, row, first, count in (("r0", 1, 3, length), ("r1", 2, 7, others)):
        if not count:
            continue
        state["owners"][rid] = [row, count, count, 0, count]
        tokens = [5, 6, 50, 51][:count]
        state[f"request {rid}"] = {"state": "running", "prompt": tokens[:2], "outputs": tokens[2:], "committed": count}
        for position in range(count):
            state["slots"][str(first + position)] = [rid, position, f"{rid}@{position}", f"{rid}@{position}"]
            state["cells"][f"{row},{position}"] = first + position
    return state


def made_up_schedule() -> tuple[SchedulerReplay, dict[str, Any]]:
    """The replay file of a schedule of two requests, and the answer of its recorded replay: in its last pass r1 reads a
    slot that holds KV of r0.
    """
    passes = [("extend", "r0"), ("extend", "r1"), ("decode", "r0 r1")]
    steps: list[Step] = []
    for number, (kind, who) in enumerate(passes):
        steps += [
            Step("host", "mark", f"iteration {number}"),
            Step("host", "mark", kind, who=who),
            Step("host", "launch", kind, MODEL, number + 1, "forward"),
            Step("forward", "run", kind, MODEL, number + 1, n=number + 1),
        ]
    steps.append(Step("host", "mark", END))
    states = [_state(0, 0, free=9), _state(0, 0, free=9), *[_state(2, 0, free=7)] * 2, *[_state(2, 2, free=5)] * 2]
    last = _state(3, 3, free=3)
    last["slots"]["7"] = ["r1", 0, "r0@1", ""]
    states.append(last)
    signature = f"scheduler:{ContentRead.rule.id}:full:other-tokens"
    seen = {"expected": "r1@0", "actual": "r0@1 in slot 7"}
    violation = {"rule": ContentRead.rule.id, "part": "full", "who": "r1", **seen}
    stored = SchedulerReplay(
        target="model",
        tier="scheduler",
        part="full",
        where="srt/managers/scheduler.py:7",
        source_hash="0" * 16,
        tape=[1, 2, 3],
        setup={},
        workload={"turns": [{**TURN, "rid": rid} for rid in ("r0", "r1")]},
        choices={},
        seed=0,
        rule=ContentRead.rule.id,
        signature=signature,
        title="full of r1: expected r1@0, got r0@1 in slot 7",
        digest="d" * 32,
    )
    answer = {
        "judged": True,
        "same_source": True,
        "digest": stored.digest,
        "workload": stored.workload,
        "setup": "pages of 1",
        "events": [f"   {number}  {kind}  {who}" for number, (kind, who) in enumerate(passes)],
        "where": stored.where,
        "code": [],
        "ran": [],
        "violations": [{**violation, "where": stored.where, "details": ["a detail"], "signature": signature}],
        "recording": {
            "steps": steps,
            "lives": {rid: [at, 3, "length", False] for at, rid in enumerate(("r0", "r1"))},
            "states": states,
            "unreadable": "",
            "pool": {"slots": 9, "page_size": 1, "rows": 2},
            "blamed": {signature: [3]},
            "read": {signature: [7, 0]},
        },
    }
    return stored, json.loads(json.dumps(answer))


def made_up_payload() -> dict[str, Any]:
    """What the page of that schedule shows."""
    source = {"where": "a.py:2", "first": 1, "line": 2, "lines": ["def f():", "    return 1"], "note": "a note"}
    return payload_of(*made_up_schedule(), PageContext("model", COMMAND, HERE.verdict, "wrong-result", source))


def payload_in(html: str) -> dict[str, Any]:
    """The payload that a page holds."""
    (text,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', html, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def states_of(payload: dict[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """The state at each event, from what each changed."""
    state: dict[str, dict[str, Any]] = {}
    found = []
    for change in payload["play"]["changes"]:
        state = {name: dict(values) for name, values in state.items()}
        for name, entries in change.items():
            values = state.setdefault(name, {})
            values.update(entries)
            for key in [key for key, value in entries.items() if value is None]:
                del values[key]
        found.append(state)
    return found


def longer(payload: dict[str, Any], times: int) -> dict[str, Any]:
    """The same events again and again, the broken rule at the end."""
    made = copy.deepcopy(payload)
    play = made["play"]
    count = len(play["events"])
    play["events"] = [
        {**event, "number": event["number"] + turn * count} for turn in range(times) for event in play["events"]
    ]
    play["changes"] = play["changes"] * times
    for violation in made["violations"]:
        violation["event"] += (times - 1) * count
    return made


def renamed(value: Any, names: dict[str, str]) -> Any:
    """A payload's values with some words of it replaced, in keys too."""
    if isinstance(value, str):
        for old, new in names.items():
            value = re.sub(rf"\b{old}\b", lambda _found, new=new: new, value)  # type: ignore[misc]
        return value
    if isinstance(value, dict):
        return {renamed(key, names): renamed(item, names) for key, item in value.items()}
    return [renamed(item, names) for item in value] if isinstance(value, list) else value


class Outline(HTMLParser):
    """The elements of a document, with the names of their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]


def op_answer(**more: Any) -> dict[str, Any]:
    tensor = {"shape": [2, 3], "data": [1, 2, 3, 4, 5, -1]}
    return {
        "subject": "kernel:x",
        "where": "x.py:3",
        "judged": True,
        "digest": "d",
        "violations": [{"rule": "O1", "sentence": "s", "title": "t", "expected": "out[1] = 5", "actual": "out[1] = 7"}],
        "explanation": "the caller is wrong",
        "inputs": {"given": tensor},
        "expected": {"out": {"shape": [3], "data": [4, 5, 6]}},
        "outputs": {
            "out": {
                "actual": {"shape": [3], "data": [4, 7, 9]},
                "defined": [True, True, False],
                "differs": [False, True, False],
            }
        },
        **more,
    }


def op_replay() -> OpReplay:
    names = dict.fromkeys(("target", "op", "subject", "where", "source_hash", "device", "signature", "title"), "model")
    return OpReplay(**names, tier="ops", sizes={"bs": 2, "topk": 0}, tensors={}, tape=[], seed=0, rule="O1", digest="d")
