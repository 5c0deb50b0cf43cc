"""A release's own second model runner over a model that is none: `GPUModelRunner`, built by its own `__init__`, with
`RequestState`, `BlockTables`, `InputBatch`, `AsyncOutput` and `PPHandler`, runs its own `execute_model` and
`sample_tokens` on the virtual device. Its Triton kernels run in lockstep.

So what the model reads is what the runner's code selects: tokens, positions and lengths, block tables and slots, on the
streams on which it has them. Beside that, each pass compares the block table of a request with the one that the
scheduler has.

In a pipeline each stage has a runner, a stream for its work and KV of its own. The first stage reads tokens; the last
one samples, and says what it has sampled by the release's own broadcasts.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import textwrap
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from specsim.engines.vllm.scheduler.connector import Outside, Transfer, missing, worker_connector
from specsim.engines.vllm.scheduler.imports import PACKAGE
from specsim.engines.vllm.scheduler.pools import note_freed, note_revived
from specsim.engines.vllm.scheduler.release_model import BatchSeat, Pass, StageModel
from specsim.vdevice.tensors import VirtualTensor, device_view
from specsim.world.clock import overridden
from specsim.world.fakes import AdapterDriftError, Answers, Fake, nothing, said
from specsim.world.hash_model import Prefixes
from specsim.world.kv import Disagreement, Kv, Reports
from specsim.world.ledger import Freed
from specsim.world.scheduler import Setup

NEEDED = "dispatch_cg_and_sync_dp", "init_attn_backend"
"""What the runner's module has since 0.20.0."""


