"""Every rule of the accounting tier fires: each is shown a run in which exactly its promise is broken.

A sabotage is a small change of the accounting, the memory, the device or the loop. Schedules of the default swarm are
run until a rule breaks, and the first that does must be the one that the sabotage is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from specsim.check.checker import Violation
from specsim.check.rules import RULES
from specsim.explore.chooser import seeded
from specsim.memory.allocator import Allocator
from specsim.memory.radix import RadixCache
from specsim.memory.swa import SwaAllocator, window_cursor
from specsim.sim import device as device_module
from specsim.sim import engine as engine_module
from specsim.sim.accounting import DecodeResult, Held, HostFunctionError, ModelAccounting, Retracted
from specsim.sim.device import Device, Launch, LaunchRow
from specsim.sim.draft import Drafter, ExtendRow, Relayed, expected_tags
from specsim.sim.engine import Engine
from specsim.sim.grammar import Matcher
from specsim.sim.graph import write_pad_rows
from specsim.sim.lifecycle import State
from specsim.sim.logprobs import take_rows
from specsim.sim.model import EOS
from specsim.sim.relay import Ring
from specsim.sim.request import Request, Turn
from specsim.sim.tree import Tree, build_tree
from specsim.sim.verify import Verified, verify_tree_greedy
from specsim.sim.workload import draw_scenario

SCHEDULES_MAX = 600
Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Sabotage:
    """What breaks one rule: an accounting, a loop, and a patch of anything else."""

    accounting: type[ModelAccounting] = ModelAccounting
    engine: type[Engine] = Engine
    patch: Patch | None = None


def held_of(request: Request) -> Held:
    held = request.state_of_accounting
    assert isinstance(held, Held)
    return held


def replacing(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """A patch that replaces `owner.name` by `make(what it was)`."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, make(getattr(owner, name)))


# Accountings that lie about lengths and counts


class ClaimsBeyondItsSlots(ModelAccounting):
    def prepare(self, batch: list[Request]) -> None:
        super().prepare(batch)
        held = held_of(batch[-1])
        held.honest = held.allocated + 1


class KeepsAClaimWhenRetracted(ModelAccounting):
    def retract(self, batch: list[Request]) -> Retracted:
        outcome = super().retract(batch)
        for request in outcome.retracted:
            held_of(request).honest = 1
        return outcome


class AppendsATokenTwice(ModelAccounting):
    def append(self, request: Request, run: list[int]) -> None:
        super().append(request, run + run[-1:])


class ClaimsOneTooMany(ModelAccounting):
    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        runs = super().resolve(result, batch)
        for request in batch:
            if not held_of(request).finished and not held_of(request).is_retracted:
                held_of(request).honest += 1
        return runs


class ClaimsOneTooFew(ModelAccounting):
    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        runs = super().resolve(result, batch)
        for request in batch:
            if not held_of(request).finished and not held_of(request).is_retracted:
                held_of(request).honest -= 2
        return runs


class ReservesOneStep(ModelAccounting):
    def _next_allocated(self, held: Held) -> int:
        return max(held.allocated, held.honest + self._memory.config.alloc_len)


class ForgetsAllocatedPositions(ModelAccounting):
    def prepare(self, batch: list[Request]) -> None:
        was = held_of(batch[0]).allocated
        super().prepare(batch)
        held_of(batch[0]).allocated = was - 1


class FinishesBeyondTheOutputs(ModelAccounting):
    def check_finish(self, request: Request, new_tokens: int) -> None:
        super().check_finish(request, new_tokens)
        held = held_of(request)
        if held.finished_len is not None:
            held.finished_len = len(request.outputs) + 1


class CountsALaunchTwice(ModelAccounting):
    def prepare(self, batch: list[Request]) -> None:
        super().prepare(batch)
        held_of(batch[0]).launches += 1


class CountsAVerificationTwice(ModelAccounting):
    def _count(self, held: Held, accepted_drafts: int) -> None:
        super()._count(held, accepted_drafts)
        held.verify_count += 1


class CountsStaleResultsOfFinished(ModelAccounting):
    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        for request in batch:
            if held_of(request).finished:
                held_of(request).verify_count += 1
        return super().resolve(result, batch)


