"""The drafting family: which candidates a step expands, which become nodes, and trees made without `build_tree`.

Probabilities and scores are powers of two, 0 or infinite, so that products are exact or underflow to 0 and every
implementation gets the same ones; ties are the rule. NaN is in no case: a tensor with a NaN is not equal to itself,
and inputs must be found unchanged. The tokens of a case all differ, so that one from a wrong candidate shows.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, operation
from specsim.contracts.draws import Draws
from specsim.reference.drafting import (
    build_chain_tree,
    rerank_candidates,
    select_top_k_tokens_next,
)
from specsim.reference.masks import (
    PACKED_NODES_MAX,
    pack_tree_mask,
    packed_bytes,
    reconstruct_tree,
    unpack_tree_mask,
)

__all__ = ["OPS"]

INF = float("inf")
TINY = 2.0**-60  # of a float32 path, the third such factor gives 0
SMALLEST_NORMAL = 2.0**-126  # products below it are made 0, for some hardware flushes them to 0

PROBABILITIES = (0.5, 1.0, 0.25, 0.0, 0.125, TINY)
SCORES = (0.5, 1.0, 0.25, 0.0, 0.125, 2.0**-120, INF, -INF)


def _draw_packed_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_shape(chooser)
    topk = shape["topk"]
    if topk == 1:
        return shape
    most = min(PACKED_NODES_MAX, 1 + topk + (shape["num_steps"] - 1) * topk**2)
    full = [ndt for ndt in (8, 9, 16, 17, PACKED_NODES_MAX) if ndt <= most]  # around the end of a byte
    ndt = pick(chooser, [min(shape["num_draft_tokens"], most)] * 2 + full, "num_draft_tokens against bytes")
    return {**shape, "num_draft_tokens": ndt}


def _packed_of(case: Case) -> Case:
    return Case(case.sizes, {"packed": pack_tree_mask(case.tensors["tree_mask"])})


def _make_unpack_tree_mask(draws: Draws, shape: Sizes) -> Case:
    return _packed_of(_make_pack_tree_mask(draws, shape))


def _draw_step_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_shape(chooser)
    return {**shape, "step": between(chooser, 1, shape["num_steps"], "step")}


def _draw_chain_shape(chooser: Chooser) -> dict[str, int]:
    return {**batches.draw_chain_shape(chooser), "page_size": pick(chooser, batches.PAGE_SIZES, "page_size")}


def _make_probabilities(draws: Draws, what: str, rows: int, columns: int) -> torch.Tensor:
    """Probabilities [n, rows, columns] float64: in each row all equal, falling, or any."""
    n, device = draws.count, draws.device
    choices = torch.tensor(PROBABILITIES, dtype=torch.float64, device=device)
    kind = draws.below(f"{what}: kind", 3, rows)[:, :, None]  # [n, rows, 1]
    column = torch.arange(columns, device=device)
    which = draws.below(what, len(PROBABILITIES), rows * columns).view(n, rows, columns)
    powers = torch.tensor([2.0**-i for i in range(1, columns + len(PROBABILITIES))], dtype=torch.float64, device=device)
    falling = powers[which[:, :, :1] + column]
    return torch.where(kind == 0, choices[which[:, :, :1]], torch.where(kind == 1, falling, choices[which]))


def _make_tokens(draws: Draws, count: int) -> torch.Tensor:
    """Tokens [n, count] int64, in descending order; those of a request all differ."""
    first_token = batches.TOKENS_START + draws.labels("first token") * count
    return first_token[:, None] + torch.arange(count, 0, -1, device=draws.device)


def _make_select_top_k(draws: Draws, shape: Sizes) -> Case:
    n, topk = draws.count, shape["topk"]
    num_candidates = topk**2
    choices = torch.tensor(SCORES, dtype=torch.float64, device=draws.device)
    kind = draws.below("scores: kind", 3)[:, None]  # [n, 1]: equal, best first, any order
    drawn = choices[draws.below("scores", len(SCORES), topk)]  # [n, topk]
    scores = torch.where(kind == 0, drawn[:, :1], drawn)
    scores = torch.where(kind == 1, drawn.sort(dim=1, descending=True).values, scores)
    p = _make_probabilities(draws, "topk_p", topk, topk)  # [n, topk, topk]
    product = (scores[:, :, None] * p).abs()
    p = torch.where((product > 0) & (product < SMALLEST_NORMAL), p.clamp(max=TINY), p)
    tensors = {
        "topk_p": p.view(n * topk, topk).to(torch.float32),
        "topk_index": _make_tokens(draws, num_candidates).view(n * topk, topk),
        "scores": scores.to(torch.float32),
    }
    return Case({**shape, "bs": n, "num_rows": n * topk, "num_candidates": num_candidates}, tensors)


def _make_scores(parent_scores: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The products, the same in every floating-point format that holds `SCORES` and whatever is done to subnormals."""
    product = parent_scores * p
    product = torch.where(product.isnan(), -INF, product)
    return torch.where(product.abs() < SMALLEST_NORMAL, 0.0, product)


