"""A naive implementation of every operation, with which tests compare the reference.

There is a file for each of the reference's, and in it a function NAME_naive with the signature of NAME. It works with
lists, dicts and for loops, one request, node or token at a time, and does not check its arguments.
"""

from collections.abc import Callable
from typing import Any

from specsim.contracts.naive import (
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

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    name: function for module in _MODULES for name, function in vars(module).items() if name.endswith("_naive")
}
"""The naive implementations, by name."""