class CountsStaleResultsOfRetracted(ModelAccounting):
    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        for request in batch:
            if held_of(request).is_retracted and request.state is State.WAITING:
                held_of(request).honest += 1
        return super().resolve(result, batch)


class CountsStaleDrafts(ModelAccounting):
    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        runs = super().resolve(result, batch)
        result.accepted_drafts = sum(result.accept_lens) - len(batch)
        return runs


class CutsARun(ModelAccounting):
    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        return [run[:-1] for run in super().resolve(result, batch)]


# Accountings that lose, share or take what is not theirs


class ReadsAnotherSlot(ModelAccounting):
    """The row's first two entries change places: every slot keeps its owner, and two positions the wrong KV."""

    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        for request in batch:
            held, rows = held_of(request), self._memory.rows
            if held.row is not None:
                rows.write(held.row, 0, rows.read(held.row, 0, 2)[::-1])
        return super().resolve(result, batch)


class HasASlotTwice(ModelAccounting):
    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        held, rows = held_of(batch[0]), self._memory.rows
        if held.row is not None:
            rows.write(held.row, held.allocated - 1, rows.read(held.row, 0, 1))
        return super().resolve(result, batch)


class TakesAnothersSlot(ModelAccounting):
    """The last position of the batch's first request lies in a slot of its second."""

    def prepare(self, batch: list[Request]) -> None:
        was = held_of(batch[0]).allocated
        super().prepare(batch)
        if len(batch) > 1 and self._memory.config.page_size == 1:
            one, two, rows = held_of(batch[0]), held_of(batch[1]), self._memory.rows
            assert one.row is not None
            assert two.row is not None
            if one.allocated > was:
                rows.write(one.row, was, rows.read(two.row, 0, 1))


class TakesNoRow(ModelAccounting):
    def extend_alloc(self, request: Request, prefix_len: int, fill_len: int) -> None:
        super().extend_alloc(request, prefix_len, fill_len)
        held_of(request).row = None


class FreesNothing(ModelAccounting):
    def _free(self, held: Held, start: int) -> None:
        pass


class FreesWhatItHolds(ModelAccounting):
    def prepare(self, batch: list[Request]) -> None:
        super().prepare(batch)
        held = held_of(batch[0])
        assert held.row is not None
        self._memory.allocator.free(self._memory.rows.read(held.row, held.allocated - 1, held.allocated))


class SharesAPage(ModelAccounting):
    """The last position of the batch's first request lies in a page of its second."""

    def prepare(self, batch: list[Request]) -> None:
        super().prepare(batch)
        if len(batch) > 1 and self._memory.config.page_size > 1:
            one, two = held_of(batch[0]), held_of(batch[1])
            assert one.row is not None
            assert two.row is not None
            rows = self._memory.rows
            rows.write(one.row, one.allocated - 1, rows.read(two.row, two.allocated - 1, two.allocated))


class KeepsItsRow(ModelAccounting):
    def _free_row(self, held: Held) -> None:
        held.row = None


class WritesAnotherRow(ModelAccounting):
    def prepare(self, batch: list[Request]) -> None:
        super().prepare(batch)
        self._memory.rows.write(0, 0, [1])


class WritesAnOldColumn(ModelAccounting):
    def prepare(self, batch: list[Request]) -> None:
        super().prepare(batch)
        held, rows = held_of(batch[0]), self._memory.rows
        assert held.row is not None
        rows.write(held.row, 0, rows.read(held.row, 0, 2)[::-1])


class AllocatesWhileItFrees(ModelAccounting):
    def release(self, request: Request) -> None:
        super().release(request)
        self._memory.allocator.extend(0, 1, 0)


class FreesTwice(ModelAccounting):
    def release(self, request: Request) -> None:
        held = held_of(request)
        if not request.turn.session:
            self._free(held, 0)
        super().release(request)


class FreesASlotTwiceAtOnce(ModelAccounting):
    def release(self, request: Request) -> None:
        held = held_of(request)
        if self._memory.config.page_size == 1 and not request.turn.session:
            assert held.row is not None
            rows = self._memory.rows
            self._memory.allocator.free(rows.read(held.row, 0, 1) * 2)
        super().release(request)


class FreesTwiceWhenRetracted(ModelAccounting):
    def _take_back(self, held: Held) -> None:
        self._free(held, 0)
        super()._take_back(held)