def _make_organize_draft_results(draws: Draws, shape: Sizes) -> Case:
    """What a drafting hands over, step by step; in two thirds of the requests a score is infinite."""
    n, topk, num_steps = draws.count, shape["topk"], shape["num_steps"]
    device = draws.device
    number = torch.arange(topk, device=device)  # [topk]
    kind = draws.below("infinite score", 3)[:, None]  # [n, 1]
    infinite = ((kind == 1) & (number == 0)) | ((kind == 2) & (number == topk - 1))
    first = _make_probabilities(draws, "probabilities of step 0", 1, topk)[:, 0]
    expanded = _make_scores(torch.where(infinite, INF, 1.0).to(torch.float64), first)  # [n, topk]
    scores = [expanded]
    parents = [torch.arange(-1, topk, device=device).expand(n, -1)]
    for step in range(1, num_steps):
        p = _make_probabilities(draws, f"probabilities of step {step}", topk, topk)
        new = _make_scores(expanded[:, :, None], p).flatten(1)  # [n, topk * topk]
        best = new.sort(dim=1, descending=True, stable=True).indices[:, :topk]
        expanded = new.gather(1, best)
        scores.append(new)
        parents.append(topk + (step - 1) * topk**2 + best)
    total = topk + (num_steps - 1) * topk**2
    tensors = {
        "scores": torch.cat(scores, dim=1).to(torch.float32),
        "tokens": _make_tokens(draws, total),
        "parents": torch.cat(parents, dim=1),
    }
    sizes = {
        **shape,
        "bs": n,
        "total": total,
        "parent_width": topk * num_steps + 1,
        "parent_list_width": 0 if num_steps == 1 else topk * (num_steps - 1) + 1,
        "num_selected": shape["num_draft_tokens"] - 1,
    }
    return Case(sizes, tensors)


def _make_build_chain_tree(draws: Draws, shape: Sizes) -> Case:
    n, ndt = draws.count, shape["num_draft_tokens"]
    tokens = _make_tokens(draws, ndt)
    tensors = {
        "bonus_tokens": tokens[:, 0].to(torch.int32),
        "draft_tokens": tokens[:, 1:].contiguous(),
        "verified_seq_len": batches.seq_lens(draws, "verified_seq_len", shape["page_size"]),
    }
    return Case({**shape, "bs": n, "num_nodes": n * ndt, "mask_numel": n * ndt * ndt}, tensors)


def _make_reconstruct_tree(draws: Draws, shape: Sizes) -> Case:
    n, ndt = draws.count, shape["num_draft_tokens"]
    lens = batches.seq_lens(draws, "verified_seq_len", shape["page_size"])
    tensors = {"tree_mask": batches.masks(batches.trees(draws, shape).parents), "verified_seq_len": lens}
    return Case({**shape, "bs": n, "num_nodes": n * ndt}, tensors)


def _make_pack_tree_mask(draws: Draws, shape: Sizes) -> Case:
    sizes = {**shape, "bs": draws.count, "packed_bytes": packed_bytes(shape["num_draft_tokens"])}
    return Case(sizes, {"tree_mask": batches.masks(batches.trees(draws, shape).parents)})


OPS: tuple[Op, ...] = (
    operation(select_top_k_tokens_next, "drafting", Cases(_draw_step_shape, _make_select_top_k), name="select_top_k"),
    operation(
        rerank_candidates,
        "drafting",
        Cases(batches.draw_shape, _make_organize_draft_results),
        name="organize_draft_results",
    ),
    operation(build_chain_tree, "drafting", Cases(_draw_chain_shape, _make_build_chain_tree)),
    operation(reconstruct_tree, "drafting", Cases(batches.draw_paged_shape, _make_reconstruct_tree)),
    operation(pack_tree_mask, "drafting", Cases(_draw_packed_shape, _make_pack_tree_mask)),
    operation(unpack_tree_mask, "drafting", Cases(_draw_packed_shape, _make_unpack_tree_mask)),
)
