"""What must hold between two runs of one implementation, whatever the right result is (metamorphic relations).

The requests of a batch are independent, so results are permutation-equivariant, and a part of a batch gives that part
of the results; tokens and slots that are only handed on are names, and other names give the same result with other
names. No reference is needed, so the reference can be compared with these too.

Which relations an operation has follows from its contract: the first dimension of an argument says whether it belongs
to requests or is shared by them. An operation with ragged arguments has no order of requests here; `LABELS` says what
is handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specsim.contracts.contract import Case, Op, Role, Sizes, TensorArg, Tensors, differing
from specsim.contracts.provider import NotCalledError

PER_REQUEST = {"bs", "num_nodes", "num_rows", "num_draft_locs", "num_window", "mask_bytes"}
"""First dimensions that have as many entries for each request."""

SHARED: set[str | int] = {"pool_rows", "buffer_rows", "num_biases", "num_masks", "num_slots", 1}

NUMBERS = {
    **dict.fromkeys(("retrieve_index", "accept_index", "select_index", "extend_start_loc"), "num_draft_tokens"),
    "hidden_index": "topk",
}
"""Arguments that hold numbers of nodes or rows in the batch, and how many of those each request has."""

LABEL_END = 2**30
"""Tokens and slots from 1 to this, exclusive, get other names."""

# By operation: inputs that hold tokens or slots which are only handed on, and the outputs that they come out of.
LABELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "assign_req_to_token_pool": (("req_to_token", "out_cache_loc"), ("req_to_token",)),
    "assign_draft_cache_locs_contiguous": (("req_to_token",), ("out_cache_loc",)),
    "assign_extend_cache_locs": (("req_to_token",), ("out_cache_loc",)),
    "verify_tree_greedy": (("candidates", "target_predict"), ("predicts",)),
    "fill_bonus_tokens": (("predict",), ("bonus_tokens",)),
    "gather_accept_tokens": (("predicts",), ("output_token_ids",)),
    "verify_commit_outputs": (("predict",), ("bonus_tokens",)),
    "create_extend_after_decode": (("accept_tokens",), ("bonus_tokens",)),
    "get_target_cache_loc": (("out_cache_loc",), ("tgt_cache_loc", "to_free_slots")),
    "filter_finished_cache_loc": (("tgt_cache_loc",), ("out_cache_loc",)),
    "write_req_to_token_pool": (("req_to_token", "prefix_indices", "out_cache_loc"), ("req_to_token",)),
    "gather_rows": (("output_tokens_buf", "topk_index_buf"), ("bonus_tokens", "topk_index")),
    "select_top_k": (("topk_index",), ("input_ids", "candidate_tokens")),
    "organize_draft_results": (("tokens",), ("draft_tokens",)),
    "build_chain_tree": (("bonus_tokens", "draft_tokens"), ("tokens",)),
    "get_last_loc": (("req_to_token",), ("last_loc",)),
    "generate_draft_decode_kv_indices": (("req_to_token",), ("kv_indices",)),
    "draft_cache_locs_paged": (("req_to_token",), ("out_cache_loc", "target", "source")),
    "fill_accept_out_cache_loc": (("out_cache_loc",), ("accept_out_cache_loc",)),
    "compact_accepted_path": (("out_cache_loc",), ("target", "source")),
    "rotate_input_ids": (("input_ids", "topk_index"), ("input_ids",)),
    "verify_ragged_greedy": (("draft_token_ids", "target_argmax", "bonus_token_ids"), ("output_token_ids",)),
    "generate_draft_decode_window_kv_indices": (("req_to_token",), ("kv_indices",)),
    "prepare_draft_extend_inputs": (("predict",), ("input_ids",)),
    "widened_draft_extend_locs": (("req_to_token",), ("out_cache_loc",)),
    "ragged_verify_window": (("candidates", "req_to_token"), ("verify_ids", "verify_cache_loc")),
    "accept_chain_greedy": (("candidates", "target_predict"), ("bonus",)),
    "select_mixed_accept": (("greedy_bonus", "sampling_bonus"), ("bonus",)),
    "build_out_tokens": (("draft_tokens", "bonus"), ("out_tokens",)),
    "commit_chain_greedy": (("candidates", "target_predict"), ("bonus", "out_tokens")),
    "commit_inject_layout": (("full_to_swa_mapping",), ("swa_loc",)),
    "committed_swa_locations": (("full_to_swa_mapping",), ("swa_loc",)),
    "stage_commit": (("cache_loc", "cache_loc_dst"), ("cache_loc_dst",)),
    "draft_swa_page_indices": (("full_to_swa_mapping",), ("swa_page_indices",)),
    "prepare_draft_block": (("req_to_token",), ("cache_loc",)),
    "walk_candidates": (("candidate_ids",), ("tokens",)),
    "walk_candidates_greedy": (("candidate_ids",), ("tokens",)),
    "best_candidates": (("candidate_ids",), ("tokens",)),
    "prepare_prefill_inputs": (
        ("input_ids", "next_prefill_tokens", "all_token_ids"),
        ("input_ids", "next_prefill_tokens"),
    ),
    "combine_sampled_and_draft_tokens": (("input_ids", "last_sampled_tokens", "draft_tokens"), ("input_ids",)),
    "gather_draft_sampled": (("input_ids",), ("draft_sampled",)),
    "flatten_sampled": (("sampled",), ("flat_sampled",)),
    "gather_block_tables": (("block_tables",), ("input_block_tables",)),
    "propose_ngrams": (("all_token_ids", "last_sampled_tokens"), ("draft_tokens",)),
    "prepare_draft_prefill": (
        ("draft_input_ids", "input_ids", "last_sampled_tokens", "next_prefill_tokens"),
        ("draft_input_ids",),
    ),
    "prepare_draft_decode": (("draft_input_ids", "draft_tokens"), ("draft_input_ids",)),
    "prepare_module_inputs": (
        ("draft_input_ids", "input_ids", "cached_input_ids", "last_sampled_tokens", "next_prefill_tokens"),
        ("draft_input_ids", "draft_overrides"),
    ),
    "pad_trailing_slots": (("slot_mappings",), ("slot_mappings",)),
    "cache_module_inputs": (("draft_input_ids",), ("cached_input_ids",)),
    "shift_draft_inputs": (("draft_input_ids", "next_tokens"), ("draft_input_ids",)),
    "prepare_standalone_prefill": (("input_ids", "last_sampled_tokens"), ("draft_input_ids",)),
    "verify_logits_greedy": (("out_cache_loc",), ("target", "source")),
    "verify_logits_sampled": (("out_cache_loc",), ("target", "source")),
}


@dataclass(frozen=True, slots=True)
class Related:
    """A case that belongs to another one. `follow` gives what each compared output has to be, from the other's outputs;
    `what` says how the cases differ.
    """

    what: str
    case: Case
    follow: Callable[[Tensors], Tensors]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element of the related case's results that is not as the other's say."""

    what: str
    place: str
    expected: str
    actual: str


