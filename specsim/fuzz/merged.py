"""What several stores say together: the shards of a campaign, or campaigns one after another.

A store is read as it is at one moment, while it may be written. Batches are counted once: two stores with the same
batch in them are copies of one campaign, and are refused.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specsim.errors import UsageError
from specsim.fuzz.store import ReachedFeature, Store, StoredBatch, StoredFinding, StoredReplay

_STATES = ("open", "not applicable", "fixed")  # where stores differ: the first of them

Key = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class FirstReached:
    """In how many runs of a target something was reached, and the batch that had it first."""

    runs: int
    first: StoredBatch


@dataclass(frozen=True, slots=True)
class Known:
    """A finding on a target: `stored` is of its first hit, with the counts of all stores; `first` the batch of that
    hit; `seen` version -> verdict; `replays` the smallest first.
    """

    stored: StoredFinding
    first: StoredBatch
    seen: dict[str, str]
    replays: tuple[StoredReplay, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """`batches` by the time they were stored; `coverage` target -> name of what was reached."""

    stores: tuple[str, ...]
    versions: tuple[str, ...]
    batches: tuple[StoredBatch, ...]
    coverage: dict[str, dict[str, FirstReached]]
    findings: tuple[Known, ...]


def merged(files: Sequence[Path]) -> Merged:
    """What the stores hold. UsageError for one that is none, and for copies of one campaign."""
    batches: dict[Key, tuple[StoredBatch, Path]] = {}
    coverage: dict[str, dict[str, FirstReached]] = defaultdict(dict)
    findings: dict[tuple[str, str], Known] = {}
    versions: dict[str, None] = {}
    for file in files:
        with Store.open(file, read_only=True) as store, store.at_one_moment():
            versions |= dict.fromkeys([store.meta().get("specsim", "")])
            here = {(batch.shard, batch.number): batch for batch in store.batches()}
            for batch in here.values():
                _take_batch(batches, batch, file)
            for covered in store.coverage():
                reached = FirstReached(covered.runs, _batch_of(covered, here, file))
                there = coverage[covered.target].get(covered.feature)
                coverage[covered.target][covered.feature] = _both(there, reached) if there else reached
            for known in _findings(store, here, file):
                key = known.stored.signature, known.stored.target
                findings[key] = _joined(findings[key], known) if key in findings else known
    return Merged(
        tuple(map(str, files)),
        tuple(filter(None, versions)),
        tuple(sorted((batch for batch, _ in batches.values()), key=lambda one: (one.at, one.shard, one.number))),
        dict(coverage),
        tuple(findings[key] for key in sorted(findings)),
    )


def _take_batch(batches: dict[Key, tuple[StoredBatch, Path]], batch: StoredBatch, file: Path) -> None:
    # Campaigns of one seed may be of other targets, and those of other code make other runs.
    what = batch.target, batch.version, batch.tier
    key = batch.campaign, batch.shard, batch.number, *what
    if key in batches:
        raise UsageError(
            f"{batches[key][1]} and {file} both hold batch {batch.number} of shard {batch.shard} of campaign "
            f"{batch.campaign}",
            "they are copies of one campaign, or it was run twice: name one of them",
        )
    batches[key] = batch, file


def _batch_of(
    row: ReachedFeature | StoredFinding, batches: dict[tuple[int, int], StoredBatch], file: Path
) -> StoredBatch:
    """The batch that was the first to have it."""
    batch = batches.get((row.shard, row.number))
    if batch is None:
        raise UsageError(
            f"the store {file} is damaged: it lacks batch {row.number} of shard {row.shard}, which it names",
            "restore it, or leave it out",
        )
    return batch


def _findings(store: Store, batches: dict[tuple[int, int], StoredBatch], file: Path) -> list[Known]:
    seen: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for one in store.seen():
        seen[one.signature, one.target][one.version] = one.verdict
    return [
        Known(
            stored,
            _batch_of(stored, batches, file),
            seen[stored.signature, stored.target],
            tuple(store.replays(stored.signature, stored.target)),
        )
        for stored in store.findings()
    ]


def _both(one: FirstReached, other: FirstReached) -> FirstReached:
    return FirstReached(one.runs + other.runs, min(one.first, other.first, key=lambda batch: batch.at))


def _joined(one: Known, other: Known) -> Known:
    """The same finding in two stores: first hit where the CPU time of that store's campaign was least, open where it is
    open in one.
    """
    first, then = sorted((one, other), key=lambda known: (known.stored.cpu_seconds, known.first.at))
    earlier, later = sorted((one, other), key=lambda known: known.first.at)
    stored = replace(
        first.stored,
        count=one.stored.count + other.stored.count,
        first_seen=earlier.stored.first_seen,
        last_seen=later.stored.last_seen,
        state=min(one.stored.state, other.stored.state, key=_STATES.index),
    )
    shown = {version: said for known in (one, other) for version, said in known.seen.items() if said == "shown"}
    replays = {replay.digest: replay for replay in (*one.replays, *other.replays)}
    by_size = sorted(replays.values(), key=lambda replay: (replay.size, replay.digest))
    return Known(stored, first.first, then.seen | first.seen | shown, tuple(by_size))
