"""Logprobs and hidden states of the outputs: one row for each token, at the stride of the tokens.

A hidden state is the fingerprint that a token was drawn from, its logprob a hash of both: so a row that belongs to
another token, position or request is seen.
"""

from __future__ import annotations

from specsim.engine import model
from specsim.engine.launch import DecodeResult
from specsim.engine.request import Request


def logprob_of(hidden: int, token: int) -> int:
    return model.extend(hidden, token)


def write_rows(result: DecodeResult, hidden: list[int], run: list[int]) -> None:
    """Append a request's rows to a result: the accepted ones first, zeros up to the stride."""
    rejected = [0] * (result.stride - len(run))
    result.hidden_states += (*hidden, *rejected)
    result.logprobs += (*map(logprob_of, hidden, run), *rejected)


def take_first_row(request: Request, hidden: int, token: int) -> None:
    """Give the request the row of its prefill's token."""
    request.hidden_states.append(hidden)
    request.logprobs.append(logprob_of(hidden, token))


def take_rows(request: Request, result: DecodeResult, i: int, count: int) -> None:
    """Give the request the rows of its `count` accepted tokens; it is the batch's request `i`."""
    first = i * result.stride
    request.hidden_states += result.hidden_states[first : first + count]
    request.logprobs += result.logprobs[first : first + count]
