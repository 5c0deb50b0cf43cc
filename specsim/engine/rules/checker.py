"""Checks the rules of a run while it goes on: the observer of an engine.

What the engine reports becomes a view (`specsim.engine.rules.views`), and every rule that is evaluated after such an
event gets it. A broken rule is recorded with what was expected and what was found, and the run stops there, unless the
rule says that it can go on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from specsim.engine.accounting import Accounting, HostFunctionError, Memory, Observed
from specsim.engine.agents import Race
from specsim.engine.config import EngineConfig
from specsim.engine.device import Device
from specsim.engine.launch import DecodeResult, Launch
from specsim.engine.lifecycle import State
from specsim.engine.memory.allocator import SlotWatcher
from specsim.engine.memory.sessions import SessionSlot
from specsim.engine.observer import Accesses, Observer, RunStopped, Violation
from specsim.engine.request import Request
from specsim.engine.rules import views
from specsim.engine.rules.audit import idle_tree_seen, slots_seen, tree_seen, window_seen
from specsim.engine.rules.device_outputs import DeviceOutputs
from specsim.engine.rules.failures import HOST_EXCEPTION
from specsim.engine.rules.happens_before import HappensBefore
from specsim.engine.rules.ledger import Owner, SlotLedger, is_sound
from specsim.engine.rules.ownership import Account
from specsim.engine.rules.rule import Broken
from specsim.engine.rules.table import RULES, checks_after
from specsim.engine.shallow_copy import shallow_copy
from specsim.verdict import Rule


class Checker(Observer):
    """The rules of one run. `events` is the number of the current event, kept by the engine. The run stops at the
    violation with the signature `stop_at` even where it could go on. A rule that is not among `rules` is switched off.
    """

    def __init__(
        self,
        config: EngineConfig,
        memory: Memory,
        ledger: SlotLedger,
        accounting: Accounting,
        swa_ledger: SlotLedger,
        stop_at: str = "",
        *,
        has_distributions: bool = False,
        rules: tuple[Rule, ...] = RULES,
    ) -> None:
        self._stop_at = stop_at
        self._config = config
        self._memory = memory
        self._ledger = ledger
        self._swa_ledger = swa_ledger
        self._accounting = accounting
        self._rules = rules
        self._checks = checks_after(rules)
        self._table = array("i", memory.rows.buffer)
        self._released: set[tuple[str, int]] = set()
        self._locks = 0
        self._account: Account | None = Account(memory, ledger)
        self._left_at: dict[tuple[str, int], int] = {}  # the relay entry that a request's last launch leaves
        self._outputs = DeviceOutputs(config) if has_distributions else None
        self.violations: list[Violation] = []
        self.events = 0

    def _evaluate(self, view: object) -> None:
        """Every rule that is evaluated after this event. Raises RunStopped at one after which the run cannot go on."""
        for check in self._checks[type(view)]:
            broken = check.check(view)
            if broken is not None:
                self._record(broken)

    def _evaluate_all(self, seen: Iterable[object]) -> None:
        for view in seen:
            self._evaluate(view)

    def _record(self, broken: Broken) -> None:
        expected, actual = str(broken.expected), str(broken.actual)
        violation = Violation(broken.rule, broken.aspect, broken.part, broken.who, expected, actual, self.events)
        if all(violation.signature != known.signature for known in self.violations):
            self.violations.append(violation)
        if not broken.can_go_on or violation.signature == self._stop_at:
            raise RunStopped
        if broken.restores is not None:
            self._accounting.restore(*broken.restores)

    # What ends a run

    def pending(self, reason: str) -> None:
        self._evaluate(views.StillPending(reason))
        raise RunStopped

    def device_raised(self, error: Exception) -> None:
        self._evaluate(views.DeviceRaised(str(error)))
        raise RunStopped

    def host_function_raised(self, error: HostFunctionError) -> None:
        if HOST_EXCEPTION in self._rules:
            self._record(Broken(HOST_EXCEPTION, error.part, "", "no exception", error.text))
        raise RunStopped

    # What the ledgers saw

    def after_memory_calls(self, part: str) -> None:
        if self._ledger.misuses or self._swa_ledger.misuses:
            for misuse, slot in [*self._ledger.misuses, *self._swa_ledger.misuses]:
                self._evaluate(views.SlotMisused(part, misuse, slot))

    def free_group_begin(self) -> None:
        self._ledger.free_group_begin()

    def free_group_end(self) -> None:
        self._ledger.free_group_end()

    def ownership(
        self, part: str, requests: Sequence[Request], sessions: Sequence[str], at_match: bool = False
    ) -> None:
        """The rules look at every slot only where the account does not add up: that takes several times as long."""
        owners = self._owners(requests, sessions)
        memory, ledger, account = self._memory, self._ledger, self._account
        sound = account.is_sound(owners) if account is not None else is_sound(memory, ledger, owners)
        if not sound:
            self._evaluate_all(slots_seen(part, memory, ledger, owners, at_match=at_match))
        if memory.swa is not None:
            self._evaluate_all(window_seen(part, memory, self._swa_ledger.used, owners, list(ledger.tree_slots)))
        if memory.tree is not None:
            self._evaluate_all(tree_seen(part, memory, ledger, owners))

    def _owners(self, requests: Sequence[Request], sessions: Sequence[str]) -> list[Owner]:
        owners: list[Owner] = []
        borrowed = set()
        for request in requests:
            if request.state is State.FINISHED:
                continue
            now = self._accounting.observe(request)
            if now.row is not None:
                owners.append(
                    Owner(request.rid, now.row, now.allocated, now.protected, now.node, now.committed, now.evicted)
                )
                borrowed.add(now.row)
        for session in sessions:
            slot = self._accounting.session_slot(session)
            if slot is not None and slot.row not in borrowed:
                owners.append(
                    Owner(
                        f"session {session}",
                        slot.row,
                        slot.allocated,
                        slot.protected,
                        slot.node,
                        slot.claim,
                        slot.evicted,
                    )
                )
        return owners

    # The radix cache

    def before_tree_calls(self) -> None:
        self._ledger.inserted_to = 0
        self._locks = sum(self._ledger.locks.values())

    def prefix_matched(self, request: Request, reused: int) -> None:
        self._locks_changed(request, "prefix match", 1)
        now, tree = self._accounting.observe(request), self._memory.tree
        assert now.row is not None
        assert tree is not None
        namespaces = {self._ledger.tree_slots.get(slot) for slot in self._memory.rows.read(now.row, 0, reused)}
        tokens = (request.prompt + request.outputs)[:-1]
        found = []
        for _ in range(2):
            count = len(tree.match(tokens, request.turn.extra_key).slots)
            found.append((count, tree.total, tree.evictable, tree.protected))
        self._evaluate(views.PrefixMatched(request, namespaces, *found))

    def inserted(self, request: Request, claim: int, part: str, locks: int) -> None:
        tree = self._memory.tree
        assert tree is not None
        page_size = self._config.page_size
        expected = max(0, claim - self._config.bigram) // page_size * page_size
        tokens = (request.prompt + request.outputs)[:claim]
        held = len(tree.match(tokens, request.turn.extra_key).slots)  # which was used just now: its age stays
        self._evaluate(views.Inserted(part, request, expected, held, self._ledger.inserted_to))
        self._locks_changed(request, part, locks)

    def inserted_nothing(self, request: Request, part: str) -> None:
        self._evaluate(views.NothingToInsert(part, request, self._ledger.inserted_to))

    def _locks_changed(self, request: Request, part: str, change: int) -> None:
        now = sum(self._ledger.locks.values())
        self._evaluate(views.LocksChanged(part, request, self._locks, now, change))

    # Requests

    def waiting(self, request: Request, part: str) -> None:
        self._evaluate(views.Waiting(part, request, self._accounting.observe(request)))

    def extended(self, request: Request) -> None:
        now = self._accounting.observe(request)
        self._evaluate(views.Admitted("extend", request, now, self._memory.rows.width))

    def before_prepare(self, batch: list[Request]) -> None:
        self._evaluate(views.Preparing(batch))
        self._table[:] = self._memory.rows.buffer

    def after_prepare(self, batch: list[Request], before: list[Observed], after: list[Observed]) -> None:
        config, width = self._config, self._memory.rows.width
        table, buffer = self._table, self._memory.rows.buffer
        for request, was, now in zip(batch, before, after, strict=True):
            self._evaluate(views.Prepared("prepare", request, was, now, width, config))
            if now.row is not None:
                new = slice(now.row * width + was.allocated, now.row * width + min(now.allocated, width))
                table[new] = buffer[new]
        if table != buffer:
            changed = [i for i, (was, now) in enumerate(zip(table, buffer, strict=True)) if was != now]
            self._evaluate(views.RowsWritten([(i // width, i % width) for i in changed]))

    def after_append(self, request: Request, kind: str) -> None:
        now = self._accounting.observe(request)
        self._evaluate(views.Appended(kind, request, now, self._memory.rows.width))
        if self._outputs is not None:
            self._evaluate(views.SampledAppended(request))

    def after_finish_check(self, request: Request) -> Observed:
        now = self._accounting.observe(request)
        self._evaluate(views.FinishChecked(request, now))
        return now

    def visible_outputs(self, request: Request) -> None:
        now = self._accounting.observe(request)
        sampling = request.turn.sampling
        if self._config.relaxed_penalties and sampling is not None and sampling.is_penalized:
            return  # what is visible then depends on the schedule
        self._evaluate(views.Answered(request, request.outputs[: now.finished_len], self._config))

    def before_release(self, request: Request) -> None:
        self._evaluate(views.Releasing(request, request.key in self._released))
        self._released.add(request.key)

    # Sessions

    def other_prompt(self, request: Request, expected: str, made: str, follows_retracted: bool) -> None:
        self._evaluate(views.PromptMade(request, expected, made, follows_retracted))

    def session_matched(self, request: Request, claim: int, reused: int | None) -> None:
        self._evaluate(views.SessionMatched(request, claim, reused))

    def session_saved(self, request: Request, kv_ready: int) -> None:
        slot = self._accounting.session_slot(request.turn.session)
        self._evaluate(views.SessionSaved(request, self._accounting.observe(request), slot, kv_ready))
        if slot is not None:
            self.inserted_nothing(request, "session save")
            has_tree = self._memory.tree is not None
            self._evaluate(views.SessionSlotSaved(request, slot, self._memory.rows.width, has_tree))

    def session_aborted(self, request: Request, before: SessionSlot | None) -> None:
        now = self._accounting.session_slot(request.turn.session)
        self._evaluate(views.TurnAborted(request, before, now))

    # Launches and the device

    def at_launch(self, launch: Launch, unresolved: int) -> None:
        rows = [row for part in launch.parts for row in part.rows]
        self._evaluate(views.Launched(launch, rows, unresolved, self._left_at, self._config))
        self._left_at.update([(row.key, row.relay_out) for row in rows])

    def in_order(self, race: Race | None) -> None:
        self._evaluate(views.Queued(race))

    def waits(self, awaited: Launch | None, oldest: Launch | None) -> None:
        if awaited is not None:
            self._evaluate(views.HostWaits(awaited, oldest))

    def after_device(self, launch: Launch, device: Device, expected_start: dict[tuple[str, int], int]) -> None:
        for mismatch in device.mismatches:
            self._evaluate(mismatch)
        if self._outputs is not None:
            self._evaluate_all(self._outputs.fed(launch))
            self._evaluate_all(self._outputs.executed(launch, device))
        self._evaluate(views.Executed(launch, device))
        for step in device.steps:
            start = expected_start.get(step.key, step.start)
            self._evaluate(views.StepExecuted(step, start, device, self._config))

    # Results

    def resolves(self, launch: Launch, oldest: Launch | None) -> None:
        self._evaluate(views.Resolving(launch, oldest))

    def after_resolve(
        self, launch: Launch, result: DecodeResult, before: list[Observed], runs: list[list[int]], live: list[bool]
    ) -> None:
        self._evaluate(views.ResultTaken(launch, runs))
        for i, row in enumerate(launch.rows):
            accept_len = result.accept_lens[i]
            expected = result.next_token_ids[i * result.stride :][:accept_len]
            now = self._accounting.observe(row.request)
            view = views.LiveResult if live[i] else views.StaleResult
            self._evaluate(view(row.request, before[i], now, accept_len, runs[i], expected))
        self._evaluate(views.ResultCounted(launch, result, live))

    def stale_run_taken(self, request: Request) -> None:
        self._evaluate(views.StaleRunTaken(request))

    def run_not_taken(self, rid: str) -> None:
        self._evaluate(views.RunNotTaken(rid))

    def at_idle(self, content: Sequence[int] = (), swa_content: Sequence[int] = ()) -> None:
        memory, ledger = self._memory, self._ledger
        tree, swa = memory.tree, memory.swa
        window_slots = len(self._swa_ledger.used)
        if tree is not None:
            self._evaluate_all(idle_tree_seen(tree, swa, ledger, content, swa_content))
            if swa is not None:
                window_slots -= sum(bool(swa.swa_slots[slot]) for slot in ledger.tree_slots)
        self._evaluate(views.IdlePools(sorted(ledger.used - ledger.tree_slots.keys()), window_slots))
        self._evaluate(views.IdleRows(memory.rows.count - len(memory.rows.free_rows)))

    # Forks

    @property
    def ledger(self) -> SlotLedger:
        return self._ledger

    @property
    def slots(self) -> SlotWatcher:
        return self._ledger

    def accesses(self) -> Accesses:
        return HappensBefore()

    def fork(self) -> Checker:
        """A copy for a run without a radix cache, a sliding window and streams."""
        # The table is what the rows were before a call, and is written anew before each: it may be shared.
        new = shallow_copy(self)
        new._ledger = self._ledger.fork()
        new._account = None  # small scopes are looked at as a whole
        new._released = set(self._released)
        new._left_at = dict(self._left_at)
        new.violations = self.violations[:]
        return new

    def attach(self, memory: Memory, accounting: Accounting) -> None:
        self._memory, self._accounting = memory, accounting

    def state(self, running: Sequence[Request]) -> tuple[Any, ...]:
        return (
            [self._left_at.get(request.key) for request in running],
            self._ledger.state(),
            sorted(self._released),
            [violation.signature for violation in self.violations],
        )