class KeepsClosedSessions(ModelAccounting):
    def session_close(self, session: str) -> None:
        self._memory.sessions.slots.pop(session, None)


class SavesTheHonestLength(ModelAccounting):
    def _save_session(self, request: Request, held: Held) -> None:
        super()._save_session(request, held)
        self._memory.sessions.slots[request.turn.session].claim -= 1


class SavesTheOvershoot(ModelAccounting):
    def _save_session(self, request: Request, held: Held) -> None:
        super()._save_session(request, held)
        slot = self._memory.sessions.slots[request.turn.session]
        slot.claim = slot.allocated = slot.claim + 1


class SavesMoreThanItHolds(ModelAccounting):
    def _save_session(self, request: Request, held: Held) -> None:
        super()._save_session(request, held)
        self._memory.sessions.slots[request.turn.session].allocated -= 2


class SavesNoSession(ModelAccounting):
    def _save_session(self, request: Request, held: Held) -> None:
        self._free(held, 0)
        self._free_row(held)


class ReusesLessThanWasKept(ModelAccounting):
    def session_match(self, request: Request, key_len: int) -> int:
        return super().session_match(request, key_len - 1)


class ForgetsASessionsTail(ModelAccounting):
    def session_match(self, request: Request, key_len: int) -> int:
        slot = self._memory.sessions.slots.pop(request.turn.session, None)
        if slot is None:
            return 0
        held = held_of(request)
        held.row = slot.row
        held.node, held.protected, held.evicted = slot.node, slot.protected, slot.evicted
        held.allocated = min(slot.claim, key_len - 1)
        return held.allocated


# Accountings that finish for no reason, or never


class IgnoresAborts(ModelAccounting):
    def abort(self, request: Request) -> None:
        pass


class AbortsTheInnocent(ModelAccounting):
    def check_finish(self, request: Request, new_tokens: int) -> None:
        super().check_finish(request, new_tokens)
        held_of(request).finished = True


class ChangesAToken(ModelAccounting):
    def append(self, request: Request, run: list[int]) -> None:
        super().append(request, [*run[:-1], run[-1] + 1])


class LooksAtTheLastTokenOnly(ModelAccounting):
    def check_finish(self, request: Request, new_tokens: int) -> None:
        super().check_finish(request, 1 if len(request.outputs) < request.turn.max_new_tokens else new_tokens)


class Raises(ModelAccounting):
    def decode_need(self, batch: list[Request]) -> int:
        raise HostFunctionError("decode need", "IndexError: list index out of range")


# Loops that schedule what they must not


class AdmitsNobody(Engine):
    def _admit(self) -> list[Request]:
        return []


class ResolvesTheNewestFirst(Engine):
    def _resolve(self, launch: Launch) -> None:
        super()._resolve(self._unresolved[-1])


class ResolvesNothing(Engine):
    def _resolve(self, launch: Launch) -> None:
        pass


class LaunchesARequestTwice(Engine):
    def _launch(self, kind: str, rows: list[LaunchRow]) -> Launch:
        return super()._launch(kind, [*rows, rows[0]])


class LaunchesTheFinished(Engine):
    def _launch(self, kind: str, rows: list[LaunchRow]) -> Launch:
        finished = [request for request in self._requests if request.state is State.FINISHED]
        return super()._launch(kind, rows + [LaunchRow(request, request.key, []) for request in finished])


class WaitsForTheNewest(Engine):
    def _host(self) -> Iterator[Launch | None]:
        for awaited in super()._host():
            yield self._unresolved[-1] if awaited is not None else None


class AsksForMoreThanTheContext(Engine):
    def _capped(self, turn: Turn) -> Turn:
        return replace(turn, max_new_tokens=turn.max_new_tokens + 3)


class ReleasesTwice(Engine):
    def _finish(self, request: Request) -> None:
        super()._finish(request)
        super()._finish(request)


# Devices that go wrong


def relays_to_the_wrong_request(take: Callable[..., list[int]]) -> Callable[..., list[int]]:
    return lambda ring, count: take(ring, count)[::-1] if count == 1 else [0] * count


def accepts_a_node_that_is_not_there(verify: Callable[..., Verified]) -> Callable[..., Verified]:
    def past_the_end(*arguments: Any) -> Verified:
        verified = verify(*arguments)
        verified.accept_index[0] = len(verified.predicts)
        return verified

    return past_the_end


