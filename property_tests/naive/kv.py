"""`specsim.reference.kv` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference.kv import CompactedPath, DraftCacheLocs, DraftKvIndices


def alloc_extend_naive(
    prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, page_size: int
) -> Tensor:
    """`alloc_extend`, one token at a time."""
    pages, slots = iter(free_pages.tolist()), []
    for prefix_len, seq_len, slot in zip(prefix_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True):
        for position in range(prefix_len, seq_len):
            slot = next(pages) * page_size if position % page_size == 0 else slot + 1  # noqa: PLW2901
            slots.append(slot)
    return torch.tensor(slots, dtype=torch.int64, device=free_pages.device)


def alloc_decode_naive(seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, page_size: int) -> Tensor:
    """`alloc_decode`, one request at a time."""
    pages, slots = free_pages.tolist(), []
    for seq_len, slot in zip(seq_lens.tolist(), last_loc.tolist(), strict=True):
        if seq_len % page_size == 1 % page_size:
            slots.append(pages.pop(0) * page_size)
        else:
            slots.append(slot + 1)
    return torch.tensor(slots, dtype=torch.int64, device=free_pages.device)


def get_last_loc_naive(req_to_token: Tensor, req_pool_indices: Tensor, prefix_lens: Tensor) -> Tensor:
    """`get_last_loc`, one request at a time."""
    table, slots = req_to_token.tolist(), []
    for row, prefix_len in zip(req_pool_indices.tolist(), prefix_lens.tolist(), strict=True):
        slots.append(table[row][prefix_len - 1] if prefix_len else -1)
    return torch.tensor(slots, dtype=torch.int64, device=req_to_token.device)


def draft_cache_locs_paged_naive(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, topk: int, num_steps: int, page_size: int
) -> DraftCacheLocs:
    """`draft_cache_locs_paged`, one slot at a time."""
    table = req_to_token.tolist()
    slots, targets, sources = [], [], []
    for row, seq_len in zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True):
        page_start = seq_len - seq_len % page_size
        branch_start = page_start  # of the branch's first page
        for branch in range(topk):
            end = branch_start + seq_len % page_size
            for offset in range(seq_len % page_size if branch else 0):
                targets.append(table[row][branch_start + offset])
                sources.append(table[row][page_start + offset])
            for _ in range(num_steps):
                slots.append(table[row][end])
                end += 1
            branch_start = end
            while (branch_start - page_start) % page_size:
                branch_start += 1
    device = req_to_token.device
    return DraftCacheLocs(
        out_cache_loc=torch.tensor(slots, dtype=torch.int64, device=device),
        target=torch.tensor(targets, dtype=torch.int64, device=device),
        source=torch.tensor(sources, dtype=torch.int64, device=device),
    )


def generate_draft_decode_kv_indices_naive(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, topk: int, num_steps: int, page_size: int
) -> DraftKvIndices:
    """`generate_draft_decode_kv_indices`, one branch at a time."""
    rows, lens = req_pool_indices.tolist(), seq_lens.tolist()
    table = req_to_token.tolist()
    num_kv = topk * (sum(lens) + len(lens) * num_steps)
    indptr, indices = [], []
    for step in range(num_steps):
        bounds, entries = [0], []
        for row, seq_len in zip(rows, lens, strict=True):
            pages = (seq_len % page_size + num_steps + page_size - 1) // page_size
            for branch in range(topk):
                start = seq_len // page_size * page_size + branch * pages * page_size + seq_len % page_size
                entries += table[row][:seq_len] + table[row][start : start + step + 1]
                bounds.append(len(entries))
        indptr.append(bounds)
        indices.append(entries + [0] * (num_kv - len(entries)))
    device = req_to_token.device
    return DraftKvIndices(
        kv_indptr=torch.tensor(indptr, dtype=torch.int32, device=device),
        kv_indices=torch.tensor(indices, dtype=torch.int64, device=device).view(num_steps, num_kv),
    )


def fill_accept_out_cache_loc_naive(accept_index: Tensor, out_cache_loc: Tensor) -> Tensor:
    """`fill_accept_out_cache_loc`, one node at a time."""
    slots, accepted = out_cache_loc.tolist(), []
    for node in accept_index.flatten().tolist():
        if node != -1:
            accepted.append(slots[node])  # noqa: PERF401
    accepted += [0] * (accept_index.numel() - len(accepted))
    return torch.tensor(accepted, dtype=torch.int64, device=out_cache_loc.device)


def compact_accepted_path_naive(
    accept_index: Tensor,
    accept_lens: Tensor,
    out_cache_loc: Tensor,
    predict: Tensor,
    hidden_states: Tensor,
    num_draft_tokens: int,
) -> CompactedPath:
    """`compact_accepted_path`, one node at a time."""
    slots, tokens = out_cache_loc.tolist(), predict.tolist()
    rows = list(hidden_states.clone().unbind(0))
    targets, sources, compacted_tokens, compacted_rows = [], [], list(tokens), list(rows)
    for b, (path, accept_len) in enumerate(zip(accept_index.tolist(), accept_lens.tolist(), strict=True)):
        for j in range(accept_len):
            place = b * num_draft_tokens + j
            targets.append(slots[place])
            sources.append(slots[path[j]])
            compacted_tokens[place] = tokens[path[j]]
            compacted_rows[place] = rows[path[j]]
    padding = [0] * (accept_index.numel() - len(targets))
    device = out_cache_loc.device
    return CompactedPath(
        target=torch.tensor(targets + padding, dtype=torch.int64, device=device),
        source=torch.tensor(sources + padding, dtype=torch.int64, device=device),
        compacted_predict=torch.tensor(compacted_tokens, dtype=torch.int32, device=device),
        compacted_hidden_states=torch.stack(compacted_rows) if compacted_rows else hidden_states.clone(),
    )


def move_kv_naive(buffer: Tensor, target: Tensor, source: Tensor) -> None:
    """`move_kv`, one row at a time."""
    before = buffer.clone()
    for to_slot, from_slot in zip(target.tolist(), source.tolist(), strict=True):
        for element in range(buffer.shape[1]):
            buffer[to_slot, element] = before[from_slot, element]


def align_evict_mask_to_page_size_naive(
    seq_lens: Tensor, evict_mask: Tensor, page_size: int, num_draft_tokens: int
) -> None:
    """`align_evict_mask_to_page_size`, one node at a time."""
    for b, seq_len in enumerate(seq_lens.tolist()):
        nodes = range(b * num_draft_tokens, (b + 1) * num_draft_tokens)
        end = seq_len + sum(not bool(evict_mask[node]) for node in nodes)
        page_start = end - 1
        while page_start % page_size:
            page_start -= 1
        for position in range(page_start, page_start + page_size):
            if seq_len <= position < seq_len + num_draft_tokens:
                evict_mask[nodes[position - seq_len]] = False
