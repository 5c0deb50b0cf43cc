"""What the lifted host functions are given in place of the release's own objects.

Requests, batches and the memory that they call back, with the attributes that the releases read and write. Nothing
here decides anything: rules of the release are in its own methods, which are put on these classes. An attribute that
one of them lacks is a `StubError`: these objects, and not the release, are to be mended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from specsim.engine.config import EngineConfig
from specsim.engine.memory.allocator import Allocator, OutOfSlotsError
from specsim.engine.memory.rows import Rows
from specsim.engine.memory.swa import SwaAllocator
from specsim.engine.model import EOS, STOP, VOCABULARY
from specsim.engine.request import Request

CPU = torch.device("cpu")
NO_SLOTS = torch.empty((0,), dtype=torch.int64)

# Warnings of the release are not specsim's output.
SILENT = logging.Logger("specsim.lifted")
SILENT.disabled = True


class StubError(AttributeError):
    """An object of ours has no attribute `name` of the class `of` that it stubs."""

    def __init__(self, of: str, name: str) -> None:
        super().__init__(f"our {of} has no {name}", name=name)
        self.of = of
        self.attribute = name


class StrictFields(SimpleNamespace):
    """An object of the class `of_` with the attributes given; reading any other one is an error of the adapter."""

    def __init__(self, of_: str, **fields: Any) -> None:
        super().__init__(of_=of_, **fields)

    def __getattr__(self, name: str) -> Any:
        raise StubError(self.__dict__["of_"], name)


class Unknown:
    """What the release's `__init__` computes for a field, which is not run. It is there, and may only be passed on."""

    def __init__(self, of: str, name: str) -> None:
        self.__dict__.update(of=of, name=name)

    def __getattr__(self, name: str) -> Any:
        raise StubError(f"{self.__dict__['of']}.{self.__dict__['name']}", name)

    def _use(self, *_arguments: Any, **_named: Any) -> Any:
        raise StubError(self.__dict__["of"], self.__dict__["name"])

    __bool__ = __call__ = __len__ = __iter__ = __getitem__ = __contains__ = _use


