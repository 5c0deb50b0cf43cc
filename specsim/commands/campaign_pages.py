"""`specsim report --campaign`: what stores hold, as a page, with the replay files of its findings beside it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from specsim.commands.pages import free_name
from specsim.errors import UsageError
from specsim.files import attempt, is_nested_too_deeply, save_json, save_text, write_text
from specsim.fuzz.merged import Known, Merged, merged
from specsim.replay_file import command
from specsim.report.campaign import CampaignPage, Card, Tile, page_of
from specsim.report.page.charts import Chart, ChartLine, Mark, span
from specsim.report.page.index import IndexTable
from specsim.tiers.registry import rule_label
from specsim.verdict import Severity

if TYPE_CHECKING:
    from specsim.fuzz.store import StoredBatch

FORMAT = "specsim.campaign/3"
LINES_MAX = 6  # of a chart, by target
_SEVERITIES = tuple(Severity)
_STATES = ("open", "not applicable", "fixed")


def write_campaign(files: Sequence[Path], html: Path, json_file: Path | None) -> None:
    """Write the page of the stores into the folder `html`, `index.html` and `replays/`. UsageError for bad stores."""
    if not files:
        raise UsageError("there is no store", "give --campaign FILE, what `specsim fuzz --store FILE` wrote")
    if len(set(map(Path.absolute, files))) < len(files):
        raise UsageError("a store is named twice", "name each once")
    found = merged(files)
    names = replay_names(found.findings)
    for known in found.findings:
        for name, replay in zip(names[known.stored.signature, known.stored.target], known.replays, strict=True):
            attempt(partial(_write_replay, html / name, replay.text))
    save_text(html / "index.html", page_of(shown(found, html, names)))
    typer.echo(f"{html / 'index.html'}: {_headline(found)}")
    if json_file is not None:
        save_json(json_file, answer_of(found, html, names))


def _write_replay(file: Path, text: str) -> None:
    if is_nested_too_deeply(text):
        raise UsageError(f"cannot write {file}: what a store holds for it is nested too deeply", "restore the store")
    write_text(file, text)


Names = Mapping[tuple[str, str], Sequence[str]]


def replay_names(findings: Iterable[Known]) -> dict[tuple[str, str], list[str]]:
    """Where the replay files of each finding lie in the page's folder."""
    from specsim.replay_file import file_name

    names: dict[tuple[str, str], list[str]] = {}
    taken: set[str] = set()
    for known in findings:
        key = known.stored.signature, known.stored.target
        names[key] = []
        for replay in known.replays:
            name = file_name(f"{known.stored.target}-{known.stored.rule}-{replay.digest[:12]}")
            names[key].append(f"replays/{free_name(name, taken)}.json")
    return names


def shown(found: Merged, html: Path, names: Names) -> CampaignPage:
    """What the page says."""
    import specsim

    batches = found.batches
    period = f"{_clock(batches[0].at)} to {_clock(batches[-1].at)}, " if batches else ""
    return CampaignPage(
        headline=_headline(found),
        where=f"{period}{', '.join(found.stores)}",
        tiles=_tiles(found),
        charts=_charts(found),
        findings=[_card(known, html, names) for known in sorted(found.findings, key=_worst_first)],
        tables=[table for table in (_targets(found), _troubles(found)) if table],
        version=", ".join(found.versions) or specsim.__version__,
    )


def _headline(found: Merged) -> str:
    states = Counter[str](known.stored.state for known in found.findings)
    said = f"{states['open']} open finding{'' if states['open'] == 1 else 's'}"
    rest = ", ".join(f"{states[state]} {state}" for state in _STATES[1:] if states[state])
    runs = sum(batch.runs for batch in found.batches)
    return f"{said}{f', {rest}' if rest else ''}, in {runs:,} runs"


