"""A release's own scheduler, built by its own `__init__` and run by its own loop, in this process.

What is replaced is what it has outside itself: sockets, the workers with their models, the groups of ranks, the
watchdog's thread, the clock and draws, and the device (`specsim.vdevice`, which must be installed around `boot` and
every `run`). One process boots one scheduler, once; schedules run in forks of it, or after `reset`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from specsim.contracts.registry import OPS
from specsim.engines.sgl_kernel_module import module_of
from specsim.engines.sglang.scheduler import operations
from specsim.engines.sglang.scheduler.configuration import EVICTION, EVICTION_DEFAULT
from specsim.engines.sglang.scheduler.families import Family, family_of
from specsim.engines.sglang.scheduler.freed import watch
from specsim.engines.sglang.scheduler.imports import PACKAGES
from specsim.engines.sglang.scheduler.kv_events import publish
from specsim.engines.sglang.scheduler.modules import PACKAGE, release_module
from specsim.engines.sglang.scheduler.ngram import corpus_class
from specsim.engines.sglang.scheduler.options import Options
from specsim.engines.sglang.scheduler.outputs import Pool, SentOutput, take, uneven
from specsim.engines.sglang.scheduler.release_worker import ReleaseWorker, runner_class
from specsim.engines.sglang.scheduler.worker import Tables, Worker
from specsim.errors import UsageError
from specsim.vdevice.device import active
from specsim.world import packages
from specsim.world.clock import Surroundings
from specsim.world.fakes import AdapterDriftError, NotRunError
from specsim.world.kv_events import Published

ENVIRONMENT = {
    "SGLANG_ENABLE_WAR_BARRIER": "1",
    "TRITON_INTERPRET": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

TREE_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
"""The variable that says in which language the tree of the unified radix cache is; of srt/environ.py."""

RIGHT = 12
"""See `ReleaseWorker`: long drafts that are all accepted are rare else."""

AHEAD = (
    "numpy.ma",
    "numpy.random",
    f"{PACKAGE}.srt.models.registry",
    f"{PACKAGE}.srt.speculative.eagle_info",
    "specsim.interpreter.lockstep.launch",
)
"""What is imported late, at a release's start or in a schedule. Here it is imported before the forks, each of which
would do it again.
"""

HOOKS = (
    "_add_request_to_queue",
    "init_ipc_channels",
    "init_tp_model_worker",
    "maybe_init_draft_worker",
    "run_event_loop",
)
"""Methods of the scheduler in whose place others are put, or that are called."""

REFERENCE = module_of({name: op.reference for name, op in OPS.items()})
"""What the compiled operations of a release's workers are here."""

Script = Callable[["Booted", int], Sequence[Any] | None]


class _LeaveError(BaseException):
    """Ends the scheduler's loop, which has no end of its own."""


def boot(root: Path, options: Options, device: Any, *, edit: packages.Edit | None = None) -> Booted:
    """Build the scheduler of the release that lies unpacked in `root`. `device` is a `specsim.vdevice.Device`.

    Whatever the release raises while it is imported or built is let through. UsageError where its family cannot be run
    so, NotRunError where the release itself has it otherwise; DriftError, which is one, when it reads of a fake what
    the adapter does not know.
    """
    family, surroundings = load(root, edit)
    with family.answers.required():
        return Booted(family, root, options, device, surroundings)


def load(
    root: Path, edit: packages.Edit | None = None, probes: packages.Probes | None = None
) -> tuple[Family, Surroundings]:
    """Import the release that lies unpacked in `root`; `edit` changes the source of its modules on the way in, and
    `probes` notes which statements of them are run.
    """
    os.environ.update(ENVIRONMENT)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    vars(logging)["Logger"].warning_once = logging.Logger.warning  # as the package transformers adds it
    torch.version.cuda = None  # some of what a release imports where torch is built for CUDA is not there
    surroundings = Surroundings()
    compiled = operations.modules(active, REFERENCE)
    packages.install(root, PACKAGE, PACKAGES, surroundings.modules, compiled, edit, probes)
    family = family_of(importlib.import_module(f"{PACKAGE}.srt.managers.scheduler"))
    for name in AHEAD:
        with contextlib.suppress(ModuleNotFoundError):  # of a release that has it elsewhere
            importlib.import_module(name)
    return family, surroundings


