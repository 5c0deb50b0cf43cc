"""SGLang's Triton kernels as peers of specsim's in a benchmark: launched as the engine launches them, on a case of the
contract.

Most are launched as `operations` states it, once for the tier and for here. `PEERS` are those that the engine launches
otherwise than the tier does: with buffers that it fills in the call that is timed, for that is a launch that it makes,
or as the kernel that a host function picks. All that an engine has at hand is made before the call that is timed.

Some shapes of a case are outside what a kernel can do: `accepts` says of which sizes it can.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specsim.contracts.contract import Role, Sizes, Tensors
from specsim.contracts.registry import OPS
from specsim.engines.peers import LINKS, LiftedPeer
from specsim.engines.sglang.operations import KERNELS, KernelNames
from specsim.engines.sglang.operations.names import named, on_grid, power_of_two, words
from specsim.engines.sglang.operations.rows import BLOCK_PARAMETERS
from specsim.engines.sglang.provider import SHIMS, lift_first, lift_kernel
from specsim.engines.sglang.where import Place, places
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter, TextStore, body_hash
from specsim.lifting.source import SourceTree
from specsim.verdict import NotRun

Call = Callable[[], Tensors]

PEER_RELEASES = ("0.5.13", "0.5.14", "0.5.23")
"""That a benchmark compares with: kernels that were shipped before, with and after the rewrites between them."""

PROGRAMS_OF_A_BITMASK = 132  # an engine launches as many as the device has multiprocessors


def _any(_sizes: Sizes) -> bool:
    return True


AS_DOCUMENTED: dict[str, Callable[[Sizes], bool]] = {
    "kernel:row_argmax": lambda sizes: sizes["nan_policy"] == 0,
    **dict.fromkeys(
        (
            "kernel:assign_req_to_token_pool",
            "kernel:assign_draft_cache_locs_contiguous",
            "kernel:assign_extend_cache_locs",
            "kernel:verify_commit_outputs",
            "kernel:get_target_cache_loc",
            "kernel:write_req_to_token_pool",
            "kernel:gather_rows",
            "kernel:reconstruct_tree",
            "kernel:temperature_softmax:split",
            "kernel:alloc_extend",
            "kernel:alloc_decode",
            "kernel:get_last_loc:legacy",
            "kernel:generate_draft_decode_kv_indices",
            "kernel:fill_accept_out_cache_loc",
            "kernel:align_evict_mask_to_page_size",
            "kernel:rotate_input_ids",
            "kernel:assign_hidden_states_pool",
            "kernel:assign_new_state",
            "kernel:stash_append_boundary_state",
            "kernel:fill_widened_draft_extend_inputs",
        ),
        _any,
    ),
}
"""The kernels of `operations` that the engine launches as they are documented, by the names of their subjects, and the
sizes that each can do.
"""


@dataclass(frozen=True, slots=True)
class PeerNames:
    """A kernel, or the host function that launches it. `launch(value, sizes, tensors)` makes the call that is timed,
    which writes the case's tensors or returns outputs by name. `places` are where releases have it, newest first,
    `parameters` the first of the function's.
    """

    op: str
    places: tuple[Place, ...]
    parameters: tuple[str, ...]
    launch: Callable[[Any, Sizes, Tensors], Call]
    accepts: Callable[[Sizes], bool] = _any


def lifted_peers(source: SourceTree, store: TextStore) -> tuple[list[LiftedPeer], list[NotRun]]:
    """What a release or checkout has of the operations, and why it lacks the others of this table."""
    lifter = Lifter(source, store, SHIMS)
    found: list[LiftedPeer] = []
    missing: list[NotRun] = []
    documented: list[KernelNames | PeerNames] = [kernel for kernel in KERNELS if kernel.subject in AS_DOCUMENTED]
    for names in [*documented, *PEERS]:
        try:
            found.append(_lift(lifter, names))
        except DriftError as error:
            missing.append(NotRun(names.op, str(error)))
    return found, missing


def _lift(lifter: Lifter, names: KernelNames | PeerNames) -> LiftedPeer:
    if isinstance(names, KernelNames):
        lifted, accepts = lift_kernel(lifter, names), AS_DOCUMENTED[names.subject]
        return _peer(names.op, lifted, accepts, partial(_documented, names, lifted.value))
    lifted = lift_first(lifter, names.places, names.parameters)
    return _peer(names.op, lifted, names.accepts, partial(names.launch, lifted.value))


def _peer(
    op: str, lifted: LiftedFunction, accepts: Callable[[Sizes], bool], prepare: Callable[[Sizes, Tensors], Call]
) -> LiftedPeer:
    return LiftedPeer(op, lifted.value, lifted.where, _code(lifted.value), accepts, prepare)


def _documented(names: KernelNames, kernel: Any, sizes: Sizes, tensors: Tensors) -> Call:
    launch = names.launch(sizes, tensors)
    if launch is None:
        return lambda: tensors
    call, returned = launch.bound(kernel), launch.returned
    if returned is None:
        return _writes(call, tensors)
    outputs = [arg.name for arg in OPS[names.op].tensor_args if arg.role is Role.OUT]
    if len(outputs) == 1:
        return lambda: {outputs[0]: returned(call())}
    return lambda: dict(zip(outputs, returned(call()), strict=True))


def _code(value: Any) -> str:
    """What identifies the code of a function and of what it calls: a hash of its slice."""
    function = getattr(value, "fn", value)
    return body_hash(ast.parse(Path(function.__code__.co_filename).read_text(encoding="utf-8")))


def _writes(call: Callable[[], object], tensors: Tensors) -> Call:
    """A call that writes the case's own tensors."""

    def run() -> Tensors:
        call()
        return tensors

    return run


