"""A row of logits or probabilities, shared out over programs: its distribution, and the least value that filters keep.

A row is cut into *groups* of neighbouring tokens. One pass over it leaves, for each group, its largest value and the
sum of its weights. These few numbers bound from below the least value that top-k or top-p can keep; groups with a value
above the bound are read again, and their candidates put in a list, on which every program finds out what is kept.
Where they do not fit the list, the least kept value is searched for digit by digit.

Values are probabilities if `SHAPE.IS_LINEAR`: a token weighs its probability times `scale`, a power of two, so that
weights and their sums are exact. Otherwise they are logits, and `scale` turns their differences into powers of two.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from specsim.kernels.scratch import scratch_of

UNIT = tl.constexpr(2.0**40)
LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(150.0)  # 2 to the power of minus this is 0
HEAD = tl.constexpr(64)  # words of a row: arrivals at barriers, programs that are done, and three times sixteen sums


class Shape(NamedTuple):
    """How rows are cut up, known when a kernel is compiled.

    IS_EXACT      whether drafts of a node's path count as put out, for penalties
    IS_LINEAR     whether values are probabilities, not logits
    SPLITS        programs a row, a power of two; CHUNK: tokens of each; GROUP: tokens of a group
    LIST          candidates that fit the list; SHORT_LIST: those that are compared with `BLOCK_SHORT` others at once,
                  where all of a longer list are compared with `BLOCK_L`
    BLOCK_V       tokens that are read at once, by a scan; BLOCK_SEARCH: by a search
    BLOCK_G       lanes of a vector over the row's groups; BLOCK_W: over the nodes of a path
    """

    IS_EXACT: bool
    IS_LINEAR: bool
    VOCAB_SIZE: int
    SPLITS: int
    CHUNK: int
    NUM_GROUPS: int
    GROUP: int
    LIST: int
    SHORT_LIST: int
    BLOCK_SHORT: int
    BLOCK_L: int
    BLOCK_V: int
    BLOCK_SEARCH: int
    BLOCK_G: int
    BLOCK_W: int


class Scratch(NamedTuple):
    """Memory through which the programs of a row communicate.

    heads   [rows, HEAD] int64: zero between launches
    lists   [rows, LIST] float32: values of candidates
    groups  [rows, sets of 2, NUM_GROUPS] float32: the largest value and the sum of each group
    owns    [rows * SPLITS, groups of a chunk] int32: numbers of a program's groups that it reads again
    """

    heads: Any
    lists: Any
    groups: Any
    owns: Any


def scratch_of_rows(name: str, device: torch.device, rows: int, words: tuple[int, int, int]) -> Scratch:
    """`words` of a row's list, of its groups and of its programs' owns."""
    num_list, num_groups, num_owns = words
    return Scratch(
        scratch_of(f"{name} heads", device, rows * HEAD.value),
        scratch_of(f"{name} lists", device, rows * num_list, torch.float32),
        scratch_of(f"{name} groups", device, rows * num_groups, torch.float32),
        scratch_of(f"{name} owns", device, rows * num_owns, torch.int32),
    )


class RowPlace(NamedTuple):
    """Where a program works on a row: addresses of the row [VOCAB_SIZE], of the numbers of its groups that it reads
    again [groups of a chunk] int32, of the row's list [LIST] float32 and of its head [HEAD] int64; its number.
    """

    row: Any
    own: Any
    list: Any
    head: Any
    i_split: Any


class Filters(NamedTuple):
    """k of top-k, p of top-p, and the least weight that min-p keeps."""

    k: Any
    p: Any
    least: Any


class RequestWants(NamedTuple):
    """What a request wants of all rows: addresses of its penalties, of its counts [VOCAB_SIZE], of its bias
    [VOCAB_SIZE] and of its stop tokens; whether it is penalised, and by a repetition penalty; whether it has a bias.
    """

    frequency: Any
    presence: Any
    repetition: Any
    counts: Any
    bias: Any
    stop: Any
    is_penalised: Any
    is_repeated: Any
    is_biased: Any


class NodeRules(NamedTuple):
    """What a request wants at a node: how many of its stop tokens are forbidden, the address of its mask and whether it
    has one; the drafts of the node's path [BLOCK_W], of which there are `i_level`.
    """

    request: Any
    num_stops: Any
    mask: Any
    is_masked: Any
    i_level: Any
    b_token: Any


@triton.jit
def lane(b_values, i_lane, LANES: tl.constexpr):
    """One element of a vector, as a scalar."""
    return tl.sum(tl.where(tl.arange(0, LANES) == i_lane, b_values, 0), axis=0)


@triton.jit
def key_of(b_value):
    """int32 that compare as the values do; zeros of both signs are one."""
    b_bits = tl.where(b_value == 0, 0.0, b_value).to(tl.int32, bitcast=True)
    return b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(b_key):
    return (b_key ^ ((b_key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(b_value, high, scale, IS_LINEAR: tl.constexpr):
    """A token's weight: of logits 1 for the most probable one, of probabilities 1 to 2."""
    return b_value * scale if IS_LINEAR else tl.exp2((b_value - high) * scale)


