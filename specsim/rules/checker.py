"""Holds the rules against a run: one method for each kind of event, called by the engine.

A broken rule is recorded with what was expected and what was seen. Where a rule says that something may not change,
the accounting is put back to what it was and the run goes on, so that one defect does not hide another; after any
other rule the run stops.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from specsim.engine.accounting import Accounting, Memory, Observed
from specsim.engine.agents import Race
from specsim.engine.config import EngineConfig
from specsim.engine.copies import shallow
from specsim.engine.device import Device
from specsim.engine.launch import DecodeResult, Launch
from specsim.engine.lifecycle import State
from specsim.engine.memory.allocator import SlotWatcher, ceil_to
from specsim.engine.memory.sessions import SessionSlot
from specsim.engine.model import VOCABULARY, extend
from specsim.engine.observer import Accesses, RunStopped, Violation
from specsim.engine.request import Request
from specsim.rules.distributions import Laws, after_append
from specsim.rules.happens_before import HappensBefore
from specsim.rules.ledger import Owner, SlotLedger, is_sound, ownership_problem, window_problem
from specsim.rules.oracle import outputs_of, unending_outputs_of
from specsim.rules.ownership import Account
from specsim.rules.radix_tree import tree_problem, tree_problem_at_idle, tree_window_problem, window_problem_at_idle
from specsim.rules.table import BY_ID

_OBSERVABLES = tuple(each.name for each in fields(Observed))


class Checker:
    """The rules, for one run. `events` is the number of the current event, kept by the engine. The run stops at the
    violation with the signature `stop_at` even where it could go on.
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
        has_laws: bool = False,
    ) -> None:
        self._stop_at = stop_at
        self._config = config
        self._memory = memory
        self._ledger = ledger
        self._swa_ledger = swa_ledger
        self._accounting = accounting
        self._table = array("i", memory.rows.buffer)
        self._released: set[tuple[str, int]] = set()
        self._locks = 0
        self._account: Account | None = Account(memory, ledger)
        self._left_at: dict[tuple[str, int], int] = {}  # the relay entry that a request's last launch leaves
        self._laws = Laws(config) if has_laws else None
        self.violations: list[Violation] = []
        self.events = 0

    def broken(
        self,
        rule_id: str,
        part: str,
        who: str,
        expected: object,
        actual: object,
        *,
        aspect: str = "",
        go_on: bool = False,
    ) -> bool:
        """Record a broken rule; stop the run unless it can go on. True: the rule is held."""
        violation = Violation(BY_ID[rule_id], aspect, part, who, str(expected), str(actual), self.events)
        if all(violation.signature != known.signature for known in self.violations):
            self.violations.append(violation)
        if not go_on or violation.signature == self._stop_at:
            raise RunStopped
        return True

    def hold(self, holds: bool, rule_id: str, part: str, who: str, expected: object, actual: object) -> None:
        if not holds:
            self.broken(rule_id, part, who, expected, actual)

    # What the ledger saw

    def after_memory_calls(self, part: str) -> None:
        """Rules that the ledger watches; called after every call into the accounting."""
        if self._ledger.broken or self._swa_ledger.broken:
            rule_id, expected, actual = [*self._ledger.broken, *self._swa_ledger.broken][0]
            self.broken(rule_id, part, "", expected, actual)

    def free_group_begin(self) -> None:
        self._ledger.free_group_begin()

    def free_group_end(self) -> None:
        self._ledger.free_group_end()

    def ownership(
        self, part: str, requests: Sequence[Request], sessions: Sequence[str], at_match: bool = False
    ) -> None:
        """Every slot and row has one owner or is free."""
        owners = self._owners(requests, sessions)
        account = self._account
        sound = account.is_sound(owners) if account is not None else is_sound(self._memory, self._ledger, owners)
        problem = None if sound else ownership_problem(self._memory, self._ledger, owners)
        if problem is not None:
            rule_id, expected, actual = problem
            if at_match and rule_id in ("I13", "I14"):
                self.broken("I54", part, "", expected, actual, aspect="leak")
            self.broken(rule_id, part, "", expected, actual)
        if self._memory.swa is not None:
            problem = window_problem(self._memory, self._swa_ledger.used, owners, self._ledger.tree_slots)
            if problem is not None:
                self.broken(problem[0], part, "", *problem[1:])
        if self._memory.tree is not None:
            broken = tree_problem(self._memory.tree, self._memory.rows, self._ledger, owners)
            if broken is None and self._memory.swa is not None:
                broken = tree_window_problem(self._memory.tree, self._memory.swa, self._ledger)
            if broken is not None:
                self.broken(broken[0], part, *broken[1:])

    def _owners(self, requests: Sequence[Request], sessions: Sequence[str]) -> list[Owner]:
        owners: list[Owner] = []
        borrowed = set()
        for request in requests:
            if request.state is State.FINISHED:
                continue
            seen = self._accounting.observe(request)
            if seen.row is not None:
                owners.append(
                    Owner(
                        request.rid, seen.row, seen.allocated, seen.protected, seen.node, seen.committed, seen.evicted
                    )
                )
                borrowed.add(seen.row)
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
        """What a request finds in the tree is of its own namespace, and is found again."""
        self._locks_changed(request, 1, "I25", "prefix match")
        now = self._accounting.observe(request)
        assert now.row is not None
        namespaces = {self._ledger.tree_slots.get(slot) for slot in self._memory.rows.read(now.row, 0, reused)}
        own = request.turn.extra_key
        self.hold(namespaces <= {own}, "I28", "prefix match", request.rid, f"slots of {own!r}", namespaces)
        tree, tokens = self._memory.tree, (request.prompt + request.outputs)[:-1]
        assert tree is not None
        seen = []
        for _ in range(2):
            found = len(tree.match(tokens, request.turn.extra_key).slots)
            seen.append((found, tree.total, tree.evictable, tree.protected))
        right = f"(found, total, evictable, locked) {seen[0]}"
        self.hold(seen[0] == seen[1], "I56", "prefix match", request.rid, right, seen[1])

    def inserted(self, request: Request, claim: int, part: str, locks: int, rule_id: str) -> None:
        """The tree holds whole pages of the first `claim` tokens of a request, and its locks changed as they may."""
        tree = self._memory.tree
        assert tree is not None
        page_size = self._config.page_size
        right = max(0, claim - self._config.bigram) // page_size * page_size
        tokens = (request.prompt + request.outputs)[:claim]
        held = len(tree.match(tokens, request.turn.extra_key).slots)  # which was used just now: its age stays
        fits = held == right and self._ledger.inserted_to in (0, right)
        self.hold(fits, "I29", part, request.rid, f"{right} positions in the tree", f"{held} positions")
        self._locks_changed(request, locks, rule_id, part)

    def inserted_nothing(self, request: Request, part: str) -> None:
        to = self._ledger.inserted_to
        self.hold(to == 0, "I29", part, request.rid, "nothing inserted", f"positions up to {to}")

    def _locks_changed(self, request: Request, by: int, rule_id: str, part: str) -> None:
        now = sum(self._ledger.locks.values())
        self.hold(now == self._locks + by, rule_id, part, request.rid, f"{self._locks + by} locks", now)

    # Preparing and launching

    def extended(self, request: Request) -> None:
        """A request that was admitted has a row, and its lengths are in order."""
        now = self._accounting.observe(request)
        self.hold(now.row is not None, "I18", "extend", request.rid, "a row", "none")
        self._lengths(request, now, "extend")

    def before_prepare(self, batch: list[Request]) -> None:
        for request in batch:
            if request.state is State.FINISHED:
                self.broken("I36", "schedule", request.rid, "a live request", request.state.value)
        self._table[:] = self._memory.rows.buffer

    def after_prepare(self, batch: list[Request], before: list[Observed], after: list[Observed]) -> None:
        """Only the batch's rows changed, in the columns that were newly allocated, and lengths are in order."""
        width = self._memory.rows.width
        table, buffer = self._table, self._memory.rows.buffer
        for request, was, now in zip(batch, before, after, strict=True):
            if now.allocated < was.allocated:
                least, seen = f"allocated at least {was.allocated}", f"allocated {now.allocated}"
                self.broken("I08", "prepare", request.rid, least, seen)
            if now.evicted < was.evicted:
                self.broken("I62", "prepare", request.rid, f"at least {was.evicted}", now.evicted)
            most = max(was.allocated, request.kv_ready + 2 * self._config.alloc_len)
            if now.allocated > ceil_to(most, self._config.page_size):
                expected = f"allocated {most} at most, rounded up to pages"
                self.broken("S5", "prepare", request.rid, expected, now.allocated, go_on=True)
            if now.launches != was.launches + 1:
                self.broken("I11", "prepare", request.rid, f"{was.launches + 1} launches", now.launches)
            if now.row is not None:
                window = slice(now.row * width + was.allocated, now.row * width + min(now.allocated, width))
                table[window] = buffer[window]
            self._lengths(request, now, "prepare")
        if table != buffer:
            at = next(i for i, (a, b) in enumerate(zip(table, buffer, strict=True)) if a != b)
            self.broken(
                "I20", "prepare", "", "other entries unchanged", f"row {at // width}, column {at % width} is written"
            )

    def at_launch(self, launch: Launch, unresolved: int) -> None:
        rows = [row for part in launch.parts for row in part.rows]
        keys = [row.key for row in rows]
        self.hold(len(set(keys)) == len(keys), "I36", "schedule", launch.name, "each request once", keys)
        for row in () if self._config.late_results else rows:
            if row.request.state is State.FINISHED:
                self.broken("I36", "schedule", row.request.rid, "a live request", row.request.state.value)
        for row in launch.verifies.rows if launch.verifies else ():
            if row.request.state is State.FINISHED:  # its entry was given up
                continue
            left = self._left_at.get(row.key)
            if row.relay_in != left:
                self.broken("I52", "relay", row.request.rid, f"relay entry {left}", row.relay_in)
        self._left_at.update((row.key, row.relay_out) for row in rows)
        self.hold(unresolved <= 2, "I35", "schedule", launch.name, "at most two unresolved launches", unresolved)

    def in_order(self, race: Race | None) -> None:
        """What streams share is touched in an order that their waits fix."""
        if race is not None:
            kind, which, one, two = race
            expected = f"an order of {one} and {two}"
            self.broken("S2", "streams", two.name, expected, f"none on {kind} {which}", aspect=kind)

    def waits(self, awaited: Launch | None, oldest: Launch | None) -> None:
        name = awaited.name if awaited else ""
        self.hold(awaited is None or awaited is oldest, "S6", "loop", name, "the oldest launch", name)

    # The device

    def after_device(self, launch: Launch, device: Device, expected_start: dict[tuple[str, int], int]) -> None:
        """What a launch read, wrote and accepted."""
        for rule_id, part, who, expected, actual in device.broken:
            self.broken(rule_id, part, who, expected, actual)
        if self._laws is not None:
            for problem in self._laws.fed(launch):
                self.broken(*problem, go_on=True)
            for problem in self._laws.after_device(launch, device):
                self.broken(*problem)
        if device.pad_writes and any(device.pad_writes):
            self.broken("K3", "padding", launch.name, "writes of slot 0", f"slot {max(device.pad_writes)} is written")
        verifies = launch.verifies
        if verifies is not None and verifies.result is not None:
            counts = (len(verifies.result.accept_lens), len(verifies.result.next_token_ids))
            own = (len(verifies.rows), len(verifies.rows) * verifies.result.stride)
            self.hold(counts == own, "K3", "padding", launch.name, f"(requests, tokens) {own}", counts)
        for error in device.content_errors:
            self.broken(
                "I05",
                "memory",
                error.key[0],
                f"the KV of position {error.position}",
                f"slot {error.slot} holds something else",
            )
        if verifies is not None:
            meets = ["draft", "verify", "draft extend"]
            self.hold(device.collectives == meets, "S8", "verify", launch.name, meets, device.collectives)
        for key, left in device.relayed:
            if left is None or left.key != key:
                whose = "nobody" if left is None else f"{left.key[0]}, incarnation {left.key[1]}"
                self.broken("I49", "relay", key[0], f"the entry of {key[0]}, incarnation {key[1]}", whose)
        for key, have, need in device.short_rows:
            part = "prepare" if verifies and key in [row.key for row in verifies.rows] else "extend"
            self.broken("I07", part, key[0], f"{need} positions allocated", have)
        for wrong in device.wrong_slots:
            self.broken("I45", wrong.part, wrong.key[0], f"slots {wrong.right}", wrong.seen)
        for step in device.steps:
            who = step.key[0]
            start = expected_start.get(step.key, step.start)
            if step.start != start:
                self.broken("I06", "relay", who, f"start at {start}", step.start)
            on_path = all(step.parents[child] == node for node, child in pairwise(step.path))
            self.hold(step.path[0] == 0 and on_path, "I41", "verify", who, "a path from the root", step.path)
            self.hold(step.bonus == step.tokens[-1], "I42", "bonus", who, step.tokens[-1], step.bonus)
            chain = device.sequences[step.key].chain
            length = step.start + len(step.path)
            if len(chain) != length:
                self.broken("I46", "verify", who, f"length {length}", len(chain))
            if self._config.topk > 1:  # a chain's masks show in its tokens
                fingerprint = extend(chain[step.start - 1], step.root)
                for token in step.tokens[:-1]:
                    fingerprint = extend(fingerprint, token)
                self.hold(chain[-1] == fingerprint, "M1", "tree", who, "what the path's tokens make", "something else")
            said = 0 <= min(step.tokens) <= max(step.tokens) < VOCABULARY
            self.hold(said, "K4", "verify", who, f"tokens below {VOCABULARY}", step.tokens)
            right_slots = list(step.slots[step.start : step.start + len(step.parents)])
            written = list(step.written[: len(step.parents)])
            self.hold(written == right_slots, "I45", "verify locations", who, f"writes of slots {right_slots}", written)
            for offset in range(len(step.path)):
                position = step.start + offset
                held = device.content[step.slots[position]] if position < len(step.slots) else None
                if held != chain[position]:
                    right = f"the KV of the accepted token at position {position}"
                    self.broken("I43", "move", who, right, "another")

    # Results

    def resolves(self, launch: Launch, oldest: Launch | None) -> None:
        self.hold(launch is oldest, "I35", "loop", launch.name, "the oldest launch", launch.name)

    def after_resolve(
        self, launch: Launch, result: DecodeResult, before: list[Observed], runs: list[list[int]], live: list[bool]
    ) -> None:
        """Runs are the right tokens; live requests are counted; stale results change nothing."""
        self.hold(len(runs) == len(launch.rows), "I34", "resolve", launch.name, len(launch.rows), len(runs))
        for i, row in enumerate(launch.rows):
            accept_len = result.accept_lens[i]
            right = result.next_token_ids[i * result.stride :][:accept_len]
            if runs[i] != right:
                self.broken("I34", "resolve", row.request.rid, right, runs[i])
            now = self._accounting.observe(row.request)
            if live[i]:
                self._live_result(row.request, before[i], now, accept_len)
            else:
                self._stale_result(row.request, before[i], now)
        counted = sum(accept_len - 1 for accept_len, alive in zip(result.accept_lens, live, strict=True) if alive)
        if result.accepted_drafts != counted:
            stale = sum(not alive for alive in live)
            self.broken(
                "S3",
                "resolve",
                launch.name,
                f"{counted} accepted drafts of live requests",
                f"{result.accepted_drafts}, with those of {stale} stale ones",
                go_on=True,
            )

    def _live_result(self, request: Request, was: Observed, now: Observed, accept_len: int) -> None:
        counts = (was.verify_count + 1, was.accepted_drafts + accept_len - 1)
        seen = (now.verify_count, now.accepted_drafts)
        if seen != counts:
            self.broken("I33", "resolve", request.rid, f"(verify count, accepted drafts) {counts}", seen)
        total = (sum(now.histogram), sum([i * n for i, n in enumerate(now.histogram)]))
        if total != counts:
            self.broken("I33", "resolve", request.rid, f"a histogram of {counts}", f"{now.histogram}")

    def _stale_result(self, request: Request, was: Observed, now: Observed) -> None:
        finished = request.state is State.FINISHED
        changed = [name for name in _OBSERVABLES if getattr(was, name) != getattr(now, name)]
        if finished and changed == ["committed"] and now.committed < was.committed:
            changed = []  # it gives back a position that it had claimed for this very launch
        if changed:
            recorded = self.broken(
                "I31" if finished else "I32",
                "resolve",
                request.rid,
                ", ".join(f"{name} {getattr(was, name)}" for name in changed),
                ", ".join(f"{name} {getattr(now, name)}" for name in changed),
                go_on=True,
            )
            if recorded:
                self._accounting.restore(request, was)

    def after_append(self, request: Request, kind: str) -> None:
        """Outputs and claim of a live request, after a result."""
        expected = request.outputs_before + 1 + request.resolved
        if len(request.outputs) != expected:
            self.broken("I03", kind, request.rid, f"{expected} outputs", len(request.outputs))
        now = self._accounting.observe(request)
        allowed = (request.honest_len, request.kv_ready)
        if now.committed not in allowed:
            self.broken(
                "I04",
                kind,
                request.rid,
                f"a claim of {' or '.join(map(str, sorted(set(allowed))))}",
                now.committed,
                aspect="short" if now.committed < min(allowed) else "long",
            )
        self._lengths(request, now, kind)
        if self._laws is not None:
            for problem in after_append(request):
                self.broken(*problem)

    def after_finish_check(self, request: Request) -> Observed:
        """Who finishes does so for a reason, and who is to abort does. Returns what the accounting says."""
        now = self._accounting.observe(request)
        if now.finished_len is not None:
            most = min(len(request.outputs), request.turn.max_new_tokens)
            holds = 0 <= now.finished_len <= most
            self.hold(holds, "I10", "finish check", request.rid, f"0 to {most}", now.finished_len)
        if request.abort_wanted:
            self.hold(now.finished, "I38", "finish check", request.rid, "finished by its abort", "still running")
        elif now.finished:
            aborted = now.finished_len is None and len(request.outputs) < request.turn.max_new_tokens
            self.hold(not aborted, "I39", "finish check", request.rid, "finished at its end", "aborted")
        return now

    def visible_outputs(self, request: Request) -> None:
        """What the client sees is what decoding one token after the other gives."""
        now = self._accounting.observe(request)
        sampling = request.turn.sampling
        if self._config.relaxed_penalties and sampling is not None and sampling.is_penalized:
            return
        visible = request.outputs[: now.finished_len]
        longest = self._config.context_len
        total = len(request.prompt) + len(visible)
        self.hold(
            request.abort_wanted or total <= longest, "S7", "arrive", request.rid, f"{longest} tokens at most", total
        )
        right = unending_outputs_of(request, len(visible)) if request.abort_wanted else outputs_of(request)
        if visible != right:
            same = next((i for i, (a, b) in enumerate(zip(visible, right, strict=False)) if a != b), None)
            if same is None:
                aspect = "long" if len(visible) > len(right) else "short"
                expected, actual = f"{len(right)} tokens", f"{len(visible)} tokens"
            else:
                aspect, expected, actual = "token", f"output {same} = {right[same]}", f"output {same} = {visible[same]}"
            self.broken("I40", "finish check", request.rid, expected, actual, aspect=aspect, go_on=same is None)

    # Memory given back

    def before_release(self, request: Request) -> None:
        once = request.key not in self._released
        self.hold(once, "I37", "release", request.rid, "one release", "a second one")
        self._released.add(request.key)

    def after_retract(self, request: Request) -> None:
        now = self._accounting.observe(request)
        self.hold(now.launches == 0, "I11", "retract", request.rid, "0 launches", now.launches)
        self.waiting(request, "retract")

    def waiting(self, request: Request, part: str) -> None:
        now = self._accounting.observe(request)
        holds = (now.row, now.committed, now.allocated) == (None, 0, 0)
        seen = f"row {now.row}, committed {now.committed}, allocated {now.allocated}"
        self.hold(holds, "I02", part, request.rid, "no row, committed 0, allocated 0", seen)

    def session_saved(self, request: Request, kv_ready: int) -> None:
        """The session keeps what the client saw, as far as its KV is written or being written."""
        slot = self._accounting.session_slot(request.turn.session)
        now = self._accounting.observe(request)
        visible = len(request.outputs) if now.finished_len is None else now.finished_len
        keep = min(len(request.prompt) + visible, kv_ready)
        if slot is None:
            self.broken("I53", "session save", request.rid, f"a claim of {keep}", "no memory kept")
            return
        if slot.claim != keep:
            self.broken(
                "I53",
                "session save",
                request.rid,
                f"a claim of {keep}",
                slot.claim,
                aspect="short" if slot.claim < keep else "long",
            )
        self.inserted_nothing(request, "session save")
        self.hold(
            slot.protected <= slot.claim and (slot.node is None) == (self._memory.tree is None),
            "I55",
            "session save",
            request.rid,
            f"a lock, and at most {slot.claim} protected",
            f"{'no' if slot.node is None else 'a'} lock, {slot.protected} protected",
        )
        self.hold(
            0 <= slot.claim <= slot.allocated <= self._memory.rows.width,
            "I01",
            "session save",
            request.rid,
            "claim <= allocated",
            f"claim {slot.claim}, allocated {slot.allocated}",
        )

    def session_aborted(self, request: Request, before: SessionSlot | None) -> None:
        """A turn that is aborted while it waits leaves its session as it was, and one that ran leaves nothing."""
        now = self._accounting.session_slot(request.turn.session)
        expected, seen = (
            "nothing" if slot is None else f"row {slot.row}, a claim of {slot.claim}, {slot.allocated} allocated"
            for slot in (before, now)
        )
        self.hold(expected == seen, "I57", "session save", request.rid, expected, seen)

    def session_matched(self, request: Request, claim: int, reused: int) -> None:
        # A turn that was retracted is computed with the outputs that it had.
        right = min(claim, len(request.prompt) + len(request.outputs) - 1)
        expected = f"{right} positions reused"
        if reused > right:
            self.broken("I54", "session match", request.rid, expected, reused, aspect="reuse")
        if reused < right:  # what is not reused is computed again
            self.broken("S4", "session match", request.rid, expected, reused, go_on=True)

    def session_left(self, request: Request, claim: int) -> None:
        """A turn with memory of its session does without it. One that is to abort may: it leaves the session as it
        is.
        """
        if not request.abort_wanted:
            self.broken(
                "S4",
                "session match",
                request.rid,
                f"{claim} positions reused",
                "the turn does without its session",
                aspect="left",
                go_on=True,
            )

    def at_idle(self, content: Sequence[int] = (), swa_content: Sequence[int] = ()) -> None:
        """Nothing runs and no session is open. `content` and `swa_content` are the device's."""
        tree, swa = self._memory.tree, self._memory.swa
        lost = len(self._swa_ledger.used)
        if tree is not None:
            broken = tree_problem_at_idle(tree, self._ledger, content)
            if swa is not None and broken is None:
                broken = window_problem_at_idle(tree, swa, swa_content)
                lost -= sum(bool(swa.swa_slots[slot]) for slot in self._ledger.tree_slots)
            if broken is not None:
                self.broken(broken[0], "tree insert", *broken[1:])
        used = sorted(self._ledger.used - self._ledger.tree_slots.keys())
        self.hold(
            not used, "I24", "release", "", "no slot in anybody's hands", f"{len(used)} slots, the first {used[:1]}"
        )
        self.hold(not lost, "I15", "release", "", "no window slot in anybody's hands", f"{lost} slots")
        rows = self._memory.rows
        held = rows.count - len(rows.free_rows)
        self.hold(held == 0, "I24", "release", "", "no row in anybody's hands", f"{held} rows")

    def _lengths(self, request: Request, now: Observed, part: str) -> None:
        width = self._memory.rows.width
        if now.row is not None and not 0 <= now.committed <= now.allocated <= width:
            expected = f"0 <= committed <= allocated <= {width}"
            seen = f"committed {now.committed}, allocated {now.allocated}"
            self.broken("I01", part, request.rid, expected, seen)

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
        new = shallow(self)
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
