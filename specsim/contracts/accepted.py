"""The family that follows the walk: tokens, lengths, positions and slots of what was accepted.

Tokens and slots of different nodes and requests differ, so that one of a wrong node shows. Paths are short, long and
between; lengths lie beside the start of a page; finished requests keep nothing, and padding requests have no path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, operation
from specsim.contracts.draws import Draws
from specsim.reference.accepted import (
    create_extend_after_decode,
    filter_finished_cache_loc,
    gather_accept_tokens,
    gather_rows,
    get_target_cache_loc,
    verify_commit_outputs,
    write_req_to_token_pool,
)

__all__ = ["OPS"]

HIDDEN_SIZE_MAX = 5


def _make_gather_accept_tokens(draws: Draws, shape: Sizes) -> Case:
    """An eighth of the requests is padding."""
    accept_index, _ = batches.accepted_paths(draws, shape)
    padding = draws.padding()
    accept_index = torch.where(padding[:, None], -1, accept_index)
    tokens = batches.node_tokens(draws, shape["num_draft_tokens"]).flatten()
    return Case(batches.path_sizes(shape, draws.count), {"predicts": tokens, "accept_index": accept_index})


def _make_verify_commit_outputs(draws: Draws, shape: Sizes) -> Case:
    accept_index, accept_lens = batches.accepted_paths(draws, shape)
    tensors = {
        "predict": batches.node_tokens(draws, shape["num_draft_tokens"]).flatten(),
        "accept_index": accept_index,
        "accept_lens": accept_lens,
        "seq_lens": batches.seq_lens(draws, "seq_lens", shape["page_size"]),
    }
    return Case(batches.path_sizes(shape, draws.count), tensors)


def _make_create_extend_after_decode(draws: Draws, shape: Sizes) -> Case:
    _, accept_lens = batches.accepted_paths(draws, shape)
    width = shape["num_steps"] + 1
    accepted = torch.arange(width, device=draws.device) < accept_lens[:, None]  # [n, width]
    accept_tokens = batches.node_tokens(draws, width)[accepted]
    prefix_lens = batches.seq_lens(draws, "seq_lens", shape["page_size"])
    sizes = {**shape, "bs": draws.count, "num_tokens": accept_tokens.shape[0]}
    return Case(sizes, _extend_tensors(accept_tokens, prefix_lens, accept_lens))


def _extend_tensors(accept_tokens: Tensor, prefix_lens: Tensor, accept_lens: Tensor) -> dict[str, Tensor]:
    return {"accept_tokens": accept_tokens, "seq_lens": prefix_lens + accept_lens, "accept_lens": accept_lens}


def _make_get_target_cache_loc(draws: Draws, shape: Sizes) -> Case:
    _, accept_lens = batches.accepted_paths(draws, shape)
    return _target_case(shape, accept_lens, batches.seq_lens(draws, "seq_lens", shape["page_size"]))


def _target_case(shape: Sizes, accept_lens: Tensor, seq_lens: Tensor) -> Case:
    """Freed is what lies beyond the page of the last accepted token."""
    bs, ndt, page_size = accept_lens.shape[0], shape["num_draft_tokens"], shape["page_size"]
    kept = torch.minimum((seq_lens + accept_lens + page_size - 1) // page_size * page_size, seq_lens + ndt)
    to_free = seq_lens + ndt - kept  # [bs]
    tensors = {
        "accept_token_num": accept_lens - 1,
        "to_free_num_slots": to_free,
        "out_cache_loc": torch.arange(bs * ndt, 0, -1, device=accept_lens.device),
    }
    targets = {"num_targets": int(accept_lens.sum()), "num_freed": int(to_free.sum())}
    return Case({**shape, "bs": bs, "num_nodes": bs * ndt, **targets}, tensors)


def _make_filter_finished_cache_loc(draws: Draws, shape: Sizes) -> Case:
    _, accept_lens = batches.accepted_paths(draws, shape)
    kind = draws.below("slots to keep", 3)
    some = draws.below("number of slots to keep", accept_lens + 1)
    kept = torch.where(kind == 0, accept_lens, torch.where(kind == 1, 0, some)).to(torch.int32)
    return _filter_case(shape, accept_lens, kept)


def _filter_case(shape: Sizes, accept_lens: Tensor, kept: Tensor) -> Case:
    num_targets = int(accept_lens.sum())
    tensors = {
        "tgt_cache_loc": torch.arange(num_targets, 0, -1, device=kept.device),
        "accept_token_num": accept_lens - 1,
        "num_accept_tokens_filter": kept,
    }
    sizes = {**shape, "bs": kept.shape[0], "num_targets": num_targets, "num_kept": int(kept.sum())}
    return Case(sizes, tensors)


def _make_write_req_to_token_pool(draws: Draws, shape: Sizes) -> Case:
    page_size = shape["page_size"]
    prefix_lens = batches.seq_lens(draws, "prefix_lens", page_size)
    kind = draws.below("new tokens", 3)
    some = batches.seq_lens(draws, "number of new tokens", page_size)
    new = torch.where(kind == 0, 1, torch.where(kind == 1, 0, some))
    rows, table = batches.page_table(draws, prefix_lens + new + 1, page_size)
    return _write_case(shape, rows, table, prefix_lens, new)


def _write_case(shape: Sizes, rows: Tensor, table: Tensor, prefix_lens: Tensor, new: Tensor) -> Case:
    """All slots differ, and from those of the table; new ones are counted down, so that no run fits by chance."""
    num_prefix, num_locs = int(prefix_lens.sum()), int(new.sum())
    slots = int(table.max()) + torch.arange(num_prefix + num_locs, 0, -1, device=rows.device)
    tensors = {
        "req_to_token": table,
        "req_pool_indices": rows,
        "prefix_indices": slots[:num_prefix],
        "prefix_lens": prefix_lens,
        "seq_lens": prefix_lens + new,
        "out_cache_loc": slots[num_prefix:],
    }
    pool = batches.page_table_sizes(table)
    return Case({**shape, "bs": rows.shape[0], **pool, "num_prefix": num_prefix, "num_locs": num_locs}, tensors)


def _draw_gather_shape(chooser: Chooser) -> dict[str, int]:
    return {**batches.draw_shape(chooser), "hidden_size": between(chooser, 1, HIDDEN_SIZE_MAX, "hidden_size")}


def _make_gather_rows(draws: Draws, shape: Sizes) -> Case:
    """Rows in any order; an eighth of the requests is padding."""
    rows = batches.rows(draws)
    padding = draws.padding()
    return _gather_case(shape, torch.where(padding, 0, rows), 2 + draws.count)


def _gather_case(shape: Sizes, rows: Tensor, num_rows: int) -> Case:
    """Every element of a buffer differs from the others of the buffer."""
    topk, hidden_size = shape["topk"], shape["hidden_size"]
    kept = torch.arange(num_rows * topk, device=rows.device).view(num_rows, topk)
    hidden = torch.arange(num_rows * hidden_size, device=rows.device).view(num_rows, hidden_size)
    tensors = {
        "indices": rows,
        "topk_p_buf": 1.0 / (1 + kept),
        "topk_index_buf": batches.TOKENS_START + kept,
        "output_tokens_buf": 2 * batches.TOKENS_START + torch.arange(num_rows, device=rows.device),
        "hidden_states_buf": hidden.to(torch.float32),
    }
    return Case({**shape, "bs": rows.shape[0], "buffer_rows": num_rows}, tensors)


OPS: tuple[Op, ...] = (
    operation(gather_accept_tokens, "accepted", Cases(batches.draw_shape, _make_gather_accept_tokens)),
    operation(verify_commit_outputs, "accepted", Cases(batches.draw_paged_shape, _make_verify_commit_outputs)),
    operation(
        create_extend_after_decode, "accepted", Cases(batches.draw_paged_shape, _make_create_extend_after_decode)
    ),
    operation(get_target_cache_loc, "accepted", Cases(batches.draw_paged_shape, _make_get_target_cache_loc)),
    operation(filter_finished_cache_loc, "accepted", Cases(batches.draw_shape, _make_filter_finished_cache_loc)),
    operation(write_req_to_token_pool, "accepted", Cases(batches.draw_paged_shape, _make_write_req_to_token_pool)),
    operation(gather_rows, "accepted", Cases(_draw_gather_shape, _make_gather_rows)),
)
