"""What the cases of several families are made of: lengths, trees, accepted paths and page tables.

Everything is batched over requests and made on the device of the draws. Corners come up on purpose: lengths beside the
start of a page, accepted paths of no, all and any drafts, chains, bushes and everything between, more and fewer nodes
than an accepted path is wide.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.contract import Sizes
from specsim.contracts.draws import Draws

TOKENS_START = 2**17
"""Token ids lie above the vocabularies of old models, and in the range of no index."""

TOPK_MAX = 8
NUM_STEPS_MAX = 6
NUM_DRAFT_TOKENS_MAX = 64
PAGE_SIZES = (1, 4, 16, 64)

FULL_PAGES_MAX = 2
SPARE_ROWS_MAX, SPARE_COLUMNS_MAX = 3, 5

NEWEST_OPEN = 2
"""Of so many of the newest nodes that can have children, a node of a deep tree is the child of one."""


def draw_shape(chooser: Chooser, num_steps_max: int = NUM_STEPS_MAX) -> dict[str, int]:
    """How large the trees of a batch may be. topk 1 gives chains, whose node count is forced to the width of the
    accepted path; wider trees get fewer, as many, or more nodes than that.
    """
    topk = between(chooser, 1, TOPK_MAX, "topk")
    num_steps = between(chooser, 1, num_steps_max, "num_steps")
    width = num_steps + 1
    if topk == 1:
        return {"topk": topk, "num_steps": num_steps, "num_draft_tokens": width}
    most = min(NUM_DRAFT_TOKENS_MAX, 1 + topk + (num_steps - 1) * topk**2)
    kind = pick(chooser, ("width", "fewer", "one more", "more", "most"), "num_draft_tokens against accept_width")
    if kind == "fewer":
        num_draft_tokens = between(chooser, 2, max(2, width - 1), "num_draft_tokens")
    elif kind == "more":
        num_draft_tokens = between(chooser, width + 1, most, "num_draft_tokens")
    else:
        num_draft_tokens = {"width": width, "one more": width + 1, "most": most}[kind]
    return {"topk": topk, "num_steps": num_steps, "num_draft_tokens": num_draft_tokens}


def draw_paged_shape(chooser: Chooser) -> dict[str, int]:
    """The same, and a page size."""
    return {**draw_shape(chooser), "page_size": pick(chooser, PAGE_SIZES, "page_size")}


def draw_chain_shape(chooser: Chooser) -> dict[str, int]:
    """How long the chains of a batch are."""
    num_steps = between(chooser, 1, NUM_STEPS_MAX, "num_steps")
    return {"topk": 1, "num_steps": num_steps, "num_draft_tokens": num_steps + 1}


def seq_lens(draws: Draws, what: str, page_size: int) -> Tensor:
    """Lengths [n] at, one before and one after the start of a page, among them 0 and 1."""
    pages = draws.below(f"{what}: pages", FULL_PAGES_MAX + 1)
    beside = draws.below(f"{what}: beside the page boundary", 3) - 1
    return (pages * page_size + beside).clamp(min=0)


class Trees(NamedTuple):
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


def trees(draws: Draws, shape: Sizes) -> Trees:
    """Trees of `num_draft_tokens` nodes, none deeper than `num_steps`, none with more than `topk` children.

    Every node becomes the child of a node before it that is open: neither too deep nor full. Half the requests take one
    of the two newest (deep trees), the others any (bushes). All four tensors are views of [ndt, n], in which memory
    what a node is given lies together.
    """
    topk, num_steps, ndt = shape["topk"], shape["num_steps"], shape["num_draft_tokens"]
    n, device = draws.count, draws.device
    places = draws.fractions("place of a node", ndt)  # [ndt, n], multiples of 2^-31
    newest = torch.where(draws.below("deep tree", 2) == 1, NEWEST_OPEN, ndt)  # [n]
    parents = torch.full((ndt, n), -1, dtype=torch.int64, device=device)
    depths = torch.zeros((ndt, n), dtype=torch.int64, device=device)
    room = torch.full((ndt, n), topk, dtype=torch.int64, device=device)  # children that each node may still get
    open_nodes = torch.zeros((ndt, n), dtype=torch.int64, device=device)  # the root, at the front
    num_open = torch.ones((1, n), dtype=torch.int64, device=device)
    for node in range(1, ndt):
        last = num_open - 1
        place = last - ((places[node] * torch.minimum(num_open, newest)) >> 31)  # [1, n]
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
    return Trees(parents.t(), depths.t(), first_child.t(), next_sibling.t())


def last_accepted(draws: Draws, depths: Tensor) -> Tensor:
    """The node [n] at which a walk is to end: the root, the deepest, or any."""
    deepest = depths.argmax(dim=1)
    anywhere = draws.below("last accepted node", depths.shape[1])
    kind = draws.below("where the walk ends", 4)
    return torch.where(kind == 0, 0, torch.where(kind == 1, deepest, anywhere))


def accepted_paths(draws: Draws, shape: Sizes) -> tuple[Tensor, Tensor]:
    """`accept_index` [n, num_steps + 1] int32, ascending nodes from the root as numbers in the batch, then -1; and
    `accept_lens` [n] int32: 1, as long as it can be, or any.
    """
    width, ndt = shape["num_steps"] + 1, shape["num_draft_tokens"]
    longest = min(width, ndt)
    kind = draws.below("accept length", 3)
    any_len = 1 + draws.below("any accept length", longest)
    accept_lens = torch.where(kind == 0, 1, torch.where(kind == 1, longest, any_len))  # [n]
    column = torch.arange(width, device=draws.device)  # [width]
    drafts = 1 + draws.order("accepted nodes", ndt - 1)[:, : longest - 1]  # [n, longest - 1]: in no order
    unwanted = column[: longest - 1] >= accept_lens[:, None] - 1
    path = torch.where(unwanted, ndt, drafts).sort(dim=1).values  # [n, longest - 1]
    nodes = torch.zeros((draws.count, width), dtype=torch.int64, device=draws.device)
    nodes[:, 1:longest] = path
    number = torch.arange(draws.count, device=draws.device)[:, None] * ndt + nodes
    return torch.where(column < accept_lens[:, None], number, -1).to(torch.int32), accept_lens.to(torch.int32)


def rows(draws: Draws) -> Tensor:
    """Rows [n] int64 of a table, in any order without duplicates; row 0, the padding sink, is nobody's."""
    return 1 + draws.order_of_all("row")[:, 0]


