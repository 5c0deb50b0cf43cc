"""Every implementation of vLLM that is tested, operation by operation."""

from specsim.engines.vllm.operations import ragged_drafts, step_inputs
from specsim.engines.vllm.operations.names import CoinTorch, Names

IMPLEMENTATIONS = (*ragged_drafts.IMPLEMENTATIONS, *step_inputs.IMPLEMENTATIONS)

__all__ = ["IMPLEMENTATIONS", "CoinTorch", "Names"]
