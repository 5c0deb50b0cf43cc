"""The hash model as attention: what a pass gives follows from the keys that it reads, in their order."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.engines.sglang.scheduler import attention
from specsim.engines.sglang.scheduler.attention import RANKED, Row
from specsim.world.hash_model import EMPTY, FIRST_TOKEN, VOCABULARY, extended, likely, next_token
from specsim.world.kv import Ints

TOKENS = [11, 25, 31, 44, 52, 63]


def prefixes(tokens: list[int]) -> list[int]:
    """The hash of each prefix, the empty one first."""
    found = [EMPTY]
    for token in tokens:
        found.append(extended(found[-1], token))
    return found


def pool(tokens: list[int]) -> tuple[Ints, Ints]:
    hashes = prefixes(tokens)
    return np.array(hashes[1:]), np.array(hashes[:-1])


def test_keys_and_values_of_one_sequence_are_linked() -> None:
    keys, values = pool(TOKENS)
    assert attention.linked(keys, values, EMPTY) == prefixes(TOKENS)[-1]


@pytest.mark.parametrize("order", [[1, 0, 2, 3, 4, 5], [0, 1, 2, 4, 5], [1, 2, 3, 4, 5], [0, 0, 1, 2, 3]])
def test_another_order_or_part_of_them_is_no_prefix(order: list[int]) -> None:
    keys, values = pool(TOKENS)
    assert attention.linked(keys[order], values[order], EMPTY) not in prefixes(TOKENS)


def test_a_prefill_extends_its_prefix() -> None:
    keys, values = attention.states_of(prefixes(TOKENS)[2], Row(0, range(4), np.arange(2)), TOKENS[2:], None)
    assert (keys, values) == (prefixes(TOKENS)[3:], prefixes(TOKENS)[2:-1])


def test_a_node_of_a_tree_extends_its_ancestors_and_no_others() -> None:
    visible = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=bool)
    row = Row(0, range(4), np.arange(2), visible)
    keys, _ = attention.states_of(prefixes(TOKENS)[2], row, [31, 44, 45, 52], None)
    after = prefixes(TOKENS)[:3]
    assert keys[1] == prefixes([*TOKENS[:2], 31, 44])[-1]
    assert keys[2] == prefixes([*TOKENS[:2], 31, 45])[-1]
    assert keys[3] == prefixes([*TOKENS[:2], 31, 45, 52])[-1]
    assert keys[0] not in after


@pytest.mark.parametrize("wrong", [(2, 1), (3, 0), (3, 3), (1, 3)])
def test_a_wrong_bit_of_the_mask_changes_what_the_node_gives(wrong: tuple[int, int]) -> None:
    visible = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=bool)
    row = Row(0, range(4), np.arange(2), visible)
    right, _ = attention.states_of(prefixes(TOKENS)[2], row, [31, 44, 45, 52], None)
    flipped = visible.copy()
    flipped[wrong] = not flipped[wrong]
    changed, _ = attention.states_of(
        prefixes(TOKENS)[2], Row(0, range(4), np.arange(2), flipped), [31, 44, 45, 52], None
    )
    assert changed[wrong[0]] != right[wrong[0]]


def test_a_draft_follows_the_hidden_states_that_it_is_given() -> None:
    hashes = prefixes(TOKENS)
    row = Row(0, range(2), np.arange(0))
    keys, _ = attention.states_of(EMPTY, row, TOKENS[1:3], hashes[1:3])
    assert keys == hashes[2:4]
    wrong, _ = attention.states_of(EMPTY, row, TOKENS[1:3], [hashes[1], hashes[3]])
    assert wrong[0] == keys[0]
    assert wrong[1] != keys[1]


def test_rows_of_an_extension_have_their_slots_and_their_part_of_the_mask() -> None:
    mask = np.concatenate([np.ones((2, 5)).ravel(), np.array([[1, 1, 0], [1, 0, 1]]).ravel()])
    rows = list(attention.extend_rows([0, 2, 4], [0, 3, 4], np.arange(10, 14), mask, [0, 10]))
    assert [(row.number, row.tokens, row.slots.tolist()) for row in rows] == [
        (0, range(2), [10, 11, 12]),
        (1, range(2, 4), [13]),
    ]
    assert [row.visible.tolist() for row in rows if row.visible is not None] == [
        [[True] * 2] * 2,
        [[True, False], [False, True]],
    ]


def test_rows_of_a_decode_step_end_with_their_own_slot() -> None:
    rows = list(attention.decode_rows([0, 2, 5], np.arange(10, 15)))
    assert [(row.tokens, row.slots.tolist(), row.own_last) for row in rows] == [
        (range(1), [10, 11], True),
        (range(1, 2), [12, 13, 14], True),
    ]


@pytest.mark.parametrize("rank", range(RANKED + 1))
def test_the_draft_model_has_the_right_token_at_its_rank(rank: int) -> None:
    logits = np.empty(VOCABULARY, np.float32)
    attention.draft_logits(7, rank, logits)
    order = np.argsort(-logits, kind="stable")[:RANKED].tolist()
    right = next_token(7)
    assert (order.index(right) if right in order else RANKED) == rank
    assert min(order) >= FIRST_TOKEN
    assert len({float(logits[token]) for token in order}) == RANKED


def test_the_target_has_its_likely_tokens_in_their_order_and_all_others_alike() -> None:
    logits = np.empty(VOCABULARY, np.float32)
    attention.target_logits(7, logits)
    order = np.argsort(-logits, kind="stable")[: RANKED + 1].tolist()
    assert order == likely(7, RANKED + 1)
    assert order[0] == next_token(7)
    assert len(set(logits.tolist())) == RANKED + 2


def layer_pool(layer: int, tokens: list[int]) -> tuple[Ints, Ints]:
    """The KV of a later step's draft model, whose tokens are 1 + layer positions ahead."""
    hidden = prefixes(tokens)[1:]
    ahead = [attention.layer_key(layer, hidden[p], tokens[p + 1 + layer]) for p in range(len(tokens) - 1 - layer)]
    return np.array(ahead, np.int64), np.array(hidden[: len(ahead)], np.int64)


