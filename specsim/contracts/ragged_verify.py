"""The ragged verify family: chains that are cut to what is worth verifying, and what follows their verification.

Confidences are multiples of 1/8, so that their products are exact in any order and many are equal. Lengths are none,
all or any. What is not verified or not committed holds values that fit nowhere: whoever looks at it is seen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts import batches
from specsim.contracts.batches import TOKENS_START
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.reference.ragged_verify import (
    accept_chain_greedy,
    build_out_tokens,
    commit_chain_greedy,
    commit_inject_layout,
    committed_swa_locations,
    finalize_accept_lens,
    pad_verify_lens,
    ragged_verify_window,
    scatter_compact_to_strided,
    schedule_verify_lens,
    select_mixed_accept,
    stage_commit,
    verify_indptr,
)

__all__ = ["OPS", "Make", "chain_cases", "draw_paged", "draw_verify_lens", "tokens"]

NUM_STEPS_MAX = 7  # drafts: products of as many multiples of 1/8 are exact
SURVIVAL_EPS = (1e-6, 1 / 8, 1 / 2, 0.0)
HIDDEN_SIZES = (1, 5, 1027)
SPARE_MAX = 4  # requests, and for each node of a chain rows, of a graph that has more than the batch
NO_SUCH_SLOT = 2**30
NO_SUCH_LOCATION = -(2**40)


def draw_verify_lens(draws: Draws, num_draft_tokens: int) -> Tensor:
    """Nodes of each chain that are verified [n] int32: the root alone, all, or any."""
    any_len = 1 + draws.below("any verified nodes", num_draft_tokens)
    return _none_all_or_any(draws, "verified nodes", 1, num_draft_tokens, any_len).to(torch.int32)


def _none_all_or_any(draws: Draws, what: str, least: int, most: int, otherwise: Tensor) -> Tensor:
    kind = draws.below(what, 3)
    return torch.where(kind == 0, least, torch.where(kind == 1, most, otherwise))


def _verify_lens(draws: Draws, shape: Sizes) -> Tensor:
    return draw_verify_lens(draws, shape["num_draft_tokens"])


def _committed(draws: Draws, shape: Sizes) -> Tensor:
    ndt = shape["num_draft_tokens"]
    return _none_all_or_any(draws, "committed nodes", 0, ndt, draws.below("any committed nodes", ndt + 1))


def tokens(draws: Draws, what: str, columns: int | None = None) -> Tensor:
    """Tokens [n] or [n, columns] int64 that differ."""
    return TOKENS_START + draws.labels(what, columns)


def _packed(rows: Tensor, counts: Tensor) -> Tensor:
    """Of [n, most, ...] the first `counts` [n] of each, one request after the other."""
    return rows[torch.arange(rows.shape[1], device=rows.device) < counts[:, None]]


Make = Callable[[Draws, dict[str, int]], Tensors]


def chain_cases(make: Make, draw_more: Callable[[Chooser], dict[str, int]] = lambda _chooser: {}) -> Cases:
    """`make` gives a case's tensors, and completes its sizes."""

    def draw_shape(chooser: Chooser) -> dict[str, int]:
        num_steps = between(chooser, 1, NUM_STEPS_MAX, "num_steps")
        return {"topk": 1, "num_steps": num_steps, "num_draft_tokens": num_steps + 1, **draw_more(chooser)}

    def make_from(draws: Draws, shape: Sizes) -> Case:
        sizes = {**shape, "bs": draws.count, "num_nodes": draws.count * shape["num_draft_tokens"]}
        tensors = make(draws, sizes)
        return Case(sizes, {name: tensor.contiguous() for name, tensor in tensors.items()})

    return Cases(draw_shape, make_from)


def draw_paged(chooser: Chooser) -> dict[str, int]:
    return {"page_size": pick(chooser, batches.PAGE_SIZES, "page_size")}


def _draw_scheduled(chooser: Chooser) -> dict[str, int]:
    return {"min_verify_len": pick(chooser, (1, 0, 2), "min_verify_len"), "fewer": chooser.choose(3, "below the most")}


def _draw_hidden(chooser: Chooser) -> dict[str, int]:
    return {"hidden_size": pick(chooser, HIDDEN_SIZES, "hidden_size")}


# How long the chains are


def _make_scheduled(draws: Draws, sizes: dict[str, int]) -> Tensors:
    n, num_steps = draws.count, sizes["num_steps"]
    most = max(1, sizes["min_verify_len"], sizes["num_draft_tokens"] - sizes["fewer"])
    sizes |= {"num_chains": n, "max_verify_len": most, "budget": draws.common("budget", n * num_steps + 2)}
    eighths = draws.below("eighths of confidence", 9, num_steps)
    surely = draws.below("surely accepted", 2, num_steps)
    eps = SURVIVAL_EPS[draws.common("least probability", len(SURVIVAL_EPS))]
    confidence = torch.where(surely == 1, 8, eighths).to(torch.float32) / 8
    return {"confidence": confidence, "survival_eps": torch.tensor([eps], device=draws.device)}


