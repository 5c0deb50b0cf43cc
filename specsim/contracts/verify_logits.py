"""Whole verifications, from the logits on. The trees and the tokens that the target says are those of `verify`.

Tokens are given other numbers, which a small vocabulary has: no two tokens of a request share one. A row of logits has
its target token on top, by a margin, a tie with a later token, a negative zero against a zero, or as a NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.contracts.verify import OPS as VERIFY_OPS
from specsim.reference.verify_logits import verify_logits_greedy

__all__ = ["OPS"]

_WALK = VERIFY_OPS[0]
_LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
_TOPS = ("margin", "tie", "zeros", "nan")
SPARE_TOKENS_MAX = 8


def _draw_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_shape(chooser)
    return {
        **shape,
        "vocab_size": 2 * shape["num_draft_tokens"] + between(chooser, 1, SPARE_TOKENS_MAX, "spare tokens"),
    }


def _make(draws: Draws, shape: Sizes) -> Case:
    walk = _WALK.cases.make_from(draws, shape)
    n, ndt, vocab_size = draws.count, shape["num_draft_tokens"], shape["vocab_size"]
    order = draws.order("token's number", vocab_size)  # [n, vocab_size]
    first = walk.tensors["candidates"][:, :1]  # [n, 1]

    def numbered(tokens: Tensor) -> Tensor:
        """Tokens of nodes, and behind them those that no node has."""
        place = tokens - first
        return order.gather(1, torch.where(place < ndt, place, place - 2**30 + ndt))

    at = numbered(walk.tensors["target_predict"])  # [n, ndt]
    later = at + draws.below("tied token", vocab_size - at, ndt)
    top = draws.below("top of a row", len(_TOPS), ndt)  # [n, ndt]
    logits = (-1.0 - torch.arange(vocab_size, device=draws.device) % 5).repeat(n, ndt, 1)  # [n, ndt, vocab_size]
    one, zero = torch.ones_like(top, dtype=torch.float32), torch.zeros_like(top, dtype=torch.float32)
    tied = torch.where(top == 2, zero, one)
    best = torch.where(top == 3, torch.nan, torch.where(top == 2, -zero, one))
    has_tie = (top == 1) | (top == 2)
    logits.scatter_(2, torch.where(has_tie, later, at)[:, :, None], tied[:, :, None])
    logits.scatter_(2, at[:, :, None], best[:, :, None])
    tensors = {
        "logits": logits.view(n * ndt, vocab_size),
        "candidates": numbered(walk.tensors["candidates"]),
        **{name: walk.tensors[name] for name in _LINKS},
        "seq_lens": batches.seq_lens(draws, "seq_lens", 4),
        "out_cache_loc": 1 + draws.order_of_all("slot", ndt).flatten(),
    }
    return Case({**walk.sizes, "vocab_size": vocab_size}, tensors)


def _defined(_case: Case, expected: Tensors) -> Tensors:
    """`predicts` is defined at the nodes of the accepted path alone; the others everywhere."""
    defined = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in expected.items()}
    path = expected["accept_index"]
    defined["predicts"] = torch.zeros_like(expected["predicts"], dtype=torch.bool)
    defined["predicts"][path[path >= 0].long()] = True
    return defined


OPS: tuple[Op, ...] = (operation(verify_logits_greedy, "verify_logits", Cases(_draw_shape, _make), compared=_defined),)
