"""What differs between releases, by what a release has and not by its number: `family_of` looks for it.

`Family` is the oldest shape; each class after it says what changed. `defaults` is what the fakes of a family answer
when they are asked for what they were not given (`fakes.Answers`); anything else that a release reads of them is drift.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import torch

from specsim.engines.sglang.scheduler.configuration import EVICTION, FULL_LAYER, KV_EVENTS, WINDOW_LAYER
from specsim.engines.sglang.scheduler.grammar import Backend
from specsim.engines.sglang.scheduler.modules import home_of, imported_modules, is_there, release_module, replace_in
from specsim.engines.sglang.scheduler.options import Options
from specsim.engines.sglang.scheduler.tokenizer import Tokenizer
from specsim.engines.sglang.scheduler.worker import Parts
from specsim.world.fakes import AdapterDriftError, Answers, Fake, nothing

GROUPS = ("get_tp_group", "get_attention_tp_group", "get_attention_cp_group", "get_pp_group", "get_world_group")


GRAPH_SIZES = (1, 2, 4, 8)
"""Batches that CUDA graphs are captured for; others are padded."""

SET = "set"  # anything that is not None
ATTENTION = SimpleNamespace(needs_cpu_seq_lens=True)  # a backend that has the lengths of sequences sent to the host

EVERY: Mapping[str, Any] = {
    "watchdog.feed": nothing,
    "draft_worker.clear_cache_pool": nothing,
    "draft_worker.on_verify_complete_cpu": nothing,
    "tp_worker.get_pad_input_ids_func": nothing,
}
STEPS: Mapping[str, Any] = {  # of a worker's start, which the scheduler takes one by one
    "draft_worker.alloc_memory_pool": nothing,
    "draft_worker.init_attention_backends": nothing,
    "draft_worker.init_cuda_graphs": nothing,
    "draft_worker.prepare_for_kv_cache_release": nothing,
    "draft_worker.spec_v2_attn_backends": (ATTENTION,),
    "tp_worker.init_attention_backends": nothing,
    "tp_worker.init_cuda_graphs": nothing,
    "model_runner.attn_backend": ATTENTION,
    "model_runner.canary_manager": None,
    "model_runner.memory_pool_config": SET,  # the pools are there
}

TIMES: Mapping[str, Any] = {
    "draft_worker.graph_time_usage": {},
    "draft_worker.hicache_draft_plan": None,
    "draft_worker.init_hicache_draft_plan": nothing,
    "draft_worker.prewarm_sampling": nothing,
    "draft_worker.primary_draft_kv_pool": None,
    "draft_worker.weight_load_time": 0.0,
    "tp_worker.graph_time_usage": {},
    "tp_worker.weight_load_time": 0.0,
    "model_runner.mtp_draft_device_pools": (),
    "model_runner.ngram_embedding_manager": SimpleNamespace(prepare_for_forward=lambda batch, **_: batch),
    "model_runner.prefill_aware_swa": False,
    "kvcache.post_capture_active": False,
}


class Family:
    """To 0.5.12: the scheduler is one object with mixins, and groups of ranks are module globals."""

    defaults: Mapping[str, Any] = {}

    def __init__(self, scheduler: ModuleType) -> None:
        self.scheduler = scheduler  # the module
        self.answers = Answers(self.defaults)
        self.tokenizer = Tokenizer(self.answers)
        self.grammars = Backend(self.answers, self.tokenizer)

    def fake(self, name: str, **given: Any) -> Fake:
        return Fake(name, self.answers, **given)

    # ---- before the scheduler is built

    def refusal(self, options: Options) -> str:
        """Why these options cannot be run on this family; "" where they can."""
        if options.hidden_states and options.worker == "fake":
            return "the fake worker makes no hidden states"
        if options.window_lag and not self.evicts_by_tokens:
            return "it gives KV behind a window back after so many steps as the window has tokens"
        return ""

    def server_arguments(self, options: Options, model_path: str) -> Any:
        """ServerArgs of the options, as the release itself validates and completes them."""
        arguments: dict[str, Any] = {
            "model_path": model_path,
            "device": "cuda" if options.drafter == "ngram" else "cpu",  # to 0.5.15.post1 n-grams are for CUDA alone
            "speculative_algorithm": options.drafter.upper(),
            "speculative_num_steps": options.steps,
            "speculative_eagle_topk": options.topk,
            "speculative_num_draft_tokens": options.num_draft_tokens,
            "speculative_draft_model_path": model_path,
            "skip_tokenizer_init": True,
            "page_size": options.page_size,
            "max_total_tokens": options.max_total_tokens,
            "max_running_requests": options.max_running_requests,
            "attention_backend": "torch_native",
            "load_format": "dummy",
            "chunked_prefill_size": options.chunked_prefill_size,
            "context_length": options.context_length,
            "mem_fraction_static": 0.5,
            "random_seed": 0,
            "disable_radix_cache": not options.radix_cache,
            "enable_mixed_chunk": options.mixed_chunk,
            "enable_priority_scheduling": options.priority_scheduling,
            "disable_overlap_schedule": not options.overlap,
            "schedule_conservativeness": options.schedule_conservativeness,
        }
        if options.drafter == "ngram":
            arguments |= {"speculative_draft_model_path": None, "speculative_num_steps": None}
            arguments |= {"speculative_eagle_topk": None, "speculative_ngram_max_bfs_breadth": options.topk}
        if options.hidden_states:
            arguments["enable_return_hidden_states"] = True
        if options.hicache:
            arguments |= {"enable_hierarchical_cache": True, "hicache_write_policy": options.hicache}
            arguments |= {"hicache_ratio": 2.0, "hicache_io_backend": "kernel", "hicache_mem_layout": "layer_first"}
        if options.kv_events:
            arguments["kv_events_config"] = KV_EVENTS
        if options.multi_layer:
            arguments["enable_multi_layer_eagle"] = True
        if options.adaptive:
            arguments |= {"speculative_adaptive": True, "speculative_adaptive_config": "adaptive.json"}
            text = json.dumps(_adaptive(options.steps))
            vars(release_module("speculative.adaptive_spec_params"))["open"] = lambda _path: io.StringIO(text)
        if options.streaming_sessions:
            arguments["enable_streaming_session"] = True
        if is_there("arg_groups.speculative_hook"):
            replace_in(release_module("arg_groups.speculative_hook"), "_disable_overlap_schedule_for_cpu", nothing)
        if options.worker == "release":
            arguments |= {"attention_backend": "triton", "sampling_backend": "pytorch", "dtype": "float32"}
            arguments |= self.graph_arguments(options)
        made = release_module("server_args").ServerArgs(**arguments)
        if options.worker == "release":
            _set(made, "device", "cuda")  # only now: they are checked on a machine that has none
        if options.beyond_guards:
            _set(made, "disable_overlap_schedule", not options.overlap)
        return made

    def graph_arguments(self, options: Options) -> dict[str, Any]:
        if not options.cuda_graphs:
            return {"disable_cuda_graph": True}
        if "cuda_graph_bs_decode" in inspect.signature(release_module("server_args").ServerArgs).parameters:
            return {"cuda_graph_bs_decode": list(GRAPH_SIZES), "disable_prefill_cuda_graph": True}
        return {"cuda_graph_bs": list(GRAPH_SIZES), "disable_piecewise_cuda_graph": True}

    def publish(self, server_arguments: Any) -> None:
        """Make the arguments known where the release looks for them."""
        release_module("server_args").set_global_server_args_for_scheduler(server_arguments)

    def group(self) -> Fake:
        """A group of ranks that is one rank alone."""
        return self.fake(
            "group",
            cpu_group=None,
            device_group=None,
            rank=0,
            world_size=1,
            rank_in_group=0,
            ranks=[0],
            is_first_rank=True,
            is_last_rank=True,
            device="cpu",
            first_rank=0,
            local_rank=0,
            ca_comm=None,
            pcie_ipc_comm=None,
            pynccl_comm=None,
            barrier=nothing,
            graph_capture=_graph_capture,
        )

    def set_groups(self) -> None:
        """Put that group where the release looks for each of its groups."""
        group = self.group()
        for name in GROUPS:
            if hasattr(self.scheduler, name):
                setattr(self.scheduler, name, lambda: group)
        state = release_module("distributed.parallel_state")
        for name in ("_TP", "_PP", "_WORLD", "_MOE_EP", "_MOE_TP", "_ATTN_TP", "_ATTN_CP", "_SELF_PP"):
            if hasattr(state, name):
                setattr(state, name, group)

    def switch_to_device(self) -> None:
        """Have the release take the paths that it takes on a GPU; its arguments say that there is none."""
        replace_in(release_module("managers.overlap_utils"), "_is_cuda", True)
        replace_in(self.scheduler, "is_cuda", lambda: True)
        for module in imported_modules():
            replace_in(module, "is_pin_memory_available", lambda *_arguments, **_named: True)
            replace_in(module, "get_device_module", lambda: torch.cuda)
            replace_in(module, "device_module", torch.cuda)

    def prepare_hierarchical_cache(self, track: Callable[[Any], None]) -> None:
        """Have the memory of its pool on the host be what the device reaches, from the start: a release registers
        memory of PyTorch's afterwards. `track` is told of it.
        """
        module = home_of("HostTensorAllocator")
        if module is None:
            raise AdapterDriftError([], ["HostTensorAllocator"])

        def allocate(_allocator: Any, dims: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
            made = torch.empty(dims, dtype=dtype, device=device, pin_memory=True)
            track(made)
            return made

        module.HostTensorAllocator.allocate = allocate
        # To 0.5.19 the cache asks PyTorch how many ranks there are in a group that is not there.
        torch.distributed.get_world_size = lambda group=None: 1

    def order_penalizers(self) -> None:
        """Have the penalizers of a batch in the order of their names. A release gives them as a set of classes, in the
        order of their addresses: another one in each process.
        """
        if not is_there("sampling.penaltylib.orchestrator"):  # a checkout without it lacks more, by name
            return
        orchestrator = release_module("sampling.penaltylib.orchestrator").BatchedPenalizerOrchestrator
        make = orchestrator.__init__

        def make_ordered(made: Any, vocab_size: int, batch: Any, penalizers: Iterable[type]) -> None:
            make(made, vocab_size, batch, sorted(penalizers, key=lambda kind: kind.__name__))

        orchestrator.__init__ = make_ordered

    def channels(self, scheduler: Any, send: Callable[..., None]) -> None:
        """Attributes in place of sockets; what is sent is given to `send`."""
        scheduler.idle_sleeper = None
        scheduler.recv_from_tokenizer = scheduler.recv_from_rpc = None
        scheduler.send_to_tokenizer = self.fake("send_to_tokenizer", send_output=send)
        scheduler.send_to_detokenizer = self.fake("send_to_detokenizer", send_output=send)
        scheduler.load_snapshot_writer = None
        scheduler.ipc_channels = self.fake(
            "ipc_channels",
            recv_from_tokenizer=None,
            recv_from_rpc=None,
            send_to_tokenizer=scheduler.send_to_tokenizer,
            send_to_detokenizer=scheduler.send_to_detokenizer,
            send_metrics_from_scheduler=None,
        )

    # ---- the parts of a worker

    def parts(self) -> Parts:
        draft_input = release_module("speculative.eagle_info").EagleDraftInput
        result = release_module("managers.utils").GenerationBatchResult
        logits = release_module("layers.logits_processor").LogitsProcessorOutput
        fields = frozenset(draft_input.__dataclass_fields__)
        return Parts(
            result=result,
            result_fields=frozenset(result.__dataclass_fields__),
            draft_input=draft_input,
            draft_fields=fields,
            bonus=next(name for name in ("verified_id", "bonus_tokens") if name in fields),
            logits=lambda: logits(next_token_logits=None),
        )

    def pools(self, options: Options, scheduler: Any) -> tuple[Any, Any, Any]:
        """(the table of rows, the allocator, the KV pool) on the device, with the release's own classes and, for rows,
        their width.
        """
        rows = release_module("mem_cache.memory_pool").ReqToTokenPool(
            size=options.max_running_requests,
            max_context_len=scheduler.model_config.context_len + self._beyond_context(options, scheduler.server_args),
            device="cuda",
            enable_memory_saver=False,
        )
        if options.sliding_window:
            allocator, kv = self._window_pools(options)
        else:
            kv = self.kv_pool(options)
            allocator = self._allocator(options, kv)
        for one in (
            allocator,
            *(getattr(allocator, name, None) for name in ("full_attn_allocator", "swa_attn_allocator")),
        ):
            if hasattr(one, "use_triton_kernels"):
                one.use_triton_kernels = True
        return rows, allocator, kv

    def kv_pool(self, options: Options) -> Any:
        """The pool of KV of a model of one layer: a hash for each key and value. Where the worker is fake, so is this,
        and the worker has the hashes; but not where a hierarchical cache copies what is in it.
        """
        sizes: dict[str, Any] = {"size": options.max_total_tokens, "page_size": options.page_size, "layer_num": 1}
        if options.worker == "fake" and not options.hicache:
            return self.fake("kvcache", **sizes)
        pool = release_module("mem_cache.memory_pool").MHATokenToKVPool(
            dtype=torch.int64,
            head_num=1,
            head_dim=1,
            device="cuda",
            enable_memory_saver=False,
            enable_kv_cache_copy=True,
            **sizes,
        )
        if options.multi_layer and not hasattr(pool, "translate_loc_from_full_to_swa"):
            # To 0.5.12 the worker's graphs take the pool of a model with a sliding window; no layer here has one.
            pool.translate_loc_from_full_to_swa = lambda slots: slots
        return pool

    def _allocator(self, options: Options, kv: Any) -> Any:
        module = release_module("mem_cache.allocator")
        common = {"dtype": torch.float32, "device": "cuda", "kvcache": kv, "need_sort": False}
        if options.page_size == 1:
            return module.TokenToKVPoolAllocator(options.max_total_tokens, **common)
        return module.PagedTokenToKVPoolAllocator(options.max_total_tokens, page_size=options.page_size, **common)

    def _window_pools(self, options: Options) -> tuple[Any, Any]:
        module = release_module("mem_cache.swa_memory_pool")
        is_read = options.worker == "release"  # of the fake worker it has the hashes
        common = {"page_size": options.page_size, "device": "cuda"}
        kinds = module.SWAKVPool, release_module("mem_cache.memory_pool").MHATokenToKVPool
        transposes = any("enable_kvcache_transpose" in inspect.signature(kind).parameters for kind in kinds)
        kv = module.SWAKVPool(
            size=options.max_total_tokens,
            size_swa=options.window_slots,
            head_num=1,
            head_dim=1,
            full_attention_layer_ids=[FULL_LAYER],
            swa_attention_layer_ids=[WINDOW_LAYER],
            enable_memory_saver=False,
            dtype=torch.int64 if is_read else torch.float32,
            **({"enable_kvcache_transpose": False} if transposes else {}),
            **({"enable_kv_cache_copy": True} if is_read else {}),
            **common,
        )
        home = home_of("SWATokenToKVPoolAllocator") or module
        allocator = home.SWATokenToKVPoolAllocator(
            options.max_total_tokens, options.window_slots, kvcache=kv, need_sort=False, dtype=torch.float32, **common
        )
        return allocator, kv

    def _beyond_context(self, options: Options, server_arguments: Any) -> int:
        """Positions of a row beyond the context: what the release says, or in older ones what its line adds up."""
        name = "get_req_to_token_extra_context_len"
        if (module := home_of(name)) is not None:
            size = getattr(module, name)
            return int(size(server_arguments) if inspect.signature(size).parameters else size())
        return 4 + options.num_draft_tokens  # model_runner_kv_cache_mixin.py:245 in 0.5.12

    def target_worker(self, options: Options, scheduler: Any, pools: tuple[Any, Any, Any], stream: Any) -> Fake:
        rows, allocator, kv = pools
        config, total = scheduler.model_config, options.max_total_tokens
        longest = min(config.context_len - 1, total - 1)
        information = (
            total,
            scheduler.server_args.max_prefill_tokens,
            options.max_running_requests,
            None,  # queued requests, at most
            longest,
            longest - 5,
            0,  # seed
            "cuda",
            stream,
            rows.size,
            rows.max_context_len,
            total,
        )
        runner = self.fake(
            "model_runner",
            model_config=config,
            device="cuda",
            forward_stream=stream,
            token_to_kv_pool=kv,
            is_hybrid_swa=bool(options.sliding_window),
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=allocator,
        )
        return self.fake(
            "tp_worker",
            model_runner=runner,
            is_hybrid_swa=bool(options.sliding_window),
            sliding_window_size=options.sliding_window or None,
            model_config=config,
            device="cuda",
            get_tokens_per_layer_info=lambda: (total, options.window_slots),
            get_worker_info=lambda: information,
            get_memory_pool=lambda: (rows, allocator),
            register_hicache_layer_transfer_counter=nothing,
        )

    def draft_attributes(self, scheduler: Any) -> dict[str, Any]:
        """What the draft worker is given beside what `worker.Worker` has: a draft model like the target's."""
        config, algorithm = scheduler.model_config, scheduler.spec_algorithm
        runner = self.fake("draft_runner", model_config=config, spec_algorithm=algorithm)
        return {"draft_worker": self.fake("draft", draft_runner=runner)}

    # ---- the scheduler

    def scheduler_arguments(self, server_arguments: Any, port_arguments: Any) -> dict[str, Any]:
        ranks = dict.fromkeys(("gpu_id", "tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank"), 0)
        every = {"server_args": server_arguments, "port_args": port_arguments, **ranks, "dp_rank": None}
        return _accepted(self.scheduler.Scheduler, **every)

    def receive_by(self, scheduler: Any, receive: Callable[..., Any]) -> None:
        """Where requests are received by another object than the scheduler: have that call `receive`."""
        if hasattr(scheduler, "request_receiver"):
            scheduler.request_receiver = self.fake("request_receiver", recv_requests=receive)

    def request(self, **fields: Any) -> Any:
        """A TokenizedGenerateReqInput; what it has no default for and was not given is None."""
        made = release_module("managers.io_struct").TokenizedGenerateReqInput
        if hasattr(made, "__struct_fields__"):
            fields = {**dict.fromkeys(_required(made)), **fields}
        if "array" in str(made.__annotations__.get("input_ids")):
            fields["input_ids"] = array("q", fields["input_ids"])
        return made(**fields)

    def hidden_states(self, wanted: str) -> bool | str:
        """What a request says that wants them, see `Turn`."""
        return "last" if wanted == "last" and self.knows_last_hidden_state else bool(wanted)

    @property
    def evicts_by_tokens(self) -> bool:
        """To 0.5.13.post1 KV behind a window is given back after so many steps as the window has tokens."""
        return hasattr(release_module("environ").envs, EVICTION)

    @property
    def knows_last_hidden_state(self) -> bool:
        """To 0.5.16 a request is sent all hidden states or none."""
        return hasattr(release_module("managers.schedule_batch"), "get_return_hidden_states_mode")

    def sampling(self, **fields: Any) -> Any:
        parameters = release_module("sampling.sampling_params").SamplingParams(**fields)
        parameters.normalize(self.tokenizer)
        return parameters

    def reset(self, scheduler: Any) -> None:
        """Put the scheduler back to where it was after it was built."""
        if scheduler.flush_cache() is False:
            raise RuntimeError("the scheduler is not idle, and refuses to flush its cache")
        scheduler.forward_ct = 0
        scheduler.last_batch = None
        if hasattr(scheduler, "init_new_token_ratio"):
            scheduler.new_token_ratio = scheduler.init_new_token_ratio
        if hasattr(scheduler.future_map, "future_ct"):
            scheduler.future_map.future_ct = 0

    def messages(self) -> ModuleType:
        return release_module("managers.io_struct")


