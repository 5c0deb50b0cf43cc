"""The radix cache: what it holds is found again by the same tokens, and only what nobody uses is given up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specsim.engine.memory.allocator import Allocator, ceil_to
from specsim.engine.memory.radix import Match, RadixCache
from specsim.engine.memory.tree_node import TreeNode
from specsim.engine.rules.ledger import SlotLedger

namespaces = st.sampled_from([None, None, "adapter"])
# Any two share a prefix, long more often than not, and part at page boundaries and elsewhere.
some_tokens = st.builds(
    lambda length, turns: [int(position in turns) for position in range(length)],
    st.integers(0, 14),
    st.lists(st.integers(0, 13), max_size=2),
)

Prefix = tuple[str | None, tuple[int, ...]]  # a namespace and the tokens that the keys of some whole pages are made of


class Prefixes:
    """The obvious cache: a dictionary from every prefix of whole pages to the slots of its last page.

    `used` says when a prefix was used last, `ends` at which prefixes a use has ended: pages between two of them live
    and die together.
    """

    def __init__(self, page_size: int, beyond: int) -> None:
        self.page_size, self.beyond = page_size, beyond
        self.pages: dict[Prefix, list[int]] = {}
        self.used: dict[Prefix, int] = {}
        self.ends: set[Prefix] = set()
        self.now = 0

    def prefixes_of(self, tokens: list[int], extra_key: str | None) -> list[Prefix]:
        count = max(len(tokens) - self.beyond, 0) // self.page_size
        return [(extra_key, tuple(tokens[: (i + 1) * self.page_size + self.beyond])) for i in range(count)]

    def match(self, tokens: list[int], extra_key: str | None) -> list[Prefix]:
        held = [prefix for prefix in self.prefixes_of(tokens, extra_key) if prefix in self.pages]
        self.use(held)
        return held

    def use(self, held: list[Prefix]) -> None:
        self.now += 1
        self.used.update(dict.fromkeys(held, self.now))
        self.ends.update(held[-1:])

    def insert(self, tokens: list[int], slots: list[int], extra_key: str | None) -> int:
        held = self.match(tokens, extra_key)
        prefixes = self.prefixes_of(tokens, extra_key)
        for i in range(len(held), len(prefixes)):
            self.pages[prefixes[i]] = slots[i * self.page_size : (i + 1) * self.page_size]
        self.use(held)
        self.use(prefixes)
        return len(held) * self.page_size

    def evict(self, num_tokens: int, locked: list[Prefix]) -> int:
        freed = 0
        while freed < num_tokens:
            kept = {prefix for prefix in self.pages if any(starts_with(lock, prefix) for lock in locked)}
            inner = {self.parent(prefix) for prefix in self.pages}
            leaves = [prefix for prefix in self.pages if prefix not in kept | inner]
            if not leaves:
                break
            ages = [self.used[leaf] for leaf in leaves]
            assert len(set(ages)) == len(ages)
            prefix: Prefix | None = leaves[ages.index(min(ages))]
            while prefix:
                del self.pages[prefix]
                self.ends.discard(prefix)
                freed += self.page_size
                prefix = self.parent(prefix)
                if prefix in self.ends:
                    break
        return freed

    def parent(self, prefix: Prefix) -> Prefix | None:
        extra_key, tokens = prefix
        return (extra_key, tokens[: -self.page_size]) if len(tokens) - self.beyond > self.page_size else None


def starts_with(longer: Prefix, shorter: Prefix) -> bool:
    return longer[0] == shorter[0] and longer[1][: len(shorter[1])] == shorter[1]


@dataclass
class Watcher:
    """What the tree said it took, gave up and locked."""

    beyond: int
    slots: list[int] = field(default_factory=list)
    locks: list[TreeNode] = field(default_factory=list)
    contents: dict[int, Prefix] = field(default_factory=dict)

    def inserted(self, extra_key: str | None, tokens: tuple[int, ...], start: int, slots: list[int]) -> None:
        assert len(tokens) == start + len(slots) + self.beyond
        self.slots += slots
        for i, slot in enumerate(slots, start):
            self.contents[slot] = (extra_key, tokens[: i + 1 + self.beyond])

    def evicted(self, slots: list[int]) -> None:
        for slot in slots:
            self.slots.remove(slot)

    def locked(self, node: TreeNode) -> None:
        self.locks.append(node)

    def unlocked(self, node: TreeNode) -> None:
        self.locks.remove(node)


@dataclass
class Running:
    """A request: its row, of which the tree owns the first `protected` slots, and the lock that it holds."""

    extra_key: str | None
    tokens: list[int]
    slots: list[int]
    protected: int
    node: TreeNode
    lock: list[Prefix]


class Requests(RuleBasedStateMachine):
    """Requests come, grow, share what they have, finish and are retracted, while memory runs short."""

    @initialize(pages=st.integers(4, 24), page_size=st.sampled_from([1, 2, 4]), bigram=st.booleans())
    def start(self, pages: int, page_size: int, bigram: bool) -> None:
        self.page_size, self.size, self.beyond = page_size, pages * page_size, int(bigram)
        self.ledger, self.watcher = SlotLedger(page_size), Watcher(self.beyond)
        self.allocator = Allocator(self.size, page_size, self.ledger)
        self.cache = RadixCache(page_size, self.allocator, bigram=bigram, watcher=self.watcher)
        self.model = Prefixes(page_size, self.beyond)
        self.running: list[Running] = []
        self.written: dict[int, Prefix] = {}  # what the KV of a slot was computed from

    def locked(self) -> list[Prefix]:
        return [request.lock[-1] for request in self.running if request.lock]

    def match(self, tokens: list[int], extra_key: str | None) -> tuple[Match, list[Prefix]]:
        held = self.model.match(tokens, extra_key)
        found = self.cache.match(tokens, extra_key)
        assert found.slots == [slot for prefix in held for slot in self.model.pages[prefix]]
        assert self.cache.path_slots(found.node) == found.slots
        for i, slot in enumerate(found.slots):
            assert self.written[slot] == (extra_key, tuple(tokens[: i + 1 + self.beyond]))
        return found, held

    def alloc(self, request: Running, end: int) -> bool:
        """Slots up to position `end`, evicting for them when they are short; whether there were enough."""
        start = len(request.slots)
        short = ceil_to(end, self.page_size) - ceil_to(start, self.page_size) - self.allocator.available
        if short > 0:
            self.evict(short)
        missing = ceil_to(end, self.page_size) - ceil_to(start, self.page_size) - self.allocator.available
        if missing > 0:
            assert self.cache.evictable == 0
            return False
        request.slots += self.allocator.extend(start, end, request.slots[-1] if start else 0)
        return True

    def write(self, request: Running) -> None:
        tokens = request.tokens
        for i in range(request.protected, len(tokens) - self.beyond):
            self.written[request.slots[i]] = (request.extra_key, tuple(tokens[: i + 1 + self.beyond]))

    @rule(tokens=some_tokens, extra_key=namespaces)
    def serve(self, tokens: list[int], extra_key: str | None) -> None:
        if request := self.admit(tokens, extra_key):
            self.end(request)

    @rule(tokens=some_tokens, extra_key=namespaces)
    def begin(self, tokens: list[int], extra_key: str | None) -> None:
        self.admit(tokens, extra_key)

    def admit(self, tokens: list[int], extra_key: str | None) -> Running | None:
        found, held = self.match(tokens, extra_key)
        request = Running(extra_key, tokens, found.slots, len(found.slots), found.node, held)
        self.cache.lock(found.node)
        self.running.append(request)
        if self.alloc(request, len(tokens)):
            self.write(request)
            return request
        self.cache.unlock(found.node)
        self.running.pop()
        return None

    def one(self, data: st.DataObject) -> Running:
        return self.running[data.draw(st.integers(0, len(self.running) - 1))]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        request = self.one(data)
        if self.alloc(request, len(request.tokens) + len(more)):
            request.tokens = request.tokens + more
            self.write(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """The request goes on, on the tree's slots, with what it has computed in the tree."""
        request = self.one(data)
        self.give(request)
        found, held = self.match(request.tokens, request.extra_key)
        assert len(found.slots) == self.cache.key_len(len(request.tokens))
        self.cache.lock(found.node)
        self.cache.unlock(request.node)
        request.slots[: len(found.slots)] = found.slots
        request.protected, request.node, request.lock = len(found.slots), found.node, held

    @precondition(lambda self: self.running)
    @rule(data=st.data(), over_allocated=st.integers(0, 5))
    def finish(self, data: st.DataObject, over_allocated: int) -> None:
        request = self.one(data)
        self.alloc(request, len(request.tokens) + over_allocated)
        self.end(request)

    def end(self, request: Running) -> None:
        end = self.give(request)
        self.allocator.free(request.slots[end:])
        self.cache.unlock(request.node)
        self.running.remove(request)

    def give(self, request: Running) -> int:
        """Insert, free the duplicates and return how many slots are the tree's."""
        tokens, slots = request.tokens, request.slots
        expected = self.model.insert(tokens, slots, request.extra_key)
        held = self.cache.insert(tokens, slots, request.extra_key)
        assert held == expected
        assert held >= request.protected
        self.allocator.free(slots[request.protected : held])
        return self.cache.key_len(len(tokens))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        request = self.one(data)
        self.allocator.free(request.slots[request.protected :])
        self.cache.unlock(request.node)
        self.running.remove(request)

    @rule(tokens=some_tokens, extra_key=namespaces)
    def look(self, tokens: list[int], extra_key: str | None) -> None:
        once = self.match(tokens, extra_key)[0]
        again = self.cache.match(tokens, extra_key)
        assert again.node is once.node
        assert again.slots == once.slots

    @precondition(lambda self: self.cache.total)
    @rule(num_tokens=st.integers(-1, 9))
    def evict(self, num_tokens: int) -> None:
        evictable, available = self.cache.evictable, self.allocator.available
        freed = self.cache.evict(num_tokens)
        assert freed == self.model.evict(num_tokens, self.locked())
        assert freed >= min(num_tokens, evictable)
        assert self.allocator.available == available + freed

    @invariant()
    def the_tree_is_the_dictionary(self) -> None:
        if not hasattr(self, "cache"):
            return
        pages: dict[Prefix, list[int]] = {}
        page_size = self.page_size
        for extra_key, tokens, start, node in self.cache.entries():
            assert node.slots
            assert len(node.tokens) == len(node.slots) + self.beyond
            assert len(tokens) == start + len(node.tokens)
            for i in range(0, len(node.slots), page_size):
                prefix = (extra_key, tokens[: start + i + page_size + self.beyond])
                assert prefix not in pages
                pages[prefix] = node.slots[i : i + page_size]
        assert pages == self.model.pages

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        """Free, the tree's, or a request's own, in whole pages."""
        if not hasattr(self, "cache"):
            return
        owned = [slot for *_, node in self.cache.entries() for slot in node.slots]
        assert sorted(owned) == sorted(self.watcher.slots)
        for request in self.running:
            own = request.slots[request.protected :]
            owned += [
                slot for page in dict.fromkeys(slot // self.page_size for slot in own) for slot in self.page(page)
            ]
        everything = list(range(self.page_size, self.page_size + self.size))
        assert sorted(owned + self.allocator.free_slots) == everything
        assert self.ledger.misuses == []

    def page(self, page: int) -> range:
        return range(page * self.page_size, (page + 1) * self.page_size)

    @invariant()
    def a_node_is_locked_once_for_every_request_below_it(self) -> None:
        if not hasattr(self, "cache"):
            return
        evictable = protected = 0
        for extra_key, tokens, _, node in self.cache.entries():
            assert node.lock_ref == sum(starts_with(lock, (extra_key, tokens)) for lock in self.locked())
            if node.lock_ref:
                protected += len(node.slots)
            else:
                evictable += len(node.slots)
        assert (self.cache.evictable, self.cache.protected) == (evictable, protected)
        assert self.cache.total == evictable + protected
        assert sorted(node.number for node in self.watcher.locks) == sorted(r.node.number for r in self.running)

    @invariant()
    def a_locked_path_is_the_start_of_the_row(self) -> None:
        for request in getattr(self, "running", []):
            assert self.cache.path_slots(request.node) == request.slots[: request.protected]

    @invariant()
    def a_slot_of_the_tree_holds_what_its_key_says(self) -> None:
        if not hasattr(self, "cache"):
            return
        for extra_key, tokens, start, node in self.cache.entries():
            for i, slot in enumerate(node.slots, start):
                assert self.written[slot] == (extra_key, tokens[: i + 1 + self.beyond])
                assert self.watcher.contents[slot] == self.written[slot]


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=3 * settings().max_examples)


