"""A whole greedy verify step around the target model's forward pass: specsim's launches beside those of releases.

From the drafted tokens to what the next draft begins with: tree, positions, mask and cache locations; then, from the
logits, the walk, lengths, bonus tokens and the rows that the draft model continues from; with more than one branch also
the accepted tokens, hidden states and KV of all layers, brought to the front. The same tensors on both sides; each call
makes its own outputs where the release's code does.

A release with a kernel for chains runs the shorter pipeline. The CUDA operations are those of sglang-kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from specsim.bench import verify_logits_greedy
from specsim.bench.kernel_cases import KERNELS, make_case
from specsim.bench.kernel_peers import OURS, THEIRS, Call, KernelPeer, LiftedPeers
from specsim.bench.sgl_kernel import sgl_kernel_operation
from specsim.contracts.contract import Case, Tensors
from specsim.engines.peers import LINKS, LiftedPeer
from specsim.verdict import NotRun

NAME = "verify step"
OPTION = "step"
QLEN_ONLY = 1
ACCEPTED = 2
LAYERS, ROW_BYTES, HIDDEN_SIZE = 61, 1152, 4096
SHAPES: Mapping[str, tuple[dict[str, int], ...]] = {
    "cpu": ({"bs": 1, "num_draft_tokens": 4},),
    "cuda": tuple({"bs": bs, "num_draft_tokens": ndt} for ndt in (4, 32) for bs in (1, 16, 64, 256)),
}
CHECKED = ("new_seq_lens", "bonus_tokens")


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """The tensors of a step. `built` is the tree that is built, `walked` another one of the same shape, of which two
    drafts are accepted.
    """

    built: Case
    walked: Case
    tensors: Tensors
    buffers: list[torch.Tensor]
    is_chain: bool


def make_step(shape: Mapping[str, int], device: str) -> VerifyStep:
    logits = {**shape, "accepted": ACCEPTED, "logit_bits": 32}
    walked = verify_logits_greedy.make_case(logits, device)
    bs, ndt, width = shape["bs"], shape["num_draft_tokens"], walked.sizes["accept_width"]
    is_chain = walked.sizes["topk"] == 1
    name = "build_chain_tree" if is_chain else "build_tree"
    tree = {"topk": 1, "num_steps": ndt - 1} if is_chain else {"topk": 4, "num_steps": 6, "tree_mask_mode": QLEN_ONLY}
    built = make_case(f"{name}_and_cache_locs", {"bs": bs, "num_draft_tokens": ndt, "page_size": 64, **tree}, device)
    op, fused = KERNELS["verify_logits_greedy"], KERNELS[f"{name}_and_cache_locs"]
    outputs = op.allocate_outputs(walked, device)
    first = torch.arange(bs, device=device) * ndt
    num_slots = 1 + max(bs * ndt, int(built.tensors["req_to_token"].max()))
    num_moves = bs * (ACCEPTED + 1)
    source = torch.zeros(bs * width, dtype=torch.int64, device=device)
    source[:num_moves] = 1 + torch.randperm(num_slots - 1, device=device)[:num_moves]
    hidden_size = HIDDEN_SIZE if device == "cuda" else 8
    tensors = {
        **{f"tree {name}": tensor for name, tensor in (built.tensors | fused.allocate_outputs(built, device)).items()},
        **walked.tensors,
        **outputs,
        "bonus": walked.tensors["candidates"][:, 0].to(torch.int32).contiguous(),
        "drafts": walked.tensors["candidates"][:, 1:].contiguous(),
        "counted from": torch.stack([torch.full_like(first, -1), first - 1]),
        "continued": torch.empty((2, bs), dtype=torch.int64, device=device),
        "nodes": torch.empty((bs, ndt), dtype=torch.int64, device=device),
        "hidden_states": torch.ones((bs * ndt, hidden_size), dtype=torch.bfloat16, device=device),
        "compacted_hidden_states": torch.empty((bs * ndt, hidden_size), dtype=torch.bfloat16, device=device),
        "compacted_predict": torch.empty(bs * ndt, dtype=torch.int32, device=device),
        "moved to": torch.empty(bs * width, dtype=torch.int64, device=device),
        "moved from": torch.empty(bs * width, dtype=torch.int64, device=device),
        "KV from": source,
    }
    layers = LAYERS if device == "cuda" else 2
    pool = torch.zeros((0 if is_chain else layers, num_slots, ROW_BYTES), dtype=torch.uint8, device=device)
    return VerifyStep(built, walked, tensors, list(pool), is_chain)


def peers(step: VerifyStep, lifted: LiftedPeers) -> list[KernelPeer]:
    """specsim, and the pipeline of each release whose kernels differ from those of the ones before."""
    found = [KernelPeer(OURS, lambda _case, _tensors: _ours(step))]
    seen: dict[tuple[str, ...], list[str]] = {}
    pipelines: dict[tuple[str, ...], Callable[[], Call | NotRun]] = {}
    for label in dict.fromkeys(label for each in lifted.peers.values() for label, _ in each):
        kernels = {op: peer for op, each in lifted.peers.items() for owner, peer in each if owner == label}
        is_short = step.is_chain and "build_chain_tree_and_cache_locs" in kernels
        if is_short:
            needed: tuple[str, ...] = ("build_chain_tree_and_cache_locs", "verify_commit_outputs")
        else:
            needed = ("assign_extend_cache_locs", "fill_bonus_tokens")
            needed += () if step.is_chain else ("fill_accept_out_cache_loc", "move_kv")
        code = tuple(kernels[op].code if op in kernels else "" for op in needed)
        seen.setdefault(code, []).append(label)
        pipelines[code] = partial(_short if is_short else _long, step, kernels, needed)
    return found + [
        KernelPeer(f"{', '.join(labels)}, as launched", lambda _case, _tensors, make=pipelines[code]: make())  # type: ignore[misc]
        for code, labels in seen.items()
    ]


def _ours(step: VerifyStep) -> Call:
    from specsim import kernels

    t, sizes = step.tensors, step.walked.sizes
    name = "build_chain_tree_and_cache_locs" if step.is_chain else "build_tree_and_cache_locs"
    fused, walk = KERNELS[name], KERNELS["verify_logits_greedy"]
    build = {arg.name: step.built.sizes[arg.name] for arg in fused.args if arg.name in step.built.sizes}
    build |= {arg.name: t[f"tree {arg.name}"] for arg in fused.tensor_args}  # type: ignore[misc]
    verify = {arg.name: t[arg.name] for arg in walk.tensor_args}
    make_tree: Callable[..., None] = getattr(kernels, name)
    pool = None if step.is_chain else kernels.kv_buffers(step.buffers)

    def run() -> Tensors:
        if not step.is_chain:
            torch.cat((t["bonus"][:, None], t["drafts"]), dim=1, out=t["nodes"])
        make_tree(**build)
        kernels.verify_logits_greedy(**verify, num_steps=sizes["num_steps"])
        torch.add(t["counted from"], t["accept_lens"], out=t["continued"])
        if pool is not None:
            kernels.compact_accepted_path(
                t["accept_index"],
                t["accept_lens"],
                t["out_cache_loc"],
                t["predicts"],
                t["hidden_states"],
                t["moved to"],
                t["moved from"],
                t["compacted_predict"],
                t["compacted_hidden_states"],
                sizes["num_draft_tokens"],
            )
            # The walked path is its tree's first nodes, whose KV is in place: as many other rows move as in a peer.
            kernels.move_kv_of_buffers(pool, t["moved to"], t["KV from"])
        return {name: t[name] for name in CHECKED}

    return run


def _operations(
    step: VerifyStep, kernels: Mapping[str, LiftedPeer], needed: tuple[str, ...]
) -> tuple[Any, Any] | NotRun:
    """The CUDA operations that build a tree and walk it, or what is missing."""
    absent = [op for op in needed if op not in kernels]
    if absent:
        return NotRun(NAME, f"{', '.join(absent)} could not be lifted")
    device = step.tensors["logits"].device
    build, walk = (sgl_kernel_operation(n, device) for n in ("build_tree_kernel_efficient", "verify_tree_greedy"))
    return next((found for found in (build, walk) if isinstance(found, NotRun)), (build, walk))


def _walked(step: VerifyStep, walk: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """predicts, accept_index and accept_lens: five launches."""
    t, sizes = step.tensors, step.walked.sizes
    bs, ndt = t["candidates"].shape
    device = t["logits"].device
    predicts = torch.zeros(bs * ndt, dtype=torch.int32, device=device)
    accept_index = torch.full((bs, sizes["accept_width"]), -1, dtype=torch.int32, device=device)
    accepted = torch.empty(bs, dtype=torch.int32, device=device)
    target = t["logits"].argmax(dim=-1).view(bs, ndt)
    walk(predicts, accept_index, accepted, t["candidates"], *(t[name] for name in LINKS), target)
    return predicts, accept_index, accepted + 1


def _short(step: VerifyStep, kernels: Mapping[str, LiftedPeer], needed: tuple[str, ...]) -> Call | NotRun:
    operations = _operations(step, kernels, needed)
    if isinstance(operations, NotRun):
        return operations
    t, ndt, walk = step.tensors, step.walked.sizes["num_draft_tokens"], operations[1]
    tree = [t[f"tree {name}"] for name in ("bonus_tokens", "draft_tokens", "verified_seq_len", "tree_mask")]
    tree += [t[f"tree {name}"] for name in ("req_pool_indices", "req_to_token")]
    build, commit = (kernels[name].value for name in needed)

    def run() -> Tensors:
        build(*tree)
        predicts, accept_index, accept_lens = _walked(step, walk)
        new_seq_lens, bonus, *_more = commit(predicts, accept_index, accept_lens, t["seq_lens"], ndt)
        return {"new_seq_lens": new_seq_lens, "bonus_tokens": bonus}

    return run


def _long(step: VerifyStep, kernels: Mapping[str, LiftedPeer], needed: tuple[str, ...]) -> Call | NotRun:
    operations = _operations(step, kernels, needed)
    if isinstance(operations, NotRun):
        return operations
    t, sizes, built = step.tensors, step.walked.sizes, step.built.sizes
    bs, ndt = t["candidates"].shape
    width, device = sizes["accept_width"], t["logits"].device
    lens, table, rows = (t[f"tree {name}"] for name in ("verified_seq_len", "req_to_token", "req_pool_indices"))
    build, walk = operations
    find, fill = (kernels[name].value for name in needed[:2])
    upper = 1 << (bs - 1).bit_length()
    # What a release without a kernel for chains builds is the same tree from lists of parents.
    parents = t.get("tree parent_list", torch.arange(-1, ndt - 2, device=device).repeat(bs, 1))
    selected = t.get("tree selected_index", torch.arange(ndt - 1, device=device).repeat(bs, 1))
    layers = THEIRS.layers_of(step.buffers, device)

    def run() -> Tensors:
        torch.cat((t["bonus"][:, None], t["drafts"]), dim=1)
        mask = torch.full((bs * ndt * ndt,), True, device=device)
        links = torch.full((3, bs, ndt), -1, dtype=torch.int64, device=device)
        positions = torch.empty(bs * ndt, dtype=torch.int64, device=device)
        build(parents, selected, lens, mask, positions, *links, built["topk"], built["num_steps"], ndt, QLEN_ONLY)
        slots = torch.empty(bs * ndt, dtype=torch.int64, device=device)
        find[(bs,)](rows, table, lens, lens + ndt, slots, table.shape[1], upper)
        predicts, accept_index, accept_lens = _walked(step, walk)
        new_seq_lens = t["seq_lens"] + accept_lens
        bonus = torch.empty(bs, dtype=torch.int32, device=device)
        fill[(bs,)](predicts[accept_index], accept_lens, bonus, width)
        torch.arange(bs, device=device).mul_(ndt).add_(accept_lens).sub_(1)
        drafts = accept_lens - 1
        if not step.is_chain:
            moved_to = torch.zeros(bs * width, dtype=torch.int64, device=device)
            moved_from = torch.zeros(bs * width, dtype=torch.int64, device=device)
            ends = lens + drafts
            find[(bs,)](rows, table, lens, ends + 1, moved_to, table.shape[1], upper)
            collect = kernels["fill_accept_out_cache_loc"].value
            collect[(bs * width,)](accept_index, t["out_cache_loc"], moved_from, 1 << (bs * width - 1).bit_length())
            THEIRS.copy_layers(kernels["move_kv"].value, layers, moved_to, moved_from)
            is_node = accept_index >= 0
            node = torch.where(is_node, accept_index, 0)
            compacted = predicts.clone()
            compacted.view(bs, ndt)[:, :width] = predicts[node]
            states = t["hidden_states"].clone().view(bs, ndt, -1)
            states[:, :width] = torch.where(is_node[:, :, None], t["hidden_states"][node], states[:, :width])
        return {"new_seq_lens": new_seq_lens, "bonus_tokens": bonus}

    return run
