"""`specsim fuzz --again SHARD:INDEX`: the batch of a run of a campaign, made again from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specsim.commands.options import tell
from specsim.commands.trust import NAME_TARGETS, announce
from specsim.errors import UsageError
from specsim.files import attempt, save_json, write_text
from specsim.verdict import FINDING, NOT_CHECKED, PASS

if TYPE_CHECKING:
    from specsim.fuzz.batches import BatchPlan
    from specsim.fuzz.work import Batch, RunFinding

FORMAT = "specsim.again/3"


def make_again(
    text: str,
    store_file: Path,
    plan: BatchPlan,
    out: Path,
    json_file: Path | None,
    hang_seconds: float,
    cache: Path,
    *,
    named: Sequence[str] | None,
    trust: bool,
) -> int:
    """Make the batch of run SHARD:INDEX again, of the campaign in the store, or of `plan` where there is no store.
    Returns the exit code: 1 when it breaks a rule, 125 when its target does not run it.
    """
    from specsim.fuzz.workers import run_batch
    from specsim.replay_file import command, file_name

    shard, index = _numbers(text)
    batch = _batch_of(store_file, plan, shard, index)
    if store_file.exists():  # it chose the target, unless that was named
        announce(store_file, [batch.target], plan.targets if named else (), trust, NAME_TARGETS)
    tell(f"the batch of run {index} of shard {shard}, campaign {batch.campaign}: {batch.target}, {batch.tier}")
    result = run_batch(batch, cache, hang_seconds)
    findings, why = list(result.findings), result.ended or ", ".join(result.refused)
    answer = {"judged": bool(result.runs), "version": result.version, "runs": result.runs, "why": why}
    if why:
        tell(why)
    for found in findings:
        tell(f"{found.signature}: {found.title}")
        path = out / f"{file_name(f'{batch.target}-{found.signature}-run-{batch.shard}-{index}')}.json"
        if attempt(partial(write_text, path, found.replay)):
            tell(f"     {command(str(path), batch.target, batch.target)}")
    code = FINDING if findings else PASS if answer["judged"] else NOT_CHECKED
    typer.echo("fail" if findings else "pass" if answer["judged"] else "not checked")
    if json_file is not None:
        save_json(json_file, _to_json(batch, index, answer, findings, code))
    return code


def _numbers(text: str) -> tuple[int, int]:
    shard, colon, index = text.partition(":")
    if not (colon and all(part.isascii() and part.isdigit() and len(part) < 16 for part in (shard, index))):
        raise UsageError(f"--again {text!r} is no run", "give SHARD:INDEX, such as 0:12345")
    return int(shard), int(index)


def _batch_of(store_file: Path, plan: BatchPlan, shard: int, index: int) -> Batch:
    """The batch of a run. UsageError for a run that cannot be made again."""
    from specsim.fuzz.batches import RUNS_MAX, batch_at, plan_from_json
    from specsim.fuzz.store import Store
    from specsim.fuzz.work import Batch

    number = index // RUNS_MAX
    if not store_file.exists():
        return _holding(batch_at(plan, shard, number), index)
    with Store.open(store_file, read_only=True) as store:
        row = store.batch_of(shard, index)
        if row is None:
            before = store.meta().get("plan", "")
            return _holding(batch_at(plan_from_json(before) if before else plan, shard, number), index)
        return Batch(
            campaign=row.campaign,
            shard=shard,
            number=row.number,
            first=row.first,
            count=row.count,
            target=row.target,
            tier=row.tier,
        )


def _holding(batch: Batch, index: int) -> Batch:
    if index >= batch.first + batch.count:
        last = batch.first + batch.count - 1
        raise UsageError(
            f"--again {batch.shard}:{index}: batch {batch.number}, of {batch.tier}, ends with run {last}",
            "give a run that was made",
        )
    return batch


def _to_json(batch: Batch, index: int, answer: dict[str, Any], findings: list[RunFinding], code: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "campaign": batch.campaign,
        "shard": batch.shard,
        "index": index,
        "target": batch.target,
        "tier": batch.tier,
        "exit_code": code,
        **answer,
        "findings": [{"signature": found.signature, "title": found.title} for found in findings],
    }
