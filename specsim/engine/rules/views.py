"""The events of a run after which rules are evaluated, and what a rule may read after each.

The checker makes a view where the engine reports something, and no rule reads anything else. Views are not frozen: they
are made at every event, and a frozen one takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specsim.engine.accounting import Observed
from specsim.engine.agents import Race
from specsim.engine.config import EngineConfig
from specsim.engine.device import Device
from specsim.engine.launch import DecodeResult, Launch, LaunchRow, Step
from specsim.engine.memory.radix import Entry, RadixCache
from specsim.engine.memory.rows import Rows
from specsim.engine.memory.sessions import SessionSlot
from specsim.engine.memory.swa import SwaAllocator
from specsim.engine.request import Request, Turn
from specsim.engine.rules.ledger import Misuse, Owner, SlotLedger
from specsim.engine.sampling import DistributionState
from specsim.engine.sampling_params import Counts

# Memory


@dataclass(slots=True)
class SlotMisused:
    """A ledger saw a slot change hands as it must not, in the call `part`."""

    part: str
    misuse: Misuse
    slot: int


@dataclass(slots=True)
class OwnerSeen:
    """The slots of one owner, when somebody's are not in order. `owner_of_row` and `owner_of_page` are those of the
    owners before.
    """

    part: str
    owner: Owner
    slots: list[int]
    page_size: int
    used: set[int]
    owner_of_row: Mapping[int, str]
    owner_of_page: Mapping[int, str]


@dataclass(slots=True)
class TreeSlotsSeen:
    """The slots of the radix cache, when somebody's are not in order."""

    part: str
    slots: Sequence[int]
    page_size: int
    used: set[int]
    owner_of_page: Mapping[int, str]


