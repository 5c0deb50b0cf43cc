"""A release's own engine loop with its scheduler, built by its own `EngineCore.__init__` and run in this process.

What is replaced is what it has outside itself: the sockets, the executor with its workers and models, the clock, and
the backends of grammars. Each schedule boots an engine, in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from specsim.engines.vllm.model_runner import V2
from specsim.engines.vllm.scheduler.configuration import blocks_of, configuration
from specsim.engines.vllm.scheduler.connector import Outside
from specsim.engines.vllm.scheduler.freed import watch
from specsim.engines.vllm.scheduler.grammars import manage, parameters_of
from specsim.engines.vllm.scheduler.imports import PACKAGE, PACKAGES
from specsim.engines.vllm.scheduler.kv_events import names_groups, publish
from specsim.engines.vllm.scheduler.model import Model
from specsim.engines.vllm.scheduler.release_worker import ReleaseWorker
from specsim.engines.vllm.scheduler.runners import complete, has_ring, runner_of
from specsim.engines.vllm.scheduler.setups import runner_in
from specsim.world import packages
from specsim.world.clock import Surroundings
from specsim.world.fakes import Answers
from specsim.world.hash_model import Prefixes, reasoned
from specsim.world.scheduler import Setup

ENVIRONMENT = {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "", "VLLM_NO_USAGE_STATS": "1"}
"""The first: a release hashes its first block from it, or by chance."""
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""The variable that says which model runner there is, of vllm/envs.py."""
PAUSE = 1
"""The number of a call that pauses it; others have 0."""
USER = 0
"""The number of the client that sends all requests."""
LATE = "arrives in a step"
"""The label of the choice whether a message arrives before a step, or while the engine waits for a result in it."""
REFUSED = "error"
"""Why a request ended that was refused."""

BEYOND = 32
"""Tokens that a request may be ahead of its end, in steps under way: masks hold these to the grammar, too."""

Script = Callable[[int], Sequence[Callable[[], Any]] | None]


class CallFailedError(Exception):
    """A call of one of the engine's methods raised: what it said."""


class _LeaveError(BaseException):
    """Ends the loop, which has no end of its own."""


def release_module(name: str) -> ModuleType:
    """A module of the release, by its name below `vllm.v1`."""
    return importlib.import_module(f"{PACKAGE}.v1.{name}")


def load(root: Path, edit: packages.Edit | None = None, probes: packages.Probes | None = None) -> Surroundings:
    """Import the release that lies unpacked in `root`; `edit` changes the source of its modules on the way in, and
    `probes` notes which statements of them are run.
    """
    os.environ.update(ENVIRONMENT)
    surroundings = Surroundings()
    packages.install(root, PACKAGE, PACKAGES, surroundings.modules, {}, edit, probes)
    for name in ("engine.core", "core.sched.async_scheduler"):
        release_module(name)
    return surroundings


class _Arrivals(queue.SimpleQueue[Any]):
    """What has arrived at the engine. Where it waits for more, time passes."""

    def __init__(self, receive: Callable[[], None]) -> None:
        self._receive = receive

    def get(self, *_arguments: Any, **_named: Any) -> Any:
        while self.empty():
            self._receive()
        return self.get_nowait()


