"""An engine whose runs the rules check: memory, accounting, checker and engine of one run, put together."""

from __future__ import annotations

from collections.abc import Callable

from specsim.choices.chooser import Chooser
from specsim.engine.accounting import Accounting, Memory, ModelAccounting, make_memory
from specsim.engine.config import require_runnable
from specsim.engine.loop import Engine
from specsim.engine.rules.checker import Checker
from specsim.engine.rules.ledger import SlotLedger
from specsim.engine.rules.table import RULES
from specsim.engine.workload import Scenario
from specsim.verdict import Rule


def checked_engine(
    scenario: Scenario,
    chooser: Chooser,
    accounting: Callable[[Memory], Accounting] = ModelAccounting,
    stop_at: str = "",
    rules: tuple[Rule, ...] = RULES,
) -> Engine:
    """One run of a scenario. `accounting` makes the accounting that is tested from the memory that it calls back. The
    run ends at a violation with the signature `stop_at`, or at one that it cannot go on from.
    A rule that is not among `rules` is not checked.

    Raises UsageError for a configuration that cannot be run, UnsupportedScenarioError when the accounting refuses it.
    """
    return Engine(scenario, chooser, *checked_parts(scenario, accounting, stop_at, rules))


def checked_parts(
    scenario: Scenario,
    accounting: Callable[[Memory], Accounting] = ModelAccounting,
    stop_at: str = "",
    rules: tuple[Rule, ...] = RULES,
) -> tuple[Memory, Accounting, Checker]:
    """What an engine is given to run a scenario: memory, an accounting over it, and the checker that watches both."""
    config = scenario.config
    require_runnable(config)
    ledger, window_ledger = SlotLedger(config.page_size), SlotLedger(config.page_size)
    memory = make_memory(config, ledger, window_ledger)
    made = accounting(memory)
    has_distributions = scenario.workload.has_distributions
    checker = Checker(
        config, memory, ledger, made, window_ledger, stop_at, has_distributions=has_distributions, rules=rules
    )
    return memory, made, checker
