"""The tiers that there are, in the order in which a check lists them."""

from __future__ import annotations

from specsim.tiers.accounting.tier import AccountingTier
from specsim.tiers.ops.tier import OpsTier
from specsim.tiers.tier import Tier
from specsim.tiers.workers.tier import WorkersTier

TIERS: dict[str, Tier] = {
    "ops": OpsTier(),
    "workers": WorkersTier(),
    "accounting": AccountingTier(),
}
