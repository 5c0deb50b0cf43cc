"""KV memory: a step gets slots of its own, each branch attends to its own tokens, and accepted KV ends up in front."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given

from property_tests.naive.kv import (
    align_evict_mask_to_page_size_naive,
    draft_cache_locs_paged_naive,
)
from specsim.choices.chooser import replayed, seeded
from specsim.contracts import kv
from specsim.contracts.contract import Role, TensorArg
from specsim.contracts.hypothesis_cases import cases
from specsim.reference.cache_locs import assign_draft_cache_locs_contiguous
from specsim.reference.kv import (
    align_evict_mask_to_page_size,
    alloc_decode,
    alloc_extend,
    alloc_len_per_decode,
    compact_accepted_path,
    draft_cache_locs_paged,
    fill_accept_out_cache_loc,
    generate_draft_decode_kv_indices,
    get_last_loc,
    move_kv,
    row_width,
)
from specsim.reference.validation import unchecked

if TYPE_CHECKING:
    from specsim.contracts.contract import Case, Op, Tensors

OPS = {op.name: op for op in kv.OPS}
EXTEND = OPS["alloc_extend"]
DECODE = OPS["alloc_decode"]
LAST_LOC = OPS["get_last_loc"]
KV_INDICES = OPS["generate_draft_decode_kv_indices"]
FILL = OPS["fill_accept_out_cache_loc"]
COMPACT = OPS["compact_accepted_path"]
MOVE = OPS["move_kv"]

CHOICES_MAX = 400
STALE = 7_777_777

every_op = pytest.mark.parametrize("op", kv.OPS, ids=list(OPS))


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def narrow(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def table(columns: int, rows: int = 3) -> torch.Tensor:
    """A page table whose slot says where it stands: 1000 * row + column."""
    return (torch.arange(rows)[:, None] * 1000 + torch.arange(columns)).to(torch.int32)


def ceil_to_page(position: int, page_size: int) -> int:
    return -(-position // page_size) * page_size


def layout_of(case: Case) -> dict[str, Any]:
    """The arguments that the two operations of the draft's layout share."""
    return {**case.tensors, **{name: case.sizes[name] for name in ("topk", "num_steps", "page_size")}}


def some_requests(case: Case, which: list[int]) -> dict[str, Any]:
    """The arguments of a case with some of its requests, in the given order."""
    arguments = layout_of(case)
    return {
        name: value if name == "req_to_token" or isinstance(value, int) else value[which]
        for name, value in arguments.items()
    }


# Every operation: the batched reference and its naive implementation, and the generator


@every_op
def test_every_case_fits_its_contract_in_few_choices(op: Op) -> None:
    for index in range(200):
        chooser = seeded(0, op.name, index)
        case = op.generate(chooser)
        assert len(chooser.tape) < CHOICES_MAX
        for arg in op.args:
            if isinstance(arg, TensorArg) and arg.role is not Role.OUT:
                arg.check(case.tensors[arg.name], case.sizes)
                assert case.tensors[arg.name].is_contiguous()
        before = case.clone()
        expected = op.expected(case)
        assert all(torch.equal(case.tensors[name], tensor) for name, tensor in before.tensors.items())
        defined = op.defined(case, expected)
        assert all(defined[name].shape == tensor.shape for name, tensor in expected.items())
        assert any(bool(mask.any()) for mask in defined.values())


@every_op
def test_choosing_nothing_gives_the_simplest_case(op: Op) -> None:
    case = op.generate(replayed(()))
    assert case.sizes["bs"] == case.sizes["topk"] == case.sizes["num_steps"] == 1
    assert case.sizes["num_draft_tokens"] == 2
    assert case.sizes.get("page_size", 1) == 1


@every_op
def test_the_largest_choices_give_a_valid_case_too(op: Op) -> None:
    op.expected(op.generate(replayed([10**6] * CHOICES_MAX)))


def test_the_cases_reach_every_page_size_offset_path_length_and_padding() -> None:
    drafts = [KV_INDICES.generate(seeded(0, KV_INDICES.name, index)) for index in range(200)]
    seen = {
        (case.sizes["page_size"], int(seq_len) % case.sizes["page_size"])
        for case in drafts
        for seq_len in case.tensors["seq_lens"]
    }
    assert seen >= {(p, offset) for p in (4, 16, 64) for offset in (0, 1, p - 1)} | {(1, 0)}
    assert any(0 in case.tensors["req_pool_indices"] for case in drafts)
    paths = [COMPACT.generate(seeded(0, COMPACT.name, index)) for index in range(200)]
    assert {int(n) for case in paths for n in case.tensors["accept_lens"]} >= set(range(8))