def related_cases(op: Op, case: Case) -> Iterator[Related]:
    """The cases that must have results according to those of `case`; none where there is nothing to compare."""
    bs = case.sizes.get("bs", 0)
    if bs > 1 and all(_kind(arg) for arg in op.tensor_args if arg.role is not Role.OUT):
        yield _of_requests(op, case, list(range(bs))[::-1], "the requests in the opposite order")
        if is_of_requests(op) and not _has_shared_results(op):
            yield _of_requests(op, case, [bs - 1], "the last request alone")
            yield _of_requests(op, case, list(range(bs - 1)), "the last request left out")
    if op.name in LABELS:
        yield _relabelled(op, case)


def broken_relation(
    op: Op, accepts: Callable[[Sizes], bool], run: Callable[[Case], Tensors], case: Case
) -> Difference | None:
    """The first relation that an implementation does not keep to on `case`, None if it keeps to all. `run` gives its
    outputs on a case, on the CPU; what it raises passes through. Related cases that it does not accept are passed over.
    """
    related = [each for each in related_cases(op, case) if accepts(each.case.sizes)]
    results = run(case) if related else {}
    for each in related:
        try:
            others = run(each.case)
        except NotCalledError:
            continue
        defined = op.defined(each.case, op.expected(each.case))
        for name, expected in each.follow(results).items():
            differs = _differing(op, name, expected, others[name]) & defined[name]
            if bool(differs.any()):
                at = tuple(int(i) for i in differs.nonzero()[0])
                place = f"{name}{list(at)}"
                return Difference(
                    each.what, place, f"{place} = {expected[at].item()}", f"{place} = {others[name][at].item()}"
                )
    return None


