"""Every implementation of vLLM that is tested, operation by operation."""

from dataclasses import replace

from specsim.engines.vllm.model_runner import V2
from specsim.engines.vllm.operations import ragged_drafts, rejection, step_inputs
from specsim.engines.vllm.operations.names import CoinTorch, Names

IMPLEMENTATIONS = (
    *ragged_drafts.IMPLEMENTATIONS,
    *(replace(names, runner=V2) for names in (*step_inputs.IMPLEMENTATIONS, *rejection.IMPLEMENTATIONS)),
)

__all__ = ["IMPLEMENTATIONS", "CoinTorch", "Names"]
