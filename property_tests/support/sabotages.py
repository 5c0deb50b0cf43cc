"""Changes of the accounting, the memory, the device or the loop that break the promise of one rule each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from property_tests.support.wrong_accountings import (
    AbortsTheInnocent,
    AllocatesForFourSteps,
    AllocatesWhileItFrees,
    AppendsATokenTwice,
    ChangesAToken,
    ClaimsBeyondItsSlots,
    ClaimsOneTooFew,
    ClaimsOneTooMany,
    CountsALaunchTwice,
    CountsAVerificationTwice,
    CountsStaleDrafts,
    CountsStaleResultsOfFinished,
    CountsStaleResultsOfRetracted,
    CutsARun,
    FinishesBeyondTheOutputs,
    ForgetsAllocatedPositions,
    ForgetsASessionsTail,
    FreesASlotTwiceAtOnce,
    FreesNothing,
    FreesTwice,
    FreesTwiceWhenRetracted,
    FreesWhatItHolds,
    GivesBackAPartOfAPage,
    HasASlotTwice,
    IgnoresAborts,
    InsertsLessThanItClaims,
    InsertsSwappedSlots,
    InsertsWhenItRetracts,
    KeepsAClaimWhenRetracted,
    KeepsClosedSessions,
    KeepsItsLock,
    KeepsItsRow,
    KeepsItsWindow,
    LocksTwice,
    LooksAtTheLastTokenOnly,
    ProtectsAPartOfAPage,
    Raises,
    ReadsAnotherSlot,
    ReservesOneStep,
    ReusesAnotherNamespace,
    ReusesLessThanWasKept,
    SavesAnAbortedTurn,
    SavesMoreThanItHolds,
    SavesNoLock,
    SavesNoSession,
    SavesTheHonestLength,
    SavesTheOvershoot,
    SharesAPage,
    SwapsProtectedSlots,
    TakesAnothersSlot,
    TakesNoRow,
    WritesAnOldColumn,
    WritesAnotherRow,
)
from specsim.engine import batch as batch_module
from specsim.engine import device as device_module
from specsim.engine import model
from specsim.engine import results as results_module
from specsim.engine.accounting import Memory, ModelAccounting
from specsim.engine.admission import Admission
from specsim.engine.arrivals import Arrivals
from specsim.engine.device import Device
from specsim.engine.draft import Drafter, ExtendRow, Relayed, expected_tags
from specsim.engine.grammar import Matcher
from specsim.engine.graph import write_pad_rows
from specsim.engine.launch import DecodeResult, Launch, LaunchRow
from specsim.engine.launches import Launches
from specsim.engine.lifecycle import State
from specsim.engine.logprobs import take_rows
from specsim.engine.loop import Engine
from specsim.engine.memory.allocator import Allocator
from specsim.engine.memory.radix import RadixCache
from specsim.engine.memory.window_tree import TreeWindow
from specsim.engine.model import EOS, VOCABULARY
from specsim.engine.relay import Futures, Ring
from specsim.engine.request import Request, Turn
from specsim.engine.results import Results
from specsim.engine.scalar_tree import Tree, build_tree
from specsim.engine.scalar_verify import Verified, verify_tree_greedy
from specsim.engine.streams import Operation, Streams

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Sabotage:
    """What breaks one rule: an accounting, a loop, and a patch of anything else."""

    accounting: type[ModelAccounting] = ModelAccounting
    engine: type[Engine] = Engine
    patch: Patch | None = None


def replacing(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """A patch that replaces `owner.name` by `make(what it was)`."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, make(getattr(owner, name)))


# Loops that schedule what they must not


def admits_nobody(admission: Admission, chooser: Any) -> list[Request]:
    return []


class ResolvesTheNewestFirst(Engine):
    def _resolve(self, launch: Launch) -> None:
        super()._resolve(self.launches.unresolved[-1])


class ResolvesNothing(Engine):
    def _resolve(self, launch: Launch) -> None:
        pass


def launches_a_request_twice(launch: Callable[..., Launch]) -> Callable[..., Launch]:
    def twice(launches: Launches, kind: str, rows: list[LaunchRow], beside: Any = None) -> Launch:
        return launch(launches, kind, [*rows, rows[0]], beside)

    return twice