# Corners


class Returned:
    """Where evicted slots go."""

    def __init__(self) -> None:
        self.slots: list[int] = []

    def free(self, slots: Iterable[int]) -> None:
        self.slots += slots


def made(page_size: int = 1, *, bigram: bool = False) -> tuple[RadixCache, Returned]:
    returned = Returned()
    return RadixCache(page_size, returned, bigram=bigram), returned


def runs(cache: RadixCache) -> list[tuple[tuple[int, ...], list[int]]]:
    return [(tokens, node.slots) for _, tokens, _, node in cache.entries()]


def test_an_empty_tree_matches_nothing_and_evicts_nothing() -> None:
    cache, returned = made()
    slots, root = cache.match([1, 2, 3])
    assert (slots, root.parent, cache.evict(5), returned.slots) == ([], None, 0, [])
    assert cache.insert([], []) == 0
    assert runs(cache) == []


def test_a_match_is_whole_pages() -> None:
    cache, _ = made(4)
    assert cache.insert(list(range(10)), list(range(4, 14))) == 0
    assert cache.total == 8
    for length, expected in [(3, 0), (4, 4), (7, 4), (8, 8), (10, 8)]:
        assert len(cache.match(list(range(length))).slots) == expected


def test_a_node_is_split_at_a_page_boundary_where_tokens_part_inside_a_page() -> None:
    cache, _ = made(4)
    cache.insert([1, 2, 3, 4, 5, 6, 7, 8], list(range(4, 12)))
    assert cache.insert([1, 2, 3, 4, 5, 6, 7, 0], [4, 5, 6, 7, 12, 13, 14, 15]) == 4
    assert runs(cache) == [
        ((1, 2, 3, 4), [4, 5, 6, 7]),
        ((1, 2, 3, 4, 5, 6, 7, 8), [8, 9, 10, 11]),
        ((1, 2, 3, 4, 5, 6, 7, 0), [12, 13, 14, 15]),
    ]


