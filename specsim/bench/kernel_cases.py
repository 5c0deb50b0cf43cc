"""What each kernel is timed on: shapes, cases by the contract's bulk generators, the bytes that such a case must move,
and how many reads of it wait for one another.

Bytes are those that no implementation can do without: each input once, each defined element of an output once; of a
table (a page table, a pool, the rows of logits that a walk may visit) only what this case reads of it; of a tensor that
is changed in place, what changes, once read and once written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from specsim.choices.chooser import Chooser, replayed
from specsim.contracts import counter_rng
from specsim.contracts.contract import Case, Cases, Op, Role, ScalarArg, Sizes, TensorArg, Tensors, differing
from specsim.contracts.draws import Draws
from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL
from specsim.reference.cache_locs import assign_extend_cache_locs
from specsim.reference.kv import move_kv

VOCAB_SIZE = 128_256
HIDDEN_SIZE = 4096
NUM_BUFFERS = 61

# Trees and chains by number of nodes: topk, num_steps.
TREES = {4: (1, 3), 8: (2, 3), 32: (4, 6), 64: (8, 6)}
CHAINS = {
    *("verify_chain_rejection", "verify_chain_block", "build_chain_tree", "build_chain_tree_and_cache_locs"),
    "verify_ragged_sampled",
} | {name for name, op in OPS.items() if op.family == "multi_layer"}
SMALL_TREES_ONLY = {"build_tree_packed": 32, "pack_tree_mask": 32, "unpack_tree_mask": 32}  # nodes

# Requests, nodes, page size. Rows of logits are long, so their batches are smaller than an index tensor's.
Batch = tuple[int, int, int]

INDEX_SHAPES: tuple[Batch, ...] = ((1, 4, 1), (16, 8, 64), (64, 64, 64), (256, 8, 1), (512, 32, 64))
ROW_SHAPES: tuple[Batch, ...] = ((1, 4, 1), (16, 8, 1), (64, 8, 1), (16, 64, 1), (256, 8, 1))
SAMPLING_SHAPES: tuple[Batch, ...] = ((1, 4, 1), (16, 8, 1), (64, 8, 1), (16, 64, 1), (256, 4, 1))
FULL_ROW_SHAPES: tuple[Batch, ...] = ((256, 64, 1),)
MOVE_SHAPES: tuple[Batch, ...] = ((1, 4, 1), (16, 8, 1), (64, 8, 1), (256, 8, 1), (64, 64, 1))  # pools of gigabytes
CPU_SHAPES: tuple[Batch, ...] = ((2, 4, 4),)
ROW_FAMILIES = ("logits", "sampling", "verify_logits")

# What an operation's shape has beside the sizes above; several make several rows of the table. Sequences are up to two
# pages long, so large pages stand for long prefixes.
VARIANTS: Mapping[str, tuple[dict[str, int], ...]] = {
    "build_tree": ({"tree_mask_mode": 0, "page_size": 2048}, {"tree_mask_mode": 1}),
    "build_tree_and_cache_locs": ({"tree_mask_mode": 0, "page_size": 2048}, {"tree_mask_mode": 1}),
    "generate_draft_decode_kv_indices": ({"page_size": 64}, {"page_size": 1024}),
    "write_req_to_token_pool": ({"page_size": 64}, {"page_size": 1024}),
    "select_top_k": ({"step": 2},),
    "apply_token_bitmask": ({"unmasked_nodes": 0},),
    "verify_tree_target_only": ({"threshold_single_64ths": 64, "threshold_acc_64ths": 64},),
    "stash_append_boundary_state": ({"front": 4, "set_valid": 0, "gap": 0},),
    "fill_widened_draft_extend_inputs": ({"front": 4, "gap": 0},),
    "assign_new_state": ({"gap": 0, "step": 0},),
    "move_kv": ({"row_width": 1024},),
    "verify_ragged_sampled": ({"has_draft_probs": 1}, {"has_draft_probs": 0}),
    "move_kv_of_buffers": tuple({"row_bytes": row_bytes} for row_bytes in (512, 1152, 4096, 16384)),
}


def _with_slots(op: Op) -> Op:
    """An operation that builds trees, and in the same launch finds the slots of their nodes."""
    outputs = tuple(arg.name for arg in op.outputs)
    reference = op.reference

    def made(
        req_pool_indices: torch.Tensor, req_to_token: torch.Tensor, **named: torch.Tensor | int
    ) -> tuple[torch.Tensor, ...]:
        seq_lens = named["verified_seq_len"]
        assert isinstance(seq_lens, torch.Tensor)
        tree = reference(**named)
        nodes = tree[outputs.index("positions")].shape[0] // max(1, seq_lens.shape[0])
        return (*tree, assign_extend_cache_locs(req_pool_indices, req_to_token, seq_lens, seq_lens + nodes))

    def make(draws: Draws, shape: Sizes) -> Case:
        case = op.cases.make_from(draws, shape)
        bs, ndt = case.sizes["bs"], case.sizes["num_draft_tokens"]
        pool_len = int(case.tensors["verified_seq_len"].max()) + ndt
        table = 1 + torch.arange((bs + 1) * pool_len, dtype=torch.int32, device=draws.device).view(bs + 1, pool_len)
        rows = torch.arange(bs, 0, -1, device=draws.device)
        tensors = {**case.tensors, "req_pool_indices": rows, "req_to_token": table}
        return Case({**case.sizes, "pool_rows": bs + 1, "pool_len": pool_len}, tensors)

    def compared(case: Case, expected: Tensors) -> Tensors:
        slots = torch.ones_like(expected["out_cache_loc"], dtype=torch.bool)
        return {**op.compared(case, {name: expected[name] for name in outputs}), "out_cache_loc": slots}

    name = f"{op.name}_and_cache_locs"
    args = (*op.args, *SLOTS)
    cases = Cases(op.cases.draw_shape, make)
    return replace(op, name=name, family="fused", args=args, reference=made, cases=cases, compared=compared)


def _move_kv_of_buffers(buffers: torch.Tensor, target: torch.Tensor, source: torch.Tensor) -> None:
    for buffer in buffers:
        move_kv(buffer, target, source)


def _draw_moves_of_buffers(chooser: Chooser) -> dict[str, int]:
    shape = OPS["move_kv"].cases.draw_shape(chooser)
    return {"row_bytes": 2 * shape.pop("row_width"), **shape}


def _make_moves_of_buffers(draws: Draws, shape: Sizes) -> Case:
    """The moves of accepted paths in a pool of bfloat16 that is their slots and some more."""
    case = OPS["move_kv"].cases.make_from(draws, {**shape, "row_width": 1})
    num_slots, width = case.sizes["num_slots"], shape["row_bytes"] // 2
    num_buffers = shape.get("num_buffers", NUM_BUFFERS)
    row = torch.arange(num_slots * width, device=draws.device).view(1, num_slots, width) % 251
    layer = torch.arange(num_buffers, device=draws.device).view(-1, 1, 1)
    buffers = torch.empty((num_buffers, num_slots, width), dtype=torch.bfloat16, device=draws.device)
    for i in range(num_buffers):  # all at once would take four times the memory
        buffers[i] = (row + layer[i])[0]
    sizes = {**case.sizes, "num_buffers": num_buffers, "row_width": width}
    return Case(sizes, {"buffers": buffers, "target": case.tensors["target"], "source": case.tensors["source"]})


_MOVE = OPS["move_kv"]
_SLOTS = {arg.name: arg for arg in OPS["assign_extend_cache_locs"].tensor_args}
SLOTS = (
    _SLOTS["req_pool_indices"],
    _SLOTS["req_to_token"],
    replace(_SLOTS["out_cache_loc"], shape=("num_nodes",)),
)

# Kernels that are several operations in one launch, and no operation of the registry.
FUSED: dict[str, Op] = {
    "build_tree_and_cache_locs": _with_slots(OPS["build_tree"]),
    "build_chain_tree_and_cache_locs": _with_slots(OPS["build_chain_tree"]),
    "move_kv_of_buffers": replace(
        _MOVE,
        name="move_kv_of_buffers",
        family="fused",
        args=(
            TensorArg(
                "buffers", Role.INOUT, ("num_buffers", "num_slots", "row_width"), torch.bfloat16, "of all layers"
            ),
            *_MOVE.args[1:],
        ),
        reference=_move_kv_of_buffers,
        cases=Cases(_draw_moves_of_buffers, _make_moves_of_buffers),
    ),
}

KERNELS: dict[str, Op] = {**{name: op for name, op in OPS.items() if name not in WITHOUT_A_KERNEL}, **FUSED}


def shapes(name: str, device: str, full: bool = False) -> list[dict[str, int]]:
    """The shapes that a kernel is timed on, as its bulk generator takes them, with `bs`."""
    op = KERNELS[name]
    if device == "cpu":
        batches = CPU_SHAPES
    elif op.family in ("sampling", "ragged_drafts"):
        batches = SAMPLING_SHAPES
    elif op.family in ROW_FAMILIES:
        batches = ROW_SHAPES + (FULL_ROW_SHAPES if full else ())
    elif name == "move_kv_of_buffers":
        batches = MOVE_SHAPES
    else:
        batches = INDEX_SHAPES
    most = SMALL_TREES_ONLY.get(name, 64)
    kept = dict.fromkeys((bs, min(nodes, most), page_size) for bs, nodes, page_size in batches)
    found = [_shape(op, *batch, variant, device) for variant in VARIANTS.get(name, ({},)) for batch in kept]
    return [shape for i, shape in enumerate(found) if shape not in found[:i]]


def _shape(op: Op, bs: int, nodes: int, page_size: int, variant: dict[str, int], device: str) -> dict[str, int]:
    topk, num_steps = (1, nodes - 1) if op.name in CHAINS else TREES[nodes]
    is_cpu = device == "cpu"
    wanted = {
        "topk": topk,
        "num_steps": num_steps,
        "num_draft_tokens": nodes,
        "page_size": page_size,
        "vocab_size": 64 if is_cpu else VOCAB_SIZE,
        "hidden_size": 8 if is_cpu else HIDDEN_SIZE,
        **variant,
        **({"page_size": page_size, "row_width": 8, "row_bytes": 32, "num_buffers": 3} if is_cpu else {}),
    }
    known = op.cases.draw_shape(replayed(())) | ({"num_buffers": 0} if op.name in FUSED and is_cpu else {})
    return {"bs": bs, **known, **{name: size for name, size in wanted.items() if name in known}}


def make_case(name: str, shape: Mapping[str, int], device: str) -> Case:
    """A case of that shape. Uniform draws lie at no threshold and logits are numbers, so that implementations of older
    and newer rules agree on them.
    """
    rest = {size: value for size, value in shape.items() if size != "bs"}
    ids = torch.arange(shape["bs"], device=device)
    case = KERNELS[name].cases.make(ids, rest)
    tensors = dict(case.tensors)
    for coins in {"uniform_samples", "uniform_final"} & set(tensors):
        columns = tensors[coins].shape[1] if tensors[coins].dim() == 2 else None
        tensors[coins] = counter_rng.uniform(ids, f"benchmark's {coins}", columns)
    if "logits" in tensors:
        tensors["logits"] = torch.nan_to_num(tensors["logits"], nan=0.0, posinf=1e4, neginf=-1e4)
    return Case(case.sizes, tensors)


@dataclass(frozen=True, slots=True)
class ReferenceOutcome:
    """What the reference says of a case."""

    case: Case
    expected: Tensors
    defined: Tensors


Elements = Callable[[ReferenceOutcome], int]


def _count(*names: str) -> Elements:
    """As many elements as the named outputs have that are defined."""
    return lambda outcome: sum(int(outcome.defined[name].sum()) for name in names)


def _visited(outcome: ReferenceOutcome) -> int:
    """The row of each node that a walk reaches: what a greedy one reads."""
    return int(outcome.expected["accept_lens"].sum()) * outcome.case.sizes["vocab_size"]


def _last(outcome: ReferenceOutcome) -> int:
    """The row that the token after the walk is drawn of. Drafts are compared with single elements of others."""
    return outcome.case.sizes["bs"] * outcome.case.sizes["vocab_size"]


def _rejected(outcome: ReferenceOutcome) -> int:
    """Of a chain the row of the draft that is rejected, if one is."""
    rejects = outcome.expected["accept_token_num"] < outcome.case.sizes["num_steps"]
    return int(rejects.sum()) * outcome.case.sizes["vocab_size"]


def _rejected_at_nodes(rows_without: int) -> Elements:
    """The row of each node where a child is rejected; where none is at a walk's end, `rows_without` of that one."""

    def elements(outcome: ReferenceOutcome) -> int:
        tensors, num_steps = outcome.case.tensors, outcome.case.sizes["num_steps"]
        path, accepted = outcome.expected["accept_index"].cpu().tolist(), outcome.expected["accept_token_num"].tolist()
        first_child, numbers = tensors["retrieve_next_token"].tolist(), tensors["retrieve_index"].tolist()
        rows = 0
        for i, length in enumerate(accepted):
            nodes = [numbers[i].index(number) for number in path[i][: length + 1]]
            skips = [first_child[i][node] != child for node, child in itertools.pairwise(nodes)]
            has_rejected = length < num_steps and first_child[i][nodes[-1]] >= 0
            rows += sum(skips) + max(has_rejected, rows_without)
        return rows * outcome.case.sizes["vocab_size"]

    return elements


