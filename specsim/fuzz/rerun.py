"""Findings of other versions, run again on those of this campaign: still there, fixed, or not applicable.

The smallest replay file of each finding is run on each target of the same product whose version has not been asked
yet: of another release, of a checkout that has moved on, of a model whose code has changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from specsim.engines.target import Checkout, PythonTarget, Release, parse_target
from specsim.errors import UsageError
from specsim.files import write_text
from specsim.findings.bisect.verdicts import AskLimits, BisectState, FileQuestion
from specsim.fuzz.store import Store, StoredFinding, StoredReplay, Verdict
from specsim.tiers.process import Ask, ask, fork_server

_VERDICTS: dict[BisectState, Verdict] = {
    BisectState.BAD: "shown",
    BisectState.GOOD: "fixed",
    BisectState.SKIPPED: "not applicable",
}
_HASH_SEED = "0"
MANY = 3  # findings for which a child is worth its start that has torch loaded


def due(store: Store, target: str, version: str) -> Iterator[tuple[StoredFinding, StoredReplay]]:
    """What has to be run on this version of the target: findings of its product, each with its smallest replay file."""
    asked = {entry.signature for entry in store.seen() if (entry.target, entry.version) == (target, version)}
    best: dict[str, tuple[StoredFinding, StoredReplay]] = {}
    for finding in store.findings():
        if finding.signature in asked or product_of(finding.target) != product_of(target):
            continue
        for replay in store.replays(finding.signature, finding.target)[:1]:
            known = best.get(finding.signature)
            # The target's own file speaks of it best.
            if known is None or (finding.target != target, replay.size) < (known[0].target != target, known[1].size):
                best[finding.signature] = finding, replay
    yield from best.values()


def run_again(
    store: Store,
    target: str,
    version: str,
    limits: AskLimits,
    goes_on: Callable[[], bool],
    on_verdict: Callable[[StoredFinding, Verdict, str], None],
) -> None:
    """Run what is due on this version of the target as long as it `goes_on`, and note it in the store. `on_verdict` is
    told each finding, the verdict and why.
    """
    waiting = list(due(store, target, version))
    if not waiting or not goes_on():
        return
    with ExitStack() as stack:
        asked: Ask = ask
        if len(waiting) >= MANY:
            child = fork_server(_HASH_SEED)
            stack.callback(child.close)
            asked = child.ask
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "replay.json"
        for finding, replay in waiting:
            if not goes_on():
                return
            write_text(file, replay.text)
            verdict, why = _checked(file, limits, target, asked)
            store.mark(finding, target, version, verdict)
            on_verdict(finding, verdict, why)


def _checked(file: Path, limits: AskLimits, target: str, ask: Ask) -> tuple[Verdict, str]:
    try:
        verdict = FileQuestion(file, limits).check(target, ask, _HASH_SEED)
    except UsageError as error:  # a file that this specsim does not read
        return "not applicable", error.problem
    return _VERDICTS[verdict.state], verdict.why


def product_of(target: str) -> str:
    """What versions are of: an engine for its releases and checkouts, else the target itself."""
    parsed = parse_target(target)
    if isinstance(parsed, Release | Checkout):
        return parsed.engine
    return parsed.text if isinstance(parsed, PythonTarget) else "model"
