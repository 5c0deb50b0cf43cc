"""Pages for tests: one of a real finding, and payloads that are made up from it."""

from __future__ import annotations

import atexit
import copy
import json
import re
import shutil
import tempfile
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from property_tests.support.command_line import specsim
from specsim.replay_file import OpReplay
from specsim.report.page.payload import PageContext

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "fixtures" / "replays" / "stale-result-of-a-retracted-request.json"

HOSTILE = (
    "</script><img src=x onerror=window.ran=1>",
    "__proto__",
    'a"b onclick="window.ran=1',
    "\x1b[31m\x00\u202egnp.exe\ud800",
    "x" * 30_000,
)


@cache
def page_of_fixture() -> tuple[Path, str]:
    """What `specsim replay --html` makes of the fixture: a folder with out.html, and what it printed. Made once a
    process.
    """
    folder = Path(tempfile.mkdtemp(prefix="specsim-page-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ended = specsim(folder, "replay", str(FIXTURE), "--html", "out.html")
    assert ended.returncode == 1, ended.stderr
    return folder, ended.stdout


def payload_in(html: str) -> dict[str, Any]:
    """The payload that a page holds."""
    (text,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', html, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def states_of(payload: dict[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """The state at each event, from what each changed."""
    state: dict[str, dict[str, Any]] = {}
    found = []
    for change in payload["changes"]:
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
    count = len(payload["events"])
    made["events"] = [
        {**event, "number": event["number"] + turn * count} for turn in range(times) for event in payload["events"]
    ]
    made["changes"] = payload["changes"] * times
    made["links"] = [
        {**link, "from": link["from"] + turn * count, "to": link["to"] + turn * count}
        for turn in range(times)
        for link in payload["links"]
    ]
    made["trees"] = {
        str(int(number) + turn * count): trees for turn in range(times) for number, trees in payload["trees"].items()
    }
    for violation in made["violations"]:
        violation["event"] += (times - 1) * count
    made["order"] = []
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


HERE = PageContext("model", "specsim replay x.json", "Reproduced, bit for bit.")


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