def _build_tree(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    bs, ndt, mode = sizes["bs"], sizes["num_draft_tokens"], sizes["tree_mask_mode"]
    lens = t["verified_seq_len"]

    def run() -> Tensors:
        links = torch.full((3, bs, ndt), -1, dtype=torch.int64, device=lens.device)
        t["tree_mask"].fill_(True)
        before = torch.cumsum(lens, dim=0) - lens
        kernel[(bs,)](
            t["parent_list"],
            t["selected_index"],
            lens,
            before,
            t["tree_mask"],
            t["positions"],
            *links,
            topk=sizes["topk"],
            depth=sizes["num_steps"],
            draft_token_num=ndt,
            tree_mask_mode=mode,
            batch_size=bs,
            parent_list_stride=t["parent_list"].stride(0),
            selected_index_stride=t["selected_index"].stride(0),
        )
        return {**t, **dict(zip(LINKS, links, strict=True))}

    return run


def _walk(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    arguments = named(t, f"predicts accept_index accept_token_num candidates {' '.join(LINKS)} target_predict")

    def run() -> None:
        t["predicts"].zero_()
        t["accept_index"].fill_(-1)
        kernel[(sizes["bs"],)](
            *arguments,
            batch_size=sizes["bs"],
            num_speculative_tokens=sizes["accept_width"],
            num_draft_tokens=sizes["num_draft_tokens"],
        )

    return _writes(run, t)


def _bonus(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    index = t["accept_index"].long()  # as the walk hands it on

    def run() -> None:
        kernel[(sizes["bs"],)](t["predict"][index], t["accept_lens"], t["bonus_tokens"], index.shape[1])

    return _writes(run, t)


def _extend_after_decode(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    tensors = named(t, "accept_tokens seq_lens accept_lens positions bonus_tokens")
    upper = power_of_two(max(sizes["num_steps"] + 1, sizes["bs"]))
    return _writes(on_grid((sizes["bs"],), *tensors, upper).bound(kernel), t)


def _filter_finished(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    tensors = named(t, "out_cache_loc tgt_cache_loc accept_token_num num_accept_tokens_filter")
    bs, width = sizes["bs"], sizes["num_steps"] + 1
    return _writes(on_grid((bs,), *tensors, power_of_two(bs), power_of_two(width)).bound(kernel), t)


def _chain_tree(function: Any, _sizes: Sizes, t: Tensors) -> Call:
    outputs = ("tree_mask", "positions", *LINKS, "tokens", "out_cache_loc")
    inputs = named(t, "bonus_tokens draft_tokens verified_seq_len tree_mask")
    slots = [t[name] for name in ("req_pool_indices", "req_to_token") if name in t]

    def run() -> Tensors:
        made = function(*inputs, *slots)
        return {name: tensor for name, tensor in zip(outputs, made, strict=False) if tensor is not None}

    return run


def _pack(function: Any, sizes: Sizes, t: Tensors) -> Call:
    bs, ndt = sizes["bs"], sizes["num_draft_tokens"]
    bounds = torch.arange(bs + 1, dtype=torch.int32, device=t["packed"].device)
    starts, masks = bounds * (t["packed"].numel() // max(1, bs)), t["tree_mask"].view(torch.uint8)

    def run() -> None:
        function(masks, bounds * ndt, starts, t["packed"].view(-1), batch_size=bs, query_width=ndt, max_kv_len=ndt)

    return _writes(run, t)


def _bitmask(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    logits, bitmask, rows = t["logits"], t["bitmask"], t["indices"]
    programs = PROGRAMS_OF_A_BITMASK if logits.is_cuda else 2
    vocab_size = min(logits.shape[1], bitmask.shape[1] * 32)
    scalars = (rows.shape[0], vocab_size, logits.shape[1], bitmask.shape[1], programs, 4096)
    options = {"num_warps": 4096 // 32 // (16 // logits.element_size()), "num_stages": 3}
    return _writes(on_grid((programs,), logits, bitmask, rows, *scalars, **options).bound(kernel), t)


def _chain_rejection(is_block: bool, function: Any, sizes: Sizes, t: Tensors) -> Call:
    bs, width = sizes["bs"], sizes["num_draft_tokens"]
    device = t["candidates"].device
    numbers = torch.arange(bs * width, dtype=torch.int32, device=device).view(bs, width)
    links = torch.empty(0, dtype=torch.int64, device=device)  # of a tree, which a chain is not: never read
    outputs = named(t, "predicts accept_index accept_token_num")
    probs = named(t, "uniform_samples uniform_final target_probs draft_probs")
    options = {"block_verification": True} if is_block else {}

    def run() -> None:
        t["predicts"].zero_()
        t["accept_index"].fill_(-1)
        function(*outputs, t["candidates"], numbers, links, links, *probs, 1.0, 1.0, True, **options)

    return _writes(run, t)


@dataclass(frozen=True, slots=True)
class Layers:
    """The buffers of a pool as the engine's kernel takes them: addresses and bytes a row, on the device."""

    pointers: torch.Tensor
    strides: torch.Tensor
    row_bytes: int


def layers_of(buffers: Sequence[torch.Tensor], device: torch.device) -> Layers:
    row_bytes = buffers[0][0].nbytes if buffers else 0
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64, device=device)
    strides = torch.full((len(buffers),), row_bytes, dtype=torch.int64, device=device)
    return Layers(pointers, strides, row_bytes)


def copy_layers(kernel: Any, layers: Layers, target: torch.Tensor, source: torch.Tensor) -> None:
    """Move rows of many buffers as the engine's memory pool does: bytes a tile and moves a launch by the rows' size."""
    tile = 512 if layers.row_bytes >= 8192 else 256 if layers.row_bytes >= 4096 else 128
    most = 128 if tile >= 512 else 256
    for first in range(0, len(target), most):
        count = min(most, len(target) - first)
        kernel[(len(layers.pointers), -(-layers.row_bytes // tile))](
            layers.pointers,
            layers.strides,
            target[first : first + count],
            source[first : first + count],
            count,
            power_of_two(count),
            BYTES_PER_TILE=tile,
            num_warps=8 if tile > 256 else 4,
            num_stages=2,
        )


def _move(kernel: Any, _sizes: Sizes, t: Tensors) -> Call:
    layers = layers_of([t["buffer"]], t["buffer"].device)
    return _writes(lambda: copy_layers(kernel, layers, t["target"], t["source"]), t)


_BUILD = words("parent_list_ptr selected_index_ptr verified_seq_len_ptr seq_len_prefix_sum_ptr")
_WALK = words("predicts_ptr accept_index_ptr accept_token_num_ptr candidates_ptr")
_BONUS = words("accept_tokens accept_lens bonus_tokens_ptr accept_stride")
_EXTEND = words("accept_tokens seq_lens accept_lens positions bonus_tokens_ptr bs_upper")
_FILTER = words("out_cache_loc tgt_cache_loc num_correct_drafts num_accept_tokens_filter")
_CHAIN_TREE = words("bonus_tokens draft_tokens seq_lens tree_mask_buf req_pool_indices req_to_token")
_LOGITS = words("logits_ptr bitmask_ptr indices_ptr num_rows vocab_size logits_strides bitmask_strides")
_CHAIN = words("predicts accept_index accept_token_num candidates retrive_index")
_COPY = words("data_ptrs strides tgt_loc_ptr src_loc_ptr num_locs num_locs_upper BYTES_PER_TILE")

_CHAINS = places("chain_speculative_sampling_triton")
PEERS: tuple[PeerNames, ...] = (
    PeerNames("build_tree", places("sgl_build_tree_kernel_efficient_triton"), _BUILD, _build_tree),
    PeerNames("verify_tree_greedy", places("verify_tree_greedy_kernel_triton"), _WALK, _walk),
    PeerNames("fill_bonus_tokens", places("fill_bonus_tokens"), _BONUS, _bonus),
    PeerNames(
        "create_extend_after_decode", places("create_extend_after_decode_spec_info"), _EXTEND, _extend_after_decode
    ),
    PeerNames("filter_finished_cache_loc", places("filter_finished_cache_loc_kernel"), _FILTER, _filter_finished),
    PeerNames("build_chain_tree", places("build_chain_tree"), _CHAIN_TREE[:4], _chain_tree),
    PeerNames("build_chain_tree_and_cache_locs", places("build_chain_tree"), _CHAIN_TREE, _chain_tree),
    PeerNames(
        "pack_tree_mask",
        places("pack_verify_mask_into"),
        words("mask kv_indptr packed_indptr output"),
        _pack,
        accepts=lambda sizes: sizes["num_draft_tokens"] % 8 == 0,  # else its rows do not begin at whole bytes
    ),
    PeerNames("apply_token_bitmask", places("apply_token_bitmask_inplace_kernel"), _LOGITS, _bitmask),
    PeerNames("verify_chain_rejection", _CHAINS, _CHAIN, partial(_chain_rejection, False)),
    PeerNames("verify_chain_block", _CHAINS, BLOCK_PARAMETERS, partial(_chain_rejection, True)),
    PeerNames("move_kv", places("copy_all_layer_kv_cache_tiled"), _COPY, _move),
)
