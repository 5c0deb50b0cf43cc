"""SGLang's own preparation of a draft and of a verification: the functions that read KV slots out of a launch's rows.

They are run whole, on a batch of ours over the rows as they were at the launch; what they leave in `out_cache_loc` is
where the simulated device writes. Their kernels are not run here, for Triton's interpreter is slow: what a kernel of
this family does is done on the same tensors, with the row stride that it is launched with (the kernels themselves are
tested in the ops tier, launches included). Making a forward batch, attention metadata and CUDA graphs do nothing.

From 0.5.23 on a chain's drafts and its verification share one window of slots, which the preparation of the draft
reads. The worker hands it on, and so does this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specsim.engine.config import EngineConfig
from specsim.engine.locations import Drafted, RowsAtLaunch
from specsim.engines.sglang import host_names as names
from specsim.engines.sglang import host_objects as objects
from specsim.lifting.lift import DriftError, ParsedModule, find_definitions, parameter_names


class KernelStub:
    """A kernel that gathers the slots of a segment of each request's row, by the names of its parameters."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self._parameters = parameters

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        return self._launch

    def _launch(self, *arguments: Any, **named: Any) -> None:
        given = dict(zip(self._parameters, arguments, strict=False)) | named
        starts = given["start_offset"] if "start_offset" in given else given["seq_lens"]
        if "end_offset" in given:
            widths = (given["end_offset"] - starts).tolist()
        elif "topk" in given:
            widths = [given["topk"] * given["speculative_num_steps"]] * len(starts)
        else:
            widths = [given["draft_token_num"]] * len(starts)
        table = given["req_to_token"].reshape(-1)
        bases = given["req_pool_indices"] * given["pool_len"] + starts
        if len(set(widths)) == 1:
            slots = table.take(bases.unsqueeze(1) + torch.arange(widths[0])).reshape(-1)
        else:
            spans = zip(bases.tolist(), widths, strict=True)
            slots = table[[at for base, width in spans for at in range(base, base + width)]]
        out_cache_loc = given["out_cache_loc"]
        if len(slots) > len(out_cache_loc):
            raise IndexError(f"{len(slots)} slots are written to a tensor of {len(out_cache_loc)}")
        out_cache_loc[: len(slots)] = slots


class _ForwardBatch:
    """`ForwardBatch`: making one prepares the attention, which is not simulated."""

    @staticmethod
    def init_new(_batch: Any, _model_runner: Any, **_named: Any) -> Any:
        return objects.StrictFields(
            "ForwardBatch",
            forward_mode=_MODE,
            mark_forward_metadata_ready=lambda: None,
        )


_MODE = objects.StrictFields("ForwardMode", is_idle=lambda: False, is_decode=lambda: True, is_extend=lambda: False)


def _nothing(*_arguments: Any, **_named: Any) -> None:
    """Of checks, recurrent states and models of other kinds."""


def supplied(module_of: Callable[[str], ParsedModule | None]) -> dict[str, Any]:
    """What the functions are given in place of the release's own. `module_of` gives a file of the release, None where
    it has none. A kernel that is found nowhere is not given: what uses it is not run. Raises DriftError for one with
    other parameters.
    """
    given: dict[str, Any] = {
        "ForwardBatch": _ForwardBatch,
        "ForwardMode": objects.StrictFields("ForwardMode", IDLE=_MODE, TARGET_VERIFY=_MODE, DRAFT_EXTEND_V2=_MODE),
        "CaptureHiddenMode": objects.StrictFields("CaptureHiddenMode", NULL=0, LAST=1, FULL=2),
        # The device that the lifted code takes this machine for.
        **dict.fromkeys(("_is_cuda",), True),
        **dict.fromkeys(("_is_hip", "_is_musa", "_is_xpu", "_is_cpu"), False),
        "_get_oot_speculative_cache_locs_fn": lambda: None,
        "next_power_of_2": lambda count: 1 << (count - 1).bit_length(),
        **dict.fromkeys(names.NOTHING_FOR_LOCATIONS, _nothing),
        **dict.fromkeys(names.LOCATIONS_OF_OTHER_DEVICES, objects.NotUsed),
    }
    for path in names.CACHE_LOCS:
        module = module_of(path)
        for name, known in names.LOCATION_KERNELS.items():
            if module is None or name in given or name not in module.definitions:
                continue
            kernel = find_definitions(module, name)[0]
            found = parameter_names(kernel)  # type: ignore[arg-type]
            if found not in known:
                raise DriftError(f"signature changed: {path}:{kernel.lineno} {name}({', '.join(found)})")
            given[name] = KernelStub(found)
    return given