def launches_the_finished(launch: Callable[..., Launch]) -> Callable[..., Launch]:
    def and_the_finished(launches: Launches, kind: str, rows: list[LaunchRow], beside: Any = None) -> Launch:
        may = launches._config.late_results  # then somebody may finish before the launch
        everybody = launches._batch._requests.everybody
        finished = [request for request in everybody if request.state is State.FINISHED and not may]
        return launch(launches, kind, rows + [LaunchRow(request, request.key, []) for request in finished], beside)

    return and_the_finished


class WaitsForTheNewest(Engine):
    def _host_step(self) -> None:
        super()._host_step()
        if self.awaited is not None:
            self.awaited = self.launches.unresolved[-1]


def asks_for_more_than_the_context(arrivals: Arrivals, turn: Turn) -> Turn:
    return replace(turn, max_new_tokens=turn.max_new_tokens + 3)


def releases_twice(releasing: Callable[..., None]) -> Callable[..., None]:
    def twice(results: Results, request: Request) -> None:
        releasing(results, request)
        releasing(results, request)

    return twice


# Streams that wait for nothing

# Operations that must wait for one of another stream.
WAITING = ("write", "map", "penalize", "plan", "mask", "prefill", "verify", "copy")


def waits_for_nothing(name: str) -> Callable[[Any], Any]:
    """The operations of that name run as soon as their stream gets to them."""

    def make(queue: Callable[..., Operation]) -> Callable[..., Operation]:
        def racy(streams: Streams, stream: int, called: str, of: Any, run: Any, waits: Any) -> Operation:
            return queue(streams, stream, called, of, run, () if called == name else waits)

        return racy

    return make


# Devices that go wrong


def relays_to_the_wrong_request(take: Callable[..., list[int]]) -> Callable[..., list[int]]:
    return lambda ring, count: take(ring, count)[::-1] if count == 1 else [0] * count


def accepts_a_node_that_is_not_there(verify: Callable[..., Verified]) -> Callable[..., Verified]:
    def past_the_end(*arguments: Any) -> Verified:
        verified = verify(*arguments)
        verified.accept_index[0] = len(verified.predicts)
        return verified

    return past_the_end


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
    allocator._watcher.freed(allocator._slots_of(pages))
    allocator._free_pages[:0] = pages


def meets_nobody(execute_next: Callable[[Device], Launch]) -> Callable[[Device], Launch]:
    def execute(device: Device) -> Launch:
        launch = execute_next(device)
        if not launch.rows:
            device.collectives.clear()
        return launch

    return execute


def keeps_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that a ledger sees and an eviction does not."""
    monkeypatch.setattr(RadixCache, "lock", lambda tree, node: tree._watcher.locked(node))
    monkeypatch.setattr(RadixCache, "unlock", lambda tree, node: tree._watcher.unlocked(node))


def keeps_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that keep a path and not the window behind its end, in a pool that is always short."""
    monkeypatch.setattr(TreeWindow, "lock", lambda window, node, split: None)
    monkeypatch.setattr(TreeWindow, "unlock", lambda window, node: None)
    make_room = Memory.make_room

    def and_of_the_window(memory: Memory, slots: int) -> None:
        make_room(memory, slots)
        if memory.tree is not None and memory.tree.window is not None:
            memory.tree.evict_window(memory.tree.total)

    monkeypatch.setattr(Memory, "make_room", and_of_the_window)


def writes_the_nodes_of_a_tree_in_another_order(run_target: Any) -> Any:
    """The first two nodes of a tree change places in memory."""

    def swapped(device: Device, row: LaunchRow, sequence: Any) -> Any:
        start = len(sequence.chain)
        slots = row.slots
        row.slots = [*slots[:start], *slots[start : start + 2][::-1], *slots[start + 2 :]]
        try:
            return run_target(device, row, sequence)
        finally:
            row.slots = slots

    return swapped


def forgets_who_stays(filter_futures: Any) -> Any:
    """The first entries of a batch stay, whoever leaves it."""
    return lambda futures, kept: filter_futures(futures, range(len(kept)))


def counts_what_it_finds(match: Any) -> Any:
    def counting(tree: RadixCache, *arguments: Any) -> Any:
        tree.total += 1
        return match(tree, *arguments)

    return counting


