"""A whole verification at a temperature in one launch: from the target's logits to what the next step begins with.

Nothing of the size of the logits is written. `splits` programs a request go from node to node together, and only rows
of nodes that the walk reaches are read. What bounds a small batch is the launch and, for each visited node, one trip to
memory and one grid barrier (two with a filter); a large one, the bytes of the visited rows.

* A row is cut into *groups* of neighbouring tokens. One pass over it leaves, for each group, its largest logit and the
  sum of its weights relative to that. From these few numbers every program knows the row's largest logit and total
  weight. Without filters that is all: children are compared with the total, and the token after the walk is drawn from
  a group, by the groups' sums, and then within it.
* With top-k, top-p or min-p the groups' numbers also bound from below the least logit that can be kept. Groups whose
  largest logit is above the bound are read again, and their few candidates put in a list, on which every program finds
  out what is kept: a token by how many others, of what weight, are above it. Equal tokens are kept together.
* Where the candidates do not fit the list (many ties, a flat distribution, a large k) the least kept logit is searched
  for digit by digit, by counts and sums over the row: a grid barrier for each digit.

Weights are summed as integers, in units of `UNIT` of the most probable token's, and so in any order: results are the
same bit for bit from run to run. They can differ from the reference's where a uniform draw or a limit lies within
rounding of a threshold, or where two logits differ by less than their probabilities' rounding.

The programs of a request wait for each other, which a cooperative launch allows; with one a request none waits.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import LOGITS, checked_launch, options_of
from specsim.kernels.split_rows import (
    HEAD,
    LOG2_E,
    NOTHING,
    UNIT,
    Filters,
    NodeRules,
    RequestWants,
    RowPlace,
    Scratch,
    Shape,
    arrive,
    bound_of_groups,
    lane,
    leave,
    limits_from_bound,
    load_tokens,
    number_lanes,
    processed,
    scan_chunk,
    scratch_of_rows,
    sum_groups,
    to_units,
    tokens_of_groups,
    wait,
    without_children,
)
from specsim.kernels.verify import TreeTensors
from specsim.kernels.verify_logits import StepTensors, num_sms_of, splits_of, store_step, touch_links
from specsim.reference.logits import EXACT, RELAXED
from specsim.reference.sampling import THRESHOLD_ACC_MIN

__all__ = ["verify_logits_sampled"]

GROUP = 128  # tokens of a group, at least: a warp's widest loads of float32
GROUPS_MAX = 1024  # of a row: more would not fit the registers
BLOCK_V = 1024
BLOCK_SEARCH = 64
LIST = 256  # candidates that fit the list
SHORT_LIST = 64  # candidates of which half are compared with all at once
BLOCK_L = 16  # candidates of a longer list with which all are compared at once
NUM_WARPS = 4
REGISTERS = 255
PROGRAMS_PER_SM = 2  # by registers: 65536 // (32 * NUM_WARPS * REGISTERS)
SPLITS_MAX = 64
ACC_MIN = tl.constexpr(THRESHOLD_ACC_MIN)


class Requests(NamedTuple):
    """What each request wants: addresses of tensors as specsim.reference.verify_logits has them."""

    uniform_samples: Any
    uniform_final: Any
    output_counts: Any
    output_lens: Any
    frequency_penalty: Any
    presence_penalty: Any
    repetition_penalty: Any
    min_new_tokens: Any
    stop_token_ids: Any
    logit_bias: Any
    bias_rows: Any
    bitmask: Any
    bitmask_rows: Any
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    threshold_single: Any
    threshold_acc: Any


@checked_launch(logits=LOGITS)
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

    Shapes and dtypes: specsim.reference.verify_logits.verify_logits_sampled. What a request does not use is not
    read: its counts where its penalties change nothing, its biases and masks where their rows are -1. Every output is
    written whole but `predicts`, of which the accepted path is.

    A row without a distribution (a NaN, +inf, or every token forbidden) accepts no child and is followed by the last
    token. Raises ValueError for unknown laws.
    """
    bs = candidates.shape[0]
    if law not in (EXACT, RELAXED):
        raise ValueError(f"law is {law}; allowed: EXACT ({EXACT}), RELAXED ({RELAXED})")
    tree = TreeTensors(candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling)
    penalties = (output_counts, output_lens, frequency_penalty, presence_penalty, repetition_penalty)
    limits = (min_new_tokens, stop_token_ids, logit_bias, bias_rows, bitmask, bitmask_rows)
    filters = (temperature, top_k, top_p, min_p)
    requests = Requests(uniform_samples, uniform_final, *penalties, *limits, *filters, threshold_single, threshold_acc)
    outputs = (predicts, accept_index, accept_lens, bonus_tokens, new_seq_lens, accept_tokens, target, source)
    splits = 1 if logits.device.type == "cpu" else splits_of_batch(bs, num_sms_of(logits.device))
    launch_verify_logits_sampled(
        splits, logits, tree, requests, StepTensors(seq_lens, out_cache_loc, *outputs), num_steps, law
    )