def _attended(outcome: ReferenceOutcome) -> int:
    sizes = outcome.case.sizes
    return int(outcome.case.tensors["seq_lens"].sum()) + sizes["bs"] * sizes["topk"] * sizes["num_steps"]


def _ragged_rows(of_greedy: int) -> Elements:
    """The row of each draft that is rejected; of a target's, also those that greedy requests follow."""

    def elements(outcome: ReferenceOutcome) -> int:
        tensors, emitted = outcome.case.tensors, (outcome.expected["output_token_ids"] >= 0).sum(dim=1)
        ends = tensors["cu_num_draft_tokens"]
        counts = ends.diff(prepend=torch.zeros_like(ends[:1])).to(emitted.device)
        followed = torch.minimum(emitted, counts) * of_greedy
        rejects = (emitted <= counts).long()  # whose token after the accepted drafts is no bonus token
        rows = torch.where(tensors["is_greedy"].to(emitted.device), followed, rejects)
        return int(rows.sum()) * outcome.case.sizes["vocab_size"]

    return elements


# Elements that are read of a table, by operation or for all of them.
READ_OF_TABLES: Mapping[tuple[str, str], Elements] = {
    ("generate_draft_decode_kv_indices", "req_to_token"): _attended,
    ("draft_cache_locs_paged", "req_to_token"): _count("out_cache_loc", "target", "source"),
    ("assign_new_state", "req_to_token"): _count("extend_seq_lens"),
    ("get_last_loc", "req_to_token"): _count("last_loc"),
    ("fill_bonus_tokens", "predict"): _count("bonus_tokens"),
    ("fill_bonus_tokens", "accept_index"): _count("bonus_tokens"),
    ("verify_commit_outputs", "predict"): _count("bonus_tokens"),
    ("verify_commit_outputs", "accept_index"): _count("bonus_tokens"),
    ("create_extend_after_decode", "accept_tokens"): _count("bonus_tokens"),
    ("verify_tree_target_only", "target_probs"): _last,
    ("verify_chain_rejection", "target_probs"): _last,
    ("verify_chain_rejection", "draft_probs"): _rejected,
    ("verify_chain_block", "target_probs"): _last,
    ("verify_chain_block", "draft_probs"): _rejected,
    ("verify_tree_rejection", "target_probs"): _rejected_at_nodes(1),
    ("verify_tree_rejection", "draft_probs"): _rejected_at_nodes(0),
    ("verify_logits_greedy", "logits"): _visited,
    ("verify_ragged_sampled", "target_probs"): _ragged_rows(1),
    ("verify_ragged_sampled", "draft_probs"): _ragged_rows(0),
    ("verify_ragged_sampled", "race"): _ragged_rows(0),
}
TABLES = {
    "req_to_token": _count("out_cache_loc"),
    "topk_p_buf": _count("topk_p"),
    "topk_index_buf": _count("topk_index"),
    "output_tokens_buf": _count("bonus_tokens"),
    "hidden_states_buf": _count("hidden_states"),
    "req_to_hidden_states_pool": lambda outcome: outcome.case.sizes["bs"] * outcome.case.sizes["hidden_size"],
}
ONLY_WRITTEN = {"apply_token_bitmask", "assign_req_to_token_pool", "write_req_to_token_pool"}


