"""A connector to KV outside the engine, under the release's own interface: `KVConnectorBase_V1`.

There is KV of a part of some prompts, and of others none. It is loaded in the step that reads it, or while the request
waits for it: then it is written whenever it comes, in no order with what the device runs. A load may fail from some
block on. KV of what has ended may be handed on: until that has been read its blocks are kept.

What comes when is drawn.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from specsim.engines.vllm.scheduler.imports import PACKAGE
from specsim.engines.vllm.scheduler.pools import KvOwner, read, slots_of, write
from specsim.world.fakes import nothing
from specsim.world.hash_model import Prefixes
from specsim.world.kv import Kv, NoSlot, Reports

NOTHING, IN_THE_STEP, MEANWHILE, WHOLE_PROMPT = range(4)
"""What there is of a prompt: some of its blocks, as often as it is asked for, loaded so or so, or once all of it, as an
engine has it that only prefills.
"""
_ENDS = "length", "stop"
"""Why a request ended that has KV of its whole prompt."""


class Transfer(NamedTuple):
    """KV of positions `start` to `end` of a request, in the slots of `blocks`: from outside, or to there."""

    rid: str
    blocks: tuple[int, ...]
    start: int
    end: int


class TransferPlan(NamedTuple):
    """What the worker is told with a batch."""

    in_the_step: tuple[Transfer, ...]
    meanwhile: tuple[Transfer, ...]
    handed_on: tuple[Transfer, ...]


class KvModel(Protocol):
    """Whose KV is loaded and handed on."""

    reports: Reports
    block_size: int
    prefixes: dict[str, Prefixes]

    @property
    def kv(self) -> Kv: ...

    def meanwhile(self, run: Callable[[], None]) -> None:
        """Have something run in no order with what was launched."""


class Outside:
    """What is outside, and what the worker's part of a connector has of it. `draws(count, label)` chooses. A load in a
    step may fail where `fails_in_steps`.
    """

    def __init__(self, block_size: int, *, fails_in_steps: bool = False) -> None:
        self.block_size, self.fails_in_steps = block_size, fails_in_steps
        self.draws: Callable[[int, str], int] = lambda _count, _label: 0
        self._coming: list[Transfer] = []
        self._read: list[Transfer] = []
        self._has_come: list[Transfer] = []
        self._was_read: list[str] = []
        self._failed: list[int] = []
        self.waited: set[str] = set()
        """Requests that have waited for their KV to come."""

    def take(self, plan: TransferPlan) -> tuple[list[tuple[Transfer, int]], list[int]]:
        """A batch was launched with it. What is loaded in its step, each up to where it comes, and the blocks of what
        fails of that.
        """
        self._coming += plan.meanwhile
        self.waited.update(one.rid for one in plan.meanwhile)
        self._read += plan.handed_on
        failed: list[int] = []
        ends = [self._end(one, failed) if self.fails_in_steps else one.end for one in plan.in_the_step]
        return list(zip(plan.in_the_step, ends, strict=True)), failed

    def pass_time(self, model: KvModel) -> None:
        """Some of what is under way comes, or is read."""
        for transfer in [one for one in self._coming if not self.draws(2, "is still coming")]:
            self._coming.remove(transfer)
            model.meanwhile(functools.partial(self._come, transfer, self._end(transfer, self._failed), model))
        for transfer in [one for one in self._read if not self.draws(2, "is still to be read")]:
            self._read.remove(transfer)
            model.meanwhile(functools.partial(self._hand_on, transfer, model))

    def _come(self, transfer: Transfer, end: int, model: KvModel) -> None:
        load(transfer, end, model)
        self._has_come.append(transfer)

    def _hand_on(self, transfer: Transfer, model: KvModel) -> None:
        room = len(transfer.blocks) * model.block_size
        if room < transfer.end:
            model.reports.add_first(transfer.rid, "room", NoSlot("send", transfer.rid, room))
        else:
            seat = KvOwner(transfer.rid, model.prefixes[transfer.rid])
            read(model.kv, seat, "send", [slots_of(transfer.blocks, transfer.end, model.block_size)], transfer.end, 0)
        self._was_read.append(transfer.rid)

    def _end(self, transfer: Transfer, failed: list[int]) -> int:
        """Up to where it comes: from some block on it may fail."""
        first, last = transfer.start // self.block_size, -(-transfer.end // self.block_size)
        if self.draws(6, "fails") != 1:
            return transfer.end
        block = first + self.draws(last - first, "fails from")
        failed += transfer.blocks[block:last]
        return max(transfer.start, block * self.block_size)

    def said(self) -> tuple[Collection[str], Collection[str], set[int]]:
        """Which requests' KV has come, and which was read, each said once; and the blocks of what failed."""
        come = [one.rid for one in self._has_come if not self.draws(2, "is said later")]
        self._has_come = [one for one in self._has_come if one.rid not in come]
        was_read, self._was_read = self._was_read, []
        failed, self._failed = (set(self._failed), []) if come else (set(), self._failed)
        return dict.fromkeys(come).keys(), dict.fromkeys(was_read).keys(), failed  # keys are a set that has an order