class Silent:
    """Metrics, output streams and the like: every method of it does nothing."""

    num_generated_tokens = 0
    forward_ct_decode = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: None


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a release keeps on the object itself (a request, a session's slot), or on its KV record."""

    name: str
    on_record: bool

    def read(self, holder: Any) -> Any:
        """None when there is no record."""
        owner = holder.kv if self.on_record else holder
        return None if owner is None else getattr(owner, self.name)

    def write(self, holder: Any, value: Any) -> None:
        setattr(holder.kv if self.on_record else holder, self.name, value)


class RequestFields:
    """`Req`: one request. `seen_by_loop` is the engine's own request, `initial` what the release's `__init__` sets."""

    seen_by_loop: Request
    refusal = ""

    def __init__(self, request: Request, initial: dict[str, Any], session: StreamingHandle | None) -> None:
        turn = request.turn
        self.__dict__.update(
            {name: value.copy() if isinstance(value, list | dict | set) else value for name, value in initial.items()}
        )
        self.__dict__.update(
            seen_by_loop=request,
            rid=turn.rid,
            origin_input_ids=request.prompt,
            origin_input_ids_unpadded=request.prompt,
            # The same list as the engine's: the release appends, and the engine sees it.
            output_ids=request.outputs,
            full_untruncated_fill_ids=[],
            session=session,
            sampling_params=StrictFields(
                "SamplingParams",
                max_new_tokens=turn.max_new_tokens,
                ignore_eos=turn.ignore_eos,
                stop_token_ids={STOP},
                stop_strs=[],
                stop_regex_strs=[],
                stop_str_max_len=0,
                stop_regex_max_len=0,
                custom_params=None,
            ),
            eos_token_ids={EOS},
            vocab_size=VOCABULARY,
            prefix_indices=NO_SLOTS,
            extra_key=turn.extra_key or None,
            cache_salt=None,
            skip_radix_cache_insert=False,
            dllm_config=None,
            beam_group=None,
            # What this request's penalizers count; None for a request without penalties.
            penalty_counts={} if turn.sampling is not None and turn.sampling.is_penalized else None,
            time_stats=Silent(),
        )

    def __getattr__(self, name: str) -> Any:
        raise StubError("Req", name)

    def is_dllm(self) -> bool:
        return False

    def set_finish_with_abort(self, error_msg: str) -> None:
        """The session takes no turn."""
        self.refusal = error_msg

    def release_mm_inputs_on_abort(self) -> None:
        """There are no images."""


class StreamingHandle:
    """`Session`: what a request knows of its streaming session."""

    __slots__ = ("session_id",)

    streaming = True

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id

    def finish_req(self, _req: Any) -> None:
        """The controller notes the request as the session's last; the engine keeps the history itself."""

    def abort_req(self) -> None:
        """As above."""


class BatchFields:
    """`ScheduleBatch`: the requests of one decode step."""

    def __init__(self, reqs: list[Any], shared: dict[str, Any]) -> None:
        self.__dict__.update(shared)
        self.reqs = reqs

    def __getattr__(self, name: str) -> Any:
        raise StubError("ScheduleBatch", name)

    def batch_size(self) -> int:
        return len(self.reqs)

    @staticmethod
    def when_fed() -> None:
        """The penalizers are fed now."""

    @cached_property
    def req_pool_indices(self) -> torch.Tensor:
        return torch.tensor([self.row_field.read(req) for req in self.reqs], dtype=torch.int64)

    @cached_property
    def seq_lens(self) -> torch.Tensor:
        """What the host knows; the true lengths are on the device, and no host function decides by them."""
        return torch.tensor(
            [len(req.origin_input_ids) + len(req.output_ids) - 1 for req in self.reqs], dtype=torch.int64
        )

    @cached_property
    def seq_lens_cpu(self) -> torch.Tensor:
        return self.seq_lens

    @cached_property
    def sampling_info(self) -> StrictFields:
        fed = self.reqs if self.feeds_penalizers else []
        return StrictFields("SamplingBatchInfo", penalizer_orchestrator=Penalizers(fed, self.when_fed))

    def filter_batch(self, *, keep_indices: list[int], **_others: Any) -> None:
        self.reqs = [self.reqs[i] for i in keep_indices]

    def maybe_evict_swa(self) -> None:
        """There is no sliding window."""

    def maybe_wait_verify_done(self) -> None:
        """The engine models no synchronization with the device that early."""


class Penalizers:
    """`BatchedPenalizerOrchestrator`: notes what the penalizers of each request are fed. `when_fed` is called first."""

    def __init__(self, reqs: list[Any], when_fed: Callable[[], None]) -> None:
        self._reqs = reqs
        self._when_fed = when_fed
        self.is_required = any(req.penalty_counts is not None for req in reqs)

    def __getattr__(self, name: str) -> Any:
        raise StubError("BatchedPenalizerOrchestrator", name)

    def cumulate_output_tokens(self, output_ids: torch.Tensor) -> None:
        self._when_fed()
        for req, token in zip(self._reqs, output_ids.tolist(), strict=True):
            if req.penalty_counts is not None:
                req.penalty_counts[token] = req.penalty_counts.get(token, 0) + 1


class Eagle:
    """`SpeculativeAlgorithm.EAGLE`, and the class as well: every name is that of EAGLE."""

    def from_string(self, _name: str | None) -> Eagle:
        return self

    def supports_spec_v2(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda: name in ("is_eagle", "is_some")
        raise StubError("SpeculativeAlgorithm", name)


def batch_fields(config: EngineConfig) -> dict[str, Any]:
    """What all batches of a run have in common, but for the memory."""
    return {
        "device": CPU,
        "enable_overlap": config.overlap,
        "spec_algorithm": Eagle(),
        "forward_mode": StrictFields(
            "ForwardMode",
            is_decode=lambda: True,
            is_extend=lambda: False,
            is_idle=lambda: False,
            is_mixed=lambda: False,
        ),
        "hisparse_coordinator": None,
        "return_logprob": False,
        "has_grammar": False,
        "input_embeds": None,
        "spec_info": None,
        "chunked_req": None,
        "mamba_track_mask_cpu": None,
    }


def server_args(config: EngineConfig, defaults: dict[str, Any]) -> StrictFields:
    """`ServerArgs`, and every group of its options: the release's defaults and the engine's configuration."""
    ours = {
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": config.num_steps,
        "speculative_eagle_topk": config.topk,
        "speculative_num_draft_tokens": config.num_draft_tokens,
        "max_speculative_num_draft_tokens": config.num_draft_tokens,
        "speculative_adaptive": config.adaptive,
        "page_size": config.page_size,
        "max_running_requests": config.rows,
        "disable_overlap_schedule": not config.overlap,
        "enable_streaming_session": True,
        "disaggregation_mode": "null",
        "strip_thinking_cache": False,
        "attn_dcp_size": 1,
        "enable_mamba_extra_buffer": lambda: False,
        "enable_mamba_extra_buffer_lazy": lambda: False,
        "mamba": StrictFields(
            "get_exec().mamba", enable_mamba_extra_buffer=False, enable_mamba_extra_buffer_lazy=False
        ),
    }
    return StrictFields("ServerArgs", **{**defaults, **ours})


def result_fields(next_token_ids: list[int], accept_lens: list[int], stride: int) -> StrictFields:
    """`GenerationBatchResult`: what the worker returns, copied to the host."""
    return StrictFields(
        "GenerationBatchResult",
        next_token_ids=torch.tensor(next_token_ids, dtype=torch.int64),
        accept_lens=torch.tensor(accept_lens, dtype=torch.int32),
        speculative_num_draft_tokens=stride,
        speculative_output_stride=stride,
        num_non_draft_tokens_per_req=1,
        block_accept_lens=None,
        cap_lens=None,
        logits_output=None,
        copy_done=None,
        can_run_cuda_graph=False,
        grammar_advanced=False,
        grammar_retained_tokens=None,
        routed_experts_output=None,
        indexer_topk_output=None,
        auxiliary_host_output=None,
        get_num_generated_tokens=lambda batch_size: batch_size,
    )


class ResultProcessorFields:
    """The object of which `resolve` is a method: the scheduler, or its processor of results."""

    num_generated_tokens = 0
    forward_ct_decode = 0
    enable_metrics = enable_hisparse = enable_overlap_mlx = False
    hisparse_coordinator = None

    def __init__(self, config: EngineConfig, memory: dict[str, Any], options: StrictFields) -> None:
        self.draft_worker = StrictFields("draft worker", speculative_num_draft_tokens=config.num_draft_tokens)
        self.model_worker = StrictFields("model worker", on_verify_complete_cpu=lambda *_args, **_named: None)
        self.metrics_reporter = self.metrics_collector = self.output_streamer = Silent()
        self.enable_overlap = config.overlap
        self.server_args = options
        self.__dict__.update(memory)

    def __getattr__(self, name: str) -> Any:
        raise StubError("SchedulerBatchResultProcessor", name)

    def _nothing(self, *_arguments: Any, **_named: Any) -> None:
        """Of metrics, outputs, experts, reasoning and recurrent states, of which there are none."""

    update_spec_metrics = report_decode_stats = stream_output = _nothing
    maybe_collect_routed_experts = maybe_collect_customized_info = maybe_collect_indexer_topk = _nothing
    _maybe_collect_routed_experts = _maybe_collect_customized_info = _maybe_collect_indexer_topk = _nothing
    _maybe_update_reasoning_tokens = _mamba_prefix_cache_update = _nothing
    snapshot_auxiliary_output_starts = materialize_sampling_mask_output = _nothing

    def _mamba_can_cache_finished_req(self, *_arguments: Any) -> bool:
        return True


class RowPool:
    """`ReqToTokenPool` over the engine's rows: `req_to_token` is their buffer, not a copy. `row_field` is where
    requests and sessions keep theirs.
    """

    device = CPU

    def __init__(self, rows: Rows, row_field: Field) -> None:
        self._rows = rows
        self._row_field = row_field
        self.size = rows.count
        self.req_to_token = torch.frombuffer(rows.buffer, dtype=torch.int32).view(rows.count + 1, rows.width)

    def __getattr__(self, name: str) -> Any:
        raise StubError("ReqToTokenPool", name)

    @property
    def free_slots(self) -> list[int]:
        return self._rows.free_rows

    def available_size(self) -> int:
        return len(self._rows.free_rows)

    def write(self, indices: Any, values: Any) -> None:
        self.req_to_token[indices] = values

    def alloc(self, reqs: list[Any]) -> list[int] | None:
        if len(reqs) > len(self._rows.free_rows):
            return None
        for req in reqs:
            self._row_field.write(req, self._rows.alloc())
        return [self._row_field.read(req) for req in reqs]

    def free(self, req: Any) -> None:
        row = self._row_field.read(req)
        if row is None:
            raise ValueError("a request without a row gives one back")
        self._rows.free(row)
        self._row_field.write(req, None)


class SlotAllocator:
    """`TokenToKVPoolAllocator` and its paged sibling over the engine's allocator."""

    device = CPU
    is_not_in_free_group = True

    def __init__(self, allocator: Allocator | SwaAllocator) -> None:
        self._allocator = allocator
        self.page_size = allocator.page_size
        self.size = allocator.size
        self.steps: Any = None  # of the loop, while a result is handled

    def __getattr__(self, name: str) -> Any:
        raise StubError("BaseTokenToKVPoolAllocator", name)

    def available_size(self) -> int:
        return self._allocator.available

    def alloc(self, need_size: int) -> torch.Tensor | None:
        if need_size < 0:
            raise ValueError(f"{need_size} slots wanted")
        if need_size > self._allocator.available:
            return None
        return torch.tensor(self._allocator.extend(0, need_size, 0), dtype=torch.int64)

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        _prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        _seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        _extend_num_tokens: int,
    ) -> torch.Tensor | None:
        slots: list[int] = []
        try:
            for start, end, last in zip(prefix_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True):
                slots += self._allocator.extend(start, end, last)
        except OutOfSlotsError:
            return None
        return torch.tensor(slots, dtype=torch.int64)

    def free(self, free_index: torch.Tensor) -> None:
        self._allocator.free(free_index.tolist())

    def free_group_begin(self) -> None:
        self.steps.begin_frees()

    def free_group_end(self) -> None:
        self.steps.end_frees()


class PrefixCacheFields:
    """`BasePrefixCache`: there is no tree, no sliding window and no recurrent state."""

    metrics_collector = None

    def __getattr__(self, name: str) -> Any:
        raise StubError("BasePrefixCache", name)

    def supports_swa(self) -> bool:
        return False

    def supports_mamba(self) -> bool:
        return False

    def supports_streaming_session(self) -> bool:
        return False

    def is_chunk_cache(self) -> bool:
        return False

    def is_tree_cache(self) -> bool:
        return not self.is_chunk_cache()

    def available_and_evictable_str(self) -> str:
        return ""

    def pretty_print(self) -> str:
        return ""


class DisabledTreeFields(PrefixCacheFields):
    """`UnifiedRadixCache` whose tree is disabled."""

    disable = True
    page_size = 1
    cache_controller = None
    linker = None
    components: dict[Any, Any] = {}  # noqa: RUF012 - never written
    _components_tuple: tuple[Any, ...] = ()

    def __init__(self, memory: SimpleNamespace, no_match: Any) -> None:
        self.__dict__.update(vars(memory))
        self.session = NoSessions()
        self.tree_core = StrictFields("tree core", empty_match_result=no_match)


class NoSessions:
    """`StreamingSession` where it is not run: no request has one."""

    def try_match_prefix(self, _params: Any) -> None:
        return None

    def try_cache_finished_req(self, _req: Any) -> bool:
        return False

    def try_checkpoint(self, _req: Any, **_named: Any) -> bool:
        return False

    def borrowed_slot(self, _req: Any) -> None:
        return None

    def take(self, _req: Any) -> None:
        """There is nothing to take it to."""


class NotUsed:
    """A class of the release that nothing here is an instance of."""


class RadixKeyFields:
    """`RadixKey`: tokens, of which the first `limit` count."""

    def __init__(
        self,
        token_ids: list[int],
        extra_key: str | None = None,
        is_bigram: bool = False,
        limit: int | None = None,
        cache_salt: str | None = None,
    ) -> None:
        self.token_ids = token_ids if limit is None else token_ids[:limit]
        self.extra_key, self.is_bigram, self.cache_salt = extra_key, is_bigram, cache_salt

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getattr__(self, name: str) -> Any:
        raise StubError("RadixKey", name)


class Environment:
    """`envs`: every switch of the release's environment is off, but for the number here."""

    _VALUES = {"SGLANG_RETRACT_DECODE_STEPS": 20}  # noqa: RUF012 - never written

    def __getattr__(self, name: str) -> SimpleNamespace:
        value = self._VALUES.get(name, False)
        return SimpleNamespace(get=lambda: value)


def last_locations(
    req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, prefix_lens: torch.Tensor
) -> torch.Tensor:
    """The slot of the last position of each prefix, -1 of an empty one; `get_last_loc`."""
    width = req_to_token.shape[1]
    table = req_to_token.view(-1)
    rows, lens = req_pool_indices.tolist(), prefix_lens.tolist()
    return torch.tensor(
        [table[row * width + length - 1].item() if length > 0 else -1 for row, length in zip(rows, lens, strict=True)],
        dtype=torch.int64,
    )


def write_rows(
    rows: Rows, req_pool_indices: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, out_cache_loc: torch.Tensor
) -> None:
    """Write the slots of each request to columns `[start, end)` of its row; what `assign_req_to_token_pool` does."""
    slots = out_cache_loc.tolist()
    at = 0
    for row, start, end in zip(req_pool_indices.tolist(), starts.tolist(), ends.tolist(), strict=True):
        rows.write(row, start, slots[at : at + end - start])
        at += end - start