class Mixins(Family):
    """To 0.5.12: the scheduler is one object of a dozen mixins."""

    defaults: Mapping[str, Any] = {
        **EVERY,
        "draft_runner.token_to_kv_pool": None,  # of the draft model; the hash model needs none
        "model_runner.hybrid_gdn_config": None,
        "model_runner.linear_attn_model_spec": None,
        "model_runner.mamba2_config": None,
    }

    def refusal(self, options: Options) -> str:
        if options.topk > 1 and options.overlap and not options.beyond_guards:
            return "a guard of the release sends topk above 1 to a worker of spec v1, without overlap"
        if options.multi_layer and not hasattr(
            release_module("speculative.multi_layer_eagle_worker_v2"), "DraftBackendFactory"
        ):
            return "its multi-layer worker has FlashAttention's backend and no other"
        if options.worker == "fake" and not options.overlap:
            return "without overlap its worker is of spec v1, and keeps the accounts itself"
        return super().refusal(options)

    def server_arguments(self, options: Options, model_path: str) -> Any:
        os.environ["SGLANG_ENABLE_SPEC_V2"] = str(int(options.overlap))  # 0.5.10.post1 has overlap by this alone
        return super().server_arguments(options, model_path)


class Components(Family):
    """From 0.5.13: parts of the scheduler are objects of their own."""

    defaults: Mapping[str, Any] = {
        **Mixins.defaults,
        **STEPS,
        "model_runner.hybrid_lightning_config": None,
        "model_runner.kimi_linear_config": None,
        "model_runner.prefill_aware_swa": False,
    }


