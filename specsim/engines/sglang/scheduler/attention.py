"""The hash model as attention computes it: what a forward pass gives follows from the KV that its plan selects.

At each position the KV pool has a key, the hash of the prefix that ends there, and a value, the hash of the prefix
before it. So the keys and values that a query reads in order are links of one chain, or some of them are another
prefix's: then nothing that is computed from them is right.

The target's chain begins with no tokens. The draft model has, at each position, the token after it and the target's
hidden state of it, which is the hash up to there: its chain is the target's, one position ahead.

Of several draft models, one for each step, that of step i has the token 1 + i positions ahead beside the same hidden
state. The tokens between are in the keys before, so its keys say their token, and of which model they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.world.hash_model import EMPTY, FIRST_TOKEN, VOCABULARY, extended, likely, next_token
from specsim.world.kv import Ints

RANKED = 4
"""Tokens that a draft model thinks of; what comes after them is unlikely."""
LIKELY = 8.0  # logit of the first of them; each next one has 2 less, and of the target's 1.25 less
GAP = 1.25
UNLIKELY = 1.0  # logit of all others of the target's: not 0, which no penalty scales
DIGITS = np.array([0, 16, 32, 48])
"""Of a hash: each 16 bits from there on are a number of a hidden state, which a float32 has exactly."""


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens of one request in a forward pass, or of one branch of its draft.

    number    of the row in the batch
    tokens    where they lie among the tokens of the pass
    slots     [prefix] int64: the slots that they all attend to, as the plan has them
    visible   [tokens, tokens] bool: which of the row's tokens each of them attends to; None for those before it
    own_last  whether `slots` ends with the slot of the row's one token: that of a decode step does
    """

    number: int
    tokens: range
    slots: Ints
    visible: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    own_last: bool = False


def extend_rows(
    qo_indptr: Sequence[int], kv_indptr: Sequence[int], kv_indices: Ints, mask: Any, mask_indptr: Sequence[int] | None
) -> Iterator[Row]:
    """The rows of a pass over several tokens of each request.

    qo_indptr    [bs + 1] where each request's tokens begin
    kv_indptr    [bs + 1] where its slots begin in kv_indices
    mask         flat, for each token of a request a row of [prefix + tokens], of which the prefix is not looked at;
                 None for causal
    mask_indptr  [bs + 1] where a request's rows begin in it
    """
    for i in range(len(qo_indptr) - 1):
        tokens = range(int(qo_indptr[i]), int(qo_indptr[i + 1]))
        slots = kv_indices[int(kv_indptr[i]) : int(kv_indptr[i + 1])]
        visible = None
        if mask is not None and mask_indptr is not None:
            count, width = len(tokens), len(slots) + len(tokens)
            start = int(mask_indptr[i])
            rows = mask[start : start + count * width]
            if len(rows) == count * width:
                visible = rows.reshape(count, width)[:, len(slots) :].astype(bool)
        yield Row(i, tokens, slots, visible)


def decode_rows(kv_indptr: Sequence[int], kv_indices: Ints) -> Iterator[Row]:
    """The rows of a pass over one token each, whose own slot is the last of its slots."""
    for i in range(len(kv_indptr) - 1):
        slots = kv_indices[int(kv_indptr[i]) : int(kv_indptr[i + 1])]
        yield Row(i, range(i, i + 1), slots, own_last=True)


def linked(keys: Ints, values: Ints, start: int | None) -> int:
    """The prefix that keys and values [n] in this order are; the hash of all of it where they are no chain. `start` is
    the prefix before the first, None for any.
    """
    if not len(keys):
        return EMPTY if start is None else start
    if (values[1:] == keys[:-1]).all() and (start is None or values[0] == start):
        return int(keys[-1])
    return mixed(keys.tolist())


def mixed(states: Sequence[int]) -> int:
    """What attention makes of KV that is no prefix: a hash that no prefix has, but by chance."""
    state = 1
    for i, one in enumerate(states):
        state = extended(one & (2**62 - 1) ^ state, i)
    return state


