"""What a user must see of a request that a release's own worker decodes: the target model, token by token.

From the prompt and the answer's own tokens alone. Logits are float32 and changed in the order in which releases change
them: penalties, bias, grammar. Each penalty counts the tokens of the answer, as sequential decoding does.

Releases have *relaxed* penalties beside speculation: what they count may lag behind the answer. A token is one that
relaxed penalties allow when each token that is more likely has been said, or ends the prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.engines.sglang.scheduler.attention import target_logits
from specsim.world.hash_model import VOCABULARY, extended, prefix_of

Logits = np.ndarray[Any, np.dtype[np.float32]]

PENALTY = np.float32(1.5)
"""Of each kind. No two of the likely tokens become equal by it."""
BIAS = np.float32(-4.0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What changes the logits of a request; see `Turn`."""

    penalty: str = ""
    bias: int = 0
    grammar: tuple[int, ...] = ()


def biased(step: int) -> range:
    """The tokens that a bias makes less likely: those that `step` divides; none for 0."""
    return range(0, VOCABULARY, step) if step else range(0)


def logits_of(prefix: int) -> Logits:
    """float32 [vocabulary] of the target after a prefix of that hash, unchanged."""
    made = np.empty(VOCABULARY, np.float32)
    target_logits(prefix, made)
    return made


def changed(logits: Logits, wanted: Wanted, said: Sequence[int]) -> Logits:
    """`logits` of the target after the tokens `said` of an answer, as sequential decoding changes them."""
    made = logits.copy()
    counts = Counter(said) if wanted.penalty else {}
    for token, count in counts.items():
        if wanted.penalty == "repetition_penalty":
            made[token] = made[token] / PENALTY if made[token] > 0 else made[token] * PENALTY
        else:
            made[token] -= PENALTY * (count if wanted.penalty == "frequency_penalty" else 1)
    made[biased(wanted.bias)] += BIAS
    if len(said) < len(wanted.grammar):
        allowed = wanted.grammar[len(said)]
        made[:allowed] = made[allowed + 1 :] = -np.inf
    return made


def decoded(prompt: Sequence[int], count: int, wanted: Wanted, said: Sequence[int] = ()) -> list[int]:
    """The next `count` tokens. Those that were `said` are taken as far as relaxed penalties allow them."""
    tokens: list[int] = []
    for logits in _along(prompt, tokens, count):
        token = int(changed(logits, wanted, tokens).argmax())
        if wanted.penalty and len(tokens) < len(said) and said[: len(tokens)] == tuple(tokens):
            candidate = said[len(tokens)]
            forgiven = changed(logits, Wanted(bias=wanted.bias, grammar=wanted.grammar), tokens)
            for other in {prompt[-1], *tokens} - {candidate}:
                forgiven[other] = -np.inf
            token = candidate if forgiven.argmax() == candidate else token
        tokens.append(token)
    return tokens


def logprobs(
    prompt: Sequence[int], tokens: Sequence[int], wanted: Wanted, top: int
) -> list[tuple[tuple[float, int], ...]]:
    """(logprob, token) of each token, then of the `top` most likely ones: of the logits as they were changed."""
    rows, before = [], list[int]()
    for logits, token in zip(_along(prompt, before, len(tokens)), tokens, strict=True):
        made = changed(logits, wanted, before).astype(np.float64)
        made -= made.max()
        made -= np.log(np.exp(made).sum())
        likely = np.argsort(-made, kind="stable")[: max(top, 0)].tolist()
        rows.append(tuple((float(made[one]), one) for one in (token, *likely)))
        before.append(token)
    return rows


def _along(prompt: Sequence[int], tokens: list[int], count: int) -> Iterator[Logits]:
    """The target's logits after a prompt and `tokens`, to which whoever takes them appends one each time."""
    prefix = prefix_of(prompt)
    for number in range(count):
        yield logits_of(prefix)
        prefix = extended(prefix, tokens[number])
