"""The draft-extend of SGLang's multi-layer worker between recording runners: whose KV pool each draft step uses.

The worker has a runner for each draft step, each with KV buffers and an attention backend of its own over the same
slots. `_draft_extend_for_prefill` and the eager half of `_draft_extend_for_decode` are the release's; the runners are
ours. A runner notes what its attention layers would read: the batch's `attn_backend` and `token_to_kv_pool`, or those
of the context that the runner publishes, whichever this source's attention layers do. PR #22954 was about this and
assigned `req_to_token_pool`, which is one object for all runners.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import torch

from specsim.choices.chooser import Chooser, between
from specsim.engine.rules.steps import DraftPool
from specsim.engine.rules.workers import STALE_METADATA
from specsim.engines.probe import Broken, Probe, Shown
from specsim.engines.sglang.guards import Guards
from specsim.engines.sglang.stubs import Needed, SilentLogger, nothing
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter, ParsedModule, class_functions, find_function
from specsim.verdict import NotRun

WORKER_FILE = "srt/speculative/multi_layer_eagle_worker_v2.py"
WORKER_CLASS = "MultiLayerEagleDraftWorker"
BATCH_FILE = "srt/model_executor/forward_batch_info.py"
ATTENTION_FILE = "srt/layers/radix_attention.py"
BACKEND_FILE = "srt/layers/attention/triton_backend.py"
RUNNER_FOLDER = "srt/model_executor"
PREFILL = "draft extend after a prefill"
DECODE = "draft extend after a decode"
FUNCTIONS = {PREFILL: "_draft_extend_for_prefill", DECODE: "_draft_extend_for_decode"}
# Methods that those call and that need no stub: without front tokens they have nothing to do.
METHODS = ("_compute_boundary_kv_locs_positions",)
_VOCABULARY = 8
_HIDDEN = 4


class _Source:
    """What a source says of how a batch and its attention layers come to a pool.

    `bound`         the batch's fields that `ForwardBatch.init_new` takes from the runner that it is given
    `of_batch`      of attn_backend and token_to_kv_pool those that attention layers read from the batch
    """

    def __init__(self, lifter: Lifter) -> None:
        self.bound = _fields_of_runner(find_function(lifter.module(BATCH_FILE), "ForwardBatch.init_new"))
        layer = _attributes_of(lifter.module(ATTENTION_FILE), "forward_batch")
        backend = _attributes_of(lifter.module(BACKEND_FILE), "forward_batch")
        self.of_batch = {"attn_backend"} & layer | {"token_to_kv_pool"} & backend
        if "attn_backend" not in self.of_batch and not any(_publishes(lifter)):
            raise DriftError(f"not found: where {RUNNER_FOLDER} publishes the attention backend of a forward")


def _fields_of_runner(function: ast.FunctionDef) -> dict[str, str]:
    """The fields that a constructor call sets from `model_runner`: field -> the runner's attribute."""
    return {
        keyword.arg: keyword.value.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "cls"
        for keyword in node.keywords
        if keyword.arg is not None
        and isinstance(keyword.value, ast.Attribute)
        and getattr(keyword.value.value, "id", "") == "model_runner"
    }


