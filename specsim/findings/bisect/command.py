"""`specsim bisect`, from its arguments to its exit code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from specsim import interrupts, replay_file
from specsim.engines.registry import ENGINES, MAIN
from specsim.errors import UsageError
from specsim.files import save_json
from specsim.findings.bisect import report
from specsim.findings.bisect.changes import changed_functions
from specsim.findings.bisect.revisions import History, commits_between, releases_between
from specsim.findings.bisect.run import CheckedRevision, EndError, FoundChange, bisect
from specsim.findings.bisect.verdicts import AskLimits, BisectQuestion, FileQuestion, OpQuestion, RuleQuestion
from specsim.lifting.cache import Cache
from specsim.lifting.git import Repository
from specsim.tiers.process import HASH_SEEDS, fork_server

NOT_CHECKED = 125  # what `git bisect run` takes for "skip this one"
GIVE_ONE = "give a replay file, --rule ID or --only ops:NAME, and one of them alone"


def history_of(good: str, bad: str, repository: Path | None, file: Path | None = None) -> History:
    """What is to be searched: releases of the engine that the replay file is of, or else of the one that `good` names,
    or the commits of a repository.
    """
    if repository is not None:
        return commits_between(repository, good, bad)
    named = replay_file.load(file).target if file is not None else good
    engine = re.split("==|@", named, maxsplit=1)[0]
    return releases_between(good, bad, engine if engine in ENGINES else MAIN)


def question_of(file: Path | None, rule: str | None, only: str | None, limits: AskLimits) -> BisectQuestion:
    """What is to be asked. UsageError unless exactly one of the three is given."""
    given = [name for name, value in (("FILE", file), ("--rule", rule), ("--only", only)) if value is not None]
    if len(given) != 1:
        raise UsageError(f"there is {' and '.join(given) or 'nothing'} to ask of each revision", GIVE_ONE)
    if file is not None:
        return FileQuestion(file, limits)
    if rule is not None:
        return RuleQuestion(rule, limits)
    tier, _, name = str(only).partition(":")
    if tier != "ops" or not name:
        raise UsageError(f"--only {only} names no operation", "write --only ops:NAME; a rule is given with --rule ID")
    return OpQuestion(name, limits)


def run(
    history: History,
    question: BisectQuestion,
    cache: Cache,
    repository: Path | None,
    json_file: Path | None,
    say: Callable[[str], None],
    budget_seconds: float | None = None,
) -> int:
    """Search, and say what was found; the exit code: 0, or 125 when revisions that are not checked hide the change."""
    if history.note:
        say(history.note)
    say(f"{len(history.revisions)} revisions; {question.text}")
    goes_on = interrupts.until(budget_seconds or math.inf)

    def on_step(step: CheckedRevision) -> None:
        say(report.step_line(step))
        if not goes_on():
            raise EndError("the time budget was spent", "narrow it: give revisions above as --good and --bad")

    with ExitStack() as stack:
        one, two = (fork_server(seed) for seed in HASH_SEEDS)
        for child in (one, two):
            stack.callback(child.close)
        found = bisect(history, question, (one.ask, two.ask), cache, on_step)
        replay = question.replay(found.bad.revision.target, one.ask)
    sources = [step.revision.open(cache) for step in (found.before, found.after)]
    changed = changed_functions(
        found.before.verdict, found.after.verdict, sources[0], sources[1], report.blamed_of(found)
    )
    for line in report.lines_of(found, changed, _files(found, repository), replay, question.text):
        say(line)
    if json_file is not None:
        save_json(json_file, report.to_json(found, changed, replay, question.text))
    return NOT_CHECKED if found.skipped else 0


def _files(found: FoundChange, repository: Path | None) -> list[str]:
    if repository is None:
        return []
    repo = Repository(repository.expanduser().absolute())
    return repo.files_changed(repo.commit(found.after.revision.target.rpartition("#")[2]))


__all__ = ["NOT_CHECKED", "EndError", "history_of", "question_of", "run"]