def _kind(arg: TensorArg) -> str:
    """ "requests", "shared", or "" for an argument that is neither."""
    first = arg.shape[0]
    if first in SHARED:
        return "shared"
    return "requests" if first in PER_REQUEST else ""


def is_of_requests(op: Op) -> bool:
    """Whether every argument belongs to requests or is shared by them: none is ragged or packed over the batch."""
    return all(_kind(arg) for arg in op.tensor_args)


BY_OFFSETS = {"num_drafts", "num_ends"}
"""Dimensions of what lies one request after the other, where each program of a request looks up its own."""


def is_of_a_long_batch(op: Op) -> bool:
    """Whether a batch may be as long as wanted: nothing goes over all of its requests."""
    return all(_kind(arg) or arg.shape[0] in BY_OFFSETS for arg in op.tensor_args)


def _has_shared_results(op: Op) -> bool:
    """Whether a part of a batch leaves its mark in memory of all."""
    return any(_kind(arg) == "shared" for arg in op.outputs)


def _of_requests(op: Op, case: Case, order: list[int], what: str) -> Related:
    """The case of some requests of another, in `order`."""
    bs = case.sizes["bs"]
    chosen = torch.tensor(order)
    place = torch.full((bs,), -1)  # [bs]: where each request of the other case is now
    place[chosen] = torch.arange(len(order))
    sizes = {name: size // bs * len(order) if name in PER_REQUEST else size for name, size in case.sizes.items()}

    def moved(arg: TensorArg, tensor: Tensor) -> Tensor:
        if _kind(arg) == "shared":
            return tensor.clone()
        rows: Tensor = tensor.reshape(bs, len(tensor) // bs, *tensor.shape[1:])[chosen].flatten(0, 1)
        if arg.name not in NUMBERS:
            return rows
        width = case.sizes[NUMBERS[arg.name]]
        renumbered = (place[rows // width] * width + rows % width).to(rows.dtype)
        return torch.where(rows >= 0, renumbered, rows)

    args = {arg.name: arg for arg in op.tensor_args}
    tensors = {name: moved(args[name], tensor).contiguous() for name, tensor in case.tensors.items()}
    outputs = [arg for arg in op.outputs if _kind(arg)]
    return Related(
        what,
        Case(sizes, tensors),
        lambda results: {arg.name: moved(arg, results[arg.name]) for arg in outputs},
    )


def _relabelled(op: Op, case: Case) -> Related:
    """The case with other tokens or slots: the highest becomes the lowest; -1, 0 and what is too high stay."""
    inputs, outputs = LABELS[op.name]

    def renamed(tensor: Tensor) -> Tensor:
        return torch.where((tensor > 0) & (tensor < LABEL_END), LABEL_END - tensor, tensor)

    def follow(results: Tensors) -> Tensors:
        return {name: (renamed(tensor) if name in outputs else tensor) for name, tensor in results.items()}

    tensors = {name: renamed(tensor) if name in inputs else tensor.clone() for name, tensor in case.tensors.items()}
    return Related("other names for tokens and slots", Case(dict(case.sizes), tensors), follow)


def _differing(op: Op, name: str, expected: Tensor, actual: Tensor) -> Tensor:
    tolerance = op.tolerance.get(name, 0.0)
    if tolerance:
        return ~torch.isclose(actual, expected, rtol=0.0, atol=tolerance, equal_nan=True)
    return differing(actual, expected)
