"""In place of the corpus of a release's n-gram worker, which is in C++: what it finds is drawn.

The release's worker asks for a tree of drafts, and gives the last tokens of each request. The tree is a chain, or each
node has two children; where the right token is among a node's children is what the watcher's call says, as of a draft
model. What the worker gives is compared with the request's tokens (rule D1): from other tokens a corpus finds drafts
that are worth less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specsim.engines.sglang.scheduler.attention import RANKED
from specsim.engines.sglang.scheduler.release_worker import ReleaseWorker, is_changed
from specsim.engines.sglang.scheduler.worker import Seat
from specsim.world.fakes import nothing
from specsim.world.hash_model import extended, likely, prefix_of


def corpus_class(watcher: ReleaseWorker) -> type:
    """A class in place of the release's NgramCorpus."""

    class Corpus:
        batch_put = synchronize = reset = erase_match_state = staticmethod(nothing)

        def __init__(self, *, draft_token_num: int, **_sizes: Any) -> None:
            self._nodes = draft_token_num

        def batch_get(self, *given: Any) -> tuple[Any, Any]:
            """(tokens int64 [bs * nodes], whether a node sees another one, uint8 [bs * nodes * nodes]). Given are the
            last tokens of each request, and of newer releases its id before them and behind them how many it has.
            """
            tails, lengths = (given[1], given[2]) if len(given) > 1 else (given[0], None)
            seats = watcher.called.seats
            trees = [
                self._tree(i, seats[i], tail, None if lengths is None else lengths[i]) for i, tail in enumerate(tails)
            ]
            tokens = np.array([tree[0] for tree in trees], np.int64)
            return tokens.reshape(-1), np.array([tree[1] for tree in trees], np.uint8).reshape(-1)

        def _tree(self, number: int, seat: Seat, tail: Sequence[int], length: int | None) -> tuple[Any, Any]:
            request = seat.request
            known = [*request.origin_input_ids, *request.output_ids]
            ahead = 0 if length is None else length - len(known)  # accepted tokens whose result was not taken yet
            said = [*known, *tail[len(tail) - ahead :]] if ahead > 0 else known
            _check(watcher, seat, tail, len(said))
            is_chain = watcher.accept(seat.rid, 2) == 1
            tokens, states, depths = [int(tail[-1])], [prefix_of(said)], [0]
            sees = np.eye(self._nodes, dtype=np.uint8)
            for node in range(1, self._nodes):
                parent, child = (node - 1, 0) if is_chain else divmod(node - 1, 2)
                token = _child(states[parent], watcher.called.rank(number, depths[parent]), child)
                tokens.append(token)
                states.append(extended(states[parent], token))
                depths.append(depths[parent] + 1)
                sees[node] |= sees[parent]
            return tokens, sees

    return Corpus


def _child(state: int, rank: int, child: int) -> int:
    """The token of a child, where the right one has this rank among them."""
    right, *others = likely(state, RANKED + 1)
    return right if rank == child else others[child]


def _check(watcher: ReleaseWorker, seat: Seat, tail: Sequence[int], length: int) -> None:
    """The last tokens of a request, of which it has `length`."""
    if is_changed(seat.request) or watcher.write_logits is not None:
        return
    start = length - len(tail)
    for i, token in enumerate(tail):
        should = seat.prefixes.token(start + i) if start + i >= 0 else -1
        if token != should:
            watcher.drafted(seat, "context", start + i, should, int(token), is_content=False)
            return
