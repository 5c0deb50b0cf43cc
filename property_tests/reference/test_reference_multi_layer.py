"""Multi-layer drafts: every layer reads and writes what belongs to it, and windows join without a seam."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsim.choices.chooser import replayed, seeded
from specsim.contracts.contract import Case, Op, Role
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.multi_layer import OPS as FAMILY
from specsim.reference.multi_layer import (
    assign_hidden_states_pool,
    assign_new_state,
    draft_extend_multi_layer,
    fill_widened_draft_extend_inputs,
    rotate_input_ids,
    stash_append_boundary_state,
)

OPS = {op.name: op for op in FAMILY}
ROTATE, POOL, NEW_STATE = OPS["rotate_input_ids"], OPS["assign_hidden_states_pool"], OPS["assign_new_state"]
APPEND, WIDEN = OPS["stash_append_boundary_state"], OPS["fill_widened_draft_extend_inputs"]
every_op = pytest.mark.parametrize("op", FAMILY, ids=lambda op: op.name)

BULK_CASES = 200
BATCH_RELATIVE = {"req_pool_indices", "extend_start_loc", "old_extend_start_loc", "select_index", "src_row_ends"}
OLD = ("old_input_ids", "old_positions", "old_hidden_states", "old_out_cache_loc")
NEW = ("input_ids", "positions", "hidden_states", "out_cache_loc")
BY_SEGMENT = {ROTATE.name: ("input_ids",), POOL.name: ("hidden_states",), NEW_STATE.name: OLD}
BY_POOL_ROW = ("req_to_hidden_states_pool", "stash_tokens", "stash_hiddens", "stash_valid_lens")


def bounds(op: Op, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """First row and rows of each request's segment."""
    prefix = "old_" if op is NEW_STATE else ""
    return case.tensors[f"{prefix}extend_start_loc"], case.tensors[f"{prefix}extend_seq_lens"]


def requests(op: Op, case: Case, which: list[int]) -> Case:
    """The case of some of the requests, in the given order, with their segments one after the other."""
    chosen = case.clone()
    for arg in op.tensor_args:
        if arg.role is Role.IN and arg.shape[0] == "bs":
            chosen.tensors[arg.name] = case.tensors[arg.name][which]
    if op is WIDEN:
        ndt = case.sizes["num_draft_tokens"]
        for name in ("predict", "verify_hiddens"):
            chosen.tensors[name] = torch.cat([case.tensors[name].split(ndt)[b] for b in which])
        chosen.sizes["num_nodes"] = len(which) * ndt
        chosen.sizes["num_window"] = len(which) * (ndt + case.sizes["front"])
    if op.name in BY_SEGMENT:
        starts, lens = bounds(op, case)
        for name in BY_SEGMENT[op.name]:
            rows = [case.tensors[name][int(starts[b]) : int(starts[b] + lens[b])] for b in which]
            chosen.tensors[name] = torch.cat(rows)
        new_starts, new_lens = bounds(op, chosen)
        new_starts.copy_(new_lens.cumsum(0) - new_lens)
        chosen.sizes.update({"num_tokens": int(new_lens.sum()), "num_old": int(new_lens.sum())})
        chosen.sizes["num_new"] = chosen.sizes["num_old"] + len(which)
        if op is ROTATE:
            chosen.tensors["select_index"] += new_starts - starts[which]
    chosen.sizes["bs"] = len(which)
    return chosen


def expected_by_request(op: Op, case: Case) -> list[list[list[float]]]:
    """What each request gets, as lists."""
    expected, shares = op.expected(case), []
    for b in range(case.sizes["bs"]):
        if op is WIDEN:
            width = case.sizes["front"] + case.sizes["num_draft_tokens"]
            share = [tensor.split(width)[b] for tensor in expected.values()]
        elif op in (POOL, APPEND):
            share = [expected[name][case.tensors["req_pool_indices"][b]] for name in BY_POOL_ROW if name in expected]
        elif op is ROTATE:
            start, length = (int(bound[b]) for bound in bounds(op, case))
            share = [expected["input_ids"][start : start + length]]
        else:
            start, length = int(expected["extend_start_loc"][b]), int(expected["extend_seq_lens"][b])
            share = [expected[name][start : start + length] for name in NEW]
        shares.append([tensor.tolist() for tensor in share])
    return shares


