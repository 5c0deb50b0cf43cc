"""Decoding token by token, without speculation: what every schedule must equal.

The model is a function, `next_logits(prefix)`, and chance is an input: one uniform draw for each output. So a request
has one correct output, and it depends on nothing else: not on the batch, on when tokens were drafted, or on a
retraction.

From logits to a token, in this order:

1. `frequency_penalty` and `presence_penalty`, which are subtracted, then `repetition_penalty`, which scales
2. `min_new_tokens`: until then no EOS token and no stop token, `ignore_eos` or not
3. `logit_bias`
4. the grammar's mask
5. the custom logit processor, which can bring back what 2 and 4 took
6. at temperature 0 the largest logit, of equals the lowest token. Else `temperature`, then top-k, top-p and min-p,
   each of which scales what it keeps to sum 1, and the uniform draw picks a token. `filter_apply_order` says whether
   top-p is of what top-k kept (`logits.TOP_K_FIRST`) or of the distribution before it (`logits.JOINT`)

Penalties count the outputs, not the prompt, every output once, and the one before the token at hand too. Serving
engines differ: some subtract before they mask and add the bias after it, which comes to the same for a finite bias;
some run the custom processor first; a speculative step of SGLang gives all its nodes the penalties of one stale count.

A request ends at the first output at which one of these holds; where several hold, the first of them is the reason:

1. a stop string is in the text of the outputs
2. the output is a stop token, or an EOS token without `ignore_eos`
3. the output fills `max_new_tokens` or `context_len`
4. the grammar is terminated

The output that ends the request is the last of `tokens`. A stop within the budget thus beats the cap, even in the
middle of an accepted run that crosses the cap, and nothing after it is emitted: SGLang PR #33758, whose order of the
reasons this is. Two differences are meant. `ignore_eos` is about EOS alone here, while SGLang's also ignores stop
tokens. `context_len` may be filled here, while SGLang keeps its last two positions free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.grammar import Grammar
from specsim.reference.logits import JOINT, TOP_K_FIRST, check_filter_apply_order

__all__ = [
    "Finish",
    "Output",
    "SamplingParams",
    "draw",
    "finish_of",
    "generate",
    "next_token_law",
    "next_token_logprobs",
]

Tokens = Sequence[int]
GREEDY_TEMPERATURE = 1e-6  # a lower temperature is 0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a client asks for. Names and ranges are those of SGLang's class of the same name, except for the first
    four, which SGLang takes from elsewhere.

    context_len             positions of prompt and outputs together; None for no limit
    eos_token_ids           the model's EOS tokens, 0 to V - 1
    return_logprob          whether to return the log-probabilities of the outputs
    custom_logit_processor  (logits [V], prompt, outputs) -> logits [V]; may change its first argument
    max_new_tokens          0 or more
    min_new_tokens          0 to `max_new_tokens`
    stop_token_ids          0 to V - 1
    stop                    stop strings, none of them empty
    ignore_eos              whether EOS tokens end nothing
    temperature             0 or more; below 1e-6 it is 0
    top_k                   the k most probable tokens, and all that tie with the last of them; -1 for all tokens
    top_p                   above 0 to 1: the fewest most probable tokens that have this probability together, and all
                            that tie with the last of them
    min_p                   0 to 1: tokens that have at least this share of the largest probability
    frequency_penalty       -2 to 2, subtracted once for each time that a token was emitted
    presence_penalty        -2 to 2, subtracted once if it was
    repetition_penalty      above 0 to 2: if it was, a negative logit is multiplied by this, another one divided
    logit_bias              token -> what is added to its logit
    """

    context_len: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    return_logprob: bool = False
    custom_logit_processor: Callable[[Tensor, Tokens, Tokens], Tensor] | None = None
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


class Finish(NamedTuple):
    """Why a request ended.

    finish_reason  "stop" or "length"
    matched        the stop token, the EOS token or the stop string; None for "length" and for a grammar's end
    """

    finish_reason: str
    matched: int | str | None


