"""What routers are told of the prefix cache: KV cache events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from specsim.verdict import Rule, Severity
from specsim.world.kv_events import BlockId, CachedBlock, Cleared, Event, Published, Removed, Stored
from specsim.world.rule import Check, Lie, Run, Violation, first_of_each, notes

FEWEST = 3
"""Events of a batch that is looked for in the next ones."""

_ONE = Stored((1,), None, (5, 6), 2)
_TWO = Stored((2,), 1, (7, 8), 2)


class Router:
    """It has read the events from the beginning, and knows what these say.

    `known`   the blocks that it believes to be cached: those stored, and not removed since
    `copies`  of each block how often it was stored without being removed: an engine may have it more than once
    """

    def __init__(self) -> None:
        self.known: dict[BlockId, None] = {}
        self.copies: Counter[BlockId] = Counter()
        self._hashes: Counter[int] = Counter()  # by hash how many copies there are of it, in all groups
        self._tokens: dict[int, tuple[int, ...]] = {}  # by hash, those of its sequence up to its end
        self._ahead: dict[BlockId, tuple[int, ...]] = {}
        self._tiers: dict[BlockId, str] = {}  # where each was stored last

    def read(self, events: Iterable[Event]) -> Iterator[tuple[str, str, str]]:
        """Take events in. What is wrong with one alone: its part, what is expected, and what it says."""
        for event in events:
            if isinstance(event, Stored):
                yield from self._stored(event)
            elif isinstance(event, Removed):
                yield from self._removed(event)
            else:
                for each in (self.known, self.copies, self._hashes):
                    each.clear()

    def _stored(self, event: Stored) -> Iterator[tuple[str, str, str]]:
        blocks, size = event.blocks, event.block_size
        if not blocks:
            return
        if event.parent is not None and not self._hashes[event.parent]:
            yield "parent", "a block behind one that is stored", f"{_name(blocks[0])} behind #{event.parent:x}, unknown"
        before = () if event.parent is None else self._tokens.get(event.parent)
        if len(event.tokens) != len(blocks) * size:
            what = f"{len(event.tokens)} tokens of {len(blocks)} blocks of {size}, from {_name(blocks[0])} on"
            yield "sparse", "the tokens of each block", what
            before = None
        for number, block in enumerate(blocks):
            self.known[block] = None
            self.copies[block] += 1
            self._hashes[block.hash] += 1
            self._ahead[block] = event.ahead[number] if event.ahead else ()
            self._tiers[block] = event.tier
            if before is not None:
                self._tokens[block.hash] = before = (*before, *event.tokens[number * size : (number + 1) * size])

    def _removed(self, event: Removed) -> Iterator[tuple[str, str, str]]:
        for block in event.blocks:
            if (tier := self._tiers.get(block, event.tier)) != event.tier:
                yield "tier", f"{_name(block)} to leave {tier or 'no tier'}", f"it leaves {event.tier or 'no tier'}"
            self.known.pop(block, None)
            if self.copies[block]:
                self.copies[block] -= 1
                self._hashes[block.hash] -= 1

    def compared(self, cached: Iterable[BlockId]) -> Iterator[tuple[str, str, str]]:
        """With the blocks that the prefix cache has, as `read`."""
        there = dict.fromkeys(cached)
        for block in there:
            if block in self.known:
                continue
            if self.copies[block]:
                what = f"{_name(block)} was removed, which is still cached in another copy"
                yield "copy", "a block that is cached to be known", what
            else:
                yield "unknown", "a block that is cached to be known", f"{_name(block)} is not"
        for block in self.known:
            if block not in there:
                yield "gone", "a block that is known to be cached", f"{_name(block)} is not, and was never removed"

    def compared_at_rest(self, blocks: Iterable[CachedBlock]) -> Iterator[tuple[str, str, str]]:
        """The tokens of those that are known, as `read`."""
        for block in blocks:
            if block.id not in self.known:
                continue
            tokens, ahead = self._tokens.get(block.id.hash), self._ahead[block.id]
            if tokens is not None and tokens != block.tokens:
                yield "tokens", f"{_name(block.id)} of {_shown(block.tokens)}", f"of {_shown(tokens)}"
            if ahead != block.ahead:
                expected = f"{_name(block.id)}, whose hash is of the tokens {list(block.ahead)} behind it, too"
                yield "ahead", expected, f"of {list(ahead)}"


def _name(block: BlockId) -> str:
    return f"block #{block.hash:x}" + f" of group {block.group}" * bool(block.group)


def _shown(tokens: tuple[int, ...]) -> str:
    return f"{len(tokens)} tokens, the last {list(tokens[-4:])}"


class CacheEvents(Check):
    """Routers send a request to the engine that has most of its prompt, and know what an engine has by these events
    alone. Where an engine publishes them, whoever has read all of them knows each block that a new request would find,
    by its hash, its tokens and the block before it, and no other: whenever some were published, and at rest, when none
    may be left unpublished that it would need. A block that is cached more than once is there until its last copy is
    removed, and it is removed from the memory that it was stored in, by that memory's name. Nothing is published again:
    of three batches in a row two do not begin with the whole one before.
    """

    rule = Rule(
        "S17",
        "cache-events",
        "whoever reads the KV cache events that are published knows what the prefix cache has",
        Severity.METRIC,
    )
    defects = (
        notes("stores without an event", Published((), (BlockId(1),))),
        notes("evicts without an event", Published((_ONE,), ())),
        notes("removes one copy of two", Published((_ONE, _ONE, Removed((1,))), (BlockId(1),))),
        notes("removes from no tier", Published((_ONE._replace(tier="GPU"), Removed((1,))), ())),
        notes("stores behind another block", Published((_TWO,), (BlockId(2),))),
        notes(
            "publishes all again",
            *(Published((_ONE, Removed((1,)), *[_ONE] * count), (BlockId(1),)) for count in (1, 2, 3)),
        ),
        notes("names fewer blocks than tokens", Published((_ONE._replace(block_size=1),), (BlockId(1),))),
        Lie(
            "publishes late",
            "pools",
            lambda pools: replace(pools, blocks=[CachedBlock(BlockId(1), (5, 6))], unpublished=(_ONE,)),
        ),
    )

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(self._while_published(run, Router()))
        yield from self._published_again(run)

    def _published_again(self, run: Run) -> Iterator[Violation]:
        """A batch that stores and removes what others do may be like another one by chance, and so may be one of few
        events; not three in a row.
        """
        batches = [(published.events, note.when) for published, note in run.noted(Published)]
        for (first, _), (second, _), (third, when) in zip(batches, batches[1:], batches[2:], strict=False):
            is_one_more = second[: len(first)] == first and third[: len(second)] == second and len(third) > len(first)
            if len(first) >= FEWEST and len({type(each) for each in first}) > 1 and is_one_more:
                actual = f"{len(second)} events of the batch before, first of all"
                yield self.broken("again", "", "each event to be published once", actual, when=when)
                return

    def _while_published(self, run: Run, router: Router) -> Iterator[Violation]:
        for published, note in run.noted(Published):
            for part, expected, actual in (*router.read(published.events), *router.compared(published.cached)):
                yield self.broken(part, "", expected, f"{actual}, in iteration {note.when}")

    def at_rest(self, run: Run) -> Iterator[Violation]:
        blocks, late = run.pools.blocks, run.pools.unpublished
        if blocks is None:
            return
        router = Router()
        parts = {violation.part for violation in self._while_published(run, router)}
        cached = [block.id for block in blocks]
        before = list(router.compared(cached))
        found = [*router.read(late), *router.compared(cached), *router.compared_at_rest(blocks)]
        if late and len(before) > len(list(router.compared(cached))):
            _part, expected, actual = before[-1]
            yield self.broken("unpublished", "", expected, f"{actual}: {_listed(late)} wait for the next step")
        yield from first_of_each(
            self.broken(part, "", expected, f"{actual}, at rest")
            for part, expected, actual in found
            if part not in parts
        )


def _listed(events: Iterable[Event]) -> str:
    names = Counter("cleared" if isinstance(one, Cleared) else type(one).__name__.lower() for one in events)
    return ", ".join(f"{count} {name}" for name, count in names.items())
