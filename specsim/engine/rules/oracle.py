"""The sequential oracle: one token after the other, without KV, batches or drafts. What every schedule must equal."""

from __future__ import annotations

from specsim.engine import model
from specsim.engine.request import Request
from specsim.engine.sampling import bincount, next_token, uniform_draw_of
from specsim.engine.sampling_params import make_matcher
from specsim.engine.stop_strings import text_of


def outputs_of(request: Request) -> list[int]:
    """The visible outputs of a request that nobody aborts."""
    turn = request.turn
    if turn.sampling is not None:
        return _drawn(request, turn.max_new_tokens, ends=True)
    fingerprint = model.fingerprints(request.prompt)[-1]
    length = len(request.prompt)
    outputs: list[int] = []
    text = ""
    while len(outputs) < turn.max_new_tokens:
        token = model.next_token_after(fingerprint, length, request.specials)
        outputs.append(token)
        text += text_of(token) if turn.stop else ""
        if token == model.STOP or (token == model.EOS and not turn.ignore_eos) or _says_one(text, turn.stop):
            break
        fingerprint = model.extend(fingerprint, token)
        length += 1
    return outputs


def unending_outputs_of(request: Request, count: int) -> list[int]:
    """The first `count` tokens that the model says, whatever ends the request: an aborted one shows a prefix of
    them.
    """
    if request.turn.sampling is not None:
        return _drawn(request, count, ends=False)
    fingerprint = model.fingerprints(request.prompt)[-1]
    outputs: list[int] = []
    for length in range(len(request.prompt), len(request.prompt) + count):
        outputs.append(model.next_token_after(fingerprint, length, request.specials))
        fingerprint = model.extend(fingerprint, outputs[-1])
    return outputs


def _drawn(request: Request, count: int, *, ends: bool) -> list[int]:
    """Up to `count` tokens drawn one after the other from a request's distribution, with exact penalties."""
    params = request.turn.sampling
    assert params is not None
    matcher = make_matcher(params)
    tokens = list(request.prompt)
    while len(tokens) < len(request.prompt) + count:
        outputs = tokens[len(request.prompt) :]
        fingerprint = model.fingerprints(tokens)[-1]
        allowed = None if matcher is None or matcher.is_terminated() else matcher.allowed()
        draw = uniform_draw_of(params.seed, len(tokens))
        token = next_token(fingerprint, len(tokens), draw, request.specials, params, bincount(outputs), allowed)
        tokens.append(token)
        if matcher is not None:
            matcher.read([token])
        has_ended = matcher is not None and matcher.is_terminated()
        has_ended = has_ended or _says_one("".join(map(text_of, [*outputs, token])), request.turn.stop)
        if ends and (token == model.STOP or (token == model.EOS and not request.turn.ignore_eos) or has_ended):
            break
    return tokens[len(request.prompt) :]


def _says_one(text: str, stop: tuple[str, ...]) -> bool:
    return any(string in text for string in stop)
