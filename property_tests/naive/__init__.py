"""A naive implementation of every operation, with which tests compare the reference.

There is a file for each of the reference's, and in it a function NAME_naive with the signature of NAME. It works with
lists, dicts and for loops, one request, node or token at a time, and does not check its arguments.
"""

from property_tests.naive import (
    accepted,
    cache_locs,
    drafting,
    frequencies,
    kv,
    logits,
    masks,
    multi_layer,
    ragged_drafts,
    sampling,
    tree,
    verify,
    verify_logits,
)
from specsim.contracts.contract import Implementation
from specsim.contracts.registry import OPS

_MODULES = (
    accepted,
    cache_locs,
    drafting,
    frequencies,
    kv,
    logits,
    masks,
    multi_layer,
    ragged_drafts,
    sampling,
    tree,
    verify,
    verify_logits,
)

NAIVE: dict[str, Implementation] = {
    op.name: function
    for op in OPS.values()
    for module in _MODULES
    if (function := vars(module).get(f"{op.reference.__name__}_naive"))
}
"""The naive implementations, by operation."""