@triton.jit
def to_units(b_weight):
    return (b_weight * UNIT).to(tl.int64)


@triton.jit
def ceil(share):
    """The least integer that is not below a float64 of at most 2^62."""
    i_share = share.to(tl.int64)
    return i_share + (i_share.to(tl.float64) < share).to(tl.int64)


@triton.jit
def arrive(p_head, SPLITS: tl.constexpr):
    """Arrive at a barrier of the row's programs: the others will see what was stored so far."""
    tl.debug_barrier()
    if SPLITS > 1:
        tl.atomic_add(p_head, 1, sem="acq_rel")


@triton.jit
def wait(p_head, i_barrier, i_split, SPLITS: tl.constexpr):
    """Wait until all programs have arrived at the barrier, and see what they stored; gives the next barrier's number.

    Sums that were added up before barrier m are in set m % 3 and read until barrier m + 1; so the set of the barrier
    before this one is free.
    """
    if SPLITS > 1:
        i_here = tl.atomic_add(p_head, 0, sem="acquire")
        while i_here < (i_barrier + 1) * SPLITS:
            i_here = tl.atomic_add(p_head, 0, sem="acquire")
        tl.debug_barrier()
    if i_split == 0:
        o_d = tl.arange(0, 16)
        tl.store(p_head + 2 + ((i_barrier + 2) % 3) * 16 + o_d, tl.zeros([16], dtype=tl.int64))
    return i_barrier + 1


@triton.jit
def leave(p_head, SPLITS: tl.constexpr):
    """The last program to leave, after which no program reads, zeroes the head for the next launch."""
    tl.debug_barrier()
    i_done = tl.atomic_add(p_head + 1, 1, sem="acq_rel")
    if i_done == SPLITS - 1:
        tl.store(p_head + tl.arange(0, HEAD), tl.zeros([HEAD], dtype=tl.int64))