def says_tokens_beyond_the_vocabulary(next_token_after: Any) -> Any:
    return lambda *arguments: next_token_after(*arguments) + VOCABULARY


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
    "I36": [
        Sabotage(patch=replacing(Launches, "launch", launches_a_request_twice)),
        Sabotage(patch=replacing(Launches, "launch", launches_the_finished)),
    ],
    "I37": [Sabotage(patch=replacing(Results, "_releasing", releases_twice))],
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
    "I45": [Sabotage(patch=replacing(Device, "_run_target", writes_the_nodes_of_a_tree_in_another_order))],
    "I46": [Sabotage(patch=replacing(Device, "_accept", loses_an_accepted_token))],
    "I47": [Sabotage(patch=replacing(Drafter, "_extend", seeds_from_the_first_row))],
    "I48": [Sabotage(patch=replacing(Drafter, "_extend", writes_the_first_pool))],
    "I49": [
        Sabotage(patch=replacing(Ring, "take", relays_to_the_wrong_request)),
        Sabotage(patch=replacing(Drafter, "_extend", relays_nothing)),
        Sabotage(patch=replacing(Drafter, "_extend", relays_by_the_place_in_the_batch)),
    ],
    "I52": [Sabotage(patch=replacing(Futures, "filter", forgets_who_stays))],
    "I53": [Sabotage(SavesTheHonestLength), Sabotage(SavesTheOvershoot), Sabotage(SavesNoSession)],
    "I54": [Sabotage(ForgetsASessionsTail)],
    "I55": [Sabotage(SavesNoLock)],
    "I56": [Sabotage(patch=replacing(RadixCache, "match", counts_what_it_finds))],
    "I57": [Sabotage(SavesAnAbortedTurn)],
    "I58": [
        Sabotage(patch=replacing(Device, "_accept", counts_nothing_that_is_accepted)),
        Sabotage(patch=replacing(batch_module, "cumulate", lambda _: lambda request: {EOS: len(request.outputs)})),
    ],
    "I59": [Sabotage(patch=replacing(device_module, "bincount", lambda _: lambda tokens: {}))],
    "I60": [
        Sabotage(patch=replacing(Matcher, "rollback", lambda _: lambda matcher, count: None)),
        Sabotage(patch=replacing(device_module, "advance_grammar", lambda _: lambda launch: None)),
    ],
    "I61": [Sabotage(patch=replacing(Matcher, "allowed_after", lambda _: lambda matcher, path: None))],
    "I62": [Sabotage(GivesBackAPartOfAPage)],
    "I63": [Sabotage(patch=keeps_no_window)],
    "D1": [Sabotage(patch=replacing(Drafter, "_extend", lambda _: extends_nothing))],
    "K3": [Sabotage(patch=replacing(device_module, "write_pad_rows", lambda _: writes_slot_1))],
    "K4": [Sabotage(patch=replacing(model, "next_token_after", says_tokens_beyond_the_vocabulary))],
    "M1": [Sabotage(patch=replacing(device_module, "build_tree", lambda _: lets_a_node_read_its_siblings))],
    "T6": [
        Sabotage(patch=replacing(results_module, "take_rows", lambda _: takes_the_rows_before)),
        Sabotage(patch=replacing(results_module, "take_first_row", lambda _: lambda *row: None)),
    ],
    "S1": [Sabotage(patch=replacing(Admission, "admit", lambda _: admits_nobody))],
    "S2": [Sabotage(patch=replacing(Streams, "_queue", waits_for_nothing(name))) for name in WAITING],
    "S3": [Sabotage(CountsStaleDrafts)],
    "S4": [Sabotage(ReusesLessThanWasKept)],
    "S5": [Sabotage(AllocatesForFourSteps)],
    "S6": [Sabotage(engine=WaitsForTheNewest)],
    "S7": [Sabotage(patch=replacing(Arrivals, "capped", lambda _: asks_for_more_than_the_context))],
    "S8": [Sabotage(patch=replacing(Device, "execute_next", meets_nobody))],
    "X1": [Sabotage(Raises)],
    "X6": [Sabotage(patch=replacing(device_module, "verify_tree_greedy", accepts_a_node_that_is_not_there))],
}