# How much a step needs


@pytest.mark.parametrize(
    ("topk", "num_steps", "num_draft_tokens", "page_size", "alloc_len"),
    [
        *[(1, 3, 4, page_size, 4) for page_size in (1, 4, 16, 64)],
        (4, 3, 8, 1, 12),
        (4, 5, 8, 1, 20),
        (2, 3, 6, 4, 16),
        (4, 3, 8, 4, 32),
        (8, 5, 32, 16, 256),
    ],
)
def test_alloc_len_of_known_configurations(
    topk: int, num_steps: int, num_draft_tokens: int, page_size: int, alloc_len: int
) -> None:
    assert alloc_len_per_decode(num_steps, topk, num_draft_tokens, page_size) == alloc_len


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16])
def test_no_step_touches_a_position_beyond_its_allocation(page_size: int) -> None:
    """Exhaustive for every offset of the sequence in its page: the draft, its holes and whole pages of branches, and
    the verification, and some length reaches the allocation's last page.
    """
    for topk, num_steps, num_draft_tokens in itertools.product(range(1, 6), range(1, 7), (2, 7, 40)):
        alloc_len = alloc_len_per_decode(num_steps, topk, num_draft_tokens, page_size)
        seq_lens = torch.arange(2 * page_size)
        # every row maps a position to itself, so that slots are positions
        positions = torch.arange(2 * page_size + 2 * alloc_len, dtype=torch.int32).expand(2 * page_size, -1)
        rows = torch.arange(2 * page_size)
        locs = draft_cache_locs_paged(rows, positions, seq_lens, topk, num_steps, page_size)
        drafted = locs.out_cache_loc.view(-1, topk * num_steps)
        last = drafted.amax(1)
        if page_size > 1 and topk > 1:  # attention reads the pages of the branches as a whole
            last = last // page_size * page_size + page_size - 1
        last = torch.maximum(last, seq_lens + num_draft_tokens - 1)
        assert bool((last < seq_lens + alloc_len).all())
        assert bool((drafted.amin(1) >= seq_lens).all())
        assert bool((last >= seq_lens + alloc_len - page_size).any())
        ends = (seq_lens + alloc_len).repeat_interleave(seq_lens % page_size * (topk - 1))
        assert bool((locs.target < ends).all())


def test_one_position_less_would_not_do_for_contiguous_drafts() -> None:
    locs = draft_cache_locs_paged(ints(0), table(30), ints(10), topk=2, num_steps=4, page_size=1)
    assert int(locs.out_cache_loc.max()) == 10 + alloc_len_per_decode(4, 2, 5, 1) - 1


def test_a_row_holds_the_reserve_of_two_steps_when_pages_are_larger_than_one() -> None:
    for page_size, topk, num_steps, num_draft_tokens in itertools.product((2, 4, 16, 64), (1, 2, 8), (1, 3, 6), (2, 9)):
        reserve = 2 * alloc_len_per_decode(num_steps, topk, num_draft_tokens, page_size)
        width = row_width(1000, num_steps, topk, num_draft_tokens, page_size)
        assert max(ceil_to_page(seq_len + reserve, page_size) for seq_len in range(1000 - page_size, 1001)) <= width
        assert width >= 1000 + 4 + num_draft_tokens


def test_a_row_of_page_size_one_holds_the_tree_but_perhaps_not_two_steps() -> None:
    assert row_width(1000, num_steps=3, topk=4, num_draft_tokens=8, page_size=1) == 1012
    assert 2 * alloc_len_per_decode(3, 4, 8, 1) == 24


# Allocation