@every_op
@given(data=st.data())
def test_permuting_the_requests_permutes_the_result(op: Op, data: st.DataObject) -> None:
    case = data.draw(cases(op))
    order = data.draw(st.permutations(range(case.sizes["bs"])))
    own = expected_by_request(op, case)
    assert expected_by_request(op, requests(op, case, order)) == [own[b] for b in order]


@every_op
@given(data=st.data())
def test_a_request_gets_the_same_alone(op: Op, data: st.DataObject) -> None:
    case = data.draw(cases(op))
    alone = [expected_by_request(op, requests(op, case, [b]))[0] for b in range(case.sizes["bs"])]
    assert alone == expected_by_request(op, case)


def bulk_cases(op: Op) -> list[tuple[Case, dict[str, int]]]:
    shapes = [op.cases.draw_shape(replayed(()))] + [op.cases.draw_shape(seeded(5, op.name, k)) for k in range(4)]
    return [(op.cases.make(torch.arange(7, 7 + BULK_CASES), shape), shape) for shape in shapes]


@every_op
def test_a_case_out_of_a_bulk_is_made_again_alone(op: Op) -> None:
    for case, shape in bulk_cases(op):
        for b in (0, 1, BULK_CASES - 1):
            alone = op.cases.make(torch.tensor([7 + b]), shape)
            for arg in op.tensor_args:
                if arg.role is not Role.OUT and arg.shape[0] == "bs" and arg.name not in BATCH_RELATIVE:
                    assert torch.equal(alone.tensors[arg.name][0], case.tensors[arg.name][b]), arg.name
            if op.name in BY_SEGMENT:
                start, length = (int(bound[b]) for bound in bounds(op, case))
                for name in set(BY_SEGMENT[op.name]) - {"old_out_cache_loc"}:
                    own = alone.tensors[name][:length]
                    assert torch.equal(own, case.tensors[name][start : start + length]), name


def test_bulk_cases_reach_the_edges() -> None:
    for case, _ in bulk_cases(ROTATE):
        assert int((case.tensors["extend_seq_lens"] == 0).sum()) >= 20
    for case, _ in bulk_cases(NEW_STATE):
        before = case.tensors["seq_lens"] - case.tensors["old_extend_seq_lens"]
        assert {0, 1} <= set(before.tolist())
        assert int((case.tensors["padding_lens"] == 0).sum()) >= 20
    for case, _ in bulk_cases(APPEND):
        assert {0, case.sizes["front"]} <= set(case.tensors["stash_valid_lens"].tolist())
        assert int((case.tensors["num_available"] == 0).sum()) >= 20
    for case, _ in bulk_cases(WIDEN):
        held = case.tensors["stash_valid_lens"][case.tensors["req_pool_indices"]]
        assert int((case.tensors["seq_lens"] < held).sum()) >= 5


@given(case=cases(ROTATE))
def test_tokens_move_one_place_to_the_left_and_the_new_one_stands_where_it_is_selected(case: Case) -> None:
    starts, lens = bounds(ROTATE, case)
    before, after = case.tensors["input_ids"].tolist(), ROTATE.expected(case)["input_ids"].tolist()
    want = list(before)
    for b, (start, length) in enumerate(zip(starts.tolist(), lens.tolist(), strict=True)):
        if length:
            want[start : start + length] = [*before[start + 1 : start + length], before[start + length - 1]]
            want[int(case.tensors["select_index"][b])] = int(case.tensors["topk_index"][b])
    assert after == want


