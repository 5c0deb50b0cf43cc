"""`specsim bisect`: what its arguments ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specsim.choices.seeds import parse_seed
from specsim.commands.invocation import output_file, output_folder
from specsim.commands.options import SECONDS_MAX, CacheOption, HangOption, say, tell
from specsim.errors import UsageError
from specsim.replay_file import FINDINGS


def bisect(
    file: Annotated[Path | None, typer.Argument(help="A replay file: which revision shows its finding?")] = None,
    good: Annotated[str, typer.Option(metavar="R1", help="A release or, with --repo, a revision that is right.")] = "",
    bad: Annotated[str, typer.Option(metavar="R2", help="One that is wrong; older or newer than the good one.")] = "",
    repo: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Search the history of this git repository, untouched.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(metavar="ID", help="Ask for a rule of schedulers, in the schedules of one seed.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="ops:NAME", help="Ask for one operation, on cases.")] = None,
    seed: Annotated[str, typer.Option("--seed", help="A number or a commit hash; for --rule and --only.")] = "0",
    budget_seconds: Annotated[
        float | None,
        typer.Option(
            "--budget-seconds", min=1.0, max=SECONDS_MAX, help="No revision is asked after them: exit code 125."
        ),
    ] = None,
    schedules: Annotated[int, typer.Option(min=1, help="Schedules of a revision, for --rule.")] = 200,
    cases: Annotated[int, typer.Option(min=1, help="Cases of an implementation, for --only.")] = 50,
    out: Annotated[Path, output_folder("--out", help="Folder for the replay file of --rule and --only.")] = FINDINGS,
    json_file: Annotated[Path | None, output_file("--json", help="Write the result to this file.")] = None,
    hang_seconds: HangOption = 20.0,
    cache_dir: CacheOption = None,
) -> None:
    """Find the first bad, or first fixed, release or commit. Exit code 0 when it was found; 125 when revisions that
    cannot be checked hide it, or an end cannot be checked.
    """
    from specsim.findings.bisect import command
    from specsim.findings.bisect.verdicts import AskLimits
    from specsim.lifting.cache import open_cache

    for option, value in (("--good", good), ("--bad", bad)):
        if not value:
            raise UsageError(f"there is no {option}", "give --good and --bad, two releases or two revisions of --repo")
    cache = open_cache(cache_dir)
    question = command.question_of(
        file, rule, only, AskLimits(cache.folder, out, parse_seed(seed), schedules, cases, hang_seconds)
    )
    history = command.history_of(good, bad, repo, file)
    try:
        raise typer.Exit(command.run(history, question, cache, repo, json_file, tell, budget_seconds))
    except command.EndError as error:
        say(error)
        raise typer.Exit(command.NOT_CHECKED) from None