@pytest.mark.parametrize("op", [EXTEND, DECODE], ids=lambda op: op.name)
def test_new_slots_are_distinct_in_the_right_place_of_their_page_and_nobody_elses(op: Op) -> None:
    @given(case=cases(op))
    def holds(case: Case) -> None:
        page_size, seq_lens = case.sizes["page_size"], case.tensors["seq_lens"]
        prefix_lens = case.tensors.get("prefix_lens", seq_lens - 1)
        free, last_loc = set(case.tensors["free_pages"].tolist()), case.tensors["last_loc"].tolist()
        slots = op.expected(case)["out_cache_loc"]
        assert len(set(slots.tolist())) == slots.shape[0]
        for own, prefix_len, seq_len, last in zip(
            torch.split(slots, (seq_lens - prefix_lens).tolist()),
            prefix_lens.tolist(),
            seq_lens.tolist(),
            last_loc,
            strict=True,
        ):
            before = [(last, prefix_len - 1)] if prefix_len else []
            held = [*before, *zip(own.tolist(), range(prefix_len, seq_len), strict=True)]
            for (slot, position), (next_slot, _) in itertools.pairwise(held):
                same_page = (position + 1) % page_size != 0
                assert (next_slot == slot + 1) if same_page else (next_slot // page_size in free)
            assert all(slot % page_size == position % page_size for slot, position in held)

    holds()


@given(case=cases(EXTEND))
def test_free_pages_are_taken_from_the_front_each_once(case: Case) -> None:
    page_size = case.sizes["page_size"]
    slots = EXTEND.expected(case)["out_cache_loc"]
    starts = slots[slots % page_size == 0]
    assert torch.equal(starts // page_size, case.tensors["free_pages"][: starts.shape[0]])


@given(case=cases(DECODE))
def test_a_decode_is_an_extension_by_one_token(case: Case) -> None:
    tensors, page_size = case.tensors, case.sizes["page_size"]
    extended = alloc_extend(
        tensors["seq_lens"] - 1, tensors["seq_lens"], tensors["last_loc"], tensors["free_pages"], page_size
    )
    assert torch.equal(alloc_decode(**tensors, page_size=page_size), extended)


def pages_taken(case: Case) -> list[int]:
    page_size = case.sizes["page_size"]
    return [
        (ceil_to_page(seq_len, page_size) - ceil_to_page(prefix_len, page_size)) // page_size
        for prefix_len, seq_len in zip(
            case.tensors["prefix_lens"].tolist(), case.tensors["seq_lens"].tolist(), strict=True
        )
    ]


@given(case=cases(EXTEND))
def test_a_request_gets_the_same_slots_in_any_batch_that_leaves_it_the_same_pages(case: Case) -> None:
    tensors, page_size, taken = case.tensors, case.sizes["page_size"], pages_taken(case)
    own_pages = torch.split(tensors["free_pages"][: sum(taken)], taken)
    lens = (tensors["seq_lens"] - tensors["prefix_lens"]).tolist()
    own_slots = torch.split(EXTEND.expected(case)["out_cache_loc"], lens)
    for order in (list(range(case.sizes["bs"]))[::-1], [0], [case.sizes["bs"] - 1]):
        permuted = alloc_extend(
            tensors["prefix_lens"][order],
            tensors["seq_lens"][order],
            tensors["last_loc"][order],
            torch.cat([own_pages[b] for b in order]),
            page_size,
        )
        assert torch.equal(permuted, torch.cat([own_slots[b] for b in order]))


@given(case=cases(EXTEND))
def test_growing_token_by_token_is_growing_at_once(case: Case) -> None:
    tensors, page_size = case.tensors, case.sizes["page_size"]
    first = slice(0, 1)
    prefix_len, seq_len = int(tensors["prefix_lens"][0]), int(tensors["seq_lens"][0])
    at_once = alloc_extend(
        tensors["prefix_lens"][first],
        tensors["seq_lens"][first],
        tensors["last_loc"][first],
        tensors["free_pages"],
        page_size,
    )
    last_loc, free_pages, slots = tensors["last_loc"][first], tensors["free_pages"], []
    for position in range(prefix_len, seq_len):
        last_loc = alloc_decode(ints(position + 1), last_loc, free_pages, page_size)
        free_pages = free_pages[1:] if position % page_size == 0 else free_pages
        slots.append(int(last_loc))
    assert slots == at_once.tolist()


def test_an_extension_fills_the_begun_page_then_whole_pages_then_begins_one() -> None:
    slots = alloc_extend(ints(6, 0, 4), ints(13, 1, 4), ints(41, -1, 83), ints(7, 3, 9, 5), page_size=4)
    assert slots.tolist() == [42, 43, 28, 29, 30, 31, 12, 36]


@given(case=cases(LAST_LOC))
def test_the_last_slot_is_that_of_the_last_column_and_nothing_else_is_read(case: Case) -> None:
    rows, prefix_lens = case.tensors["req_pool_indices"], case.tensors["prefix_lens"]
    last_loc = LAST_LOC.expected(case)["last_loc"]
    stale = torch.full_like(case.tensors["req_to_token"], STALE)
    for b in range(case.sizes["bs"]):
        if prefix_lens[b]:
            column = int(prefix_lens[b]) - 1
            stale[rows[b], column] = case.tensors["req_to_token"][rows[b], column]
            assert int(last_loc[b]) % case.sizes["page_size"] == column % case.sizes["page_size"]
        else:
            assert int(last_loc[b]) == -1
    assert torch.equal(get_last_loc(stale, rows, prefix_lens), last_loc)
    assert torch.equal(get_last_loc(stale, rows.flip(0), prefix_lens.flip(0)), last_loc.flip(0))


@given(case=cases(LAST_LOC))
def test_the_last_slot_is_what_the_next_decode_needs(case: Case) -> None:
    live = case.tensors["req_pool_indices"] > 0
    last_loc, page_size = LAST_LOC.expected(case)["last_loc"][live], case.sizes["page_size"]
    free_pages = int(case.tensors["req_to_token"].max()) // page_size + 1 + torch.arange(last_loc.shape[0])
    alloc_decode(case.tensors["prefix_lens"][live] + 1, last_loc, free_pages, page_size)  # its checks pass


# The layout of a draft


def test_layout_of_known_sequences() -> None:
    begun = draft_cache_locs_paged(ints(0), table(40), ints(10), topk=2, num_steps=3, page_size=4)
    assert begun.out_cache_loc.tolist() == [10, 11, 12, 18, 19, 20]
    assert begun.source.tolist() == [8, 9]
    assert begun.target.tolist() == [16, 17]
    aligned = draft_cache_locs_paged(ints(0), table(40), ints(8), topk=2, num_steps=3, page_size=4)
    assert aligned.out_cache_loc.tolist() == [8, 9, 10, 12, 13, 14]
    assert aligned.source.shape == aligned.target.shape == (0,)


@given(case=cases(KV_INDICES))
def test_the_layout_equals_the_naive_implementation(case: Case) -> None:
    batched, naive = draft_cache_locs_paged(**layout_of(case)), draft_cache_locs_paged_naive(**layout_of(case))
    for one, other in zip(batched, naive, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype == torch.int64


@given(case=cases(KV_INDICES))
def test_without_pages_or_branches_the_layout_is_contiguous(case: Case) -> None:
    arguments = layout_of(case)
    rows, slots, seq_lens = (case.tensors[name] for name in ("req_pool_indices", "req_to_token", "seq_lens"))
    for change in ({"page_size": 1}, {"topk": 1}):
        locs = draft_cache_locs_paged(**{**arguments, **change})
        topk, num_steps = change.get("topk", case.sizes["topk"]), case.sizes["num_steps"]
        contiguous = assign_draft_cache_locs_contiguous(rows, slots, seq_lens, topk, num_steps)
        assert torch.equal(locs.out_cache_loc, contiguous)
        assert locs.source.shape == locs.target.shape == (0,)


@given(case=cases(KV_INDICES))
def test_branches_share_no_page_but_the_sequences_and_holes_complete_theirs(case: Case) -> None:
    page_size, topk, num_steps = (case.sizes[name] for name in ("page_size", "topk", "num_steps"))
    for b in range(case.sizes["bs"] if page_size > 1 and topk > 1 else 0):
        alone = some_requests(case, [b])
        locs = draft_cache_locs_paged(**alone)
        slots, seq_len = alone["req_to_token"][int(alone["req_pool_indices"])].tolist(), int(alone["seq_lens"])
        branches = locs.out_cache_loc.view(topk, num_steps).tolist()
        pages = [{slot // page_size for slot in branch} for branch in branches]
        assert sum(map(len, pages)) == len(set().union(*pages))
        holes = dict(zip(locs.target.tolist(), locs.source.tolist(), strict=True))
        assert len(holes) == locs.target.shape[0]
        tail = slots[seq_len - seq_len % page_size : seq_len]
        for branch in branches[1:]:
            page = branch[0] // page_size * page_size
            assert [holes.pop(page + offset) for offset in range(len(tail))] == tail
            assert branch[0] == page + len(tail)
        assert not holes


@given(case=cases(KV_INDICES))
def test_each_branch_attends_to_its_sequence_and_its_own_draft(case: Case) -> None:
    topk, num_steps = case.sizes["topk"], case.sizes["num_steps"]
    rows, slots, seq_lens = (case.tensors[name] for name in ("req_pool_indices", "req_to_token", "seq_lens"))
    kv_indptr, kv_indices = generate_draft_decode_kv_indices(**layout_of(case))
    branches = draft_cache_locs_paged(**layout_of(case)).out_cache_loc.view(-1, num_steps)
    for step in range(num_steps):
        assert int(kv_indptr[step, 0]) == 0
        lists = torch.split(kv_indices[step, : int(kv_indptr[step, -1])], kv_indptr[step].diff().tolist())
        for z, own in enumerate(lists):
            row, seq_len = rows[z // topk], int(seq_lens[z // topk])
            assert torch.equal(own, torch.cat([slots[row, :seq_len].long(), branches[z, : step + 1]]))
    assert int(kv_indptr[-1, -1]) == kv_indices.shape[1]


@given(case=cases(KV_INDICES))
def test_permuting_or_splitting_a_batch_permutes_or_splits_its_lists(case: Case) -> None:
    topk, backwards = case.sizes["topk"], list(range(case.sizes["bs"]))[::-1]

    def lists(which: list[int]) -> list[list[list[int]]]:
        """By step and request: the entries of all its branches."""
        kv_indptr, kv_indices = generate_draft_decode_kv_indices(**some_requests(case, which))
        bounds = kv_indptr[:, ::topk].tolist()
        return [
            [entries[a:b] for a, b in itertools.pairwise(own)]
            for own, entries in zip(bounds, kv_indices.tolist(), strict=True)
        ]

    together = lists(backwards[::-1])
    assert [step[::-1] for step in lists(backwards)] == together
    alone = [lists([b]) for b in backwards[::-1]]
    assert [list(itertools.chain.from_iterable(own)) for own in zip(*alone, strict=True)] == together


@given(case=cases(KV_INDICES))
def test_a_stale_slot_is_in_nobodys_list(case: Case) -> None:
    expected = KV_INDICES.expected(case)
    defined = KV_INDICES.defined(case, expected)["kv_indices"]
    listed = expected["kv_indices"][defined]
    stale = case.clone()
    stale.tensors["req_to_token"][~torch.isin(case.tensors["req_to_token"], listed)] = STALE
    assert torch.equal(KV_INDICES.expected(stale)["kv_indices"][defined], listed)


def test_lists_of_a_begun_page_skip_the_holes() -> None:
    kv_indptr, kv_indices = generate_draft_decode_kv_indices(ints(1), table(20), ints(2), 2, 3, page_size=4)
    assert kv_indptr.tolist() == [[0, 3, 6], [0, 4, 8], [0, 5, 10]]
    assert kv_indices[0, :6].tolist() == [1000, 1001, 1002, 1000, 1001, 1010]
    assert kv_indices[2].tolist() == [1000, 1001, 1002, 1003, 1004, 1000, 1001, 1010, 1011, 1012]


# Accepted paths


@given(case=cases(FILL))
def test_the_slots_of_a_batch_are_those_of_its_requests_one_after_the_other(case: Case) -> None:
    together, defined = FILL.expected(case), FILL.defined(case, FILL.expected(case))
    compact = together["accept_out_cache_loc"][defined["accept_out_cache_loc"]].tolist()
    accept_index, slots = case.tensors["accept_index"], case.tensors["out_cache_loc"]
    alone = [fill_accept_out_cache_loc(path[None], slots)[: int((path >= 0).sum())] for path in accept_index]
    assert compact == torch.cat(alone).tolist()
    assert 0 not in compact


def test_compaction_is_stable_wherever_nothing_is_accepted() -> None:
    accept_index = narrow(-1, 2, -1, 5, 1, -1).view(2, 3)
    assert fill_accept_out_cache_loc(accept_index, ints(10, 11, 12, 13, 14, 15)).tolist() == [12, 15, 11, 0, 0, 0]


def compacted(case: Case) -> Tensors:
    return COMPACT.expected(case)


@given(case=cases(COMPACT))
def test_after_the_move_the_front_of_a_block_holds_the_accepted_nodes(case: Case) -> None:
    ndt, slots = case.sizes["num_draft_tokens"], case.tensors["out_cache_loc"]
    result = compacted(case)
    buffer = torch.zeros(case.sizes["num_nodes"] + 1, 2, dtype=torch.int64)
    buffer[slots] = torch.arange(case.sizes["num_nodes"])[:, None].expand(-1, 2)  # KV that names its node
    before = buffer.clone()
    move_kv(buffer, result["target"], result["source"])
    for b, (path, accept_len) in enumerate(
        zip(case.tensors["accept_index"].tolist(), case.tensors["accept_lens"].tolist(), strict=True)
    ):
        nodes, front, rest = (
            path[:accept_len],
            slice(b * ndt, b * ndt + accept_len),
            slice(b * ndt + accept_len, (b + 1) * ndt),
        )
        assert buffer[slots[front], 0].tolist() == nodes
        assert torch.equal(buffer[slots[rest]], before[slots[rest]])
        assert torch.equal(result["compacted_predict"][front], case.tensors["predict"][nodes])
        assert torch.equal(result["compacted_hidden_states"][front], case.tensors["hidden_states"][nodes])
    assert torch.equal(buffer[0], before[0])


@given(case=cases(COMPACT))
def test_sources_are_the_accepted_slots_and_no_kv_moves_towards_the_back(case: Case) -> None:
    result = compacted(case)
    accept_index, slots = case.tensors["accept_index"], case.tensors["out_cache_loc"]
    assert torch.equal(result["source"], fill_accept_out_cache_loc(accept_index, slots))
    place = torch.zeros(case.sizes["num_nodes"] + 1, dtype=torch.int64)
    place[slots] = torch.arange(case.sizes["num_nodes"])
    assert bool((place[result["target"]] <= place[result["source"]]).all())


@given(case=cases(COMPACT))
def test_permuting_the_requests_permutes_their_compacted_blocks(case: Case) -> None:
    bs, ndt, tensors = case.sizes["bs"], case.sizes["num_draft_tokens"], case.tensors
    result, lens = compacted(case), case.tensors["accept_lens"].tolist()
    backwards = list(range(bs))[::-1]
    paths, blocks = tensors["accept_index"], torch.arange(bs, dtype=torch.int32)[:, None] * ndt
    local = torch.where(paths >= 0, paths - blocks, -1)[backwards]

    def flipped(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.split(tensor, ndt)[b] for b in backwards])

    permuted = compact_accepted_path(
        torch.where(local >= 0, local + blocks, -1),
        tensors["accept_lens"][backwards],
        flipped(tensors["out_cache_loc"]),
        flipped(tensors["predict"]),
        flipped(tensors["hidden_states"]),
        num_draft_tokens=ndt,
    )
    assert torch.equal(permuted.compacted_predict, flipped(result["compacted_predict"]))
    assert torch.equal(permuted.compacted_hidden_states, flipped(result["compacted_hidden_states"]))
    for name, own in (("target", permuted.target), ("source", permuted.source)):
        segments = torch.split(result[name][: sum(lens)], lens)
        assert torch.equal(own[: sum(lens)], torch.cat([segments[b] for b in backwards]))


def test_a_chain_is_compact_already() -> None:
    accept_index, slots = narrow(0, 1, -1, 3, 4, 5).view(2, 3), ints(7, 9, 8, 3, 4, 5)
    predict, hidden_states = narrow(0, 1, 2, 3, 4, 5), torch.rand(6, 2)
    result = compact_accepted_path(accept_index, narrow(2, 3), slots, predict, hidden_states, 3)
    assert result.target.tolist() == result.source.tolist() == [7, 9, 3, 4, 5, 0]
    assert torch.equal(result.compacted_predict, predict)
    assert torch.equal(result.compacted_hidden_states, hidden_states)


@given(case=cases(MOVE))
def test_moved_rows_are_those_from_before_and_the_others_stay(case: Case) -> None:
    before, target, source = (case.tensors[name] for name in ("buffer", "target", "source"))
    after = MOVE.expected(case)["buffer"]
    assert torch.equal(after[target], before[source])
    others = torch.ones(before.shape[0], dtype=torch.bool)
    others[target] = False
    assert torch.equal(after[others], before[others])


@given(case=cases(MOVE))
def test_the_order_of_the_moves_does_not_matter(case: Case) -> None:
    flipped = case.clone()
    flipped.tensors.update({name: case.tensors[name].flip(0) for name in ("target", "source")})
    assert torch.equal(MOVE.expected(flipped)["buffer"], MOVE.expected(case)["buffer"])


def test_overlapping_moves_read_before_they_write() -> None:
    buffer = torch.arange(4)[:, None]
    move_kv(buffer, ints(0, 1, 2), ints(1, 2, 3))
    assert buffer.flatten().tolist() == [1, 2, 3, 3]
    move_kv(buffer, ints(1, 2, 3), ints(0, 1, 2))
    assert buffer.flatten().tolist() == [1, 1, 2, 3]
    move_kv(buffer, ints(0, 3, 1, 1), ints(3, 0, 1, 1))
    assert buffer.flatten().tolist() == [3, 1, 2, 1]


# Eviction


@given(case=cases(COMPACT))
def test_aligned_eviction_frees_no_page_that_is_kept_and_equals_the_naive_implementation(case: Case) -> None:
    bs, ndt = case.sizes["bs"], case.sizes["num_draft_tokens"]
    rejected = torch.ones(bs * ndt, dtype=torch.bool)
    path = case.tensors["accept_index"].flatten()
    rejected[path[path >= 0].long()] = False
    rejected.view(bs, ndt)[:, 0] = False  # the root is kept, of a padding request too
    for page_size, first_len in itertools.product((1, 4, 16), (0, 3, 4, 5)):
        seq_lens = first_len + torch.arange(bs)
        mask, naive = rejected.clone(), rejected.clone()
        align_evict_mask_to_page_size(seq_lens, mask, page_size, ndt)
        align_evict_mask_to_page_size_naive(seq_lens, naive, page_size, ndt)
        assert torch.equal(mask, naive)
        assert not bool((mask & ~rejected).any())
        position = seq_lens[:, None] + torch.arange(ndt)
        last_kept = seq_lens + (~rejected).view(bs, ndt).sum(1) - 1
        same_page = position // page_size == last_kept[:, None] // page_size
        assert torch.equal(mask.view(bs, ndt), rejected.view(bs, ndt) & ~same_page)


def test_eviction_keeps_the_page_of_the_last_kept_token() -> None:
    mask = torch.tensor([False, False, True, True, True, True, True, True])
    align_evict_mask_to_page_size(ints(5), mask, page_size=4, num_draft_tokens=8)  # keeps 5 and 6, on page 4..7
    assert mask.tolist() == [False, False, False, True, True, True, True, True]


# Errors and corners


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ints(0), ints(1), ints(-1), ints(1), 3), r"page_size is 3; allowed: a power of two"),
        ((ints(0), ints(1), ints(-1), ints(1), 0), r"page_size is 0; allowed: a power of two"),
        ((ints(-1), ints(1), ints(-1), ints(1), 4), r"prefix_lens\[0\] is -1; allowed: 0 or more"),
        ((ints(5), ints(4), ints(4), ints(2), 4), r"seq_lens\[0\] is 4; allowed: prefix_lens"),
        ((ints(5), ints(6), ints(5), ints(2), 4), r"last_loc\[0\] is 5; allowed: -1 without a prefix"),
        ((ints(0), ints(6), ints(7), ints(2), 4), r"last_loc\[0\] is 7; allowed: -1 without a prefix"),
        ((ints(5), ints(6), ints(-4), ints(2), 4), r"last_loc\[0\] is -4"),
        ((ints(5), ints(6), ints(4), ints(2, 1), 4), r"free_pages\[1\] is 1; allowed: pages other than those"),
        ((ints(0), ints(6), ints(-1), ints(2, 0), 4), r"free_pages\[1\] is 0; allowed: 1 or more"),
        ((ints(0), ints(6), ints(-1), ints(2, 2), 4), r"free_pages holds 2 more than once"),
        ((ints(0), ints(6), ints(-1), ints(2), 4), r"num_free_pages \(the length of free_pages\) is 1; allowed: 2"),
        ((ints(0), ints(6, 7), ints(-1), ints(2), 4), r"seq_lens has shape \[2\]; allowed: \[bs=1\]"),
        ((narrow(0), ints(6), ints(-1), ints(2), 4), r"prefix_lens has dtype torch.int32"),
    ],
)
def test_wrong_extensions_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        alloc_extend(*arguments)


def test_wrong_decodes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"seq_lens\[1\] is 0; allowed: 1 or more"):
        alloc_decode(ints(1, 0), ints(-1, -1), ints(1, 2), 4)
    with pytest.raises(ValueError, match=r"last_loc\[0\] is 6; allowed"):
        alloc_decode(ints(3), ints(6), ints(), 4)
    with pytest.raises(ValueError, match=r"num_free_pages .* is 0; allowed: 1 or more"):
        alloc_decode(ints(5), ints(7), ints(), 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ints(3), table(20), ints(2), 2, 3, 4), r"req_pool_indices\[0\] is 3; allowed: 0 to 2"),
        ((ints(1), table(20), ints(10), 2, 3, 4), r"seq_lens\[0\] is 10; allowed: 0 or more, and all branches within"),
        ((ints(1), table(20), ints(-1), 2, 3, 4), r"seq_lens\[0\] is -1"),
        ((ints(1), table(20).long(), ints(2), 2, 3, 4), r"req_to_token has dtype torch.int64; allowed: torch.int32"),
        ((ints(1), table(20), ints(2), 0, 3, 4), r"topk is 0; allowed: 1 or more"),
        ((ints(1), table(20), ints(2), 2, 0, 4), r"num_steps is 0; allowed: 1 or more"),
        ((ints(1), table(20), ints(2), 2, 3, 6), r"page_size is 6; allowed: a power of two"),
    ],
)
def test_wrong_layouts_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    for function in (draft_cache_locs_paged, generate_draft_decode_kv_indices):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