def splits_of_batch(bs: int, num_sms: int) -> int:
    """Programs a request that fill a device of `num_sms` multiprocessors, and can all be on it at once."""
    return splits_of(PROGRAMS_PER_SM * num_sms // max(bs, 1), SPLITS_MAX)


def launch_verify_logits_sampled(
    splits: int, logits: Tensor, tree: TreeTensors, requests: Requests, step: StepTensors, num_steps: int, law: int
) -> None:
    """`verify_logits_sampled` over `splits` programs a request, a power of two. Triton's interpreter, in which programs
    run one after the other and none may wait for another, takes 1.
    """
    bs, num_draft_tokens = tree.candidates.shape
    if bs == 0:
        return
    shape = _shape(splits, logits.shape[1], num_steps, law)
    _kernel[(bs * splits,)](
        logits,
        tree,
        requests,
        step,
        _scratch(logits.device, bs, shape),
        bs * num_draft_tokens,
        requests.stop_token_ids.shape[1],
        requests.logit_bias.shape[0],
        requests.bitmask.shape[0],
        NUM_WORDS=requests.bitmask.shape[1],
        NUM_STEPS=num_steps,
        NDT=num_draft_tokens,
        BLOCK_N=triton.next_power_of_2(num_draft_tokens),
        SHAPE=shape,
        **options_of(logits.device, NUM_WARPS, REGISTERS, splits),
    )


def _shape(splits: int, vocab_size: int, num_steps: int, law: int) -> Shape:
    block_v = min(BLOCK_V, triton.next_power_of_2(vocab_size))
    group = min(max(GROUP, triton.next_power_of_2(triton.cdiv(vocab_size, GROUPS_MAX))), block_v)
    num_groups = triton.cdiv(vocab_size, group)
    short_list = min(SHORT_LIST, LIST)
    return Shape(
        IS_EXACT=law == EXACT,
        IS_LINEAR=False,
        VOCAB_SIZE=vocab_size,
        SPLITS=splits,
        CHUNK=triton.cdiv(vocab_size, splits * block_v) * block_v,
        NUM_GROUPS=num_groups,
        GROUP=group,
        LIST=LIST,
        SHORT_LIST=short_list,
        BLOCK_SHORT=short_list // 2,
        BLOCK_L=min(BLOCK_L, LIST),
        BLOCK_V=block_v,
        BLOCK_SEARCH=min(BLOCK_SEARCH, block_v),
        BLOCK_G=triton.next_power_of_2(num_groups),
        BLOCK_W=triton.next_power_of_2(num_steps + 1),
    )


def _scratch(device: torch.device, bs: int, shape: Shape) -> Scratch:
    """Of the groups two sets, for two nodes in turn."""
    words = (shape.LIST, 4 * shape.NUM_GROUPS, shape.SPLITS * (shape.CHUNK // shape.GROUP))
    return scratch_of_rows("verify_logits_sampled", device, bs, words)


@triton.jit
def _request(requests, i_b, num_stop_tokens, num_biases, VOCAB_SIZE: tl.constexpr):
    """What request `i_b` wants of all rows: `split_rows.RequestWants`."""
    is_repeated = tl.load(requests.repetition_penalty + i_b) != 1
    has_penalty = (tl.load(requests.frequency_penalty + i_b) != 0) | (tl.load(requests.presence_penalty + i_b) != 0)
    i_bias = tl.load(requests.bias_rows + i_b).to(tl.int64)
    return RequestWants(
        requests.frequency_penalty + i_b,
        requests.presence_penalty + i_b,
        requests.repetition_penalty + i_b,
        requests.output_counts + i_b * VOCAB_SIZE,
        requests.logit_bias + i_bias * VOCAB_SIZE,
        requests.stop_token_ids + i_b * num_stop_tokens,
        has_penalty | is_repeated,
        is_repeated,
        (i_bias >= 0) & (i_bias < num_biases),
    )


@triton.jit
def _rules(request, requests, i_row, num_stops, num_masks, i_drafts, b_token, NUM_WORDS: tl.constexpr):
    """What a request wants at the node of row `i_row`: `split_rows.NodeRules`."""
    i_mask = tl.load(requests.bitmask_rows + i_row).to(tl.int64)
    is_masked = (i_mask >= 0) & (i_mask < num_masks)
    return NodeRules(request, num_stops, requests.bitmask + i_mask * NUM_WORDS, is_masked, i_drafts, b_token)


@triton.jit
def _limits(place, b_high, b_most, b_sum, i_barrier, high, scale, total, filters, rules, SHAPE: tl.constexpr):
    """The least logit that the filters keep and the weight of what is kept; also the next barrier's number.

    b_high, b_most, b_sum  [BLOCK_G]: the largest logit of each group, its weight, and the weight of the group
    """
    k, p, least = filters
    whole = total.to(tl.float32) / UNIT
    bound = high + (tl.log2(tl.maximum(least, 2.0**-126)) - 2.0**-10) / scale
    if (k < SHAPE.VOCAB_SIZE) | (p < 1):
        limit = tl.where(k < SHAPE.VOCAB_SIZE, k.to(tl.float32), p * whole * (1 + 2.0**-16))
        bound = bound_of_groups(b_high, b_most, b_sum, high, scale, limit, k < SHAPE.VOCAB_SIZE, SHAPE)
    nothing = high - NOTHING / scale
    bound = tl.where(bound > nothing, bound, nothing)
    return limits_from_bound(place, b_high, i_barrier, bound, high, scale, total, filters, rules, SHAPE)


class Node(NamedTuple):
    """The node where a walk stands: its number and that of its tree's first; its largest logit and the least that is
    kept; `scale` and the least weight of the request; whether filters, and children that were rejected, take tokens
    away; whether it has a distribution.
    """

    i_first_node: Any
    i_node: Any
    high: Any
    lowest: Any
    scale: Any
    least: Any
    is_filtered: Any
    is_rejected: Any
    has_any: Any


@triton.jit
def _accepted_child(tree, i_first_node, i_child, b_prob, draw, single, acc, NDT: tl.constexpr, BLOCK_N: tl.constexpr):
    """The first of `i_child` and its siblings that a uniform draw accepts, -1 if none. `b_prob` [BLOCK_N]: of nodes."""
    mass = draw * 0.0
    i_taken = tl.full([], -1, dtype=tl.int64)
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT) & (i_taken < 0):
        i_next_sibling = tl.load(tree.next_sibling + i_first_node + i_child)
        prob = lane(b_prob, i_child, BLOCK_N)
        mass += prob
        is_taken = (prob > 0) & ((draw < tl.div_rn(mass, acc)) | (prob >= single))
        i_taken = tl.where(is_taken, i_child, -1)
        i_child = i_next_sibling
        i_hop += 1
    return i_taken


@triton.jit
def _left(b_logit, o_v, m_v, tree, node, NDT: tl.constexpr):
    """Which tokens the filters keep and no rejected child has."""
    b_weight = tl.exp2((b_logit - node.high) * node.scale)
    m_left = m_v & (b_logit >= node.lowest) & (b_weight >= node.least) & (b_weight > 0)
    if node.is_rejected:
        m_left = without_children(m_left, o_v, tree, node.i_first_node, node.i_node, NDT, 1)
    return m_left


@triton.jit
def _sums_left(b_high, b_sum, p_left, place, tree, node, rules, NDT: tl.constexpr, SHAPE: tl.constexpr):
    """The largest logit and the sum of each group [BLOCK_G] of what is left: groups of which a part is left are summed
    again, through `p_left` [2, NUM_GROUPS].
    """
    o_g = tl.arange(0, SHAPE.BLOCK_G)
    m_again = (b_high >= node.lowest) & (o_g < SHAPE.NUM_GROUPS)
    if not node.is_filtered:
        m_again = m_again & ~without_children(m_again, o_g, tree, node.i_first_node, node.i_node, NDT, SHAPE.GROUP)
    num_again = number_lanes(m_again, place.own, o_g)
    i_again = 0
    while i_again < num_again:
        # [groups of a block, GROUP]
        o_again, m_group, o_v, m_v = tokens_of_groups(place.own, i_again, num_again, SHAPE)
        b_logit, b_count = load_tokens(place.row, o_v, m_v, rules, SHAPE)
        b_logit = processed(b_logit, b_count, o_v, m_v, rules, SHAPE)
        m_left = _left(b_logit, o_v, m_v, tree, node, NDT)
        b_high_again, b_sum_again = sum_groups(tl.where(m_left, b_logit, float("-inf")), node.scale, False)
        tl.store(p_left + o_again, b_high_again, mask=m_group)
        tl.store(p_left + SHAPE.NUM_GROUPS + o_again, b_sum_again, mask=m_group)
        i_again += SHAPE.BLOCK_V // SHAPE.GROUP
    tl.debug_barrier()
    b_high = tl.where(node.is_filtered, float("-inf"), b_high)
    b_high = tl.where(m_again, tl.load(p_left + o_g, mask=m_again, other=0.0, volatile=True), b_high)
    b_sum = tl.where(node.is_filtered, 0.0, b_sum)
    b_again = tl.load(p_left + SHAPE.NUM_GROUPS + o_g, mask=m_again, other=0.0, volatile=True)
    return b_high, tl.where(m_again, b_again, b_sum)


@triton.jit
def _drawn_token(b_high, b_sum, draw, place, tree, node, rules, NDT: tl.constexpr, SHAPE: tl.constexpr):
    """A token by a uniform draw: a group by the groups' weights [BLOCK_G], relative to the most probable token that is
    left, and a token of it. The last token where there is no distribution.
    """
    o_g = tl.arange(0, SHAPE.BLOCK_G)
    top = tl.max(b_high, axis=0)
    top = tl.where((top > float("-inf")) & (top < float("inf")), top, 0.0)
    b_units = to_units(tl.where(node.has_any, b_sum * tl.exp2((b_high - top) * node.scale), 0.0))
    b_cdf = tl.cumsum(b_units, axis=0)
    threshold = draw.to(tl.float64) * tl.sum(b_units, axis=0).to(tl.float64)
    m_some = b_units > 0
    i_above = tl.min(tl.where(m_some & (b_cdf > threshold.to(tl.int64)), o_g, SHAPE.NUM_GROUPS), axis=0)
    i_last = tl.max(tl.where(m_some, o_g, -1), axis=0)
    i_group = tl.where(i_above < SHAPE.NUM_GROUPS, i_above, i_last)
    i_drawn = tl.full([], SHAPE.VOCAB_SIZE - 1, dtype=tl.int32)
    if i_group >= 0:
        units = lane(b_units, i_group, SHAPE.BLOCK_G)
        within = (threshold - (lane(b_cdf, i_group, SHAPE.BLOCK_G) - units).to(tl.float64)) / units.to(tl.float64)
        # [GROUP]
        o_v = i_group * SHAPE.GROUP + tl.arange(0, SHAPE.GROUP)
        m_v = o_v < SHAPE.VOCAB_SIZE
        b_logit, b_count = load_tokens(place.row, o_v, m_v, rules, SHAPE)
        b_logit = processed(b_logit, b_count, o_v, m_v, rules, SHAPE)
        m_left = _left(b_logit, o_v, m_v, tree, node, NDT)
        group_high = lane(tl.where(o_g == i_group, b_high, 0.0), i_group, SHAPE.BLOCK_G)
        b_share = tl.where(m_left, tl.exp2((b_logit - group_high) * node.scale), 0.0)
        b_cdf_v = tl.cumsum(b_share, axis=0)
        threshold_v = within * tl.sum(b_share, axis=0).to(tl.float64)
        m_above = (b_share > 0) & (b_cdf_v.to(tl.float64) > threshold_v)
        i_above = tl.min(tl.where(m_above, o_v, SHAPE.VOCAB_SIZE), axis=0)
        i_last = tl.max(tl.where(b_share > 0, o_v, -1), axis=0)
        i_drawn = tl.where(i_above < SHAPE.VOCAB_SIZE, i_above, tl.where(i_last >= 0, i_last, SHAPE.VOCAB_SIZE - 1))
    return i_drawn


@triton.jit(do_not_specialize=["num_nodes", "num_stop_tokens", "num_biases", "num_masks"])
def _kernel(
    p_logits,
    tree,
    requests,
    step,
    scratch,
    num_nodes,
    num_stop_tokens,
    num_biases,
    num_masks,
    NUM_WORDS: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """`SPLITS` programs a request, each with a chunk of every row. All of them take the walk's decisions, the same."""
    i_program = tl.program_id(0)
    i_b = (i_program // SHAPE.SPLITS).to(tl.int64)
    i_split = i_program % SHAPE.SPLITS
    i_first = i_split * SHAPE.CHUNK
    i_first_node = i_b * NDT
    p_head = scratch.heads + i_b * HEAD
    p_list = scratch.lists + i_b * SHAPE.LIST
    p_groups = scratch.groups + i_b * 4 * SHAPE.NUM_GROUPS
    p_own = scratch.owns + i_program.to(tl.int64) * (SHAPE.CHUNK // SHAPE.GROUP)
    o_w = tl.arange(0, SHAPE.BLOCK_W)
    o_n = tl.arange(0, BLOCK_N)
    o_g = tl.arange(0, SHAPE.BLOCK_G)

    # What the request wants.
    request = _request(requests, i_b, num_stop_tokens, num_biases, SHAPE.VOCAB_SIZE)
    missing = tl.load(requests.min_new_tokens + i_b) - tl.load(requests.output_lens + i_b)
    scale = tl.div_rn(LOG2_E, tl.load(requests.temperature + i_b))
    filters = Filters(tl.load(requests.top_k + i_b), tl.load(requests.top_p + i_b), tl.load(requests.min_p + i_b))
    k, p, least = filters
    is_filtered = (k < SHAPE.VOCAB_SIZE) | (p < 1) | (least > 0)
    single = tl.load(requests.threshold_single)
    acc = tl.maximum(tl.load(requests.threshold_acc), ACC_MIN)

    i_node = touch_links(tree, i_first_node, NDT, BLOCK_N)
    b_candidate = tl.load(tree.candidates + i_first_node + o_n, mask=o_n < NDT, other=-1)  # [BLOCK_N]
    m_candidate = (b_candidate >= 0) & (b_candidate < SHAPE.VOCAB_SIZE)
    b_candidate = b_candidate.to(tl.int32)
    # [BLOCK_W]: accepted nodes, and the token after each
    b_path = tl.where(o_w == 0, tl.load(tree.retrieve_index + i_first_node), -1)
    b_token = tl.full([SHAPE.BLOCK_W], -1, dtype=tl.int32)
    i_accepted = 0
    i_barrier = 0
    # Of the node where the walk stands: the largest logit, the least that is kept, and the weight of what is.
    high = tl.full([], 0.0, dtype=tl.float32)
    lowest = tl.full([], 0.0, dtype=tl.float32)
    total = tl.full([], 0, dtype=tl.int64)
    is_walking = i_accepted == 0
    is_rejected = i_accepted != 0
    has_any = i_accepted == 0
    while is_walking:
        i_row = i_first_node + i_node
        p_row = p_logits + i_row * SHAPE.VOCAB_SIZE
        i_drafts = i_accepted if SHAPE.IS_EXACT else 0
        num_stops = tl.where(i_drafts < missing, num_stop_tokens, 0)
        rules = _rules(request, requests, i_row, num_stops, num_masks, i_drafts, b_token, NUM_WORDS)
        # Loaded first, and used when the row was read.
        draw = tl.load(requests.uniform_samples + i_row)
        i_child = tl.load(tree.next_token + i_row)
        b_child, b_child_count = load_tokens(p_row, b_candidate, m_candidate, rules, SHAPE)
        p_high = p_groups + (i_accepted % 2) * 2 * SHAPE.NUM_GROUPS
        p_sum = p_high + SHAPE.NUM_GROUPS
        scan_chunk(p_row, p_high, p_sum, i_first, scale, rules, SHAPE)
        arrive(p_head, SHAPE.SPLITS)
        b_child = processed(b_child, b_child_count, b_candidate, m_candidate, rules, SHAPE)
        i_barrier = wait(p_head, i_barrier, i_split, SHAPE.SPLITS)
        b_high = tl.load(p_high + o_g, mask=o_g < SHAPE.NUM_GROUPS, other=float("-inf"), volatile=True)
        b_sum = tl.load(p_sum + o_g, mask=o_g < SHAPE.NUM_GROUPS, other=0.0, volatile=True)
        high = tl.max(b_high, axis=0)
        has_any = (high > float("-inf")) & (high < float("inf"))
        high = tl.where(has_any, high, 0.0)
        b_most = tl.exp2((b_high - high) * scale)
        b_sum = tl.where(has_any, b_sum * b_most, 0.0)
        total = tl.sum(to_units(b_sum), axis=0)
        lowest = tl.full([], float("-inf"), dtype=tl.float32)
        if is_filtered & has_any:
            place = RowPlace(p_row, p_own, p_list, p_head, i_split)
            lowest, total, i_barrier = _limits(
                place, b_high, b_most, b_sum, i_barrier, high, scale, total, filters, rules, SHAPE
            )

        b_weight = tl.exp2((b_child - high) * scale)
        weight = tl.maximum(total.to(tl.float32) / UNIT, 2.0**-40)
        b_prob = tl.where((b_child >= lowest) & (b_weight >= least), tl.div_rn(b_weight, weight), 0.0)
        b_prob = tl.where(has_any, b_prob, 0.0)
        i_child = tl.where(i_accepted < NUM_STEPS, i_child, -1)
        is_rejected = (i_child >= 0) & (i_child < NDT)
        i_taken = _accepted_child(tree, i_first_node, i_child, b_prob, draw, single, acc, NDT, BLOCK_N)
        is_walking = i_taken >= 0
        if is_walking:
            i_node = i_taken
            b_token = tl.where(o_w == i_accepted, lane(b_candidate, i_taken, BLOCK_N), b_token)
            i_accepted += 1
            b_path = tl.where(o_w == i_accepted, tl.load(tree.retrieve_index + i_first_node + i_taken), b_path)

    if i_split == 0:
        # A token of what is left of the distribution.
        i_row = i_first_node + i_node
        p_row = p_logits + i_row * SHAPE.VOCAB_SIZE
        i_drafts = i_accepted if SHAPE.IS_EXACT else 0
        num_stops = tl.where(i_drafts < missing, num_stop_tokens, 0)
        rules = _rules(request, requests, i_row, num_stops, num_masks, i_drafts, b_token, NUM_WORDS)
        p_high = p_groups + (i_accepted % 2) * 2 * SHAPE.NUM_GROUPS
        p_sum = p_high + SHAPE.NUM_GROUPS
        b_high = tl.load(p_high + o_g, mask=o_g < SHAPE.NUM_GROUPS, other=float("-inf"), volatile=True)
        b_sum = tl.load(p_sum + o_g, mask=o_g < SHAPE.NUM_GROUPS, other=0.0, volatile=True)
        place = RowPlace(p_row, p_own, p_list, p_head, i_split)
        node = Node(i_first_node, i_node, high, lowest, scale, least, is_filtered, is_rejected, has_any)
        if (is_filtered | is_rejected) & has_any:
            # Where the sums of the node before were, which no program reads any more; this node's may still be read.
            p_left = p_groups + ((i_accepted + 1) % 2) * 2 * SHAPE.NUM_GROUPS
            b_high, b_sum = _sums_left(b_high, b_sum, p_left, place, tree, node, rules, NDT, SHAPE)
        draw = tl.load(requests.uniform_final + i_b)
        i_drawn = _drawn_token(b_high, b_sum, draw, place, tree, node, rules, NDT, SHAPE)
        b_token = tl.where(o_w == i_accepted, i_drawn, b_token)
        store_step(i_b, b_path, b_token, i_accepted, step, num_nodes, NUM_STEPS, NDT, SHAPE.BLOCK_W)
    leave(p_head, SHAPE.SPLITS)
