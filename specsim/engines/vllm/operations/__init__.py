"""Every implementation of vLLM that is tested, operation by operation."""

from dataclasses import replace

from specsim.engines.vllm.model_runner import V2
from specsim.engines.vllm.operations import deferred, draft_steps, estimates, ragged_drafts, rejection, step_inputs
from specsim.engines.vllm.operations.names import CoinTorch, Names

IMPLEMENTATIONS = (
    *ragged_drafts.IMPLEMENTATIONS,
    *deferred.IMPLEMENTATIONS,
    *(
        replace(names, runner=V2)
        for table in (step_inputs, rejection, draft_steps, estimates)
        for names in table.IMPLEMENTATIONS
    ),
)

__all__ = ["IMPLEMENTATIONS", "CoinTorch", "Names"]
