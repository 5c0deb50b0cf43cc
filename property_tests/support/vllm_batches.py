"""Batches as vLLM's scheduler hands them to a worker, of requests "a", and a model of the worker that takes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specsim.engines.vllm.scheduler.model import Model
from specsim.world.hash_model import Prefixes

PROMPT = [20, 21, 22, 23, 24, 25]
BLOCK = 4


def batch(counts: dict[str, int], *, new: Any = (), cached: Any = None, drafts: Any = None, finished: Any = ()) -> Any:
    nothing = SimpleNamespace(
        req_ids=[], resumed_req_ids=set(), new_token_ids=[], all_token_ids={}, new_block_ids=[], num_computed_tokens=[]
    )
    return SimpleNamespace(
        finished_req_ids=set(finished),
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=cached or nothing,
        num_scheduled_tokens=counts,
        scheduled_spec_decode_tokens=drafts or {},
    )


def arrives(blocks: list[int], computed: int = 0, tokens: list[int] | None = None) -> Any:
    return SimpleNamespace(
        req_id="a",
        prompt_token_ids=PROMPT,
        prefill_token_ids=tokens,
        block_ids=(blocks,),
        num_computed_tokens=computed,
        lora_request=None,
    )


def goes_on(
    blocks: list[int], computed: int = 0, *, resumed: bool = False, tokens: Any = PROMPT, told: Any = None
) -> Any:
    """Of a request whose outputs are all that were said. It is told `tokens`, unless they are None."""
    return SimpleNamespace(
        req_ids=["a"],
        resumed_req_ids={"a"} if resumed else set(),
        new_token_ids=[told] if told is not None else [],
        all_token_ids={"a": tokens} if tokens is not None else {},
        new_block_ids=[(blocks,) if blocks else None],
        num_computed_tokens=[computed],
        num_output_tokens=[1000],
    )


def made(*, is_told: bool = False, right: int = 9) -> Model:
    model = Model(8, (BLOCK,), 3, context=240, is_told=is_told)
    model.right = lambda most: min(most, right)
    model.prefixes["a"] = Prefixes(PROMPT)
    return model
