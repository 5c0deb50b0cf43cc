"""A row of logits, shared out over the programs of a request: its law, and the least logit that filters keep.

The parts of `verify_sampled`'s kernel that read a chunk of a row or weigh what was read. `rules` is what a request
asks for at a node; `scale` turns differences of logits into powers of two.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

UNIT = tl.constexpr(2.0**40)
LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(150.0)  # 2 to the power of minus this is 0


@triton.jit
def lane(b_values, i_lane, LANES: tl.constexpr):
    """One element of a vector, as a scalar."""
    return tl.sum(tl.where(tl.arange(0, LANES) == i_lane, b_values, 0), axis=0)


@triton.jit
def key_of(b_logit):
    """int32 that compare as the logits do; zeros of both signs are one."""
    b_bits = tl.where(b_logit == 0, 0.0, b_logit).to(tl.int32, bitcast=True)
    return b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)


@triton.jit
def logit_of(b_key):
    return (b_key ^ ((b_key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def to_units(b_weight):
    return (b_weight * UNIT).to(tl.int64)


@triton.jit
def ceil(share):
    """The least integer that is not below a float64 of at most 2^62."""
    i_share = share.to(tl.int64)
    return i_share + (i_share.to(tl.float64) < share).to(tl.int64)


@triton.jit
def meet(p_head, i_meeting, i_split, SPLITS: tl.constexpr):
    """Wait for the other programs of the request, and see what they stored before; gives the next meeting's number.

    Sums that were added up before meeting m are in set m % 3 and read until meeting m + 1; so the set of the meeting
    before this one is free.
    """
    tl.debug_barrier()
    if SPLITS > 1:
        tl.atomic_add(p_head, 1, sem="acq_rel")
        i_here = tl.load(p_head, volatile=True)
        while i_here < (i_meeting + 1) * SPLITS:
            i_here = tl.load(p_head, volatile=True)
        tl.atomic_add(p_head, 0, sem="acquire")
        tl.debug_barrier()
    if i_split == 0:
        o_d = tl.arange(0, 16)
        tl.store(p_head + 2 + ((i_meeting + 2) % 3) * 16 + o_d, tl.zeros([16], dtype=tl.int64))
    return i_meeting + 1


@triton.jit
def processed(b_logit, o_v, m_v, rules, i_level, b_token, IS_EXACT: tl.constexpr, BLOCK_W: tl.constexpr):
    """Logits at tokens `o_v` after what the request asks for, all but the temperature. `b_token` holds the drafts of
    the node's path, of which there are `i_level`.
    """
    (
        p_frequency,
        p_presence,
        p_repetition,
        p_counts,
        is_penalised,
        p_bias,
        is_biased,
        p_stop,
        i_stop_end,
        p_mask,
        is_masked,
    ) = rules
    b_logit = b_logit.to(tl.float32)
    if is_penalised:
        # Loaded again each time: what is kept for the whole walk is kept in registers.
        frequency, presence, repetition = tl.load(p_frequency), tl.load(p_presence), tl.load(p_repetition)
        b_count = tl.load(p_counts + o_v, mask=m_v, other=0)
        if IS_EXACT:
            i_draft = 0
            while i_draft < i_level:
                b_count += (o_v == lane(b_token, i_draft, BLOCK_W)).to(tl.int32)
                i_draft += 1
        m_present = b_count > 0
        b_logit -= frequency * b_count.to(tl.float32) + tl.where(m_present, presence, 0.0)
        b_scaling = tl.where(m_present, repetition, 1.0)
        b_logit = tl.where(b_logit < 0, b_logit * b_scaling, tl.div_rn(b_logit, b_scaling))
    if is_biased:
        b_logit += tl.load(p_bias + o_v, mask=m_v, other=0.0)
    i_stop = 0
    while i_stop < i_stop_end:
        b_logit = tl.where(o_v == tl.load(p_stop + i_stop), float("-inf"), b_logit)
        i_stop += 1
    if is_masked:
        b_word = tl.load(p_mask + o_v // 32, mask=m_v, other=0)
        b_logit = tl.where(((b_word >> (o_v % 32)) & 1) == 0, float("-inf"), b_logit)
    return b_logit


@triton.jit
def load_block(
    p_row, i_first, i_block, VOCAB_SIZE: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr
):
    """Block `i_block` of a chunk by groups [BLOCK_V // GROUP, GROUP], as it is; -inf beyond the chunk and the row."""
    o_group = tl.arange(0, BLOCK_V // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    o_v = i_first + i_block * BLOCK_V + o_group
    return tl.load(p_row + o_v, mask=o_v < tl.minimum(i_first + CHUNK, VOCAB_SIZE), other=float("-inf"))


@triton.jit
def sum_groups(b_logit, scale):
    """The largest logit of each group, +inf where one is NaN or +inf; and the sum of the weights relative to it."""
    b_logit = tl.where(b_logit < float("inf"), b_logit, float("inf"))
    b_high = tl.max(b_logit, axis=1)
    b_base = tl.where((b_high > float("-inf")) & (b_high < float("inf")), b_high, 0.0)
    return b_high, tl.sum(tl.exp2((b_logit - b_base[:, None]) * scale), axis=1)


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
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Store both numbers of each group of a chunk. Each block is asked for before the two ahead of it are used."""
    o_group = tl.arange(0, BLOCK_V // GROUP)
    o_in_block = o_group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    b_next = load_block(p_row, i_first, 0, VOCAB_SIZE, CHUNK, GROUP, BLOCK_V)
    b_after = load_block(p_row, i_first, 1, VOCAB_SIZE, CHUNK, GROUP, BLOCK_V)
    for i_block in range(CHUNK // BLOCK_V):
        b_logit = b_next
        b_next = b_after
        b_after = load_block(p_row, i_first, i_block + 2, VOCAB_SIZE, CHUNK, GROUP, BLOCK_V)
        o_v = i_first + i_block * BLOCK_V + o_in_block
        b_logit = processed(b_logit, o_v, o_v < VOCAB_SIZE, rules, i_level, b_token, IS_EXACT, BLOCK_W)
        b_high, b_sum = sum_groups(b_logit, scale)
        o_g = (i_first + i_block * BLOCK_V) // GROUP + o_group
        tl.store(p_high + o_g, b_high, mask=o_g < NUM_GROUPS)
        tl.store(p_sum + o_g, b_sum, mask=o_g < NUM_GROUPS)


@triton.jit
def bound_of_groups(b_high, b_sum, high, scale, limit, is_count, GROUP: tl.constexpr):
    """A logit, the larger the better, such that the tokens at or above it are sure to be `limit` in number or in weight
    (of which the most probable token has 1). NaN or less than every logit if one cannot be sure.

    A group at or above it counts one token; its weight is its largest one's, or its sum without as many tokens just
    below the bound as fit.
    """
    b_key = key_of(b_high)  # [BLOCK_G]
    b_most = tl.exp2((b_high - high) * scale)
    b_sum = b_sum * b_most
    o_d = tl.arange(0, 4)
    i_bound = tl.full([], -0x80000000, dtype=tl.int64)
    for i_pass in range(8):  # half of the bits: a bound need not be sharp
        # [4], [4, BLOCK_G]
        b_key_d = (i_bound + (o_d.to(tl.int64) << (30 - 2 * i_pass))).to(tl.int32)
        b_logit_d = logit_of(b_key_d)
        b_near_d = tl.minimum(tl.maximum(b_logit_d, high - NOTHING / scale), high)  # so that nothing overflows
        b_weight_d = tl.exp2((b_near_d - high) * scale)
        b_weight_d = tl.where(b_logit_d == b_logit_d, b_weight_d, 0.0)
        b_least = tl.maximum(b_most[None, :], b_sum[None, :] - (GROUP - 1) * b_weight_d[:, None])
        b_least = tl.where(is_count, 1.0, b_least)
        b_amount = tl.sum(tl.where(b_key[None, :] >= b_key_d[:, None], b_least, 0.0), axis=1)
        i_digit = tl.max(tl.where(b_amount >= limit, o_d, 0), axis=0)
        i_bound += i_digit.to(tl.int64) << (30 - 2 * i_pass)
    return logit_of(i_bound.to(tl.int32))


@triton.jit
def list_candidates(
    p_row,
    p_high,
    p_list,
    p_size,
    i_first,
    bound,
    rules,
    i_level,
    b_token,
    IS_EXACT: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Put a chunk's logits at or above the bound in the list, in any order, as far as they fit; count all of them."""
    o_group = tl.arange(0, BLOCK_V // GROUP)
    o_in_block = o_group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    for i_block in range(CHUNK // BLOCK_V):
        o_g = (i_first + i_block * BLOCK_V) // GROUP + o_group
        b_high = tl.load(p_high + o_g, mask=o_g < NUM_GROUPS, other=float("-inf"), volatile=True)
        if tl.max(b_high, axis=0) >= bound:
            o_v = i_first + i_block * BLOCK_V + o_in_block
            m_v = (o_v < VOCAB_SIZE) & (b_high >= bound)[:, None]
            b_logit = tl.load(p_row + o_v, mask=m_v, other=float("-inf"))
            b_logit = processed(b_logit, o_v, m_v, rules, i_level, b_token, IS_EXACT, BLOCK_W)
            # [BLOCK_V]; what was not read is -inf, and below the bound
            b_logit = tl.reshape(b_logit, [BLOCK_V])
            m_listed = b_logit >= bound
            b_rank = tl.cumsum(m_listed.to(tl.int32), axis=0)
            i_list = tl.atomic_add(p_size, tl.max(b_rank, axis=0).to(tl.int64), sem="relaxed")
            o_list = tl.minimum(i_list, LIST).to(tl.int32) + b_rank - 1
            tl.store(p_list + o_list, b_logit, mask=m_listed & (o_list < LIST))


@triton.jit
def limits_of_list(p_list, num_listed, high, scale, total, k, p, least, VOCAB_SIZE: tl.constexpr, LIST: tl.constexpr):
    """The least logit that top-k, top-p and min-p keep of the listed tokens, and the weight of what is kept."""
    # [LIST]
    o_l = tl.arange(0, LIST)
    m_l = o_l < num_listed
    b_logit = tl.load(p_list + o_l, mask=m_l, other=0.0, volatile=True)
    b_weight = tl.exp2((b_logit - high) * scale)
    b_units = tl.where(m_l, to_units(b_weight), 0)
    b_above = tl.zeros([LIST], dtype=tl.int32)
    b_units_above = tl.zeros([LIST], dtype=tl.int64)
    i_other = 0
    while i_other < num_listed:
        # [8], [8, LIST]
        o_other = i_other + tl.arange(0, 8)
        m_other = o_other < num_listed
        b_other = tl.load(p_list + o_other, mask=m_other, other=0.0, volatile=True)
        b_other_units = to_units(tl.exp2((b_other - high) * scale))
        m_above = (b_other[:, None] > b_logit[None, :]) & m_other[:, None]
        b_above += tl.sum(m_above.to(tl.int32), axis=0)
        b_units_above += tl.sum(tl.where(m_above, b_other_units[:, None], 0), axis=0)
        i_other += 8
    m_kept = m_l & (b_above < k)
    if k < VOCAB_SIZE:
        total = tl.sum(tl.where(m_kept, b_units, 0), axis=0)
    share = tl.where(p < 1, ceil(p.to(tl.float64) * total.to(tl.float64)), 0x7FFFFFFFFFFFFFFF)
    m_kept = m_kept & (b_units_above < share) & (b_weight >= least) & (b_weight > 0)
    return tl.min(tl.where(m_kept, b_logit, float("inf")), axis=0), tl.sum(tl.where(m_kept, b_units, 0), axis=0)


@triton.jit
def search_limits(
    p_row,
    p_high,
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
    i_least = tl.full([], -0x80000000, dtype=tl.int64)  # key of the least logit that the filters before have kept
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
            b_logit = tl.load(p_row + o_v, mask=m_v, other=float("-inf"))
            b_logit = processed(b_logit, o_v, m_v, rules, i_level, b_token, IS_EXACT, BLOCK_W)
            b_amount = tl.exp2((b_logit - high) * scale)
            b_amount = tl.where(b_amount < tl.where(i_round == 16, least, 0.0), 0.0, b_amount)
            b_amount = tl.where(m_v, tl.where(i_round < 8, 1.0, b_amount), 0.0)
            b_sums += tl.where(key_of(b_logit)[None, :] >= b_key_d[:, None], b_amount[None, :], 0.0)
        p_sums = p_head + 2 + (i_meeting % 3) * 16 + o_d
        tl.atomic_add(p_sums, tl.sum(to_units(b_sums), axis=1), sem="relaxed")
        i_meeting = meet(p_head, i_meeting, i_split, SPLITS)
        b_total = tl.load(p_sums, volatile=True)
        total = lane(b_total, 0, 16)
        if i_round == 0:
            share = k.to(tl.int64) << 40
        if i_round == 8:
            share = ceil(p.to(tl.float64) * total.to(tl.float64))
        i_pivot += tl.max(tl.where(b_total >= share, o_d, 0), axis=0).to(tl.int64) << shift
        if (i_round % 8) == 7:
            i_least = tl.maximum(i_least, i_pivot)
            i_pivot = tl.full([], -0x80000000, dtype=tl.int64)
        i_round = tl.where((i_round == 7) & (p >= 1), 16, i_round + 1)
    lowest = logit_of(i_least.to(tl.int32))
    return tl.where(lowest == lowest, lowest, float("-inf")), total, i_meeting


@triton.jit
def without_children(m_kept, o_v, p_candidates, p_next_token, p_next_sibling, i_first_node, i_node, NDT: tl.constexpr):
    """Which tokens are kept, those of the node's children left out."""
    i_child = tl.load(p_next_token + i_first_node + i_node)
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT):
        m_kept = m_kept & (o_v != tl.load(p_candidates + i_first_node + i_child))
        i_child = tl.load(p_next_sibling + i_first_node + i_child)
        i_hop += 1
    return m_kept
