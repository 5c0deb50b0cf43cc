"""The commands that work on many targets at once: a matrix of checks, and what lifts of each."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specsim.commands.options import tell
from specsim.errors import UsageError
from specsim.verdict import NotRun, Suite, Verdict

if TYPE_CHECKING:
    from specsim.commands.asked import Asked
    from specsim.commands.outputs import Outputs
    from specsim.engines.target import Target
    from specsim.findings.matrix import Column

FIXTURES = Path("fixtures/replays")


def check_many(
    chosen: list[Target],
    asked: Asked,
    json_file: Path | None,
    write: Path | None,
    pin_to: Path | None,
    texts: list[str],
    outputs: Outputs,
) -> int:
    """A matrix of targets, each checked as is `asked`; returns the exit code. `texts` are the targets and options as
    they were typed, which the page names.
    """
    from specsim import interrupts
    from specsim.commands.apart import check_apart
    from specsim.files import attempt, save_json, save_text
    from specsim.findings.fixtures import pin_missing, replay_known
    from specsim.findings.matrix import check_all
    from specsim.report.matrix import fixtures_in, print_matrix

    if write is not None and not texts:
        raise UsageError("--write without targets", "name the releases of the page: ENGINE==A..B")
    tier = asked.only or ""
    by_text = {target.text: target for target in chosen}
    at_once = min(asked.jobs, len(by_text))
    of_each = replace(asked, jobs=max(1, asked.jobs // at_once))
    with interrupts.gentle():
        matrix = check_all(
            list(by_text),
            lambda text: check_apart(replace(of_each, target=by_text[text])),
            seed=asked.seed,
            jobs=at_once,
            on_column=lambda column: tell(f"{column.target}: {column.summary}", err=True),
        )
    fixtures = pin_to or FIXTURES
    if pin_to is not None:
        attempt(lambda: pin_missing(matrix, pin_to, fixtures_in(pin_to), asked.jobs, tell))
    if write is not None:
        known = fixtures_in(fixtures)
        of_tier = {key: path for key, path in known.items() if tier in ("", key[0].split(":")[0])}
        replay_known(matrix, of_tier, asked.jobs)
    data = matrix.to_json()
    print_matrix(data)
    if json_file is not None:
        save_json(json_file, data)
    if write is not None:
        pinned = f" --pin {pin_to}" if pin_to is not None else ""
        command = f"specsim dev check {shlex.join(texts)}{pinned} --write {write}"
        save_text(write, _page(write, tier, data, command, fixtures_in(fixtures)))
    outputs.write([column.verdict or _not_checked(column) for column in matrix.columns])
    left = [c.target for c in matrix.columns if c.why == interrupts.WHY or c.verdict.get("interrupted")]
    if left:
        typer.echo(f"specsim: interrupted; these are left: specsim check {' '.join(left)}", err=True)
    return matrix.exit_code


def _page(write: Path, tier: str, data: dict[str, Any], command: str, links: Mapping[tuple[str, str], Path]) -> str:
    """The page to write. Of one tier alone it is a part of the page of all tiers that is there already."""
    from specsim.report.matrix import command_of, page, with_tier

    before = write.read_text(encoding="utf-8") if tier and write.is_file() else ""
    if command_of(before) and f"--only {tier}" not in command_of(before):
        return with_tier(before, tier, data, command, links, write)
    return page(data, command, links, write)


def _not_checked(column: Column) -> dict[str, Any]:
    """A verdict of a target that has none."""
    suite = Suite("check", not_run=[NotRun(column.target, column.why)])
    return Verdict(column.target, 0, [suite]).to_json()


def survey(texts: list[str], json_file: Path | None, write: Path | None, cache_dir: Path | None) -> int:
    """What lifts of each target; 1 when a maintainer has to add something."""
    from specsim.engines.packages import open_source
    from specsim.engines.ranges import expand_targets
    from specsim.engines.registry import ENGINES, MAIN
    from specsim.engines.target import Checkout, Release
    from specsim.files import save_json
    from specsim.lifting.cache import open_cache
    from specsim.report.terminal import print_survey

    cache, chosen, known = open_cache(cache_dir), expand_targets(texts), importlib.import_module(ENGINES[MAIN].known)
    others = [one.text for one in chosen if not isinstance(one, Release)]
    if write is not None and others:
        raise UsageError(f"--write with {others[0]}", "the data file is of releases: name those alone")
    before_write = known.load_known(write) if write is not None else {}
    listed, surveys = [], {}
    for one in chosen:
        if not isinstance(one, Release | Checkout) or one.engine != MAIN:
            raise UsageError(f"TARGET {one.text!r} is nothing to lift from", f"name a release or a checkout of {MAIN}")
        source = open_source(one, cache)
        functions, before = known.survey(source, cache), known.load_known()
        nearest = known.nearest_release(source.version, functions, before)
        found = known.drifts(functions, nearest, before)
        listed.append(known.to_json(one.text, nearest, found, known.to_add(source.version, found)))
        print_survey(listed[-1], brief=len(chosen) > 1)
        if isinstance(one, Release):
            surveys[one.version] = functions
    if json_file is not None:
        save_json(json_file, {"format": "specsim.survey/1", "targets": listed})
    if write is not None:
        save_json(write, known.known_to_json({**known.surveys_of(before_write), **surveys}))
    return 1 if any(entry["to_add"] for entry in listed) else 0