class Builders(Family):
    """From 0.5.16: caches are built by functions, and the start of a worker is timed."""

    defaults: Mapping[str, Any] = {
        **EVERY,
        **STEPS,
        **TIMES,
        "draft_runner.token_to_kv_pool": None,
    }


class Contexts(Family):
    """From 0.5.21: configuration is published to a context of the process, and requests are structs."""

    defaults: Mapping[str, Any] = {
        **EVERY,
        **STEPS,
        **TIMES,
        "draft_worker.draft_swa_window": 0,
        "model_runner.mtp_draft_mamba_pools": (),
    }

    def publish(self, server_arguments: Any) -> None:
        ranks = self.scheduler.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
        self.scheduler.publish(server_arguments, role="scheduler", ranks=ranks)

    def set_groups(self) -> None:
        super().set_groups()
        group = self.group()
        groups = dict.fromkeys(("world_group", "tp_group", "pp_group", "attn_tp_group", "attn_cp_group"), group)
        self.scheduler.get_parallel().override_permanently(attn_dp_size=1, attn_dp_rank=0, **groups)
        self.scheduler.bootstrap.init_parallel_runtime = nothing  # it starts gloo, with threads and a port


def family_of(scheduler: ModuleType) -> Family:
    """By what the module of the scheduler has."""
    if hasattr(scheduler, "SpawnRanks"):
        return Contexts(scheduler)
    if is_there("configs.hybrid_arch"):
        return Builders(scheduler)
    return (Components if hasattr(scheduler, "SchedulerRequestReceiver") else Mixins)(scheduler)


