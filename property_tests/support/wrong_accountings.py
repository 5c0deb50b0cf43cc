"""Accountings that each break one promise: `property_tests.support.sabotages` says which rule it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specsim.engine.accounting import Held, HostFunctionError, Memory, ModelAccounting, Retracted
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.launch import DecodeResult
from specsim.engine.lifecycle import State
from specsim.engine.memory.swa import SwaAllocator, window_cursor
from specsim.engine.request import Request


def held_of(request: Request) -> Held:
    held = request.state_of_accounting
    assert isinstance(held, Held)
    return held


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
        if self._memory.tree is None and not request.turn.session:
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
        slot = self._memory.sessions.slots.pop(session, None)
        if slot is not None:
            self._unlock(Held(node=slot.node))


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


class AllocatesForFourSteps(ModelAccounting):
    def _next_allocated(self, held: Held) -> int:
        return super()._next_allocated(held) + self._memory.config.reserve


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
        is_plain = not request.turn.session and not self._memory.config.streams  # those write the rows a launch reads
        if self._memory.tree is not None and held.protected + 2 <= held.honest and is_plain:
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


class Forgetful(ModelAccounting):
    """Wrong: what is released is not freed; and of a large batch it knows no one to retract."""

    def retract(self, batch: list[Request]) -> Any:
        if len(batch) > 2:
            raise ZeroDivisionError
        return super().retract(batch)

    def release(self, request: Request) -> None:
        pass


class ForgetfulTarget(ModelTarget):
    def make(self, memory: Memory) -> ModelAccounting:
        return Forgetful(memory)