def digits_of(state: int) -> Ints:
    """int64 [4]: the first numbers of a hidden state, which carry its hash."""
    digits: Ints = state >> DIGITS & 0xFFFF
    return digits


def hashes_of(hidden: np.ndarray[Any, Any]) -> list[int]:
    """The hash that each row of hidden states [rows, hidden size] carries; any where nobody has written it."""
    digits = np.clip(np.nan_to_num(hidden[:, : len(DIGITS)], nan=-1.0), -1, 0xFFFF).astype(np.int64)
    hashes: list[int] = ((digits << DIGITS).sum(axis=1) & (2**62 - 1)).tolist()
    return hashes


def states_of(
    prefix: int, own: Row, tokens: Sequence[int], hidden: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """(keys, values) of a row's tokens, after a prefix of that hash. `hidden` is what the draft model is given beside
    each of its tokens; None for the target.
    """
    keys: list[int] = []
    values: list[int] = []
    for j, token in enumerate(tokens):
        before = prefix
        if own.visible is None:
            before = keys[-1] if keys else prefix
        else:
            seen = own.visible[j]
            for k in range(j):
                if seen[k]:
                    before = keys[k] if values[k] == before else mixed([before, keys[k]])
            if not seen[j] or seen[j + 1 :].any():
                before = mixed([before, j])
        if hidden is not None and before not in (hidden[j], EMPTY):
            before = mixed([before, hidden[j]])
        elif hidden is not None:
            before = hidden[j]
        values.append(before)
        keys.append(extended(before, max(token, -1)))
    return keys, values


@functools.lru_cache(maxsize=1 << 16)
def layer_key(layer: int, hidden: int, token: int) -> int:
    """The key of the draft model of a later step: of hidden state and token, and its last digit says the token."""
    token = max(token, 0) % VOCABULARY
    return extended(extended(hidden, -2 - layer), token) // VOCABULARY * VOCABULARY + token


def is_of_layer(layer: int, key: int, hidden: int) -> bool:
    """Whether it is a key of that draft model beside that hidden state, with whichever token."""
    return key == layer_key(layer, hidden, key % VOCABULARY)


def states_of_layer(
    layer: int, keys: Ints, values: Ints, own: Row, tokens: Sequence[int], hidden: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """(keys, values, states) of a row's tokens for the draft model of a later step, after keys and values [n] that it
    reads. A state is the hash of the prefix up to a token, or of none where what was read is of another model.
    """
    ahead = [int(key) % VOCABULARY for key in keys[-layer:]]
    wrong = [int(k) for k, v in zip(keys, values, strict=True) if not is_of_layer(layer, int(k), int(v))]
    made, states = [], []
    for j, token in enumerate(tokens):
        seen = [tokens[k] for k in range(j) if own.visible is None or own.visible[j, k]]
        state = hidden[j]
        for one in (*[*ahead, *seen][-layer:], token):
            state = extended(state, max(one, -1))
        states.append(mixed([state, *wrong]) if wrong else state)
        made.append(layer_key(layer, hidden[j], token))
    return made, list(hidden), states


def target_logits(state: int, out: Any) -> None:
    """Logits [vocabulary] of the target: the likely tokens in their order, and all others alike."""
    out.fill(UNLIKELY)
    for rank, token in enumerate(likely(state, RANKED + 1)):
        out[token] = LIKELY - GAP * rank


def drafts(state: int, token: int) -> bool:
    """Whether the draft model may think of a token after a prefix of that hash, wherever it has the right one."""
    return (token - next_token(state)) % (VOCABULARY - FIRST_TOKEN) <= RANKED


def draft_logits(state: int, rank: int, out: Any) -> None:
    """Logits [vocabulary] of the draft model, which has the right token at this rank; from RANKED on, not at all."""
    out.fill(0.0)
    right, *others = likely(state, RANKED + 1)
    ranked = [*others[:rank], right, *others[rank:]] if rank < RANKED else others
    for i, token in enumerate(ranked[:RANKED]):
        out[token] = LIKELY - 2 * i