class Booted:
    """An engine, ready to run a schedule."""

    def __init__(self, root: Path, setup: Setup, surroundings: Surroundings, device: Any = None) -> None:
        self.setup, self.surroundings, self.device = setup, surroundings, device
        self.iteration = 0
        self.requests: dict[str, Any] = {}
        """The engine's Request by id."""
        self.sent: list[tuple[int, Any]] = []
        """What it sent, an EngineCoreOutput, and in which iteration."""
        self.has_paused = True
        self.compiling: dict[str, int] = {}
        """By request in how many iterations its grammar is compiled."""
        self.launched: Callable[[Any], None] = lambda _batch: None
        self.draws: Callable[[int, str], int] = lambda _count, _label: 0
        self.outside = Outside(setup.page_size, fails_in_steps=not setup.overlap) if setup.connector else None
        self.publishes = setup.kv_events and (not setup.window or names_groups())
        self._answers = Answers({})
        self._script: Script | None = None
        self._late: list[Any] = []
        is_v2 = runner_in(setup, runner_of(root)) == V2
        os.environ[RUNNER] = str(int(is_v2))
        # An engine keeps what it reads of the environment, for all that its process starts.
        importlib.import_module(f"{PACKAGE}.envs").disable_envs_cache()
        with self._answers.required():
            self.config = self._configuration(root, is_v2)
            self.model = self._model(root, is_v2)
            self.core = self._built()
            if self.publishes:
                publish(self.scheduler, self.model.reports.add)

    def watch_blocks(self, below: Callable[[str], str]) -> None:
        """Have the model told who frees blocks. `below(file)` is the name of a file of the release."""
        watch(self.scheduler.kv_cache_manager.block_pool, self.model, below)

    def blocks(self, rid: str) -> Sequence[Sequence[int]]:
        """Those that the scheduler has for a request, by group of layers."""
        found: Sequence[Sequence[int]] = self.scheduler.kv_cache_manager.get_block_ids(rid)
        return found

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    def _configuration(self, root: Path, is_v2: bool) -> Any:
        sched = release_module("core.sched.async_scheduler")
        scheduler = sched.AsyncScheduler if self.setup.overlap else sched.Scheduler
        setup, publishes = self.setup, self.publishes
        config: Any = configuration(setup, self._answers, scheduler, self.outside, is_v2=is_v2, publishes=publishes)
        complete(root, config)
        self.depth = int(config.max_concurrent_batches)
        self.context = config.model_config.max_model_len = self._context(config)
        return config

    def _model(self, root: Path, is_v2: bool) -> Any:
        """A Model or a ReleaseWorker."""
        setup = self.setup
        if self.device is not None:
            kv_cache = self._kv_cache()
            return ReleaseWorker(self.config, kv_cache, setup, self.device, self._answers, self.blocks, self.outside)
        return Model(
            blocks_of(setup),
            setup.pages,
            setup.steps,
            context=self.context,
            is_told=not (is_v2 or setup.overlap),
            is_v2=is_v2,
            window=setup.window,
            ring=setup.stages if is_v2 and setup.stages > 1 and has_ring(root) else 0,
            outside=self.outside,
        )

    def _built(self) -> Any:
        booted, module = self, release_module("engine.core")

        class Core(module.EngineCoreProc):  # type: ignore[name-defined, misc]
            def _initialize_kv_caches(self, *_arguments: Any) -> Any:
                return booted._kv_cache()

            def _process_input_queue(self) -> None:
                booted._receive()
                super()._process_input_queue()

        core = Core.__new__(Core)
        core.input_queue, core.output_queue = _Arrivals(self._receive), SimpleNamespace(put_nowait=self._send)
        core.engine_index, core.engines_running, core.publish_dp_lb_stats = 0, False, False
        core.process_input_queue_block, core.reject_new_requests, core.last_counts = True, False, (0, 0)
        if (states := getattr(module, "EngineShutdownState", None)) is not None:
            core.shutdown_state = states.RUNNING
        executor = Executor if self.device is None else ReleaseExecutor
        module.EngineCore.__init__(core, self.config, lambda _config: executor(self, self.model), log_stats=False)
        manager = core.structured_output_manager
        manage(manager, lambda: self.iteration, self.compiling, reasons=self.setup.reasoning)
        return core

    def _context(self, config: Any) -> int:
        """The longest request that a server would be started for: all layers have KV of it, as the release counts. It
        is started for no more than it has room for.
        """
        blocks, specs = self.setup.slots // self.setup.page_size, self._specs()
        for length in range(config.model_config.max_model_len, 0, -1):
            config.model_config.max_model_len = length
            if sum(spec.max_memory_usage_bytes(config) // spec.page_size_bytes for spec in specs) <= blocks:
                return length
        raise ValueError(f"{blocks} blocks have room for no request")

    def _specs(self) -> list[Any]:
        """Of each group of layers."""
        kinds, setup = release_module("kv_cache_interface"), self.setup
        # Blocks of all groups have as many bytes.
        sizes = [
            {"block_size": page, "num_kv_heads": 1, "head_size": max(setup.pages) // page, "dtype": torch.float32}
            for page in setup.pages
        ]
        specs = [kinds.FullAttentionSpec(**sizes[0])]
        if setup.window:
            specs.append(kinds.SlidingWindowSpec(sliding_window=setup.window, **sizes[1]))
        return specs

    def _kv_cache(self) -> Any:
        kinds = release_module("kv_cache_interface")
        groups = [kinds.KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(self._specs())]
        return kinds.KVCacheConfig(num_blocks=blocks_of(self.setup), kv_cache_tensors=[], kv_cache_groups=groups)

    # ---- running

    def run(self, script: Script) -> None:
        """Enter the engine's loop. At each of its iterations `script(iteration)` gives what arrives, made when it does;
        the loop is left when it returns None. DriftError where the engine reads of its configuration what is not known;
        what it raises is let through.
        """
        self._script = script
        with self._answers.required(), contextlib.suppress(_LeaveError):
            self.core.run_busy_loop()

    def _receive(self) -> None:
        """What arrives before a step."""
        assert self._script is not None
        self.arrive()
        messages = self._script(self.iteration)
        if messages is None:
            raise _LeaveError
        self.iteration += 1
        self._pass_time()
        self.surroundings.next_iteration()
        for message in messages:
            made = message()
            # What comes behind a message comes after it.
            if self._late or (self.core.has_work() and self.draws(2, LATE)):
                self._late.append(made)
            else:
                self._put(*made)

    def arrive(self) -> None:
        """What arrives while the engine waits for a result."""
        self._pass_time()
        while self._late:
            self._put(*self._late.pop(0))

    def _pass_time(self) -> None:
        if self.outside is not None:
            self.outside.pass_time(self.model)

    def _put(self, kind: Any, content: Any) -> None:
        """As the thread of its sockets does."""
        if kind == self._kinds.ABORT:
            self.core.aborts_queue.put_nowait(content)
        self.core.input_queue.put_nowait((kind, content))

    def _send(self, message: Any) -> None:
        _client, outputs = message
        for output in outputs.outputs:
            self.sent.append((self.iteration, output))
        if (said := outputs.utility_output) is not None:
            if said.failure_message:
                raise CallFailedError(said.failure_message)
            self.has_paused |= said.call_id == PAUSE

    @property
    def is_idle(self) -> bool:
        core = self.core
        return not (self._late or core.batch_queue or core.scheduler.has_requests() or not core.input_queue.empty())

    # ---- messages: (kind, content)

    @property
    def _kinds(self) -> Any:
        return release_module("engine").EngineCoreRequestType

    def add(
        self,
        rid: str,
        prompt: Sequence[int],
        answer: int,
        *,
        priority: int = 0,
        grammar: Sequence[int] = (),
        compiling: int = 0,
        salt: str = "",
        is_wrong: bool = False,
        **sampling: Any,
    ) -> Any:
        """A request to generate, with a grammar that allows that text, if any, and is compiled in so many iterations,
        or then found to be none where it `is_wrong`. `sampling` are fields of SamplingParams.
        """
        if grammar or is_wrong:
            self.compiling[rid] = compiling
            sampling["structured_outputs"] = parameters_of(grammar, is_wrong=is_wrong)
        kind = release_module("engine").EngineCoreRequest
        if len(prompt) + answer == self.context and self.draws(2, "asks for more"):
            answer += self.context  # and is told no more than the context takes
        parameters = importlib.import_module(f"{PACKAGE}.sampling_params").SamplingParams
        given = {
            "request_id": rid,
            "external_req_id": rid,
            "prompt_token_ids": list(prompt),
            "sampling_params": parameters(max_tokens=answer, temperature=0.0, ignore_eos=True, **sampling),
            "arrival_time": self.surroundings.seconds(),
            "priority": priority,
            "client_index": USER,
            "cache_salt": salt or None,
        }
        values = {name: given.get(name) for name, is_needed in _fields(kind) if name in given or is_needed}
        request, wave = self.core.preprocess_add_request(kind(**values))
        self.requests[rid] = request
        self.model.prefixes[rid] = prefixes = Prefixes(list(prompt))
        if grammar:
            before = 0
            if self.setup.reasoning:
                said = [prefixes.token(len(prompt) + number) for number in range(answer + BEYOND)]
                before = reasoned(prompt, said)
            if before >= 0:
                prefixes.say(len(prompt) + before, grammar)
        return self._kinds.ADD, (request, wave)

    def abort(self, rids: Sequence[str]) -> Any:
        return self._kinds.ABORT, list(rids)

    def call(self, method: str, *arguments: Any, number: int = 0) -> Any:
        """A call of one of the engine's methods. Its answer has the number."""
        return self._kinds.UTILITY, (USER, number, method, arguments)

    def pause(self, method: str, mode: str, clears: bool) -> Any:
        self.has_paused = False
        return self.call(method, mode, clears, number=PAUSE)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """What a class is made of, and whether it has to be given."""
    fields = inspect.signature(kind).parameters.values()
    return tuple((one.name, one.default is one.empty) for one in fields)


class _Result:
    """A future of what a batch says. It may be had at once; `arrive` is called when somebody waits for it."""

    def __init__(self, value: Callable[[], Any], arrive: Callable[[], None], is_done: Callable[[], bool]) -> None:
        self._value, self._arrive, self.done = functools.cache(value), arrive, is_done

    def result(self, timeout: float | None = None) -> Any:
        self._arrive()
        return self._value()

    def add_done_callback(self, called: Callable[[Any], Any]) -> None:
        called(self)


class Executor:
    """Runs each batch as it is launched."""

    supported_tasks = ("generate",)
    is_sleeping = False

    def __init__(self, booted: Booted, model: Any) -> None:
        self._booted, self._model = booted, model
        self._outputs = release_module("outputs")
        self._batch: Any = None
        self._last: list[str] = []

    @property
    def max_concurrent_batches(self) -> int:
        return self._booted.depth

    def execute_model(self, batch: Any, non_block: bool = False) -> Any:
        """Nothing yet, where there are tokens to sample."""
        self._batch = batch
        self._booted.launched(batch)
        if batch.total_num_scheduled_tokens:
            return self._result(lambda: None, non_block)
        return self._launched(None, non_block)  # the ends of requests, at most

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        self._last = list(self._batch.num_scheduled_tokens)
        return self._launched(grammar, non_block)

    def _launched(self, grammar: Any, non_block: bool) -> Any:
        outside = self._booted.outside
        loads, failed = outside.take(self._batch.kv_connector_metadata) if outside is not None else ((), ())
        said = self._model.launch(self._batch, grammar, loads)
        return self._result(lambda: self._output(said(), failed), non_block)

    def _output(self, said: dict[str, list[int]], failed: Sequence[int]) -> Any:
        output = self._outputs.ModelRunnerOutput(
            req_ids=list(said),
            req_id_to_index={rid: at for at, rid in enumerate(said)},
            sampled_token_ids=list(said.values()),
        )
        if self._booted.outside is not None:
            come, was_read, blocks = self._booted.outside.said()
            output.kv_connector_output = self._outputs.KVConnectorOutput(
                finished_recving=come, finished_sending=was_read, invalid_block_ids=blocks.union(failed)
            )
        return output

    def _result(self, value: Callable[[], Any], non_block: bool) -> Any:
        booted = self._booted
        return _Result(value, booted.arrive, lambda: bool(booted.draws(2, "is done"))) if non_block else value()

    def take_draft_token_ids(self) -> Any:
        return self._outputs.DraftTokenIds(self._last, self._model.drafts(self._last))

    def collective_rpc(self, *_arguments: Any, **_named: Any) -> list[Any]:
        return []

    def get_kv_connector_handshake_metadata(self) -> None: ...

    def init_kv_output_aggregator(self, connector: Any) -> None:
        connector.get_finished_count()

    def reset_mm_cache(self) -> None: ...

    def reset_encoder_cache(self) -> None: ...

    def register_failure_callback(self, _callback: Any) -> None: ...


class ReleaseExecutor(Executor):
    """Has the release's own worker run each batch. The host waits for what a batch says when somebody asks for it."""

    def execute_model(self, batch: Any, non_block: bool = False) -> Any:
        self._booted.launched(batch)
        found = self._model.execute(batch)
        return self._result(lambda: found, non_block)

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        said = self._model.sample(grammar)
        return self._result(getattr(said, "get_output", lambda: said), non_block)

    def take_draft_token_ids(self) -> Any:
        return self._model.drafts()