@given(case=cases(ROTATE), steps=st.integers(1, 6))
def test_after_some_steps_the_drafts_stand_before_the_selected_row_in_their_order(case: Case, steps: int) -> None:
    starts, lens = bounds(ROTATE, case)
    select_index, input_ids = case.tensors["select_index"], case.tensors["input_ids"].clone()
    for step in range(steps):
        rotate_input_ids(input_ids, starts, lens, torch.full_like(select_index, 100 + step), select_index)
    for start, length, selected in zip(starts.tolist(), lens.tolist(), select_index.tolist(), strict=True):
        first = max(start, selected - steps + 1)
        if length:
            assert input_ids[first : selected + 1].tolist() == list(
                range(100 + steps - (selected + 1 - first), 100 + steps)
            )


@given(case=cases(POOL))
def test_the_pool_has_the_end_of_the_own_segment_and_nothing_of_a_neighbours(case: Case) -> None:
    starts, lens = bounds(POOL, case)
    pool, size = POOL.expected(case)["req_to_hidden_states_pool"], case.sizes["pool_size"]
    rows = case.tensors["req_pool_indices"].tolist()
    for row, start, length in zip(rows, starts.tolist(), lens.tolist(), strict=True):
        own = case.tensors["hidden_states"][start : start + length][-size:]
        assert torch.equal(pool[row, size - own.shape[0] :], own)
        assert not bool(pool[row, : size - own.shape[0]].any())
    others = [row for row in range(case.sizes["pool_rows"]) if row not in rows]
    assert torch.equal(pool[others], case.tensors["req_to_hidden_states_pool"][others])


@given(case=cases(NEW_STATE))
def test_a_window_that_begins_earlier_is_the_rotated_window_with_a_row_before_it(case: Case) -> None:
    new = NEW_STATE.expected(case)
    starts, lens = bounds(NEW_STATE, case)
    selected = starts + lens - 1 - case.tensors["padding_lens"]
    rotated = case.tensors["old_input_ids"].clone()
    rotate_input_ids(rotated, starts, lens, case.tensors["next_token_ids"], selected.long())
    for b, (start, length) in enumerate(zip(starts.tolist(), lens.tolist(), strict=True)):
        old, moved = slice(start, start + length), slice(start + b + 1, start + b + 1 + length)
        certain = int(selected[b]) - start + 1
        assert torch.equal(new["input_ids"][moved][:certain], rotated[old][:certain])
        assert new["input_ids"][start + b] == case.tensors["old_input_ids"][start]
        for name in ("positions", "hidden_states", "out_cache_loc"):
            assert torch.equal(new[name][moved], case.tensors[f"old_{name}"][old])


@given(case=cases(NEW_STATE))
def test_the_row_before_a_window_is_the_position_before_it(case: Case) -> None:
    new, (starts, lens) = NEW_STATE.expected(case), bounds(NEW_STATE, case)
    for b, start in enumerate(starts.tolist()):
        row, position = int(case.tensors["req_pool_indices"][b]), int(case.tensors["old_positions"][start]) - 1
        assert new["positions"][start + b] == max(position, 0)
        slot = case.tensors["req_to_token"][row, position] if position >= 0 else 0
        assert new["out_cache_loc"][start + b] == slot
        states = case.tensors["req_to_hidden_states_pool"][row]
        assert torch.equal(new["hidden_states"][start + b], states[states.shape[0] - 1 - case.sizes["step"]])
    assert torch.equal(new["extend_start_loc"] - starts, torch.arange(len(starts), dtype=torch.int32))
    assert torch.equal(new["extend_seq_lens"], lens + 1)


