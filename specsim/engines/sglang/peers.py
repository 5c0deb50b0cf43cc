"""SGLang's Triton kernels as peers of specsim's in a benchmark: launched as the engine launches them, on a case of the
contract.

A table for all releases, like `operations`: an operation is looked for under the names and in the files that it had,
and is taken only when its first parameters are those known here. Buffers that a kernel wants filled are filled in the
call that is timed, for that is a launch that the engine makes; arguments that an engine has at hand are made before.

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

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.provider import SHIMS
from specsim.lifting.lift import DriftError, Lifter, TextStore, body_hash
from specsim.lifting.source import SourceTree
from specsim.verdict import NotRun

Call = Callable[[], Tensors]

PEER_RELEASES = ("0.5.13", "0.5.14", "0.5.23")
"""That a benchmark compares with: kernels that were shipped before, with and after the rewrites between them."""

PROGRAMS_OF_A_BITMASK = 132  # an engine launches as many as the device has multiprocessors
_OF_OTHER_DEVICES = {"rotate_input_ids_cpu": None}  # named by host functions, never called on CUDA tensors


@dataclass(frozen=True, slots=True)
class PeerNames:
    """A kernel, or the host function that launches it. `launch(value, sizes, tensors)` makes the call that is timed,
    which writes the case's tensors or returns outputs by name. `parameters` are the first of the function's.
    """

    op: str
    names: tuple[str, ...]
    paths: tuple[str, ...]
    parameters: tuple[str, ...]
    launch: Callable[[Any, Sizes, Tensors], Call]
    accepts: Callable[[Sizes], bool] = lambda _sizes: True


@dataclass(frozen=True, slots=True)
class LiftedPeer:
    """A release's implementation of an operation. `code` is equal for equal code, across releases; `value` is what was
    lifted.
    """

    op: str
    value: Any
    where: str
    code: str
    accepts: Callable[[Sizes], bool]
    prepare: Callable[[Sizes, Tensors], Call]


def lifted_peers(source: SourceTree, store: TextStore) -> tuple[list[LiftedPeer], list[NotRun]]:
    """What a release or checkout has of the operations, and why it lacks the others of this table."""
    lifter = Lifter(source, store, {**SHIMS, **_OF_OTHER_DEVICES})
    found: list[LiftedPeer] = []
    missing: list[NotRun] = []
    for names in PEERS:
        try:
            found.append(_lift(lifter, names))
        except DriftError as error:
            missing.append(NotRun(names.op, str(error)))
    return found, missing


def _lift(lifter: Lifter, names: PeerNames) -> LiftedPeer:
    for path in names.paths:
        for name in names.names:
            if lifter.source.exists(path) and name in lifter.module(path).definitions:
                lifted = lifter.lift(path, name)
                if lifted.parameters[: len(names.parameters)] != names.parameters:
                    raise DriftError(f"signature changed: {lifted.where} {name}({', '.join(lifted.parameters)})")
                launch = partial(names.launch, lifted.value)
                return LiftedPeer(names.op, lifted.value, lifted.where, _code(lifted.value), names.accepts, launch)
    raise DriftError(f"not found: {' or '.join(names.names)}")


def _code(value: Any) -> str:
    """What identifies the code of a function and of what it calls: a hash of its slice."""
    function = getattr(value, "fn", value)
    return body_hash(ast.parse(Path(function.__code__.co_filename).read_text(encoding="utf-8")))


def _upper(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _writes(call: Callable[[], object], tensors: Tensors) -> Call:
    """A call that writes the case's own tensors."""

    def run() -> Tensors:
        call()
        return tensors

    return run


def _ragged(end: str, kernel: Any, _sizes: Sizes, t: Tensors) -> Call:
    bs, pool_len = len(t["req_pool_indices"]), t["req_to_token"].shape[1]
    named = ("req_pool_indices", "req_to_token", "start_offset", end, "out_cache_loc")
    return _writes(lambda: kernel[(bs,)](*(t[name] for name in named), pool_len, _upper(bs)), t)