class Output(NamedTuple):
    """What a request emits.

    tokens         the outputs, with the one that ended the request
    finish_reason  as in `Finish`
    matched        as in `Finish`
    logprobs       for each output its log-probability after step 5 and the temperature, before top-k, top-p and min-p;
                   at temperature 0 that at temperature 1. None if they were not asked for
    text           the outputs as text, without the matched token, or up to the matched string; None without
                   `detokenize`
    """

    tokens: tuple[int, ...]
    finish_reason: str
    matched: int | str | None
    logprobs: tuple[float, ...] | None
    text: str | None


def generate(
    next_logits: Callable[[Tokens], Tensor],
    prompt: Tokens,
    params: SamplingParams,
    *,
    coins: Callable[[int], float] | Sequence[float] | None = None,
    grammar: Grammar | None = None,
    detokenize: Callable[[Tokens], str] | None = None,
    filter_apply_order: int = TOP_K_FIRST,
) -> Output:
    """Decode one request.

    next_logits         the model: prompt and outputs so far -> logits [V] float32 or float64; -inf excludes a token
    prompt              token ids of any value
    params              what the client asks for
    coins               the uniform draw, 0 to 1, of each output by its index; not needed at temperature 0
    grammar             what the outputs must match; it is not changed
    detokenize          outputs -> their text; needed for stop strings
    filter_apply_order  TOP_K_FIRST or JOINT

    Raises ValueError for parameters outside their range, a prompt longer than `context_len`, uniform draws that are
    missing or outside 0 to 1, stop strings without `detokenize`, and an output for which no token is left. Source: the
    head of this module; SGLang's sampler and the finish check of its requests.
    """
    if validation.enabled():
        _check_params(params)
        check_filter_apply_order(filter_apply_order)
        if params.context_len is not None and len(prompt) > params.context_len:
            raise ValueError(f"the prompt has {len(prompt)} tokens; allowed: context_len, {params.context_len}")
        if params.stop and detokenize is None:
            raise ValueError("detokenize is None; allowed with stop strings: a function")
    cap = params.max_new_tokens
    if params.context_len is not None:
        cap = min(cap, params.context_len - len(prompt))
    reader = None if grammar is None else grammar.clone()
    tokens: list[int] = []
    logprobs: list[float] = []
    finish = Finish("length", None) if cap == 0 else None
    while finish is None:
        mask = None if reader is None else reader.allowed()  # [V]
        logits = _processed(next_logits([*prompt, *tokens]), tokens, prompt, params, mask)  # [V]
        coin = 0.0 if params.temperature < GREEDY_TEMPERATURE else _coin(coins, len(tokens))
        tokens.append(draw(_law(logits, params, filter_apply_order), coin))
        if params.return_logprob:
            logprobs.append(float(_logprobs(logits, params)[tokens[-1]]))
        if reader is not None:
            reader.accept(tokens[-1])
        finish = finish_of(tokens, params, cap, grammar=reader, detokenize=detokenize)
    text = None
    if detokenize is not None:
        text = detokenize(tokens[:-1] if isinstance(finish.matched, int) else tokens)
        text = text.partition(finish.matched)[0] if isinstance(finish.matched, str) else text
    return Output(tuple(tokens), *finish, tuple(logprobs) if params.return_logprob else None, text)


def finish_of(
    tokens: Tokens,
    params: SamplingParams,
    cap: int,
    *,
    grammar: Grammar | None = None,
    detokenize: Callable[[Tokens], str] | None = None,
) -> Finish | None:
    """Whether the last of the outputs `tokens` ends the request, which none before it has; None if it does not.

    cap         outputs that there is room for: `max_new_tokens`, or what is left of `context_len`
    grammar     the grammar, which has read the outputs
    detokenize  outputs -> their text; needed for stop strings

    Source: SGLang PR #33758.
    """
    text = detokenize(tokens) if params.stop and detokenize is not None else ""
    for string in params.stop:
        if string in text:
            return Finish("stop", string)
    if tokens[-1] in params.stop_token_ids or (tokens[-1] in params.eos_token_ids and not params.ignore_eos):
        return Finish("stop", tokens[-1])
    if len(tokens) >= cap:
        return Finish("length", None)
    return Finish("stop", None) if grammar is not None and grammar.is_terminated() else None