def _attributes_of(module: ParsedModule, name: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def _publishes(lifter: Lifter) -> Iterator[bool]:
    """A True for each place that publishes a runner's own backend for a forward."""
    for path in lifter.source.paths(RUNNER_FOLDER):
        if path.endswith("runner.py"):
            for node in ast.walk(lifter.module(path).tree):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ForwardContext":
                    values = [k.value for k in node.keywords if k.arg == "attn_backend"]
                    if values and isinstance(values[0], ast.Attribute) and values[0].attr == "attn_backend":
                        yield True


class _Pool:
    def __init__(self, owner: int) -> None:
        self.owner = owner


class _Backend:
    """An attention backend. It was planned for an earlier batch when the case begins."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.token_to_kv_pool = _Pool(owner)
        self.planned_for: Any = "an earlier batch"

    def init_forward_metadata(self, forward_batch: Any, *_arguments: Any, **_named: Any) -> None:
        self.planned_for = forward_batch.specsim_batch


class _Runner:
    """A `ModelRunner` that notes what its attention layers would use."""

    def __init__(self, step: int, rows: Any, source: _Source, notes: list[dict[str, Any]], chain: bool) -> None:
        self.attn_backend = _Backend(step)
        self.token_to_kv_pool = self.attn_backend.token_to_kv_pool
        self.req_to_token_pool = rows
        self.spec_algorithm = SimpleNamespace(is_standalone=lambda: False)
        self._step, self._source, self._notes, self._chain = step, source, notes, chain

    def forward(self, batch: Any, skip_attn_backend_init: bool = False, **_named: Any) -> Any:
        if not skip_attn_backend_init and not batch.forward_metadata_ready:
            self.attn_backend.init_forward_metadata(batch)
        used = batch if "attn_backend" in self._source.of_batch else self
        backend = used.attn_backend
        pool = batch.token_to_kv_pool if "token_to_kv_pool" in self._source.of_batch else backend.token_to_kv_pool
        self._notes.append(
            {
                "step": self._step,
                "token_to_kv_pool": pool.owner,
                "attn_backend": backend.owner,
                "rows": batch.req_to_token_pool.name if hasattr(batch, "req_to_token_pool") else "shared",
                "planned_for": str(backend.planned_for),
            }
        )
        count = batch.logit_rows
        logits = torch.arange(count * _VOCABULARY, dtype=torch.float32).reshape(count, _VOCABULARY)
        hidden = torch.zeros(batch.input_ids.shape[0], _HIDDEN) if self._chain else None
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits, hidden_states=hidden))


def _batch_of(source: _Source, lens: list[int], runner: _Runner, logit_rows: int, spec_info: Any) -> Any:
    """A `ForwardBatch` as `init_new` makes it with that runner."""
    lengths = torch.tensor(lens, dtype=torch.int32)
    batch = SimpleNamespace(
        input_ids=torch.arange(sum(lens), dtype=torch.int64),
        extend_start_loc=torch.cumsum(lengths, 0) - lengths,
        extend_seq_lens=lengths,
        batch_size=len(lens),
        req_pool_indices=torch.arange(len(lens)),
        seq_lens=lengths.to(torch.int64),
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        sampling_info=None,
        spec_info=spec_info,
        return_hidden_states_before_norm=False,
        forward_metadata_ready=False,
        specsim_batch="this batch",
        logit_rows=logit_rows,
    )
    batch.mark_forward_metadata_ready = lambda **_named: setattr(batch, "forward_metadata_ready", True)
    for name, attribute in source.bound.items():
        setattr(batch, name, getattr(runner, attribute))
    return batch


class _Case:
    """The multi-layer worker, its runners, and a batch after a target's forward."""

    def __init__(self, chooser: Chooser, source: _Source, decode: bool) -> None:
        self.num_steps = between(chooser, 1, 3, "num_steps")
        self.bs = between(chooser, 1, 2, "bs")
        self.chain = chooser.choose(2, "chain-style hidden states") == 1
        width = self.num_steps + 1
        self.lens = [width if decode else between(chooser, 1, 3, "prompt") for _ in range(self.bs)]
        self.accept_lens = [between(chooser, 1, width, "accept_lens") if decode else 1 for _ in range(self.bs)]
        self.notes: list[dict[str, Any]] = []
        rows = SimpleNamespace(name="shared")
        self.runners = [_Runner(step, rows, source, self.notes, self.chain) for step in range(self.num_steps)]
        self._source, self._logit_rows = source, sum(self.lens) if decode else self.bs

    def forward_batch(self, runner: _Runner, spec_info: Any) -> Any:
        return _batch_of(self._source, self.lens, runner, self._logit_rows, spec_info)

    def planned_batch(self, spec_info: Any, runner: _Runner) -> Any:
        """As the release prepares a draft extend without a CUDA graph: the backend of the runner given is planned."""
        batch = self.forward_batch(runner, spec_info)
        runner.attn_backend.init_forward_metadata(batch)
        batch.mark_forward_metadata_ready()
        return batch

    def to_json(self) -> dict[str, Any]:
        return {
            "num_steps": self.num_steps,
            "lens": self.lens,
            "accept_lens": self.accept_lens,
            "chain_mtp_hidden_states": self.chain,
        }


class _Current:
    """The case that runs: lifted functions are lifted once, and their stubs look here."""

    case: _Case


def _given(current: _Current) -> dict[str, Any]:
    """What the lifted functions use of the rest of the release."""

    def draft_input(**fields: Any) -> Any:
        made = SimpleNamespace(**fields)
        made.prepare_for_extend_to_fill_draft_kvcache = lambda _batch, _ids, _count, runner, _graph: (
            current.case.planned_batch(made, runner)
        )
        return made

    def top_k(probs: torch.Tensor, topk: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = torch.topk(probs, topk, dim=dim)
        return values, indices

    return {
        "torch": torch,
        "ForwardBatch": SimpleNamespace(
            init_new=lambda batch, runner, **_named: current.case.forward_batch(runner, batch.spec_info)
        ),
        "EagleDraftInput": draft_input,
        "EagleDraftExtendInput": draft_input,
        "prepare_for_draft_extend": lambda spec, _batch, _ids, _count, runner, *_a, **_n: current.case.planned_batch(
            spec, runner
        ),
        "CaptureHiddenMode": SimpleNamespace(NULL=0, LAST=1, FULL=2),
        "replace": copy.copy,
        "fast_topk": top_k,
        "rotate_input_ids": nothing,
        "rotate_input_ids_triton": nothing,
        "assign_hidden_states_pool_triton": nothing,
        "maybe_detect_nan": nothing,
        "maybe_detect_inf": nothing,
        "maybe_detect_oob": nothing,
        "require_gathered_buffer": lambda *_arguments: True,
        "logger": SilentLogger(),
        # The device that the lifted code takes this machine for.
        "_is_npu": False,
        "_is_cpu": False,
        "_is_hip": False,
    }


def _worker(case: _Case, methods: Mapping[str, Any]) -> SimpleNamespace:
    worker = SimpleNamespace(
        draft_runner_list=case.runners,
        speculative_num_steps=case.num_steps,
        speculative_num_draft_tokens=case.num_steps + 1,
        topk=1,
        device=torch.device("cpu"),
        chain_mtp_hidden_states=case.chain,
        speculative_algorithm=SimpleNamespace(is_standalone=lambda: False),
        model_config=SimpleNamespace(vocab_size=_VOCABULARY),
        req_to_hidden_states_pool=None,
        req_to_token_pool=case.runners[0].req_to_token_pool,
        cuda_graph_runner_for_draft_extend=None,  # the eager path
        plan_stream=None,
        plan_stream_ctx=nullcontext(),
        use_rejection_sampling=False,
        draft_extend_num_front_tokens=0,
        server_args=SimpleNamespace(),
        prepare_for_draft_extend=lambda spec, _batch, _ids, _count, runner, _graph, **_named: case.planned_batch(
            spec, runner
        ),
        _apply_deferred_mamba_init_to_draft_pools=nothing,
        _seed_boundary_kv_stash=nothing,
        _fill_boundary_kv_front_and_update_stash=nothing,
    )
    for name, method in methods.items():
        setattr(worker, name, MethodType(method, worker))
    return worker


@dataclass(frozen=True, slots=True)
class _Lifted:
    """A function of the worker, and the methods of the worker that it calls and that run here."""

    function: Any
    methods: Mapping[str, Any]
    source: _Source
    current: _Current


def _lift(lifter: Lifter, function: str) -> tuple[LiftedFunction, _Lifted]:
    current = _Current()
    given = Needed(_given(current))
    lifted = lifter.lift_method(WORKER_FILE, f"{WORKER_CLASS}.{function}", given)
    of_class = class_functions(lifter.module(WORKER_FILE), WORKER_CLASS)
    methods = {
        name: lifter.lift_method(WORKER_FILE, f"{WORKER_CLASS}.{name}", given).value
        for name in METHODS
        if name in of_class
    }
    return lifted, _Lifted(lifted.value, methods, _Source(lifter), current)


def _run(lifted: _Lifted, decode: bool, chooser: Chooser) -> Shown:
    case = lifted.current.case = _Case(chooser, lifted.source, decode)
    function, worker = lifted.function, _worker(case, lifted.methods)
    batch = SimpleNamespace(
        seq_lens=torch.tensor(case.lens), forward_mode=SimpleNamespace(is_idle=lambda: False), spec_info=None
    )
    rows = sum(case.lens)
    if decode:
        result = SimpleNamespace(
            next_token_ids=torch.zeros(rows, dtype=torch.int64),
            accept_lens=torch.tensor(case.accept_lens),
            logits_output=SimpleNamespace(hidden_states=torch.zeros(rows, _HIDDEN)),
            next_draft_input=SimpleNamespace(),
            can_run_cuda_graph=False,
        )
        function(worker, batch, result)
    else:
        function(worker, batch, torch.zeros(rows, _HIDDEN), torch.zeros(case.bs, dtype=torch.int64))
    return Shown(case.to_json(), {"steps": case.notes}, tuple(_violations(case)))


def _violations(case: _Case) -> Iterator[Broken]:
    """What attention used in each step, against the step's own runner."""
    for name in ("token_to_kv_pool", "attn_backend"):
        foreign = [note for note in case.notes if note[name] != note["step"]]
        if foreign:
            first = foreign[0]
            used = "; ".join(
                f"step {n['step']}: token_to_kv_pool of runner {n['token_to_kv_pool']}, "
                f"attn_backend of runner {n['attn_backend']}"
                for n in case.notes
            )
            yield Broken(
                DraftPool.rule.id,
                f"step {first['step']} of {case.num_steps} uses the {name} of runner {first[name]}",
                f"step {first['step']}: {name} of runner {first['step']}",
                f"step {first['step']}: {name} of runner {first[name]}",
                (used, f"req_to_token_pool: {first['rows']}, one object for all runners"),
            )
            break
    stale = [note for note in case.notes if note["planned_for"] != "this batch"]
    if stale:
        first = stale[0]
        yield Broken(
            STALE_METADATA.id,
            f"step {first['step']} of {case.num_steps} attends with metadata of {first['planned_for']}",
            f"step {first['step']}: metadata of this batch",
            f"step {first['step']}: metadata of {first['planned_for']}",
        )


def multi_layer_probes(lifter: Lifter, guards: Guards) -> Iterator[Probe | NotRun]:
    """The probes of the multi-layer worker, or why one is not run."""
    # A user starts a model with several draft layers; nobody gets this worker unasked.
    reach = guards.reach_of_overlap_worker({"topk": 1})
    reach = "option" if reach == "default" else reach
    for name, function in FUNCTIONS.items():
        try:
            lifted, runnable = _lift(lifter, function)
        except DriftError as error:
            yield NotRun(name, str(error))
            continue
        draw = partial(_Case, source=runnable.source, decode=name == DECODE)
        run = partial(_run, runnable, name == DECODE)
        yield Probe(name, lifted.name, lifted.where, lifted.body_hash, reach, draw, run)
