"""What an engine's state is at each event of a schedule, for a page that goes through them.

A state and what an event changed of it are as in `specsim.tiers.states`. A slot that nobody ever had is left out. The
name of "draft 2 of r0" is that of the KV of a node which was not accepted.

A draft tree has its request `rid`, the position `start` of its root, of each node `parents` (-1 for the root's),
`tokens`, what the target says next (`targets`), `positions`, `masks` (a text of 0 and 1, a character for each node) and
how many positions of the prefix it reads (`reads_prefix`), the accepted `path`, the `bonus` token and its `slots`.

The state of an event is what holds when the next one begins. Most events are logged when they have happened; some when
they begin (`_BEGINS`), and the state of those is taken at the next call into the accounting that is another event's.
Nothing of this touches a choice: the digest is that of a run without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specsim.choices.chooser import Chooser
from specsim.engine import device as device_module
from specsim.engine import model
from specsim.engine.accounting import Accounting, Memory
from specsim.engine.launch import LaunchRow, Sequence
from specsim.engine.lifecycle import State
from specsim.engine.loop import Engine
from specsim.engine.rules.checked_engine import checked_parts
from specsim.engine.rules.checker import Checker
from specsim.engine.scalar_tree import Attention
from specsim.engine.workload import Scenario
from specsim.tiers.states import Sections, changed, ranges

# Events that are logged when they begin, and the calls that are the beginning of another one.
_BEGINS = frozenset({"abort", "timeout", "drop", "finish", "resolve", "retract"})
_OTHERS = frozenset({"arrive", "extend_alloc", "match_prefix", "session_match", "prepare", "retract", "retract_all"})
_OBSERVED = ("committed", "allocated", "protected", "evicted", "launches", "verify_count", "accepted_drafts")
_NOTHING: list[int] = []
_BEAT = 100


class RecordingEngine(Engine):
    """An engine that notes its state at each event. It runs in Python: what it notes of trees it takes from within the
    device, which compiled code does not allow.
    """

    def __init__(
        self,
        scenario: Scenario,
        chooser: Chooser,
        memory: Memory,
        accounting: Accounting,
        observer: Checker,
    ) -> None:
        announced: Any = _Announced(accounting, self._settle)
        super().__init__(scenario, chooser, memory, announced, observer)
        self._ledger = observer.ledger
        self._changes: list[Sections] = []
        self._launch_names: dict[str, dict[str, Any]] = {}
        self._trees: dict[int, list[dict[str, Any]]] = {}
        self._drafted: dict[tuple[str, int], dict[str, Any]] = {}
        self._named: dict[int, str] = {}
        self._named_to: dict[tuple[str, int], int] = {}
        self._before: Sections = {}
        self._now: Sections = {}
        self._begins = False
        self.on_events: Callable[[], None] = lambda: None  # called now and then: noting takes time
        self.log.listener = self
        self._run_target = self.launches.device._run_target
        self.launches.device._run_target = self._watch_target  # type: ignore[method-assign]

    def recording(self) -> dict[str, Any]:
        """What was noted, as JSON takes it, when the run is over."""
        config = self.config
        streams = ("schedule", "plan", "forward", "copy")
        changes = [*self._changes, changed(self._before, self._now)] if self.log.events else []
        return {
            "agents": ["host", *(streams if config.streams else ("device",))],
            "pool_slots": config.pool_slots,
            "page_size": config.page_size,
            "rows": config.rows,
            "row_width": self.memory.rows.width,
            "launches": self._launch_names,
            "trees": {str(number): trees for number, trees in self._trees.items()},
            "changes": changes,
        }

    def step(self, of_device: bool) -> None:
        super().step(of_device)
        if self.log.events:
            self._now = self._state()
        self._begins = False

    def _settle(self) -> None:
        """Another event begins: what has happened since is that of the last one."""
        if self._begins:
            self._begins = False
            self._now = self._state()

    def before_event(self) -> None:
        self._settle()
        if self.log.events:
            self._changes.append(changed(self._before, self._now))
            self._before = self._now

    def after_event(self, event: str) -> None:
        if len(self.log.events) % _BEAT == 0:
            self.on_events()
        if event == "launch":
            for part in self.launches.unresolved[-1].parts:
                self._launch_names[part.name] = {"kind": part.kind, "requests": [row.request.rid for row in part.rows]}
        elif event == "verify":
            self._note_trees()
        self._now = self._state()
        self._begins = event in _BEGINS

    # Trees

    def _watch_target(self, row: LaunchRow, sequence: Sequence) -> tuple[list[int], list[int], list[int]]:
        """Run the target over a tree, and keep what each node was given."""
        nodes: list[tuple[int, int]] = []

        class Watched(Attention):
            def node(self, token: int, mask: int, position: int) -> int:
                nodes.append((mask, position))
                return super().node(token, mask, position)

        vars(device_module)["Attention"] = Watched
        try:
            tokens, prints, targets = self._run_target(row, sequence)
        finally:
            vars(device_module)["Attention"] = Attention
        start, plan = len(sequence.chain), row.plan
        assert plan is not None
        self._drafted[row.key] = {
            "rid": row.key[0],
            "start": start,
            "parents": list(plan.parents),
            "tokens": tokens,
            "targets": targets,
            "positions": [position for _, position in nodes],
            "reads_prefix": [(mask & (1 << start) - 1).bit_count() for mask, _ in nodes],
            "masks": [f"{mask >> start:0{len(nodes)}b}"[::-1][: len(nodes)] for mask, _ in nodes],
            "prints": prints,
        }
        return tokens, prints, targets

    def _note_trees(self) -> None:
        self._name_sequences()
        trees = self._trees.setdefault(len(self.log.events) - 1, [])
        for step in self.launches.device.steps:
            drafted = self._drafted.pop(step.key, None)
            if drafted is None:
                continue
            for node, fingerprint in enumerate(drafted.pop("prints")):
                self._named.setdefault(fingerprint, f"draft {node} of {step.key[0]}")
            trees.append({**drafted, "path": step.path, "bonus": step.bonus, "slots": step.written})

    # The state

    def _name_sequences(self) -> None:
        for key, sequence in self.launches.device.sequences.items():
            start = self._named_to.get(key, 0)
            for position, fingerprint in enumerate(sequence.chain[start:], start):
                self._named[fingerprint] = self._named.get(fingerprint, f"{key[0]}@{position}")
            self._named_to[key] = len(sequence.chain)

    def _state(self) -> Sections:
        self._name_sequences()
        memory, ledger = self.memory, self._ledger
        found: Sections = {"slots": {}, "cells": {}, "owners": {}, "lists": self._lists()}
        slots: dict[int, list[Any]] = {}
        if memory.tree is not None:
            for entry in memory.tree.entries():
                chain = model.fingerprints(list(entry.tokens))
                for at, slot in enumerate(entry.node.slots, entry.start):
                    slots[slot] = self._slot("tree", slot, at, chain)
        for request in self.requests.everybody:
            seen = self.accounting.observe(request)
            fields = {
                "state": request.state.value,
                "incarnation": request.incarnation,
                "pending": request.pending,
                "abort_wanted": request.abort_wanted,
                "extend_len": request.extend_len,
                "resolved": request.resolved,
                "KVready": request.kv_ready,
                "row": seen.row,
                "finished_len": seen.finished_len,
                "histogram": list(seen.histogram),
                **{name: getattr(seen, name) for name in _OBSERVED},
                "prompt": list(request.prompt),
                "outputs": list(request.outputs),
            }
            found[f"request {request.rid}"] = fields
            if seen.row is None or request.state is State.FINISHED:
                continue
            sequence = self.launches.device.sequences.get(request.key)
            chain = sequence.chain if sequence is not None else []
            lengths = [seen.committed, seen.allocated, seen.protected, request.kv_ready]
            self._take(found, slots, request.rid, seen.row, lengths, chain)
        rows = {owner[0] for owner in found["owners"].values()}
        for session in self.requests.open_sessions:
            held = self.accounting.session_slot(session)
            if held is not None and held.row not in rows:
                chain = model.fingerprints(self.requests.histories.get(session, []))[: held.claim]
                lengths = [held.claim, held.allocated, held.protected, held.claim]
                self._take(found, slots, f"session {session}", held.row, lengths, chain)
        page_size = memory.allocator.page_size
        pages = {slot // page_size: leaf[0] for slot, leaf in slots.items()} if page_size > 1 else {}
        for slot in ledger.used | ledger.in_group:
            if slot not in slots:
                owner = "freed" if slot in ledger.in_group else pages.get(slot // page_size, "leaked")
                slots[slot] = self._slot(owner, slot)
        for slot, content in enumerate(self.launches.device.content[1:], 1):
            if content and slot not in slots:
                slots[slot] = self._slot("", slot)
        found["slots"] = {str(slot): slots[slot] for slot in sorted(slots)}
        width = memory.rows.width
        for at, slot in enumerate(memory.rows.buffer):
            if slot:
                found["cells"][f"{at // width},{at % width}"] = slot
        return found

    def _take(
        self, found: Sections, slots: dict[int, list[Any]], name: str, row: int, lengths: list[int], chain: list[int]
    ) -> None:
        """Note the slots of somebody who owns a row; `lengths` are committed, allocated, protected and KVready."""
        found["owners"][name] = [row, *lengths]
        allocated, protected = lengths[1], lengths[2]
        for position, slot in enumerate(self.memory.rows.read(row, 0, allocated)):
            if position < protected and slot in slots:
                continue
            known = slots.get(slot)
            owner = name if known is None or known[0] == name else f"{known[0]} and {name}"
            slots[slot] = self._slot(owner, slot, position, chain)

    def _slot(self, owner: str, slot: int, position: int = -1, chain: list[int] = _NOTHING) -> list[Any]:
        """A slot's owner, position, and names of what it holds and should hold: "" for nothing."""
        content = self.launches.device.content
        holds = content[slot] if 0 <= slot < len(content) else 0
        right = chain[position] if 0 <= position < len(chain) else 0
        name = self._named.get(right, "")  # KV that no launch has computed yet is not due
        return [owner, position, name if name and holds == right else self._name(holds), name]

    def _name(self, fingerprint: int) -> str:
        if not fingerprint:
            return ""
        return self._named.get(fingerprint) or f"#{fingerprint:016x}"[:9]

    def _lists(self) -> dict[str, Any]:
        memory = self.memory
        found: dict[str, Any] = {
            "free slots": memory.allocator.available,
            "free list": ranges(memory.allocator.free_slots),
            "freed in the open group": ranges(memory.allocator.pending),
            "free rows": ranges(memory.rows.free_rows),
            "waiting": [request.rid for request in self.requests.waiting],
            "running": [request.rid for request in self.batch.running],
            "joining": [request.rid for request in self.batch.merging],
            "in flight": [launch.name for launch in self.launches.unresolved],
            "done, not taken": [launch.name for launch in self.launches.unresolved if launch.done],
        }
        if memory.tree is not None:
            found["slots of the tree"] = memory.tree.total
            found["evictable"] = memory.tree.evictable
        if memory.swa is not None:
            found["free window slots"] = memory.swa.swa.available
        return found


def recording_engine(
    scenario: Scenario,
    chooser: Chooser,
    accounting: Callable[[Memory], Accounting],
    stop_at: str = "",
) -> RecordingEngine:
    """As `checked_engine`, with an engine that notes its state."""
    return RecordingEngine(scenario, chooser, *checked_parts(scenario, accounting, stop_at))


class _Announced:
    """An accounting; `begins` is called before a call that is the beginning of another event."""

    def __init__(self, accounting: Accounting, begins: Callable[[], None]) -> None:
        self._accounting = accounting
        self._begins = begins

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._accounting, name)
        if name not in _OTHERS:
            return value

        def call(*arguments: Any) -> Any:
            self._begins()
            return value(*arguments)

        return call