def test_windows_of_all_layers_walk_back_through_the_pool() -> None:
    """A prompt of five tokens, then a window at position 5, for three layers."""
    prompt = torch.arange(1.0, 6.0)[:, None]
    pool, one = torch.zeros(2, 2, 1), torch.ones(1, dtype=torch.int64)
    assign_hidden_states_pool(prompt, one, pool, one.int() * 5, one.int() * 0)
    table = torch.tensor([[0] * 9, list(range(11, 20))], dtype=torch.int32)
    ids, positions, states, slots = (
        torch.tensor([60, 70]),
        torch.tensor([5, 6]),
        prompt.new_tensor([[6], [7]]),
        one * 0 + 16,
    )
    slots, starts, lens = torch.tensor([16, 17]), one.int() * 0, one.int() * 2
    for step in range(2):
        new = assign_new_state(
            one * 80 + step, ids, positions, states, slots, lens, starts, one * 7, one.int() * 0, step, one, table, pool
        )
        ids, positions, states, slots, lens, starts = new
    assert ids.tolist() == [60, 70, 80, 81]
    assert positions.tolist() == [3, 4, 5, 6]
    assert states.flatten().tolist() == [4, 5, 6, 7]
    assert slots.tolist() == [14, 15, 16, 17]


@given(case=cases(APPEND), data=st.data())
def test_a_stash_is_the_same_whether_rows_come_at_once_or_in_parts(case: Case, data: st.DataObject) -> None:
    whole = APPEND.expected(case)
    later = torch.tensor([data.draw(st.integers(0, count)) for count in case.tensors["num_available"].tolist()])
    parts = case.clone()
    parts.tensors["num_available"] -= later.int()
    parts.tensors["src_row_ends"] -= later
    first = APPEND.expected(parts)
    parts.tensors.update(first)
    parts.tensors["num_available"], parts.tensors["src_row_ends"] = later.int(), case.tensors["src_row_ends"]
    parts.sizes["set_valid"] = 0
    second = APPEND.expected(parts)
    assert torch.equal(second["stash_valid_lens"], whole["stash_valid_lens"])
    for name in ("stash_tokens", "stash_hiddens"):
        assert torch.equal(second[name], whole[name])


@given(case=cases(APPEND))
def test_a_stash_ends_with_the_newest_rows_and_counts_those_it_holds(case: Case) -> None:
    stash, front = APPEND.expected(case), case.sizes["front"]
    rows = case.tensors["req_pool_indices"].tolist()
    for b, row in enumerate(rows):
        end, available = int(case.tensors["src_row_ends"][b]), int(case.tensors["num_available"][b])
        taken = min(front, available)
        before = 0 if case.sizes["set_valid"] else int(case.tensors["stash_valid_lens"][row])
        assert stash["stash_valid_lens"][row] == min(front, before + taken)
        for name, source in (("stash_tokens", "src_tokens"), ("stash_hiddens", "src_hiddens")):
            want = torch.cat([case.tensors[name][row], case.tensors[source][end - taken : end]])[-front:]
            assert torch.equal(stash[name][row], want)
    others = [row for row in range(case.sizes["pool_rows"]) if row not in rows]
    assert all(torch.equal(stash[name][others], case.tensors[name][others]) for name in stash)


@given(case=cases(WIDEN))
def test_a_row_that_the_stash_does_not_hold_is_0_whatever_is_left_there(case: Case) -> None:
    window, front, ndt = WIDEN.expected(case), case.sizes["front"], case.sizes["num_draft_tokens"]
    ids, states = window["input_ids"].split(front + ndt), window["hidden_states"].split(front + ndt)
    predict, verified = case.tensors["predict"].split(ndt), case.tensors["verify_hiddens"].split(ndt)
    for b, row in enumerate(case.tensors["req_pool_indices"].tolist()):
        held = min(int(case.tensors["stash_valid_lens"][row]), int(case.tensors["seq_lens"][b]))
        missing = front - held
        assert not bool(ids[b][:missing].any())
        assert not bool(states[b][:missing].any())
        assert torch.equal(ids[b][missing:front], case.tensors["stash_tokens"][row, missing:])
        assert torch.equal(states[b][missing:front], case.tensors["stash_hiddens"][row, missing:])
        assert torch.equal(ids[b][front:], predict[b].long())
        assert torch.equal(states[b][front:], verified[b])