def next_token_law(
    logits: Tensor,
    output_tokens: Tokens,
    prompt_tokens: Tokens,
    params: SamplingParams,
    grammar_mask: Tensor | None = None,
    filter_apply_order: int = TOP_K_FIRST,
) -> Tensor:
    """The probability of each token to come next; at temperature 0 it is 1 for one token.

    logits              [V] float32 or float64: what the model says after prompt and outputs
    output_tokens       the outputs so far
    prompt_tokens       the prompt, for the custom processor
    params              what the client asks for
    grammar_mask        [V] bool: tokens that the grammar allows; None for all
    filter_apply_order  TOP_K_FIRST or JOINT

    Returns probs [V], of the dtype of the logits. Raises ValueError for logits that are NaN or inf, for parameters
    and tokens outside their range, and where no token is left.
    Source: the head of this module.
    """
    if validation.enabled():
        _check_params(params)
        check_filter_apply_order(filter_apply_order)
    processed = _processed(logits, output_tokens, prompt_tokens, params, grammar_mask)
    return _law(processed, params, filter_apply_order)


def next_token_logprobs(
    logits: Tensor,
    output_tokens: Tokens,
    prompt_tokens: Tokens,
    params: SamplingParams,
    grammar_mask: Tensor | None = None,
) -> Tensor:
    """The log-probability [V] of each token to come next, as `Output.logprobs` has them. Arguments, errors and source
    are those of `next_token_law`.
    """
    if validation.enabled():
        _check_params(params)
    return _logprobs(_processed(logits, output_tokens, prompt_tokens, params, grammar_mask), params)


def draw(dist: Tensor, coin: float) -> int:
    """The token that `coin` draws from the weights `dist` [V]: the smallest of those with a positive weight whose
    cumulative weight exceeds `coin` times the total; where there is none, the last with a positive weight.
    """
    cumulative = dist.cumsum(dim=0)  # [V]
    positive = (dist > 0).nonzero()[:, 0]
    above = positive[cumulative[positive] > coin * cumulative[-1]]
    return int(above[0] if len(above) else positive[-1])


def _processed(logits: Tensor, outputs: Tokens, prompt: Tokens, params: SamplingParams, mask: Tensor | None) -> Tensor:
    """The logits [V] after the steps 1 to 5; the arguments are those of `next_token_law`."""
    if validation.enabled():
        _check_logits(logits, outputs, params, mask)
    logits = logits.clone()  # [V]
    said = torch.tensor(list(outputs), dtype=torch.int64, device=logits.device)
    counts = torch.bincount(said, minlength=len(logits)).to(logits.dtype)  # [V]: how often each token was emitted
    emitted = counts > 0
    logits = logits - params.frequency_penalty * counts - params.presence_penalty * emitted.to(logits.dtype)
    scaled = torch.where(logits < 0, logits * params.repetition_penalty, logits / params.repetition_penalty)
    logits = torch.where(emitted, scaled, logits)
    if len(outputs) < params.min_new_tokens:
        logits[[*params.eos_token_ids, *params.stop_token_ids]] = -math.inf
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if mask is not None:
        logits[~mask.to(logits.device)] = -math.inf
    if params.custom_logit_processor is not None:
        logits = params.custom_logit_processor(logits, prompt, outputs)
    if validation.enabled() and not bool((logits > -math.inf).any()):
        raise ValueError(f"no token is left for output {len(outputs)}; allowed: logits above -inf for one")
    return logits