@pytest.mark.parametrize(
    ("path", "lens", "message"),
    [
        (narrow(0, 2, -1), narrow(4), r"accept_lens\[0\] is 4; allowed: 0 to 3"),
        (narrow(0, 2, -1), narrow(3), r"accept_index\[0, 2\] is -1; allowed: ascending nodes"),
        (narrow(0, 2, 1), narrow(3), r"accept_index\[0, 2\] is 1; allowed: ascending nodes"),
        (narrow(0, 2, 3), narrow(2), r"accept_index\[0, 2\] is 3; allowed: .*, then -1"),
        (narrow(0, 2, 4), narrow(3), r"accept_index\[0, 2\] is 4; allowed: .* own block"),
    ],
)
def test_wrong_paths_are_refused(path: torch.Tensor, lens: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compact_accepted_path(path[None], lens, ints(1, 2, 3, 4), narrow(1, 2, 3, 4), torch.rand(4, 2), 4)


def test_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"prefix_lens\[0\] is 21; allowed: 0 to 20"):
        get_last_loc(table(20), ints(1), ints(21))
    with pytest.raises(ValueError, match=r"accept_index\[0, 1\] is 3; allowed: -1 to 2"):
        fill_accept_out_cache_loc(narrow(0, 3)[None], ints(1, 2, 3))
    with pytest.raises(ValueError, match=r"target\[2\] is 1; allowed: one source for each target"):
        move_kv(torch.rand(4, 2), ints(1, 0, 1), ints(2, 2, 3))
    with pytest.raises(ValueError, match=r"source\[0\] is 4; allowed: 0 to 3"):
        move_kv(torch.rand(4, 2), ints(1), ints(4))
    with pytest.raises(ValueError, match=r"evict_mask.*\[1\] is 2; allowed: False for at least one of the 2 nodes"):
        align_evict_mask_to_page_size(ints(3, 4), torch.tensor([False, True, True, True]), 4, 2)
    with pytest.raises(ValueError, match=r"num_draft_tokens is 0; allowed: 1 or more"):
        alloc_len_per_decode(1, 1, 0, 1)
    with pytest.raises(ValueError, match=r"context_len is 0; allowed: 1 or more"):
        row_width(0, 1, 1, 2, 1)


