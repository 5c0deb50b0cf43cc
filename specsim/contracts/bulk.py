"""What the bulk generators of several families draw: lengths, trees, paths and page tables.

Everything is batched over requests and made on the device of the case numbers; request b depends on `ids[b]` alone
(see `specsim.contracts.counter_rng`). Corners come up on purpose: lengths beside the start of a page, accepted paths of
no, all and any drafts, chains, bushes and everything between, more and fewer nodes than an accepted path is wide.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.contracts import counter_rng
from specsim.contracts.contract import Sizes

TOKENS_START = 2**17
"""Token ids lie above the vocabularies of old models, and in the range of no index."""

FULL_PAGES_MAX = 2

NEWEST_OPEN = 2
"""Of so many of the newest nodes that can have children, a node of a deep tree is the child of one."""


def seq_lens(ids: Tensor, what: str, page_size: int) -> Tensor:
    """Lengths [n] at, one before and one after the start of a page, among them 0 and 1."""
    pages = counter_rng.below(ids, f"{what}: pages", FULL_PAGES_MAX + 1)
    beside = counter_rng.below(ids, f"{what}: beside the page boundary", 3) - 1
    return (pages * page_size + beside).clamp(min=0)


class BulkTrees(NamedTuple):
    """A tree for each request, parents before children.

    parents       [n, ndt] int64: the parent of each node, -1 for the root
    depths        [n, ndt] int64
    first_child   [n, ndt] int64: -1 if there is none
    next_sibling  [n, ndt] int64: the next node with the same parent; -1 if it is the last
    """

    parents: Tensor
    depths: Tensor
    first_child: Tensor
    next_sibling: Tensor


def trees(ids: Tensor, shape: Sizes) -> BulkTrees:
    """Trees of `num_draft_tokens` nodes, none deeper than `num_steps`, none with more than `topk` children.

    Every node becomes the child of a node before it that is open: neither too deep nor full. Half the requests take one
    of the two newest (deep trees), the others any (bushes). All four tensors are views of [ndt, n], in which memory
    what a node is given lies together.
    """
    topk, num_steps, ndt = shape["topk"], shape["num_steps"], shape["num_draft_tokens"]
    n, device = ids.shape[0], ids.device
    draws = counter_rng.words_by_column(ids, "place of a node", ndt) >> 32  # [ndt, n], below 2^31
    newest = torch.where(counter_rng.below(ids, "deep tree", 2) == 1, NEWEST_OPEN, ndt)  # [n]
    parents = torch.full((ndt, n), -1, dtype=torch.int64, device=device)
    depths = torch.zeros((ndt, n), dtype=torch.int64, device=device)
    room = torch.full((ndt, n), topk, dtype=torch.int64, device=device)  # children that each node may still get
    open_nodes = torch.zeros((ndt, n), dtype=torch.int64, device=device)  # the root, at the front
    num_open = torch.ones((1, n), dtype=torch.int64, device=device)
    for node in range(1, ndt):
        last = num_open - 1
        place = last - ((draws[node] * torch.minimum(num_open, newest)) >> 31)  # [1, n]
        parent = parents[node : node + 1]
        torch.gather(open_nodes, 0, place, out=parent)
        left = room.gather(0, parent) - 1
        room.scatter_(0, parent, left)
        is_full = left == 0
        open_nodes.scatter_(0, place, torch.where(is_full, open_nodes.gather(0, last), parent))
        depth = depths[node : node + 1]
        torch.add(depths.gather(0, parent), 1, out=depth)
        num_open = torch.where(is_full, last, num_open)
        open_nodes.scatter_(0, num_open, node)
        num_open = torch.where(depth < num_steps, num_open + 1, num_open)
    first_child, next_sibling = torch.full_like(parents, -1), torch.full_like(parents, -1)
    for node in range(ndt - 1, 0, -1):  # siblings in ascending order
        parent = parents[node : node + 1]
        torch.gather(first_child, 0, parent, out=next_sibling[node : node + 1])
        first_child.scatter_(0, parent, node)
    return BulkTrees(parents.t(), depths.t(), first_child.t(), next_sibling.t())


def last_accepted(ids: Tensor, depths: Tensor) -> Tensor:
    """The node [n] at which a walk is to end: the root, the deepest, or any."""
    deepest = depths.argmax(dim=1)
    anywhere = counter_rng.below(ids, "last accepted node", depths.shape[1])
    kind = counter_rng.below(ids, "where the walk ends", 4)
    return torch.where(kind == 0, 0, torch.where(kind == 1, deepest, anywhere))


def accepted_paths(ids: Tensor, shape: Sizes) -> tuple[Tensor, Tensor]:
    """`accept_index` [n, num_steps + 1] int32, ascending nodes from the root as numbers in the batch, then -1; and
    `accept_lens` [n] int32: 1, as long as it can be, or any.
    """
    width, ndt = shape["num_steps"] + 1, shape["num_draft_tokens"]
    longest = min(width, ndt)
    kind = counter_rng.below(ids, "accept length", 3)
    any_len = 1 + counter_rng.below(ids, "any accept length", longest)
    accept_lens = torch.where(kind == 0, 1, torch.where(kind == 1, longest, any_len))  # [n]
    keys = counter_rng.words(ids, "accepted nodes", ndt - 1)  # [n, ndt - 1]
    column = torch.arange(width, device=ids.device)  # [width]
    drafts = keys.argsort(dim=1)[:, : longest - 1] + 1  # [n, longest - 1]: in no order
    unwanted = column[: longest - 1] >= accept_lens[:, None] - 1
    path = torch.where(unwanted, ndt, drafts).sort(dim=1).values  # [n, longest - 1]
    nodes = torch.zeros((ids.shape[0], width), dtype=torch.int64, device=ids.device)
    nodes[:, 1:longest] = path
    number = torch.arange(ids.shape[0], device=ids.device)[:, None] * ndt + nodes
    return torch.where(column < accept_lens[:, None], number, -1).to(torch.int32), accept_lens.to(torch.int32)


def rows(ids: Tensor) -> Tensor:
    """Rows [n] int64 of a table, in any order without duplicates; row 0, the padding sink, is nobody's."""
    return 1 + counter_rng.words(ids, "row").argsort()


def page_table(ids: Tensor, columns: int, page_size: int) -> tuple[Tensor, Tensor]:
    """Rows [n] int64, in any order without duplicates, of a table [1 + n, columns] int32 whose slots all differ.

    Row 0 is the padding sink and nobody's. The pages of a row lie apart, in an order that differs from request to
    request; slots below `page_size` are in no row.
    """
    n, device = ids.shape[0], ids.device
    in_any_order = rows(ids)
    row_pages = -(-columns // page_size)
    order = counter_rng.words(ids, "order of the pages", row_pages).argsort(dim=1)  # [n, row_pages]
    pages = torch.empty((1 + n, row_pages), dtype=torch.int64, device=device)
    pages[0] = torch.arange(row_pages, device=device) * (n + 1)
    pages[in_any_order] = order * (n + 1) + in_any_order[:, None]
    slots = (1 + pages)[:, :, None] * page_size + torch.arange(page_size, device=device)
    table = slots.view(1 + n, row_pages * page_size)[:, :columns].to(torch.int32)
    return in_any_order, table.contiguous()


def distinct(ids: Tensor, what: str, columns: int) -> Tensor:
    """The numbers from 0 to n * columns - 1, each once, in no order [n, columns] int64: slots or pages of a batch."""
    order = counter_rng.words(ids, what, columns).flatten().argsort()  # [n * columns]
    return order.view(ids.shape[0], columns)
