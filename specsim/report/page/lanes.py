"""Host, streams and requests as lanes over time: SVG that needs no script, and the same as text below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

COLUMN, LANE, REQUEST, TOP, BOX = 116, 62, 34, 30, 42
_CHARACTERS = 17  # of a box of one column
_LEGEND = (
    ("launch", "what the host does: mostly it launches operations"),
    ("wait", "the host waits"),
    ("run", "a stream runs operations"),
    ("blamed", "the accesses that the finding is about"),
)


def lanes_of(payload: Mapping[str, Any]) -> str:
    """The panels of a page of kind "streams"."""
    legend = "".join(f'<li><i class="box {kind}"></i>{text}</li>' for kind, text in _LEGEND)
    names = [f'<li class="stream">{escape(name)}</li>' for name in payload["lanes"]]
    names += [
        f'<li class="{_colour(n)}{" wrong" if request["wrong"] else ""}">{escape(request["rid"])}</li>'
        for n, request in enumerate(payload["requests"])
    ]
    width, height = _size(payload)
    label = f"{len(payload['lanes'])} lanes of host and streams over {len(payload['iterations'])} iterations"
    return f"""<section class="panel overtime" id="lanes" aria-label="Host, streams and requests over time">
<h2>Host, streams and requests over time</h2>
<p class="note">Time goes to the right, in iterations of the scheduler's loop. A thin line leads from a launch to where
its stream runs it: below it, or later, when the stream is slow. A green arrow is an order that the program makes: a
stream waits for another, or the host for a stream. Requests are below: from arrival to end, with the passes that they
are in.</p>
<ul class="legend">{legend}</ul>{_pair(payload)}
<div class="lanes-over-time"><ul class="names" aria-hidden="true">{"".join(names)}</ul>
<div class="scroll" id="track" tabindex="0" role="region" aria-label="{escape(label)}">
<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">
{"".join(_drawn(payload))}</svg></div></div>
<details class="trace"><summary>As text, {len(payload["boxes"])} steps</summary><pre tabindex="0">{_text(payload)}</pre>
</details></section>"""


def _size(payload: Mapping[str, Any]) -> tuple[int, int]:
    lanes, requests = len(payload["lanes"]), len(payload["requests"])
    return max(1, payload["columns"]) * COLUMN + 60, TOP + lanes * LANE + requests * REQUEST + 6


def _pair(payload: Mapping[str, Any]) -> str:
    """The accesses in words, each with a link to its box."""
    pair = payload["pair"]
    if not pair:
        return ""
    items = "".join(
        f'<li><a href="#access{access["mark"]}"><b class="mark">{access["mark"]}</b> {escape(access["text"])}</a></li>'
        for access in pair
    )
    said = "Here it was seen:"
    if len(pair) == 2:
        first = min(pair, key=lambda access: access["column"])
        said = (
            "No stream, event or wait says which of these two comes first. "
            f"In this schedule {first['mark']} ran first; on a GPU it may be the other one:"
        )
    return f'<div class="accesses"><p>{said}</p><ol>{items}</ol></div>'


def _drawn(payload: Mapping[str, Any]) -> Iterator[str]:
    width, height = _size(payload)
    lanes = len(payload["lanes"])
    for lane in range(lanes):
        yield f'<path class="rail" d="M0 {_middle(lane)}H{width}"/>'
    for number in range(len(payload["requests"])):
        yield f'<path class="rail" d="M0 {_life(lanes, number)}H{width}"/>'
    for iteration in payload["iterations"]:
        x = iteration["from"] * COLUMN
        yield f'<path class="iteration" d="M{x + 0.5} 0V{height}"/>'
        yield f'<text class="soft" x="{x + 5}" y="14">iteration {iteration["number"]}</text>'
    for link in payload["links"]:
        yield from _link(link)
    for box in payload["boxes"]:
        yield _box(box)
    yield from _bridge(payload["pair"], payload["boxes"])
    for number, request in enumerate(payload["requests"]):
        yield from _lifeline(request, _life(lanes, number), _colour(number))


def _middle(lane: int) -> int:
    return TOP + lane * LANE + LANE // 2


def _life(lanes: int, number: int) -> int:
    return TOP + lanes * LANE + number * REQUEST + REQUEST // 2


def _box(box: Mapping[str, Any]) -> str:
    x, y = box["from"] * COLUMN + 4, _middle(box["lane"]) - BOX // 2
    width = (box["to"] - box["from"] + 1) * COLUMN - 8
    characters = int(width / COLUMN * _CHARACTERS)
    kind = f"{box['kind']}{' blamed' if box['mark'] else ''}"
    name, more = _short(box["name"], characters), _short(box["more"], characters)
    mark = ""
    if box["mark"]:
        mark = (
            f'<circle class="badge" cx="{x + width - 2}" cy="{y + 2}" r="10"/>'
            f'<text class="badge" x="{x + width - 2}" y="{y + 6}">{box["mark"]}</text>'
        )
    named = f' id="access{box["mark"]}"' if box["mark"] else ""
    title = escape(f"{box['name']} ({box['more']}), {box['where']}")
    return (
        f'<g{named}><title>{title}</title><rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{BOX}" '
        f'rx="5"/><text x="{x + 7}" y="{y + 18}">{escape(name)}</text>'
        f'<text class="soft" x="{x + 7}" y="{y + 33}">{escape(more)}</text>{mark}</g>'
    )


def _link(link: Mapping[str, Any]) -> Iterator[str]:
    """From a box to another: below it to the next lane, or on to a later column."""
    down = link["to_lane"] > link["lane"]
    side = BOX // 2
    y1 = _middle(link["lane"]) + (side if down else -side)
    y2 = _middle(link["to_lane"]) - (side if down else -side)
    x1, x2 = link["from"] * COLUMN + COLUMN // 2, link["to"] * COLUMN + COLUMN // 2
    if link["kind"] != "run":
        x1, x2 = (
            (link["from"] + 1) * COLUMN - 16,
            link["to"] * COLUMN + (16 if link["kind"] == "order" else COLUMN - 30),
        )
    tip = 6 if down else -6
    bend = (y2 - y1) * 0.6
    yield f'<path class="link {link["kind"]}" d="M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2 - tip}"/>'
    if link["kind"] != "run":
        yield f'<path class="tip {link["kind"]}" d="M{x2} {y2}l-4 {-tip * 1.2}h8z"/>'


def _bridge(pair: Sequence[Mapping[str, Any]], boxes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Joins the two accesses that nothing orders."""
    ends = [box for mark in (1, 2) for box in boxes if box["mark"] == mark]
    if len(pair) != 2 or len(ends) != 2:
        return
    (x1, y1), (x2, y2) = (
        (box["from"] * COLUMN + COLUMN // 2, _middle(box["lane"])) for box in sorted(ends, key=lambda box: box["from"])
    )
    side = BOX // 2
    if y1 == y2:
        path = f"M{x1} {y1 - side}V{y1 - side - 8}H{x2}V{y2 - side}"
    else:
        down = side if y2 > y1 else -side
        path = f"M{x1} {y1 + down}L{x2} {y2 - down}"
    yield f'<path class="bridge" d="{path}"/>'
    near = min(0.5, 190 / max(1, x2 - x1))  # in sight of the first
    text_x, text_y = round(x1 + near * (x2 - x1)), round(y1 + near * (y2 - y1))
    yield f'<rect class="plate" x="{text_x - 62}" y="{text_y - 9}" width="124" height="18" rx="4"/>'
    yield f'<text class="unordered" x="{text_x}" y="{text_y + 4}">nothing orders them</text>'


def _lifeline(request: Mapping[str, Any], y: int, colour: str) -> Iterator[str]:
    start, end = request["from"] * COLUMN + 4, request["to"] * COLUMN + 4
    wrong = " wrong" if request["wrong"] else ""
    title = escape(f"{request['rid']}: {request['text']}")
    named = ' id="wrong"' if wrong else ""
    yield f'<g{named} class="{colour}"><title>{title}</title>'
    yield f'<path class="life{wrong}" d="M{start} {y}H{max(end, start + 8)}"/>'
    for at in request["passes"]:
        x = at["at"] * COLUMN + 8
        yield f'<rect class="pass" x="{x}" y="{y - 9}" width="50" height="18" rx="4"/>'
        yield f'<text class="inside" x="{x + 25}" y="{y + 4}">{escape(at["kind"])}</text>'
    if request["abort"] >= 0:
        x = request["abort"] * COLUMN + 70
        yield f'<text class="aborted" x="{x}" y="{y + 4}">abort sent</text>'
    yield f'<text class="soft" x="{end + 4}" y="{y - 5}">{escape(_end(request))}</text></g>'


def _end(request: Mapping[str, Any]) -> str:
    ended = {"length": "ended: length", "stop": "ended: stop", "abort": "aborted"}.get(request["end"], request["end"])
    return ended or "no end"


def _text(payload: Mapping[str, Any]) -> str:
    """A line for each box, in the order in which they begin."""
    lines = []
    starts = {iteration["from"]: iteration["number"] for iteration in payload["iterations"]}
    seen = -1
    for box in sorted(payload["boxes"], key=lambda box: (box["from"], box["lane"])):
        lines += [f"iteration {starts[at]}" for at in range(seen + 1, box["from"] + 1) if at in starts]
        seen = box["from"]
        lane = payload["lanes"][box["lane"]]
        line = escape(f"  {lane:18} {box['name']} ({box['more']})  {box['where']}")
        lines.append(f"<strong>{line}  [{box['mark']}]</strong>" if box["mark"] else line)
    return "\n".join(lines)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def _colour(number: int) -> str:
    return f"owner o{number % 7}"