def test_a_refused_move_changes_nothing_and_checks_can_be_switched_off() -> None:
    buffer = torch.arange(3)[:, None]
    with pytest.raises(ValueError, match="one source"):
        move_kv(buffer, ints(0, 0), ints(1, 2))
    assert buffer.flatten().tolist() == [0, 1, 2]
    with unchecked():
        move_kv(buffer, ints(0, 0), ints(1, 1))
    assert buffer.flatten().tolist() == [1, 1, 2]


def test_an_empty_batch_has_nothing() -> None:
    none, slots = ints(), table(20)
    assert alloc_extend(none, none, none, ints(3), 4).shape == (0,)
    assert alloc_decode(none, none, none, 4).shape == (0,)
    assert get_last_loc(slots, none, none).shape == (0,)
    assert [part.shape[0] for part in draft_cache_locs_paged(none, slots, none, 2, 3, 4)] == [0, 0, 0]
    kv_indptr, kv_indices = generate_draft_decode_kv_indices(none, slots, none, 2, 3, 4)
    assert kv_indptr.tolist() == [[0], [0], [0]]
    assert kv_indices.shape == (3, 0)
    path = torch.empty(0, 4, dtype=torch.int32)
    assert fill_accept_out_cache_loc(path, none).shape == (0,)
    assert compact_accepted_path(path, narrow(), none, narrow(), torch.empty(0, 2), 4).target.shape == (0,)
    align_evict_mask_to_page_size(none, torch.empty(0, dtype=torch.bool), 4, 2)