def test_tokens_that_part_inside_the_first_page_share_nothing() -> None:
    cache, _ = made(4)
    cache.insert([1, 2, 3, 4], [4, 5, 6, 7])
    assert cache.insert([1, 2, 3, 0], [8, 9, 10, 11]) == 0
    assert cache.match([1, 2, 3, 9]).slots == []


def test_a_split_leaves_the_end_of_a_path_where_it_was() -> None:
    cache, _ = made(2)
    cache.insert([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7])
    end = cache.match([1, 2, 3, 4, 5, 6]).node
    cache.lock(end)
    middle = cache.match([1, 2, 3, 4]).node
    assert middle is not end
    assert end.parent is middle
    assert (middle.lock_ref, end.lock_ref) == (1, 1)
    assert cache.path_slots(end) == [2, 3, 4, 5, 6, 7]
    assert (cache.evictable, cache.protected) == (0, 6)
    cache.unlock(end)
    assert (middle.lock_ref, end.lock_ref) == (0, 0)
    assert (cache.evictable, cache.protected) == (6, 0)


@pytest.mark.parametrize(("page_size", "length"), [(1, 4), (4, 8), (4, 9)])
def test_bigram_keys_are_one_fewer_than_tokens(page_size: int, length: int) -> None:
    cache, _ = made(page_size, bigram=True)
    tokens = list(range(length))
    cache.insert(tokens, list(range(page_size, page_size + length)))
    whole = (length - 1) // page_size * page_size
    assert cache.key_len(length) == cache.total == whole
    assert len(cache.match(tokens).slots) == whole
    assert cache.key_len(0) == cache.key_len(1) == 0


