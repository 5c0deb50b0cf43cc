"""Which batch comes next: one of each tier of each target at first, so that a campaign begins with all that a check
runs; then drawn from (campaign, shard, number of the batch), with integer weights.

Run `index` of a shard is in batch `index // RUNS_MAX`, whatever its target and tier.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import msgspec

from specsim.choices.chooser import stream
from specsim.errors import UsageError
from specsim.fuzz.work import Batch
from specsim.tiers.registry import TIERS

RUNS_MAX = 5000  # of a batch

Drawn = TypeVar("Drawn")


@dataclass(frozen=True, slots=True)
class Lot:
    """Batches of one tier of a target, and their weight."""

    target: str
    tier: str
    weight: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the batches of a campaign are drawn from. `campaign` is its seed."""

    campaign: int
    lots: tuple[Lot, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(lot.target for lot in self.lots))


def plan_from_json(text: str) -> BatchPlan:
    """The plan that a store holds; UsageError for one that is damaged."""
    try:
        plan = msgspec.json.decode(text, type=BatchPlan)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _damaged(str(error)) from error
    unknown = [lot.tier for lot in plan.lots if lot.tier not in TIERS]
    if unknown:
        raise _damaged(f"there is no tier {unknown[0]!r}")
    if not (plan.lots and all(0 < lot.weight < 1 << 32 for lot in plan.lots)):
        raise _damaged("a weight is not positive, or nothing has one")
    return plan


def _damaged(why: str) -> UsageError:
    return UsageError(f"the plan that the store holds is damaged: {why}", "name another --store")


def lots_of(tiers: Mapping[str, Sequence[str]]) -> tuple[Lot, ...]:
    """The lots of targets, by the tiers that each has. A target without schedules has its time for its cases."""
    return tuple(Lot(target, tier, TIERS[tier].batch_weight) for target, of in tiers.items() for tier in of)


def batch_at(plan: BatchPlan, shard: int, number: int, stopped: Collection[tuple[str, str]] = ()) -> Batch:
    """Batch `number` of the shard. Lots whose (target, tier) has `stopped` are
    left out; one at least must not have.
    """
    draw = stream(plan.campaign, "batch", shard, number)

    def among(options: Sequence[tuple[Drawn, int]]) -> Drawn:
        left = draw(sum(weight for _, weight in options), "")
        for option, weight in options:
            left -= weight
            if left < 0:
                return option
        raise AssertionError("weights are positive")

    goes_on = [lot for lot in plan.lots if (lot.target, lot.tier) not in stopped]
    first_round = [plan.lots[(number + shard) % len(plan.lots)]] if number < len(plan.lots) else []
    lot = next((lot for lot in first_round if lot in goes_on), None) or among([(lot, lot.weight) for lot in goes_on])
    tier = TIERS[lot.tier]
    return Batch(
        campaign=plan.campaign,
        shard=shard,
        number=number,
        first=number * RUNS_MAX,
        count=tier.batch_count,
        target=lot.target,
        tier=lot.tier,
    )


def seed_of(batch: Batch) -> int:
    """The seed of the batch's runs, whose numbers begin at 0."""
    material = "\x1f".join(["campaign", *map(str, (batch.campaign, batch.shard, batch.number))]).encode()
    return int.from_bytes(hashlib.sha256(material).digest()[:8], "big")