@pytest.mark.parametrize("layer", [1, 2])
def test_the_draft_model_of_a_later_step_goes_on_from_the_whole_prefix(layer: int) -> None:
    keys, values = layer_pool(layer, TOKENS)
    count, own = len(keys), Row(0, range(2), np.arange(len(keys) - 2))
    tokens, hidden = TOKENS[-2:], prefixes(TOKENS)[count - 1 : count + 1]
    made, kept, states = attention.states_of_layer(layer, keys[:-2], values[:-2], own, tokens, hidden)
    assert (made, kept) == (keys[-2:].tolist(), hidden)
    assert states[1] == prefixes(TOKENS)[-1]


@pytest.mark.parametrize("other", [0, 2])
def test_a_pool_of_another_step_gives_another_draft(other: int) -> None:
    keys, values = pool(TOKENS[1:]) if other == 0 else layer_pool(other, TOKENS)
    own = Row(0, range(1), np.arange(3))
    _, _, states = attention.states_of_layer(1, keys[:3], values[:3], own, TOKENS[5:6], prefixes(TOKENS)[4:5])
    assert states[0] not in prefixes(TOKENS)
    assert not any(attention.is_of_layer(1, int(key), int(value)) for key, value in zip(keys, values, strict=True))


def test_one_wrong_token_ahead_does_not_make_later_drafts_wrong() -> None:
    keys, values = layer_pool(1, [*TOKENS, 71, 72])
    keys[1] = attention.layer_key(1, int(values[1]), 99)
    own = Row(0, range(1), np.arange(5))
    _, _, states = attention.states_of_layer(1, keys[:5], values[:5], own, [72], prefixes([*TOKENS, 71])[6:7])
    assert states[0] == prefixes([*TOKENS, 71, 72])[-1]