def _draft_locs(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    named = [t[name] for name in ("req_pool_indices", "req_to_token", "seq_lens", "out_cache_loc")]
    pool_len = t["req_to_token"].shape[1]
    return _writes(lambda: kernel[(sizes["bs"],)](*named, pool_len, sizes["topk"], sizes["num_steps"]), t)


LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")


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
    named = ("predicts", "accept_index", "accept_token_num", "candidates", "retrieve_index", "retrieve_next_token")
    arguments = [t[name] for name in (*named, "retrieve_next_sibling", "target_predict")]

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


def _commit(function: Any, _sizes: Sizes, t: Tensors) -> Call:
    def run() -> Tensors:
        lens, bonus = function(t["predict"], t["accept_index"], t["accept_lens"], t["seq_lens"])
        return {"new_seq_lens": lens, "bonus_tokens": bonus}

    return run


def _extend_after_decode(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    named = ("accept_tokens", "seq_lens", "accept_lens", "positions", "bonus_tokens")
    upper = _upper(max(sizes["num_steps"] + 1, sizes["bs"]))
    return _writes(lambda: kernel[(sizes["bs"],)](*(t[name] for name in named), upper), t)


def _target_locs(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    named = ("tgt_cache_loc", "to_free_slots", "accept_token_num", "to_free_num_slots", "out_cache_loc")
    ndt, bs = sizes["num_draft_tokens"], sizes["bs"]
    return _writes(lambda: kernel[(bs,)](*(t[name] for name in named), ndt, _upper(ndt), _upper(bs)), t)


def _filter_finished(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    named = ("out_cache_loc", "tgt_cache_loc", "accept_token_num", "num_accept_tokens_filter")
    bs, width = sizes["bs"], sizes["num_steps"] + 1
    return _writes(lambda: kernel[(bs,)](*(t[name] for name in named), _upper(bs), _upper(width)), t)


def _write_pool(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    before = t["prefix_lens"].cumsum(0) - t["prefix_lens"]
    pointers = (t["prefix_indices"].data_ptr() + 8 * before).view(torch.uint64)
    extend_lens = t["seq_lens"] - t["prefix_lens"]
    named = [t["req_to_token"], t["req_pool_indices"], pointers, t["prefix_lens"], t["seq_lens"], extend_lens]
    stride = t["req_to_token"].shape[1]
    return _writes(lambda: kernel[(sizes["bs"],)](*named, t["out_cache_loc"], stride), t)


def _gather_extras(function: Any, _sizes: Sizes, t: Tensors) -> Call:
    buffers = [t[name] for name in ("topk_p_buf", "topk_index_buf", "output_tokens_buf", "hidden_states_buf")]
    outputs = ("topk_p", "topk_index", "bonus_tokens", "hidden_states")
    return lambda: dict(zip(outputs, function(t["indices"], *buffers), strict=True))


def _chain_tree(function: Any, _sizes: Sizes, t: Tensors) -> Call:
    outputs = ("tree_mask", "positions", *LINKS, "tokens", "out_cache_loc")
    slots = [t[name] for name in ("req_pool_indices", "req_to_token") if name in t]

    def run() -> Tensors:
        made = function(t["bonus_tokens"], t["draft_tokens"], t["verified_seq_len"], t["tree_mask"], *slots)
        return {name: tensor for name, tensor in zip(outputs, made, strict=False) if tensor is not None}

    return run


def _reconstruct(function: Any, sizes: Sizes, t: Tensors) -> Call:
    named = ("tree_mask", "verified_seq_len", "positions", "retrieve_index", "retrieve_next_token")
    arguments = [t[name] for name in (*named, "retrieve_next_sibling")]
    return _writes(lambda: function(*arguments, sizes["bs"], sizes["num_draft_tokens"]), t)


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
    return _writes(lambda: kernel[(programs,)](logits, bitmask, rows, *scalars, **options), t)


def _argmax(function: Any, _sizes: Sizes, t: Tensors) -> Call:
    return lambda: {"ids": function(t["logits"])}


def _softmax(function: Any, _sizes: Sizes, t: Tensors) -> Call:
    temperatures = t["temperature"].view(-1, 1)
    return lambda: {"probs": function(t["logits"], temperatures)}


def _chain_rejection(is_block: bool, function: Any, sizes: Sizes, t: Tensors) -> Call:
    bs, width = sizes["bs"], sizes["num_draft_tokens"]
    device = t["candidates"].device
    numbers = torch.arange(bs * width, dtype=torch.int32, device=device).view(bs, width)
    links = torch.empty(0, dtype=torch.int64, device=device)  # of a tree, which a chain is not: never read
    named = ("uniform_samples", "uniform_final", "target_probs", "draft_probs")
    options = {"block_verification": True} if is_block else {}

    def run() -> None:
        t["predicts"].zero_()
        t["accept_index"].fill_(-1)
        outputs = (t["predicts"], t["accept_index"], t["accept_token_num"])
        inputs = (t[name] for name in named)
        function(*outputs, t["candidates"], numbers, links, links, *inputs, 1.0, 1.0, True, **options)

    return _writes(run, t)


def _allocate(named: tuple[str, ...], kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    arguments = [t[name] for name in (*named, "seq_lens", "last_loc", "free_pages", "out_cache_loc")]
    bs = sizes["bs"]
    return _writes(lambda: kernel[(bs,)](*arguments, _upper(bs), sizes["page_size"]), t)


def _last_loc(function: Any, _sizes: Sizes, t: Tensors) -> Call:
    return lambda: {"last_loc": function(t["req_to_token"], t["req_pool_indices"], t["prefix_lens"])}


def _kv_indices(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    bs, topk, steps = sizes["bs"], sizes["topk"], sizes["num_steps"]
    positions = t["seq_lens"].repeat_interleave(topk)  # of the branches, as the forward batch has them
    named = (t["req_pool_indices"], t["req_to_token"], t["seq_lens"], t["kv_indices"], t["kv_indptr"], positions)
    strides = (t["req_to_token"].shape[1], t["kv_indices"].shape[1], t["kv_indptr"].shape[1])
    upper = (_upper(bs), _upper(steps), _upper(bs * topk), sizes["page_size"])
    return _writes(lambda: kernel[(steps, bs, topk)](*named, *strides, *upper), t)


def _accepted_locs(kernel: Any, _sizes: Sizes, t: Tensors) -> Call:
    index, size = t["accept_index"], t["accept_index"].numel()
    slots, out = t["out_cache_loc"], t["accept_out_cache_loc"]
    return _writes(lambda: kernel[(size,)](index, slots, out, _upper(size)), t)


def _evict(kernel: Any, sizes: Sizes, t: Tensors) -> Call:
    ndt = sizes["num_draft_tokens"]
    arguments = (t["seq_lens"], t["evict_mask"], sizes["page_size"], ndt, _upper(ndt))
    return _writes(lambda: kernel[(sizes["bs"],)](*arguments), t)


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
            _upper(count),
            BYTES_PER_TILE=tile,
            num_warps=8 if tile > 256 else 4,
            num_stages=2,
        )


def _move(kernel: Any, _sizes: Sizes, t: Tensors) -> Call:
    layers = layers_of([t["buffer"]], t["buffer"].device)
    return _writes(lambda: copy_layers(kernel, layers, t["target"], t["source"]), t)


def _rotate(function: Any, _sizes: Sizes, t: Tensors) -> Call:
    named = ("input_ids", "extend_start_loc", "extend_seq_lens", "topk_index", "select_index")
    return _writes(lambda: function(*(t[name] for name in named)), t)


def _hidden_pool(function: Any, sizes: Sizes, t: Tensors) -> Call:
    pool = t["req_to_hidden_states_pool"]
    inputs = (t["hidden_states"], t["req_pool_indices"], pool, pool.shape[1], sizes["bs"])
    return _writes(lambda: function(*inputs, t["extend_seq_lens"], t["extend_start_loc"]), t)


def _new_state(function: Any, sizes: Sizes, t: Tensors) -> Call:
    state = ("input_ids", "positions", "hidden_states", "out_cache_loc", "extend_seq_lens", "extend_start_loc")
    old = [t[f"old_{name}"] for name in state]
    pools = [t[name] for name in ("req_pool_indices", "req_to_token", "req_to_hidden_states_pool")]
    lens = (t["seq_lens"], t["padding_lens"], sizes["bs"], sizes["step"])
    return _writes(lambda: function(t["next_token_ids"], *old, *(t[name] for name in state), *lens, *pools), t)


def _stash(function: Any, sizes: Sizes, t: Tensors) -> Call:
    named = ("src_tokens", "src_hiddens", "src_row_ends", "num_available", "req_pool_indices", "stash_tokens")
    arguments = [t[name] for name in (*named, "stash_hiddens", "stash_valid_lens")]
    return _writes(lambda: function(*arguments, bool(sizes["set_valid"])), t)


def _widen(function: Any, sizes: Sizes, t: Tensors) -> Call:
    named = ("input_ids", "hidden_states", "predict", "verify_hiddens", "stash_tokens", "stash_hiddens")
    arguments = [t[name] for name in (*named, "stash_valid_lens", "seq_lens", "req_pool_indices")]
    return _writes(lambda: function(*arguments, sizes["num_draft_tokens"]), t)


_LOCS = ("srt/speculative/triton_ops/cache_locs.py", "kernels/ops/speculative/cache_locs.py")
_EAGLE = ("srt/speculative/triton_ops/eagle.py", "kernels/ops/speculative/eagle.py")
_EXTRAS = ("srt/speculative/triton_ops/gather_spec_extras.py", "kernels/ops/speculative/gather_spec_extras.py")
_MULTI = ("srt/speculative/triton_ops/multi_layer_eagle.py", "kernels/ops/speculative/multi_layer_eagle.py")
_REJECT = ("srt/speculative/reject_sampling.py", "kernels/ops/speculative/reject_sampling.py")
_ALLOCATOR = ("srt/mem_cache/triton_ops/allocator.py", "kernels/ops/memory/allocator.py")
_COMMON = ("srt/mem_cache/triton_ops/common.py", "kernels/ops/memory/common.py")
_MOVE = ("srt/mem_cache/triton_ops/cache_move.py", "kernels/ops/kvcache/cache_move.py")
_BITMASK = ("srt/constrained/triton_ops/bitmask_ops.py", "kernels/ops/grammar/bitmask_ops.py")
_TREE = ("kernels/ops/speculative/spec_tree.py",)

_RAGGED = ("req_pool_indices", "req_to_token", "start_offset", "end_offset", "out_cache_loc", "pool_len", "bs_upper")
_CHAIN = ("predicts", "accept_index", "accept_token_num", "candidates", "retrive_index")
_TREE_ARGUMENTS = ("parent_list_ptr", "selected_index_ptr", "verified_seq_len_ptr", "seq_len_prefix_sum_ptr")
_WALK_ARGUMENTS = ("predicts_ptr", "accept_index_ptr", "accept_token_num_ptr", "candidates_ptr")
_TO_TOKEN = (*_LOCS[:1], "srt/mem_cache/allocation.py")

PEERS: tuple[PeerNames, ...] = (
    PeerNames(
        "assign_req_to_token_pool",
        ("assign_req_to_token_pool",),
        _TO_TOKEN,
        _RAGGED,
        partial(_ragged, "end_offset"),
    ),
    PeerNames(
        "assign_draft_cache_locs_contiguous",
        ("assign_draft_cache_locs_contiguous",),
        _LOCS,
        ("req_pool_indices", "req_to_token", "seq_lens", "out_cache_loc", "pool_len", "topk", "speculative_num_steps"),
        _draft_locs,
    ),
    PeerNames(
        "assign_extend_cache_locs", ("assign_extend_cache_locs",), _LOCS, _RAGGED, partial(_ragged, "end_offset")
    ),
    PeerNames("build_tree", ("sgl_build_tree_kernel_efficient_triton",), _TREE, _TREE_ARGUMENTS, _build_tree),
    PeerNames("verify_tree_greedy", ("verify_tree_greedy_kernel_triton",), _TREE, _WALK_ARGUMENTS, _walk),
    PeerNames(
        "fill_bonus_tokens",
        ("fill_bonus_tokens",),
        _EAGLE,
        ("accept_tokens", "accept_lens", "bonus_tokens_ptr", "accept_stride"),
        _bonus,
    ),
    PeerNames(
        "verify_commit_outputs",
        ("prepare_verify_commit_outputs",),
        _EAGLE,
        ("predict", "accept_index", "accept_lens", "seq_lens"),
        _commit,
    ),
    PeerNames(
        "create_extend_after_decode",
        ("create_extend_after_decode_spec_info",),
        _LOCS,
        ("accept_tokens", "seq_lens", "accept_lens", "positions", "bonus_tokens_ptr", "bs_upper"),
        _extend_after_decode,
    ),
    PeerNames(
        "get_target_cache_loc",
        ("get_target_cache_loc",),
        _LOCS,
        ("tgt_cache_loc", "to_free_slots", "num_correct_drafts", "to_free_num_slots", "out_cache_loc"),
        _target_locs,
    ),
    PeerNames(
        "filter_finished_cache_loc",
        ("filter_finished_cache_loc_kernel",),
        _LOCS,
        ("out_cache_loc", "tgt_cache_loc", "num_correct_drafts", "num_accept_tokens_filter"),
        _filter_finished,
    ),
    PeerNames(
        "write_req_to_token_pool",
        ("write_req_to_token_pool_triton",),
        _COMMON,
        ("req_to_token_ptr", "req_pool_indices", "prefix_tensors", "pre_lens", "seq_lens", "extend_lens"),
        _write_pool,
    ),
    PeerNames(
        "gather_rows", ("gather_spec_extras",), _EXTRAS, ("indices", "topk_p_buf", "topk_index_buf"), _gather_extras
    ),
    PeerNames(
        "build_chain_tree",
        ("build_chain_tree",),
        _EAGLE,
        ("bonus_tokens", "draft_tokens", "seq_lens", "tree_mask_buf"),
        _chain_tree,
    ),
    PeerNames(
        "build_chain_tree_and_cache_locs",
        ("build_chain_tree",),
        _EAGLE,
        ("bonus_tokens", "draft_tokens", "seq_lens", "tree_mask_buf", "req_pool_indices", "req_to_token"),
        _chain_tree,
    ),
    PeerNames(
        "reconstruct_tree",
        ("reconstruct_indices_from_tree_mask_triton",),
        ("kernels/ops/speculative/reconstruct_tree.py",),
        ("tree_mask", "verified_seq_len", "positions", "retrieve_index"),
        _reconstruct,
    ),
    PeerNames(
        "pack_tree_mask",
        ("pack_verify_mask_into",),
        ("kernels/ops/speculative/pack_verify_mask.py",),
        ("mask", "kv_indptr", "packed_indptr", "output"),
        _pack,
        accepts=lambda sizes: sizes["num_draft_tokens"] % 8 == 0,  # else its rows do not begin at whole bytes
    ),
    PeerNames(
        "apply_token_bitmask",
        ("apply_token_bitmask_inplace_kernel",),
        _BITMASK,
        ("logits_ptr", "bitmask_ptr", "indices_ptr", "num_rows", "vocab_size", "logits_strides", "bitmask_strides"),
        _bitmask,
    ),
    PeerNames(
        "row_argmax",
        ("row_argmax",),
        ("kernels/ops/speculative/row_argmax.py",),
        ("x",),
        _argmax,
        accepts=lambda sizes: sizes["nan_policy"] == 0,
    ),
    PeerNames(
        "temperature_softmax",
        ("temperature_softmax",),
        ("kernels/ops/sampling/temperature_softmax.py",),
        ("logits", "temperatures"),
        _softmax,
    ),
    PeerNames(
        "verify_chain_rejection",
        ("chain_speculative_sampling_triton",),
        _REJECT,
        _CHAIN,
        partial(_chain_rejection, False),
    ),
    PeerNames(
        "verify_chain_block",
        ("chain_speculative_sampling_triton",),
        _REJECT[1:],
        _CHAIN,
        partial(_chain_rejection, True),
    ),
    PeerNames(
        "alloc_extend",
        ("alloc_extend_kernel",),
        _ALLOCATOR,
        ("pre_lens_ptr", "seq_lens_ptr", "last_loc_ptr", "free_page_ptr", "out_indices", "bs_upper", "page_size"),
        partial(_allocate, ("prefix_lens",)),
    ),
    PeerNames(
        "alloc_decode",
        ("alloc_decode_kernel",),
        _ALLOCATOR,
        ("seq_lens_ptr", "last_loc_ptr", "free_page_ptr", "out_indices", "bs_upper", "page_size"),
        partial(_allocate, ()),
    ),
    PeerNames(
        "get_last_loc",
        ("get_last_loc_triton",),
        _COMMON,
        ("req_to_token", "req_pool_indices_tensor", "prefix_lens_tensor"),
        _last_loc,
    ),
    PeerNames(
        "generate_draft_decode_kv_indices",
        ("generate_draft_decode_kv_indices",),
        _LOCS,
        ("req_pool_indices", "req_to_token", "paged_kernel_lens", "kv_indices", "kv_indptr", "positions"),
        _kv_indices,
    ),
    PeerNames(
        "fill_accept_out_cache_loc",
        ("fill_accept_out_cache_loc",),
        _EAGLE,
        ("accept_index", "out_cache_loc", "accept_out_cache_loc", "size_upper"),
        _accepted_locs,
    ),
    PeerNames(
        "align_evict_mask_to_page_size",
        ("align_evict_mask_to_page_size",),
        _LOCS,
        ("seq_lens", "evict_mask", "page_size", "num_draft_tokens", "BLOCK_SIZE"),
        _evict,
    ),
    PeerNames(
        "move_kv",
        ("copy_all_layer_kv_cache_tiled",),
        _MOVE,
        ("data_ptrs", "strides", "tgt_loc_ptr", "src_loc_ptr", "num_locs", "num_locs_upper", "BYTES_PER_TILE"),
        _move,
    ),
    PeerNames(
        "rotate_input_ids",
        ("rotate_input_ids", "rotate_input_ids_triton"),
        _MULTI,
        ("input_ids", "extend_start_loc", "extend_seq_lens", "topk_index", "select_index"),
        _rotate,
    ),
    PeerNames(
        "assign_hidden_states_pool",
        ("assign_hidden_states_pool_triton",),
        _MULTI,
        ("hidden_states", "req_pool_indices", "req_to_hidden_states_pool", "pool_size", "num_seqs"),
        _hidden_pool,
    ),
    PeerNames(
        "assign_new_state",
        ("assign_new_state_triton",),
        _MULTI,
        ("next_token_ids", "old_input_ids", "old_positions", "old_hidden_states", "old_out_cache_loc"),
        _new_state,
    ),
    PeerNames(
        "stash_append_boundary_state",
        ("stash_append_boundary_state_triton",),
        _MULTI,
        ("src_tokens", "src_hiddens", "src_row_ends", "num_available", "req_pool_indices"),
        _stash,
    ),
    PeerNames(
        "fill_widened_draft_extend_inputs",
        ("fill_widened_draft_extend_inputs_triton",),
        _MULTI,
        ("input_ids", "hidden_states", "predict", "verify_hiddens", "stash_tokens"),
        _widen,
    ),
)
