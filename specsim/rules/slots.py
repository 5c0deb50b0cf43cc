"""Slots and rows of the KV pools: that nobody has one twice, and that none is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from specsim.verdict import Rule, Severity
from specsim.world.kv import FreedTwice, NoSlot
from specsim.world.ledger import Freed
from specsim.world.rule import Check, Lie, Run, Violation, first_of_each, notes
from specsim.world.scheduler import Pools

NAMED_MAX = 4
"""Slots or rows of a request that are named, where some are lost."""


class FreeSlot(Check):
    """No slot is freed while it is free, and none is free and in the prefix cache, or twice in that."""

    rule = Rule("I16", "free-slot", "no owner's slot is free, and none is free twice", Severity.WRONG_RESULT)
    defects = (
        Lie("free and cached", "pools", lambda pools: replace(pools, free_slots=[0])),
        notes("freed twice", FreedTwice(7, Freed("free", "toy.py:9"))),
    )

    def after(self, run: Run) -> Iterator[Violation]:
        for freed, note in run.noted(FreedTwice):
            actual = f"slot {freed.slot} twice in the free list, once more by {freed.by.function}"
            yield self.from_note(note, "free-list", "", "every slot once", actual, where=freed.by.where)
            return

    def at_rest(self, run: Run) -> Iterator[Violation]:
        pools = run.pools
        if pools.free_slots is not None and len(set(pools.free_slots)) < len(pools.free_slots):
            yield self.broken("free-list", "", "every slot once", "a slot twice in the free list")
        free = set(pools.free_slots or ())
        for part, nodes, is_free in (("tree", pools.nodes, free), ("host", pools.host_nodes, set[int]())):
            owned = set[int]()
            for slot in (slot for node in nodes or () for slot in node.slots):
                if slot in is_free:
                    yield self.broken(part, "", "a slot that is not free", f"slot {slot}, which is cached too")
                    return
                if slot in owned:
                    yield self.broken(f"{part}-twice", "", "a slot once", f"slot {slot} at two places of the tree")
                    return
                owned.add(slot)


class SlotsOfStep(Check):
    """Drafts that will be rejected need a slot each, too: without one their KV goes to slot 0, with that of padding."""

    rule = Rule(
        "I07",
        "slots-of-step",
        "a device step finds slots for every position that it may touch",
        Severity.UNDEFINED_BEHAVIOUR,
    )
    defects = (notes("a step beyond its slots", NoSlot("verify", "0", 3)),)

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(
            self.broken(
                found.phase, found.rid, f"a slot for position {found.position}", "none", at=note.at, when=note.when
            )
            for found, note in run.noted(NoSlot)
        )


class SlotsAtRest(Check):
    """Slots of the full pool, of a sliding window's, and of one in the host's memory. Sessions are closed by then."""

    rule = Rule("I66", "slots-at-rest", "when nothing runs any more, every slot is free or cached", Severity.LEAK)
    defects = (
        Lie("lost slot", "pools", lambda pools: replace(pools, free=pools.free - 1)),
        Lie("slot twice", "pools", lambda pools: replace(pools, free=pools.free + 1)),
        Lie("lost slot of the host", "pools", lambda pools: replace(pools, host_nodes=[], host_total=8, host_free=7)),
    )

    def at_rest(self, run: Run) -> Iterator[Violation]:
        pools = run.pools
        sizes = [("slots", pools.total, pools.free + pools.cached)]
        if pools.window_total >= 0:
            sizes.append(("window-slots", pools.window_total, pools.window_free + pools.window_cached))
        if pools.host_nodes is not None:
            sizes.append(
                ("host-slots", pools.host_total, pools.host_free + sum(len(node.slots) for node in pools.host_nodes))
            )
        for name, total, found in sizes:
            if found != total:
                side = "lost" if found < total else "twice"
                lost = _lost_slots(pools) if (name, side) == ("slots", "lost") else {}
                actual = f"{found}{_without('slot', 'written last for', lost)}"
                yield self.broken(f"{name}:{side}", _user(lost), f"{total} free or cached", actual)


def _lost_slots(pools: Pools) -> dict[int, str]:
    """By slot that is neither free nor cached, the request for which it was written last. Of a slot that nobody wrote
    nothing is known; slot 0 is nobody's.
    """
    present = {slot for node in pools.nodes or () for slot in node.slots} | set(pools.free_slots or ())
    if len(present) != pools.free + pools.cached:  # some are not listed
        return {}
    return {slot: rid for slot, rid in pools.writers.items() if slot and slot not in present}


def _user(lost: Mapping[int, str]) -> str:
    """The one request that had them all, else ""."""
    users = set(lost.values())
    return users.pop() if len(users) == 1 else ""


def _without(name: str, how: str, lost: Mapping[int, str]) -> str:
    """ ": not slots 5 and 6, HOW s0.1, nor slot 9, HOW r00", of at most NAMED_MAX each."""
    parts = []
    for rid in dict.fromkeys(lost.values()):
        numbers = sorted(number for number, user in lost.items() if user == rid)
        shown = [str(number) for number in numbers[:NAMED_MAX]]
        more = len(numbers) - len(shown)
        shown += [f"{more} more"] if more else []
        listed = f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
        parts.append(f"{name}{'s' * (len(numbers) > 1)} {listed}, {how} {rid}")
    return f": not {', nor '.join(parts)}" if parts else ""


class RowOwner(Check):
    """At the end every row is free."""

    rule = Rule("I18", "row-owner", "every row is free or owned, once", Severity.LEAK)
    defects = (Lie("lost row", "pools", lambda pools: replace(pools, free_rows=pools.free_rows - 1)),)

    def at_rest(self, run: Run) -> Iterator[Violation]:
        pools = run.pools
        if pools.free_rows != pools.rows:
            side = "lost" if pools.free_rows < pools.rows else "twice"
            free = pools.free_row_numbers
            lost = {row: rid for row, rid in pools.row_users.items() if free is not None and row not in free}
            actual = f"{pools.free_rows}{_without('row', 'used last by', lost)}"
            yield self.broken(f"rows:{side}", _user(lost), f"{pools.rows} free", actual)


class TreeContent(Check):
    """Compared for each slot of the prefix cache that is there once and not free; those of a sliding window, and of a
    pool in the host's memory, too.
    """

    rule = Rule(
        "I27", "tree-content", "a slot of the tree holds the KV of the tokens that lead to it", Severity.WRONG_RESULT
    )
    spoils = True
    defects = (Lie("cached content", "slot_content", lambda _content: 0),)

    def at_rest(self, run: Run) -> Iterator[Violation]:
        started, pools = run.started, run.pools
        cached = (
            ("tree", pools.nodes, started.slot_content),
            ("window", pools.window_nodes, started.window_content),
            ("host", pools.host_nodes, pools.host_contents.get),
        )
        for part, nodes, content in cached:
            misplaced = set(pools.free_slots or ()) if part == "tree" else set[int]()
            for place, slot, tokens in chain.from_iterable(node.places() for node in nodes or ()):
                if slot in misplaced:
                    break  # what it holds says nothing
                misplaced.add(slot)
                if content(slot) != started.content_of(tokens):
                    what = f"other content in slot {slot}"
                    yield self.broken(part, "", f"the KV of the token at {place}", what)
                    break
