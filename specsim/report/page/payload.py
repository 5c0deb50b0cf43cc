"""What a page shows, from a replay file and the answer of its replay. The format is in the package's docstring."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import specsim
from specsim import replay_file
from specsim.replay_file import OpReplay, Replay, ScheduleReplay, WorkerReplay
from specsim.report.page.plain import plain
from specsim.report.page.tensors import tensors_of

FORMAT = "specsim.page/1"
_WORK = ("prefill", "verify", "copy")  # what computes a launch; with streams, the copy brings its result

Payload = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page is made of beside the replay: what the caller knows of the target and of this machine.

    `target`    the TARGET it was replayed on, with its mutant
    `command`   what replays it
    `verdict`   how it ended, one line
    `severity`  of its rule, "" for unknown, and its `sentence`, for the workers tier, whose answers have none
    `source`    {where, first, line, lines, note} or None
    """

    target: str
    command: str
    verdict: str
    severity: str = ""
    sentence: str = ""
    source: Mapping[str, Any] | None = None


def payload_of(stored: Replay, answer: Mapping[str, Any], shown: Shown) -> Payload:
    """The payload of a finding of any tier."""
    if isinstance(stored, ScheduleReplay):
        return _of_schedule(stored, answer, shown)
    if isinstance(stored, OpReplay):
        return _of_case(stored, answer, shown)
    return _of_probe(stored, answer, shown)


def _payload(kind: str, stored: Replay, shown: Shown, blamed: Mapping[str, Any], more: Mapping[str, Any]) -> Payload:
    texts = {name: str(blamed.get(name, "")) for name in ("sentence", "where", "part", "who", "expected", "actual")}
    finding = {
        "rule": stored.rule,
        "severity": shown.severity,
        "title": stored.title,
        "target": shown.target,
        "found_on": stored.target,
        "signature": stored.signature,
        "verdict": shown.verdict,
        **texts,
    }
    found: Payload = plain(
        {
            "format": FORMAT,
            "kind": kind,
            "specsim": specsim.__version__,
            "finding": finding,
            "command": shown.command,
            "source": shown.source,
            **more,
        }
    )
    return found


def _of_schedule(stored: ScheduleReplay, answer: Mapping[str, Any], shown: Shown) -> Payload:
    violations = answer["violations"]
    shows = [violation for violation in violations if replay_file.is_shown(stored, violation)]
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
        "order": [order_of(text) for text in stored.order] if stored.target == shown.target.split(" with ")[0] else [],
        "changes": changes,
        "trees": recording.get("trees", {}),
        "launches": launches,
        **{name: recording.get(name, 0) for name in ("pool_slots", "page_size", "row_width", "rows")},
    }
    return _payload("schedule", stored, shown, blamed, more)


def _scenario_tables(stored: ScheduleReplay, answer: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    scenario = answer.get("scenario", {})
    workload = dict(scenario.get("workload", {}))
    turns = workload.pop("turns", [])
    return {
        "Configuration": _rows_and_off(scenario.get("config", {})),
        "Workload": [[turn["rid"], _turn_text(turn)] for turn in turns] + _rows_and_off(workload),
        "Replay": [
            ["digest", answer["digest"]],
            ["digest when found", stored.digest],
            ["seed", str(stored.seed)],
            ["choices", str(len(stored.tape))],
            ["model hash", stored.model_hash],
        ],
    }


def _turn_text(turn: Mapping[str, Any]) -> str:
    """A turn without what it does not have."""
    dull = {"session": "", "extra_key": "", "logprob_start": -1}
    has = {name: value for name, value in turn.items() if name != "rid" and value != dull.get(name) and value}
    return ", ".join(f"{name}={value}" for name, value in has.items())


def _rows_and_off(values: Mapping[str, Any]) -> list[list[str]]:
    """The values that are on, a row each, and in one row those that are not."""
    off = ", ".join(name for name, value in values.items() if not value)
    return _rows({name: value for name, value in values.items() if value}) + ([["off or 0", off]] if off else [])


def _rows(values: Mapping[str, Any]) -> list[list[str]]:
    return [[name, str(value)] for name, value in values.items()]


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


def _of_case(stored: OpReplay, answer: Mapping[str, Any], shown: Shown) -> Payload:
    violations = [{**violation, "event": None} for violation in answer.get("violations", ())]
    blamed = next((violation for violation in violations if violation["rule"] == stored.rule), {})
    where = {"where": answer.get("where") or stored.where, "part": f"{stored.op}, {answer.get('subject', '')}"}
    more = {
        "notes": [answer["explanation"]] if answer.get("explanation") else [],
        "tables": {
            "Sizes": _rows(stored.sizes),
            "Replay": [
                ["operation", stored.op],
                ["implementation", stored.subject],
                ["device", stored.device],
                ["digest", answer.get("digest", "")],
                ["digest when found", stored.digest],
                ["seed", str(stored.seed)],
            ],
        },
        "violations": violations,
        "tensors": tensors_of(answer),
    }
    return _payload("case", stored, shown, {**blamed, **where}, more)


def _of_probe(stored: WorkerReplay, answer: Mapping[str, Any], shown: Shown) -> Payload:
    violations = [
        {**broken, "sentence": broken["what"], "title": broken["what"], "event": None} for broken in answer["broken"]
    ]
    blamed = next((violation for violation in violations if violation["rule"] == stored.rule), {})
    blamed = {**blamed, "sentence": shown.sentence or blamed.get("sentence", "")}
    more = {
        "notes": [line for broken in answer["broken"] for line in broken["details"]],
        "tables": {
            "Case": _rows(answer.get("case", {})),
            "What the function handed on": _rows(answer.get("seen", {})),
            "Replay": [
                ["function", stored.function],
                ["probe", stored.probe],
                ["digest", answer.get("digest", "")],
                ["digest when found", stored.digest],
                ["seed", str(stored.seed)],
            ],
        },
        "violations": violations,
    }
    return _payload("probe", stored, shown, {**blamed, "where": answer.get("where", ""), "part": stored.probe}, more)