@triton.jit
def words_of(p_mask, o_v, m_v):
    """The word of a bit mask that holds each token's bit.

    Of groups [R, GROUP] of neighbours each word is loaded once and broadcast. Loading it for each token would make the
    compiler choose all layouts for that load, and exchange all logits between threads.
    """
    if len(o_v.shape) == 2 and o_v.shape[1] % 32 == 0:
        words: tl.constexpr = o_v.shape[1] // 32
        o_in_word = tl.reshape(tl.where(m_v, o_v, 0x7FFFFFFF), [o_v.shape[0], words, 32])
        o_first = tl.min(o_in_word, axis=2)
        b_word = tl.load(p_mask + o_first // 32, mask=o_first < 0x7FFFFFFF, other=0)
        b_word = tl.reshape(tl.broadcast_to(b_word[:, :, None], [o_v.shape[0], words, 32]), o_v.shape)
    else:
        b_word = tl.load(p_mask + o_v // 32, mask=m_v, other=0)
    return b_word


@triton.jit
def processed(b_logit, b_count, o_v, m_v, rules, SHAPE: tl.constexpr):
    """Values at tokens `o_v` after all that the request wants but the temperature, float32. `b_count`: how often each
    token was put out before the drafts of the node's path. Probabilities stay.
    """
    b_logit = b_logit.to(tl.float32)
    if not SHAPE.IS_LINEAR:
        request = rules.request
        if request.is_penalised:
            # Loaded again each time: what is kept for the whole walk is kept in registers.
            frequency, presence = tl.load(request.frequency), tl.load(request.presence)
            if SHAPE.IS_EXACT:
                i_draft = 0
                while i_draft < rules.i_level:
                    b_count += (o_v == lane(rules.b_token, i_draft, SHAPE.BLOCK_W)).to(tl.int32)
                    i_draft += 1
            m_present = b_count > 0
            b_logit -= frequency * b_count.to(tl.float32) + tl.where(m_present, presence, 0.0)
            if request.is_repeated:
                b_scaling = tl.where(m_present, tl.load(request.repetition), 1.0)
                b_logit = tl.where(b_logit < 0, b_logit * b_scaling, tl.div_rn(b_logit, b_scaling))
        if request.is_biased:
            b_logit += tl.load(request.bias + o_v, mask=m_v, other=0.0)
        i_stop = 0
        while i_stop < rules.num_stops:
            b_logit = tl.where(o_v == tl.load(request.stop + i_stop), float("-inf"), b_logit)
            i_stop += 1
        if rules.is_masked:
            b_word = words_of(rules.mask, o_v, m_v)
            b_logit = tl.where(((b_word >> (o_v % 32)) & 1) == 0, float("-inf"), b_logit)
    return b_logit


@triton.jit
def load_tokens(p_row, o_v, m_v, rules, SHAPE: tl.constexpr):
    """Values at tokens `o_v` as they are, -inf where masked off, and how often each was put out, int32."""
    b_value = tl.load(p_row + o_v, mask=m_v, other=float("-inf"))
    if SHAPE.IS_LINEAR:
        b_count = tl.zeros_like(o_v)
    else:
        is_penalised = rules.request.is_penalised
        m_counted = m_v & (tl.where(is_penalised, o_v, -1) >= 0)  # the interpreter does not take m_v & is_penalised
        b_count = tl.load(rules.request.counts + o_v, mask=m_counted, other=0)
    return b_value, b_count


@triton.jit
def sum_groups(b_value, scale, IS_LINEAR: tl.constexpr):
    """Of each group the largest value, +inf where one is NaN or +inf; and the sum of its weights relative to that, or
    of the probabilities as they are.
    """
    b_value = tl.where(b_value < float("inf"), b_value, float("inf"))
    b_high = tl.max(b_value, axis=1)
    if IS_LINEAR:
        b_sum = tl.sum(tl.maximum(b_value, 0.0), axis=1)
    else:
        b_base = tl.where((b_high > float("-inf")) & (b_high < float("inf")), b_high, 0.0)
        b_sum = tl.sum(tl.exp2((b_value - b_base[:, None]) * scale), axis=1)
    return b_high, b_sum


@triton.jit
def scan_chunk(p_row, p_high, p_sum, i_first, scale, rules, SHAPE: tl.constexpr):
    """Store both numbers of each group of a chunk. Each block is loaded before the two ahead of it are used."""
    o_group = tl.arange(0, SHAPE.BLOCK_V // SHAPE.GROUP)
    # [groups of a block, GROUP]
    o_in_block = i_first + o_group[:, None] * SHAPE.GROUP + tl.arange(0, SHAPE.GROUP)[None, :]
    i_end = tl.minimum(i_first + SHAPE.CHUNK, SHAPE.VOCAB_SIZE)
    b_next, b_next_count = load_tokens(p_row, o_in_block, o_in_block < i_end, rules, SHAPE)
    o_v = o_in_block + SHAPE.BLOCK_V
    b_after, b_after_count = load_tokens(p_row, o_v, o_v < i_end, rules, SHAPE)
    for i_block in range(SHAPE.CHUNK // SHAPE.BLOCK_V):
        b_value, b_count = b_next, b_next_count
        b_next, b_next_count = b_after, b_after_count
        o_v = o_in_block + (i_block + 2) * SHAPE.BLOCK_V
        b_after, b_after_count = load_tokens(p_row, o_v, o_v < i_end, rules, SHAPE)
        o_v = o_in_block + i_block * SHAPE.BLOCK_V
        b_value = processed(b_value, b_count, o_v, o_v < i_end, rules, SHAPE)
        b_high, b_sum = sum_groups(b_value, scale, SHAPE.IS_LINEAR)
        o_g = (i_first + i_block * SHAPE.BLOCK_V) // SHAPE.GROUP + o_group
        tl.store(p_high + o_g, b_high, mask=o_g < SHAPE.NUM_GROUPS)
        tl.store(p_sum + o_g, b_sum, mask=o_g < SHAPE.NUM_GROUPS)


@triton.jit
def bound_of_groups(b_high, b_most, b_sum, high, scale, limit, is_count, SHAPE: tl.constexpr):
    """A value, the larger the better, such that the tokens at or above it certainly are `limit` in number or in weight
    (as `weight_of` has it). Where none is certain, a value below every token that has a weight.

    b_high  [BLOCK_G]: the largest value of each group; b_most: its weight; b_sum: the weight of the whole group

    A group at or above it counts one token; its weight is its largest one's, or its sum without as many tokens just
    below the bound as fit.
    """
    nothing = 2.0**-126 if SHAPE.IS_LINEAR else high - NOTHING / scale
    bound = tl.maximum(tl.min(tl.where(b_high > float("-inf"), b_high, high), axis=0), nothing)
    step = (high - bound) / 8
    is_sure = False
    o_d = tl.arange(0, 8)
    for _pass in tl.static_range(4):  # a bound need not be sharp
        # [8], [8, BLOCK_G]
        b_bound_d = bound + o_d * step
        m_above = b_high[None, :] >= b_bound_d[:, None]
        if is_count:
            b_amount = tl.sum(m_above.to(tl.int32), axis=1).to(tl.float32)
        else:
            b_weight_d = (SHAPE.GROUP - 1) * weight_of(b_bound_d, high, scale, SHAPE.IS_LINEAR)
            b_least = tl.maximum(b_most[None, :], b_sum[None, :] - b_weight_d[:, None])
            b_amount = tl.sum(tl.where(m_above, b_least, 0.0), axis=1)
        i_digit = tl.max(tl.where(b_amount >= limit, o_d, -1), axis=0)
        is_sure = is_sure | (i_digit >= 0)
        bound = lane(b_bound_d, tl.maximum(i_digit, 0), 8)
        step /= 8
    return tl.where(is_sure, bound, nothing)


@triton.jit
def number_lanes(m_wanted, p_numbers, o_lane):
    """Store the numbers of the lanes that are wanted, in order, for all threads to read; gives how many there are."""
    b_rank = tl.cumsum(m_wanted.to(tl.int32), axis=0)
    tl.debug_barrier()  # all threads have read what was stored before
    tl.store(p_numbers + b_rank - 1, o_lane, mask=m_wanted)
    tl.debug_barrier()
    return tl.max(b_rank, axis=0)


@triton.jit
def tokens_of_groups(p_groups, i_first, num_groups, SHAPE: tl.constexpr):
    """The numbers of the next BLOCK_V // GROUP groups of a list, which of them there are; their tokens [groups, GROUP],
    and which of those there are.
    """
    o_r = i_first + tl.arange(0, SHAPE.BLOCK_V // SHAPE.GROUP)
    o_g = tl.load(p_groups + o_r, mask=o_r < num_groups, other=0, volatile=True)
    o_v = o_g[:, None] * SHAPE.GROUP + tl.arange(0, SHAPE.GROUP)[None, :]
    return o_g, o_r < num_groups, o_v, (o_v < SHAPE.VOCAB_SIZE) & (o_r < num_groups)[:, None]


@triton.jit
def list_candidates(place, b_high, p_size, bound, rules, SHAPE: tl.constexpr):
    """Put a chunk's values at or above the bound in the list, in any order, as far as they fit; count all of them."""
    if SHAPE.CHUNK == SHAPE.BLOCK_V:
        # The chunk is read again whole.
        o_group = tl.arange(0, SHAPE.BLOCK_V // SHAPE.GROUP)
        o_v = place.i_split * SHAPE.CHUNK + o_group[:, None] * SHAPE.GROUP + tl.arange(0, SHAPE.GROUP)[None, :]
        _list_block(place, o_v, o_v < SHAPE.VOCAB_SIZE, p_size, bound, rules, SHAPE)
    else:
        o_g = tl.arange(0, SHAPE.BLOCK_G)
        m_own = (b_high >= bound) & (o_g // (SHAPE.CHUNK // SHAPE.GROUP) == place.i_split)
        num_own = number_lanes(m_own, place.own, o_g)
        i_own = 0
        while i_own < num_own:
            _o_own, _m_own, o_v, m_v = tokens_of_groups(place.own, i_own, num_own, SHAPE)
            _list_block(place, o_v, m_v, p_size, bound, rules, SHAPE)
            i_own += SHAPE.BLOCK_V // SHAPE.GROUP


@triton.jit
def _list_block(place, o_v, m_v, p_size, bound, rules, SHAPE: tl.constexpr):
    b_value, b_count = load_tokens(place.row, o_v, m_v, rules, SHAPE)
    b_value = processed(b_value, b_count, o_v, m_v, rules, SHAPE)
    m_listed = b_value >= bound  # what was not read is -inf, and below it
    # They are few, so that taking a number for each is faster than counting them.
    p_number = p_size.to(tl.pointer_type(tl.int32), bitcast=True)  # the low half of a sum
    o_list = tl.atomic_add(p_number + tl.zeros_like(o_v), 1, mask=m_listed, sem="relaxed")
    tl.store(place.list + o_list, b_value, mask=m_listed & (o_list < SHAPE.LIST))


@triton.jit
def limits_of_list(
    p_list, num_listed, high, scale, total, filters, LIST: tl.constexpr, BLOCK_L: tl.constexpr, SHAPE: tl.constexpr
):
    """The least value that the filters keep of the first `LIST` listed tokens, and the weight of what is kept. Each is
    compared with `BLOCK_L` others at once.
    """
    k, p, least = filters
    # [LIST]
    o_l = tl.arange(0, LIST)
    m_l = o_l < num_listed
    b_value = tl.load(p_list + o_l, mask=m_l, other=0.0, volatile=True)
    b_weight = weight_of(b_value, high, scale, SHAPE.IS_LINEAR)
    b_units = tl.where(m_l, to_units(b_weight), 0)
    b_above = tl.zeros([LIST], dtype=tl.int32)
    b_units_above = tl.zeros([LIST], dtype=tl.int64)
    i_other = 0
    while i_other < num_listed:
        # [BLOCK_L], [BLOCK_L, LIST]
        o_other = i_other + tl.arange(0, BLOCK_L)
        m_other = o_other < num_listed
        b_other = tl.load(p_list + o_other, mask=m_other, other=float("-inf"), volatile=True)
        b_weight_of_other = weight_of(tl.where(m_other, b_other, high), high, scale, SHAPE.IS_LINEAR)
        b_other_units = tl.where(m_other, to_units(b_weight_of_other), 0)
        m_above = b_other[:, None] > b_value[None, :]
        b_above += tl.sum(m_above.to(tl.int32), axis=0)
        b_units_above += tl.sum(tl.where(m_above, b_other_units[:, None], 0), axis=0)
        i_other += BLOCK_L
    m_kept = m_l & (b_above < k)
    if k < SHAPE.VOCAB_SIZE:
        total = tl.sum(tl.where(m_kept, b_units, 0), axis=0)
    share = share_of(p, total, scale, SHAPE.IS_LINEAR)
    m_kept = m_kept & (b_units_above < share) & (b_weight >= least) & (b_weight > 0)
    return tl.min(tl.where(m_kept, b_value, float("inf")), axis=0), tl.sum(tl.where(m_kept, b_units, 0), axis=0)


@triton.jit
def share_of(p, total, scale, IS_LINEAR: tl.constexpr):
    """What top-p keeps, in units: a share of the total or, of probabilities, p itself; more than all from 1 on."""
    share = p.to(tl.float64) * scale * UNIT if IS_LINEAR else p.to(tl.float64) * total.to(tl.float64)
    return tl.where(p < 1, ceil(share), 0x7FFFFFFFFFFFFFFF)


@triton.jit
def search_limits(place, i_barrier, high, scale, filters, rules, SHAPE: tl.constexpr):
    """The same, of all tokens: eight digits by count, eight by weight, and a round for the weight of what is kept.

    Also gives the next barrier's number.
    """
    k, p, least = filters
    o_d = tl.arange(0, 16)
    i_least = tl.full([], -0x80000000, dtype=tl.int64)  # key of the least value that the filters before have kept
    i_pivot = i_least
    share = tl.full([], 0, dtype=tl.int64)
    total = tl.full([], 0, dtype=tl.int64)
    i_round = tl.where(k < SHAPE.VOCAB_SIZE, 0, tl.where(p < 1, 8, 16))
    while i_round <= 16:
        shift = 28 - 4 * (i_round % 8)
        b_key_d = tl.maximum(i_pivot + (o_d.to(tl.int64) << shift), i_least).to(tl.int32)  # [16]
        b_sums = tl.full([16, SHAPE.BLOCK_SEARCH], 0, dtype=tl.float32)
        for i_block in range(SHAPE.CHUNK // SHAPE.BLOCK_SEARCH):
            # [BLOCK_SEARCH]
            o_v = place.i_split * SHAPE.CHUNK + i_block * SHAPE.BLOCK_SEARCH + tl.arange(0, SHAPE.BLOCK_SEARCH)
            m_v = o_v < SHAPE.VOCAB_SIZE
            b_value, b_count = load_tokens(place.row, o_v, m_v, rules, SHAPE)
            b_value = processed(b_value, b_count, o_v, m_v, rules, SHAPE)
            b_amount = weight_of(b_value, high, scale, SHAPE.IS_LINEAR)
            b_amount = tl.where(b_amount < tl.where(i_round == 16, least, 0.0), 0.0, b_amount)
            b_amount = tl.where(m_v, tl.where(i_round < 8, 1.0, b_amount), 0.0)
            b_sums += tl.where(key_of(b_value)[None, :] >= b_key_d[:, None], b_amount[None, :], 0.0)
        p_sums = place.head + 2 + (i_barrier % 3) * 16 + o_d
        tl.atomic_add(p_sums, tl.sum(to_units(b_sums), axis=1), sem="relaxed")
        arrive(place.head, SHAPE.SPLITS)
        i_barrier = wait(place.head, i_barrier, place.i_split, SHAPE.SPLITS)
        b_total = tl.load(p_sums, volatile=True)
        total = lane(b_total, 0, 16)
        if i_round == 0:
            share = k.to(tl.int64) << 40
        if i_round == 8:
            share = share_of(p, total, scale, SHAPE.IS_LINEAR)
        i_pivot += tl.max(tl.where(b_total >= share, o_d, 0), axis=0).to(tl.int64) << shift
        if (i_round % 8) == 7:
            i_least = tl.maximum(i_least, i_pivot)
            i_pivot = tl.full([], -0x80000000, dtype=tl.int64)
        i_round = tl.where((i_round == 7) & (p >= 1), 16, i_round + 1)
    lowest = value_of(i_least.to(tl.int32))
    return tl.where(lowest == lowest, lowest, float("-inf")), total, i_barrier


@triton.jit
def limits_from_bound(place, b_high, i_barrier, bound, high, scale, total, filters, rules, SHAPE: tl.constexpr):
    """The least value that the filters keep, which is not below `bound`, and the weight of what is kept; of the list
    where it is long enough, else by search. Also gives the next barrier's number.
    """
    p_size = place.head + 2 + (i_barrier % 3) * 16
    list_candidates(place, b_high, p_size, bound, rules, SHAPE)
    arrive(place.head, SHAPE.SPLITS)
    i_barrier = wait(place.head, i_barrier, place.i_split, SHAPE.SPLITS)
    num_listed = tl.load(p_size, volatile=True)
    i_listed = num_listed.to(tl.int32)
    if num_listed <= SHAPE.SHORT_LIST:
        lowest, total = limits_of_list(
            place.list, i_listed, high, scale, total, filters, SHAPE.SHORT_LIST, SHAPE.BLOCK_SHORT, SHAPE
        )
    elif num_listed <= SHAPE.LIST:
        lowest, total = limits_of_list(
            place.list, i_listed, high, scale, total, filters, SHAPE.LIST, SHAPE.BLOCK_L, SHAPE
        )
    else:
        lowest, total, i_barrier = search_limits(place, i_barrier, high, scale, filters, rules, SHAPE)
    return lowest, total, i_barrier


@triton.jit
def without_children(m_kept, o_group, tree, i_first_node, i_node, NDT: tl.constexpr, GROUP: tl.constexpr):
    """Which groups of `GROUP` tokens are kept (of 1: which tokens) without those that hold a child of the node.

    tree  `specsim.kernels.verify_logits.Tree`
    """
    i_child = tl.load(tree.next_token + i_first_node + i_node)
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT):
        m_kept = m_kept & (o_group != tl.load(tree.candidates + i_first_node + i_child) // GROUP)
        i_child = tl.load(tree.next_sibling + i_first_node + i_child)
        i_hop += 1
    return m_kept