class Tensors:
    """In place of the release's `IntermediateTensors`, what one stage hands to the next."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors


class ReleaseWorker:
    """The runners of a server with this `setup`; `blocks_of(rid)` are those that the scheduler has for a request, by
    group of layers. DriftError where the release's runner is made of other parts.
    """

    def __init__(
        self,
        config: Any,
        kv_cache: Any,
        setup: Setup,
        device: Any,
        answers: Answers,
        blocks_of: Callable[[str], Sequence[Sequence[int]]],
        outside: Outside | None = None,
    ) -> None:
        self.outside, self.block_size = outside, setup.page_size
        self.setup, self.device, self.answers, self._blocks_of = setup, device, answers, blocks_of
        self.reports = Reports()
        self.prefixes: dict[str, Prefixes] = {}
        """By request what its user asked for, and what follows."""
        self.right: Callable[[int], int] = lambda most: most
        """How many drafts of so many are right."""
        self._seats: dict[str, BatchSeat] = {}
        self.loads: list[tuple[Transfer, int]] = []
        """In the step that is launched, each up to where it comes; `failed` are the blocks of what fails of them."""
        self.failed: list[int] = []
        stream: Any = torch.cuda.Stream()
        self._outside_stream, stream.name = stream, "outside"
        slots = kv_cache.num_blocks * setup.page_size
        pools = [Kv(self.reports, slots, slots if setup.window else 0) for _ in range(setup.stages)]
        self.stages = [Stage(self, number, kv) for number, kv in enumerate(pools)]
        for stage in self.stages:
            stage.build(config, kv_cache)

    @property
    def kv(self) -> Kv:
        """Of the first stage."""
        return self.stages[0].model.kv

    # ---- what a connector asks

    def load(self, run: Callable[[], None]) -> None:
        """Have KV loaded before what the first stage launches from now on."""
        self.device.launch(lambda _access: run(), name="load")

    def meanwhile(self, run: Callable[[], None]) -> None:
        """See `specsim.engines.vllm.scheduler.connector.KvModel`."""
        with torch.cuda.stream(self._outside_stream):
            self.device.launch(lambda _access: run(), name="transfer")

    def transfers_end(self) -> None:
        """What is under way on its stream has come."""
        self.device.run_until(self._outside_stream, self._outside_stream.n)

    # ---- what the executor asks

    def execute(self, batch: Any) -> Any:
        """None where there are tokens to sample, else the release's ModelRunnerOutput."""
        if self.outside is not None:
            self.loads, self.failed = self.outside.take(batch.kv_connector_metadata)
        absent, drafts = missing(self.loads, self.block_size), batch.scheduled_spec_decode_tokens
        blocks = {rid: tuple(map(tuple, self._blocks_of(rid))) for rid in batch.num_scheduled_tokens}
        self._seats = {
            rid: BatchSeat(rid, self.prefixes[rid], len(drafts.get(rid, ())), own, is_read=absent.isdisjoint(own[0]))
            for rid, own in blocks.items()
        }
        handed = out = None
        for stage in self.stages:
            with stage.entered():
                out = stage.runner.execute_model(batch, handed and stage.received(handed))
                handed = out if isinstance(out, Tensors) else None
        return out

    def sample(self, grammar: Any) -> Any:
        """What the last stage says, an AsyncOutput."""
        outputs = []
        for stage in reversed(self.stages):
            with stage.entered():
                outputs.append(stage.runner.sample_tokens(grammar))
        return outputs[0]

    def drafts(self) -> Any:
        last = self.stages[-1]
        with last.entered():
            return last.runner.take_draft_token_ids()

    def freed(self, blocks: Sequence[int], by: Freed) -> None:
        """See `specsim.engines.vllm.scheduler.freed.Holder`: of what is launched from now on."""
        for stage in self.stages:
            note = functools.partial(note_freed, stage.model.kv, blocks, self.setup.pages, by)
            self.device.after(stage.stream, note)

    def revived(self, blocks: Sequence[int]) -> None:
        for stage in self.stages:
            self.device.after(stage.stream, functools.partial(note_revived, stage.model.kv, blocks, self.setup.pages))

    # ---- what stages ask

    def seats(self, rids: Sequence[str]) -> list[BatchSeat]:
        """Those of a batch, in the runner's order."""
        return [self._seats[rid] for rid in rids]

    def differ(self, what: str, rid: str, expected: str, actual: str) -> None:
        """Note that a part of the engine has something else than another."""
        self.reports.add_first(rid, what, Disagreement(what, rid, expected, actual))

    def broadcast(self, by: Stage, tensor: Any) -> None:
        """A collective of all stages: the last one sends, the others receive. The last one comes first here."""
        stream: Any = torch.cuda.current_stream()
        if by.is_last:
            sent = tensor.clone()
            for stage in self.stages[:-1]:
                stage.mail.append((sent, stream.record_event()))
            return
        if not by.mail:
            self.differ("broadcast", "", "something sent", "nothing")
            return
        sent, event = by.mail.popleft()
        if sent.shape != tensor.shape:
            self.differ("broadcast", "", *(f"{'x'.join(map(str, one.shape))} numbers" for one in (sent, tensor)))
        stream.wait_event(event)
        both = tuple(slice(min(sizes)) for sizes in zip(sent.shape, tensor.shape, strict=True))
        tensor[both] = sent[both]  # a server would wait for ever; what else is wrong is seen so
        sent.record_stream(stream)


