"""The release's own radix cache in place of the model's: mirrored, so that a ledger and the rules see it as their own.

After every call into the cache the mirror is brought up to date. What the tree holds then and did not before was
inserted, what it no longer holds was evicted, and its locks are counted as they are taken and given back.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.engine.config import EngineConfig
from specsim.engine.memory.radix import Entry, Match, RadixCache
from specsim.engine.memory.tree_node import TreeNode
from specsim.engine.rules.ledger import SlotLedger
from specsim.engines.sglang import host_names as names
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter, find_definitions


class VirtualClock:
    """`time` of a release: each look at it is later than the one before, by one."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1)

    def monotonic(self) -> int:
        return next(self._ticks)

    perf_counter = time = monotonic


@dataclass(frozen=True, slots=True)
class RadixClasses:
    """What a run needs for a radix cache: `cache`, whose calls are reported to the mirror, and what it is called with.
    `lifted` says where the class is.
    """

    lifted: LiftedFunction
    cache: Any
    cache_params: Any
    key: Any
    match_params: Any
    evict: Callable[..., Any]


def lift_radix(
    lifter: Lifter,
    given: dict[str, Any],
    counted: Callable[[str, Callable[..., Any]], Callable[..., Any]],
) -> RadixClasses:
    """Lift the radix cache that a server makes by default. DriftError when it makes none of this class."""
    makers = [place for place in names.TREE_MAKERS if lifter.source.exists(place[0])]
    class_name = names.RADIX_CACHE[1]
    if not any(calls(lifter, place, class_name) for place in makers):
        where = " or ".join(f"{name} in {path}" for path, name in makers) or "no function known here"
        raise DriftError(f"{where} makes no {class_name}: the server has {_other_cache(lifter)}")
    lifted = lifter.lift_method(*names.RADIX_CACHE, given)
    return RadixClasses(
        lifted,
        _told(lifted.value, counted),
        lifter.lift_method(*names.CACHE_PARAMS, given).value,
        given[names.RADIX_KEY[1]],
        lifter.lift_method(*names.MATCH_PARAMS, given).value,
        lifter.lift_method(*names.EVICT, given).value,
    )


def _other_cache(lifter: Lifter) -> str:
    """The cache that is made instead, and why it is not run."""
    (path, name), (options, option) = names.UNIFIED_CACHE, names.TREE_CORE
    try:
        line = find_definitions(lifter.module(path), name)[-1].lineno
        assigned = [
            node.value
            for node in ast.walk(lifter.module(options).tree)
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == option
        ]
    except DriftError:
        return "a cache of another class"
    core = [node.value for value in assigned for node in ast.walk(value) if isinstance(node, ast.Constant)]
    cache = f"{name} ({path}:{line})"
    needed = "its tree core and components, lifted, and stubs of what moves KV to the host and to storage"
    if core == ["python"]:
        return f"{cache}, which needs {needed}"
    by_default = f"{option}={', '.join(map(str, core))}"
    return (
        f"{cache}, whose tree is by default ({by_default}) compiled code, for one Python and no source beside it in "
        f"the wheel; the Python tree of its other setting needs {needed}"
    )