@given(front=st.integers(1, 5), prompt=st.integers(1, 8), accepted=st.lists(st.integers(1, 4), max_size=4))
def test_a_widened_window_continues_the_sequence_without_a_seam(front: int, prompt: int, accepted: list[int]) -> None:
    """Each row's hidden state is its position, and its token 100 more: in the prefill, in decodes and in the window."""
    row, ndt = torch.ones(1, dtype=torch.int64), 4
    stash = torch.zeros(2, front, dtype=torch.int64), torch.zeros(2, front, 1), torch.zeros(2, dtype=torch.int32)
    seq_len = prompt
    positions = torch.arange(prompt)
    stash_append_boundary_state(
        100 + positions, positions[:, None] + 0.0, row * prompt, row.int() * prompt, row, *stash, set_valid=1
    )
    for accept_len in [*accepted, 1]:
        positions = torch.arange(seq_len, seq_len + ndt)
        tokens, states = 100 + positions, positions[:, None] + 0.0
        window = fill_widened_draft_extend_inputs(tokens.int(), states, *stash, row * seq_len, row, ndt)
        held = min(front, seq_len)
        want = [0] * (front - held) + list(range(seq_len - held, seq_len + ndt))
        assert window.hidden_states.flatten().tolist() == want
        assert window.input_ids.tolist() == [0] * (front - held) + [100 + p for p in want[front - held :]]
        stash_append_boundary_state(tokens, states, row * accept_len, row.int() * accept_len, row, *stash, set_valid=0)
        seq_len += accept_len


VOCAB_SIZE = 4093
PRIME = 2**31 - 1


def mixed(*values: Any) -> int:
    result = 17
    for value in values:
        result = (result * 1_000_003 + int(value) + 1) % PRIME
    return result


class Metadata(NamedTuple):
    """What a layer's attention knows: the slot of each row, and the slots that the row attends to, its own last."""

    out_cache_loc: list[int]
    visible: list[list[int]]


@dataclass(frozen=True)
class HashLayer:
    """A draft layer whose KV is a hash of what it was computed from, and whose prediction is a hash of the KV read."""

    weights: int
    kv_pool: dict[int, int]
    attn_metadata: Metadata

    def forward(self, input_ids: Any, hidden_states: Any, kv_pool: Any, attn_metadata: Any) -> Any:
        for slot, token, state in zip(attn_metadata.out_cache_loc, input_ids, hidden_states[:, 0], strict=True):
            kv_pool[slot] = mixed(self.weights, token, state)
        read = [mixed(self.weights, *(kv_pool[slot] for slot in slots)) for slots in attn_metadata.visible]
        logits = torch.zeros(len(read), VOCAB_SIZE, dtype=torch.float64)
        logits[range(len(read)), [value % VOCAB_SIZE for value in read]] = 30.0
        return logits, torch.tensor(read, dtype=torch.float64)[:, None]


@dataclass(frozen=True)
class BoundTo:
    """A layer that runs with what belongs to other layers."""

    layer: HashLayer
    kv_pool: dict[int, int]
    attn_metadata: Metadata

    def forward(self, *arguments: Any) -> Any:
        return self.layer.forward(*arguments)


class Pass(NamedTuple):
    """A run of all layers: for each request its first position, tokens, hidden states and the place selected."""

    starts: list[int]
    tokens: list[list[int]]
    states: list[list[int]]
    selected: list[int]


def drawn_passes(rng: random.Random, bs: int, num_steps: int) -> list[Pass]:
    """A prefill, then decodes whose windows begin where the accepted tokens of the one before end."""
    lens, starts, passes = [rng.randint(1, 6) for _ in range(bs)], [0] * bs, []
    for number in range(4):
        selected = [length - 1 if number == 0 else rng.randrange(length) for length in lens]
        tokens = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lens]
        states = [[rng.randrange(PRIME) for _ in range(length)] for length in lens]
        passes.append(Pass(starts, tokens, states, selected))
        starts = [start + place + 1 for start, place in zip(starts, selected, strict=True)]
        lens = [num_steps + 1] * bs
    return passes


