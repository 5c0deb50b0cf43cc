"""What a scheduler sent and holds, in one form for all releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from specsim.engines.real_scheduler import LogprobRow


@dataclass(frozen=True, slots=True)
class Output:
    """What has been sent of one request so far."""

    rid: str
    finish_reason: Mapping[str, Any] | None = None  # with "type": "length", "stop" or "abort"; None while it runs
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    verify_count: int = 0  # passes that verified drafts
    finishes: int = 0  # messages with a finish reason; more than one is a defect
    logprobs: tuple[LogprobRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """Slots of KV, or rows of `req_to_token`. Of an idle scheduler without sessions each is free or in the cache."""

    name: str  # "full", "window" or "rows"
    size: int
    free: int
    cached: int = 0  # held by the cache, and by no request

    @property
    def is_whole(self) -> bool:
        return self.free + self.cached == self.size


def take(outputs: dict[str, Output], message: Any) -> None:
    """Enter one more message that the scheduler sent, by request id."""
    kind = type(message).__name__
    if kind == "BatchTokenIDOutput":
        for i, rid in enumerate(message.rids):
            outputs[rid] = _continued(outputs.get(rid, Output(rid)), message, i)
    elif kind == "AbortReq":
        seen = outputs.get(message.rid, Output(message.rid))
        reason = message.finished_reason or {"type": "abort"}
        outputs[message.rid] = replace(seen, finish_reason=reason, finishes=seen.finishes + 1)


def _continued(seen: Output, message: Any, i: int) -> Output:
    reason = message.finished_reasons[i]
    return Output(
        seen.rid,
        seen.finish_reason if reason is None else reason,
        (*seen.token_ids, *message.output_ids[i]),
        message.prompt_tokens[i],
        message.completion_tokens[i],
        message.cached_tokens[i],
        message.spec_verify_ct[i],
        seen.finishes + (reason is not None),
        (*seen.logprobs, *_logprobs(message, i)),
    )


def _logprobs(message: Any, i: int) -> list[LogprobRow]:
    """The rows that a message has for its i-th request; none where no request of its batch wants them. In place of a
    number that is missing stands -1.
    """
    if message.output_token_logprobs_val is None:
        return []
    own = zip_longest(message.output_token_logprobs_val[i], message.output_token_logprobs_idx[i], fillvalue=-1)
    tops = zip_longest(message.output_top_logprobs_val[i], message.output_top_logprobs_idx[i], fillvalue=())
    likely = [tuple(zip_longest(values, tokens, fillvalue=-1)) for values, tokens in tops]
    return [(*one, *top) for one, top in zip_longest(((pair,) for pair in own), likely, fillvalue=())]