@dataclass(slots=True)
class SlotsCounted:
    """All owners were seen: `owned` pages, of those that the allocator has handed out. `at_match`: a turn has just
    taken what its session kept.
    """

    part: str
    page_size: int
    used: set[int]
    owned: Mapping[int, str]
    at_match: bool

    @property
    def leaked(self) -> list[int]:
        """Pages that are not free and that nobody owns."""
        return sorted({slot // self.page_size for slot in self.used} - set(self.owned))


@dataclass(slots=True)
class RowsCounted:
    """All owners were seen, by row."""

    part: str
    rows: Rows
    owned: Mapping[int, str]


@dataclass(slots=True)
class WindowOwnerSeen:
    """One owner's window slots: `slots` of all its positions, 0 for none, and `pages` of those that it must hold, from
    position `first` on; `owned` are those of the owners before.
    """

    part: str
    owner: Owner
    page_size: int
    slots: list[int]
    first: int
    pages: set[int]
    owned: set[int]


@dataclass(slots=True)
class WindowCounted:
    """All owners of window slots were seen: pages of requests and sessions, of the tree, and those handed out."""

    part: str
    owned: set[int]
    in_tree: set[int]
    in_use: set[int]


@dataclass(slots=True)
class IdlePools:
    """Nothing runs and no session is open. The full slots that are in use and not in the tree, and how many window
    slots are.
    """

    used: list[int]
    window_slots: int


@dataclass(slots=True)
class IdleRows:
    """Nothing runs and no session is open: how many rows are not free."""

    held: int


# The radix cache


@dataclass(slots=True)
class TreeSeen:
    """The tree's locks and sizes, and who should hold a lock."""

    part: str
    tree: RadixCache
    ledger: SlotLedger
    owners: Sequence[Owner]


@dataclass(slots=True)
class TreeOwnerSeen:
    """One owner's positions that the tree protects, and their slots."""

    part: str
    owner: Owner
    slots: list[int]
    tree: RadixCache
    ledger: SlotLedger


@dataclass(slots=True)
class TreeWindowSeen:
    """The tree's window slots."""

    part: str
    tree: RadixCache
    swa: SwaAllocator
    ledger: SlotLedger


@dataclass(slots=True)
class LocksChanged:
    """A call should have changed how many locks are held in the tree by `change`."""

    part: str
    request: Request
    before: int
    now: int
    change: int


@dataclass(slots=True)
class PrefixMatched:
    """A request reuses what the tree has; `namespaces` are those of the slots that it reuses. `first` and `second` are
    (found, total, evictable, locked) of two matches more.
    """

    request: Request
    namespaces: set[str | None]
    first: tuple[int, int, int, int]
    second: tuple[int, int, int, int]


@dataclass(slots=True)
class Inserted:
    """The tree was handed positions of a request that should end at `expected`: `held` are found in it, and the
    call's insertion ended at `inserted_to`, 0 for none.
    """

    part: str
    request: Request
    expected: int
    held: int
    inserted_to: int


@dataclass(slots=True)
class NothingToInsert:
    """The tree should have been handed nothing; `inserted_to` as for `Inserted`."""

    part: str
    request: Request
    inserted_to: int


@dataclass(slots=True)
class IdleTreeEntry:
    """An entry of the tree when nothing runs; `content` is the device's, by slot."""

    entry: Entry
    content: Sequence[int]


@dataclass(slots=True)
class IdleTree:
    """The tree when nothing runs: `found` are its slots by namespace."""

    found: Mapping[int, str | None]
    ledger: SlotLedger


@dataclass(slots=True)
class IdleTreeWindow:
    """The window slots of an entry of the tree when nothing runs; `content` is the device's, by window slot."""

    entry: Entry
    slots: list[int]
    content: Sequence[int]


# Requests


@dataclass(slots=True)
class Admitted:
    """A request that was admitted, or a part of its prefill was."""

    part: str
    request: Request
    now: Observed
    width: int


@dataclass(slots=True)
class Prepared:
    """One request of a batch that was prepared."""

    part: str
    request: Request
    was: Observed
    now: Observed
    width: int
    config: EngineConfig


@dataclass(slots=True)
class RowsWritten:
    """Entries of `req_to_token` that changed while a batch was prepared, its own newly allocated ones apart."""

    stray: list[tuple[int, int]]  # (row, column)


@dataclass(slots=True)
class Appended:
    """A live request has the tokens of a result, of the `part` "prefill result" or "resolve"."""

    part: str
    request: Request
    now: Observed
    width: int


@dataclass(slots=True)
class SampledAppended:
    """A live request has the tokens of a result; somebody in the workload samples, or wants logprobs."""

    request: Request


@dataclass(slots=True)
class FinishChecked:
    """It was decided whether a request ends."""

    request: Request
    now: Observed


@dataclass(slots=True)
class Answered:
    """A request has ended, and its client sees `visible`."""

    request: Request
    visible: list[int]
    config: EngineConfig


@dataclass(slots=True)
class Releasing:
    """A request is about to give back its memory; `was_released`: in this incarnation it has done so already."""

    request: Request
    was_released: bool


@dataclass(slots=True)
class Waiting:
    """A request waits, after the call `part`."""

    part: str
    request: Request
    now: Observed


@dataclass(slots=True)
class RunNotTaken:
    """The target's own function for a result is over, and a live request has not got its run."""

    rid: str


# Sessions


@dataclass(slots=True)
class PromptMade:
    """A session made another prompt of a turn than the client's. `follows_retracted`: the turn before was retracted."""

    request: Request
    expected: str
    made: str
    follows_retracted: bool


@dataclass(slots=True)
class SessionMatched:
    """A turn has `reused` positions of the `claim` that its session kept. None: it does without its session."""

    request: Request
    claim: int
    reused: int | None

    @property
    def reusable(self) -> int:
        """A turn that was retracted is computed with the outputs that it had."""
        return min(self.claim, len(self.request.prompt) + len(self.request.outputs) - 1)


@dataclass(slots=True)
class SessionSaved:
    """A turn has ended, and its session keeps `slot`, if anything. `kv_ready` of its positions are written, or are
    being written.
    """

    request: Request
    now: Observed
    slot: SessionSlot | None
    kv_ready: int


@dataclass(slots=True)
class SessionSlotSaved:
    """What a session keeps of a turn that has ended."""

    request: Request
    slot: SessionSlot
    width: int
    has_tree: bool


@dataclass(slots=True)
class TurnAborted:
    """A session before and after the abort of a turn."""

    request: Request
    before: SessionSlot | None
    now: SessionSlot | None


# Launches


@dataclass(slots=True)
class Preparing:
    """A batch is about to be prepared."""

    batch: list[Request]


@dataclass(slots=True)
class Launched:
    """A launch was queued; `unresolved` launches have no result taken. `left_at` is the relay entry that the last
    launch of a request leaves.
    """

    launch: Launch
    rows: list[LaunchRow]
    unresolved: int
    left_at: Mapping[tuple[str, int], int]
    config: EngineConfig


@dataclass(slots=True)
class Resolving:
    """The host takes the result of a launch; `oldest` is the one whose turn it is."""

    launch: Launch
    oldest: Launch | None


@dataclass(slots=True)
class HostWaits:
    """The host waits for the result of a launch."""

    awaited: Launch
    oldest: Launch | None


@dataclass(slots=True)
class Queued:
    """Work was queued on the streams. `race` is the first pair of accesses of what streams share without an order."""

    race: Race | None


# The device


@dataclass(slots=True)
class Executed:
    """The device has run a launch."""

    launch: Launch
    device: Device


@dataclass(slots=True)
class StepExecuted:
    """The device has run a decode step of one request, which should have started at position `start`."""

    step: Step
    start: int
    device: Device
    config: EngineConfig


@dataclass(slots=True)
class PenaltiesFed:
    """What the target's own penalizers count of a request at a launch; `expected` counts the outputs before it, and
    `before_retraction` is what they counted at the last launch of an earlier incarnation, None when there was none.
    """

    who: str
    fed: Counts
    expected: Counts
    before_retraction: Counts | None


@dataclass(slots=True)
class DistributionSeen:
    """What a launch knew of a request with a distribution of its own, whose outputs before it are `outputs`."""

    state: DistributionState
    outputs: list[int]
    is_prefill: bool
    is_relaxed: bool


@dataclass(slots=True)
class DeviceRaised:
    """The device ended with an exception, which says `text`."""

    text: str


# Results


@dataclass(slots=True)
class ResultTaken:
    """A result was taken: the run of each row."""

    launch: Launch
    runs: list[list[int]]


@dataclass(slots=True)
class LiveResult:
    """One row of a result was taken, of a live request: its `run`, of which `expected` are the right tokens."""

    request: Request
    was: Observed
    now: Observed
    accept_len: int
    run: list[int]
    expected: list[int]


@dataclass(slots=True)
class StaleResult:
    """One row of a result was taken, of a request that has finished or was retracted. Fields as of `LiveResult`."""

    request: Request
    was: Observed
    now: Observed
    accept_len: int
    run: list[int]
    expected: list[int]


@dataclass(slots=True)
class StaleRunTaken:
    """The target's own function for a result gave a run to a request that has finished, or was retracted."""

    request: Request


@dataclass(slots=True)
class ResultCounted:
    """A result was taken whole."""

    launch: Launch
    result: DecodeResult
    live: list[bool]


# Liveness


@dataclass(slots=True)
class StillPending:
    """A schedule does not end."""

    reason: str


# A schedule that is over


@dataclass(frozen=True, slots=True)
class Shown:
    """What a schedule showed, for rules to say whether it gave them anything to check.

    `turns`      by request
    `met`        the requests that met an event of the log, by event
    `came_back`  requests that were prefilled after a retraction
    """

    config: EngineConfig
    marks: frozenset[str]
    turns: Mapping[str, Turn]
    met: Mapping[str, set[str]]
    came_back: frozenset[str]

    def requests(self, event: str) -> set[str]:
        """The requests that met an event of the log."""
        return self.met.get(event, set())

    @property
    def aborted(self) -> set[str]:
        return self.requests("abort") | self.requests("timeout")

    def prefilled(self) -> list[Turn]:
        return [self.turns[rid] for rid in self.requests("prefill")]
