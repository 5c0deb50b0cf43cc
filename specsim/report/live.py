"""The live line of long work, on standard error: what runs, how much and how fast, what was found, the time left.

On a terminal one line that changes; elsewhere plain lines, the first after `PLAIN_SECONDS` and then as often, so that
short work prints nothing and the log of a long run shows that it lives. NO_COLOR is honoured, and a line that does not
fit is cut at the terminal's edge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from specsim.report.page.plain import visible

PLAIN_SECONDS = 10.0
REFRESHES_PER_SECOND = 4
TEXT_MAX = 500  # characters of a name
_MINUTE = 60


@dataclass(slots=True)
class WorkProgress:
    """What long work has done so far. Counters that are None are not shown.

    `what`    what is done, e.g. "checking model"
    `now`     what of it runs now
    `counts`  numbers by their names, shown in order, e.g. {"schedules": 40}
    `done`    of `of` parts; `of` 0 when that is not known
    `events`  of schedules, shown as a rate
    `findings` distinct ones
    `schedules_of` of how many "schedules" are counted, 0 when that is not known
    `budget_seconds` after which the work ends, None when it has no budget
    """

    what: str
    budget_seconds: float | None = None
    now: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    done: int | None = None
    of: int = 0
    events: int | None = None
    findings: int | None = None
    schedules_of: int = 0
    events_since: float = 0.0  # seconds after the start at which the events began
    by_tier: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def take(self, message: Mapping[str, Any], elapsed: float) -> None:
        """Take what a child of a tier counted: `events`, `findings` and `schedules`. Tiers that
        run at once are added up.
        """
        if self.events is None:
            self.events_since = elapsed
        self.by_tier[message.get("tier", "")] = message
        told = self.by_tier.values()
        self.counts["schedules"] = sum(one["schedules"] for one in told)
        self.events, self.findings = sum(one["events"] for one in told), sum(one["findings"] for one in told)


def line_of(progress: WorkProgress, elapsed: float) -> str:
    """The line, `elapsed` seconds after the start. What matters comes first: a narrow terminal cuts the end."""
    parts = []
    if progress.done is not None:
        parts.append(f"{progress.done:,} of {progress.of:,}" if progress.of else f"{progress.done:,}")
    for name, count in progress.counts.items():
        of = f" of {progress.schedules_of:,}" if name == "schedules" and progress.schedules_of else ""
        parts.append(f"{count:,}{of} {name}")
    if progress.findings is not None:
        parts.append(f"{progress.findings} finding{'' if progress.findings == 1 else 's'}")
    ran = elapsed - progress.events_since
    if progress.events is not None and ran > 0:
        parts.append(f"{progress.events / ran:,.0f} events/s")
    left = _left(progress, elapsed)
    if left is not None:
        parts.append(f"{_span(left)} left")
    name = visible(progress.what, TEXT_MAX)
    now = f" ({visible(progress.now, TEXT_MAX)})" if progress.now else ""
    return f"{name}: {', '.join(parts) or _span(elapsed)}{now}"


def _left(progress: WorkProgress, elapsed: float) -> float | None:
    """Seconds that are left: of the budget, or at the pace so far; None when that is not known."""
    left = None
    if progress.done and progress.of:
        left = elapsed / progress.done * (progress.of - progress.done)
    schedules = progress.counts.get("schedules", 0)
    if schedules and progress.schedules_of:
        left = (elapsed - progress.events_since) / schedules * max(0, progress.schedules_of - schedules)
    if progress.budget_seconds is not None:
        of_budget = max(0.0, progress.budget_seconds - elapsed)
        left = of_budget if left is None else min(left, of_budget)
    return left


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), _MINUTE)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class LiveLine:
    """The line while it is shown. `progress` is what it shows; `tell` after it changed. `count`, when it is there, is
    asked for the counts each time the line is shown. `say` prints a line of its own above it.
    """

    def __init__(
        self,
        progress: WorkProgress,
        print_plain: Callable[[str], None] | None,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.progress = progress
        self.say = say
        self._print_plain = print_plain
        self._cases: dict[str, int] = {}  # of each tier; two may run at a time
        self.count: Callable[[], dict[str, int]] | None = None
        self._started = time.monotonic()
        self._told = 0.0

    @property
    def text(self) -> str:
        """The line now."""
        if self.count is not None:
            self.progress.counts = self.count()
        return line_of(self.progress, self.elapsed)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def tell(self) -> None:
        """Something changed. Where the line is not live, print it if the last time is long ago."""
        if self._print_plain is not None and self.elapsed - self._told >= PLAIN_SECONDS:
            self._told = self.elapsed
            self._print_plain(self.text)

    def subject(self, tier: str, subject: str, cases: int) -> None:
        """Case number `cases` of the tier comes next, of the implementation or part `subject`."""
        self.progress.now = subject
        if subject not in ("schedules", "shrinking"):
            self._cases[tier] = cases
            self.progress.counts["cases"] = sum(self._cases.values())
        self.tell()

    def counted(self, message: Mapping[str, Any]) -> None:
        """A child counted events, findings and schedules."""
        self.progress.take(message, self.elapsed)
        self.tell()

    def part_done(self, done: int, of: int) -> None:
        """Of `of` parts `done` are done."""
        self.progress.done, self.progress.of = done, of
        self.tell()


@contextmanager
def live(what: str, budget_seconds: float | None = None) -> Iterator[LiveLine]:
    """Show a live line while work runs."""
    progress = WorkProgress(what, budget_seconds)
    console = Console(stderr=True, highlight=False, emoji=False)

    def print_line(text: str) -> None:
        console.print(visible(text), markup=False, soft_wrap=True)

    if not console.is_terminal or console.is_dumb_terminal:
        yield LiveLine(progress, print_line, print_line)
        return
    line = LiveLine(progress, None, print_line)

    def shown() -> Text:
        return Text(visible(line.text), style="cyan", no_wrap=True, overflow="crop")

    with Live(
        get_renderable=shown,
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield line
