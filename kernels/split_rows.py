"""A row of logits or probabilities, shared out over programs: its law, and the least value that filters keep.

A row is cut into *groups* of neighbouring tokens. One pass over it leaves, for each group, its largest value and the
sum of its weights. These few numbers bound from below the least value that top-k or top-p can keep; groups with a value
above the bound are read again, and their candidates put in a list, on which every program finds out what is kept.
Where they do not fit the list, the least kept value is searched for digit by digit.

`IS_LINEAR` says that values are probabilities, which weigh what they are times `scale`, a power of two, so that they
and their sums are exact. Otherwise they are logits, and `scale` turns their differences into powers of two. `rules` is
what a request asks for at a node.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

UNIT = tl.constexpr(2.0**40)
LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(150.0)  # 2 to the power of minus this is 0
HEAD = tl.constexpr(64)  # words of a row: meetings, programs that are done, and three times sixteen sums


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
    """Tell the other programs of the row that what was stored so far is there."""
    tl.debug_barrier()
    if SPLITS > 1:
        tl.atomic_add(p_head, 1, sem="acq_rel")


@triton.jit
def wait(p_head, i_meeting, i_split, SPLITS: tl.constexpr):
    """Wait until all have arrived, and see what they stored; gives the next meeting's number.

    Sums that were added up before meeting m are in set m % 3 and read until meeting m + 1; so the set of the meeting
    before this one is free.
    """
    if SPLITS > 1:
        i_here = tl.atomic_add(p_head, 0, sem="acquire")
        while i_here < (i_meeting + 1) * SPLITS:
            i_here = tl.atomic_add(p_head, 0, sem="acquire")
        tl.debug_barrier()
    if i_split == 0:
        o_d = tl.arange(0, 16)
        tl.store(p_head + 2 + ((i_meeting + 2) % 3) * 16 + o_d, tl.zeros([16], dtype=tl.int64))
    return i_meeting + 1


@triton.jit
def leave(p_head, SPLITS: tl.constexpr):
    """The last program to leave, when everybody has read everything, makes the head ready for the next launch."""
    tl.debug_barrier()
    i_done = tl.atomic_add(p_head + 1, 1, sem="acq_rel")
    if i_done == SPLITS - 1:
        tl.store(p_head + tl.arange(0, HEAD), tl.zeros([HEAD], dtype=tl.int64))


@triton.jit
def rules_of_node(request, num_stops, p_bitmask, p_bitmask_row, num_masks, NUM_WORDS: tl.constexpr):
    """What a request asks for at a node: where `num_stops` of its stop tokens are forbidden, and by its row of masks.

    request  addresses of its frequency, presence and repetition penalties and of its counts, whether it is penalised,
             and by a repetition penalty; address of its bias, whether it has one; address of its stop tokens
    """
    i_mask = tl.load(p_bitmask_row).to(tl.int64)
    return request, num_stops, p_bitmask + i_mask * NUM_WORDS, (i_mask >= 0) & (i_mask < num_masks)


@triton.jit
def words_of(p_mask, o_v, m_v):
    """The word of a bit mask that holds each token's bit.

    Of groups [R, GROUP] of neighbours a word is loaded once and spread. To load it for each token would make the
    compiler lay out everything for that load, and exchange all logits between threads.
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
def processed(
    b_logit,
    b_count,
    o_v,
    m_v,
    rules,
    i_level,
    b_token,
    IS_EXACT: tl.constexpr,
    IS_LINEAR: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Values at tokens `o_v` after what the request asks for, all but the temperature. `b_count`: how often each
    was put out; `b_token` holds the drafts of the node's path, of which there are `i_level`. Probabilities stay.
    """
    b_logit = b_logit.to(tl.float32)
    if not IS_LINEAR:
        request, num_stops, p_mask, is_masked = rules
        p_frequency, p_presence, p_repetition, _p_counts, is_penalised, is_repeated, p_bias, is_biased, p_stop = request
        if is_penalised:
            # Loaded again each time: what is kept for the whole walk is kept in registers.
            frequency, presence = tl.load(p_frequency), tl.load(p_presence)
            if IS_EXACT:
                i_draft = 0
                while i_draft < i_level:
                    b_count += (o_v == lane(b_token, i_draft, BLOCK_W)).to(tl.int32)
                    i_draft += 1
            m_present = b_count > 0
            b_logit -= frequency * b_count.to(tl.float32) + tl.where(m_present, presence, 0.0)
            if is_repeated:
                b_scaling = tl.where(m_present, tl.load(p_repetition), 1.0)
                b_logit = tl.where(b_logit < 0, b_logit * b_scaling, tl.div_rn(b_logit, b_scaling))
        if is_biased:
            b_logit += tl.load(p_bias + o_v, mask=m_v, other=0.0)
        i_stop = 0
        while i_stop < num_stops:
            b_logit = tl.where(o_v == tl.load(p_stop + i_stop), float("-inf"), b_logit)
            i_stop += 1
        if is_masked:
            b_word = words_of(p_mask, o_v, m_v)
            b_logit = tl.where(((b_word >> (o_v % 32)) & 1) == 0, float("-inf"), b_logit)
    return b_logit


@triton.jit
def load_tokens(p_row, o_v, m_v, rules, IS_LINEAR: tl.constexpr):
    """Values at tokens `o_v` as they are, -inf where masked off, and how often each was put out."""
    b_value = tl.load(p_row + o_v, mask=m_v, other=float("-inf"))
    if IS_LINEAR:
        b_count = tl.zeros_like(o_v)
    else:
        request, _num_stops, _p_mask, _is_masked = rules
        _p_frequency, _p_presence, _p_repetition, p_counts, is_penalised, _r, _p_bias, _is_biased, _p_stop = request
        m_counted = m_v & (tl.where(is_penalised, o_v, -1) >= 0)  # the interpreter does not take m_v & is_penalised
        b_count = tl.load(p_counts + o_v, mask=m_counted, other=0)
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
def scan_chunk(
    p_row,
    p_high,
    p_sum,
    i_first,
    scale,
    rules,
    i_level,
    b_token,
    IS_EXACT: tl.constexpr,
    IS_LINEAR: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Store both numbers of each group of a chunk. Each block is asked for before the two ahead of it are used."""
    o_group = tl.arange(0, BLOCK_V // GROUP)
    o_in_block = i_first + o_group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    i_end = tl.minimum(i_first + CHUNK, VOCAB_SIZE)
    b_next, b_next_count = load_tokens(p_row, o_in_block, o_in_block < i_end, rules, IS_LINEAR)
    o_v = o_in_block + BLOCK_V
    b_after, b_after_count = load_tokens(p_row, o_v, o_v < i_end, rules, IS_LINEAR)
    for i_block in range(CHUNK // BLOCK_V):
        b_value, b_count = b_next, b_next_count
        b_next, b_next_count = b_after, b_after_count
        o_v = o_in_block + (i_block + 2) * BLOCK_V
        b_after, b_after_count = load_tokens(p_row, o_v, o_v < i_end, rules, IS_LINEAR)
        o_v = o_in_block + i_block * BLOCK_V
        b_value = processed(b_value, b_count, o_v, o_v < i_end, rules, i_level, b_token, IS_EXACT, IS_LINEAR, BLOCK_W)
        b_high, b_sum = sum_groups(b_value, scale, IS_LINEAR)
        o_g = (i_first + i_block * BLOCK_V) // GROUP + o_group
        tl.store(p_high + o_g, b_high, mask=o_g < NUM_GROUPS)
        tl.store(p_sum + o_g, b_sum, mask=o_g < NUM_GROUPS)


@triton.jit
def bound_of_groups(b_high, b_most, b_sum, high, scale, limit, is_count, IS_LINEAR: tl.constexpr, GROUP: tl.constexpr):
    """A value, the larger the better, such that the tokens at or above it are sure to be `limit` in number or in weight
    (as `weight_of` has it). If one cannot be sure, what every token with a weight is above.

    b_high  [BLOCK_G]: the largest value of each group; b_most: its weight; b_sum: the weight of the whole group

    A group at or above it counts one token; its weight is its largest one's, or its sum without as many tokens just
    below the bound as fit.
    """
    nothing = 2.0**-126 if IS_LINEAR else high - NOTHING / scale
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
            b_weight_d = (GROUP - 1) * weight_of(b_bound_d, high, scale, IS_LINEAR)
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
    tl.debug_barrier()  # everybody has read what was stored before
    tl.store(p_numbers + b_rank - 1, o_lane, mask=m_wanted)
    tl.debug_barrier()
    return tl.max(b_rank, axis=0)


@triton.jit
def tokens_of_groups(
    p_groups, i_first, num_groups, VOCAB_SIZE: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr
):
    """The numbers of the next BLOCK_V // GROUP groups of a list, which of them there are, and their tokens."""
    o_r = i_first + tl.arange(0, BLOCK_V // GROUP)
    o_g = tl.load(p_groups + o_r, mask=o_r < num_groups, other=0, volatile=True)
    o_v = o_g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    return o_g, o_r < num_groups, o_v, (o_v < VOCAB_SIZE) & (o_r < num_groups)[:, None]


@triton.jit
def list_candidates(
    p_row,
    b_high,
    p_own,
    p_list,
    p_size,
    i_split,
    bound,
    rules,
    i_level,
    b_token,
    IS_EXACT: tl.constexpr,
    IS_LINEAR: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Put a chunk's values at or above the bound in the list, in any order, as far as they fit; count all of them."""
    if CHUNK == BLOCK_V:
        # The chunk is read again whole.
        o_v = i_split * CHUNK + tl.arange(0, BLOCK_V // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        _list_block(
            p_row,
            o_v,
            o_v < VOCAB_SIZE,
            p_list,
            p_size,
            bound,
            rules,
            i_level,
            b_token,
            IS_EXACT,
            IS_LINEAR,
            LIST,
            BLOCK_W,
        )
    else:
        o_g = tl.arange(0, BLOCK_G)
        num_own = number_lanes((b_high >= bound) & (o_g // (CHUNK // GROUP) == i_split), p_own, o_g)
        i_own = 0
        while i_own < num_own:
            _o_own, _m_own, o_v, m_v = tokens_of_groups(p_own, i_own, num_own, VOCAB_SIZE, GROUP, BLOCK_V)
            _list_block(
                p_row, o_v, m_v, p_list, p_size, bound, rules, i_level, b_token, IS_EXACT, IS_LINEAR, LIST, BLOCK_W
            )
            i_own += BLOCK_V // GROUP


@triton.jit
def _list_block(
    p_row,
    o_v,
    m_v,
    p_list,
    p_size,
    bound,
    rules,
    i_level,
    b_token,
    IS_EXACT: tl.constexpr,
    IS_LINEAR: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    b_value, b_count = load_tokens(p_row, o_v, m_v, rules, IS_LINEAR)
    b_value = processed(b_value, b_count, o_v, m_v, rules, i_level, b_token, IS_EXACT, IS_LINEAR, BLOCK_W)
    m_listed = b_value >= bound  # what was not read is -inf, and below it
    # Few are, so that it is quicker for each to take a number than to count them.
    p_number = p_size.to(tl.pointer_type(tl.int32), bitcast=True)  # the low half of a sum
    o_list = tl.atomic_add(p_number + tl.zeros_like(o_v), 1, mask=m_listed, sem="relaxed")
    tl.store(p_list + o_list, b_value, mask=m_listed & (o_list < LIST))


@triton.jit
def limits_of_list(
    p_list,
    num_listed,
    high,
    scale,
    total,
    k,
    p,
    least,
    IS_LINEAR: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """The least value that top-k, top-p and min-p keep of the first `LIST` listed tokens, and the weight of what is
    kept. Each is held against `BLOCK_L` others at once.
    """
    # [LIST]
    o_l = tl.arange(0, LIST)
    m_l = o_l < num_listed
    b_value = tl.load(p_list + o_l, mask=m_l, other=0.0, volatile=True)
    b_weight = weight_of(b_value, high, scale, IS_LINEAR)
    b_units = tl.where(m_l, to_units(b_weight), 0)
    b_above = tl.zeros([LIST], dtype=tl.int32)
    b_units_above = tl.zeros([LIST], dtype=tl.int64)
    i_other = 0
    while i_other < num_listed:
        # [BLOCK_L], [BLOCK_L, LIST]
        o_other = i_other + tl.arange(0, BLOCK_L)
        m_other = o_other < num_listed
        b_other = tl.load(p_list + o_other, mask=m_other, other=float("-inf"), volatile=True)
        b_weight_of_other = weight_of(tl.where(m_other, b_other, high), high, scale, IS_LINEAR)
        b_other_units = tl.where(m_other, to_units(b_weight_of_other), 0)
        m_above = b_other[:, None] > b_value[None, :]
        b_above += tl.sum(m_above.to(tl.int32), axis=0)
        b_units_above += tl.sum(tl.where(m_above, b_other_units[:, None], 0), axis=0)
        i_other += BLOCK_L
    m_kept = m_l & (b_above < k)
    if k < VOCAB_SIZE:
        total = tl.sum(tl.where(m_kept, b_units, 0), axis=0)
    m_kept = m_kept & (b_units_above < share_of(p, total, scale, IS_LINEAR)) & (b_weight >= least) & (b_weight > 0)
    return tl.min(tl.where(m_kept, b_value, float("inf")), axis=0), tl.sum(tl.where(m_kept, b_units, 0), axis=0)


@triton.jit
def share_of(p, total, scale, IS_LINEAR: tl.constexpr):
    """What top-p asks for, in units: a share of the total or, of probabilities, p itself; more than all from 1 on."""
    share = p.to(tl.float64) * scale * UNIT if IS_LINEAR else p.to(tl.float64) * total.to(tl.float64)
    return tl.where(p < 1, ceil(share), 0x7FFFFFFFFFFFFFFF)


@triton.jit
def search_limits(
    p_row,
    p_head,
    i_meeting,
    i_split,
    i_first,
    high,
    scale,
    k,
    p,
    least,
    rules,
    i_level,
    b_token,
    IS_EXACT: tl.constexpr,
    IS_LINEAR: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_SEARCH: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """The same, of all tokens: eight digits by count, eight by weight, and a round for the weight of what is kept.

    Also gives the next meeting's number.
    """
    o_d = tl.arange(0, 16)
    i_least = tl.full([], -0x80000000, dtype=tl.int64)  # key of the least value that the filters before have kept
    i_pivot = i_least
    share = tl.full([], 0, dtype=tl.int64)
    total = tl.full([], 0, dtype=tl.int64)
    i_round = tl.where(k < VOCAB_SIZE, 0, tl.where(p < 1, 8, 16))
    while i_round <= 16:
        shift = 28 - 4 * (i_round % 8)
        b_key_d = tl.maximum(i_pivot + (o_d.to(tl.int64) << shift), i_least).to(tl.int32)  # [16]
        b_sums = tl.zeros([16, BLOCK_SEARCH], dtype=tl.float32)
        for i_block in range(CHUNK // BLOCK_SEARCH):
            # [BLOCK_SEARCH]
            o_v = i_first + i_block * BLOCK_SEARCH + tl.arange(0, BLOCK_SEARCH)
            m_v = o_v < VOCAB_SIZE
            b_value, b_count = load_tokens(p_row, o_v, m_v, rules, IS_LINEAR)
            b_value = processed(b_value, b_count, o_v, m_v, rules, i_level, b_token, IS_EXACT, IS_LINEAR, BLOCK_W)
            b_amount = weight_of(b_value, high, scale, IS_LINEAR)
            b_amount = tl.where(b_amount < tl.where(i_round == 16, least, 0.0), 0.0, b_amount)
            b_amount = tl.where(m_v, tl.where(i_round < 8, 1.0, b_amount), 0.0)
            b_sums += tl.where(key_of(b_value)[None, :] >= b_key_d[:, None], b_amount[None, :], 0.0)
        p_sums = p_head + 2 + (i_meeting % 3) * 16 + o_d
        tl.atomic_add(p_sums, tl.sum(to_units(b_sums), axis=1), sem="relaxed")
        arrive(p_head, SPLITS)
        i_meeting = wait(p_head, i_meeting, i_split, SPLITS)
        b_total = tl.load(p_sums, volatile=True)
        total = lane(b_total, 0, 16)
        if i_round == 0:
            share = k.to(tl.int64) << 40
        if i_round == 8:
            share = share_of(p, total, scale, IS_LINEAR)
        i_pivot += tl.max(tl.where(b_total >= share, o_d, 0), axis=0).to(tl.int64) << shift
        if (i_round % 8) == 7:
            i_least = tl.maximum(i_least, i_pivot)
            i_pivot = tl.full([], -0x80000000, dtype=tl.int64)
        i_round = tl.where((i_round == 7) & (p >= 1), 16, i_round + 1)
    lowest = value_of(i_least.to(tl.int32))
    return tl.where(lowest == lowest, lowest, float("-inf")), total, i_meeting


@triton.jit
def limits_from_bound(
    p_row,
    b_high,
    p_own,
    p_list,
    p_head,
    i_meeting,
    i_split,
    bound,
    high,
    scale,
    total,
    k,
    p,
    least,
    rules,
    i_level,
    b_token,
    IS_EXACT: tl.constexpr,
    IS_LINEAR: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    LIST: tl.constexpr,
    SHORT_LIST: tl.constexpr,
    BLOCK_SHORT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_SEARCH: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """The least value that top-k, top-p and min-p keep, which is not below `bound`, and the weight of what is kept; of
    the list where it is long enough, else by search. Also gives the next meeting's number.
    """
    p_size = p_head + 2 + (i_meeting % 3) * 16
    list_candidates(
        p_row,
        b_high,
        p_own,
        p_list,
        p_size,
        i_split,
        bound,
        rules,
        i_level,
        b_token,
        IS_EXACT,
        IS_LINEAR,
        VOCAB_SIZE,
        CHUNK,
        GROUP,
        LIST,
        BLOCK_V,
        BLOCK_G,
        BLOCK_W,
    )
    arrive(p_head, SPLITS)
    i_meeting = wait(p_head, i_meeting, i_split, SPLITS)
    num_listed = tl.load(p_size, volatile=True)
    i_listed = num_listed.to(tl.int32)
    if num_listed <= SHORT_LIST:
        lowest, total = limits_of_list(
            p_list, i_listed, high, scale, total, k, p, least, IS_LINEAR, VOCAB_SIZE, SHORT_LIST, BLOCK_SHORT
        )
    elif num_listed <= LIST:
        lowest, total = limits_of_list(
            p_list, i_listed, high, scale, total, k, p, least, IS_LINEAR, VOCAB_SIZE, LIST, BLOCK_L
        )
    else:
        lowest, total, i_meeting = search_limits(
            p_row,
            p_head,
            i_meeting,
            i_split,
            i_split * CHUNK,
            high,
            scale,
            k,
            p,
            least,
            rules,
            i_level,
            b_token,
            IS_EXACT,
            IS_LINEAR,
            VOCAB_SIZE,
            SPLITS,
            CHUNK,
            BLOCK_SEARCH,
            BLOCK_W,
        )
    return lowest, total, i_meeting


@triton.jit
def without_children(
    m_kept,
    o_group,
    p_candidates,
    p_next_token,
    p_next_sibling,
    i_first_node,
    i_node,
    NDT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Which groups of `GROUP` tokens are kept (of 1: which tokens), those that hold a child of the node left out."""
    i_child = tl.load(p_next_token + i_first_node + i_node)
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT):
        m_kept = m_kept & (o_group != tl.load(p_candidates + i_first_node + i_child) // GROUP)
        i_child = tl.load(p_next_sibling + i_first_node + i_child)
        i_hop += 1
    return m_kept
