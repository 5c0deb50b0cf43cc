"""`specsim mutants --of TARGET`: the mutation score of a target's own scheduler."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer

from specsim.deadline import Deadline, TimeSpent
from specsim.errors import UsageError
from specsim.files import read_json, read_toml, save_json
from specsim.selfcheck.source_hunt import COLUMNS, Reached, ScoredMutant, hunt_all, reached, totals
from specsim.selfcheck.source_mutants import SourceMutant, drawn
from specsim.verdict import INTERRUPTED, NOT_CHECKED, PASS

EQUIVALENT = 10
"""Of so many mistakes one may count as one that changes nothing, and not at all."""


class ScoreAsked(NamedTuple):
    """What is asked: `ids` are mutants that are hunted instead of drawn ones."""

    target: str
    ids: tuple[str, ...]
    seed: int
    schedules: int
    jobs: int


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of a score: `reached` is what the target's own schedules run and show, `drawn` counts the mutants that
    are hunted, of which those are left that are not among `mutants`. `equivalent` are those that change nothing, and
    why. `environment` is where the last of them was hunted, and `seconds` took all of it, in all runs.
    """

    target: str
    seed: int
    schedules: int
    reached: Reached
    drawn: int
    mutants: list[ScoredMutant]
    equivalent: dict[str, str] = {}
    environment: dict[str, str | int | None] = {}
    seconds: float = 0.0


def score(
    asked: ScoreAsked,
    count: int,
    json_file: Path | None,
    resume: Path | None,
    equivalent: Path | None,
    budget_seconds: float | None,
    deadline: Deadline,
) -> int:
    """Draw so many mutants, hunt, print; the exit code."""
    from specsim import interrupts
    from specsim.engines.packages import open_source
    from specsim.engines.registry import ENGINES
    from specsim.engines.target import Checkout, Release, parse_target
    from specsim.engines.triage import triaged
    from specsim.lifting.cache import open_cache
    from specsim.report.live import live

    target = parse_target(asked.target)
    if not isinstance(target, Release | Checkout) or "scheduler" not in ENGINES[target.engine].subjects:
        raise UsageError(f"{asked.target} has no scheduler of its own", "name ENGINE==VERSION, or ENGINE@PATH")
    before = _before(resume, asked) if resume is not None else None
    arguments = _arguments(equivalent) if equivalent is not None else {}
    source = open_source(target, open_cache())
    seen = before.reached if before is not None else Reached([], {})
    mutants: list[SourceMutant] = []
    done: dict[str, ScoredMutant] = {}
    from specsim.bench.environment import environment  # with torch: only now that all that was asked is right

    surroundings = environment()
    started = time.monotonic() - (before.seconds if before is not None else 0.0)

    def save() -> None:
        if json_file is None:
            return
        hunted, seconds = _in_order(mutants, done), round(time.monotonic() - started, 1)
        written = Score(
            asked.target,
            asked.seed,
            asked.schedules,
            seen,
            len(mutants),
            hunted,
            arguments,
            surroundings,
            seconds,
        )
        save_json(json_file, msgspec.to_builtins(written))

    with interrupts.gentle(), live(f"hunting mutants of {asked.target}", budget_seconds) as line:
        try:
            if before is None:
                seen = reached(asked.target, asked.seed, asked.schedules, asked.jobs, triaged(target), deadline)
            mutants = drawn(source, asked.target, seen.ran, count, asked.seed)
            if asked.ids:
                mutants = _named(asked.ids, mutants)
            ids = {mutant.id for mutant in mutants}
            arguments = {one: why for one, why in arguments.items() if one in ids}
            if len(arguments) * EQUIVALENT > len(mutants):
                problem = f"{equivalent} has {len(arguments)} of the {len(mutants)} mistakes"
                raise UsageError(problem, f"one in {EQUIVALENT} may change nothing")
            done |= {one.id: one for one in (before.mutants if before is not None else ()) if one.id in ids}

            def noted(one: ScoredMutant) -> None:
                done[one.id] = one
                line.part_done(len(done), len(mutants))
                save()

            hunt_all(
                asked.target,
                [mutant for mutant in mutants if mutant.id not in done],
                seen,
                seed=asked.seed,
                jobs=asked.jobs,
                on_done=noted,
                stopped=interrupts.asked,
                deadline=deadline,
            )
        except TimeSpent:
            pass
        interrupted = interrupts.asked()
    save()
    if done:
        _print(asked, seen, _in_order(mutants, done), arguments)
    left = len(mutants) - len(done)
    if left or not mutants:
        why = "interrupted" if interrupted else "the time budget was spent"
        again = f"; --resume {json_file} goes on" if json_file is not None else ""
        typer.echo(f"specsim: {why}; {left} are left{again}", err=True)
    return PASS if mutants and not left else INTERRUPTED if interrupted else NOT_CHECKED


def _named(ids: tuple[str, ...], mutants: list[SourceMutant]) -> list[SourceMutant]:
    by_id = {mutant.id: mutant for mutant in mutants}
    if unknown := [one for one in ids if one not in by_id]:
        raise UsageError(f"{unknown[0]!r} is none of the {len(mutants)} mutants that are drawn", "see those of --json")
    return [by_id[one] for one in ids]


def _before(file: Path, asked: ScoreAsked) -> Score:
    """What an earlier run has."""
    remedy = "name what `specsim mutants --of` wrote by --json"
    try:
        score = msgspec.convert(read_json(file, remedy), Score)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file} is no score: {error}", remedy) from error
    for name, was, now in (
        ("target", score.target, asked.target),
        ("seed", score.seed, asked.seed),
        ("schedules", score.schedules, asked.schedules),
    ):
        if was != now:
            raise UsageError(f"{file} is of {name} {was}, and not {now}", "ask for the same, or begin anew")
    return score


def _arguments(file: Path) -> dict[str, str]:
    """Why mistakes change nothing, by their ids."""
    found = read_toml(file, 'write lines of "ID" = "why it changes nothing"')
    for one, why in found.items():
        if not isinstance(why, str) or not why.strip():
            raise UsageError(f"{file} does not say why {one!r} changes nothing", "say it in a sentence")
    return found


def _in_order(mutants: list[SourceMutant], done: dict[str, ScoredMutant]) -> list[ScoredMutant]:
    return [done[mutant.id] for mutant in mutants if mutant.id in done]


def _print(asked: ScoreAsked, seen: Reached, hunted: list[ScoredMutant], equivalent: dict[str, str]) -> None:
    from specsim.report.terminal import console_of, show, table_of

    console = console_of()
    lines = sum(map(len, seen.ran.values()))
    title = (
        f"{asked.target}: {len(hunted)} mistake{'s' * (len(hunted) != 1)} in the {lines:,} statements that"
        f" {asked.schedules} schedules of seed {asked.seed} run"
    )
    table = table_of(title, *COLUMNS)
    for cells in totals(hunted, equivalent):
        table.add_row(*cells)
    show(console, table)
    for one in hunted:
        if one.id in equivalent:
            what = f"changes something: {one.signature} shows it" if one.is_found else equivalent[one.id]
        elif one.is_found:
            continue
        else:
            what = "ended by a time limit" if one.ended else "not found"
        console.print(f"{what}: {one.file}:{one.line} {one.id}", soft_wrap=True, markup=False)