def oracle(passes: list[Pass], num_steps: int, *, chain: bool) -> list[list[list[int]]]:
    """The drafts of each pass and request; every layer has a list of KV by position for every request."""
    kv: list[list[list[int]]] = [[[] for _ in passes[0].starts] for _ in range(num_steps)]
    drafts: list[Any] = []
    for run in passes:
        drafts.append([])
        for b, start in enumerate(run.starts):
            tokens, states, drafted = list(run.tokens[b]), list(run.states[b]), []
            for layer in range(num_steps):
                own = kv[layer][b]
                own[start:] = [mixed(layer, *pair) for pair in zip(tokens, states, strict=True)]
                read = [mixed(layer, *own[: start + j + 1]) for j in range(len(tokens))]
                drafted.append(read[run.selected[b]] % VOCAB_SIZE)
                tokens = [*tokens[1:], tokens[-1]]
                tokens[run.selected[b]] = drafted[-1]
                states = read if chain else states
            drafts[-1].append(drafted)
    return drafts


def run_layers(
    passes: Any,
    num_steps: int,
    rng: random.Random,
    *,
    chain: bool,
    own_slots: bool,
    bind: Callable[..., Any] | None = None,
) -> Any:
    """The drafts of each pass, and the KV pools; `bind` may change what the layers are bound to."""
    bs, columns = len(passes[0].starts), max(start + 20 for run in passes for start in run.starts)
    orders = [rng.sample(range(1, 1 + bs * columns), bs * columns) for _ in range(num_steps)]
    pools: list[dict[int, int]] = [dict.fromkeys(order, 0) for order in orders]
    drafts: list[Any] = []
    for run in passes:
        layers = []
        for i in range(num_steps):
            order = orders[i if own_slots else 0]
            table = [order[b * columns : (b + 1) * columns] for b in range(bs)]
            rows = [(b, run.starts[b] + j) for b in range(bs) for j in range(len(run.tokens[b]))]
            metadata = Metadata([table[b][q] for b, q in rows], [table[b][: q + 1] for b, q in rows])
            layers.append(HashLayer(i, pools[i], metadata))
        lens = torch.tensor([len(tokens) for tokens in run.tokens], dtype=torch.int32)
        starts = (lens.cumsum(0) - lens).int()
        input_ids = torch.tensor([token for tokens in run.tokens for token in tokens])
        before = input_ids.clone()
        result = draft_extend_multi_layer(
            bind(layers) if bind else layers,
            input_ids,
            torch.tensor([state for states in run.states for state in states], dtype=torch.float64)[:, None],
            starts,
            lens,
            starts + torch.tensor(run.selected),
            chain_hidden_states=chain,
        )
        assert torch.equal(input_ids, before)
        assert result.topk_p.shape == result.topk_index.shape == (bs, num_steps)
        drafts.append(result.topk_index.tolist())
    return drafts, pools


def bound_to_layer_0(layers: list[HashLayer]) -> list[BoundTo]:
    """The defect: the batch was built for the first layer's runner, and all layers ran with it."""
    return [BoundTo(layer, layers[0].kv_pool, layers[0].attn_metadata) for layer in layers]


def pool_of_layer_0(layers: list[HashLayer]) -> list[BoundTo]:
    return [BoundTo(layer, layers[0].kv_pool, layer.attn_metadata) for layer in layers]


def metadata_of_layer_0(layers: list[HashLayer]) -> list[BoundTo]:
    return [BoundTo(layer, layer.kv_pool, layers[0].attn_metadata) for layer in layers]


def pools_turned(layers: list[HashLayer]) -> list[BoundTo]:
    return [BoundTo(layer, layers[i - 1].kv_pool, layer.attn_metadata) for i, layer in enumerate(layers)]