def test_a_bigram_key_is_held_only_with_the_token_after_it() -> None:
    cache, _ = made(bigram=True)
    cache.insert([1, 2, 3], [1, 2, 3])
    assert cache.match([1, 2, 3, 4]).slots == [1, 2]
    assert cache.match([1, 2, 9]).slots == [1]
    assert cache.match([1, 9]).slots == []
    assert cache.insert([1, 2, 9, 9], [1, 5, 6, 7]) == 1
    assert runs(cache) == [((1, 2), [1]), ((1, 2, 3), [2]), ((1, 2, 9, 9), [5, 6])]


def test_a_prefix_that_is_there_is_not_taken_again() -> None:
    cache, returned = made(2)
    cache.insert([1, 2, 3, 4], [2, 3, 4, 5])
    assert cache.insert([1, 2], [8, 9]) == 2
    assert cache.insert([1, 2, 3, 4, 5], [8, 9, 10, 11, 12]) == 4
    assert cache.total == 4
    assert returned.slots == []
    assert cache.match([1, 2, 3, 4]).slots == [2, 3, 4, 5]


def test_namespaces_share_no_node() -> None:
    cache, _ = made()
    cache.insert([1, 2], [1, 2])
    assert cache.match([1, 2], "adapter").slots == []
    assert cache.insert([1, 2], [3, 4], "adapter") == 0
    assert cache.match([1, 2]).slots == [1, 2]
    assert cache.match([1, 2], "adapter").slots == [3, 4]
    assert cache.match([1, 2]).node is not cache.match([1, 2], "adapter").node
    assert [entry.extra_key for entry in cache.entries()] == [None, "adapter"]


def test_what_was_used_least_recently_goes_first() -> None:
    cache, returned = made()
    for token in (1, 2, 3):
        cache.insert([token], [token])
    cache.match([1])
    assert cache.evict(1) == 1
    cache.insert([3], [9])
    assert cache.evict(1) == 1
    assert cache.evict(1) == 1
    assert returned.slots == [2, 1, 3]


