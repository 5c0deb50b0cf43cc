"""The KV cache events of a release, as the world's records: its publisher is ours, and its prefix cache is read."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from specsim.engines.vllm.scheduler.imports import PACKAGE
from specsim.world.fakes import AdapterDriftError
from specsim.world.kv_events import BlockId, Cleared, Event, Published, Removed, Stored

_PUBLISHER = "kv_event_publisher"


def names_groups() -> bool:
    """Whether events say of which group of layers a block is. Where they do not, a release that publishes them has one
    group: it turns its hybrid KV cache manager off (config/vllm.py).
    """
    return "group_idx" in _module("distributed.kv_events").BlockRemoved.__struct_fields__


class Publisher:
    """In place of the release's, which sends to a socket."""

    def __init__(self, pool: Any, note: Callable[[Published], None]) -> None:
        self._pool, self._note = pool, note

    def publish(self, batch: Any) -> None:
        self._note(Published(tuple(map(event_of, batch.events)), tuple(cached(self._pool))))


def publish(scheduler: Any, note: Callable[[Published], None]) -> None:
    """Tell `note` from now on what a scheduler publishes. AdapterDriftError where it has no publisher."""
    if not hasattr(scheduler, _PUBLISHER):
        raise AdapterDriftError([], [f"Scheduler.{_PUBLISHER}"])
    setattr(scheduler, _PUBLISHER, Publisher(scheduler.kv_cache_manager.block_pool, note))


def event_of(event: Any) -> Event:
    kind, group = type(event).__name__, getattr(event, "group_idx", None) or 0
    if kind == "AllBlocksCleared":
        return Cleared()
    hashes = tuple(event.block_hashes or ())
    tier = getattr(event, "medium", None) or ""
    if kind == "BlockRemoved":
        return Removed(hashes, group, tier)
    ahead = getattr(event, "lookahead_token_ids", None) or ()
    parent, tokens = event.parent_block_hash, tuple(event.token_ids)
    return Stored(hashes, parent, tokens, event.block_size, group, tuple(map(tuple, ahead)), tier)


def cached(pool: Any) -> Iterator[BlockId]:
    """The blocks that a new request would find, by the table in which it looks for them."""
    utils = _module("v1.core.kv_cache_utils")
    for key in pool.cached_block_hash_to_block._cache:
        yield BlockId(utils.maybe_convert_block_hash(utils.get_block_hash(key)), utils.get_group_id(key))


def name_of(block_hash: Any) -> int:
    """A hash of a request's, as events have it."""
    found: int = _module("v1.core.kv_cache_utils").maybe_convert_block_hash(block_hash)
    return found


def _module(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")
