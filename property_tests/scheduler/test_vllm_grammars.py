"""Grammars of vLLM: a backend of one text under the release's manager, and what its masks make of the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from property_tests.support.vllm_batches import PROMPT, arrives, batch, goes_on, made
from specsim.engines.vllm.scheduler.grammars import WORD, OneText, allowed
from specsim.engines.vllm.scheduler.model import PAD
from specsim.world.hash_model import VOCABULARY, Prefixes, decoded

TEXT = (40, 41, 42, 40)
MASKED = decoded(PROMPT, 6, 1)
"""What the model says where masks keep it from the most likely token."""


def mask(*tokens: int) -> list[int]:
    """A row that allows these tokens, or all."""
    words = np.zeros(VOCABULARY // WORD, np.uint32)
    for token in tokens:
        words[token // WORD] |= np.uint32(1 << token % WORD)
    return [int(word) for word in words.view(np.int32)] if tokens else [-1] * len(words)


def grammar(*rows: list[int], limit: int | None = None) -> Any:
    """A GrammarOutput of request "a"; `limit` is what releases since 0.32.0 say, by request."""
    found = SimpleNamespace(structured_output_request_ids=["a"], grammar_bitmask=np.array(rows, np.int32))
    if limit is not None:
        found.num_acceptable_drafts = [limit]
    return found


def test_a_grammar_of_one_text_takes_its_tokens_in_their_order_and_ends_with_the_last() -> None:
    one = OneText(TEXT)
    assert one.validate_tokens([40, 41, 40]) == [40, 41]
    assert one.accept_tokens("a", [40, 41])
    assert not one.accept_tokens("a", [40])
    assert one.accept_tokens("a", [42, 40])
    assert one.is_terminated()
    assert one.validate_tokens([40]) == []
    one.rollback(2)
    assert not one.is_terminated()
    masks = torch.full((2, VOCABULARY // WORD), -1, dtype=torch.int32)
    one.fill_bitmask(masks, 1)
    assert masks.tolist() == [mask(), mask(42)]
    one.reset()
    assert one.validate_tokens(list(TEXT)) == list(TEXT)


@pytest.mark.parametrize(
    ("row", "token"), [(mask(), 99), (mask(12), 12), (mask(12, 127), 127), (mask(63, 64), 64), (mask(3), 99)]
)
def test_the_first_token_that_a_row_allows_is_taken(row: list[int], token: int) -> None:
    assert allowed(np.array(row, np.int32), [99, 127, 64, 63, 12]) == token


def test_masks_decide_what_is_said_and_which_drafts_are_right() -> None:
    model = made(is_told=True, right=2)
    model.prefixes["a"] = prefixes = Prefixes(PROMPT)
    prefixes.say(len(PROMPT), MASKED)
    assert model.launch(batch({"a": 6}, new=[arrives([5, 2])]), grammar(mask(MASKED[0])))() == {"a": MASKED[:1]}
    (drafts,) = model.drafts(["a"])
    assert drafts[:2] == MASKED[1:3]
    rows = [mask(token) for token in MASKED[1:5]]
    said = model.launch(batch({"a": 4}, cached=goes_on([3], 6), drafts={"a": drafts}), grammar(*rows))()
    assert said == {"a": MASKED[1:4]}
    assert model.reports.records == []


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_more_drafts_are_right_than_masks_were_made_for(limit: int) -> None:
    """Of those that the scheduler does not know, where the release says so."""
    model = made()
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    rows = [mask() for _ in range(4)]
    said = model.launch(batch({"a": 4}, cached=goes_on([3]), drafts={"a": [PAD] * 3}), grammar(*rows, limit=limit))()
    assert len(said["a"]) == limit + 1


def test_each_request_has_as_many_rows_as_it_has_drafts_and_one_more() -> None:
    """Releases before 0.33.0 make no more; where all have as many as there may be, both are the same."""
    model = made(right=0)
    model.prefixes["b"] = Prefixes([90, *PROMPT])
    other = arrives([6, 3])
    other.req_id, other.prompt_token_ids = "b", [90, *PROMPT]
    model.launch(batch({"a": 6, "b": 7}, new=[arrives([5, 2]), other]))
    cached = goes_on([4])
    cached.req_ids, cached.new_block_ids, cached.num_computed_tokens = ["a", "b"], [([4],), ([7],)], [6, 7]
    output = grammar(mask(70), mask(71), mask(72))
    output.structured_output_request_ids = ["a", "b"]
    said = model.launch(batch({"a": 2, "b": 1}, cached=cached, drafts={"a": [PAD]}), output)()
    assert said == {"a": [70], "b": [72]}
