"""What a page of a schedule shows: its events and launches, what the engine's states were, and the scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from specsim import replay_file
from specsim.replay_file import ScheduleReplay
from specsim.tiers.accounting.shown import request_lines, settings_line
from specsim.tiers.tier import Answer, Page

_WORK = ("prefill", "verify", "copy")  # what computes a launch; with streams, the copy brings its result


def page_of(stored: ScheduleReplay, target: str, answer: Answer) -> Page:
    """The page of a schedule that was replayed on a target."""
    violations = answer["violations"]
    shows = [violation for violation in violations if stored.is_shown(violation)]
    blamed = (shows or violations or [{}])[0]
    recording = answer.get("recording", {})
    launches = recording.get("launches", {})
    scenario = answer.get("scenario", {})
    rids = [turn["rid"] for turn in scenario.get("workload", {}).get("turns", ())]
    changes = recording.get("changes", [])
    events = [_event(event, set(rids), launches) for event in answer["events"]]
    notes = []
    if not answer["same_model"]:
        notes.append("Made before a change of the simulator: its tape may stand for another schedule than it did.")
    more = {
        "notes": notes,
        "tables": _scenario_tables(stored, answer),
        "violations": violations,
        "agents": recording.get("agents", sorted({event["agent"] for event in events})),
        "requests": rids,
        "events": events,
        "links": links_of(events, launches, changes),
        "order": [order_of(text) for text in stored.order] if stored.target == target else [],
        "changes": changes,
        "trees": recording.get("trees", {}),
        "launches": launches,
        **{name: recording.get(name, 0) for name in ("pool_slots", "page_size", "row_width", "rows")},
    }
    return Page("schedule", blamed, more)


def _scenario_tables(stored: ScheduleReplay, answer: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    scenario = answer.get("scenario", {})
    settings = settings_line(scenario.get("config", {}))
    return {
        "Requests": [list(line) for line in request_lines(scenario.get("workload", {}))],
        "Settings": [one.split("=", 1) if "=" in one else ["", one] for one in settings.split(", ")],
        "Replay": [
            ["digest", answer["digest"]],
            ["digest when found", stored.digest],
            ["seed", str(stored.seed)],
            ["choices", str(len(stored.tape))],
            ["model hash", stored.model_hash],
        ],
    }


def _event(event: Mapping[str, Any], rids: set[str], launches: Mapping[str, Any]) -> dict[str, Any]:
    words = [event["who"], *event["details"].split()]
    named = [word for text in words for word in (text, text.rpartition(":")[0]) if word in rids]
    launch = next((word for word in words if word in launches), "")
    return {
        **event,
        "line": replay_file.event_line(event),
        "touches": list(dict.fromkeys(named)),
        "launch": launch,
    }


def links_of(
    events: Sequence[Mapping[str, Any]], launches: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Which events belong to one launch: where it was launched, where it was computed, where its result was taken."""
    links: list[dict[str, Any]] = []
    at: dict[str, int] = {}
    in_flight: set[str] = set()
    for event, change in zip(events, [*changes, *[{}] * (len(events) - len(changes))], strict=True):
        number, name = event["number"], event["launch"]
        if event["event"] == "launch":
            at[name] = number
        elif event["event"] in _WORK and name in at:
            links.append({"from": at[name], "to": number, "kind": "run"})
            at[name] = number
        elif event["event"] in ("resolve", "stale") and name in at:
            stale = event["event"] == "stale" or "stale" in event["details"].replace(":", " ").split()
            links.append({"from": at.pop(name), "to": number, "kind": "stale" if stale else "result"})
        now = change.get("lists", {}).get("in flight")
        if now is not None:
            gone = [n for n in sorted(in_flight - set(now)) if n in at and launches[n]["kind"] == "prefill"]
            links += [{"from": at.pop(name), "to": number, "kind": "silent"} for name in gone]
            in_flight = set(now)
    return links


def order_of(text: str) -> dict[str, Any]:
    """An event of the decisive pair, as a replay file names it."""
    found = re.match(r"event (\d+): ", text)
    return {"event": int(found[1]) if found else None, "text": text}
