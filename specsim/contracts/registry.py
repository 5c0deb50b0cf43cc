"""Every operation that has a contract, by name: those of a decode step in its order, then the other families."""

from __future__ import annotations

from specsim.contracts import (
    accepted,
    cache_locs,
    drafting,
    frequencies,
    kv,
    logits,
    multi_layer,
    ragged_drafts,
    sampling,
    step_inputs,
    tree,
    verify,
    verify_logits,
    verify_logits_sampled,
)
from specsim.contracts.contract import Implementation, Op

_FAMILIES = (
    *(cache_locs, tree, verify, accepted, drafting, logits, sampling, kv, multi_layer),
    *(verify_logits, verify_logits_sampled, frequencies, ragged_drafts, step_inputs),
)
OPS: dict[str, Op] = {op.name: op for family in _FAMILIES for op in family.OPS}

# Samplers with random numbers of their own, and layouts of other engines. Every other operation has a kernel of ours.
WITHOUT_A_KERNEL = frozenset(op.name for family in (frequencies, ragged_drafts, step_inputs) for op in family.OPS)

# The reference as a provider: `specsim check specsim.contracts.registry:REFERENCE`.
REFERENCE: dict[str, Implementation] = {op.name: op.reference for op in OPS.values()}