def _make_padded(draws: Draws, sizes: dict[str, int]) -> Tensors:
    lens = _verify_lens(draws, sizes)
    spare = draws.common("rows that are left over", SPARE_MAX * sizes["num_draft_tokens"])
    more = draws.common("requests that pad the batch", SPARE_MAX)
    sizes |= {"num_chains": draws.count, "num_packed": int(lens.sum()) + spare, "padded_bs": draws.count + more}
    return {"verify_lens": lens}


def _make_indptr(draws: Draws, sizes: dict[str, int]) -> Tensors:
    sizes |= {"num_chains": draws.count, "num_starts": draws.count + 1}
    return {"verify_lens": _committed(draws, sizes).to(torch.int32)}


def _with_padding(draws: Draws, sizes: dict[str, int], lens: Tensor) -> int:
    """How many rows lie behind those of the batch."""
    spare = draws.common("rows behind the last", 2 * sizes["num_draft_tokens"])
    sizes["num_packed"] = int(lens.sum()) + spare
    return spare


def _make_window(draws: Draws, sizes: dict[str, int]) -> Tensors:
    lens, seq_lens = _verify_lens(draws, sizes), batches.seq_lens(draws, "seq_lens", sizes["page_size"])
    rows, table = batches.page_table(draws, seq_lens + lens, sizes["page_size"])
    _with_padding(draws, sizes, lens)
    sizes |= batches.page_table_sizes(table)
    chain = tokens(draws, "token of a node", sizes["num_draft_tokens"])
    given = {"req_pool_indices": rows, "req_to_token": table, "seq_lens": seq_lens, "verify_lens": lens}
    return {**given, "candidates": chain}


def _make_scattered(draws: Draws, sizes: dict[str, int]) -> Tensors:
    lens = _verify_lens(draws, sizes)
    column = torch.arange(sizes["hidden_size"], device=draws.device)
    values = draws.labels("row", sizes["num_draft_tokens"])[:, :, None] % 2**12 * 2**11 + column  # below 2^23
    packed = _packed(values.to(torch.float32), lens)
    behind = packed.new_full((_with_padding(draws, sizes, lens), sizes["hidden_size"]), float("nan"))
    return {"compact": torch.cat([packed, behind]), "verify_lens": lens}


# Where committed nodes are


def _mapped(table: Tensor, sizes: dict[str, int]) -> Tensor:
    """A slot in the pool of the window for each slot of a table, in the opposite order."""
    sizes["num_slots"] = int(table.max()) + 1
    return torch.arange(sizes["num_slots"], 0, -1, device=table.device)


def _make_injected(draws: Draws, sizes: dict[str, int]) -> Tensors:
    lens, prefix = _committed(draws, sizes), batches.seq_lens(draws, "prefix_lens", sizes["page_size"])
    rows, table = batches.page_table(draws, prefix + lens, sizes["page_size"])
    mapping = _mapped(table, sizes)
    sizes |= batches.page_table_sizes(table)
    ends = torch.zeros(table.shape[0], dtype=torch.int64, device=table.device).scatter(0, rows, prefix + lens)
    stale = torch.arange(table.shape[1], device=table.device) >= ends[:, None]
    return {
        "req_pool_indices": rows,
        "req_to_token": torch.where(stale, NO_SUCH_SLOT, table),
        "prefix_lens": prefix,
        "full_to_swa_mapping": mapping,
        "commit_lens": lens.to(torch.int32),
    }


def _make_locations(draws: Draws, sizes: dict[str, int]) -> Tensors:
    lens, ndt = _committed(draws, sizes), sizes["num_draft_tokens"]
    _rows, table = batches.page_table(draws, torch.full_like(lens, ndt), sizes["page_size"])
    node = torch.arange(ndt, device=table.device)
    slots = torch.where(node < lens[:, None], table[1 : draws.count + 1, :ndt].long(), NO_SUCH_LOCATION)
    mapping = _mapped(table, sizes)
    return {"cache_loc": slots.flatten(), "full_to_swa_mapping": mapping, "commit_lens": lens.to(torch.int32)}


# What is accepted


