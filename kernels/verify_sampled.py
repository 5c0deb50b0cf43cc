"""A whole verification at a temperature in one launch: from the target's logits to what the next step begins with.

Nothing of the size of the logits is written. `splits` programs a request go from node to node together, and only rows
of nodes that the walk reaches are read. What bounds a small batch is the launch and, for each visited node, one trip to
memory and one meeting of the programs (two where a filter is asked for); a large one, the bytes of the visited rows.

* A row is cut into *groups* of neighbouring tokens. One pass over it leaves, for each group, its largest logit and the
  sum of its weights relative to that. From these few numbers every program knows the row's largest logit and total
  weight. Without filters that is all: children are held against the total, and the token after the walk is drawn from
  a group, by the groups' sums, and then within it.
* With top-k, top-p or min-p the groups' numbers also bound from below the least logit that can be kept. Groups whose
  largest logit is above the bound are read again, and their few candidates put in a list, on which every program finds
  out what is kept: a token by how many others, of what weight, are above it. Equal tokens are kept together.
* Where the candidates do not fit the list (many ties, a flat law, a large k) the least kept logit is searched for digit
  by digit, by counts and sums over the row: a meeting for each digit.

Weights are summed as integers, in units of `UNIT` of the most probable token's, and so in any order: results are the
same bit for bit from run to run. They can differ from the reference's where a coin or a limit lies within rounding of a
threshold, or where two logits differ by less than their probabilities' rounding.

The programs of a request wait for each other, which a cooperative launch allows; with one a request nobody waits.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import LOGITS, operation, require_size
from specsim.kernels.scratch import scratch_of
from specsim.kernels.split_rows import (
    HEAD,
    LOG2_E,
    NOTHING,
    UNIT,
    arrive,
    bound_of_groups,
    lane,
    leave,
    limits_from_bound,
    load_tokens,
    number_lanes,
    processed,
    rules_of_node,
    scan_chunk,
    sum_groups,
    to_units,
    tokens_of_groups,
    wait,
    without_children,
)
from specsim.kernels.verify_logits import num_sms_of, splits_of, store_step, touch_links
from specsim.reference.logits import EXACT, RELAXED
from specsim.reference.sampling import THRESHOLD_ACC_MIN

__all__ = ["verify_logits_sampled"]

GROUP = 128  # tokens of a group, at least: a warp's widest loads of float32
GROUPS_MAX = 1024  # of a row: more would not fit the registers
BLOCK_V = 1024
BLOCK_SEARCH = 64
LIST = 256  # candidates that fit the list
SHORT_LIST = 64  # that is held against itself at once
BLOCK_L = 16  # of them that the others are held against at once
NUM_WARPS = 4
REGISTERS = 255
PROGRAMS_PER_SM = 2  # by registers: 65536 // (32 * NUM_WARPS * REGISTERS)
SPLITS_MAX = 64


@operation(logits=LOGITS)
def verify_logits_sampled(
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    output_counts: Tensor,
    output_lens: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    repetition_penalty: Tensor,
    min_new_tokens: Tensor,
    stop_token_ids: Tensor,
    logit_bias: Tensor,
    bias_rows: Tensor,
    bitmask: Tensor,
    bitmask_rows: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    threshold_single: Tensor,
    threshold_acc: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    predicts: Tensor,
    accept_index: Tensor,
    accept_lens: Tensor,
    bonus_tokens: Tensor,
    new_seq_lens: Tensor,
    accept_tokens: Tensor,
    target: Tensor,
    source: Tensor,
    num_steps: int,
    law: int,
) -> None:
    """Verify a batch of trees at a temperature, from logits [num_nodes, vocab_size] in float32, bfloat16 or float16.

    Shapes and dtypes: specsim.reference.verify_logits.verify_logits_sampled. What a request does not ask for is not
    read: its counts where its penalties change nothing, its biases and masks where their rows are -1. Every output is
    written whole but `predicts`, of which the accepted path is.

    A row without a law (a NaN, +inf, or every token forbidden) accepts no child and is followed by the last token.
    Raises ValueError for unknown laws.
    """
    bs = candidates.shape[0]
    if law not in (EXACT, RELAXED):
        raise ValueError(f"law is {law}; allowed: EXACT ({EXACT}), RELAXED ({RELAXED})")
    require_size("bitmask", "num_words", bitmask.shape[1], -(-logits.shape[1] // 32))
    require_size("accept_index", "accept_width", accept_index.shape[1], num_steps + 1)
    launch_verify_logits_sampled(
        1 if logits.device.type == "cpu" else splits_of_batch(bs, num_sms_of(logits.device)),
        logits,
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        uniform_samples,
        uniform_final,
        output_counts,
        output_lens,
        frequency_penalty,
        presence_penalty,
        repetition_penalty,
        min_new_tokens,
        stop_token_ids,
        logit_bias,
        bias_rows,
        bitmask,
        bitmask_rows,
        temperature,
        top_k,
        top_p,
        min_p,
        threshold_single,
        threshold_acc,
        seq_lens,
        out_cache_loc,
        predicts,
        accept_index,
        accept_lens,
        bonus_tokens,
        new_seq_lens,
        accept_tokens,
        target,
        source,
        num_steps,
        law,
    )


def splits_of_batch(bs: int, num_sms: int) -> int:
    """Programs a request that fill a device of `num_sms` multiprocessors, and can all be on it at once."""
    return splits_of(PROGRAMS_PER_SM * num_sms // max(bs, 1), SPLITS_MAX)


def launch_verify_logits_sampled(splits: int, logits: Tensor, candidates: Tensor, *rest: Any) -> None:
    """`verify_logits_sampled` over `splits` programs a request, a power of two. Triton's interpreter, in which programs
    run one after the other and none may wait for another, takes 1.
    """
    *tensors, num_steps, law = rest
    bs, num_draft_tokens = candidates.shape
    if bs == 0:
        return
    vocab_size = logits.shape[1]
    block_v = min(BLOCK_V, triton.next_power_of_2(vocab_size))
    group = min(max(GROUP, triton.next_power_of_2(triton.cdiv(vocab_size, GROUPS_MAX))), block_v)
    block_search = min(BLOCK_SEARCH, block_v)
    num_groups = triton.cdiv(vocab_size, group)
    chunk = triton.cdiv(vocab_size, splits * block_v) * block_v
    tuned: dict[str, Any] = {"num_warps": NUM_WARPS}
    if logits.device.type != "cpu":
        tuned |= {"maxnreg": REGISTERS, "launch_cooperative_grid": splits > 1}
    scratch = _scratch(logits.device, bs, num_groups, bs * splits * (chunk // group))
    stop_token_ids, logit_bias, bitmask = tensors[11], tensors[12], tensors[14]
    _kernel[(bs * splits,)](
        logits,
        candidates,
        *tensors,
        *scratch,
        bs * num_draft_tokens,
        stop_token_ids.shape[1],
        logit_bias.shape[0],
        bitmask.shape[0],
        VOCAB_SIZE=vocab_size,
        NUM_STEPS=num_steps,
        NDT=num_draft_tokens,
        NUM_WORDS=bitmask.shape[1],
        IS_EXACT=law == EXACT,
        ACC_MIN=THRESHOLD_ACC_MIN,
        SPLITS=splits,
        CHUNK=chunk,
        NUM_GROUPS=num_groups,
        GROUP=group,
        LIST=LIST,
        SHORT_LIST=min(SHORT_LIST, LIST),
        BLOCK_L=min(BLOCK_L, LIST),
        BLOCK_V=block_v,
        BLOCK_SEARCH=block_search,
        BLOCK_G=triton.next_power_of_2(num_groups),
        BLOCK_W=triton.next_power_of_2(num_steps + 1),
        BLOCK_N=triton.next_power_of_2(num_draft_tokens),
        **tuned,
    )


class Scratch(NamedTuple):
    """Through which the programs of a launch talk.

    heads   [bs, HEAD] int64: zero between launches
    lists   [bs, LIST] float32: logits of candidates
    groups  [bs, 4, num_groups] float32: the largest logit and the sum of each group, for two nodes in turn
    owns    [bs * splits, groups of a chunk] int32: numbers of a program's groups that it reads again
    """

    heads: Tensor
    lists: Tensor
    groups: Tensor
    owns: Tensor


def _scratch(device: torch.device, bs: int, num_groups: int, num_owns: int) -> Scratch:
    return Scratch(
        scratch_of("verify_logits_sampled heads", device, bs * HEAD.value),
        scratch_of("verify_logits_sampled lists", device, bs * LIST, torch.float32),
        scratch_of("verify_logits_sampled groups", device, bs * 4 * num_groups, torch.float32),
        scratch_of("verify_logits_sampled owns", device, num_owns, torch.int32),
    )


@triton.jit(do_not_specialize=["num_nodes", "num_stop_tokens", "num_biases", "num_masks"])
def _kernel(
    p_logits,
    p_candidates,
    p_retrieve_index,
    p_next_token,
    p_next_sibling,
    p_uniform_samples,
    p_uniform_final,
    p_output_counts,
    p_output_lens,
    p_frequency_penalty,
    p_presence_penalty,
    p_repetition_penalty,
    p_min_new_tokens,
    p_stop_token_ids,
    p_logit_bias,
    p_bias_rows,
    p_bitmask,
    p_bitmask_rows,
    p_temperature,
    p_top_k,
    p_top_p,
    p_min_p,
    p_threshold_single,
    p_threshold_acc,
    p_seq_lens,
    p_out_cache_loc,
    p_predicts,
    p_accept_index,
    p_accept_lens,
    p_bonus_tokens,
    p_new_seq_lens,
    p_accept_tokens,
    p_target,
    p_source,
    p_heads,
    p_lists,
    p_groups,
    p_owns,
    num_nodes,
    num_stop_tokens,
    num_biases,
    num_masks,
    VOCAB_SIZE: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    IS_EXACT: tl.constexpr,
    ACC_MIN: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    LIST: tl.constexpr,
    SHORT_LIST: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_SEARCH: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`SPLITS` programs a request, each with a chunk of every row. All of them take the walk's decisions, the same."""
    i_program = tl.program_id(0)
    i_b = (i_program // SPLITS).to(tl.int64)
    i_split = i_program % SPLITS
    i_first = i_split * CHUNK
    i_first_node = i_b * NDT
    p_head = p_heads + i_b * HEAD
    p_list = p_lists + i_b * LIST
    p_groups += i_b * 4 * NUM_GROUPS
    p_own = p_owns + i_program.to(tl.int64) * (CHUNK // GROUP)
    o_w = tl.arange(0, BLOCK_W)
    o_n = tl.arange(0, BLOCK_N)
    o_g = tl.arange(0, BLOCK_G)

    # What the request asks for.
    is_repeated = tl.load(p_repetition_penalty + i_b) != 1
    is_penalised = (tl.load(p_frequency_penalty + i_b) != 0) | (tl.load(p_presence_penalty + i_b) != 0) | is_repeated
    i_bias = tl.load(p_bias_rows + i_b).to(tl.int64)
    is_biased = (i_bias >= 0) & (i_bias < num_biases)
    request = (
        p_frequency_penalty + i_b,
        p_presence_penalty + i_b,
        p_repetition_penalty + i_b,
        p_output_counts + i_b * VOCAB_SIZE,
        is_penalised,
        is_repeated,
        p_logit_bias + i_bias * VOCAB_SIZE,
        is_biased,
        p_stop_token_ids + i_b * num_stop_tokens,
    )
    missing = tl.load(p_min_new_tokens + i_b) - tl.load(p_output_lens + i_b)
    scale = tl.div_rn(LOG2_E, tl.load(p_temperature + i_b))
    k = tl.load(p_top_k + i_b)
    p = tl.load(p_top_p + i_b)
    least = tl.load(p_min_p + i_b)
    is_filtered = (k < VOCAB_SIZE) | (p < 1) | (least > 0)
    single = tl.load(p_threshold_single)
    acc = tl.maximum(tl.load(p_threshold_acc), ACC_MIN)

    i_node = touch_links(p_retrieve_index, p_candidates, p_next_token, p_next_sibling, i_first_node, NDT, BLOCK_N)
    b_candidate = tl.load(p_candidates + i_first_node + o_n, mask=o_n < NDT, other=-1)  # [BLOCK_N]
    m_candidate = (b_candidate >= 0) & (b_candidate < VOCAB_SIZE)
    b_candidate = b_candidate.to(tl.int32)
    # [BLOCK_W]: accepted nodes, and the token after each
    b_path = tl.where(o_w == 0, tl.load(p_retrieve_index + i_first_node), -1)
    b_token = tl.full([BLOCK_W], -1, dtype=tl.int32)
    i_accepted = 0
    i_meeting = 0
    # Of the node where the walk stands: the largest logit, the least that is kept, and the weight of what is.
    high = tl.full([], 0.0, dtype=tl.float32)
    lowest = tl.full([], 0.0, dtype=tl.float32)
    total = tl.full([], 0, dtype=tl.int64)
    is_walking = i_accepted == 0
    is_rejected = i_accepted != 0
    has_law = i_accepted == 0
    while is_walking:
        i_row = i_first_node + i_node
        p_row = p_logits + i_row * VOCAB_SIZE
        i_drafts = i_accepted if IS_EXACT else 0
        num_stops = tl.where(i_drafts < missing, num_stop_tokens, 0)
        rules = rules_of_node(request, num_stops, p_bitmask, p_bitmask_rows + i_row, num_masks, NUM_WORDS)
        # Asked for first, and used when the row was read.
        coin = tl.load(p_uniform_samples + i_row)
        i_child = tl.load(p_next_token + i_row)
        b_child, b_child_count = load_tokens(p_row, b_candidate, m_candidate, rules, False)
        p_high = p_groups + (i_accepted % 2) * 2 * NUM_GROUPS
        p_sum = p_high + NUM_GROUPS
        scan_chunk(
            p_row,
            p_high,
            p_sum,
            i_first,
            scale,
            rules,
            i_drafts,
            b_token,
            IS_EXACT,
            False,
            VOCAB_SIZE,
            CHUNK,
            NUM_GROUPS,
            GROUP,
            BLOCK_V,
            BLOCK_W,
        )
        arrive(p_head, SPLITS)
        b_child = processed(
            b_child, b_child_count, b_candidate, m_candidate, rules, i_drafts, b_token, IS_EXACT, False, BLOCK_W
        )
        i_meeting = wait(p_head, i_meeting, i_split, SPLITS)
        b_high = tl.load(p_high + o_g, mask=o_g < NUM_GROUPS, other=float("-inf"), volatile=True)
        b_sum = tl.load(p_sum + o_g, mask=o_g < NUM_GROUPS, other=0.0, volatile=True)
        high = tl.max(b_high, axis=0)
        has_law = (high > float("-inf")) & (high < float("inf"))
        high = tl.where(has_law, high, 0.0)
        b_most = tl.exp2((b_high - high) * scale)
        b_sum = tl.where(has_law, b_sum * b_most, 0.0)
        total = tl.sum(to_units(b_sum), axis=0)
        lowest = tl.full([], float("-inf"), dtype=tl.float32)
        if is_filtered & has_law:
            whole = total.to(tl.float32) / UNIT
            bound = high + (tl.log2(tl.maximum(least, 2.0**-126)) - 2.0**-10) / scale
            if (k < VOCAB_SIZE) | (p < 1):
                limit = tl.where(k < VOCAB_SIZE, k.to(tl.float32), p * whole * (1 + 2.0**-16))
                bound = bound_of_groups(b_high, b_most, b_sum, high, scale, limit, k < VOCAB_SIZE, False, GROUP)
            nothing = high - NOTHING / scale
            bound = tl.where(bound > nothing, bound, nothing)
            lowest, total, i_meeting = limits_from_bound(
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
                i_drafts,
                b_token,
                IS_EXACT,
                False,
                VOCAB_SIZE,
                SPLITS,
                CHUNK,
                GROUP,
                LIST,
                SHORT_LIST,
                SHORT_LIST // 2,
                BLOCK_L,
                BLOCK_V,
                BLOCK_SEARCH,
                BLOCK_G,
                BLOCK_W,
            )

        b_weight = tl.exp2((b_child - high) * scale)
        weight = tl.maximum(total.to(tl.float32) / UNIT, 2.0**-40)
        b_prob = tl.where((b_child >= lowest) & (b_weight >= least), tl.div_rn(b_weight, weight), 0.0)
        b_prob = tl.where(has_law, b_prob, 0.0)
        mass = coin * 0.0
        i_child = tl.where(i_accepted < NUM_STEPS, i_child, -1)
        is_rejected = (i_child >= 0) & (i_child < NDT)
        i_taken = tl.full([], -1, dtype=tl.int64)
        i_hop = 1
        while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT) & (i_taken < 0):
            i_next_sibling = tl.load(p_next_sibling + i_first_node + i_child)
            prob = lane(b_prob, i_child, BLOCK_N)
            mass += prob
            is_taken = (prob > 0) & ((coin < tl.div_rn(mass, acc)) | (prob >= single))
            i_taken = tl.where(is_taken, i_child, -1)
            i_child = i_next_sibling
            i_hop += 1
        is_walking = i_taken >= 0
        if is_walking:
            i_node = i_taken
            b_token = tl.where(o_w == i_accepted, lane(b_candidate, i_taken, BLOCK_N), b_token)
            i_accepted += 1
            b_path = tl.where(o_w == i_accepted, tl.load(p_retrieve_index + i_first_node + i_taken), b_path)

    if i_split == 0:
        # What is left of the law: groups of which a part is left are summed again.
        i_row = i_first_node + i_node
        p_row = p_logits + i_row * VOCAB_SIZE
        i_drafts = i_accepted if IS_EXACT else 0
        num_stops = tl.where(i_drafts < missing, num_stop_tokens, 0)
        rules = rules_of_node(request, num_stops, p_bitmask, p_bitmask_rows + i_row, num_masks, NUM_WORDS)
        p_high = p_groups + (i_accepted % 2) * 2 * NUM_GROUPS
        p_sum = p_high + NUM_GROUPS
        b_high = tl.load(p_high + o_g, mask=o_g < NUM_GROUPS, other=float("-inf"), volatile=True)
        b_sum = tl.load(p_sum + o_g, mask=o_g < NUM_GROUPS, other=0.0, volatile=True)
        if (is_filtered | is_rejected) & has_law:
            # Where the node's before stood, which nobody reads any more; the last node's may still be read.
            p_left = p_groups + ((i_accepted + 1) % 2) * 2 * NUM_GROUPS
            m_again = (b_high >= lowest) & (o_g < NUM_GROUPS)
            if not is_filtered:
                m_again = m_again & ~without_children(
                    m_again, o_g, p_candidates, p_next_token, p_next_sibling, i_first_node, i_node, NDT, GROUP
                )
            num_again = number_lanes(m_again, p_own, o_g)
            i_again = 0
            while i_again < num_again:
                o_again, m_group, o_v, m_v = tokens_of_groups(p_own, i_again, num_again, VOCAB_SIZE, GROUP, BLOCK_V)
                b_logit, b_count = load_tokens(p_row, o_v, m_v, rules, False)
                b_logit = processed(b_logit, b_count, o_v, m_v, rules, i_drafts, b_token, IS_EXACT, False, BLOCK_W)
                b_weight = tl.exp2((b_logit - high) * scale)
                m_kept = m_v & (b_logit >= lowest) & (b_weight >= least) & (b_weight > 0)
                if is_rejected:
                    m_kept = without_children(
                        m_kept, o_v, p_candidates, p_next_token, p_next_sibling, i_first_node, i_node, NDT, 1
                    )
                b_high_again, b_sum_again = sum_groups(tl.where(m_kept, b_logit, float("-inf")), scale, False)
                tl.store(p_left + o_again, b_high_again, mask=m_group)
                tl.store(p_left + NUM_GROUPS + o_again, b_sum_again, mask=m_group)
                i_again += BLOCK_V // GROUP
            tl.debug_barrier()
            b_high = tl.where(is_filtered, float("-inf"), b_high)
            b_high = tl.where(m_again, tl.load(p_left + o_g, mask=m_again, other=0.0, volatile=True), b_high)
            b_sum = tl.where(is_filtered, 0.0, b_sum)
            b_sum = tl.where(m_again, tl.load(p_left + NUM_GROUPS + o_g, mask=m_again, other=0.0, volatile=True), b_sum)

        # Draw a group by the groups' weights, relative to the most probable token that is left, and a token of it.
        top = tl.max(b_high, axis=0)
        top = tl.where((top > float("-inf")) & (top < float("inf")), top, 0.0)
        b_units = to_units(tl.where(has_law, b_sum * tl.exp2((b_high - top) * scale), 0.0))
        b_cdf = tl.cumsum(b_units, axis=0)
        threshold = tl.load(p_uniform_final + i_b).to(tl.float64) * tl.sum(b_units, axis=0).to(tl.float64)
        m_some = b_units > 0
        i_above = tl.min(tl.where(m_some & (b_cdf > threshold.to(tl.int64)), o_g, NUM_GROUPS), axis=0)
        i_last = tl.max(tl.where(m_some, o_g, -1), axis=0)
        i_group = tl.where(i_above < NUM_GROUPS, i_above, i_last)
        i_drawn = tl.full([], VOCAB_SIZE - 1, dtype=tl.int32)
        if i_group >= 0:
            units = lane(b_units, i_group, BLOCK_G)
            within = (threshold - (lane(b_cdf, i_group, BLOCK_G) - units).to(tl.float64)) / units.to(tl.float64)
            # [GROUP]
            o_v = i_group * GROUP + tl.arange(0, GROUP)
            m_v = o_v < VOCAB_SIZE
            b_logit, b_count = load_tokens(p_row, o_v, m_v, rules, False)
            b_logit = processed(b_logit, b_count, o_v, m_v, rules, i_drafts, b_token, IS_EXACT, False, BLOCK_W)
            b_weight = tl.exp2((b_logit - high) * scale)
            m_kept = m_v & (b_logit >= lowest) & (b_weight >= least) & (b_weight > 0)
            if is_rejected:
                m_kept = without_children(
                    m_kept, o_v, p_candidates, p_next_token, p_next_sibling, i_first_node, i_node, NDT, 1
                )
            group_high = lane(tl.where(o_g == i_group, b_high, 0.0), i_group, BLOCK_G)
            b_share = tl.where(m_kept, tl.exp2((b_logit - group_high) * scale), 0.0)
            b_cdf_v = tl.cumsum(b_share, axis=0)
            threshold_v = within * tl.sum(b_share, axis=0).to(tl.float64)
            m_above = (b_share > 0) & (b_cdf_v.to(tl.float64) > threshold_v)
            i_above = tl.min(tl.where(m_above, o_v, VOCAB_SIZE), axis=0)
            i_last = tl.max(tl.where(b_share > 0, o_v, -1), axis=0)
            i_drawn = tl.where(i_above < VOCAB_SIZE, i_above, tl.where(i_last >= 0, i_last, VOCAB_SIZE - 1))
        b_token = tl.where(o_w == i_accepted, i_drawn, b_token)
        store_step(
            i_b,
            b_path,
            b_token,
            i_accepted,
            p_seq_lens,
            p_out_cache_loc,
            p_predicts,
            p_accept_index,
            p_accept_lens,
            p_bonus_tokens,
            p_new_seq_lens,
            p_accept_tokens,
            p_target,
            p_source,
            num_nodes,
            NUM_STEPS,
            NDT,
            BLOCK_W,
        )
    leave(p_head, SPLITS)
