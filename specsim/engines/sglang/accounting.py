"""SGLang's own host functions in place of the model's accounting.

The width of rows, allocation length, preparing, resolving, finish check, release, retraction and sessions are the
release's code, run on requests and batches of ours over the engine's memory. Rows and slots of a prefill, and asking
for an abort, are ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from specsim.choices.chooser import seeded
from specsim.engine.accounting import HostFunctionError, Memory, Observed, OwnFunctions, ResultSteps, Retracted
from specsim.engine.accounting_target import SeamPart
from specsim.engine.config import EngineConfig
from specsim.engine.features import DEVICE_FEATURES
from specsim.engine.launch import DecodeResult
from specsim.engine.lifecycle import State
from specsim.engine.locations import Locations
from specsim.engine.loop import UnsupportedScenarioError
from specsim.engine.memory.allocator import Allocator, OutOfSlotsError
from specsim.engine.memory.rows import Rows, RowsExhaustedError
from specsim.engine.memory.sessions import SessionSlot
from specsim.engine.memory.tree_node import TreeNode
from specsim.engine.observer import RunStopped
from specsim.engine.request import Request
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.sampling import bincount
from specsim.engine.sampling_params import Counts
from specsim.engine.workload import draw_scenario
from specsim.engines.packages import open_source
from specsim.engines.sglang import host_names as names
from specsim.engines.sglang import host_objects as objects
from specsim.engines.sglang import row_pool, session_classes
from specsim.engines.sglang.drift import is_of_ours
from specsim.engines.sglang.guards import read_guards
from specsim.engines.sglang.host_functions import PART_OF_ERROR, SESSION_PARTS, HostFunctions
from specsim.engines.sglang.host_lifting import lift_host_functions
from specsim.engines.sglang.locations import HostLocations
from specsim.engines.sglang.memory_classes import ReleaseSlots, make_slots
from specsim.engines.sglang.radix_classes import ReleaseTree
from specsim.engines.target import CheckoutTarget, ReleaseTarget
from specsim.errors import described
from specsim.lifting.cache import Cache
from specsim.lifting.gc_pause import without_collections
from specsim.lifting.lift import TextStore
from specsim.lifting.source import SourceTree
from specsim.verdict import NotRun

_REHEARSALS = 60

# Which of `specsim.engine.features.FEATURES` the adapter runs on host functions of every release; some have more.
FEATURES_OF_RELEASES: frozenset[str] = DEVICE_FEATURES - {"grammar"} | {
    "late results",
    "no limit",
    "tight pool",
    "timeouts",
}


def sglang_accounting(
    target: ReleaseTarget | CheckoutTarget, cache: Cache, on_rehearsal: Callable[[], None]
) -> SglangHostTarget | NotRun:
    """The accounting of a release or checkout, or why it has none."""
    # Whatever its memory launches runs on a CPU; what runs on a GPU has a process of its own.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    host = SglangHostTarget(open_source(target, cache), cache, on_rehearsal)
    return NotRun("accounting", f"it needs {', '.join(host.missing)}") if host.missing else host


class SglangHostTarget:
    """The accounting of a release or checkout of SGLang.

    Its finish check calls grammars of its own, so requests with a grammar of ours are not simulated.

    `missing` are the parts without which nothing can be simulated, with the reasons; `make` needs it to be empty.
    """

    def __init__(self, source: SourceTree, store: TextStore, on_rehearsal: Callable[[], None] = lambda: None) -> None:
        """`on_rehearsal` is called before each schedule of the rehearsal: on a busy machine they take a while."""
        self.name = source.label
        self._on_rehearsal = on_rehearsal
        with without_collections():
            self._functions = lift_host_functions(source, store)
            self._guards = read_guards(source)
        self.features = FEATURES_OF_RELEASES | self._functions.features()
        if not self._functions.missing:
            self._rehearse()
        self.missing = self._functions.missing

    @property
    def parts(self) -> list[SeamPart]:
        return self._functions.seam()

    def make(self, memory: Memory) -> SglangAccounting:
        """A fresh accounting over the memory of one run."""
        return SglangAccounting(self._functions, memory)

    def reach(self, config: EngineConfig, part: str) -> str:
        """Who reaches a defect of the seam function `part` in this configuration."""
        sizes = {"topk": config.topk}
        if part in SESSION_PARTS or part == session_classes.PART:
            return self._guards.reach_of_sessions(sizes)
        reach = self._guards.reach_of_overlap_worker(sizes)
        # A request brings penalties, and an option of the server adaptive steps; neither is there by default.
        by_option = part == names.PENALTY_FEED.part or config.adaptive
        return "option" if by_option and reach == "default" else reach

    def _rehearse(self) -> None:
        """Run a few schedules that are not checked. What a function misses on our objects shows that they do not know
        this source: its part is then not run, and nothing is found against the release.
        """
        for index in range(_REHEARSALS):
            self._on_rehearsal()
            chooser = seeded(0, "rehearsal", index)
            try:
                checked_engine(draw_scenario(chooser, self.features), chooser, self.make).run()
            except AdapterError as error:
                self._functions.give_up(error.part, error.text)
                self.features = FEATURES_OF_RELEASES | self._functions.features()
            except (UnsupportedScenarioError, HostFunctionError):
                continue
            if self._functions.missing:
                return
        self._functions.forget()


class AdapterError(UnsupportedScenarioError):
    """The seam function `part` misses something on an object of ours: nothing can be said of the release."""

    def __init__(self, part: str, text: str) -> None:
        super().__init__(f"{part} is not run: {text}")
        self.part = part
        self.text = text


class SglangAccounting:
    """One run on the host functions of a release. `state_of_accounting` of a request is the release's `Req`."""

    def __init__(self, functions: HostFunctions, memory: Memory) -> None:
        self._functions = functions
        self._memory = memory
        config = memory.config
        self._server_args = objects.server_args(config, functions.server_defaults)
        self._handles: dict[str, Any] = {}
        self._last_turns: dict[str, Request] = {}
        beyond_context = self._call("row width", functions.row_width, self._server_args)
        rows = config.rows
        if functions.pool_sizes:
            slots, rows = self._call(names.POOL_SIZE.part, functions.pool_sizes, self._server_args, config)
            if isinstance(memory.allocator, Allocator) and slots != memory.allocator.size:
                memory.allocator = memory.allocator.of_size(slots)
        memory.rows = Rows(rows, config.context_len + names.CONTEXT_UNUSED + beyond_context)
        if functions.row_type is None:
            self._pool: Any = objects.RowPool(memory.rows, functions.row)
        else:
            self._pool = self._call(row_pool.PART, row_pool.make_rows, functions.row_type, memory.rows)
        self._slots = self._make_slots(memory)
        self._memory_fields = {
            "req_to_token_pool": self._pool,
            "token_to_kv_pool_allocator": self._slots,
            "page_size": config.page_size,
        }
        self._mirror: ReleaseTree | None = None
        if config.radix and functions.radix is not None:
            ledger: Any = memory.allocator.watcher if isinstance(memory.allocator, Allocator) else None
            self._mirror = ReleaseTree(functions.radix, config, self._memory_fields, ledger, self._call)
            memory.tree, self._tree = self._mirror, self._mirror.cache
        else:
            self._tree = self._call("release", functions.make_tree, SimpleNamespace(**self._memory_fields))
        self._processor = functions.processor_type(
            config, {**self._memory_fields, "tree_cache": self._tree}, self._server_args
        )
        self.own = OwnFunctions(
            take_decode_result=self._take_decode_result if functions.process else None,
            locations=self._own_locations() if functions.draft_locations or functions.verify_locations else None,
            penalty_counts=self._penalty_counts if functions.penalty_feed else None,
            tree_gets_the_claim=True,
        )
        self._sessions: Any = None
        if functions.tree_has_sessions and functions.session_type is not None:
            self._tree.session = self._sessions = functions.session_type(self._tree)
        self._shared = {
            **objects.batch_fields(config),
            **self._memory_fields,
            "tree_cache": self._tree,
            "row_field": functions.row,
            "feeds_penalizers": bool(functions.penalty_feed),
        }

    def _make_slots(self, memory: Memory) -> Any:
        """The release's allocator, which is the engine's then too; or a stub of it over the engine's."""
        part = "token allocator" if memory.config.page_size == 1 else "paged allocator"
        released = self._functions.slot_types.get(part)
        if released is None or not isinstance(memory.allocator, Allocator):
            return self._functions.allocator_type(memory.allocator)
        watcher, size = memory.allocator.watcher, memory.allocator.size
        slots = self._call(part, make_slots, released, part, size, memory.config.page_size, watcher)
        memory.allocator = ReleaseSlots(slots, watcher, self._call, self._functions.groups_prefills)
        return slots

    def _penalty_counts(self, request: Request) -> Counts | None:
        counts = request.state_of_accounting.penalty_counts
        return None if counts is None else dict(counts)

    def _own_locations(self) -> Locations:
        """The release's own functions for the slots of a step."""
        own = HostLocations(self._memory.config, self._memory.rows.count, self._slots)
        draft, verify = self._functions.draft_locations, self._functions.verify_locations
        return Locations(
            partial(self._call, names.DRAFT_LOCATIONS.part, own.draft, *draft) if draft else None,
            partial(self._call, names.VERIFY_LOCATIONS.part, own.verify, *verify) if verify else None,
        )

    def refuses(self, config: EngineConfig) -> str:
        """Why the release does not run these functions in the configuration."""
        batch = self._batch([])
        if not self._call("decode need", lambda: getattr(batch, "is_spec_v2", True)):
            return "without overlap the release uses other workers, whose host functions are not simulated"
        if config.radix and self._mirror is None:
            return f"radix cache is not run: {self._functions.parts['radix cache'].why}"
        if config.window:
            return "sliding windows of releases are not simulated"
        return ""

    def match_prefix(self, request: Request, key_len: int) -> int:
        """As the scheduler does when it admits a request: match, lock, and the row with what was found."""
        req, functions = request.state_of_accounting, self._functions
        self._call("prefix match", req.init_next_round_input, self._tree)
        self._call("prefix match", self._tree.inc_lock_ref, req.last_node)
        found: list[int] = req.prefix_indices.tolist()
        if functions.record_type is not None and req.kv is None:
            req.kv = functions.record_type()
        self._memory.rows.write(self._take_row(req), 0, found)
        functions.committed.write(req, len(found))
        functions.allocated.write(req, len(found))
        return len(found)

    def _take_row(self, req: Any) -> int:
        """A row of the pool, for a request that has none."""
        found = self._call(row_pool.PART, self._pool.alloc, [req])
        if found is None:
            raise RowsExhaustedError(f"all {self._memory.rows.count} rows are taken")
        row: int = found[0]
        return row

    def cache_unfinished(self, request: Request) -> None:
        req, is_part = request.state_of_accounting, request.state is State.CHUNKED
        if is_part and request.turn.session:
            raise UnsupportedScenarioError(
                "a part of the first prefill of a session is not handed to the tree, by design"
            )
        named = {"chunked": True} if is_part else {}
        self._call("tree insert", lambda: self._tree.cache_unfinished_req(req, **named))

    def drop(self, request: Request) -> None:
        req = request.state_of_accounting
        req.finished_reason = self._functions.abort_type()
        self._call("release", self._functions.drop, req, self._tree)

    def retract_all(self, batch: list[Request]) -> None:
        self._call("retract", self._retract_all, [request.state_of_accounting for request in batch])

    def _retract_all(self, reqs: list[Any]) -> None:
        self._functions.retract_all(
            reqs=reqs,
            server_args=self._server_args,
            req_to_token_pool=self._pool,
            token_to_kv_pool_allocator=self._slots,
            tree_cache=self._tree,
            hisparse_coordinator=None,
        )

    def arrive(self, request: Request) -> tuple[str, str] | None:
        session = request.turn.session
        if session and session not in self._handles:
            self._open_session(session)
        handle = self._handles[session] if session else None
        functions = self._functions
        make = partial(functions.request_type, request, functions.request_fields)
        other: tuple[str, str] | None = None
        if handle is not None and functions.sessions is not None:
            before = self._last_turns.get(session)
            self._last_turns[session] = request
            if before is not None and before.key == (before.rid, 0) and functions.sessions.is_told:
                self._call(session_classes.PART, handle.abort_req)  # it never left the queue
            next_turn = partial(session_classes.next_turn, functions.sessions, handle)
            req, other = self._call(session_classes.PART, next_turn, request, make)
        else:
            req = make(handle)
        if isinstance(getattr(req, "kv", None), objects.Unknown):
            req.kv = functions.record_type()
        request.state_of_accounting = req
        return other

    def extend_alloc(self, request: Request, prefix_len: int, fill_len: int) -> None:
        """As `prepare_for_extend` and what it calls do for one request."""
        req, functions = request.state_of_accounting, self._functions
        rows = self._memory.rows
        if functions.record_type is not None and req.kv is None:
            req.kv = functions.record_type()
        row = functions.row.read(req)
        if row is None:
            row = self._take_row(req)
        last_slot = rows.read(row, prefix_len - 1, prefix_len)[0] if prefix_len else 0
        if self._mirror is not None and functions.radix is not None:
            page_size = self._memory.config.page_size
            room = fill_len - prefix_len + (page_size if page_size > 1 else 0)
            self._call("extend", functions.radix.evict, self._tree, room)
        rows.write(row, prefix_len, self._memory.allocator.extend(prefix_len, fill_len, last_slot))
        functions.committed.write(req, fill_len)
        functions.allocated.write(req, fill_len)
        req.extend_batch_idx += 1
        req.already_computed = req.fill_len = req.extend_end = fill_len
        req.extend_range = objects.StrictFields("Range", start=prefix_len, end=fill_len, length=fill_len - prefix_len)
        known = req.origin_input_ids + req.output_ids
        for name in functions.fill_ids:
            setattr(req, name, known[:fill_len] if name == names.TRUNCATED_FILL_IDS else known)
        req.is_retracted = False
        if req.penalty_counts is not None:
            begins_with = functions.penalty_feed and functions.penalty_feed.begin_with_outputs
            req.penalty_counts = bincount(req.output_ids) if begins_with else {}
        if functions.tree_has_sessions:
            self._call("session save", getattr(self._tree, names.SESSION_TAKER), req)

    def prepare(self, batch: list[Request]) -> None:
        self._call("prepare", self._functions.prepare, self._batch(batch))

    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        fields = objects.result_fields(result.next_token_ids, result.accept_lens, result.stride)
        resolve = getattr(self._processor, self._functions.resolve)
        runs: list[list[int]] = self._call("resolve", resolve, fields, self._batch(batch))
        result.accepted_drafts = getattr(fields, self._functions.batch_accepted_drafts)
        return runs

    def _take_decode_result(self, result: DecodeResult, batch: list[Request], steps: ResultSteps) -> None:
        """The release's function for all of it."""
        fields = objects.result_fields(result.next_token_ids, result.accept_lens, result.stride)
        current = self._functions.current

        def resolved(runs: list[list[int]]) -> None:
            result.accepted_drafts = getattr(fields, self._functions.batch_accepted_drafts)
            steps.resolved(runs)

        def appended(req: Any, _new_tokens: int) -> None:
            if req.output_ids is not req.seen_by_loop.outputs:
                req.seen_by_loop.outputs[:] = req.output_ids
            steps.appended(req.seen_by_loop)

        current.steps = SimpleNamespace(
            resolved=resolved,
            appended=appended,
            checked=lambda req: steps.checked(req.seen_by_loop),
            releasing=lambda req: steps.releasing(req.seen_by_loop),
            released=lambda req: steps.released(req.seen_by_loop),
        )
        self._slots.steps = steps
        try:
            self._call("result handling", getattr(self._processor, self._functions.process), self._batch(batch), fields)
        finally:
            current.steps = self._slots.steps = None

    def append(self, request: Request, run: list[int]) -> None:
        req = request.state_of_accounting
        req.output_ids += run
        if req.output_ids is not request.outputs:
            request.outputs[:] = req.output_ids

    def check_finish(self, request: Request, new_tokens: int) -> None:
        self._call("finish check", getattr(request.state_of_accounting, self._functions.finish_check), new_tokens)

    def release(self, request: Request) -> None:
        """A session's turn leaves its memory in the session, and may cut its own `output_ids` to what the client saw;
        `request.outputs` stay.
        """
        self._call("release", self._functions.release, request.state_of_accounting, self._tree)

    def decode_need(self, batch: list[Request]) -> int:
        need: int = self._call("decode need", self._batch(batch).new_tokens_required_next_decode)
        return need

    def retract(self, batch: list[Request]) -> Retracted:
        fields = self._batch(batch)
        arguments = (self._server_args,) if self._functions.retract_takes_server_args else ()
        retracted, _ratio, aborted = self._call("retract", fields.retract_decode, *arguments)
        return Retracted(*([req.seen_by_loop for req in reqs] for reqs in (fields.reqs, retracted, aborted)))

    def abort(self, request: Request) -> None:
        request.state_of_accounting.to_finish = self._functions.abort_type()

    def session_match(self, request: Request, key_len: int) -> int | None:
        req = request.state_of_accounting
        self._call("session match", req.init_next_round_input, self._tree)
        if req.session is None:
            return None
        prefix = getattr(req, self._functions.prefix)
        return prefix if isinstance(prefix, int) else len(prefix)

    def session_close(self, session: str) -> None:
        if self._handles.pop(session, None) is not None:
            self._call("session close", getattr(self._tree, names.SESSION_CLOSER), session)

    def session_slot(self, session: str) -> SessionSlot | None:
        if session not in self._handles:
            return None
        functions = self._functions
        slot = self._sessions.slots.get(session)
        row = functions.row.read(slot) if slot is not None else None
        if row is None:
            return None
        claim, allocated = functions.committed.read(slot), functions.allocated.read(slot)
        if self._mirror is None:
            return SessionSlot(row, claim, allocated)
        node = self._mirror.node_of(slot.last_node) if slot.last_node is not None else None
        return SessionSlot(row, claim, allocated, slot.cache_protected_len, node)

    def observe(self, request: Request) -> Observed:
        """The one place where the fields of a release are read."""
        req, functions = request.state_of_accounting, self._functions
        row = functions.row.read(req)
        protected, node = (0, None) if self._mirror is None or row is None else self._locked(self._mirror, req)
        return Observed(
            row,
            functions.committed.read(req) or 0,
            functions.allocated.read(req) or 0,
            len(req.output_ids),
            req.finished_reason is not None,
            req.finished_len,
            req.spec_verify_ct,
            getattr(req, functions.accepted_drafts),
            tuple(getattr(req, functions.histogram)),
            req.decode_batch_idx,
            protected,
            node,
        )

    def _locked(self, mirror: ReleaseTree, req: Any) -> tuple[int, TreeNode | None]:
        """How many positions of a request are the tree's, and where its lock is. Of a turn that goes on with what its
        session has, the lock is the session's.
        """
        node = req.last_node
        if req.session is not None and node is not None and not hasattr(node, "lock_ref"):
            node = self._sessions.slots[req.session.session_id].last_node
        return req.cache_protected_len, mirror.node_of(node) if node is not None else None

    def restore(self, request: Request, observed: Observed) -> None:
        req, functions = request.state_of_accounting, self._functions
        functions.committed.write(req, observed.committed)
        if functions.allocated.read(req) is not None:
            functions.allocated.write(req, observed.allocated)
        req.spec_verify_ct = observed.verify_count
        setattr(req, functions.accepted_drafts, observed.accepted_drafts)
        setattr(req, functions.histogram, list(observed.histogram))
        req.decode_batch_idx = observed.launches

    def _batch(self, batch: list[Request]) -> Any:
        return self._functions.batch_type([request.state_of_accounting for request in batch], self._shared)

    def _open_session(self, session: str) -> None:
        if self._functions.session_type is None:
            raise UnsupportedScenarioError(f"session save is not run: {self._functions.parts['session save'].why}")
        if self._sessions is None:
            self._tree = self._sessions = self._call("session save", self._functions.session_type, self._tree)
            self._shared["tree_cache"] = self._processor.tree_cache = self._tree
        sessions = self._functions.sessions
        handle = objects.StreamingHandle(session)
        self._handles[session] = self._call(session_classes.PART, sessions.opened, session) if sessions else handle

    def _enter(self) -> None:
        """Give the lifted functions this run's configuration and rows. The worker sets the options of the next step
        when it changes the number of steps.
        """
        current, args, steps = self._functions.current, self._server_args, self._memory.next_steps
        if steps:
            args.speculative_num_steps, args.speculative_num_draft_tokens = steps, steps + 1
        current.server_args, current.rows, current.steps_max = args, self._memory.rows, self._memory.config.num_steps
        current.config = self._memory.config

    def _call(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call into the release. What it raises is reported with the seam function and the line of the source."""
        self._enter()
        try:
            return function(*arguments)
        except (RunStopped, HostFunctionError, OutOfSlotsError):
            raise
        except Exception as error:
            inner: str = getattr(error, PART_OF_ERROR, part)
            text = f"{described(error)}{_place(error)}"
            if is_of_ours(error, self._functions.declares):
                raise AdapterError(inner, text) from error
            raise HostFunctionError(inner, text) from error


def _place(error: Exception) -> str:
    """Where in the release an error arose, as text to append: at FILE:LINE, or nothing."""
    place, frame = "", error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        place = f" at {path}:{frame.tb_lineno}" if path.startswith("srt/") else place
        frame = frame.tb_next
    return place
