"""What the bulk generators of several families draw: lengths, trees, paths and page tables.

Everything is batched over requests and made on the device of the case numbers; request b depends on `ids[b]` alone
(see `specsim.ops.counter`). Corners come up on purpose: lengths beside the start of a page, accepted paths of no, all
and any drafts, chains, bushes and everything between, more and fewer nodes than an accepted path is wide.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.ops import counter
from specsim.ops.contract import Sizes

TOKENS_START = 2**17
"""Token ids lie above the vocabularies of old models, and in the range of no index."""

FULL_PAGES_MAX = 2


def seq_lens(ids: Tensor, what: str, page_size: int) -> Tensor:
    """Lengths [n] at, one before and one after the start of a page, among them 0 and 1."""
    pages = counter.below(ids, f"{what}: pages", FULL_PAGES_MAX + 1)
    beside = counter.below(ids, f"{what}: beside the page boundary", 3) - 1
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

    Every node takes one of the open places under the nodes before it: half the requests mostly the newest (deep
    trees), the others any (bushes).
    """
    topk, num_steps, ndt = shape["topk"], shape["num_steps"], shape["num_draft_tokens"]
    n, device = ids.shape[0], ids.device
    request = torch.arange(n, device=device)  # [n]
    draws = counter.words(ids, "place of a node", ndt)  # [n, ndt]
    grows_deep = counter.below(ids, "deep tree", 2) == 1  # [n]
    parents = torch.full((n, ndt), -1, dtype=torch.int64, device=device)
    depths = torch.zeros((n, ndt), dtype=torch.int64, device=device)
    places = torch.zeros((n, ndt * topk + topk), dtype=torch.int64, device=device)  # whose child a node would be
    num_places = torch.full_like(request, topk)  # the root's, at the front
    newest = torch.arange(topk, device=device)
    for node in range(1, ndt):
        back = torch.where(grows_deep, num_places.clamp(max=topk), num_places)
        place = num_places - 1 - draws[:, node] % back  # [n]
        parent = places[request, place]
        num_places -= 1
        places[request, place] = places[request, num_places]
        parents[:, node] = parent
        depth = depths[request, parent] + 1
        depths[:, node] = depth
        places[request[:, None], num_places[:, None] + newest] = node
        num_places += torch.where(depth < num_steps, topk, 0)
    return BulkTrees(parents, depths, *_links(parents))


def _links(parents: Tensor) -> tuple[Tensor, Tensor]:
    """`first_child` and `next_sibling`, siblings in ascending order."""
    request = torch.arange(parents.shape[0], device=parents.device)
    first_child, next_sibling = torch.full_like(parents, -1), torch.full_like(parents, -1)
    for node in range(parents.shape[1] - 1, 0, -1):
        parent = parents[:, node]
        next_sibling[:, node] = first_child[request, parent]
        first_child[request, parent] = node
    return first_child, next_sibling


def last_accepted(ids: Tensor, depths: Tensor) -> Tensor:
    """The node [n] at which a walk is to end: the root, the deepest, or any."""
    deepest = depths.argmax(dim=1)
    anywhere = counter.below(ids, "last accepted node", depths.shape[1])
    kind = counter.below(ids, "where the walk ends", 4)
    return torch.where(kind == 0, 0, torch.where(kind == 1, deepest, anywhere))


def accepted_paths(ids: Tensor, shape: Sizes) -> tuple[Tensor, Tensor]:
    """`accept_index` [n, num_steps + 1] int32, ascending nodes from the root as numbers in the batch, then -1; and
    `accept_lens` [n] int32: 1, as long as it can be, or any.
    """
    width, ndt = shape["num_steps"] + 1, shape["num_draft_tokens"]
    longest = min(width, ndt)
    kind = counter.below(ids, "accept length", 3)
    any_len = 1 + counter.below(ids, "any accept length", longest)
    accept_lens = torch.where(kind == 0, 1, torch.where(kind == 1, longest, any_len))  # [n]
    keys = counter.words(ids, "accepted nodes", ndt - 1)  # [n, ndt - 1]
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
    return 1 + counter.words(ids, "row").argsort()


def page_table(ids: Tensor, columns: int, page_size: int) -> tuple[Tensor, Tensor]:
    """Rows [n] int64, in any order without duplicates, of a table [1 + n, columns] int32 whose slots all differ.

    Row 0 is the padding sink and nobody's. The pages of a row lie apart, in an order that differs from request to
    request; slots below `page_size` are in no row.
    """
    n, device = ids.shape[0], ids.device
    in_any_order = rows(ids)
    row_pages = -(-columns // page_size)
    order = counter.words(ids, "order of the pages", row_pages).argsort(dim=1)  # [n, row_pages]
    pages = torch.empty((1 + n, row_pages), dtype=torch.int64, device=device)
    pages[0] = torch.arange(row_pages, device=device) * (n + 1)
    pages[in_any_order] = order * (n + 1) + in_any_order[:, None]
    slots = (1 + pages)[:, :, None] * page_size + torch.arange(page_size, device=device)
    table = slots.view(1 + n, row_pages * page_size)[:, :columns].to(torch.int32)
    return in_any_order, table.contiguous()


def distinct(ids: Tensor, what: str, columns: int) -> Tensor:
    """The numbers from 0 to n * columns - 1, each once, in no order [n, columns] int64: slots or pages of a batch."""
    order = counter.words(ids, what, columns).flatten().argsort()  # [n * columns]
    return order.view(ids.shape[0], columns)
