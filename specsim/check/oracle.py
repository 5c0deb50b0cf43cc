"""The sequential oracle: one token after the other, without KV, batches or drafts. What every schedule must equal."""

from __future__ import annotations

from specsim.sim import model
from specsim.sim.request import Request


def outputs_of(request: Request) -> list[int]:
    """The visible outputs of a request that nobody aborts."""
    turn = request.turn
    fingerprint = model.fingerprints(request.prompt)[-1]
    length = len(request.prompt)
    outputs: list[int] = []
    while len(outputs) < turn.max_new_tokens:
        token = model.next_token_after(fingerprint, length, request.specials)
        outputs.append(token)
        if token == model.STOP or (token == model.EOS and not turn.ignore_eos):
            break
        fingerprint = model.extend(fingerprint, token)
        length += 1
    return outputs


def unending_outputs_of(request: Request, count: int) -> list[int]:
    """The first `count` tokens that the model says, whatever ends the request: an aborted one shows a prefix of
    them.
    """
    fingerprint = model.fingerprints(request.prompt)[-1]
    outputs: list[int] = []
    for length in range(len(request.prompt), len(request.prompt) + count):
        outputs.append(model.next_token_after(fingerprint, length, request.specials))
        fingerprint = model.extend(fingerprint, outputs[-1])
    return outputs
