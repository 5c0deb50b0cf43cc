"""Lines over time as SVG that needs no script: told apart by dashes as well as by colour, with their numbers as a table
below for who reads rather than sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from specsim.report.page.plain import visible

POINTS_MAX = 240  # of a line
ROWS_MAX = 12  # of the table below a chart
COLOURS = 8  # of page.css, --o0 and on
_WIDTH, _HEIGHT = 720, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 26
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STEPS = (1, 2, 5, 10, 20, 30)
_STEPS_OF_TIME = (*_STEPS, *(_MINUTE * n for n in _STEPS), *(_HOUR * n for n in (1, 2, 4, 8)))


class ChartLine(NamedTuple):
    """`points` are (seconds, value), seconds rising from 0. Between two of them the value is that of the first."""

    name: str
    points: Sequence[tuple[float, float]]


class Mark(NamedTuple):
    """A moment worth a stroke across the chart, and what happened then."""

    seconds: float
    text: str


class Chart(NamedTuple):
    title: str
    note: str
    lines: Sequence[ChartLine]
    marks: Sequence[Mark] = ()


def chart_of(chart: Chart) -> str:
    """A panel with the chart, its legend and its table."""
    title = escape(visible(chart.title))
    lines = [ChartLine(visible(line.name), thinned(line.points)) for line in chart.lines if line.points]
    if not lines:
        return f'<section class="panel chart"><h2>{title}</h2><p class="note">There is nothing yet.</p></section>'
    seconds = max(line.points[-1][0] for line in lines) or 1.0
    most = max(value for line in lines for _, value in line.points) or 1.0
    body = [*_across(ticks(most), most), *_below(seconds)]
    for mark in chart.marks:
        x = _x(min(mark.seconds, seconds), seconds)
        text = escape(visible(mark.text))
        body.append(f'<path class="moment" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"><title>{text}</title></path>')
    for number, line in enumerate(lines):
        (at, value), *rest = line.points
        path = f"{_x(at, seconds):.1f} {_y(value, most):.1f}"
        path += "".join(f"H{_x(at, seconds):.1f}V{_y(value, most):.1f}" for at, value in rest)
        path += f"H{_x(seconds, seconds):.1f}"
        name = escape(line.name)
        kind = f"series o{number % COLOURS} d{number % 4}"
        body.append(f'<path class="{kind}" d="M{path}"><title>{name}</title></path>')
    last = ", ".join(f"{line.name}: {short(line.points[-1][1])}" for line in lines)
    said = escape(f"{visible(chart.title)} over {span(seconds)}, at the end {last}")
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}">{"".join(body)}</svg>'
    legend = "".join(
        f'<li class="o{n % COLOURS}"><svg class="stroke" viewBox="0 0 26 6" aria-hidden="true">'
        f'<path class="series d{n % 4}" d="M0 3H26"/></svg>{escape(line.name)}</li>'
        for n, line in enumerate(lines)
    )
    note = f'<p class="note">{escape(visible(chart.note))}</p>' if chart.note else ""
    return f"""<section class="panel chart"><h2>{title}</h2>{svg}<ul class="legend">{legend}</ul>{note}
<details><summary>As numbers</summary>{_table(chart.title, lines, seconds)}</details></section>"""


def thinned(points: Sequence[tuple[float, float]], most: int = POINTS_MAX) -> list[tuple[float, float]]:
    """At most `most` of the points, the last one of each stretch of time, and the first."""
    if len(points) <= most:
        return list(points)
    end, kept = points[-1][0] or 1.0, dict[int, tuple[float, float]]()
    for point in points:
        kept[min(most - 2, int(point[0] / end * (most - 1)))] = point
    return [points[0], *kept.values()]


def ticks(most: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to at most `most`, about `count` of them."""
    rough = most / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough * 0.999)
    return [step * n for n in range(int(most / step * 1.0001) + 1)]


def _across(values: Sequence[float], most: float) -> list[str]:
    found = []
    for value in values:
        y = _y(value, most)
        found.append(f'<path class="rail" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        found.append(f'<text class="axis" x="{_LEFT - 7}" y="{y + 3.5:.1f}" text-anchor="end">{short(value)}</text>')
    return found


def _below(seconds: float) -> list[str]:
    """Labels of time. Campaigns of days are labelled in days."""
    step = next((s for s in _STEPS_OF_TIME if seconds / s <= 7), math.ceil(seconds / _DAY / 7) * _DAY)
    found = []
    for n in range(int(seconds / step) + 1):
        x = _x(n * step, seconds)
        found.append(f'<path class="rail" d="M{x:.1f} {_HEIGHT - _BOTTOM}v4"/>')
        anchor = "middle" if x < _WIDTH - 40 else "end"
        text = span(n * step) if n else "0"
        found.append(f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{text}</text>')
    return found


def _x(at: float, seconds: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / seconds


def _y(value: float, most: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / most


def _table(title: str, lines: Sequence[ChartLine], seconds: float) -> str:
    times = [seconds * n / (ROWS_MAX - 1) for n in range(ROWS_MAX)]
    head = "".join(f'<th scope="col">{escape(line.name)}</th>' for line in lines)
    rows = "".join(
        f'<tr><th scope="row">{span(at)}</th>'
        + "".join(f'<td class="number">{_value_at(line, at):,.0f}</td>' for line in lines)
        + "</tr>"
        for at in times
    )
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(visible(title))} as numbers">
<table class="index"><thead><tr><th scope="col">after</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>"""


def _value_at(line: ChartLine, at: float) -> float:
    """The last value by then, 0 before the first."""
    return next((value for seconds, value in reversed(line.points) if seconds <= at * 1.000001), 0.0)


def short(value: float) -> str:
    """A number in few characters: 1.2M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def span(seconds: float) -> str:
    """A time in its two largest units: "2 h 5 min"."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{seconds:.3g} s"
    for unit, size, below, part in (("d", _DAY, "h", _HOUR), ("h", _HOUR, "min", _MINUTE), ("min", _MINUTE, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {below}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"
