"""Replay files: those of `fixtures/replays`, damaged, and what is read beside them."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

from property_tests.support.attack import sources
from property_tests.support.attack.damage import HOSTILE_TEXT, TARGETS, as_text, damaged, value
from property_tests.support.attack.folder import Folder
from property_tests.support.attack.runner import Attack

FIXTURES = Path(__file__).parents[3] / "fixtures" / "replays"
# A replay file names a target; running its code is for whoever names it on the command line.
EVIL = "import pathlib\npathlib.Path('../outside/ran').write_text('a replay file chose this code')\nprovider = {}\n"
BRIEF = ("--hang-seconds", "10")


@functools.cache
def _fixtures() -> list[tuple[str, dict[str, Any]]]:
    return [(path.stem, json.loads(path.read_text())) for path in sorted(FIXTURES.glob("*.json"))]


def attack(random_: random.Random, folder: Folder) -> Attack:
    """A damaged replay file, and a command that reads it."""
    name, data = random_.choice(_fixtures())
    data = dict(data)
    if random_.random() < 0.6:  # what is not in the cache ends at once, so most are replayed on what is here
        data["target"] = "model" if random_.random() < 0.7 else sources.ENGINE
    what = f"a replay file ({name}) that is damaged"
    kind = random_.randrange(12)
    if kind == 0:
        data["target"] = random_.choice(TARGETS)
        what = f"a replay file of the target {data['target']!r}"
    elif kind == 1:
        data["tape"] = [random_.choice((0, 1, 2, 7, 2**31, 2**64)) for _ in range(random_.choice((0, 1, 40, 3000)))]
        what = f"a replay file ({name}) with another tape"
    elif kind == 2:
        data["tier"] = random_.choice(("ops", "scheduler", "accounting", "", "bulk", None, 3))
        what = f"a replay file ({name}) of the tier {data['tier']!r}"
    elif kind == 3:
        field = random_.choice(sorted(data))
        data[field] = random_.choice(HOSTILE_TEXT) if random_.random() < 0.7 else value(random_)
        what = f"a replay file ({name}) with a hostile {field}"
    else:
        data = damaged(random_, data)
    if json.dumps(data.get("target") if isinstance(data, dict) else "").startswith('"evil'):
        folder.write("evil.py", EVIL)
    sources.write_engine(folder)
    folder.write("replay.json", as_text(random_, data))
    return _command(random_, what)


def _command(random_: random.Random, what: str) -> Attack:
    file = "replay.json"
    trouble = random_.randrange(40)
    if trouble < 6:
        file = ("fifo", "folder", "loop", "dangling", "x" * 300, "device/null")[trouble]
        what = f"{file[:10]} as a replay file"
    target = ("--target", random_.choice(("model", sources.ENGINE))) if random_.random() < 0.3 else ()
    replays = (
        ("replay", file, *target, *BRIEF),
        ("replay", file, "--html", "page.html", *target, *BRIEF),
        ("replay", file, "--json", "shown.json", *target, *BRIEF),
        ("replay", file, "--verify", *BRIEF),
        ("replay", file, "--bisect-run", *BRIEF),
        ("shrink", file, "--attempts", "3", "--out", "smaller", "--json", "shrunk.json", *BRIEF),
        ("pin", file, *target),
        ("pin", file, "--out", "test_pinned.py", "--json", "pinned.json"),
        ("bisect", file, "--good", "sglang==0.0.0", "--bad", "sglang==0.0.1"),
        ("bisect", file, "--good", "HEAD~1", "--bad", "HEAD", "--repo", "."),
        ("report", ".", "--html", "pages", "--json", "listed.json", "--budget-seconds", "20", *BRIEF),
    )
    return Attack(what, random_.choice(replays), limit_s=30.0)
