"""A kernel of a release beside specsim's, in a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specsim.contracts.contract import Sizes, Tensors

LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
"""The links of a tree, as engines keep them: one tensor."""


@dataclass(frozen=True, slots=True)
class LiftedPeer:
    """A release's implementation of an operation. `code` is equal for equal code, across releases; `value` is what was
    lifted.
    """

    op: str
    value: Any
    where: str
    code: str
    accepts: Callable[[Sizes], bool]
    prepare: Callable[[Sizes, Tensors], Callable[[], Tensors]]
