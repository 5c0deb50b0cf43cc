"""Every operation that has a contract, by name: those of a decode step in its order, then the other families."""

from __future__ import annotations

from specsim.contracts import (
    accepted,
    block_drafts,
    cache_locs,
    deferred,
    draft_inputs,
    draft_steps,
    drafting,
    estimates,
    frequencies,
    kv,
    logits,
    multi_layer,
    ragged_drafts,
    ragged_verify,
    sampling,
    step_inputs,
    tree,
    verify,
    verify_logits,
    verify_logits_sampled,
)
from specsim.contracts.contract import Implementation, Op

# Samplers with random numbers of their own, layouts of other engines, what is a few lines of PyTorch, and the parts of
# `verify_ragged_sampled`. Every other operation has a kernel of ours.
_WITHOUT = (
    frequencies,
    ragged_drafts,
    deferred,
    ragged_verify,
    block_drafts,
    draft_inputs,
    step_inputs,
    draft_steps,
    estimates,
)
_FAMILIES = (
    *(cache_locs, tree, verify, accepted, drafting, logits, sampling, kv, multi_layer),
    *(verify_logits, verify_logits_sampled, *_WITHOUT),
)
OPS: dict[str, Op] = {op.name: op for family in _FAMILIES for op in family.OPS}
WITHOUT_A_KERNEL = frozenset(op.name for family in _WITHOUT for op in family.OPS) - {"verify_ragged_sampled"}

# The reference as a provider: `specsim check specsim.contracts.registry:REFERENCE`.
REFERENCE: dict[str, Implementation] = {op.name: op.reference for op in OPS.values()}
