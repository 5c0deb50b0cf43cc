"""`specsim lossless`: the exact distance between what a release's worker answers and its target model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from specsim.commands.invocation import output_file
from specsim.commands.options import (
    SECONDS_MAX,
    CacheOption,
    HangOption,
    KeepEnvironmentOption,
    MemoryOption,
    one_of,
)
from specsim.deadline import SPENT, Deadline
from specsim.engines.registry import MAIN
from specsim.errors import UsageError
from specsim.verdict import FINDING, NOT_CHECKED, PASS

if TYPE_CHECKING:
    from specsim.engines.target import Target


class LosslessRow(msgspec.Struct, frozen=True):
    """One target with one kind of drafts: how many outcomes, and how far they are off in total variation, a fraction;
    or why this is not known, of what the target raises (`failed`) or what keeps it from being run (`not_run`).
    """

    target: str
    drafts: str
    outcomes: int = 0
    off: str = ""
    failed: str = ""
    not_run: str = ""

    @property
    def is_lossless(self) -> bool:
        return self.off == "0"


def lossless(
    target: Annotated[
        list[str], typer.Argument(metavar="TARGET...", help=f"{MAIN}==VERSION | {MAIN}==A..B | {MAIN}@PATH[#REV].")
    ],
    drafts: Annotated[
        str | None, typer.Option(metavar="chain|tree", help="Drafts of topk 1, or of topk 2. Default: both.")
    ] = None,
    beyond_guards: Annotated[
        bool, typer.Option("--beyond-guards", help="Run what a release refuses, too: no server can be configured so.")
    ] = False,
    mutant: Annotated[str, typer.Option(metavar="ID", help="Plant a defect into the target first.")] = "",
    json_file: Annotated[Path | None, output_file("--json", help="Write the rows to this file.")] = None,
    write: Annotated[Path | None, output_file("--write", help="Write them as a page.")] = None,
    budget_seconds: Annotated[
        float | None,
        typer.Option("--budget-seconds", min=1.0, max=SECONDS_MAX, help="Begin no further row after them."),
    ] = None,
    hang_seconds: HangOption = 20.0,
    _memory: MemoryOption = None,
    _kept: KeepEnvironmentOption = None,
    cache_dir: CacheOption = None,
) -> None:
    """Weigh every outcome of a release's own worker at a temperature, and compare with decoding token by token: the
    total variation, as a fraction. 0 is lossless. Exit code 1 when something is not.
    """
    from specsim.engines.load import planted
    from specsim.engines.ranges import expand_targets
    from specsim.files import save_json, save_text
    from specsim.lifting.cache import open_cache
    from specsim.report.lossless import page
    from specsim.report.terminal import print_lossless
    from specsim.tiers.scheduler.lossless import DRAFTS

    one_of("--drafts", drafts, tuple(DRAFTS))
    chosen = expand_targets(target)
    for each in chosen:
        _require_engine(each)
        if mutant:
            planted(each, mutant, open_cache(cache_dir))
    deadline = Deadline.after(budget_seconds)
    rows: list[LosslessRow] = []
    cache = open_cache(cache_dir).folder
    for each in chosen:
        for kind in [drafts] if drafts else DRAFTS:
            if deadline.is_over:
                rows.append(LosslessRow(each.text, kind, not_run=SPENT))
                continue
            rows.append(_weighed(each.text, kind, beyond_guards, mutant, cache, hang_seconds))
    data: dict[str, Any] = {"beyond_guards": beyond_guards, "mutant": mutant, "rows": msgspec.to_builtins(rows)}
    print_lossless(data["rows"])
    if json_file is not None:
        save_json(json_file, data)
    if write is not None:
        flags = ["--drafts", drafts] if drafts else []
        flags += ["--beyond-guards"] if beyond_guards else []
        flags += ["--mutant", mutant] if mutant else []
        save_text(write, page(data["rows"], f"specsim lossless {shlex.join([*target, *flags])} --write {write}"))
    if any(row.failed or (row.off and not row.is_lossless) for row in rows):
        raise typer.Exit(FINDING)
    raise typer.Exit(PASS if any(row.is_lossless for row in rows) else NOT_CHECKED)


def _require_engine(target: Target) -> None:
    from specsim.tiers.registry import TIERS

    if not TIERS["scheduler"].is_of(target):
        raise UsageError(f"{target.text} has no worker to run", "name a release or a checkout of an engine")


def _weighed(
    target: str, drafts: str, beyond_guards: bool, mutant: str, cache: Path, hang_seconds: float
) -> LosslessRow:
    from specsim.isolation.conversation import ChildEnded
    from specsim.report.live import live
    from specsim.tiers.messages import At, End, Request, Weigh, Weighed
    from specsim.tiers.process import ask
    from specsim.tiers.registry import TIERS

    request = Request(
        tier="scheduler",
        target=target,
        cache=str(cache),
        seed=0,
        count=1,
        seconds=hang_seconds,
        hang_seconds=hang_seconds,
        mutant=mutant,
        worker="release",
        work=Weigh(drafts=drafts, beyond_guards=beyond_guards),
    )
    with live(f"{target}, {drafts}", None) as line:
        try:
            for message in ask(request, TIERS["scheduler"].limit_seconds(request)):
                if isinstance(message, At):
                    line.part_done(message.count, 0)
                elif isinstance(message, End):
                    return LosslessRow(target, drafts, not_run=message.not_run[0].why)
                elif isinstance(message, Weighed):
                    return LosslessRow(target, drafts, message.outcomes, message.off, message.why)
        except ChildEnded as ended:
            return LosslessRow(target, drafts, failed=ended.text)
    return LosslessRow(target, drafts, failed="it gives no answer")