def _law(logits: Tensor, params: SamplingParams, filter_apply_order: int) -> Tensor:
    if params.temperature < GREEDY_TEMPERATURE:
        largest = (logits == logits.max()).nonzero()[0, 0]
        return torch.zeros_like(logits).index_fill_(0, largest, 1)
    whole = dist = _tempered(logits, params).softmax(dim=0)  # [V]
    if 1 <= params.top_k < len(dist):
        dist = _kept(dist, dist.sort(descending=True).values[params.top_k - 1])
    if params.top_p < 1:
        before = whole if filter_apply_order == JOINT else dist
        ordered = before.sort(descending=True).values  # [V]
        short = int((ordered.cumsum(dim=0) < params.top_p).sum())  # how many of them are not enough
        dist = torch.where(before >= ordered[min(short, len(dist) - 1)], dist, 0)
        dist = dist / dist.sum()
    if params.min_p > 0:
        dist = _kept(dist, params.min_p * dist.max())
    return dist


def _logprobs(processed: Tensor, params: SamplingParams) -> Tensor:
    return _tempered(processed, params).log_softmax(dim=0)


def _tempered(logits: Tensor, params: SamplingParams) -> Tensor:
    return logits if params.temperature < GREEDY_TEMPERATURE else logits / params.temperature


def _kept(dist: Tensor, pivot: Tensor) -> Tensor:
    dist = torch.where(dist >= pivot, dist, 0)
    return dist / dist.sum()


def _coin(coins: Callable[[int], float] | Sequence[float] | None, index: int) -> float:
    if coins is None or (not callable(coins) and index >= len(coins)):
        raise ValueError(f"the uniform draw of output {index} is missing; allowed without uniform draws: temperature 0")
    coin = coins(index) if callable(coins) else coins[index]
    if validation.enabled() and not 0 <= coin <= 1:
        raise ValueError(f"the uniform draw of output {index} is {coin}; allowed: 0 to 1")
    return coin


def _check_params(params: SamplingParams) -> None:
    for name, valid, allowed in (
        ("context_len", params.context_len is None or params.context_len >= 0, "0 or more"),
        ("max_new_tokens", params.max_new_tokens >= 0, "0 or more"),
        ("min_new_tokens", 0 <= params.min_new_tokens <= params.max_new_tokens, f"0 to {params.max_new_tokens}"),
        ("stop", isinstance(params.stop, tuple) and all(params.stop), "a tuple of strings, none of them empty"),
        ("temperature", 0 <= params.temperature < math.inf, "0 or more, and finite"),
        ("top_k", params.top_k == -1 or params.top_k >= 1, "1 or more, or -1 for all"),
        ("top_p", 0 < params.top_p <= 1, "above 0 to 1"),
        ("min_p", 0 <= params.min_p <= 1, "0 to 1"),
        ("frequency_penalty", -2 <= params.frequency_penalty <= 2, "-2 to 2"),
        ("presence_penalty", -2 <= params.presence_penalty <= 2, "-2 to 2"),
        ("repetition_penalty", 0 < params.repetition_penalty <= 2, "above 0 to 2"),
    ):
        if not valid:
            raise ValueError(f"{name} is {getattr(params, name)!r}; allowed: {allowed}")


def _check_logits(logits: Tensor, outputs: Tokens, params: SamplingParams, mask: Tensor | None) -> None:
    dtype = logits.dtype if logits.dtype == torch.float32 else torch.float64
    validation.require_tensor("logits", logits, dtype, vocab_size=None)
    validation.require_all(logits < math.inf, "logits", logits, "below inf, and not NaN")
    vocab_size = logits.shape[0]
    ids = {"eos_token_ids": params.eos_token_ids, "stop_token_ids": params.stop_token_ids}
    for name, tokens in {"output_tokens": outputs, **ids, "logit_bias": params.logit_bias}.items():
        for token in tokens:
            validation.require_scalar(f"a token of {name}", token, 0, vocab_size - 1)
    if mask is not None:
        validation.require_tensor("grammar_mask", mask, torch.bool, vocab_size=vocab_size)