class Booted:
    """A scheduler, ready to run schedules."""

    def __init__(self, family: Family, root: Path, options: Options, device: Any, surroundings: Surroundings) -> None:
        if refusal := family.refusal(options):
            raise UsageError(refusal, "use another setup")
        self.family, self.options, self.device, self.surroundings = family, options, device, surroundings
        os.environ[EVICTION] = str(options.window_lag or EVICTION_DEFAULT)
        os.environ[TREE_CORE] = "rust" if options.rust_tree else "python"
        self._outputs: dict[str, SentOutput] = {}  # what the scheduler sent to the tokenizer so far
        self.iteration = 0  # of the loop, counted from the last reset
        self.requests: dict[str, Any] = {}  # the scheduler's Req by id, as last seen
        # Their prompts, as first seen: from 0.5.14 on the next turn of a session extends the array of the one before.
        self.prompts: dict[str, tuple[int, ...]] = {}
        self._script: Script | None = None
        self.worker: Worker | ReleaseWorker
        if options.kv_events:
            publish(lambda: self.radix_tree, self._note_published)
        self.server_args = family.server_arguments(options, str(root))
        family.publish(self.server_args)
        family.set_groups()
        family.switch_to_device()
        family.order_penalizers()
        if options.hicache:
            family.prepare_hierarchical_cache(lambda memory: device.track_elements(memory, "the host's KV"))
        self.scheduler = self._built()
        if self.scheduler.enable_overlap != options.overlap:
            raise NotRunError(f"the release has set enable_overlap to {self.scheduler.enable_overlap} by itself")
        if self.scheduler.is_mixed_chunk != options.mixed_chunk:
            raise UsageError("the release turns mixed chunks off beside EAGLE", "use another setup")
        self.scheduler.result_queue = deque()
        self.scheduler.tokenizer = family.tokenizer
        self.scheduler.grammar_manager.grammar_backend = family.grammars
        family.receive_by(self.scheduler, self._receive)
        torch.cuda.synchronize()  # as long before the first request as a server's start is

    def _built(self) -> Any:
        booted, family, options = self, self.family, self.options
        module = family.scheduler
        if lacks := [f"Scheduler.{name}" for name in HOOKS if not hasattr(module.Scheduler, name)]:
            raise AdapterDriftError([], lacks)
        stream: Any = torch.cuda.Stream()
        stream.name = "forward"

        class Scheduler(module.Scheduler):  # type: ignore[name-defined, misc]
            def init_ipc_channels(self, *_arguments: Any) -> None:
                family.channels(self, booted._send)

            def init_tp_model_worker(self) -> None:
                if options.worker == "release":
                    booted._put_runner(self)
                    super().init_tp_model_worker()
                    return
                pools = family.pools(options, self)
                self.tp_worker = family.target_worker(options, self, pools, stream)
                booted._remember(pools)
                booted.worker = booted._fake_worker(self, pools[2])

            def maybe_init_draft_worker(self) -> None:
                if options.worker == "release":
                    super().maybe_init_draft_worker()
                    watcher = booted.worker
                    assert isinstance(watcher, ReleaseWorker)
                    watcher.watch(vars(self)["draft_worker"])
                    return
                self.draft_worker = booted.worker
                self.external_corpus_manager = None

            def recv_requests(self, *_arguments: Any, **_named: Any) -> Any:
                return booted._receive()

        vars(module)["create_scheduler_watchdog"] = lambda *_arguments, **_named: family.fake("watchdog")
        ports = family.fake("port_args", nccl_port=29500)
        return Scheduler(**family.scheduler_arguments(self.server_args, ports))

    def _remember(self, pools: tuple[Any, Any, Any]) -> None:
        self.row_pool, self.allocator, _kv = pools
        self.req_to_token = self.row_pool.req_to_token
        self.device.track_elements(self.req_to_token, "req_to_token")
        self._mapping = self.allocator.full_to_swa_index_mapping if self.options.sliding_window else None
        if self._mapping is not None:
            self.device.track_elements(self._mapping, "full_to_swa_index_mapping")

    def _note_published(self, published: Published) -> None:
        self.worker.reports.add(published)

    def _fake_worker(self, scheduler: Any, pool: Any) -> Worker:
        options = self.options
        slots, window_slots = (
            size + options.page_size + 1 for size in (options.max_total_tokens, options.window_slots)
        )
        tables = Tables(self.req_to_token, self._mapping, options.sliding_window, pool if options.hicache else None)
        worker = Worker(
            self.family.answers,
            self.device,
            self.family.parts(),
            tables,
            (slots, window_slots),
            options.num_draft_tokens,
            **self.family.draft_attributes(scheduler),
        )
        watch(self.allocator, self.device, worker.kv)
        return worker

    def _put_runner(self, scheduler: Any) -> None:
        """Have the release's workers run ours in place of its ModelRunner."""
        family, options = self.family, self.options
        module = release_module("model_executor.model_runner")

        def make(runner: Any) -> tuple[Any, Any, Any]:
            if runner.is_draft_worker:
                return runner.req_to_token_pool, runner.token_to_kv_pool_allocator, family.kv_pool(options)
            return pools

        pools = family.pools(options, scheduler)
        self._remember(pools)
        right = RIGHT if options.adaptive else 0
        worker = ReleaseWorker(self.device, options.steps, right, by_slot=bool(options.hicache))
        worker.watch_operations(REFERENCE)
        vars(module)["ModelRunner"] = runner_class(module, worker, make, family.answers, options)
        self.worker = worker
        if options.drafter == "ngram":
            vars(release_module("speculative.cpp_ngram.ngram_corpus"))["NgramCorpus"] = corpus_class(worker)
        vars(release_module("managers.tp_worker"))["broadcast_pyobj"] = lambda data, *_of_ranks, **_named: data

    # ---- running

    @property
    def tree_cache(self) -> Any:
        return self.scheduler.tree_cache

    @property
    def radix_tree(self) -> Any:
        """The tree cache, without what keeps sessions apart from it."""
        tree = self.tree_cache
        while hasattr(tree, "inner"):
            tree = tree.inner
        return tree

    def run(self, script: Script) -> None:
        """Enter the scheduler's loop. At each of its iterations `script(self, iteration)` gives the requests that
        arrive; the loop is left when it returns None. DriftError as `boot`; what the scheduler raises is let through.
        """
        self._script = script
        with self.family.answers.required(), contextlib.suppress(_LeaveError):
            self.scheduler.run_event_loop()

    def reset(self, accept: Callable[[str, int], int], seed: int = 0) -> None:
        """Forget the last schedule, by the scheduler's own flush; it must be idle. See `Worker.restart`."""
        self.surroundings.restart(seed)
        self.family.reset(self.scheduler)
        self.tree_cache.take_events()
        torch.cuda.synchronize()
        self.worker.restart(accept)
        self._outputs.clear()
        self.requests.clear()
        self.prompts.clear()
        self.iteration = 0

    def idle(self) -> bool:
        """Nothing waits, nothing runs, and no result is outstanding."""
        scheduler = self.scheduler
        return not (
            scheduler.waiting_queue
            or scheduler.grammar_manager.grammar_queue
            or not scheduler.running_batch.is_empty()
            or scheduler.last_batch is not None
            or scheduler.result_queue
            or self._is_copying()
            or getattr(scheduler, "cur_batch", None) is not None
        )

    def _is_copying(self) -> bool:
        """Whether copies of a hierarchical cache are under way, or done and not known to be."""
        if not self.options.hicache:
            return False
        made = self.radix_tree.cache_controller
        return any((made.write_queue, made.load_queue, made.ack_write_queue, made.ack_load_queue))

    @property
    def host_pool(self) -> Any:
        """The pool of KV in the host's memory, of a hierarchical cache; None without one."""
        if not self.options.hicache:
            return None
        pool = self.radix_tree.cache_controller.mem_pool_host
        return pool.anchor_entry.host_pool if hasattr(pool, "anchor_entry") else pool

    def running(self) -> list[Any]:
        """Requests of the batch that decodes and of the last one that was launched, each once."""
        scheduler = self.scheduler
        batches = _requests_of(scheduler.running_batch), _requests_of(scheduler.last_batch)
        return list({id(request): request for batch in batches for request in batch}.values())

    def outputs(self) -> dict[str, SentOutput]:
        """What has been sent of each request, by its id."""
        return self._outputs

    def window_slots(self) -> list[int]:
        """By slot of the full pool that of the sliding window's, 0 for none. At rest: the device has done all."""
        mapping: Any = self._mapping
        slots: list[int] = mapping.host_bytes.tolist()
        return slots

    def pools(self) -> list[Pool]:
        """Slots and rows as the allocator and the cache count them."""
        options, allocator, cache = self.options, self.allocator, self.tree_cache
        rows = Pool("rows", options.max_running_requests, len(self.row_pool.free_slots))
        if not options.sliding_window:
            return [Pool("full", options.max_total_tokens, allocator.available_size(), cache.evictable_size()), rows]
        full = allocator.full_available_size(), cache.full_evictable_size()
        window = allocator.swa_available_size(), cache.swa_evictable_size()
        return [Pool("full", options.max_total_tokens, *full), Pool("window", options.window_slots, *window), rows]

    def _receive(self, *_arguments: Any, **_named: Any) -> Sequence[Any]:
        scheduler = self.scheduler
        for batch in (
            scheduler.waiting_queue,
            _requests_of(scheduler.running_batch),
            _requests_of(scheduler.last_batch),
        ):
            for request in batch:
                if self.requests.get(request.rid) is not request:
                    self.requests[request.rid] = request
                    self.prompts[request.rid] = tuple(request.origin_input_ids)
        assert self._script is not None
        arriving = self._script(self, self.iteration)
        if arriving is None:
            raise _LeaveError
        self.iteration += 1
        self.surroundings.next_iteration()
        self.family.grammars.next_iteration()
        return arriving

    def _send(self, message: Any, *_arguments: Any) -> None:
        for found in uneven(message):
            self.worker.reports.add_first("", found.name, found)
        take(self._outputs, message)

    # ---- what arrives

    def generate(
        self,
        rid: str,
        input_ids: Sequence[int],
        max_new_tokens: int,
        *,
        session: str = "",
        logprobs: int = -1,
        prompt_logprobs: int = -1,
        hidden: str = "",
        stream: bool = False,
        **sampling: Any,
    ) -> Any:
        """A request to generate. `sampling` are fields of SamplingParams; for the others see `Turn`."""
        given = {"temperature": 0.0, "ignore_eos": True, **sampling}
        fields = {
            "rid": rid,
            "input_text": "",
            "input_ids": list(input_ids),
            "mm_inputs": None,
            "sampling_params": self.family.sampling(max_new_tokens=max_new_tokens, **given),
            "return_logprob": max(logprobs, prompt_logprobs) >= 0,
            "logprob_start_len": prompt_logprobs,
            "top_logprobs_num": max(logprobs, 0),
            "token_ids_logprob": None,
            "stream": stream,
            "return_hidden_states": self.family.hidden_states(hidden),
        }
        messages = self.family.messages()
        if session:
            fields["session_params"] = messages.SessionParams(id=session)
        return self.family.request(**fields)

    def abort(self, rid: str | None = None) -> Any:
        """Abort the requests whose id begins with `rid`, as the scheduler matches them; all of them for None."""
        return self.family.messages().AbortReq(rid=rid or "", abort_all=rid is None)

    def open_session(self, session: str, capacity: int = 0, timeout: float | None = None) -> Any:
        return self.family.messages().OpenSessionReqInput(
            capacity_of_str_len=capacity,
            session_id=session,
            streaming=self.options.streaming_sessions,
            timeout=timeout,
        )

    def close_session(self, session: str) -> Any:
        return self.family.messages().CloseSessionReqInput(session_id=session)

    def flush(self) -> Any:
        return self.family.messages().FlushCacheReqInput()

    def pause(self, mode: str = "in_place") -> Any:
        """Stop inference: "in_place" keeps the KV of requests, "retract" frees it."""
        return self.family.messages().PauseGenerationReqInput(mode=mode)

    def resume(self) -> Any:
        return self.family.messages().ContinueGenerationReqInput()


def _requests_of(batch: Any) -> Sequence[Any]:
    return batch.reqs if batch is not None else ()