@functools.cache
def _required(struct: type) -> tuple[str, ...]:
    """The fields of a struct that have no default."""
    return tuple(field.name for field in msgspec.structs.fields(struct) if field.required)


def _adaptive(steps: int) -> dict[str, Any]:
    """As a user may configure it: two depths, of which the next one follows what the last verification accepted. From
    0.5.13 on it is configured for batches of so many requests at least.
    """
    follows = {"candidate_steps": [steps - 2, steps], "ema_alpha": 1.0, "update_interval": 1}
    follows |= {"warmup_batches": 0, "down_hysteresis": 0.4, "up_hysteresis": 0.4}
    return {**follows, "1": follows}


@contextmanager
def _graph_capture(context: Any = None, stream: Any = None) -> Iterator[Any]:
    """In place of a group's own, which has communicators to prepare: a stream on which graphs are captured."""
    if context is None:
        made: Any = torch.cuda.Stream() if stream is None else stream
        made.name = "capture"
        context = SimpleNamespace(stream=made)
    if context.stream != torch.cuda.current_stream():
        context.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(context.stream):
        yield context


def _set(arguments: Any, name: str, value: Any) -> None:
    """Set one of the server's arguments, which some releases close to changes once they are complete."""
    try:
        setattr(arguments, name, value)
    except AttributeError:
        object.__setattr__(arguments, name, value)


