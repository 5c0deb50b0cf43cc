"""After the walk: the accepted path is brought to the front of its block, what the next step reads is made, and the
scheduler reads which tokens each request was given.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

from specsim.contracts.contract import Sizes, WrongResultError
from specsim.contracts.registry import OPS
from specsim.engines.sglang.operations.functions import FunctionNames, Lifted
from specsim.engines.sglang.operations.verification import (
    SAMPLE_FOLLOWS,
    SAMPLE_METHOD,
    TorchWithCoins,
    around_sampling,
    sampling_info,
)
from specsim.engines.sglang.stubs import OFF, Fields, nothing
from specsim.engines.sglang.where import Place, files, places

Tensor = torch.Tensor

_KERNELS = tuple(
    places(name) for name in ("assign_extend_cache_locs", "fill_accept_out_cache_loc", "fill_bonus_tokens")
)
_LAUNCHERS = frozenset({"fill_accept_out_cache_loc_func", "fill_front_out_cache_loc_func", "fill_bonus_tokens_func"})


def _methods(name: str) -> tuple[Place, ...]:
    """Where a function was a method of the worker."""
    return tuple(place for place in places(name) if "." in place[1])


_BEFORE = (*_methods("move_accept_tokens_to_target_kvcache"), *_methods("_compact_accept_to_front"))
_METHODS = (*_BEFORE, *_methods("_finalize_accept_tree_path"))
_PAGE_SIZE = 4
_SEQ_LEN = 3  # of the first request; each has one more than the one before it


class _Pool:
    """The KV cache and its allocator: notes the slots of a move."""

    def __init__(self) -> None:
        self.moves: list[tuple[Tensor, Tensor]] = []

    def get_kvcache(self) -> Fields:
        return Fields(move_kv_cache=lambda target, source: self.moves.append((target, source)))

    @property
    def only_move(self) -> tuple[Tensor, Tensor]:
        if len(self.moves) != 1:
            raise WrongResultError(f"the KV of the accepted path is moved {len(self.moves)} times")
        return self.moves[0]


def _rows(out_cache_loc: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
    """`req_to_token` whose rows have the slots of the nodes from the sequence's end on, and the requests' rows."""
    bs, nodes = len(seq_lens), out_cache_loc.numel() // len(seq_lens)
    rows = torch.arange(bs).flip(0) + 1
    table = torch.zeros(bs + 1, int(seq_lens.max()) + nodes + 1, dtype=torch.int32)
    for row, start, slots in zip(rows.tolist(), seq_lens.tolist(), out_cache_loc.view(bs, nodes), strict=True):
        table[row, start : start + nodes] = slots
    return table, rows


def _batch(out_cache_loc: Tensor, seq_lens: Tensor, **fields: Any) -> tuple[Fields, Fields]:
    """A batch that verified its trees, and the pool of its rows."""
    table, rows = _rows(out_cache_loc, seq_lens)
    pool = Fields(req_to_token=table)
    batch = Fields(
        req_to_token_pool=pool,
        seq_lens=seq_lens,
        req_pool_indices=rows,
        out_cache_loc=out_cache_loc,
        device=seq_lens.device,
        forward_mode=Fields(is_idle=lambda: False),
        **fields,
    )
    return batch, pool


def _worker(lifted: Lifted, pool: _Pool, rows: Fields, nodes: int, **fields: Any) -> Fields:
    """The worker, with those of its methods that the release has."""
    worker = Fields(
        speculative_num_draft_tokens=nodes,
        device=torch.device("cpu"),
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=pool,
        **fields,
    )
    for _path, method in _METHODS:
        if method in lifted.given:
            setattr(worker, method.split(".")[1], lifted.bound(method, worker))
    return worker


def _seq_lens(bs: int) -> Tensor:
    return torch.arange(_SEQ_LEN, _SEQ_LEN + bs)


def _compact(
    lifted: Lifted,
    accept_index: Tensor,
    accept_lens: Tensor,
    out_cache_loc: Tensor,
    predict: Tensor,
    hidden_states: Tensor,
    num_draft_tokens: int,
) -> tuple[Tensor, ...]:
    bs = len(accept_lens)
    pool, logits_output = _Pool(), Fields(hidden_states=hidden_states)
    batch, rows = _batch(out_cache_loc, _seq_lens(bs))
    arguments = (batch, accept_index, accept_lens, predict, logits_output, bs)
    if "." in lifted.name:
        compacted = lifted.value(_worker(lifted, pool, rows, num_draft_tokens), *arguments)
    else:
        options = {"token_to_kv_pool_allocator": pool, "num_draft_tokens": num_draft_tokens}
        compacted = lifted.value(*arguments, **options)
    return *pool.only_move, compacted, logits_output.hidden_states


def _sources(lifted: Lifted, accept_index: Tensor, out_cache_loc: Tensor) -> Tensor:
    """The non-overlap worker's move: its sources; how many slots it frees is checked with pages of four tokens."""
    bs, entries = accept_index.shape[0], accept_index.numel()
    nodes, lens = out_cache_loc.numel() // bs, _seq_lens(bs)
    drafts = (accept_index >= 0).sum(dim=1) - 1
    accepted = accept_index[accept_index >= 0].long()
    source, _target, freed = lifted.value(lens, out_cache_loc, accepted, drafts, nodes, _PAGE_SIZE)
    pages = -(-(lens + drafts + 1) // _PAGE_SIZE)
    wanted = (lens + nodes - pages * _PAGE_SIZE).clamp(min=0)
    if not torch.equal(freed, wanted):
        raise WrongResultError(f"{freed.tolist()} slots are freed, {wanted.tolist()} lie beyond the last page in use")
    return torch.nn.functional.pad(source, (0, entries - source.numel()))


# The whole of a verification after the target's forward


class _OnStream(torch.Tensor):
    """A tensor on a CPU, where no stream has to know of its use."""

    def record_stream(self, _stream: Any) -> None:
        """Nothing to record."""


class _Torch(TorchWithCoins):
    """`torch` with the streams and events of a GPU, which order nothing here."""

    @staticmethod
    def get_device_module(_device: Any = None) -> Fields:
        return Fields(current_stream=Fields, Event=lambda: Fields(record=nothing))


def _around_verify() -> dict[str, Any]:
    return {
        **around_sampling(),
        "torch": _Torch(),
        "contextlib": contextlib,
        "record_stream_for_v2_verify": nothing,
        "record_stream_each": nothing,
        "eagle_prepare_for_verify": _prepared,
        "commit_mamba_states_after_verify": nothing,
        "EagleDraftInput": Fields,
        "GenerationBatchResult": Fields,
        "TreeMaskMode": Fields(),
    }


def _prepared(*_arguments: Any, **_named: Any) -> tuple[Fields, bool]:
    return Fields(mark_forward_metadata_ready=nothing), False


def _verify(
    lifted: Lifted,
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    num_steps: int,
) -> tuple[Tensor, ...]:
    bs, nodes = candidates.shape
    width = num_steps + 1
    chain = nodes == width and bool((retrieve_next_sibling == -1).all())
    topk = 1 if chain else 2
    output = Fields(logits_output=Fields(next_token_logits=logits.clone()))
    target = Fields(forward_batch_generation=lambda **_named: output, model_runner=Fields(attn_backend=Fields()))
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    verify_input = _verify_input(lifted, candidates, links, topk, num_steps)
    batch, rows = _batch(
        out_cache_loc,
        seq_lens.as_subclass(_OnStream),
        spec_info=verify_input,
        sampling_info=sampling_info(),
        input_ids=verify_input.draft_token,
        has_grammar=False,
        return_logprob=False,
    )
    pool = _Pool()
    around = {"target_worker": target, "plan_stream": None, "plan_stream_ctx": contextlib.nullcontext(), "topk": topk}
    if "." in lifted.name:
        worker = _worker(lifted, pool, rows, nodes, speculative_num_steps=num_steps, **around)
        worker._target_worker = target
        result = lifted.value(worker, batch)
    else:
        options = {
            "req_to_token_pool": rows,
            "token_to_kv_pool_allocator": pool,
            "num_steps": num_steps,
            "num_draft_tokens": nodes,
            "device": "cpu",
            "metadata_ready_pre_pad": False,
            "finalize_tree_path": True,
        }
        taken = inspect.signature(lifted.value).parameters
        given = {name: value for name, value in {**around, **options}.items() if name in taken}
        result = lifted.value(batch, **given)
    return _outcome(lifted, result, pool, chain, out_cache_loc.view(bs, nodes), width)


def _verify_input(lifted: Lifted, candidates: Tensor, links: tuple[Tensor, ...], topk: int, num_steps: int) -> Fields:
    """`EagleVerifyInput`; releases spell the links in two ways."""
    index, next_token, next_sibling = links
    verify_input = Fields(
        draft_token=candidates.flatten(),
        draft_token_num=candidates.shape[1],
        spec_steps=num_steps,
        max_tree_depth=num_steps + 1,
        topk=topk,
        tree_topk=topk,
        **dict.fromkeys(("retrive_index", "retrieve_index"), index),
        **dict.fromkeys(("retrive_next_token", "retrieve_next_token"), next_token),
        **dict.fromkeys(("retrive_next_sibling", "retrieve_next_sibling"), next_sibling),
        prepare_for_v2_verify=_prepared,
    )
    if SAMPLE_METHOD in lifted.given:
        verify_input.sample = lifted.bound(SAMPLE_METHOD, verify_input)
    return verify_input


def _outcome(lifted: Lifted, result: Fields, pool: _Pool, chain: bool, slots: Tensor, width: int) -> tuple[Tensor, ...]:
    """The operation's outputs, as the scheduler and the next step read them from the release's result."""
    walk, following = lifted.given["verify_tree_greedy"], result.next_draft_input
    bs, nodes = slots.shape
    accept_lens = result.accept_lens
    column = torch.arange(width)
    accepted = column < accept_lens[:, None]  # [bs, width]
    emitted = torch.full((bs, width), -1, dtype=torch.int32)
    ahead = min(nodes, width)
    emitted[:, :ahead] = result.next_token_ids.view(bs, nodes)[:, :ahead]
    moves = torch.zeros(2, bs, width, dtype=torch.int64)
    if chain:
        moves[:, accepted] = slots[:, :width][accepted]  # the path is the front: nothing moves
    elif pool.moves:
        moves[:, accepted] = torch.stack([slot[: int(accept_lens.sum())] for slot in pool.only_move])
    return (
        walk.predicts,
        walk.accept_index,
        accept_lens,
        following.verified_id if following.bonus_tokens is None else following.bonus_tokens,
        torch.Tensor.as_subclass(_first(result.new_seq_lens, following.new_seq_lens), torch.Tensor),
        torch.where(accepted, emitted, -1),
        *moves,
    )


def _first(value: Tensor | None, other: Tensor) -> Tensor:
    return other if value is None else value


# What the scheduler makes of a result.


def _resolve(lifted: Lifted, predicts: Tensor, accept_index: Tensor) -> Tensor:
    """A result as a worker gives it: each request's accepted tokens at the front of its block of nodes."""
    given = (accept_index[:, 0] >= 0).nonzero().flatten()  # padding requests have no result
    paths, nodes = accept_index[given], predicts.numel() // max(1, len(accept_index))
    accept_lens = (paths >= 0).sum(dim=1, dtype=torch.int32)
    tokens: Tensor = OPS["gather_accept_tokens"].reference(predicts, paths)
    tokens = torch.nn.functional.pad(tokens, (0, nodes - tokens.shape[1]), value=-1)
    requests = [_Request() for _ in accept_lens]
    result = Fields(
        next_token_ids=tokens.flatten(),
        accept_lens=accept_lens,
        speculative_num_draft_tokens=nodes,
        num_non_draft_tokens_per_req=1,
    )
    owner = Fields(
        draft_worker=Fields(speculative_num_draft_tokens=nodes),
        model_worker=Fields(on_verify_complete_cpu=nothing),
        metrics_reporter=Fields(snapshot_spec_decode_metrics=nothing),
        advance_grammar_fsm=nothing,
    )
    resolved = lifted.value(owner, result, Fields(reqs=requests, spec_algorithm=OFF))
    # A release counts the bonus token's slot with the launch before, or with this result.
    ahead = {request.committed - count for request, count in zip(requests, accept_lens.tolist(), strict=True)}
    if not (ahead <= {0} or ahead <= {-1}):
        raise WrongResultError(f"requests of {accept_lens.tolist()} tokens have committed {ahead} more")
    output = torch.full_like(accept_index, -1)
    for request, emitted in zip(given.tolist(), resolved, strict=True):
        output[request, : len(emitted)] = torch.tensor(emitted, dtype=output.dtype)
    return output


class _Request(Fields):
    """A request that runs, without a grammar."""

    def __init__(self) -> None:
        counts = "spec_verify_ct", "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens"
        histograms = ("update_spec_correct_drafts_histogram", "update_spec_acceptance_histogram")
        super().__init__(kv_committed_len=0, **dict.fromkeys(counts, 0), **dict.fromkeys(histograms, nothing))
        self.kv = Fields(kv_committed_len=0)
        self.finished = lambda: False

    @property
    def committed(self) -> int:
        """Where either kind of release counts it."""
        return int(self.kv_committed_len) + int(self.kv.kv_committed_len)


def _is_of_a_release(sizes: Sizes) -> bool:
    """A chain has a node for each step, and a tree at least as many nodes as a path: the releases set them so."""
    nodes, width = sizes["num_draft_tokens"], sizes["num_steps"] + 1
    return nodes == width if sizes["topk"] == 1 else nodes >= width


_FINALIZE_PARAMETERS = ("batch", "accept_index", "accept_lens", "predict", "logits_output", "bs")
FUNCTIONS: tuple[FunctionNames, ...] = (
    FunctionNames(
        "compact_accepted_path",
        "function:_finalize_accept_tree_path",
        places("_finalize_accept_tree_path"),
        (
            (*_FINALIZE_PARAMETERS, "token_to_kv_pool_allocator", "num_draft_tokens"),
            ("self", *_FINALIZE_PARAMETERS),
        ),
        _compact,
        follow=_LAUNCHERS | {"_compact_accept_to_front", "move_accept_tokens_to_target_kvcache"},
        along=_BEFORE,
        kernels=_KERNELS,
        accepts=_is_of_a_release,
    ),
    FunctionNames(
        "gather_accept_tokens",
        "caller:_resolve_spec_v2_tokens",
        places("resolve_tokens"),
        (("self", "result", "batch"),),
        _resolve,
        follow=frozenset({"_get_speculative_output_stride"}),
        role="caller",
        accepts=_is_of_a_release,
    ),
    FunctionNames(
        "fill_accept_out_cache_loc",
        "function:get_src_tgt_cache_loc",
        places("get_src_tgt_cache_loc"),
        tuple(
            ("seq_lens", "out_cache_loc", "accept_index", name, "draft_token_num", "page_size")
            for name in ("num_correct_drafts", "num_accepted_drafts", "accept_length")
        ),
        _sources,
        accepts=_is_of_a_release,
        called_from=(*files("EagleVerifyInput"), *files("EAGLEWorker")),
    ),
    FunctionNames(
        "verify_logits_greedy",
        "caller:EAGLEWorkerV2.verify, whole",
        places("run_eagle_verify"),
        (),
        _verify,
        stubs=_around_verify,
        follow=SAMPLE_FOLLOWS
        | _LAUNCHERS
        | {
            "eagle_sample",
            "_finalize_accept_tree_path",
            "_compact_accept_to_front",
            "move_accept_tokens_to_target_kvcache",
        },
        along=(*_METHODS, *places(SAMPLE_METHOD)),
        kernels=_KERNELS,
        role="caller",
        accepts=_is_of_a_release,
    ),
)