def calls(lifter: Lifter, place: tuple[str, str], name: str) -> bool:
    """Whether the function or method at a place calls one of that name."""
    try:
        nodes = find_definitions(lifter.module(place[0]), place[1])
    except DriftError:
        return False
    called = [node.func for definition in nodes for node in ast.walk(definition) if isinstance(node, ast.Call)]
    return any(name == (f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")) for f in called)


def _told(released: Any, counted: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Any:
    """The class with its calls reported to `mirror`, which the instance is given."""
    parts = {method: part for part, method in names.TREE_ENTRIES.items()}
    methods: dict[str, Any] = {}
    for name in (*names.TREE_CALLS, names.TREE_LOCK, names.TREE_UNLOCK):
        if hasattr(released, name):
            method = getattr(released, name)
            methods[name] = _by_the_mirror(
                name, counted("radix cache", counted(parts[name], method) if name in parts else method)
            )
    return type(released.__name__, (released,), methods)


def _by_the_mirror(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def reported(self: Any, *arguments: Any, **named: Any) -> Any:
        return self.mirror.called(name, method, self, *arguments, **named)

    return reported


class ReleaseTree(RadixCache):
    """The radix cache of a release as the engine and the rules see it; a `RadixCache`, which the compiled engine needs
    for. `cache` is the release's, and `call` calls into it.
    """

    def __init__(
        self,
        classes: RadixClasses,
        config: EngineConfig,
        memory: dict[str, Any],
        ledger: SlotLedger,
        call: Callable[..., Any],
    ) -> None:
        super().__init__(config.page_size, _Nowhere(), bigram=config.bigram, watcher=ledger)
        self._classes = classes
        self._ledger = ledger
        self._call = call
        self._calls_open = 0
        self._nodes: dict[Any, tuple[Any, TreeNode]] = {}  # by the release's node: its slots when it was mirrored last
        self._mirrored: list[Entry] = []
        self._held: set[int] = set()
        self.cache = classes.cache.__new__(classes.cache)
        self.cache.mirror = self
        params = classes.cache_params(disable=False, is_eagle=config.bigram, **memory)
        call("radix cache", self.cache.__init__, params)

    def called(self, name: str, method: Callable[..., Any], cache: Any, *arguments: Any, **named: Any) -> Any:
        """Call a method of the cache, and bring the mirror up to date when the outermost is done."""
        self._calls_open += 1
        try:
            answer = method(cache, *arguments, **named)
        finally:
            self._calls_open -= 1
        if name == names.TREE_LOCK:
            self._ledger.locked(self.node_of(*arguments[:1], **named))
        elif name == names.TREE_UNLOCK:
            self._ledger.unlocked(self.node_of(*arguments[:1], **named))
        if not self._calls_open:
            self._update()
        return answer

    def node_of(self, node: Any, **_others: Any) -> TreeNode:
        """The mirror's node of a node of the release."""
        if node not in self._nodes:
            self._nodes[node] = (None, TreeNode(len(self._nodes), None, (), []))
        return self._nodes[node][1]

    def match(self, key: Sequence[int], extra_key: str | None = None) -> Match:
        params = self._classes.match_params(key=self._classes.key(list(key), extra_key or None))
        found = self._call("prefix match", self.cache.match_prefix, params)
        return Match(found.device_indices.tolist(), self.node_of(found.last_device_node))

    def entries(self) -> Iterator[Entry]:
        yield from self._mirrored

    def _update(self) -> None:
        """Read the tree, and report to the ledger what is new in it and what is gone."""
        held: set[int] = set()
        entries: list[Entry] = []
        new: list[tuple[Entry, list[int]]] = []
        waiting: list[tuple[Any, TreeNode | None, tuple[int, ...], int]] = [(self.cache.root_node, None, (), 0)]
        while waiting:
            released, parent, above, start = waiting.pop()
            node = self.node_of(released)
            node.parent, node.lock_ref = parent, released.lock_ref
            if parent is not None:
                self._read(released, node)
                entry = Entry(released.key.extra_key or "", above[:start] + node.tokens, start, node)
                entries.append(entry)
                taken = [slot for slot in node.slots if slot not in self._held]
                if taken or not held.isdisjoint(node.slots):
                    new.append((entry, taken or node.slots))
                held.update(node.slots)
                above, start = entry.tokens, start + len(node.slots)
            waiting += [(child, node, above, start) for child in reversed(released.children.values())]
        gone = self._held - held
        if gone:
            self._ledger.evicted(sorted(gone))
        for entry, taken in new:
            self._ledger.inserted(
                entry.extra_key, entry.tokens, entry.start + len(entry.node.slots) - len(taken), taken
            )
        self._held, self._mirrored = held, entries
        self.total = int(self.cache.total_size())
        self.evictable, self.protected = int(self.cache.evictable_size()), int(self.cache.protected_size())

    def _read(self, released: Any, node: TreeNode) -> None:
        """Slots and tokens of a node that was split, or is new."""
        if self._nodes[released][0] is released.value:
            return
        self._nodes[released] = (released.value, node)
        node.slots = released.value.tolist()
        key = list(released.key.token_ids)
        if key and isinstance(key[0], tuple):  # pairs of tokens
            key = [*(first for first, _ in key), key[-1][1]]
        node.tokens = tuple(key[: len(node.slots) + self.bigram])


class _Nowhere:
    """What the release evicts it frees itself."""

    def free(self, slots: Iterable[int]) -> None:
        raise NotImplementedError