def _clock(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
    except (OverflowError, OSError, ValueError):  # the clock of the machine was wrong
        return f"{at:.0f} s after 1970"


def _worst_first(known: Known) -> tuple[int, int, str, str]:
    stored = known.stored
    worst = _SEVERITIES.index(stored.severity) if stored.severity in _SEVERITIES else len(_SEVERITIES)
    return _STATES.index(stored.state), worst, stored.rule, stored.target


# Numbers


class Sum(NamedTuple):
    """Of some batches. `found` are findings they were the first to hit."""

    batches: int
    runs: int
    events: int
    refused: int
    cpu_seconds: float
    died: int
    found: int

    @property
    def rate(self) -> float:
        """Events of a second of CPU time."""
        return self.events / self.cpu_seconds if self.cpu_seconds else 0.0


def sums(found: Merged, by: Callable[[StoredBatch], str]) -> dict[str, Sum]:
    """Sums over the batches for which `by` says the same."""
    groups: dict[str, list[StoredBatch]] = defaultdict(list)
    for batch in found.batches:
        groups[by(batch)].append(batch)
    first_hit = Counter(by(known.first) for known in found.findings)
    return {
        name: Sum(
            batches=len(group),
            runs=sum(batch.runs for batch in group),
            events=sum(batch.events for batch in group),
            refused=sum(sum(batch.refused.values()) for batch in group),
            cpu_seconds=sum(batch.cpu_seconds for batch in group),
            died=sum(bool(batch.ended) for batch in group),
            found=first_hit[name],
        )
        for name, group in sorted(groups.items())
    }


def _tiles(found: Merged) -> list[Tile]:
    everything = sums(found, lambda _: "").get("", Sum(0, 0, 0, 0, 0.0, 0, 0))
    machines = len({(batch.campaign, batch.shard) for batch in found.batches})
    names = {name for features in found.coverage.values() for name in features}
    return [
        Tile("runs", f"{everything.runs:,}", f"in {everything.batches:,} batches"),
        Tile("events", f"{everything.events:,}", f"{everything.rate:,.0f} for a CPU second"),
        Tile("CPU time", span(everything.cpu_seconds), f"of {machines} shard{'' if machines == 1 else 's'}"),
        Tile("findings", str(len(found.findings)), f"{len({k.stored.signature for k in found.findings})} signatures"),
        Tile("implementations", f"{len(names):,}", "that were checked"),
        Tile("not checked", f"{everything.refused:,}", f"and {everything.died} batches cut short"),
    ]


def _charts(found: Merged) -> list[Chart]:
    if not found.batches:
        return []
    start = found.batches[0].at - max(0.0, found.batches[0].seconds)

    def over_time(name: str, moments: Iterable[tuple[float, float]]) -> ChartLine:
        total, points = 0.0, {0.0: 0.0}
        for at, count in moments:
            total += count
            points[at - start] = total
        return ChartLine(name, list(points.items()))

    targets = sorted({batch.target for batch in found.batches})
    named = targets if 1 < len(targets) <= LINES_MAX else []

    def by_target(value: Callable[[StoredBatch], int]) -> list[ChartLine]:
        return [
            over_time("all" if named else "runs" if value is _runs else "events", _moments(found.batches, value)),
            *(over_time(name, _moments([b for b in found.batches if b.target == name], value)) for name in named),
        ]

    marks = [
        Mark(known.first.at - start, f"{known.stored.rule} on {known.stored.target}: {known.stored.title}")
        for known in found.findings
    ]
    firsts = sorted(each.first.at for features in found.coverage.values() for each in features.values())
    reached = [over_time("all", ((at, 1) for at in firsts))] if firsts else []
    note = "A stroke is the first hit of a finding." if marks else ""
    return [
        Chart("Runs over time", note, by_target(_runs), marks),
        Chart("Events over time", "", by_target(_events), marks),
        Chart(
            "Implementations checked",
            "How many of each target had been checked by then.",
            reached,
        ),
    ]


def _runs(batch: StoredBatch) -> int:
    return batch.runs


def _events(batch: StoredBatch) -> int:
    return batch.events


def _moments(batches: Iterable[StoredBatch], value: Callable[[StoredBatch], int]) -> list[tuple[float, float]]:
    return [(batch.at, float(value(batch))) for batch in batches]


# Findings


def _card(known: Known, html: Path, names: Names) -> Card:
    stored = known.stored
    files = names[stored.signature, stored.target]
    versions = " to ".join(dict.fromkeys((stored.first_seen, stored.last_seen)))
    others = [f"{version}: {verdict}" for version, verdict in known.seen.items() if verdict != "shown"]
    facts = [
        ("seen on", versions),
        *([("run again", ", ".join(others))] if others else []),
        ("hit by", f"{stored.count:,} runs"),
        ("CPU time until then", span(stored.cpu_seconds)),
        ("first hit", f"campaign {known.first.campaign}, shard {stored.shard}, run {stored.run}"),
        ("reach", stored.reach),
        ("at", stored.where or "unknown"),
    ]
    return Card(
        rule=rule_label(stored.tier, stored.rule),
        title=stored.title,
        target=stored.target,
        severity=stored.severity,
        state=stored.state,
        sentence=stored.signature,
        facts=facts,
        replays=[(name, f"{_size(replay.size)}") for name, replay in zip(files, known.replays, strict=True)],
        commands=[command(str(html / files[0]), known.stored.target, known.stored.target)] if files else [],
    )


def _size(size: Sequence[int]) -> str:
    return f"size {' '.join(map(str, size))}" if size else "replay file"


# Tables


def _number(text: str) -> tuple[str, str]:
    return text, "number"


def _row(name: str, total: Sum) -> list[str | tuple[str, str]]:
    numbers = (total.batches, total.runs, total.events)
    return [
        name,
        *(_number(f"{value:,}") for value in numbers),
        _number(span(total.cpu_seconds)),
        _number(f"{total.rate:,.0f}"),
    ]


_COLUMNS = ["batches", "runs", "events", "CPU time", "events a CPU second"]


def _targets(found: Merged) -> IndexTable | None:
    rows: list[list[str | tuple[str, str]]] = []
    for name, total in sums(found, lambda batch: f"{batch.target}\n{batch.tier}").items():
        target, _, tier = name.rpartition("\n")
        group = [batch for batch in found.batches if (batch.target, batch.tier) == (target, tier)]
        versions = ", ".join(dict.fromkeys(batch.version[:16] for batch in group))
        states = Counter[str](
            known.stored.state for known in found.findings if (known.stored.target, known.stored.tier) == (target, tier)
        )
        said = ", ".join(f"{states[state]} {state}" for state in _STATES if states[state]) or "none"
        row = _row(target, total)
        rows.append([row[0], tier, versions, *row[1:], _number(f"{total.refused:,}"), said])
    if not rows:
        return None
    columns = ["target", "tier", "version", *_COLUMNS, "not checked", "findings"]
    return IndexTable(
        "Targets", "A version is the target's own, or the beginning of a hash of its code.", columns, rows
    )


def _troubles(found: Merged) -> IndexTable | None:
    """What was not checked, by its reason, and how processes ended that did not come to their end."""
    reasons: Counter[tuple[str, str]] = Counter()
    for batch in found.batches:
        reasons.update({(batch.target, reason): count for reason, count in batch.refused.items()})
        if batch.ended:
            reasons[batch.target, f"a process ended early: {batch.ended}"] += 1
    rows: list[list[str | tuple[str, str]]] = [
        [target, reason, _number(f"{count:,}")] for (target, reason), count in sorted(reasons.items())
    ]
    note = "A process that ended early costs one run: its batch goes on in another one."
    return IndexTable("Not checked", note, ["target", "why", "runs"], rows) if rows else None


# JSON


def answer_of(found: Merged, html: Path, names: Names) -> dict[str, Any]:
    """What the page says, for a machine: format specsim.campaign/3."""
    by: dict[str, Callable[[StoredBatch], str]] = {
        "target": lambda batch: batch.target,
        "tier": lambda batch: batch.tier,
        "shard": lambda batch: f"{batch.campaign}:{batch.shard}",
    }
    findings = [
        {
            **{name: getattr(known.stored, name) for name in known.stored.__dataclass_fields__},
            "campaign": known.first.campaign,
            "seen": known.seen,
            "replays": [str(html / name) for name in names[known.stored.signature, known.stored.target]],
        }
        for known in found.findings
    ]
    return {
        "format": FORMAT,
        "stores": list(found.stores),
        "index": str(html / "index.html"),
        "totals": {kind: {name: total._asdict() for name, total in sums(found, of).items()} for kind, of in by.items()},
        "findings": findings,
        "reached": {
            target: {name: reached.runs for name, reached in features.items()}
            for target, features in found.coverage.items()
        },
    }