class Stage:
    """A stage of a pipeline, or all of a server without one: its runner and its model."""

    def __init__(self, worker: ReleaseWorker, number: int, kv: Kv) -> None:
        last = worker.setup.stages - 1
        self.worker, self.number, self.is_first, self.is_last = worker, number, number == 0, number == last
        self.model = StageModel(worker.setup, worker.device, kv, worker.differ, is_first=self.is_first)
        self.mail: deque[Any] = deque()
        """What the last stage has sent, and this one has not received."""
        stream: Any = torch.cuda.Stream()
        self.stream, stream.name = stream, f"stage {number}" if last else "main"
        self._modules = modules()
        group = SimpleNamespace(
            is_first_rank=self.is_first,
            is_last_rank=self.is_last,
            last_rank=last,
            rank_in_group=number,
            world_size=last + 1,
            make_sibling_device_group=nothing,
            device_group=None,
            device=torch.device("cuda"),
        )
        sends = SimpleNamespace(broadcast=lambda tensor, **_group: worker.broadcast(self, tensor))
        self._ranks = {"get_pp_group": lambda: group}
        self._torch = overridden(torch, distributed=sends)
        self._pass: Pass | None = None
        self._sampled: Any = None

    def entered(self) -> Any:
        """What runs in here is of this stage: on its stream, with its group of ranks."""
        for name in ("model_runner", "pp_utils", "utils"):
            vars(self._modules[name]).update(self._ranks)
        vars(self._modules["pp_utils"])["torch"] = self._torch
        return torch.cuda.stream(self.stream)

    def build(self, config: Any, kv_cache: Any) -> None:
        module = self._modules["model_runner"]
        if lacks := [name for name in NEEDED if not hasattr(module, name)]:
            raise AdapterDriftError([], lacks)
        vars(module).update({name: value for name, value in self._around().items() if hasattr(module, name)})
        with self.entered():
            self.runner = module.GPUModelRunner(config, torch.device("cuda"))
            self.runner.load_model()
            self.runner.initialize_kv_cache(kv_cache)
        self._track()
        self._note_what_is_sampled()

    def received(self, handed: Tensors) -> Tensors:
        """What the stage before sends, in memory of this one."""
        self.stream.wait_stream(self.worker.stages[self.number - 1].stream)
        made = Tensors({name: tensor.clone() for name, tensor in handed.tensors.items()})
        for tensor in handed.tensors.values():
            tensor.record_stream(self.stream)
        return made

    def _track(self) -> None:
        """Follow each row of what the runner keeps: batches under way have other requests."""
        for name, value in vars(self.runner.req_states).items():
            tensor = getattr(value, "gpu", value)
            if isinstance(tensor, VirtualTensor):
                self.worker.device.track_elements(tensor, name)
        for table in self.runner.block_tables.block_tables:
            self.worker.device.track_elements(table.gpu, "block_tables")

    def _note_what_is_sampled(self) -> None:
        """For the drafts behind it: (SamplerOutput, int32 [requests] sampled, int32 [requests] rejected)."""
        sample = self.runner.sample

        def noted(hidden: Any, batch: Any, *grammar: Any) -> Any:
            found = sample(hidden, batch, *grammar)
            self._sampled = batch, found
            return found

        self.runner.sample = noted

    # ---- what the runner has of others

    def _around(self) -> Mapping[str, Any]:
        """By the name that the runner's module has for it; a release has not all of them."""
        pcp = self._fake(
            "pcp",
            PCPManager=None,
            maybe_build_pcp_manager=nothing,
            maybe_partition_pcp_batch=lambda _manager, batch, *_sizes, **_more: batch,
            maybe_restore_pcp_for_sampling=lambda _manager, hidden, batch, *_more: (hidden, batch),
        )
        experts = self._fake(
            "eplb",
            maybe_register_model=said(False),
            maybe_register_speculator=said(False),
            **dict.fromkeys(("prepare_load", "prepare_forward", "maybe_start_async_loop"), nothing),
        )
        connector = self._fake("kv_connector", no_forward=_empty, **dict.fromkeys(_OF_CONNECTORS, nothing))
        of_all = SimpleNamespace(gpu=None)
        sampler = _Called(
            "sampler",
            self.worker.answers,
            called=lambda logits, batch: self._output(batch, *self.model.sample(logits, batch)),
            add_request=nothing,
            apply_staged_writes=nothing,
            penalties_state=SimpleNamespace(output_bin_counts=None),
            sampling_states=SimpleNamespace(temperature=of_all, seeds=of_all),
        )
        speculator = self._fake("speculator", **_SPECULATOR, propose=self._propose)
        return {
            "EPLBController": said(experts),
            "IntermediateTensors": Tensors,
            "MULTIMODAL_REGISTRY": self._fake("mm_registry", supports_multimodal_inputs=said(False)),
            "NO_OP_KV_CONNECTOR": connector,
            "RejectionSampler": said(self._verified),
            "Sampler": said(sampler),
            "build_slot_mappings_by_layer": nothing,
            "dispatch_cg_and_sync_dp": _dispatched,
            "get_drafter_hidden_states": lambda _model, hidden: hidden,
            "get_kv_connector": said(connector) if self.worker.outside is None else self._connector,
            "get_model_loader": said(self._fake("model_loader", load_model=said(self._model()))),
            "get_uniform_decode_token_count": nothing,
            "has_compiled_submodule": said(False),
            "init_attn_backend": said(self._attention()),
            "init_kv_cache": said({}),
            "init_model_state": said(self._model_state()),
            "init_speculator": said(speculator),
            "maybe_build_ubatch_runner": nothing,
            "maybe_create_adaptive_verification_manager": nothing,
            "pcp": pcp,
            "requires_aux_hidden_states": said(False),
            "requires_raw_input_tokens": said(False),
        }

    def _connector(self, config: Any, kv_caches: Any) -> Any:
        """The release's own caller of a connector, with ours."""
        module = self._modules["kv_connector"]
        ours = worker_connector(self.worker, config)
        vars(module)["get_kv_transfer_group"] = said(ours)
        return module.ActiveKVConnector(config, kv_caches)

    def _fake(self, name: str, **given: Any) -> Fake:
        return Fake(name, self.worker.answers, **given)

    def _model(self) -> Fake:
        def forward(input_ids: Any, positions: Any, intermediate_tensors: Any = None, **_named: Any) -> Any:
            assert self._pass is not None
            given = input_ids if self.is_first else intermediate_tensors.tensors["hidden_states"]
            hidden = self.model.forward(self._pass, positions, given)
            return hidden if self.is_last else Tensors({"hidden_states": hidden})

        def empty(batch_size: int, device: Any, **_named: Any) -> Tensors:
            return Tensors({"hidden_states": torch.zeros(batch_size, dtype=torch.int64, device=device)})

        return _Called(
            "model",
            self.worker.answers,
            called=forward,
            compute_logits=self.model.logits,
            make_empty_intermediate_tensors=empty,
            requires_raw_input_tokens=False,
        )

    def _model_state(self) -> Fake:
        def prepare_attn(batch: Any, *arguments: Any, **_named: Any) -> None:
            """`arguments` have the block tables and the slots, next to each other."""
            tables, slots = next(
                (one, other)
                for one, other in itertools.pairwise(arguments)
                if isinstance(one, tuple) and isinstance(other, torch.Tensor)
            )
            self._pass = Pass(self.worker.seats(batch.req_ids), batch, tables, slots)

        return self._fake(
            "model_state",
            num_new_sampled_tokens_per_step=1,
            supports_mm_inputs=False,
            prepare_inputs=said({}),
            prepare_attn=prepare_attn,
            get_additional_cg_support=said(()),
            **dict.fromkeys(_OF_MODEL_STATES, nothing),
        )

    def _attention(self) -> tuple[Any, ...]:
        """What the runner unpacks of a backend of attention, by the names that it gives to that."""
        support = SimpleNamespace(min_cg_support=None, min_cg_attn_backend=None)
        support.narrow = said(support)
        sizes = list(self.worker.setup.pages)
        known = {"attn_groups": [], "attn_backends": {}, "attn_cg_support": support, "kernel_block_sizes": sizes}
        source = inspect.getsource(self._modules["model_runner"].GPUModelRunner.initialize_kv_cache)
        for node in ast.walk(ast.parse(textwrap.dedent(source))):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call(func=ast.Name(id="init_attn_backend"))):
                    return tuple(known[ast.unparse(name).removeprefix("self.")] for name in names)
        raise AdapterDriftError([], ["GPUModelRunner.initialize_kv_cache with init_attn_backend"])

    def _verified(self, logits: Any, batch: Any, _drafts: Any = None, invalid: Any = None) -> Any:
        return self._output(batch, *self.model.verify(logits, batch, invalid))

    def _output(self, batch: Any, tokens: Any, counts: Any) -> Any:
        """The release's SamplerOutput."""
        kind, given = self._modules["output"].SamplerOutput, {"num_sampled": counts}
        if "num_rejected" in kind.__dataclass_fields__:  # or else the runner counts them
            of = batch.seq_lens, batch.cu_num_logits, batch.idx_mapping, self.runner.req_states.prefill_len.gpu
            numbers = self._modules["input_batch"].get_num_sampled_and_rejected(counts, *of)
            given = dict(zip(("num_sampled", "num_rejected"), numbers, strict=True))
        return kind(sampled_token_ids=tokens, logprobs_tensors=None, num_nans=None, **given)

    def _propose(self, *_arguments: Any, **_named: Any) -> Any:
        batch, (_output, _counts, rejected) = self._sampled
        right = [self.worker.right(self.worker.setup.steps) for _ in range(batch.num_reqs)]
        seats = self.worker.seats(batch.req_ids)
        return self.model.draft(seats, batch, rejected, self.runner.req_states.last_sampled_tokens, right)


