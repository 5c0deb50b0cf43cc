"""A scheduler's state while it runs, as a page shows it: requests, their rows, and what the slots hold.

Only memory of the host is read, device tensors by the bytes that they have now, so that a run in which this is noted is
the run without it. What has yet to be done is then not there. So a position is due, and may be wrong, when the host has
a token behind it, the device has done all that was launched, and its request is in no pass that is about to be.

The sections are those of `specsim.tiers.states`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from specsim.engines.sglang.scheduler.families import root_of, slots_in
from specsim.world.hash_model import EMPTY, extended
from specsim.world.kv import UNWRITTEN, content_name

if TYPE_CHECKING:
    from specsim.engines.sglang.scheduler.boot import Booted

Number = Callable[[Any, str], int]
Sections = dict[str, dict[str, Any]]


def sections(
    booted: Booted, number: Number, reason: Callable[[Any], str], *, is_settled: bool, launching: Collection[str]
) -> Sections:
    """The state now. `number` and `reason` read a request; with `is_settled` the device has nothing left to do, and a
    pass of the requests `launching` is about to be launched.
    """
    requests = {str(rid): request for rid, request in booted.requests.items()}
    chains = {rid: _chain([*one.origin_input_ids, *one.output_ids]) for rid, one in requests.items()}
    names: dict[int, str] = {}
    for rid, chain in chains.items():
        for position, content in enumerate(chain):
            names.setdefault(content, f"{rid}@{position}")
    found: Sections = {"slots": {}, "cells": {}, "owners": {}, "lists": _lists(booted)}
    slots: dict[int, list[Any]] = {}
    shared = set(_tree_slots(booted.radix_tree))
    for rid, request in requests.items():
        row, committed, allocated = (
            number(request, name) for name in ("req_pool_idx", "kv_committed_len", "kv_allocated_len")
        )
        ended = reason(request.finished_reason)
        prefix = max(0, number(request, "cache_protected_len"))
        found[f"request {rid}"] = {
            "state": "finished" if ended else "running" if row >= 0 else "waiting",
            "ended": ended,
            "row": row if row >= 0 else None,
            "committed": max(committed, 0),
            "allocated": max(allocated, 0),
            "cached prefix": prefix,
            "retracted": bool(getattr(request, "is_retracted", False)),
            "prompt": list(request.origin_input_ids),
            "outputs": list(request.output_ids),
        }
        if row < 0 or ended or allocated <= 0:
            continue
        chain = chains[rid]
        cells = _bytes(booted.req_to_token)[row, :allocated].tolist()
        held = [_content(booted, slot) for slot in cells]
        ready = next(p for p in count() if p >= min(len(chain), len(held)) or held[p] != chain[p])
        found["owners"][rid] = [row, max(committed, 0), allocated, prefix, ready]
        is_known = is_settled and rid not in launching
        due = min(committed, len(chain) - 1) if is_known and request.output_ids else 0
        for position, (slot, content) in enumerate(zip(cells, held, strict=True)):
            found["cells"][f"{row},{position}"] = slot
            is_right = position < len(chain) and content == chain[position]
            owner = "tree" if position < prefix or slot in shared else rid
            known = slots.get(slot)
            if known is not None and known[0] not in (owner, "tree") and owner != "tree":
                if not is_known:  # the row is perhaps not written yet
                    continue
                owner = f"{known[0]} and {owner}"
            should = f"{rid}@{position}" if is_right or position < due else ""
            holds = should if is_right else content_name(names, content)
            slots[slot] = [owner, position, holds, should]
    for slot in shared - set(slots):
        slots[slot] = ["tree", -1, content_name(names, _content(booted, slot)), ""]
    found["slots"] = {str(slot): slots[slot] for slot in sorted(slots) if slot > 0}
    return found


def _chain(tokens: list[int]) -> list[int]:
    """What the KV of each position of these tokens is."""
    prefix, chain = EMPTY, []
    for token in tokens:
        prefix = extended(prefix, token)
        chain.append(prefix)
    return chain


def _content(booted: Booted, slot: int) -> int:
    try:
        return booted.worker.slot_content(slot)
    except IndexError:  # a row that nobody has written yet
        return UNWRITTEN


def _bytes(tensor: Any) -> Any:
    """A tensor's elements as they are now, without asking the device."""
    return getattr(tensor, "host_bytes", tensor)


def _lists(booted: Booted) -> dict[str, Any]:
    scheduler = booted.scheduler
    named = {pool.name: pool for pool in booted.pools()}
    found: dict[str, Any] = {
        "waiting": [str(request.rid) for request in scheduler.waiting_queue],
        "running": [str(request.rid) for request in booted.running()],
        "results to take": len(scheduler.result_queue),
        "free rows": named["rows"].free,
        "free slots": named["full"].free,
        "evictable": named["full"].cached,
    }
    if "window" in named:
        found["free window slots"] = named["window"].free
    return found


def _tree_slots(tree: Any) -> Iterator[int]:
    """The slots in a radix tree, those of them that are known by now; none where the release has another one."""
    root = root_of(tree)
    waiting = [] if root is None else list(root.children.values())
    while waiting:
        node = waiting.pop()
        value = slots_in(node)
        if value is not None:
            yield from (int(slot) for slot in _bytes(value).tolist() if slot > 0)
        waiting += node.children.values()
