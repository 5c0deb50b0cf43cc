"""What a router that reads KV cache events knows of the prefix cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specsim.engines.vllm.scheduler.setups import FACTS
from specsim.rules.cache_events import CacheEvents
from specsim.world.kv_events import BlockId, CachedBlock, Cleared, Event, Published, Removed, Stored
from specsim.world.rule import Run
from specsim.world.scheduler import Noted, Pools, Seen, Setup

A, B = Stored((1,), None, (5, 6), 2), Stored((2,), 1, (7, 8), 2)
BOTH = Stored((1, 2), None, (5, 6, 7, 8), 2)
CACHED = [CachedBlock(BlockId(1), (5, 6)), CachedBlock(BlockId(2), (5, 6, 7, 8))]


def parts(
    *published: tuple[tuple[Event, ...], tuple[int, ...]],
    rest: list[CachedBlock] | None = None,
    unpublished: tuple[Event, ...] = (),
) -> list[str]:
    """Those that are wrong, where events were published, each time beside the hashes of the blocks that were cached."""
    notes = [Noted(Published(events, tuple(map(BlockId, cached))), at) for at, (events, cached) in enumerate(published)]
    pools = Pools(9, 9, 0, 1, 1, blocks=rest, unpublished=unpublished)
    started: Any = SimpleNamespace(seen=Seen(noted=notes), pools=lambda: pools)
    users: Any = None
    rule, run = CacheEvents(Setup(), FACTS), Run(started, users)
    return [violation.part for violation in (*rule.after(run), *rule.at_rest(run))]


def test_blocks_are_known_from_their_event_to_their_removal_whatever_the_events_that_name_them() -> None:
    assert parts(((A,), (1,)), ((B,), (1, 2)), ((Removed((2,)),), (1,)), rest=CACHED[:1]) == []
    assert parts(((BOTH,), (1, 2)), ((Removed((2, 1)),), ()), rest=[]) == []
    assert parts(((BOTH, Cleared()), ()), ((A,), (1,)), rest=CACHED[:1]) == []


def test_a_block_that_is_cached_without_an_event_or_gone_without_one_is_found_when_others_are_published() -> None:
    assert parts(((A,), (1, 2))) == ["unknown"]
    assert parts(((BOTH,), (1,))) == ["gone"]
    assert parts(((), ())) == []


def test_at_rest_what_was_published_last_may_be_behind_and_what_waits_is_told_from_what_is_missing() -> None:
    assert parts(((A,), (1,)), rest=CACHED) == ["unknown"]
    assert parts(((A,), (1,)), rest=[]) == ["gone"]
    assert parts(((A,), (1,)), rest=CACHED, unpublished=(B,)) == ["unpublished"]
    assert parts(((A,), (1,)), rest=[], unpublished=(Cleared(),)) == ["unpublished"]
    assert parts(((A,), (1,)), rest=CACHED, unpublished=(Removed((1,)),)) == ["unknown"]


def test_what_waits_to_be_published_and_changes_nothing_is_not_missed() -> None:
    assert parts(((A, Removed((1,))), ()), rest=[], unpublished=(Cleared(),)) == []


@pytest.mark.parametrize(
    ("events", "cached", "part"),
    [
        ((A, A, Removed((1,))), (1,), ["copy"]),
        ((A, A, Removed((1,)), Removed((1,))), (), []),
        ((A, A, Removed((1,))), (), []),  # an engine may say the removal of the last copy alone
        ((A, A, Removed((1,)), A), (1,), []),
    ],
)
def test_a_block_that_is_cached_twice_is_there_until_its_last_copy_is_removed(
    events: tuple[Event, ...], cached: tuple[int, ...], part: list[str]
) -> None:
    assert parts((events, cached)) == part


def test_a_block_stands_behind_one_that_is_known_in_any_group_of_layers() -> None:
    assert parts(((B,), (2,))) == ["parent"]
    assert parts(((A, Removed((1,)), B), (2,))) == ["parent"]
    in_another = Stored((2,), 1, (7, 8), 2, group=1)
    notes = [Noted(Published((A, in_another), (BlockId(1), BlockId(2, 1))))]
    started: Any = SimpleNamespace(seen=Seen(noted=notes))
    users: Any = None
    assert list(CacheEvents(Setup(), FACTS).after(Run(started, users))) == []


def test_blocks_have_their_own_tokens_those_of_the_blocks_before_and_those_that_their_hash_is_of_too() -> None:
    other = A._replace(tokens=(5, 9))
    assert parts(((other,), (1,)), rest=CACHED[:1]) == ["tokens"]
    assert parts(((A, Stored((2,), None, (7, 8), 2)), (1, 2)), rest=CACHED) == ["tokens"]
    assert parts(((A._replace(tokens=(5, 6, 7)),), (1,))) == ["sparse"]
    ahead = [CachedBlock(BlockId(1), (5, 6), (7,))]
    assert parts(((A._replace(ahead=((7,),)),), (1,)), rest=ahead) == []
    assert parts(((A,), (1,)), rest=ahead) == ["ahead"]


def test_an_event_that_names_no_block_says_nothing() -> None:
    assert parts(((Stored((), 1, (5, 6), 2),), ())) == []


@pytest.mark.parametrize(
    ("batches", "is_again"),
    [
        (((A, Removed((1,)), A), (A, Removed((1,)), A, B), (A, Removed((1,)), A, B)), True),
        (((A, Removed((1,)), A), (A, Removed((1,)), A), (A, Removed((1,)), A)), False),  # who waits goes on in circles
        (((A, Removed((1,)), A), (A, Removed((1,)), A, B), (Removed((2,)),)), False),
        (((A, B, A), (A, B, A), (A, B, A, B)), False),  # copies of two blocks
        (((Removed((1,)), A), (Removed((1,)), A), (Removed((1,)), A, B)), False),
    ],
)
def test_three_batches_of_which_two_begin_with_the_one_before_are_published_again(
    batches: tuple[tuple[Event, ...], ...], is_again: bool
) -> None:
    assert ("again" in parts(*((batch, ()) for batch in batches))) == is_again