runs = given(seed=st.integers(0, 2**32), bs=st.integers(1, 3), num_steps=st.integers(2, 4), chain=st.booleans())


@runs
def test_a_draft_is_that_of_layers_which_share_nothing(seed: int, bs: int, num_steps: int, chain: bool) -> None:
    for own_slots in (False, True):
        rng = random.Random(seed)
        passes = drawn_passes(rng, bs, num_steps)
        drafts, _ = run_layers(passes, num_steps, rng, chain=chain, own_slots=own_slots)
        assert drafts == oracle(passes, num_steps, chain=chain)


@runs
def test_layers_bound_to_the_first_ones_pool_draft_something_else_from_the_next_step_on(
    seed: int, bs: int, num_steps: int, chain: bool
) -> None:
    for bind, own_slots in ((bound_to_layer_0, False), (bound_to_layer_0, True), (pool_of_layer_0, False)):
        rng = random.Random(seed)
        passes = drawn_passes(rng, bs, num_steps)
        right = oracle(passes, num_steps, chain=chain)
        drafts, pools = run_layers(passes, num_steps, rng, chain=chain, own_slots=own_slots, bind=bind)
        assert drafts[0] == right[0]  # a prefill overwrites all that it reads: nothing shows
        for b in range(bs):
            assert [later[b] for later in drafts[1:]] != [later[b] for later in right[1:]]
        assert not any(any(pool.values()) for pool in pools[1:])


@runs
def test_metadata_of_another_layer_shows_where_slots_differ(seed: int, bs: int, num_steps: int, chain: bool) -> None:
    rng = random.Random(seed)
    passes = drawn_passes(rng, bs, num_steps)
    right, (_, pools) = (
        oracle(passes, num_steps, chain=chain),
        run_layers(passes, num_steps, rng, chain=chain, own_slots=True),
    )
    rng = random.Random(seed)
    passes = drawn_passes(rng, bs, num_steps)
    drafts, wrong = run_layers(passes, num_steps, rng, chain=chain, own_slots=True, bind=metadata_of_layer_0)
    assert drafts == right  # consistently wrong slots in a pool of one's own
    assert wrong[1] != pools[1]


@runs
def test_a_page_table_that_all_layers_share_may_come_from_any_of_them(
    seed: int, bs: int, num_steps: int, chain: bool
) -> None:
    """Why it did not help to switch the page table from layer to layer: it is one object."""
    rng = random.Random(seed)
    passes = drawn_passes(rng, bs, num_steps)
    drafts, _ = run_layers(passes, num_steps, rng, chain=chain, own_slots=False, bind=metadata_of_layer_0)
    assert drafts == oracle(passes, num_steps, chain=chain)


def test_a_single_layer_drafts_its_likeliest_token_and_of_equals_the_lowest() -> None:
    class Fixed(HashLayer):
        def forward(self, input_ids: Any, hidden_states: Any, kv_pool: Any, attn_metadata: Any) -> Any:
            return torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 3.0]], dtype=hidden_states.dtype), hidden_states

    layer, one = Fixed(0, {}, Metadata([], [])), torch.ones(1, dtype=torch.int32)
    for dtype in (torch.float32, torch.float64):
        states = torch.zeros(2, 1, dtype=dtype)
        draft = draft_extend_multi_layer([layer], torch.tensor([5, 6]), states, one * 0, one * 2, one.long())
        assert draft.topk_index.tolist() == [[1]]
        assert draft.topk_p.dtype == dtype
        assert float(draft.topk_p[0, 0]) == pytest.approx(1 / (2 + torch.tensor(-3.0).exp().item()))


