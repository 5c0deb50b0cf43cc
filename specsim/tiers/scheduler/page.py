"""A schedule of a release's scheduler as a page shows it: host and streams as lanes, requests below them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from specsim.rules.answers import VisibleOutputs
from specsim.rules.requests import FinishedClaim, LengthsInOrder
from specsim.rules.slots import FreeSlot, RowOwner, SlotsAtRest
from specsim.rules.table import BY_ID
from specsim.tiers.states import changed
from specsim.tiers.tier import Answer, Page
from specsim.world.scheduler import END, MODEL, RESULT, Step
from specsim.world.workload import told, turn_text

if TYPE_CHECKING:
    from specsim.replay_file import SchedulerReplay

HOST = "host"


def page_of(stored: SchedulerReplay, answer: Answer) -> Page:
    """The page of a replay; with lanes where it was recorded."""
    violations = [
        {**v, "sentence": BY_ID[v["rule"]].sentence, "title": v["part"], "event": None}
        for v in answer.get("violations", ())
    ]
    blamed: Mapping[str, Any] = next((v for v in violations if stored.is_shown(v)), {})
    turns = answer.get("workload", {}).get("turns", ())
    tables = {
        "What users do": [list(row) for row in told(answer.get("workload", {}))],
        "Replay": [
            ["setup", answer.get("setup", "")],
            ["digest", answer.get("digest", "")],
            ["digest when found", stored.digest],
            ["seed", str(stored.seed)],
            ["choices", str(len(stored.tape))],
        ],
    }
    notes = list(blamed.get("details", ()))
    parts = {"notes": notes, "tables": tables, "violations": violations}
    recording = answer.get("recording")
    if not recording or not recording["steps"]:
        launches = [[str(number), line] for number, line in enumerate(answer.get("events", ()))]
        return Page("probe", blamed, {**parts, "tables": {**tables, "Launches": launches}})
    at = recording["blamed"].get(blamed.get("signature", ""), ())
    steps = [Step(*step) for step in recording["steps"]]
    lanes = Lanes(steps, at).plain(turns, recording["lives"], blamed.get("who", ""))
    if recording["unreadable"]:
        notes.append(f"What requests and slots were at each event could not be read: {recording['unreadable']}.")
    play = play_of(recording, steps, turns, blamed, lanes["iterations"])
    if play:
        marks = [at for at, step in enumerate(steps) if step.kind == "mark"]
        for violation in violations:
            violation["event"] = _event_of(steps, marks[:-1], recording["blamed"].get(violation["signature"], ()))
    return Page("streams", blamed, {**parts, **lanes, "play": play})


# ---- the states


WRONG: Mapping[str, tuple[str, str]] = {
    FinishedClaim.rule.id: ("request", "committed"),
    LengthsInOrder.rule.id: ("request", "committed"),
    VisibleOutputs.rule.id: ("request", "outputs"),
    RowOwner.rule.id: ("list", "free rows"),
    SlotsAtRest.rule.id: ("list", "free slots"),
    FreeSlot.rule.id: ("list", "free slots"),
}
"""What is red on the page of a rule, beside slots that hold what they should not."""


def play_of(
    recording: Mapping[str, Any],
    steps: Sequence[Step],
    turns: Sequence[Mapping[str, Any]],
    blamed: Mapping[str, Any],
    iterations: Sequence[Mapping[str, int]],
) -> dict[str, Any] | None:
    """What a page has to go through the events of a schedule: what users did and each pass; None where the states are
    not known.
    """
    states = recording["states"]
    marks = [at for at, step in enumerate(steps) if step.kind == "mark"]
    if len(states) < 2 or len(states) != len(marks):
        return None
    # The state at a mark is what the event before it left.
    changes = [changed(before, now) for before, now in pairwise(({}, *states[1:]))]
    signature, who = blamed.get("signature", ""), blamed.get("who", "")
    if signature in recording["read"]:
        slot, position = recording["read"][signature]
        event = _event_of(steps, marks[:-1], recording["blamed"][signature])
        seen = (state["slots"].get(str(slot)) for state in (states[event + 1], states[event]))
        held = next((leaf[2] for leaf in seen if leaf is not None), "")
        changes[event].setdefault("slots", {})[str(slot)] = [who, position, held, f"{who}@{position}"]
    kind, name = WRONG.get(blamed.get("rule", ""), ("", ""))
    pool, columns = recording["pool"], {iteration["number"]: iteration["from"] for iteration in iterations}
    return {
        "agents": [HOST],
        "requests": [turn["rid"] for turn in turns if turn["rid"] in recording["lives"]],
        "events": list(_events(turns, recording["lives"], [steps[at] for at in marks[:-1]], columns)),
        "changes": changes,
        "pool_slots": pool["slots"],
        "page_size": pool["page_size"],
        "rows": pool["rows"],
        "wrong": {"kind": kind, "name": name, "who": who} if kind else None,
    }


def _events(
    turns: Sequence[Mapping[str, Any]], lives: Mapping[str, Any], marks: Sequence[Step], columns: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    """Each mark as an event: an iteration, with what users sent and saw then, or a pass of the model."""
    sent = [turn for turn in turns if turn["rid"] in lives]
    iteration = 0
    for number, mark in enumerate(marks):
        kind, who, details, touches = mark.what, mark.who, "", mark.who.split()
        if mark.what.startswith("iteration "):
            kind, _, who = mark.what.partition(" ")
            iteration = int(who)
            did = {
                "arrives": [t["rid"] for t in sent if lives[t["rid"]][0] == iteration],
                "abort of": [t["rid"] for t in sent if 0 <= t["abort"] == iteration - lives[t["rid"]][0]],
                "ended": [t["rid"] for t in sent if lives[t["rid"]][1] == iteration],
            }
            details = ", ".join(f"{what} {' '.join(rids)}" for what, rids in did.items() if rids)
            touches = list(dict.fromkeys(rid for rids in did.values() for rid in rids))
        yield {
            "number": number,
            "agent": HOST,
            "event": kind,
            "who": who,
            "details": details,
            "line": f"{number:4}  {kind:9}  {who}  {details}".rstrip(),
            "touches": touches,
            "column": columns.get(iteration, 0),
        }


def _event_of(steps: Sequence[Step], marks: Sequence[int], blamed: Sequence[int]) -> int:
    """The event in which the operations to blame had run, the last one where none is."""
    ran = [at for at, step in enumerate(steps) if step.number in blamed and step.kind in ("run", "access")]
    return max(0, bisect_right(marks, max(ran)) - 1) if ran else len(marks) - 1


@dataclass(slots=True)
class _Column:
    """A stretch of time in which one function is at work, on the host, on a stream, or on both at once."""

    key: tuple[Any, ...]
    host: list[Step] = field(default_factory=list)
    runs: list[Step] = field(default_factory=list)
    until: int = -1  # the step up to which the host waits


class Lanes:
    """Steps as boxes in lanes. Neighbours of one function and stream share a box; the operations `blamed` have their
    own.
    """

    def __init__(self, steps: Sequence[Step], blamed: Sequence[int]) -> None:
        self._blamed = list(blamed)
        self._columns: list[_Column] = []
        self._column_of: list[int] = []  # by step
        self._launched: dict[int, tuple[int, int]] = {}  # by number of an operation: step and column of its launch
        self._ran: dict[str, list[tuple[int, int, int]]] = {}  # by stream: n, column and step of launch
        self._orders: list[tuple[int, Step]] = []
        self._iterations: dict[int, int] = {}  # its first column
        self._passes: list[tuple[int, str, str]] = []
        self._is_new = True
        for number, step in enumerate(steps):
            self._take(number, step)
            self._column_of.append(len(self._columns) - 1)

    def _take(self, at: int, step: Step) -> None:
        if step.kind == "mark":
            self._mark(step)
        elif step.kind == "order":
            self._orders.append((at, step))
        elif step.kind == "run":
            if step.number not in self._launched:
                return
            column = self._columns[-1]
            if self._is_new or self._launched[step.number][1] != len(self._columns) - 1:
                column = self._column((_function(step), step.lane, "run", self._own(step)))
            column.runs.append(step)
            launched, _ = self._launched[step.number]
            self._ran.setdefault(step.lane, []).append((step.n, len(self._columns) - 1, launched))
        elif step.where:
            kind = "wait" if step.kind == "wait" and step.end > at else "host"
            column = self._column((_function(step), step.stream, kind, self._own(step)))
            column.host.append(step)
            if kind == "wait":
                column.until = step.end
            if step.number:
                self._launched[step.number] = (at, len(self._columns) - 1)

    def _mark(self, step: Step) -> None:
        self._is_new = True
        if step.what.startswith("iteration "):
            self._iterations[int(step.what.split()[1])] = len(self._columns)
        elif step.what != END:
            self._passes.append((len(self._columns), step.what, step.who))

    def _own(self, step: Step) -> int:
        return step.number if step.number in self._blamed else 0

    def _column(self, key: tuple[Any, ...]) -> _Column:
        if self._is_new or self._columns[-1].key != key or key[2] == "wait":
            self._columns.append(_Column(key))
            self._is_new = False
        return self._columns[-1]

    # ---- as JSON

    def plain(self, turns: Sequence[Mapping[str, Any]], lives: Mapping[str, Any], who: str) -> dict[str, Any]:
        """What a page of kind "streams" has (`specsim.report.page`)."""
        streams = sorted({run.lane for column in self._columns for run in column.runs}, key=self._order_of)
        lanes = [HOST, *streams]
        return {
            "lanes": lanes,
            "columns": len(self._columns),
            "iterations": [{"number": n, "from": column} for n, column in self._iterations.items()],
            "boxes": list(self._boxes(lanes)),
            "links": self._links(lanes),
            "pair": [self._access(number) for number in self._blamed if number in self._launched],
            "requests": [
                self._request(turn, lives[turn["rid"]], who == turn["rid"]) for turn in turns if turn["rid"] in lives
            ],
        }

    def _order_of(self, stream: str) -> int:
        return self._ran[stream][0][1]

    def _boxes(self, lanes: Sequence[str]) -> Any:
        for number, column in enumerate(self._columns):
            if column.host:
                end = self._column_of[column.until] if column.until >= 0 else number
                yield self._box(0, number, max(end, number), column.host, "wait" if column.until >= 0 else "launch")
            if column.runs:
                yield self._box(lanes.index(column.runs[0].lane), number, number, column.runs, "run")

    def _box(self, lane: int, start: int, end: int, steps: Sequence[Step], kind: str) -> dict[str, Any]:
        first = steps[0]
        function = first.where.partition(" at ")[0]
        counts = Counter(step.what for step in steps if step.kind != "wait") or Counter(step.what for step in steps)
        what = ", ".join(f"{name} \u00d7{count}" if count > 1 else name for name, count in counts.items())
        name = function.rpartition(".")[2]
        if first.where in (MODEL, RESULT):
            name, what = (what if first.where == MODEL else "results"), MODEL
        elif all(step.kind == "wait" for step in steps):
            name, what = what, function
        marks = [self._blamed.index(step.number) + 1 for step in steps if step.number in self._blamed]
        is_here = kind == "run" or first.kind == "access"
        return {
            "lane": lane,
            "from": start,
            "to": end,
            "name": name,
            "more": what,
            "where": first.where,
            "kind": "access" if first.kind == "access" else kind,
            "mark": marks[0] if marks and is_here else 0,
        }

    def _links(self, lanes: Sequence[str]) -> list[dict[str, Any]]:
        found: dict[tuple[Any, ...], None] = {}
        for number, column in enumerate(self._columns):
            for run in column.runs:
                found["run", 0, self._launched[run.number][1], lanes.index(run.lane), number] = None
        for at, step in self._orders:
            source = self._up_to(step)
            goal = next((c for _, c, launched in self._ran.get(step.lane, ()) if launched > at), None)
            if source is not None and goal is not None and step.stream != step.lane:
                found["order", lanes.index(step.stream), source, lanes.index(step.lane), goal] = None
        for number, column in enumerate(self._columns):
            for step in column.host:
                source = self._up_to(step) if step.kind == "wait" else None
                if source is not None:
                    end = self._column_of[column.until] if column.until >= 0 else number
                    found["wait", lanes.index(step.stream), source, 0, max(end, number)] = None
        names = ("kind", "lane", "from", "to_lane", "to")
        return [dict(zip(names, link, strict=True)) for link in found]

    def _up_to(self, step: Step) -> int | None:
        """The column of the last operation that is waited for."""
        ran = self._ran.get(step.stream, [])
        place = bisect_right([n for n, _, _ in ran], step.n)
        return ran[place - 1][1] if place else None

    def _access(self, number: int) -> dict[str, Any]:
        """One of the operations to blame, in words."""
        _, launch = self._launched[number]
        iteration = max((n for n, column in self._iterations.items() if column <= launch), default=0)
        column, step = next(
            (n, step)
            for kind in ("runs", "host")
            for n, column in enumerate(self._columns)
            for step in getattr(column, kind)
            if step.number == number
        )
        lane = step.lane if step.kind == "run" else HOST
        return {
            "mark": self._blamed.index(number) + 1,
            "column": column,
            "text": f"{step.what} on {lane}, by {step.where or 'nobody known'}, launched in iteration {iteration}",
        }

    def _request(self, turn: Mapping[str, Any], life: Sequence[Any], is_wrong: bool) -> dict[str, Any]:
        sent, ended, reason, aborted = life
        rid = turn["rid"]
        start = self._iterations.get(sent, len(self._columns))
        return {
            "rid": rid,
            "text": turn_text(turn),
            "from": start,
            "to": max(self._iterations.get(ended, len(self._columns)), start) if ended >= 0 else len(self._columns),
            "end": reason or "",
            "abort": self._iterations.get(sent + turn["abort"], -1) if turn["abort"] >= 0 and aborted else -1,
            "passes": [{"at": at, "kind": kind} for at, kind, who in self._passes if rid in who.split()],
            "wrong": is_wrong,
        }


def _function(step: Step) -> str:
    """The function that does something, of the model its phase."""
    return f"{MODEL}:{step.what}" if step.where == MODEL else step.where.partition(" at ")[0]
