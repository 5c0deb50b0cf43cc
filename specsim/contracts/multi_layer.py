"""The multi-layer family: windows of the draft model's layers, and what is remembered for the next window.

Every token, hidden state and slot is its own, so that one of a wrong row or request shows; what is left in a stash from
another request is infinite, which shows even when multiplied by 0. Segments are windows of equal length, prompts from
one token on, or padded, with rows between them that belong to nobody. `topk` is 1, as everywhere in this family.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.draws import CounterDraws, Draws
from specsim.reference.multi_layer import (
    assign_hidden_states_pool,
    assign_new_state,
    fill_widened_draft_extend_inputs,
    rotate_input_ids,
    stash_append_boundary_state,
)

__all__ = ["OPS"]

SEGMENT_MAX = 20
GAP_MAX = 3
HIDDEN_SIZE_MAX = 5
GAP_TOKEN = 3


def _draw_sizes(chooser: Chooser) -> dict[str, int]:
    """What the requests of a batch share."""
    return {
        **batches.draw_chain_shape(chooser),
        "hidden_size": between(chooser, 1, HIDDEN_SIZE_MAX, "hidden_size"),
        "gap": pick(chooser, (0, 0, *range(1, GAP_MAX + 1)), "rows between segments"),
        "page_size": pick(chooser, batches.PAGE_SIZES, "page_size"),
    }


def _segment_lens(draws: Draws, window: int, shortest: int) -> Tensor:
    kind = draws.below("segment", 3)
    any_len = shortest + draws.below("segment length", SEGMENT_MAX + 1 - shortest)
    return torch.where(kind == 0, window, torch.where(kind == 1, shortest, any_len)).to(torch.int32)


def _parts(draws: Draws, wholes: Tensor, label: str) -> Tensor:
    kind = draws.below(label, 3)
    part = draws.below(f"{label}: part", wholes + 1)
    return torch.where(kind == 0, wholes, torch.where(kind == 1, 0, part)).to(wholes.dtype)


def _starts(lens: Tensor, gap: int) -> Tensor:
    """First rows of the segments, `gap` rows apart."""
    return ((lens + gap).cumsum(0) - lens - gap).to(torch.int32)


def _tokens(draws: Draws, what: str, columns: int) -> Tensor:
    return batches.TOKENS_START + draws.labels(what, columns)  # [n, columns]


def _states(draws: Draws, what: str, columns: int, hidden_size: int) -> Tensor:
    """Hidden states, none of them 0."""
    return 0.5 + draws.uniform(what, columns * hidden_size).view(-1, columns, hidden_size)


def _in_segments(values: Tensor, starts: Tensor, lens: Tensor, gap: int, elsewhere: int) -> Tensor:
    """The first `lens[b]` of the values [n, SEGMENT_MAX, ...] of each request, as segments of a flat tensor."""
    within = torch.arange(values.shape[1], device=lens.device)
    flat = values.new_full((int(lens.sum()) + gap * lens.shape[0], *values.shape[2:]), elsewhere)
    inside = within < lens[:, None]  # [n, SEGMENT_MAX]
    flat[(starts[:, None] + within)[inside]] = values[inside]
    return flat


def _make_rotate_input_ids(draws: Draws, shape: Sizes) -> Case:
    lens = _segment_lens(draws, shape["num_draft_tokens"], 0)
    return _rotate_case(draws, shape, lens, _parts(draws, (lens - 1).clamp(min=0), "selected row"))


def _rotate_case(draws: Draws, shape: Sizes, lens: Tensor, selected: Tensor) -> Case:
    starts = _starts(lens, shape["gap"])
    input_ids = _in_segments(_tokens(draws, "token", SEGMENT_MAX), starts, lens, shape["gap"], GAP_TOKEN)
    tensors = {
        "input_ids": input_ids,
        "extend_start_loc": starts,
        "extend_seq_lens": lens,
        "topk_index": _tokens(draws, "drafted token", 1)[:, 0],
        "select_index": (starts + selected).to(torch.int64),
    }
    return Case({**shape, "bs": draws.count, "num_tokens": input_ids.shape[0]}, tensors)


def _make_assign_hidden_states_pool(draws: Draws, shape: Sizes) -> Case:
    lens = _segment_lens(draws, shape["num_draft_tokens"], 1)
    return _pool_case(draws, shape, batches.rows(draws), 1 + draws.count, lens)


def _pool_case(draws: Draws, shape: Sizes, rows: Tensor, pool_rows: int, lens: Tensor) -> Case:
    starts, hidden_size = _starts(lens, shape["gap"]), shape["hidden_size"]
    states = _states(draws, "hidden state", SEGMENT_MAX, hidden_size)
    hidden_states = _in_segments(states, starts, lens, shape["gap"], GAP_TOKEN)
    pool_size = max(1, shape["num_steps"] - 1)
    tensors = {
        "hidden_states": hidden_states,
        "req_pool_indices": rows,
        "req_to_hidden_states_pool": _stale(draws, pool_rows, pool_size * hidden_size).view(-1, pool_size, hidden_size),
        "extend_seq_lens": lens,
        "extend_start_loc": starts,
    }
    sizes = {"bs": draws.count, "num_tokens": hidden_states.shape[0], "pool_rows": pool_rows, "pool_size": pool_size}
    return Case({**shape, **sizes}, tensors)


def _stale(draws: Draws, pool_rows: int, columns: int) -> Tensor:
    """What a pool holds before: in each row something else."""
    row = torch.arange(pool_rows, device=draws.device)
    return -1 - CounterDraws(row).uniform("what the pool holds", columns)  # [pool_rows, columns]


def _draw_new_state_shape(chooser: Chooser) -> dict[str, int]:
    sizes = _draw_sizes(chooser)
    return {**sizes, "step": chooser.choose(max(1, sizes["num_steps"] - 1), "step")}


def _make_assign_new_state(draws: Draws, shape: Sizes) -> Case:
    lens = _segment_lens(draws, shape["num_draft_tokens"] + shape["step"], 1)
    before = batches.seq_lens(draws, "tokens before the window", shape["page_size"])
    rows, table = batches.page_table(draws, before + lens, shape["page_size"])
    accepted = _parts(draws, lens - 1, "rows up to the selected one")
    return _new_state_case(draws, shape, rows, table, lens, before, lens - 1 - accepted)


def _new_state_case(
    draws: Draws, shape: Sizes, rows: Tensor, table: Tensor, lens: Tensor, before: Tensor, padding_lens: Tensor
) -> Case:
    """`before` tokens lie before the window."""
    gap, hidden_size = shape["gap"], shape["hidden_size"]
    starts, pool_rows, pool_size = _starts(lens, gap), table.shape[0], max(1, shape["num_steps"] - 1)
    positions = before[:, None] + torch.arange(SEGMENT_MAX, device=draws.device)  # [n, SEGMENT_MAX]
    slots = table[rows[:, None], positions.clamp(max=table.shape[1] - 1)].to(torch.int64)
    states = _states(draws, "hidden state", SEGMENT_MAX, hidden_size)
    tensors = {
        "next_token_ids": _tokens(draws, "drafted token", 1)[:, 0],
        "old_input_ids": _in_segments(_tokens(draws, "token", SEGMENT_MAX), starts, lens, gap, GAP_TOKEN),
        "old_positions": _in_segments(positions, starts, lens, gap, 0),
        "old_hidden_states": _in_segments(states, starts, lens, gap, GAP_TOKEN),
        "old_out_cache_loc": _in_segments(slots, starts, lens, gap, 0),
        "old_extend_seq_lens": lens,
        "old_extend_start_loc": starts,
        "seq_lens": before + lens,
        "padding_lens": padding_lens,
        "req_pool_indices": rows,
        "req_to_token": table,
        "req_to_hidden_states_pool": _stale(draws, pool_rows, pool_size * hidden_size).view(-1, pool_size, hidden_size),
    }
    bs, num_old = draws.count, tensors["old_input_ids"].shape[0]
    pools = {"pool_rows": pool_rows, "pool_len": table.shape[1], "pool_size": pool_size}
    return Case({**shape, "bs": bs, "num_old": num_old, "num_new": num_old + bs, **pools}, tensors)


def _draw_stash_shape(chooser: Chooser) -> dict[str, int]:
    return {**_draw_sizes(chooser), "front": between(chooser, 1, batches.NUM_STEPS_MAX, "front")}


def _draw_append_shape(chooser: Chooser) -> dict[str, int]:
    return {**_draw_stash_shape(chooser), "set_valid": chooser.choose(2, "set_valid")}


def _make_stash_append(draws: Draws, shape: Sizes) -> Case:
    rows, lens = batches.rows(draws), _segment_lens(draws, shape["num_draft_tokens"], 0)
    held = _held(draws, rows, shape["front"])
    return _append_case(draws, shape, rows, lens, _parts(draws, lens, "certain rows"), held)


def _held(draws: Draws, rows: Tensor, front: int) -> Tensor:
    held = torch.zeros(1 + draws.count, dtype=torch.int32, device=draws.device)
    held[rows] = _parts(draws, torch.full_like(rows, front), "places held").to(torch.int32)
    return held


def _append_case(draws: Draws, shape: Sizes, rows: Tensor, lens: Tensor, available: Tensor, held: Tensor) -> Case:
    """The certain rows are the first `available` ones of each segment, as those of an accepted path in a chain."""
    starts, gap = _starts(lens, shape["gap"]), shape["gap"]
    src_tokens = _in_segments(_tokens(draws, "token", SEGMENT_MAX), starts, lens, gap, GAP_TOKEN)
    states = _states(draws, "hidden state", SEGMENT_MAX, shape["hidden_size"])
    tensors = {
        "src_tokens": src_tokens,
        "src_hiddens": _in_segments(states, starts, lens, gap, GAP_TOKEN),
        "src_row_ends": (starts + available).to(torch.int64),
        "num_available": available,
        "req_pool_indices": rows,
        **_stash(held, shape["front"], shape["hidden_size"]),
    }
    sizes = {"bs": draws.count, "num_src_rows": src_tokens.shape[0], "pool_rows": held.shape[0]}
    return Case({**shape, **sizes}, tensors)


def _stash(held: Tensor, front: int, hidden_size: int) -> Tensors:
    """A stash of which each row holds the last `held` places."""
    row = CounterDraws(torch.arange(held.shape[0], device=held.device))
    valid = torch.arange(front, device=held.device) >= front - held[:, None]  # [pool_rows, front]
    states = _states(row, "hidden state in the stash", front, hidden_size)
    return {
        "stash_tokens": _tokens(row, "token in the stash", front),
        "stash_hiddens": torch.where(valid[:, :, None], states, torch.inf),
        "stash_valid_lens": held,
    }


def _make_fill_widened(draws: Draws, shape: Sizes) -> Case:
    rows, seq_lens = batches.rows(draws), batches.seq_lens(draws, "seq_lens", shape["page_size"])
    return _widen_case(draws, shape, rows, seq_lens, _held(draws, rows, shape["front"]))


def _widen_case(draws: Draws, shape: Sizes, rows: Tensor, seq_lens: Tensor, held: Tensor) -> Case:
    bs, ndt, hidden_size = draws.count, shape["num_draft_tokens"], shape["hidden_size"]
    tensors = {
        "predict": _tokens(draws, "token", ndt).flatten().to(torch.int32),
        "verify_hiddens": _states(draws, "hidden state", ndt, hidden_size).flatten(0, 1),
        **_stash(held, shape["front"], hidden_size),
        "seq_lens": seq_lens,
        "req_pool_indices": rows,
    }
    window = {"num_nodes": bs * ndt, "num_window": bs * (shape["front"] + ndt)}
    return Case({**shape, "bs": bs, "pool_rows": held.shape[0], **window}, tensors)


OPS: tuple[Op, ...] = (
    operation(rotate_input_ids, "multi_layer", Cases(_draw_sizes, _make_rotate_input_ids)),
    operation(assign_hidden_states_pool, "multi_layer", Cases(_draw_sizes, _make_assign_hidden_states_pool)),
    operation(assign_new_state, "multi_layer", Cases(_draw_new_state_shape, _make_assign_new_state)),
    operation(stash_append_boundary_state, "multi_layer", Cases(_draw_append_shape, _make_stash_append)),
    operation(fill_widened_draft_extend_inputs, "multi_layer", Cases(_draw_stash_shape, _make_fill_widened)),
)