def int32(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def int64(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


TWO_ROWS = {
    "stash_tokens": torch.zeros(2, 3, dtype=torch.int64),
    "stash_hiddens": torch.zeros(2, 3, 1),
    "stash_valid_lens": int32(0, 0),
}


def new_state(**changes: object) -> object:
    arguments: dict[str, Any] = {
        "next_token_ids": int64(9),
        "old_input_ids": int64(5, 6),
        "old_positions": int64(0, 1),
        "old_hidden_states": torch.zeros(2, 1),
        "old_out_cache_loc": int64(1, 2),
        "old_extend_seq_lens": int32(2),
        "old_extend_start_loc": int32(0),
        "seq_lens": int64(2),
        "padding_lens": int32(0),
        "step": 0,
        "req_pool_indices": int64(1),
        "req_to_token": torch.zeros(2, 3, dtype=torch.int32),
        "req_to_hidden_states_pool": torch.zeros(2, 1, 1),
    }
    return assign_new_state(**(arguments | changes))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rotate_input_ids(int64(1, 2), int32(0), int32(3), int64(5), int64(0)),
            r"extend_start_loc\[0\] is 0; allowed: not before the end of the segment before, and ending by 2",
        ),
        (
            lambda: rotate_input_ids(int64(1, 2), int32(0, 0), int32(1, 1), int64(5, 5), int64(0, 0)),
            r"extend_start_loc\[1\] is 0; allowed: not before the end",
        ),
        (
            lambda: rotate_input_ids(int64(1, 2), int32(0), int32(1), int64(5), int64(1)),
            r"select_index\[0\] is 1; allowed: a row of the request's segment",
        ),
        (
            lambda: assign_hidden_states_pool(torch.zeros(2, 1), int64(1), torch.zeros(2, 1, 1), int32(0), int32(0)),
            r"extend_seq_lens\[0\] is 0; allowed: 1 or more",
        ),
        (
            lambda: assign_hidden_states_pool(torch.zeros(2, 1), int64(2), torch.zeros(2, 1, 1), int32(1), int32(0)),
            r"req_pool_indices\[0\] is 2; allowed: 0 to 1",
        ),
        (lambda: new_state(step=1), r"step is 1; allowed: 0 to 0"),
        (lambda: new_state(padding_lens=int32(2)), r"padding_lens\[0\] is 2; allowed: 0 or more, fewer than"),
        (lambda: new_state(seq_lens=int64(1)), r"seq_lens\[0\] is 1; allowed: no fewer than the segment has rows"),
        (lambda: new_state(old_positions=int64(0)), r"old_positions has shape \[1\]; allowed: \[num_old=2\]"),
        (
            lambda: stash_append_boundary_state(
                int64(5), torch.zeros(1, 1), int64(1), int32(2), int64(1), **TWO_ROWS, set_valid=1
            ),
            r"num_available\[0\] is 2; allowed: 0 to src_row_ends",
        ),
        (
            lambda: stash_append_boundary_state(
                int64(5), torch.zeros(1, 1), int64(2), int32(1), int64(1), **TWO_ROWS, set_valid=1
            ),
            r"src_row_ends\[0\] is 2; allowed: 0 to 1",
        ),
        (
            lambda: fill_widened_draft_extend_inputs(
                int32(5),
                torch.zeros(1, 1),
                **TWO_ROWS,
                seq_lens=int64(-1),
                req_pool_indices=int64(1),
                num_draft_tokens=1,
            ),
            r"seq_lens\[0\] is -1; allowed: 0 or more",
        ),
        (
            lambda: fill_widened_draft_extend_inputs(
                int32(5),
                torch.zeros(1, 1),
                **(TWO_ROWS | {"stash_valid_lens": int32(0, 4)}),
                seq_lens=int64(1),
                req_pool_indices=int64(1),
                num_draft_tokens=1,
            ),
            r"stash_valid_lens\[1\] is 4; allowed: 0 to 3",
        ),
        (
            lambda: draft_extend_multi_layer([], int64(1), torch.zeros(1, 1), int32(0), int32(1), int64(0)),
            r"num_steps \(the number of layers\) is 0; allowed: 1 or more",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_argument_value_and_what_is_allowed(
    call: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()