def _accepted(function: Callable[..., Any], **named: Any) -> dict[str, Any]:
    """Those of the arguments that the function takes by name, or all if it takes any."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return named if takes_any else {name: value for name, value in named.items() if name in parameters}


FULL, WINDOW = 0, 1
"""Among the components of a radix tree's node, each of which has the slots of a pool, those of full attention and of a
sliding window.
"""


def root_of(tree: Any) -> Any:
    """The root of a radix tree; None where a release has none, or one in Rust."""
    try:
        return tree.root_node
    except (AttributeError, NotImplementedError):
        return None


def slots_in(node: Any) -> Any:
    """The slots of the full pool that a node of a radix tree holds, a tensor on the device; None for none."""
    return node.value if hasattr(node, "value") else node.component_data[FULL].value


def window_slots_in(node: Any) -> Any:
    """The slots of the full pool that it holds, if it has them in the sliding window's pool, too; None if not."""
    has = not node.swa_tombstone if hasattr(node, "swa_tombstone") else node.component_data[WINDOW].value is not None
    return slots_in(node) if has else None


def host_slots_in(node: Any) -> Any:
    """The slots of the host's pool that it holds, a tensor on the host; None for none."""
    return getattr(node if hasattr(node, "value") else node.component_data[FULL], "host_value", None)