def _predictions(draws: Draws, sizes: dict[str, int]) -> Tensors:
    """Chains of which none, all or any drafts are right, and later ones again behind the first that is not."""
    ndt, num_steps = sizes["num_draft_tokens"], sizes["num_steps"]
    chain = tokens(draws, "token of a node", ndt)
    right = _none_all_or_any(draws, "right drafts", 0, num_steps, draws.below("any right drafts", ndt))
    step = torch.arange(ndt, device=chain.device)
    again = draws.below("right again", 2, 1) == 1
    predicted = chain.roll(-1, dims=1)
    is_right = (step < right[:, None]) | (again & (step > right[:, None]))
    is_right[:, -1] = False
    return {"candidates": chain, "target_predict": torch.where(is_right, predicted, predicted + 2**20)}


def _make_accepted(draws: Draws, sizes: dict[str, int]) -> Tensors:
    lens = _verify_lens(draws, sizes)
    if not sizes["has_cut"]:
        lens = torch.full_like(lens, sizes["num_draft_tokens"])
    return {**_predictions(draws, sizes), "verify_lens": lens}


def _draw_cut(chooser: Chooser) -> dict[str, int]:
    return {"has_cut": pick(chooser, (0, 1, 1), "has_cut")}


def _make_mixed(draws: Draws, sizes: dict[str, int]) -> Tensors:
    ndt = sizes["num_draft_tokens"]
    made: Tensors = {"is_greedy": draws.below("greedy", 2) == 1}
    for kind in ("greedy", "sampling"):
        made[f"{kind}_len"] = draws.below(f"{kind}: accepted", ndt).to(torch.int32)
        made[f"{kind}_bonus"] = tokens(draws, f"{kind}: bonus")
        made[f"{kind}_trim"] = draws.below(f"{kind}: cut", ndt).to(torch.int32)
    return made


def _accepted(draws: Draws, sizes: dict[str, int]) -> Tensor:
    num_steps = sizes["num_steps"]
    any_len = draws.below("any accepted drafts", num_steps + 1)
    return _none_all_or_any(draws, "accepted drafts", 0, num_steps, any_len).to(torch.int32)


def _make_lens(draws: Draws, sizes: dict[str, int]) -> Tensors:
    return {"correct_len": _accepted(draws, sizes), "prefix_lens": batches.seq_lens(draws, "prefix_lens", 64)}


def _make_outs(draws: Draws, sizes: dict[str, int]) -> Tensors:
    drafts = tokens(draws, "draft", sizes["num_steps"])
    return {"draft_tokens": drafts, "correct_len": _accepted(draws, sizes), "bonus": tokens(draws, "bonus")}


def _make_committed(draws: Draws, sizes: dict[str, int]) -> Tensors:
    return {**_predictions(draws, sizes), "prefix_lens": batches.seq_lens(draws, "prefix_lens", 64)}


# What is kept


def _make_staged(draws: Draws, sizes: dict[str, int]) -> Tensors:
    lens, ndt = _committed(draws, sizes), sizes["num_draft_tokens"]
    n = draws.count
    more = draws.common("room for more", SPARE_MAX)
    sizes |= {"num_chains": n, "max_bs": n + more, "num_packed": n * ndt, "max_packed": (n + more) * ndt}
    old = torch.arange(sizes["max_packed"], device=draws.device)
    return {
        "cache_loc_dst": -1 - old,
        "positions_dst": -1 - 2 * old,
        "commit_lens_dst": torch.full((n + more,), -7, dtype=torch.int32, device=draws.device),
        "cache_loc": tokens(draws, "slot", ndt).flatten(),
        "positions": tokens(draws, "position", ndt).flatten(),
        "commit_lens": lens.to(torch.int32),
    }


OPS: tuple[Op, ...] = (
    operation(schedule_verify_lens, "ragged_verify", chain_cases(_make_scheduled, _draw_scheduled)),
    operation(pad_verify_lens, "ragged_verify", chain_cases(_make_padded)),
    operation(verify_indptr, "ragged_verify", chain_cases(_make_indptr)),
    operation(ragged_verify_window, "ragged_verify", chain_cases(_make_window, draw_paged)),
    operation(scatter_compact_to_strided, "ragged_verify", chain_cases(_make_scattered, _draw_hidden)),
    operation(accept_chain_greedy, "ragged_verify", chain_cases(_make_accepted, _draw_cut)),
    operation(select_mixed_accept, "ragged_verify", chain_cases(_make_mixed)),
    operation(finalize_accept_lens, "ragged_verify", chain_cases(_make_lens)),
    operation(build_out_tokens, "ragged_verify", chain_cases(_make_outs)),
    operation(commit_chain_greedy, "ragged_verify", chain_cases(_make_committed)),
    operation(commit_inject_layout, "ragged_verify", chain_cases(_make_injected, draw_paged)),
    operation(committed_swa_locations, "ragged_verify", chain_cases(_make_locations, draw_paged)),
    operation(stage_commit, "ragged_verify", chain_cases(_make_staged)),
)