class AllocatesForFourSteps(ModelAccounting):
    def _next_allocated(self, held: Held) -> int:
        return super()._next_allocated(held) + self._memory.config.reserve


def forgets_a_token_between_steps(execute_next: Callable[[Device], Launch]) -> Callable[[Device], Launch]:
    def execute(device: Device) -> Launch:
        launch = device.stream[0]
        sequence = device.sequences.get(launch.rows[0].key)
        if launch.kind == "decode" and sequence is not None and len(sequence.chain) > 1:
            sequence.chain.pop()
        return execute_next(device)

    return execute


def loses_an_accepted_token(accept: Callable[..., None]) -> Callable[..., None]:
    def _accept(device: Device, row: LaunchRow, *rest: Any) -> None:
        accept(device, row, *rest)
        device.sequences[row.key].chain.pop()

    return _accept


def moves_nothing(accept: Callable[..., None]) -> Callable[..., None]:
    def _accept(device: Device, row: LaunchRow, *rest: Any) -> None:
        before = list(device.content)
        accept(device, row, *rest)
        device.content[:] = before

    return _accept


def accepts_from_the_first_draft_on(
    candidates: list[list[int]], parents: list[list[int]], target_predict: list[list[int]], num_steps: int
) -> Verified:
    verified = verify_tree_greedy(candidates, parents, target_predict, num_steps)
    for b, tree in enumerate(parents):
        verified.accept_index[b * (num_steps + 1)] = b * len(tree) + 1
    return verified


def seeds_from_the_first_row(extend: Callable[..., None]) -> Callable[..., None]:
    def _extend(drafter: Drafter, rows: list[ExtendRow], stride: int) -> None:
        extend(drafter, rows, stride)
        for row in rows:
            drafter.relay[row.row.row].seeds[0] += 1

    return _extend


def writes_the_first_pool(extend: Callable[..., None]) -> Callable[..., None]:
    def _extend(drafter: Drafter, rows: list[ExtendRow], stride: int) -> None:
        pools = drafter.pools
        drafter.pools = [pools[0]] * len(pools)
        extend(drafter, rows, stride)
        drafter.pools = pools

    return _extend


def relays_nothing(extend: Callable[..., None]) -> Callable[..., None]:
    def _extend(drafter: Drafter, rows: list[ExtendRow], stride: int) -> None:
        extend(drafter, rows, stride)
        drafter.relay.clear()

    return _extend


def relays_by_the_place_in_the_batch(extend: Callable[..., None]) -> Callable[..., None]:
    def _extend(drafter: Drafter, rows: list[ExtendRow], stride: int) -> None:
        extend(drafter, rows, stride)
        left = [drafter.relay.pop(row.row.row) for row in rows]
        drafter.relay.update(zip(sorted(row.row.row for row in rows), left, strict=True))

    return _extend


def extends_nothing(drafter: Drafter, rows: list[ExtendRow], stride: int) -> None:
    for row in rows:
        seeds = [tags[-1] for tags in expected_tags(len(drafter.pools), row.hidden, row.tokens)]
        entry = Relayed(row.row.key, len(row.sequence.chain), row.sequence.root, seeds)
        drafter.relay[row.row.row] = entry


def writes_slot_1(*arguments: Any) -> list[int]:
    return [slot + 1 for slot in write_pad_rows(*arguments)]


def lets_a_node_read_its_siblings(parents: list[int], verified_seq_len: int) -> Tree:
    masks, positions = build_tree(parents, verified_seq_len)
    return Tree([(2 << verified_seq_len + node) - 1 for node in range(len(masks))], positions)


def counts_nothing_that_is_accepted(accept: Callable[..., None]) -> Callable[..., None]:
    def _accept(device: Device, row: LaunchRow, *rest: Any) -> None:
        before = dict(device.sequences[row.key].counts)
        accept(device, row, *rest)
        device.sequences[row.key].counts = before

    return _accept


def takes_the_rows_before(request: Request, result: DecodeResult, i: int, count: int) -> None:
    take_rows(request, result, max(i - 1, 0), count)