class _Called(Fake):
    """A fake that is a function, too: `called`. It has none of what the release asks for where a model has it."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _OF_SOME_MODELS:
            raise AttributeError(attribute)
        return super().__getattr__(attribute)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.called(*arguments, **named)


_OF_SOME_MODELS = "compute_logits_local", "get_mtp_target_hidden_states"
_OF_CONNECTORS = "pre_forward", "post_forward", "finish_forward", "finalize_step", "set_disabled"
_OF_MODEL_STATES = (
    "add_request",
    "apply_staged_writes",
    "custom_sampler",
    "initialize_kv_cache",
    "postprocess_state",
    "prepare_inputs_embeds",
    "preprocess_state",
    "remove_request",
)
_SPECULATOR: Mapping[str, Any] = {
    "supports_mm_inputs": False,
    "draft_logits": None,
    "model": None,
    "draft_attn_layer_names": frozenset(),
    "enable_adaptive_verification": False,
    "attn_groups": [],
    **dict.fromkeys(("init_cudagraph_manager", "load_model", "set_attn"), nothing),
}


def _empty(_batch: Any) -> Any:
    return importlib.import_module(f"{PACKAGE}.v1.outputs").EMPTY_MODEL_RUNNER_OUTPUT


def _dispatched(_manager: Any, _requests: int, tokens: int, *_arguments: Any, **_named: Any) -> tuple[Any, None]:
    """A batch without a CUDA graph, on one rank."""
    return SimpleNamespace(num_tokens=tokens, num_reqs=None, num_ubatches=1, cg_mode=None, num_active_loras=0), None


@functools.cache
def modules() -> dict[str, ModuleType]:
    """The runner's module and those around it, by their last names. The virtual device follows the memory of the host
    that a release reaches from its device.
    """
    import triton
    import triton.language

    vars(importlib.import_module(f"{PACKAGE}.triton_utils")).update(triton=triton, tl=triton.language)
    beside = "pp_utils", "input_batch", "buffer_utils", "kv_connector", "sample.output", "spec_decode.utils"
    names = ("model_runner", *beside)
    found = {name.rpartition(".")[2]: importlib.import_module(f"{PACKAGE}.v1.worker.gpu.{name}") for name in names}
    for name in ("get_accelerator_view_from_cpu_tensor", "get_cuda_view_from_cpu_tensor"):
        if hasattr(found["buffer_utils"], name):
            vars(found["buffer_utils"])[name] = device_view
    return found