def bytes_to_move(op: Op, outcome: ReferenceOutcome) -> int:
    """Bytes that any implementation must read and write on this case."""
    total = 0
    for arg in op.tensor_args:
        given, made = outcome.case.tensors.get(arg.name), outcome.expected.get(arg.name)
        if arg.role is Role.OUT:
            assert made is not None
            total += int(outcome.defined[arg.name].sum()) * made.itemsize
        elif arg.role is Role.INOUT:
            assert given is not None
            assert made is not None
            total += int(differing(given, made).sum()) * given.itemsize * (1 if op.name in ONLY_WRITTEN else 2)
        else:
            assert given is not None
            read = READ_OF_TABLES.get((op.name, arg.name)) or TABLES.get(arg.name)
            elements = given.numel() if read is None else min(given.numel(), read(outcome))
            total += elements * given.itemsize
    return total


# Reads of which each needs what the one before gave: an index, then a row. One where nothing is said.
DEPENDENT_READS: Mapping[str, int] = {
    "assign_req_to_token_pool": 2,
    "write_req_to_token_pool": 2,
    "assign_draft_cache_locs_contiguous": 2,
    "assign_extend_cache_locs": 2,
    "build_tree": 2,
    "build_tree_packed": 2,
    "build_tree_and_cache_locs": 2,
    "build_chain_tree_and_cache_locs": 2,
    "fill_bonus_tokens": 3,
    "verify_commit_outputs": 3,
    "gather_accept_tokens": 2,
    "gather_rows": 2,
    "compact_accepted_path": 2,
    "fill_accept_out_cache_loc": 2,
    "get_target_cache_loc": 2,
    "filter_finished_cache_loc": 2,
    "create_extend_after_decode": 2,
    "alloc_extend": 2,
    "alloc_decode": 2,
    "get_last_loc": 3,
    "generate_draft_decode_kv_indices": 3,
    "draft_cache_locs_paged": 3,
    "move_kv": 2,
    "move_kv_of_buffers": 2,
    "rotate_input_ids": 3,
    "assign_hidden_states_pool": 2,
    "assign_new_state": 3,
    "stash_append_boundary_state": 2,
    "fill_widened_draft_extend_inputs": 2,
    "apply_token_bitmask": 2,
    "verify_ragged_sampled": 3,
}


def dependent_reads(op: Op, outcome: ReferenceOutcome) -> int:
    """Reads one after the other on the longest path of this case. A walk makes two at each level: links, then a row."""
    lens = outcome.expected.get("accept_token_num", outcome.expected.get("accept_lens"))
    return DEPENDENT_READS.get(op.name, 1) if lens is None else 2 * (1 + int(lens.max()))


def scalars(op: Op, case: Case) -> dict[str, int]:
    return {arg.name: case.sizes[arg.name] for arg in op.args if isinstance(arg, ScalarArg)}
