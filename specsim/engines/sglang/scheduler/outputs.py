"""What a scheduler sent and holds, in one form for all releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from specsim.engines.sglang.scheduler.attention import hashes_of
from specsim.world.kv import BatchInput
from specsim.world.scheduler import LogprobRow, Part


@dataclass(frozen=True, slots=True)
class SentOutput:
    """What has been sent of one request so far."""

    rid: str
    finish_reason: Mapping[str, Any] | None = None  # with "type": "length", "stop" or "abort"; None while it runs
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    verify_count: int = 0  # passes that verified drafts
    logprobs: tuple[LogprobRow, ...] = ()
    parts: tuple[Part, ...] = ()
    decode_ids: tuple[int, ...] = ()  # what is made text of: a few tokens of the prompt, then the answer's
    correct_drafts: int = -1
    runs: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()  # the hash that each hidden state carries
    prompt_logprobs: tuple[LogprobRow, ...] = ()
    retractions: int = -1
    cached_by_tier: tuple[int, ...] = ()


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


NOT_ASKED = "no request asks for it"
NO_SUCH_MODEL = "the model has none"
PASSED_ON = "not compared: the request's own wish, passed on"
FIELDS: Mapping[str, str] = {
    "rids": "S1: every request is answered",
    "output_ids": "I40: the tokens of sequential decoding",
    "decode_ids": "I40, text: they end with the answer's tokens",
    "finished_reasons": "I40, finish-reason: why it ends, and what matched; I40, end: once, with the last part",
    "prompt_tokens": "I40, prompt-tokens",
    "completion_tokens": "I40, completion-tokens at the end, and part by part",
    "cached_tokens": "I40, cached-tokens: what the prefill begins behind",
    "spec_verify_ct": "I40, verifications: between those needed and those launched",
    "spec_num_correct_drafts": "I40, correct-drafts: those that the tokens need, and no more",
    "spec_accepted_drafts": "as spec_num_correct_drafts",
    "spec_accepted_tokens": "as spec_num_correct_drafts",
    "spec_correct_drafts_histogram": "I40, drafts-by-run and verifications-by-run: they add up",
    "spec_acceptance_histogram": "as spec_correct_drafts_histogram",
    "output_token_logprobs_val": "T6, logprobs",
    "output_token_logprobs_idx": "T6, logprobs",
    "output_top_logprobs_val": "T6, top-logprobs",
    "output_top_logprobs_idx": "T6, top-logprobs",
    "input_token_logprobs_val": "T6, prompt-logprobs",
    "input_token_logprobs_idx": "T6, prompt-logprobs",
    "input_top_logprobs_val": "T6, prompt-top-logprobs",
    "input_top_logprobs_idx": "T6, prompt-top-logprobs",
    "output_hidden_states": "T6, hidden-states",
    "decoded_texts": "not compared: the detokenizer's own, handed to it again",
    "read_offsets": "not compared: where the detokenizer goes on",
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"), PASSED_ON),
    "http_worker_ipcs": "not compared: there are no sockets",
    "time_stats": "S10: the time in the queue; of the others not compared: the clock is made up",
    "retraction_counts": "I40, retractions: prefills of one that had run",
    "cached_tokens_details": "I40, cached-by-tier: they add up",
    "load": "not compared: of the scheduler, and of no answer",
    "dp_ranks": "not compared: there is one rank",
    "token_steps": "not compared: no weights are updated",
    "weight_versions": "not compared: no weights are updated",
    "spec_num_block_accept_tokens": "not compared: block verification is not configured",
    "spec_num_cap_tokens": "not compared: caps of drafts are not configured",
    "spec_cap_lens_histogram": "not compared: caps of drafts are not configured",
    "reasoning_tokens": "not compared: no request has a reasoning parser",
    **dict.fromkeys(
        (
            "input_top_logprobs_val_flat",
            "input_top_logprobs_idx_flat",
            "input_top_logprobs_flat_null_prefix",
            "input_token_ids_logprobs_val",
            "input_token_ids_logprobs_idx",
            "output_token_ids_logprobs_val",
            "output_token_ids_logprobs_idx",
            "output_token_entropy_val",
            "output_token_sampling_mask",
            "output_token_sampling_logprobs",
            "customized_info",
            "beam_search_output",
        ),
        f"not compared: {NOT_ASKED}",
    ),
    **dict.fromkeys(
        (
            "routed_experts",
            "indexer_topk",
            "placeholder_tokens_idx",
            "placeholder_tokens_val",
            "image_tokens",
            "audio_tokens",
            "video_tokens",
        ),
        f"not compared: {NO_SUCH_MODEL}",
    ),
}
"""What an answer's message has, of all releases, and the rule that compares it, or why none does."""