def hands_out_slot_0(init: Callable[..., None]) -> Callable[..., None]:
    def init_and_break(allocator: Allocator, *arguments: Any) -> None:
        init(allocator, *arguments)
        allocator._free_pages.insert(0, 0)

    return init_and_break


def hands_out_a_page_twice(init: Callable[..., None]) -> Callable[..., None]:
    def init_and_break(allocator: Allocator, *arguments: Any) -> None:
        init(allocator, *arguments)
        allocator._free_pages.insert(0, allocator._free_pages[0])

    return init_and_break


def free_at_once(allocator: Allocator, slots: list[int]) -> None:
    """As `Allocator.free` does, past the free group."""
    pages = list(dict.fromkeys(slot // allocator.page_size for slot in slots))
    allocator._watcher.freed([slot for page in pages for slot in allocator._slots_of(page)])
    allocator._free_pages[:0] = pages


# Accountings that misuse the radix cache


class ProtectsAPartOfAPage(ModelAccounting):
    def cache_unfinished(self, request: Request) -> None:
        super().cache_unfinished(request)
        held = held_of(request)
        if self._memory.config.page_size > 1 and held.protected + 1 < held.honest:
            held.protected += 1


class SwapsProtectedSlots(ModelAccounting):
    def cache_unfinished(self, request: Request) -> None:
        super().cache_unfinished(request)
        held, rows = held_of(request), self._memory.rows
        if held.protected >= 2:
            assert held.row is not None
            rows.write(held.row, 0, rows.read(held.row, 0, 2)[::-1])


class LocksTwice(ModelAccounting):
    def match_prefix(self, request: Request, key_len: int) -> int:
        reused = super().match_prefix(request, key_len)
        node = held_of(request).node
        assert node is not None
        self._tree.lock(node)
        return reused


class InsertsSwappedSlots(ModelAccounting):
    def release(self, request: Request) -> None:
        held, rows = held_of(request), self._memory.rows
        if self._memory.tree is not None and held.protected + 2 <= held.honest and not request.turn.session:
            assert held.row is not None
            rows.write(held.row, held.protected, rows.read(held.row, held.protected, held.protected + 2)[::-1])
        super().release(request)


class ReusesAnotherNamespace(ModelAccounting):
    def match_prefix(self, request: Request, key_len: int) -> int:
        own = request.turn
        request.turn = replace(own, extra_key="" if own.extra_key else "x")
        try:
            return super().match_prefix(request, key_len)
        finally:
            request.turn = own


class InsertsLessThanItClaims(ModelAccounting):
    def _insert(self, held: Held, tokens: list[int], extra_key: str) -> int:
        return super()._insert(held, tokens[:-1], extra_key)


class InsertsWhenItRetracts(ModelAccounting):
    def retract(self, batch: list[Request]) -> Retracted:
        for request in batch if self._memory.tree is not None else ():
            self.cache_unfinished(request)
        return super().retract(batch)


class KeepsItsLock(ModelAccounting):
    def release(self, request: Request) -> None:
        if not request.turn.session:
            held_of(request).node = None
        super().release(request)


class SavesNoLock(ModelAccounting):
    def release(self, request: Request) -> None:
        super().release(request)
        slot = self._memory.sessions.slots.get(request.turn.session)
        if slot is not None:
            slot.node = None


class SavesAnAbortedTurn(ModelAccounting):
    def release(self, request: Request) -> None:
        held_of(request).to_finish &= not request.turn.session
        super().release(request)


# Accountings that misuse the sliding window


class KeepsItsWindow(ModelAccounting):
    def _evict_window(self, swa: SwaAllocator, held: Held) -> None:
        held.evicted = window_cursor(held.evicted, held.honest, self._memory.config.window, swa.page_size)


class GivesBackAPartOfAPage(ModelAccounting):
    def _evict_window(self, swa: SwaAllocator, held: Held) -> None:
        super()._evict_window(swa, held)
        held.evicted += swa.page_size > 1


def keeps_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that a ledger sees and an eviction does not."""
    monkeypatch.setattr(RadixCache, "lock", lambda tree, node: tree._watcher.locked(node))
    monkeypatch.setattr(RadixCache, "unlock", lambda tree, node: tree._watcher.unlocked(node))


SABOTAGES: dict[str, list[Sabotage]] = {
    "I01": [Sabotage(ClaimsBeyondItsSlots), Sabotage(SavesMoreThanItHolds)],
    "I02": [Sabotage(KeepsAClaimWhenRetracted)],
    "I03": [Sabotage(AppendsATokenTwice)],
    "I04": [Sabotage(ClaimsOneTooMany), Sabotage(ClaimsOneTooFew)],
    "I05": [Sabotage(ReadsAnotherSlot)],
    "I06": [Sabotage(patch=replacing(Device, "execute_next", forgets_a_token_between_steps))],
    "I07": [Sabotage(ReservesOneStep)],
    "I08": [Sabotage(ForgetsAllocatedPositions)],
    "I09": [Sabotage(ProtectsAPartOfAPage)],
    "I10": [Sabotage(FinishesBeyondTheOutputs)],
    "I11": [Sabotage(CountsALaunchTwice)],
    "I12": [Sabotage(HasASlotTwice), Sabotage(TakesAnothersSlot)],
    "I13": [Sabotage(FreesNothing)],
    "I14": [Sabotage(FreesNothing)],
    "I15": [Sabotage(KeepsItsWindow)],
    "I16": [
        Sabotage(FreesWhatItHolds),
        Sabotage(patch=replacing(Allocator, "__init__", hands_out_a_page_twice)),
    ],
    "I17": [Sabotage(SharesAPage)],
    "I18": [Sabotage(KeepsItsRow), Sabotage(TakesNoRow)],
    "I19": [Sabotage(SwapsProtectedSlots)],
    "I20": [Sabotage(WritesAnotherRow), Sabotage(WritesAnOldColumn)],
    "I21": [Sabotage(patch=replacing(Allocator, "__init__", hands_out_slot_0))],
    "I22": [Sabotage(AllocatesWhileItFrees, patch=replacing(Allocator, "free", lambda _: free_at_once))],
    "I23": [Sabotage(FreesTwice), Sabotage(FreesASlotTwiceAtOnce), Sabotage(FreesTwiceWhenRetracted)],
    "I24": [Sabotage(KeepsClosedSessions)],
    "I25": [Sabotage(LocksTwice)],
    "I26": [Sabotage(patch=keeps_no_lock)],
    "I27": [Sabotage(InsertsSwappedSlots)],
    "I28": [Sabotage(ReusesAnotherNamespace)],
    "I29": [Sabotage(InsertsLessThanItClaims), Sabotage(InsertsWhenItRetracts)],
    "I30": [Sabotage(KeepsItsLock)],
    "I31": [Sabotage(CountsStaleResultsOfFinished)],
    "I32": [Sabotage(CountsStaleResultsOfRetracted)],
    "I33": [Sabotage(CountsAVerificationTwice)],
    "I34": [Sabotage(CutsARun)],
    "I35": [Sabotage(engine=ResolvesTheNewestFirst), Sabotage(engine=ResolvesNothing)],
    "I36": [Sabotage(engine=LaunchesARequestTwice), Sabotage(engine=LaunchesTheFinished)],
    "I37": [Sabotage(engine=ReleasesTwice)],
    "I38": [Sabotage(IgnoresAborts)],
    "I39": [Sabotage(AbortsTheInnocent)],
    "I40": [Sabotage(ChangesAToken), Sabotage(LooksAtTheLastTokenOnly)],
    "I41": [
        Sabotage(
            patch=replacing(device_module, "verify_tree_greedy", lambda _: accepts_from_the_first_draft_on),
        )
    ],
    "I42": [
        Sabotage(
            patch=replacing(
                device_module, "fill_bonus_tokens", lambda fill: lambda *args: [token + 1 for token in fill(*args)]
            )
        )
    ],
    "I43": [Sabotage(patch=replacing(Device, "_accept", moves_nothing))],
    "I46": [Sabotage(patch=replacing(Device, "_accept", loses_an_accepted_token))],
    "I47": [Sabotage(patch=replacing(Drafter, "_extend", seeds_from_the_first_row))],
    "I48": [Sabotage(patch=replacing(Drafter, "_extend", writes_the_first_pool))],
    "I49": [
        Sabotage(patch=replacing(Ring, "take", relays_to_the_wrong_request)),
        Sabotage(patch=replacing(Drafter, "_extend", relays_nothing)),
        Sabotage(patch=replacing(Drafter, "_extend", relays_by_the_place_in_the_batch)),
    ],
    "I53": [Sabotage(SavesTheHonestLength), Sabotage(SavesTheOvershoot), Sabotage(SavesNoSession)],
    "I54": [Sabotage(ForgetsASessionsTail)],
    "I58": [
        Sabotage(patch=replacing(Device, "_accept", counts_nothing_that_is_accepted)),
        Sabotage(patch=replacing(engine_module, "cumulate", lambda _: lambda request: {EOS: len(request.outputs)})),
    ],
    "I59": [Sabotage(patch=replacing(device_module, "bincount", lambda _: lambda tokens: {}))],
    "I60": [
        Sabotage(patch=replacing(Matcher, "rollback", lambda _: lambda matcher, count: None)),
        Sabotage(patch=replacing(device_module, "advance_grammar", lambda _: lambda launch: None)),
    ],
    "I61": [Sabotage(patch=replacing(Matcher, "allowed_after", lambda _: lambda matcher, path: None))],
    "D1": [Sabotage(patch=replacing(Drafter, "_extend", lambda _: extends_nothing))],
    "K3": [Sabotage(patch=replacing(device_module, "write_pad_rows", lambda _: writes_slot_1))],
    "M1": [Sabotage(patch=replacing(device_module, "build_tree", lambda _: lets_a_node_read_its_siblings))],
    "I55": [Sabotage(SavesNoLock)],
    "I57": [Sabotage(SavesAnAbortedTurn)],
    "I62": [Sabotage(GivesBackAPartOfAPage)],
    "T6": [
        Sabotage(patch=replacing(engine_module, "take_rows", lambda _: takes_the_rows_before)),
        Sabotage(patch=replacing(engine_module, "take_first_row", lambda _: lambda *row: None)),
    ],
    "S1": [Sabotage(engine=AdmitsNobody)],
    "S3": [Sabotage(CountsStaleDrafts)],
    "S4": [Sabotage(ReusesLessThanWasKept)],
    "S5": [Sabotage(AllocatesForFourSteps)],
    "S6": [Sabotage(engine=WaitsForTheNewest)],
    "S7": [Sabotage(engine=AsksForMoreThanTheContext)],
    "X1": [Sabotage(Raises)],
    "X4": [Sabotage(patch=replacing(device_module, "verify_tree_greedy", accepts_a_node_that_is_not_there))],
}
# A run that hangs or dies breaks these, and only the process that started it is there to say so.
HELD_BY_THE_PARENT = {"X2", "X3"}
# A user's own rules and choosers: test_extension.py shows these.
OF_EXTENSIONS = {"X4", "X5"}
# A sabotage that breaks one of two rules, by the page size of the scenario.
EITHER = {"I13": {"I14"}, "I14": {"I13"}}


def first_violations(sabotage: Sabotage, rule_id: str) -> tuple[Violation, ...]:
    """The violations of the first schedule that breaks a rule other than those that the sabotage may break as well."""
    for index in range(SCHEDULES_MAX):
        chooser = seeded(0, "sabotage", index)
        violations = sabotage.engine(draw_scenario(chooser), chooser, sabotage.accounting).run().violations
        if {violation.rule.id for violation in violations} - EITHER.get(rule_id, set()):
            return violations
    return ()


CASES = [(rule_id, sabotage) for rule_id, sabotages in SABOTAGES.items() for sabotage in sabotages]


def name_of(rule_id: str, sabotage: Sabotage) -> str:
    changed = [
        part.__name__ for part in (sabotage.accounting, sabotage.engine) if part not in (ModelAccounting, Engine)
    ]
    return "-".join([rule_id, *changed])


@pytest.mark.parametrize(("rule_id", "sabotage"), CASES, ids=[name_of(*case) for case in CASES])
def test_a_broken_promise_breaks_its_rule_first(
    rule_id: str, sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sabotage.patch is not None:
        sabotage.patch(monkeypatch)
    violations = first_violations(sabotage, rule_id)
    assert violations, f"no schedule of {SCHEDULES_MAX} broke a rule"
    assert violations[0].rule.id == rule_id, violations


def test_the_table_covers_every_rule() -> None:
    assert list(SABOTAGES) == [rule.id for rule in RULES if rule.id not in HELD_BY_THE_PARENT | OF_EXTENSIONS]
