"""The KV cache events of a release, as the world's records: its publisher is ours, and its radix tree is read.

Keys of EAGLE are pairs of a token and the one behind it. So a block's hash is of the token behind it, too.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

from specsim.engines.sglang.scheduler.families import root_of, slots_in
from specsim.engines.sglang.scheduler.modules import home_of, is_there, release_module
from specsim.world.fakes import AdapterDriftError
from specsim.world.kv_events import BlockId, CachedBlock, Cleared, Event, Published, Removed, Stored

_HASHES = "compute_node_hash_values", "hash_str_to_int64"
_SALTED = "compute_node_event_hash_values"  # from 0.5.18 on: of a node that requests with a salt share
_DEVICE = "GPU"
_NATIVE, _LOADER = "mem_cache.cpp_utils.native_hash", "_load_native_hash_module"
_ROOT = SimpleNamespace(hash_value=[], event_hash_value=None, key=())


class Publisher:
    """In place of the release's, which sends to a socket. `tree` gives the radix tree."""

    def __init__(self, tree: Callable[[], Any], note: Callable[[Published], None]) -> None:
        self._tree, self._note = tree, note

    def publish(self, batch: Any) -> None:
        blocks = cached(self._tree())
        if blocks is not None:
            self._note(Published(events_of(batch.events), tuple(block.id for block in blocks)))


def publish(tree: Callable[[], Any], note: Callable[[Published], None]) -> None:
    """Have the scheduler that is built next tell `note` what it publishes. AdapterDriftError where a release has no
    such publisher, or names blocks by other hashes.
    """
    native: dict[str, Any] = vars(release_module(_NATIVE)) if is_there(_NATIVE) else {_LOADER: None}
    if lacks := [name for name in _HASHES if home_of(name) is None] + [_LOADER] * (_LOADER not in native):
        raise AdapterDriftError([], lacks)
    native[_LOADER] = lambda: SimpleNamespace(get_hash=native_hash)
    events = release_module("disaggregation.kv_events")
    publisher = Publisher(tree, note)
    events.EventPublisherFactory.create = lambda *_arguments, **_named: publisher
    events.KVEventsConfig.from_cli = lambda _text: SimpleNamespace(publisher="zmq", endpoint="", format="default")


def makes_events(tree: Any) -> bool:
    """Whether a release makes events of what this tree holds, where it is told to."""
    owners = (tree, getattr(tree, "tree_core", None))
    names = "_record_store_event", "kv_events"
    return any(getattr(owner, name, None) is not None for owner in owners for name in names)


def events_of(events: Iterable[Any]) -> tuple[Event, ...]:
    """Those of the device's memory. What a release says of other tiers is of another cache."""
    return tuple(event_of(each) for each in events if (getattr(each, "medium", None) or _DEVICE) == _DEVICE)


def event_of(event: Any) -> Event:
    kind = type(event).__name__
    if kind == "AllBlocksCleared":
        return Cleared()
    hashes = tuple(event.block_hashes)
    tier = getattr(event, "medium", None) or ""
    if kind == "BlockRemoved":
        return Removed(hashes, tier=tier)
    size, units = event.block_size, list(event.token_ids)
    ahead = tuple(_behind(units[start : start + size]) for start in range(0, len(units), size))
    ahead = ahead if any(ahead) else ()
    return Stored(hashes, event.parent_block_hash, _tokens(units), size, ahead=ahead, tier=tier)


class _Level(NamedTuple):
    """The children of a node, whose path has these tokens, and what stands for it as their parent."""

    children: Sequence[Any]
    tokens: tuple[int, ...]
    parent: SimpleNamespace


def cached(tree: Any) -> list[CachedBlock] | None:
    """The blocks that a new request would find; None where the release has another tree."""
    root = root_of(tree)
    return None if root is None else list(_blocks(root, tree.page_size))


def _blocks(root: Any, page_size: int) -> Iterator[CachedBlock]:
    hashes_of, number = (getattr(home_of(name), name) for name in _HASHES)
    hashes_of = getattr(home_of(_SALTED), _SALTED, hashes_of)
    levels = [_Level(list(root.children.values()), (), _ROOT)]
    while levels:
        level = levels.pop()
        for node in level.children:
            units = units_of(node.key)
            # Its own hashes are not read: what events say is compared with them.
            alone = SimpleNamespace(key=node.key, parent=level.parent, event_hash_value=None)
            hashes = hashes_of(alone, page_size)
            is_held = slots_in(node) is not None
            before = level.tokens
            for page, name in enumerate(hashes):
                own = units[page * page_size : (page + 1) * page_size]
                before = (*before, *_tokens(own))
                if is_held:
                    yield CachedBlock(BlockId(number(name)), before, _behind(own))
            parent = SimpleNamespace(hash_value=hashes, event_hash_value=hashes, key=node.key)
            levels.append(_Level(list(node.children.values()), before, parent))


def units_of(key: Any) -> list[Any]:
    """What a key is made of: tokens, or pairs of them, which 0.5.10.post1 keeps as such."""
    units = list(key.token_ids)
    has_pairs = bool(units) and isinstance(units[0], tuple)
    return list(pairwise(units)) if getattr(key, "is_bigram", False) and not has_pairs else units


def _tokens(units: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(unit[0]) if isinstance(unit, tuple | list) else int(unit) for unit in units)


def _behind(units: Sequence[Any]) -> tuple[int, ...]:
    """The token behind the last of some pairs; none behind tokens."""
    return (int(units[-1][1]),) if units and isinstance(units[-1], tuple | list) else ()


def native_hash(
    raw: Sequence[int], count: int, width: int, is_bigram: bool, prior: bytes | None, page_size: int | None
) -> str | list[str]:
    """In place of a release's compiled one: of `count` units of `width` tokens, all together, or page by page, each
    hash of the one before.
    """
    hashes, size = [], page_size or count
    for start in range(0, count, size):
        end = min(start + size, count)
        parts = (raw[at : at + 2] for at in range(start, end)) if is_bigram else (raw[start * width : end * width],)
        words = array("I", chain.from_iterable(parts))
        if sys.byteorder == "big":
            words.byteswap()
        prior = hashlib.sha256((prior or b"") + words.tobytes()).digest()
        hashes.append(prior.hex())
    return hashes if page_size else hashes[0]
