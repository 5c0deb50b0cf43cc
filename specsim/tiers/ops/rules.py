"""The rules of the ops tier: what is held of every implementation of every operation."""

from __future__ import annotations

from specsim.verdict import Rule, Severity

EQUALS_REFERENCE = Rule(
    "O1", "equals-reference", "every defined element of every output equals the reference", Severity.WRONG_RESULT
)
STAYS_IN_BOUNDS = Rule(
    "O2", "out-of-bounds", "no access outside the tensors that it was given", Severity.UNDEFINED_BEHAVIOUR
)
LEAVES_INPUTS = Rule("O3", "changed-input", "inputs come back unchanged", Severity.WRONG_RESULT)
IGNORES_UNDEFINED = Rule(
    "O4", "undefined-memory", "no defined element depends on undefined memory", Severity.UNDEFINED_BEHAVIOUR
)
FITS_CONTRACT = Rule("O5", "output-shape", "outputs have the contract's count, shape and dtype", Severity.WRONG_RESULT)
DOES_NOT_RAISE = Rule("O6", "call-exception", "a valid input raises no exception", Severity.CRASH)
ENDS = Rule("O7", "call-timeout", "a call ends within the time limit", Severity.CRASH)
SURVIVES = Rule("O8", "call-crash", "a call leaves its process alive", Severity.CRASH)
IGNORES_ORDER = Rule(
    "O9",
    "program-order",
    "no defined element depends on the order of a launch's programs",
    Severity.UNDEFINED_BEHAVIOUR,
)
KEEPS_RELATIONS = Rule(
    "O10", "permutation", "requests in another order, or some of them, give results to match", Severity.WRONG_RESULT
)
OFFSETS_FIT = Rule(
    "O11",
    "offset-overflow",
    "no offset overflows its integer type at sizes that an engine allows",
    Severity.UNDEFINED_BEHAVIOUR,
)
DOES_NOT_RACE = Rule(
    "O12",
    "program-race",
    "of two programs of a launch, none writes what the other reads or writes otherwise, unless atomic operations "
    "order them",
    Severity.UNDEFINED_BEHAVIOUR,
)

WARPS_DO_NOT_RACE = Rule(
    "O13",
    "warp-race",
    "of two warps of a program, none writes what the other reads or writes otherwise, unless a barrier is between them",
    Severity.UNDEFINED_BEHAVIOUR,
)

# Worst first: when one defect breaks several rules, its finding is named after the first of them.
RULES: tuple[Rule, ...] = (
    SURVIVES,
    ENDS,
    DOES_NOT_RAISE,
    FITS_CONTRACT,
    EQUALS_REFERENCE,
    LEAVES_INPUTS,
    KEEPS_RELATIONS,
    IGNORES_UNDEFINED,
    IGNORES_ORDER,
    DOES_NOT_RACE,
    WARPS_DO_NOT_RACE,
    STAYS_IN_BOUNDS,
    OFFSETS_FIT,
)
BY_ID = {rule.id: rule for rule in RULES}