def test_all_namespaces_share_one_age() -> None:
    cache, returned = made()
    cache.insert([1], [1], "adapter")
    cache.insert([1], [2])
    cache.match([1], "adapter")
    cache.evict(1)
    assert returned.slots == [2]


def test_what_a_use_does_not_reach_does_not_grow_younger() -> None:
    cache, returned = made()
    cache.insert([1, 2, 3], [1, 2, 3])
    cache.insert([7], [7])
    cache.match([1])
    cache.evict(1)
    assert returned.slots == [2, 3]
    cache.evict(1)
    assert returned.slots == [2, 3, 7]


def test_leaves_go_whole_and_their_parents_after_them() -> None:
    cache, returned = made()
    cache.insert([1, 2, 3], [1, 2, 3])
    cache.insert([1, 2, 4, 5], [1, 2, 4, 5])
    assert cache.evict(1) == 1
    assert cache.evict(3) == 4
    assert returned.slots == [3, 4, 5, 1, 2]
    assert (cache.total, cache.evictable, runs(cache)) == (0, 0, [])


def test_locked_nodes_outlive_any_eviction() -> None:
    cache, returned = made()
    cache.insert([1, 2, 3], [1, 2, 3])
    cache.insert([1, 2, 4], [1, 2, 4])
    cache.insert([8], [8])
    node = cache.match([1, 2, 3]).node
    cache.lock(node)
    cache.lock(node)
    assert (cache.evictable, cache.protected) == (2, 3)
    assert cache.evict(100) == 2
    assert sorted(returned.slots) == [4, 8]
    cache.unlock(node)
    assert cache.evict(100) == 0
    cache.unlock(node)
    assert cache.evict(100) == 3


def test_roots_are_locked_and_never_evicted() -> None:
    cache, _ = made()
    root = cache.match([]).node
    cache.lock(root)
    cache.insert([1], [1])
    assert cache.evict(10) == 1
    assert cache.match([1]).node is root
    assert root.lock_ref == 1
    cache.unlock(root)
    assert (cache.evictable, cache.protected) == (0, 0)


def test_one_unlock_too_many_can_be_seen_and_spoils_the_next_lock() -> None:
    cache, _ = made()
    cache.insert([1, 2], [1, 2])
    node = cache.match([1, 2]).node
    cache.unlock(node)
    assert node.lock_ref == -1
    cache.lock(node)
    assert (cache.evictable, cache.protected, cache.evict(1)) == (2, 0, 2)


def test_a_parent_outlives_its_children_even_when_it_was_unlocked_too_often() -> None:
    cache, returned = made()
    cache.insert([1, 2], [1, 2])
    cache.insert([1, 3], [1, 3])
    cache.lock(cache.match([1, 2]).node)
    cache.unlock(cache.match([1, 3]).node)
    assert cache.evict(10) == 1
    assert returned.slots == [3]
    assert cache.match([1, 2]).slots == [1, 2]


def test_slots_that_are_evicted_in_a_free_group_come_back_when_it_ends() -> None:
    ledger = SlotLedger(2)
    allocator = Allocator(8, 2, ledger)
    cache = RadixCache(2, allocator)
    cache.insert([1, 2, 3, 4], allocator.extend(0, 4, 0))
    allocator.free_group_begin()
    assert cache.evict(1) == 4
    assert (allocator.available, len(allocator.pending)) == (4, 4)
    allocator.free_group_end()
    assert allocator.available == 8
    assert ledger.misuses == []


def test_bad_input_is_refused() -> None:
    cache, _ = made(2)
    with pytest.raises(ValueError, match="3 slots for 5 tokens; the tree takes 4 of them"):
        cache.insert([1, 2, 3, 4, 5], [2, 3, 4])
    assert runs(cache) == []
    with pytest.raises(ValueError, match="page_size=0"):
        made(0)


@given(
    page_size=st.sampled_from([1, 2, 3, 4, 16]),
    bigram=st.booleans(),
    pages=st.integers(1, 9),
    part=st.integers(0, 150),
    length=st.integers(0, 150),
)
def test_the_shared_prefix_is_the_longest_in_whole_pages(
    page_size: int, bigram: bool, pages: int, part: int, length: int
) -> None:
    cache, _ = made(page_size, bigram=bigram)
    held = list(range(pages * page_size + bigram))
    cache.insert(held, held)
    asked = [token if position < part else -1 for position, token in enumerate(range(length))]
    same = min(part, length, len(held))
    expected = max(same - bigram, 0) // page_size * page_size
    assert cache.match(asked).slots == held[:expected]