def page_table(draws: Draws, ends: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """Rows [n] int64, in any order without duplicates, of a table [pool_rows, pool_len] int32 whose slots all differ
    and whose rows have columns up to the last of `ends` [n], and perhaps some to spare.

    Row 0 is the padding sink and nobody's; there may be more of nobody's. The pages of a row lie apart, in an order
    that differs from request to request; slots below `page_size` are in no row.
    """
    n, device = draws.count, draws.device
    place = draws.order_of_all("row")[:, 0]
    spare_rows = draws.common("spare rows", SPARE_ROWS_MAX + 1)
    in_any_order = 1 + place + torch.where(place >= n // 2, spare_rows, 0)
    pool_rows = 1 + n + spare_rows
    columns = max(1, int(ends.max())) + draws.common("spare columns", SPARE_COLUMNS_MAX + 1)
    row_pages = -(-columns // page_size)
    row = torch.arange(pool_rows, device=device)[:, None]
    pages = torch.arange(row_pages, device=device) * pool_rows + row  # [pool_rows, row_pages]
    order = draws.order("order of the pages", row_pages)  # [n, row_pages]
    pages[in_any_order] = order * pool_rows + in_any_order[:, None]
    slots = (1 + pages)[:, :, None] * page_size + torch.arange(page_size, device=device)
    table = slots.view(pool_rows, row_pages * page_size)[:, :columns].to(torch.int32)
    return in_any_order, table.contiguous()


def page_table_sizes(table: Tensor) -> dict[str, int]:
    return {"pool_rows": table.shape[0], "pool_len": table.shape[1]}


def path_sizes(shape: Sizes, bs: int) -> dict[str, int]:
    """The sizes of a case with accepted paths."""
    return {**shape, "bs": bs, "accept_width": shape["num_steps"] + 1, "num_nodes": bs * shape["num_draft_tokens"]}


def node_tokens(draws: Draws, columns: int) -> Tensor:
    """Tokens [n, columns] int32 that differ from node to node."""
    return (TOKENS_START + draws.labels("token that follows a node", columns)).to(torch.int32)


def masks(parents: Tensor) -> Tensor:
    """Masks of ancestors [n, ndt, ndt] bool: a node sees what its parent sees, and itself."""
    n, ndt = parents.shape
    request = torch.arange(n, device=parents.device)
    mask = torch.eye(ndt, dtype=torch.bool, device=parents.device).repeat(n, 1, 1)
    for node in range(1, ndt):
        mask[:, node] |= mask[request, parents[:, node]]
    return mask
