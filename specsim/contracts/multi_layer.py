"""The multi-layer family: windows of the draft model's layers, and what is remembered for the next window.

Every token, hidden state and slot is its own, so that one of a wrong row or request shows; what is left in a stash from
another request is infinite, which shows even when multiplied by 0. Segments are windows of equal length, prompts from
one token on, or padded, with rows between them that belong to nobody. `topk` is 1, as everywhere in this family.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick, sample
from specsim.contracts import bulk, counter_rng
from specsim.contracts.contract import Bulk, Case, Op, Role, ScalarArg, Sizes, TensorArg, Tensors
from specsim.contracts.naive.multi_layer import (
    assign_hidden_states_pool_loops,
    assign_new_state_loops,
    fill_widened_draft_extend_inputs_loops,
    rotate_input_ids_loops,
    stash_append_boundary_state_loops,
)
from specsim.contracts.tree import BS_MAX, NUM_STEPS_MAX, PAGE_SIZES, draw_seq_lens
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
SPARE_ROWS_MAX = 3
GAP_TOKEN = 3


def _draw_sizes(chooser: Chooser) -> dict[str, int]:
    """What the requests of a batch share."""
    num_steps = between(chooser, 1, NUM_STEPS_MAX, "num_steps")
    return {
        "topk": 1,
        "num_steps": num_steps,
        "num_draft_tokens": num_steps + 1,
        "hidden_size": between(chooser, 1, HIDDEN_SIZE_MAX, "hidden_size"),
        "gap": pick(chooser, (0, 0, *range(1, GAP_MAX + 1)), "rows between segments"),
        "page_size": pick(chooser, PAGE_SIZES, "page_size"),
    }


def _draw_batch(chooser: Chooser, sizes: dict[str, int]) -> tuple[Tensor, Tensor, int]:
    """Numbers of the requests, from which their content is made; their rows; and how many rows there are."""
    bs = between(chooser, 1, BS_MAX, "bs")
    sizes["bs"] = bs
    pool_rows = 1 + bs + between(chooser, 0, SPARE_ROWS_MAX, "spare rows")
    rows = [1 + row for row in sample(chooser, pool_rows - 1, bs, "row")]
    return torch.arange(bs), torch.tensor(rows, dtype=torch.int64), pool_rows


def _draw_lens(chooser: Chooser, count: int, window: int, shortest: int) -> Tensor:
    """Segments as long as a window, or of any length."""
    kinds = [pick(chooser, ("window", "shortest", "any"), "segment") for _ in range(count)]
    lens = {"window": window, "shortest": shortest}
    any_len = [between(chooser, shortest, SEGMENT_MAX, "segment length") if kind == "any" else 0 for kind in kinds]
    return torch.tensor([lens.get(kind, any_len[b]) for b, kind in enumerate(kinds)], dtype=torch.int32)


def _bulk_lens(ids: Tensor, window: int, shortest: int) -> Tensor:
    kind = counter_rng.below(ids, "segment", 3)
    any_len = shortest + counter_rng.below(ids, "segment length", SEGMENT_MAX + 1 - shortest)
    return torch.where(kind == 0, window, torch.where(kind == 1, shortest, any_len)).to(torch.int32)


def _draw_parts(chooser: Chooser, wholes: Tensor, label: str) -> Tensor:
    """For each whole nothing, all or any part of it."""
    parts = []
    for whole in wholes.tolist():
        kind = pick(chooser, ("all", "nothing", "part"), label)
        parts.append(
            {"all": whole, "nothing": 0}[kind] if kind != "part" else between(chooser, 0, whole, f"{label}: part")
        )
    return torch.tensor(parts, dtype=wholes.dtype)


def _bulk_parts(ids: Tensor, wholes: Tensor, label: str) -> Tensor:
    kind = counter_rng.below(ids, label, 3)
    part = counter_rng.below(ids, f"{label}: part", wholes + 1)
    return torch.where(kind == 0, wholes, torch.where(kind == 1, 0, part)).to(wholes.dtype)


def _starts(lens: Tensor, gap: int) -> Tensor:
    """First rows of the segments, `gap` rows apart."""
    return ((lens + gap).cumsum(0) - lens - gap).to(torch.int32)


def _tokens(ids: Tensor, what: str, columns: int) -> Tensor:
    return bulk.TOKENS_START + counter_rng.below(ids, what, 2**20, columns)  # [n, columns]


def _states(ids: Tensor, what: str, columns: int, hidden_size: int) -> Tensor:
    """Hidden states, none of them 0."""
    return 0.5 + counter_rng.uniform(ids, what, columns * hidden_size).view(-1, columns, hidden_size)


def _in_segments(values: Tensor, starts: Tensor, lens: Tensor, gap: int, elsewhere: int) -> Tensor:
    """The first `lens[b]` of the values [n, SEGMENT_MAX, ...] of each request, as segments of a flat tensor."""
    within = torch.arange(values.shape[1], device=lens.device)
    flat = values.new_full((int(lens.sum()) + gap * lens.shape[0], *values.shape[2:]), elsewhere)
    inside = within < lens[:, None]  # [n, SEGMENT_MAX]
    flat[(starts[:, None] + within)[inside]] = values[inside]
    return flat


def _generate_rotate_input_ids(chooser: Chooser) -> Case:
    sizes = _draw_sizes(chooser)
    ids, _, _ = _draw_batch(chooser, sizes)
    lens = _draw_lens(chooser, sizes["bs"], sizes["num_draft_tokens"], 0)
    return _rotate_case(ids, sizes, lens, _draw_parts(chooser, (lens - 1).clamp(min=0), "selected row"))


def _make_rotate_input_ids(ids: Tensor, shape: Sizes) -> Case:
    lens = _bulk_lens(ids, shape["num_draft_tokens"], 0)
    return _rotate_case(ids, shape, lens, _bulk_parts(ids, (lens - 1).clamp(min=0), "selected row"))


def _rotate_case(ids: Tensor, shape: Sizes, lens: Tensor, selected: Tensor) -> Case:
    starts = _starts(lens, shape["gap"])
    input_ids = _in_segments(_tokens(ids, "token", SEGMENT_MAX), starts, lens, shape["gap"], GAP_TOKEN)
    tensors = {
        "input_ids": input_ids,
        "extend_start_loc": starts,
        "extend_seq_lens": lens,
        "topk_index": _tokens(ids, "drafted token", 1)[:, 0],
        "select_index": (starts + selected).to(torch.int64),
    }
    return Case({**shape, "bs": ids.shape[0], "num_tokens": input_ids.shape[0]}, tensors)


def _generate_assign_hidden_states_pool(chooser: Chooser) -> Case:
    sizes = _draw_sizes(chooser)
    ids, rows, pool_rows = _draw_batch(chooser, sizes)
    return _pool_case(ids, sizes, rows, pool_rows, _draw_lens(chooser, sizes["bs"], sizes["num_draft_tokens"], 1))


def _make_assign_hidden_states_pool(ids: Tensor, shape: Sizes) -> Case:
    lens = _bulk_lens(ids, shape["num_draft_tokens"], 1)
    return _pool_case(ids, shape, bulk.rows(ids), 1 + ids.shape[0], lens)


def _pool_case(ids: Tensor, shape: Sizes, rows: Tensor, pool_rows: int, lens: Tensor) -> Case:
    starts, hidden_size = _starts(lens, shape["gap"]), shape["hidden_size"]
    states = _states(ids, "hidden state", SEGMENT_MAX, hidden_size)
    hidden_states = _in_segments(states, starts, lens, shape["gap"], GAP_TOKEN)
    pool_size = max(1, shape["num_steps"] - 1)
    tensors = {
        "hidden_states": hidden_states,
        "req_pool_indices": rows,
        "req_to_hidden_states_pool": _stale(ids, pool_rows, pool_size * hidden_size).view(-1, pool_size, hidden_size),
        "extend_seq_lens": lens,
        "extend_start_loc": starts,
    }
    sizes = {"bs": ids.shape[0], "num_tokens": hidden_states.shape[0], "pool_rows": pool_rows, "pool_size": pool_size}
    return Case({**shape, **sizes}, tensors)


def _stale(ids: Tensor, pool_rows: int, columns: int) -> Tensor:
    """What a pool holds before: in each row something else."""
    row = torch.arange(pool_rows, device=ids.device)
    return -1 - counter_rng.uniform(row, "what the pool holds", columns)  # [pool_rows, columns]


def _generate_assign_new_state(chooser: Chooser) -> Case:
    sizes = _draw_sizes(chooser)
    ids, rows, pool_rows = _draw_batch(chooser, sizes)
    sizes["step"] = chooser.choose(max(1, sizes["num_steps"] - 1), "step")
    lens = _draw_lens(chooser, sizes["bs"], sizes["num_draft_tokens"] + sizes["step"], 1)
    before = torch.tensor(draw_seq_lens(chooser, sizes["bs"], sizes["page_size"]), dtype=torch.int64)
    pool_len = int((before + lens).max()) + between(chooser, 0, GAP_MAX, "spare columns")
    table = torch.arange(1, 1 + pool_rows * pool_len, dtype=torch.int32).view(pool_rows, pool_len)
    accepted = _draw_parts(chooser, lens - 1, "rows up to the selected one")
    return _new_state_case(ids, sizes, rows, table, lens, before, lens - 1 - accepted)


def _draw_new_state_shape(chooser: Chooser) -> dict[str, int]:
    sizes = _draw_sizes(chooser)
    return {**sizes, "step": chooser.choose(max(1, sizes["num_steps"] - 1), "step")}


def _make_assign_new_state(ids: Tensor, shape: Sizes) -> Case:
    lens = _bulk_lens(ids, shape["num_draft_tokens"] + shape["step"], 1)
    before = bulk.seq_lens(ids, "tokens before the window", shape["page_size"])
    columns = bulk.FULL_PAGES_MAX * shape["page_size"] + 1 + SEGMENT_MAX
    rows, table = bulk.page_table(ids, columns, shape["page_size"])
    accepted = _bulk_parts(ids, lens - 1, "rows up to the selected one")
    return _new_state_case(ids, shape, rows, table, lens, before, lens - 1 - accepted)


def _new_state_case(
    ids: Tensor, shape: Sizes, rows: Tensor, table: Tensor, lens: Tensor, before: Tensor, padding_lens: Tensor
) -> Case:
    """`before` tokens lie before the window."""
    gap, hidden_size = shape["gap"], shape["hidden_size"]
    starts, pool_rows, pool_size = _starts(lens, gap), table.shape[0], max(1, shape["num_steps"] - 1)
    positions = before[:, None] + torch.arange(SEGMENT_MAX, device=ids.device)  # [n, SEGMENT_MAX]
    slots = table[rows[:, None], positions.clamp(max=table.shape[1] - 1)].to(torch.int64)
    states = _states(ids, "hidden state", SEGMENT_MAX, hidden_size)
    tensors = {
        "next_token_ids": _tokens(ids, "drafted token", 1)[:, 0],
        "old_input_ids": _in_segments(_tokens(ids, "token", SEGMENT_MAX), starts, lens, gap, GAP_TOKEN),
        "old_positions": _in_segments(positions, starts, lens, gap, 0),
        "old_hidden_states": _in_segments(states, starts, lens, gap, GAP_TOKEN),
        "old_out_cache_loc": _in_segments(slots, starts, lens, gap, 0),
        "old_extend_seq_lens": lens,
        "old_extend_start_loc": starts,
        "seq_lens": before + lens,
        "padding_lens": padding_lens,
        "req_pool_indices": rows,
        "req_to_token": table,
        "req_to_hidden_states_pool": _stale(ids, pool_rows, pool_size * hidden_size).view(-1, pool_size, hidden_size),
    }
    bs, num_old = ids.shape[0], tensors["old_input_ids"].shape[0]
    pools = {"pool_rows": pool_rows, "pool_len": table.shape[1], "pool_size": pool_size}
    return Case({**shape, "bs": bs, "num_old": num_old, "num_new": num_old + bs, **pools}, tensors)


def _generate_stash_append(chooser: Chooser) -> Case:
    sizes = _draw_stash_shape(chooser)
    ids, rows, pool_rows = _draw_batch(chooser, sizes)
    sizes["set_valid"] = chooser.choose(2, "set_valid")
    lens = _draw_lens(chooser, sizes["bs"], sizes["num_draft_tokens"], 0)
    available = _draw_parts(chooser, lens, "certain rows")
    held = _draw_parts(chooser, torch.full((pool_rows,), sizes["front"], dtype=torch.int32), "places held")
    return _append_case(ids, sizes, rows, lens, available, held)


def _draw_stash_shape(chooser: Chooser) -> dict[str, int]:
    return {**_draw_sizes(chooser), "front": between(chooser, 1, NUM_STEPS_MAX, "front")}


def _draw_append_shape(chooser: Chooser) -> dict[str, int]:
    return {**_draw_stash_shape(chooser), "set_valid": chooser.choose(2, "set_valid")}


def _make_stash_append(ids: Tensor, shape: Sizes) -> Case:
    rows, lens = bulk.rows(ids), _bulk_lens(ids, shape["num_draft_tokens"], 0)
    held = _bulk_held(ids, rows, shape["front"])
    return _append_case(ids, shape, rows, lens, _bulk_parts(ids, lens, "certain rows"), held)


def _bulk_held(ids: Tensor, rows: Tensor, front: int) -> Tensor:
    held = torch.zeros(1 + ids.shape[0], dtype=torch.int32, device=ids.device)
    held[rows] = _bulk_parts(ids, torch.full_like(ids, front), "places held").to(torch.int32)
    return held


def _append_case(ids: Tensor, shape: Sizes, rows: Tensor, lens: Tensor, available: Tensor, held: Tensor) -> Case:
    """The certain rows are the first `available` ones of each segment, as those of an accepted path in a chain."""
    starts, gap = _starts(lens, shape["gap"]), shape["gap"]
    src_tokens = _in_segments(_tokens(ids, "token", SEGMENT_MAX), starts, lens, gap, GAP_TOKEN)
    states = _states(ids, "hidden state", SEGMENT_MAX, shape["hidden_size"])
    tensors = {
        "src_tokens": src_tokens,
        "src_hiddens": _in_segments(states, starts, lens, gap, GAP_TOKEN),
        "src_row_ends": (starts + available).to(torch.int64),
        "num_available": available,
        "req_pool_indices": rows,
        **_stash(held, shape["front"], shape["hidden_size"]),
    }
    sizes = {"bs": ids.shape[0], "num_src_rows": src_tokens.shape[0], "pool_rows": held.shape[0]}
    return Case({**shape, **sizes}, tensors)


def _stash(held: Tensor, front: int, hidden_size: int) -> Tensors:
    """A stash of which each row holds the last `held` places."""
    row = torch.arange(held.shape[0], device=held.device)
    valid = torch.arange(front, device=held.device) >= front - held[:, None]  # [pool_rows, front]
    states = _states(row, "hidden state in the stash", front, hidden_size)
    return {
        "stash_tokens": _tokens(row, "token in the stash", front),
        "stash_hiddens": torch.where(valid[:, :, None], states, torch.inf),
        "stash_valid_lens": held,
    }


def _generate_fill_widened(chooser: Chooser) -> Case:
    sizes = _draw_stash_shape(chooser)
    ids, rows, pool_rows = _draw_batch(chooser, sizes)
    seq_lens = torch.tensor(draw_seq_lens(chooser, sizes["bs"], sizes["page_size"]), dtype=torch.int64)
    held = _draw_parts(chooser, torch.full((pool_rows,), sizes["front"], dtype=torch.int32), "places held")
    return _widen_case(ids, sizes, rows, seq_lens, held)


def _make_fill_widened(ids: Tensor, shape: Sizes) -> Case:
    rows, seq_lens = bulk.rows(ids), bulk.seq_lens(ids, "seq_lens", shape["page_size"])
    return _widen_case(ids, shape, rows, seq_lens, _bulk_held(ids, rows, shape["front"]))


def _widen_case(ids: Tensor, shape: Sizes, rows: Tensor, seq_lens: Tensor, held: Tensor) -> Case:
    bs, ndt, hidden_size = ids.shape[0], shape["num_draft_tokens"], shape["hidden_size"]
    tensors = {
        "predict": _tokens(ids, "token", ndt).flatten().to(torch.int32),
        "verify_hiddens": _states(ids, "hidden state", ndt, hidden_size).flatten(0, 1),
        **_stash(held, shape["front"], hidden_size),
        "seq_lens": seq_lens,
        "req_pool_indices": rows,
    }
    window = {"num_nodes": bs * ndt, "num_window": bs * (shape["front"] + ndt)}
    return Case({**shape, "bs": bs, "pool_rows": held.shape[0], **window}, tensors)


def _req_pool_indices() -> TensorArg:
    return TensorArg("req_pool_indices", Role.IN, ("bs",), torch.int64, "row of each request, without duplicates")


def _pool(role: Role) -> TensorArg:
    return TensorArg(
        "req_to_hidden_states_pool",
        role,
        ("pool_rows", "pool_size", "hidden_size"),
        torch.float32,
        "the last pool_size hidden states of each row's request, oldest first; 0 where there were fewer",
    )


def _segments(prefix: str = "") -> tuple[TensorArg, TensorArg]:
    return (
        TensorArg(f"{prefix}extend_start_loc", Role.IN, ("bs",), torch.int32, "first row of each segment, in order"),
        TensorArg(f"{prefix}extend_seq_lens", Role.IN, ("bs",), torch.int32, "rows of each segment"),
    )


def _stash_args(role: Role) -> tuple[TensorArg, TensorArg, TensorArg]:
    return (
        TensorArg("stash_tokens", role, ("pool_rows", "front"), torch.int64, "token after each of the last positions"),
        TensorArg(
            "stash_hiddens",
            role,
            ("pool_rows", "front", "hidden_size"),
            torch.float32,
            "hidden state of each of the last positions",
        ),
        TensorArg("stash_valid_lens", role, ("pool_rows",), torch.int32, "places that hold something, the last ones"),
    )


OPS: tuple[Op, ...] = (
    Op(
        name="rotate_input_ids",
        family="multi_layer",
        summary="move the tokens of each segment one place to the left and put in a new one",
        args=(
            TensorArg(
                "input_ids",
                Role.INOUT,
                ("num_tokens",),
                torch.int64,
                "tokens by segment; rows that belong to nobody and last rows that are not selected do not change",
            ),
            *_segments(),
            TensorArg("topk_index", Role.IN, ("bs",), torch.int64, "the new tokens"),
            TensorArg(
                "select_index",
                Role.IN,
                ("bs",),
                torch.int64,
                "row of each new token, within its segment; not read for an empty segment",
            ),
        ),
        reference=rotate_input_ids,
        loops=rotate_input_ids_loops,
        generate=_generate_rotate_input_ids,
        bulk=Bulk(_draw_sizes, _make_rotate_input_ids),
        source="SGLang's multi-layer EAGLE worker",
    ),
    Op(
        name="assign_hidden_states_pool",
        family="multi_layer",
        summary="remember the last hidden states of each segment",
        args=(
            TensorArg("hidden_states", Role.IN, ("num_tokens", "hidden_size"), torch.float32, "a row for each token"),
            _req_pool_indices(),
            _pool(Role.INOUT),
            *reversed(_segments()),
        ),
        reference=assign_hidden_states_pool,
        loops=assign_hidden_states_pool_loops,
        generate=_generate_assign_hidden_states_pool,
        bulk=Bulk(_draw_sizes, _make_assign_hidden_states_pool),
        source="SGLang's multi-layer EAGLE worker",
    ),
    Op(
        name="assign_new_state",
        family="multi_layer",
        summary="the next layer's window, which begins one position earlier",
        args=(
            TensorArg("next_token_ids", Role.IN, ("bs",), torch.int64, "the tokens that the layer drafted"),
            TensorArg("old_input_ids", Role.IN, ("num_old",), torch.int64, "token after each position, by segment"),
            TensorArg("old_positions", Role.IN, ("num_old",), torch.int64, "positions, by segment"),
            TensorArg("old_hidden_states", Role.IN, ("num_old", "hidden_size"), torch.float32, "by segment"),
            TensorArg("old_out_cache_loc", Role.IN, ("num_old",), torch.int64, "slots, by segment"),
            *reversed(_segments("old_")),
            TensorArg("seq_lens", Role.IN, ("bs",), torch.int64, "one past the window's last position"),
            TensorArg("padding_lens", Role.IN, ("bs",), torch.int32, "rows after the selected one"),
            _req_pool_indices(),
            TensorArg("req_to_token", Role.IN, ("pool_rows", "pool_len"), torch.int32, "KV slot by row and column"),
            _pool(Role.IN),
            TensorArg(
                "input_ids",
                Role.OUT,
                ("num_new",),
                torch.int64,
                "old tokens in their places, the new one in the selected row; 0 in a last row that is not selected and "
                "in rows that belong to nobody",
                prefill=0,
            ),
            TensorArg(
                "positions",
                Role.OUT,
                ("num_new",),
                torch.int64,
                "the position before the window, at least 0, then the old ones; 0 in rows that belong to nobody",
                prefill=0,
            ),
            TensorArg(
                "hidden_states",
                Role.OUT,
                ("num_new", "hidden_size"),
                torch.float32,
                "state pool_size - 1 - step of the pool, then the old ones; 0 in rows that belong to nobody",
                prefill=0,
            ),
            TensorArg(
                "out_cache_loc",
                Role.OUT,
                ("num_new",),
                torch.int64,
                "slot of the position before the window, 0 without one, then the old ones; 0 in rows that belong to "
                "nobody",
                prefill=0,
            ),
            TensorArg("extend_seq_lens", Role.OUT, ("bs",), torch.int32, "one row more than before"),
            TensorArg("extend_start_loc", Role.OUT, ("bs",), torch.int32, "b rows later than before"),
            ScalarArg("step", "the layer that has run, 0 to pool_size - 1"),
        ),
        reference=assign_new_state,
        loops=assign_new_state_loops,
        generate=_generate_assign_new_state,
        bulk=Bulk(_draw_new_state_shape, _make_assign_new_state),
        source="SGLang's multi-layer EAGLE draft-extend graph",
    ),
    Op(
        name="stash_append_boundary_state",
        family="multi_layer",
        summary="roll each request's stash of tokens and hidden states forward",
        args=(
            TensorArg("src_tokens", Role.IN, ("num_src_rows",), torch.int64, "token after each position"),
            TensorArg("src_hiddens", Role.IN, ("num_src_rows", "hidden_size"), torch.float32, "hidden state of each"),
            TensorArg("src_row_ends", Role.IN, ("bs",), torch.int64, "one past the last certain row of each request"),
            TensorArg("num_available", Role.IN, ("bs",), torch.int32, "certain rows before it, 0 or more"),
            _req_pool_indices(),
            *_stash_args(Role.INOUT),
            ScalarArg("set_valid", "1: the stash held another request, only new rows are valid; 0: it goes on"),
        ),
        reference=stash_append_boundary_state,
        loops=stash_append_boundary_state_loops,
        generate=_generate_stash_append,
        bulk=Bulk(_draw_append_shape, _make_stash_append),
        source="SGLang's multi-layer EAGLE with boundary KV",
    ),
    Op(
        name="fill_widened_draft_extend_inputs",
        family="multi_layer",
        summary="put the stash in front of the verified nodes",
        args=(
            TensorArg("predict", Role.IN, ("num_nodes",), torch.int32, "token that follows each node"),
            TensorArg("verify_hiddens", Role.IN, ("num_nodes", "hidden_size"), torch.float32, "state of each node"),
            *_stash_args(Role.IN),
            TensorArg("seq_lens", Role.IN, ("bs",), torch.int64, "tokens before the nodes"),
            _req_pool_indices(),
            TensorArg(
                "input_ids",
                Role.OUT,
                ("num_window",),
                torch.int64,
                "per request front tokens of the stash, 0 where it holds none or the position is negative, then those "
                "of the nodes",
            ),
            TensorArg(
                "hidden_states",
                Role.OUT,
                ("num_window", "hidden_size"),
                torch.float32,
                "hidden states in the same order",
            ),
            ScalarArg("num_draft_tokens", "nodes a request, in a chain"),
        ),
        reference=fill_widened_draft_extend_inputs,
        loops=fill_widened_draft_extend_inputs_loops,
        generate=_generate_fill_widened,
        bulk=Bulk(_draw_stash_shape, _make_fill_widened),
        source="SGLang's multi-layer EAGLE with boundary KV",
    ),
)