class HostLocations:
    """The functions of one run, as `specsim.engine.locations.Locations` has them. `call(function, ...)` calls into the
    release; `draft` and `verify` are its functions, with the names of their parameters.
    """

    def __init__(self, config: EngineConfig, rows: int, allocator: Any) -> None:
        self._config = config
        self._table_rows = rows + 1
        self._allocator = allocator
        self._window: torch.Tensor | None = None
        self._of_launch: tuple[RowsAtLaunch, Any] | None = None
        self._pool = _MovesOfPool()
        self._runner = _runner(self._pool)
        self._translator = objects.StrictFields(
            "KVIndexTranslator", plan=lambda **named: objects.StrictFields("KVLocPlan", **named)
        )

    def draft(self, function: Callable[..., Any], parameters: tuple[str, ...], at: RowsAtLaunch, steps: int) -> Drafted:
        """Slots of the drafts, and the copies of a sequence's last page."""
        config = self._config
        batch = self._batch(at)
        self._pool.moves = []
        known = {
            "self": objects.StrictFields("EagleDraftInput"),
            "draft_input": objects.StrictFields("EagleDraftInput"),
            "req_to_token_pool": batch.req_to_token_pool,
            "batch": batch,
            "cuda_graph_runner": None,
            "draft_model_runner": self._runner,
            "topk": config.topk,
            "num_steps": steps,
            "target_translator": self._translator,
            "num_draft_tokens": steps + 1 if config.topk == 1 else config.num_draft_tokens,
        }
        answer = function(**{name: known[name] for name in parameters})
        plan = answer[2] if len(answer) > 2 else None
        self._window = None if plan is None else plan.write_virtual
        slots = batch.out_cache_loc.tolist()
        stride = len(slots) // len(at.rows)
        of_each = [slots[i : i + stride] for i in range(0, len(slots), stride)]
        width = config.topk * steps
        return Drafted([own[:width] if plan is not None else own for own in of_each], self._pool.moves)

    def verify(
        self, function: Callable[..., Any], parameters: tuple[str, ...], at: RowsAtLaunch, nodes: int
    ) -> list[list[int]]:
        """Slots of the nodes of each request's tree."""
        batch = self._batch(at)
        drafts = torch.zeros(len(at.rows) * nodes, dtype=torch.int64)
        verify_input = objects.StrictFields(
            "EagleVerifyInput",
            draft_token=drafts,
            draft_token_num=nodes,
            prepared_out_cache_loc=self._window,
            prepared_mrope_positions=None,
            kv_loc_plan=None,
        )
        self._window = None
        known = {
            "self": verify_input,
            "verify_input": verify_input,
            "req_to_token_pool": batch.req_to_token_pool,
            "batch": batch,
            "target_worker": objects.StrictFields("TpModelWorker", model_runner=self._runner),
        }
        function(**{name: known[name] for name in parameters})
        slots = batch.out_cache_loc.tolist()
        return [slots[i * nodes : (i + 1) * nodes] for i in range(len(at.rows))]

    def _batch(self, at: RowsAtLaunch) -> Any:
        """`ScheduleBatch`, or what a worker had of it, on the device: its lengths are the true ones. The draft and the
        verification of a launch have the same one.
        """
        if self._of_launch is not None and self._of_launch[0] is at:
            return self._of_launch[1]
        table = torch.frombuffer(at.table, dtype=torch.int32)
        rows = torch.tensor(at.rows, dtype=torch.int64)
        lengths = torch.tensor(at.lengths, dtype=torch.int64)
        batch = objects.StrictFields(
            "ScheduleBatch",
            reqs=[],
            req_to_token_pool=objects.StrictFields("ReqToTokenPool", req_to_token=table.view(self._table_rows, -1)),
            token_to_kv_pool_allocator=self._allocator,
            req_pool_indices=rows,
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            seq_lens_sum=sum(at.lengths),
            input_ids=lengths,  # of which the device alone is read
            device=objects.CPU,
            forward_mode=_MODE,
            model_config=objects.StrictFields("ModelConfig", vocab_size=1 << 30),
            multimodal_inputs=[None] * len(at.rows),
            hisparse_coordinator=None,
        )
        self._of_launch = (at, batch)
        return batch


class _MovesOfPool:
    """The drafter's `KVCache`: notes what is moved in it."""

    def __init__(self) -> None:
        self.moves: list[tuple[int, int]] = []

    def move_kv_cache(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
        self.moves += zip(tgt_loc.tolist(), src_loc.tolist(), strict=True)


def _runner(pool: Any) -> Any:
    return objects.StrictFields(
        "ModelRunner",
        token_to_kv_pool=pool,
        spec_algorithm=objects.Eagle(),
        model_config=objects.StrictFields("ModelConfig", model_is_mrope=False),
        graph_runner=None,
        decode_cuda_graph_runner=None,
        attn_backend=objects.StrictFields("AttentionBackend", init_forward_metadata=_nothing),
    )
