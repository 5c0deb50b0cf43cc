"""The drafting family: which candidates a step expands, which become nodes, and trees made without `build_tree`.

Probabilities and scores are powers of two, 0 or infinite, so that products are exact or underflow to 0 and every
implementation gets the same ones; ties are the rule. NaN is in no case: a tensor with a NaN is not equal to itself,
and inputs must be found unchanged. The tokens of a case all differ, so that one from a wrong candidate shows.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Role, ScalarArg, Sizes, TensorArg
from specsim.contracts.draws import Draws
from specsim.contracts.naive.drafting import (
    build_chain_tree_loops,
    rerank_candidates_loops,
    select_top_k_tokens_next_loops,
)
from specsim.contracts.naive.masks import (
    pack_tree_mask_loops,
    reconstruct_tree_loops,
    unpack_tree_mask_loops,
)
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


_LINKS = ("bs", "num_draft_tokens")
_SCORE_DOC = "0 or more, or -inf; NaN, which no case holds, counts as -inf"

_NODE_OUTPUTS = (
    TensorArg("positions", Role.OUT, ("num_nodes",), torch.int64, "verified_seq_len plus depth of the node"),
    TensorArg("retrieve_index", Role.OUT, _LINKS, torch.int64, "b * num_draft_tokens + i for node i"),
    TensorArg("retrieve_next_token", Role.OUT, _LINKS, torch.int64, "first child, -1 if there is none"),
    TensorArg(
        "retrieve_next_sibling",
        Role.OUT,
        _LINKS,
        torch.int64,
        "next node with the same parent in ascending order, -1 if there is none",
    ),
)


def _tree_mask(role: Role) -> TensorArg:
    doc = f"True where the row's node attends to the column's; at most {PACKED_NODES_MAX} nodes"
    return TensorArg("tree_mask", role, ("bs", "num_draft_tokens", "num_draft_tokens"), torch.bool, doc)


def _packed(role: Role) -> TensorArg:
    doc = (
        "column j is bit j % 8, the lowest first, of byte j // 8; 1, 2 or 4 bytes for at most 8, 16 or 32 nodes; bits "
        "of no node are 0"
    )
    return TensorArg("packed", role, ("bs", "num_draft_tokens", "packed_bytes"), torch.uint8, doc)


OPS: tuple[Op, ...] = (
    Op(
        name="select_top_k",
        family="drafting",
        summary="score the successors of the expanded candidates and expand the best, in step 1 and later",
        args=(
            ScalarArg("step", "the drafting step, 1 or more; the root's successors are step 0"),
            TensorArg(
                "topk_p",
                Role.IN,
                ("num_rows", "topk"),
                torch.float32,
                "probabilities, 0 to 1, of the successors of each expanded candidate, row b * topk + k; NaN, which no "
                "case holds, makes a score of -inf",
            ),
            TensorArg("topk_index", Role.IN, ("num_rows", "topk"), torch.int64, "their tokens"),
            TensorArg("scores", Role.IN, ("bs", "topk"), torch.float32, f"of the expanded candidates: {_SCORE_DOC}"),
            TensorArg(
                "input_ids",
                Role.OUT,
                ("num_rows",),
                torch.int64,
                "tokens of each request's topk best new candidates: the higher score first, then the lower flat id",
            ),
            TensorArg(
                "hidden_index",
                Role.OUT,
                ("num_rows",),
                torch.int64,
                "the row of topk_p, and so of the hidden states, that each of them is from",
            ),
            TensorArg("next_scores", Role.OUT, ("bs", "topk"), torch.float32, "their scores"),
            TensorArg(
                "candidate_scores",
                Role.OUT,
                ("bs", "num_candidates"),
                torch.float32,
                "scores of all new candidates: scores[b, j // topk] * p; -inf where that is NaN",
            ),
            TensorArg("candidate_tokens", Role.OUT, ("bs", "num_candidates"), torch.int64, "their tokens"),
            TensorArg(
                "parents",
                Role.OUT,
                ("bs", "topk"),
                torch.int64,
                "flat ids of the best: topk + (step - 1) * topk * topk + j for new candidate j",
            ),
        ),
        reference=select_top_k_tokens_next,
        loops=select_top_k_tokens_next_loops,
        cases=Cases(_draw_step_shape, _make_select_top_k),
        source="EAGLE-2 (arXiv 2406.16858), section 4.1",
    ),
    Op(
        name="organize_draft_results",
        family="drafting",
        summary="keep the best candidates of all steps, each with its parent",
        args=(
            TensorArg(
                "scores",
                Role.IN,
                ("bs", "total"),
                torch.float32,
                f"of all candidates by flat id: {_SCORE_DOC}; none is better than its parent's",
            ),
            TensorArg("tokens", Role.IN, ("bs", "total"), torch.int64, "of all candidates by flat id"),
            TensorArg(
                "parents",
                Role.IN,
                ("bs", "parent_width"),
                torch.int64,
                "-1, then 0..topk-1, then the flat ids that each later step expanded, the last step's included",
            ),
            TensorArg(
                "parent_list",
                Role.OUT,
                ("bs", "parent_list_width"),
                torch.int64,
                "parents without the last step's; no columns when num_steps is 1",
            ),
            TensorArg(
                "selected_index",
                Role.OUT,
                ("bs", "num_selected"),
                torch.int64,
                "flat ids, ascending, of the best candidates: the higher score first, then the lower flat id",
            ),
            TensorArg("draft_tokens", Role.OUT, ("bs", "num_selected"), torch.int64, "their tokens"),
            ScalarArg("topk", "candidates expanded a step, and successors of each"),
            ScalarArg("num_steps", "drafting steps"),
            ScalarArg("num_draft_tokens", "nodes a tree, the root included: one more than are kept"),
        ),
        reference=rerank_candidates,
        loops=rerank_candidates_loops,
        cases=Cases(batches.draw_shape, _make_organize_draft_results),
        source="EAGLE-2 (arXiv 2406.16858), section 4.2; orphans: SGLang PR #36201 and issue #7477",
    ),
    Op(
        name="build_chain_tree",
        family="drafting",
        summary="tokens, mask, positions and links of trees without branches",
        args=(
            TensorArg("bonus_tokens", Role.IN, ("bs",), torch.int32, "token of the root"),
            TensorArg("draft_tokens", Role.IN, ("bs", "num_steps"), torch.int64, "tokens of nodes 1, 2, ..."),
            TensorArg("verified_seq_len", Role.IN, ("bs",), torch.int64, "tokens before the root"),
            TensorArg("tokens", Role.OUT, ("num_nodes",), torch.int64, "token of each node"),
            TensorArg(
                "tree_mask",
                Role.OUT,
                ("mask_numel",),
                torch.bool,
                "QLEN_ONLY: per request num_draft_tokens rows and columns, True up to the diagonal",
            ),
            *_NODE_OUTPUTS,
        ),
        reference=build_chain_tree,
        loops=build_chain_tree_loops,
        cases=Cases(_draw_chain_shape, _make_build_chain_tree),
        source="EAGLE (arXiv 2401.15077)",
    ),
    Op(
        name="reconstruct_tree",
        family="drafting",
        summary="positions and links of the trees that masks of ancestors describe",
        args=(
            TensorArg(
                "tree_mask",
                Role.IN,
                ("bs", "num_draft_tokens", "num_draft_tokens"),
                torch.bool,
                "True where the column's node is the row's node or one of its ancestors; node 0 is the root",
            ),
            TensorArg("verified_seq_len", Role.IN, ("bs",), torch.int64, "tokens before the root"),
            *_NODE_OUTPUTS,
        ),
        reference=reconstruct_tree,
        loops=reconstruct_tree_loops,
        cases=Cases(batches.draw_paged_shape, _make_reconstruct_tree),
        source="EAGLE-2 (arXiv 2406.16858), section 4.2",
    ),
    Op(
        name="pack_tree_mask",
        family="drafting",
        summary="a bit for each element of the tree mask",
        args=(
            _tree_mask(Role.IN),
            _packed(Role.OUT),
        ),
        reference=pack_tree_mask,
        loops=pack_tree_mask_loops,
        cases=Cases(_draw_packed_shape, _make_pack_tree_mask),
        source="EAGLE-2 (arXiv 2406.16858), section 4.2",
    ),
    Op(
        name="unpack_tree_mask",
        family="drafting",
        summary="the tree mask of bits as booleans",
        args=(_packed(Role.IN), _tree_mask(Role.OUT)),
        reference=unpack_tree_mask,
        loops=unpack_tree_mask_loops,
        cases=Cases(_draw_packed_shape, _make_unpack_tree_mask),
        source="EAGLE-2 (arXiv 2406.16858), section 4.2",
    ),
)
