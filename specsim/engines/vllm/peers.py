"""vLLM's verification of ragged batches as a peer of specsim's in a benchmark: what its first model runner launches
once it has probabilities.

Its uniform draws and its exponential noise are the case's, and are not drawn in the call that is timed; nor are the
probabilities made there. What the host knows, such as how many drafts a request has, is made before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.peers import LiftedPeer
from specsim.engines.vllm.operations import ragged_drafts
from specsim.engines.vllm.operations.names import CoinTorch
from specsim.engines.vllm.provider import shims
from specsim.lifting.lift import DriftError, Lifter, TextStore
from specsim.lifting.source import SourceTree
from specsim.verdict import NotRun

PEER_RELEASES = ("0.33.0",)
OP = "verify_ragged_sampled"
LAUNCHED = ("rejection_greedy_sample_kernel", "sample_recovered_tokens", "rejection_random_sample_kernel")


class _GivenNoise(CoinTorch):
    """`torch` whose exponential noise is the case's, as it lies there."""

    def _with_noise(self, made: torch.Tensor) -> torch.Tensor:
        if made.shape != self.race.shape or not made.is_floating_point():
            return made
        given = self.race.view(made.shape)
        given.exponential_ = lambda *_rate, generator=None: given  # type: ignore[method-assign]
        return given


def lifted_peers(source: SourceTree, store: TextStore) -> tuple[list[LiftedPeer], list[NotRun]]:
    """What a release or checkout has of the operation, or why it lacks it."""
    coins = _GivenNoise()
    lifter = Lifter(source, store, shims(coins))
    try:
        lifted = [lifter.lift(ragged_drafts.SAMPLER, name) for name in LAUNCHED]
    except DriftError as error:
        return [], [NotRun(OP, str(error))]
    values = tuple(each.value for each in lifted)
    code = " ".join(each.body_hash for each in lifted)
    return [LiftedPeer(OP, values, lifted[-1].where, code, _any, partial(_prepare, values, coins))], []


def _any(_sizes: Sizes) -> bool:
    return True


def _prepare(values: tuple[Any, ...], coins: _GivenNoise, sizes: Sizes, t: Tensors) -> Callable[[], Tensors]:
    greedy, recover, reject = values
    ends, drafts, output = (t[name] for name in ("cu_num_draft_tokens", "draft_token_ids", "output_token_ids"))
    counts, target, num_steps = ragged_drafts.counts_of(ends), t["target_probs"], sizes["num_steps"]
    draft_probs = t["draft_probs"] if sizes["has_draft_probs"] else None
    some_greedy, metadata = bool(t["is_greedy"].any()), SimpleNamespace(generators={})

    def run() -> Tensors:
        coins.race = t["race"]
        output.fill_(-1)
        if some_greedy:
            best = target.argmax(dim=-1)
            ragged_drafts.launch_greedy(
                greedy, coins, ends, drafts, best, t["bonus_token_ids"], t["is_greedy"], num_steps, output
            )
        recovered = recover(max(counts), counts, ends, drafts, draft_probs, target, metadata, target.device)
        ragged_drafts.launch_rejection(
            reject,
            coins,
            ends,
            drafts,
            t["draft_probs"],
            target,
            t["bonus_token_ids"],
            recovered,
            t["uniform_probs"],
            t["is_greedy"],
            sizes["has_draft_probs"],
            num_steps,
            output,
        )
        return {"output_token_ids": output}

    return run
