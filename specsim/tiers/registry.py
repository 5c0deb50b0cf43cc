"""The tiers that there are, in the order in which a check lists them."""

from __future__ import annotations

from specsim.tiers.ops.tier import OpsTier
from specsim.tiers.scheduler.tier import SchedulerTier
from specsim.tiers.tier import Tier, label_of
from specsim.verdict import Rule

TIERS: dict[str, Tier] = {
    "ops": OpsTier(),
    "scheduler": SchedulerTier(),
}


def all_rules() -> dict[str, Rule]:
    """Every rule of every tier by its number."""
    return {rule.id: rule for tier in TIERS.values() for rule in tier.rules.values()}


def rule_label(tier: str, rule: str) -> str:
    """A rule for a reader, as `label_of`; the number alone also where there is no such tier."""
    return label_of(TIERS[tier].rules if tier in TIERS else {}, rule)