def missing(loads: Iterable[tuple[Transfer, int]], block_size: int) -> set[int]:
    """The blocks whose KV does not come: what is computed in the step for whoever has one of them nobody reads."""
    return {
        block
        for transfer, end in loads
        for block in transfer.blocks[end // block_size : -(-transfer.end // block_size)]
        if end < transfer.end
    }


def load(transfer: Transfer, end: int, model: KvModel) -> None:
    """Write its KV up to a position."""
    prefixes = model.prefixes[transfer.rid]
    seat, slots = KvOwner(transfer.rid, prefixes), slots_of(transfer.blocks, transfer.end, model.block_size)
    for position in range(transfer.start, end):
        write(model.kv, seat, [int(slots[position])], prefixes.of(position + 1))


class _Offer:
    """What there is of a prompt: its first `tokens`, known once it was asked for so often."""

    def __init__(self, kind: int, tokens: int, asks: int) -> None:
        self.kind, self.tokens, self.asks = kind, tokens, asks

    @property
    def is_meanwhile(self) -> bool:
        return self.kind != IN_THE_STEP


_NOTHING = _Offer(NOTHING, 0, 0)


@functools.cache
def _class_of(part: type) -> Any:
    """Of the release's base class, with that part."""
    base = importlib.import_module(f"{PACKAGE}.distributed.kv_transfer.kv_connector.v1.base")
    return type("Connector", (part, base.SupportsHMA, base.KVConnectorBase_V1), {})


def connector(outside: Outside, config: Any, role: Any, *kv_cache: Any) -> Any:
    """The scheduler's part of a connector, an object of the release's class."""
    made = _class_of(_Scheduler)(config, role, *kv_cache)
    made.connect(outside)
    return made


def worker_connector(worker: Any, config: Any) -> Any:
    """The worker's part, for a ReleaseWorker with an Outside."""
    made = _class_of(_Worker)(config, None, None)
    made.worker = worker
    return made


class _Worker:
    """The worker's part: what the release's base class leaves open. What is loaded in a step is there before it."""

    worker: Any
    failed: Sequence[int] = ()

    def start_load_kv(self, *_arguments: Any, **_named: Any) -> None:
        for transfer, end in self.worker.loads:
            self.worker.load(functools.partial(load, transfer, end, self.worker))

    def get_finished(self, _finished: Any) -> tuple[Any, Any]:
        outside: Outside = self.worker.outside
        if not outside.draws(2, "transfers go on"):
            self.worker.transfers_end()
        come, was_read, failed = outside.said()
        self.failed = [*self.worker.failed, *failed]
        return was_read, come

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self.failed = set(self.failed), ()
        return failed

    wait_for_layer_load = save_kv_layer = wait_for_save = nothing
    get_num_new_matched_tokens = update_state_after_alloc = build_connector_meta = request_finished_all_groups = nothing


class _Scheduler:
    """The scheduler's part: what the release's base class leaves open."""

    def connect(self, outside: Outside) -> None:
        self._outside = outside
        self._offers: dict[str, _Offer] = {}
        self._asked: dict[str, int] = {}
        """By request how many of its tokens had KV when it was asked for last."""
        self._loading: dict[str, Transfer] = {}
        self._plan: tuple[list[Transfer], list[Transfer], list[Transfer]] = [], [], []

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        rid = request.request_id
        offer = self._offers.get(rid) or self._offers.setdefault(rid, self._drawn(request))
        self._asked[rid] = computed
        if offer.asks:
            offer.asks -= 1
            return None, False
        tokens = max(0, offer.tokens - computed)
        return tokens, bool(tokens) and offer.is_meanwhile

    def _drawn(self, request: Any) -> _Offer:
        draws, prompt, size = self._outside.draws, int(request.num_prompt_tokens), self._outside.block_size
        kind = draws(4, "there is")
        if kind == NOTHING:
            return _NOTHING
        tokens = prompt if kind == WHOLE_PROMPT else size * draws(prompt // size + 1, "blocks of it")
        if kind == IN_THE_STEP:  # something is left to compute in it
            tokens = min(tokens, prompt - 1)
        return _Offer(kind, tokens, draws(3, "asks before it is known"))

    def update_state_after_alloc(self, request: Any, blocks: Any, external: int) -> None:
        if not external:
            return
        rid, (numbers, *_) = request.request_id, blocks.get_block_ids()
        transfer = Transfer(rid, tuple(numbers), self._asked[rid], self._asked[rid] + external)
        in_the_step, meanwhile, _ = self._plan
        if self._offers[rid].is_meanwhile:
            self._loading[rid] = transfer
            meanwhile.append(transfer)
            if self._offers[rid].kind == WHOLE_PROMPT:
                self._offers[rid] = _NOTHING
        else:
            in_the_step.append(transfer)

    def build_connector_meta(self, _batch: Any) -> TransferPlan:
        plan, self._plan = TransferPlan(*map(tuple, self._plan)), ([], [], [])
        return plan

    def update_connector_output(self, output: Any) -> None:
        for rid in output.finished_recving or ():
            loaded = self._loading.pop(rid)
            if output.invalid_block_ids.intersection(loaded.blocks):
                self._offers[rid] = _NOTHING

    def request_finished(self, request: Any, blocks: Sequence[int]) -> tuple[bool, Any]:
        """Of one that was aborted nobody knows what there is: its blocks are kept, and not read."""
        is_whole = str(request.get_finished_reason()).lower() in _ENDS
        if not (blocks or is_whole) or not self._outside.draws(2, "is handed on"):
            return False, None
        end = int(request.num_prompt_tokens) if is_whole else 0
        self._plan[2].append(Transfer(request.request_id, tuple(blocks), 0, end))
        return True, None

    def request_finished_all_groups(self, request: Any, blocks: Sequence[Sequence[int]]) -> tuple[bool, Any]:
        return self.request_finished(request, blocks[0])

    def reset_cache(self) -> bool:
        return True

    # the worker's part of the release's class, which is not this one

    def _not_here(self, *_arguments: Any, **_named: Any) -> None:
        raise NotImplementedError

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = _not_here