def unknown_fields(message: type) -> list[str]:
    """Those of a release's message that this specsim does not know."""
    names = {name for kind in message.__mro__ for name in vars(kind).get("__annotations__", {})}
    return sorted(names - FIELDS.keys())


def take(outputs: dict[str, SentOutput], message: Any) -> None:
    """Enter one more message that the scheduler sent, by request id."""
    kind = type(message).__name__
    if kind == "BatchTokenIDOutput":
        for i, rid in enumerate(message.rids):
            outputs[rid] = _continued(outputs.get(rid, SentOutput(rid)), message, i)
    elif kind == "AbortReq":
        seen = outputs.get(message.rid, SentOutput(message.rid))
        reason = message.finished_reason or {"type": "abort"}
        parts = (*seen.parts, Part(0, -1, ends=True))
        outputs[message.rid] = replace(seen, finish_reason=reason, parts=parts)


def _continued(seen: SentOutput, message: Any, i: int) -> SentOutput:
    reason = message.finished_reasons[i]
    tokens = tuple(message.output_ids[i])
    return SentOutput(
        seen.rid,
        seen.finish_reason if reason is None else reason,
        (*seen.token_ids, *tokens),
        message.prompt_tokens[i],
        message.completion_tokens[i],
        message.cached_tokens[i],
        message.spec_verify_ct[i],
        (*seen.logprobs, *_logprobs(message, i)),
        (*seen.parts, Part(len(tokens), message.completion_tokens[i], reason is not None, _waited(message, i))),
        (*seen.decode_ids, *message.decode_ids[i]),
        _of(message, i, -1, "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens"),
        tuple(_of(message, i, (), "spec_correct_drafts_histogram", "spec_acceptance_histogram")),
        _hidden((getattr(message, "output_hidden_states", None) or ())[i : i + 1]),
        seen.prompt_logprobs + tuple(_logprobs(message, i, "input")),
        _of(message, i, -1, "retraction_counts"),
        tuple(n for n in (_of(message, i, None, "cached_tokens_details") or {}).values() if isinstance(n, int)),
    )


_LISTS = tuple(sorted(FIELDS.keys() - {"output_hidden_states"}))
"""Fields that have, as lists, an entry for each request. Of hidden states there may be fewer: a release may say nothing
of its last requests.
"""


def uneven(message: Any) -> Iterator[BatchInput]:
    """The lists of a message that have not one entry for each of its requests."""
    requests = len(getattr(message, "rids", None) or ())
    for name in _LISTS if requests else ():
        said = getattr(message, name, None)
        if isinstance(said, list) and len(said) != requests:
            yield BatchInput(f"answers:{name}", requests, len(said))


def _waited(message: Any, i: int) -> float | None:
    """Seconds in the queue, as the tokenizer makes them of the message; None where it has none."""
    times = _of(message, i, None, "time_stats")
    return None if times is None else float(times.get_queueing_time())


def _of(message: Any, i: int, missing: Any, *names: str) -> Any:
    """What a message says of its i-th request by the first of these names that the release has."""
    said = next((found for name in names if (found := getattr(message, name, None))), None)
    return missing if said is None or said[i] is None else said[i]


def _hidden(said: Sequence[Any]) -> tuple[int, ...]:
    """The hidden states that a message has of a request, all up to then: those of a prefill are a list of their own,
    and the last one, where it is asked for alone, is in none. A release may say nothing of its last requests.
    """
    states = said[0] if said else None
    rows: list[Any] = []
    for state in [states] if states and isinstance(states[0], float) else states or ():
        rows += [state] if state and isinstance(state[0], float) else state
    return tuple(hashes_of(np.array(rows))) if rows else ()


def _logprobs(message: Any, i: int, kind: str = "output") -> list[LogprobRow]:
    """The rows of this kind that a message has for its i-th request; none where no request of its batch wants them. In
    place of a number that is missing stands -1.
    """
    columns = ("token_logprobs_val", "token_logprobs_idx", "top_logprobs_val", "top_logprobs_idx")
    values, tokens, top_values, top_tokens = (getattr(message, f"{kind}_{column}") for column in columns)
    if values is None:
        return []
    own = zip_longest(_numbers(values[i]), tokens[i] or (), fillvalue=-1)
    tops = zip_longest(top_values[i] or (), top_tokens[i] or (), fillvalue=())
    likely = [tuple(zip_longest(_numbers(one), others or (), fillvalue=-1)) for one, others in tops]
    return [(*one, *top) for one, top in zip_longest(((pair,) for pair in own), likely, fillvalue=())]


def _numbers(values: Sequence[float | None] | None) -> list[float]:
    """-1 in place of None, as of the first token that is asked for of a prompt."""
    return [-1 if value is None else value for value in values or ()]
