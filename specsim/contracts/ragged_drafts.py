"""The ragged family: verification of drafts that lie in one flat row, as vLLM keeps them, and the inputs after it.

Requests have no drafts, some or all; in a batch of
thousands each has as many. Laws are of small vocabularies, in multiples of
1/64. A coin lies at the centre of the interval that accepts or rejects, a millionth beside the threshold, or, in cases
with `zero_coins`, at 0, which accepts a token of any probability but 0. The noise of the races makes no two scores
equal, or nearly so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.contract import Case, Cases, Op, Role, ScalarArg, Sizes, TensorArg, Tensors
from specsim.contracts.distributions import (
    DRAFT_ROWS,
    GAPS,
    HALVING,
    ONE_HOT,
    SKEWED,
    TWO,
    VOCAB_SIZE_MAX,
    VOCAB_SIZE_MIN,
)
from specsim.contracts.draws import Draws
from specsim.contracts.naive.ragged_drafts import (
    expand_draft_inputs_loops,
    expand_to_drafts_loops,
    prepare_inputs_padded_loops,
    prepare_next_token_padded_loops,
    sample_recovered_tokens_loops,
    step_slot_mapping_loops,
    verify_ragged_greedy_loops,
    verify_ragged_rejection_loops,
    verify_ragged_sampled_loops,
)
from specsim.contracts.sampling_cases import draw_rows
from specsim.reference.ragged_drafts import (
    expand_draft_inputs,
    expand_to_drafts,
    prepare_inputs_padded,
    prepare_next_token_padded,
    sample_recovered_tokens,
    step_slot_mapping,
    verify_ragged_greedy,
    verify_ragged_rejection,
    verify_ragged_sampled,
)

__all__ = ["OPS"]

NUM_STEPS_MAX = 8
TOKENS_START = 2**17
TARGET_KINDS = (HALVING, SKEWED, ONE_HOT, TWO, GAPS)  # each has one most probable token
MARGIN = 2.0**-20  # from a threshold: more than float32 loses in a quotient
RACES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157)  # primes: no quotient of two is one of weights
PAGE_SIZES = (1, 4, 16)
SEQ_PAGES_MAX = 4


def _counts(draws: Draws, shape: Sizes) -> Tensor:
    """Drafts of each request [n]: all of them, or, in a ragged case, any number; one at least in all."""
    n, num_steps = draws.count, shape["num_steps"]
    if not shape["is_ragged"]:
        return torch.full((n,), num_steps, dtype=torch.int64, device=draws.device)
    counts = draws.below("drafts", num_steps + 1)
    counts[0] = counts[0].clamp(min=1)
    return counts


def _flat(rows: Tensor, counts: Tensor) -> Tensor:
    """What the drafts that there are have of [n, S, ...]: [num_drafts, ...]."""
    step = torch.arange(rows.shape[1], device=rows.device)
    return rows[step < counts[:, None]].contiguous()


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)


def _sizes(shape: Sizes, counts: Tensor, **more: int) -> dict[str, int]:
    num_steps, bs = shape["num_steps"], counts.shape[0]
    sizes = {**shape, "bs": bs, "topk": 1, "num_draft_tokens": num_steps + 1, "accept_width": num_steps + 1}
    return {**sizes, "num_drafts": int(counts.sum()), "num_ends": bs, "num_starts": bs + 1, **more}


def _make_greedy(draws: Draws, shape: Sizes) -> Case:
    num_steps = shape["num_steps"]
    counts = _counts(draws, shape)
    target = TOKENS_START + draws.labels("target token", num_steps)  # [n, S]
    kind = draws.below("accepted drafts", 3)
    any_depth = draws.below("any number of accepted drafts", num_steps + 1)
    depth = torch.where(kind == 0, 0, torch.where(kind == 1, num_steps, any_depth))
    step = torch.arange(num_steps, device=draws.device)
    lucky = draws.below("right off the path", 2, num_steps) == 1
    wrong = (step == depth[:, None]) | ((step > depth[:, None]) & ~lucky)
    drafts = torch.where(wrong, target + 1, target)
    tensors = {
        "cu_num_draft_tokens": _ends(counts),
        "draft_token_ids": _flat(drafts, counts).to(torch.int32),
        "target_argmax": _flat(target, counts),
        "bonus_token_ids": (1 + draws.below("bonus token", 2**16)).to(torch.int32),
        "is_greedy": draws.below("is greedy", 4) != 1,
    }
    return Case(_sizes(shape, counts), tensors)


def _drafted(draws: Draws, shape: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Target laws and draft laws [n, S, V] float64, and drafts [n, S] that have a probability under the latter."""
    num_steps, vocab_size = shape["num_steps"], shape["vocab_size"]
    target = draw_rows(draws, "target", TARGET_KINDS, num_steps, vocab_size)
    draft = draw_rows(draws, "draft", DRAFT_ROWS, num_steps, vocab_size)
    if not shape["has_draft_probs"]:
        return target, draft, draws.below("draft", vocab_size, num_steps)
    order = draft.sort(dim=2, descending=True, stable=True).indices
    rank = draws.below("rank of the draft", (draft > 0).sum(dim=2), num_steps)
    return target, draft, order.gather(2, rank[:, :, None])[:, :, 0]


def _coins(draws: Draws, shape: Sizes, target: Tensor, draft: Tensor, drafts: Tensor) -> Tensor:
    """[n, S] float64: each accepts or rejects as drawn, if it can do both."""
    num_steps = shape["num_steps"]
    p = target.gather(2, drafts[:, :, None])[:, :, 0]
    q = draft.gather(2, drafts[:, :, None])[:, :, 0] if shape["has_draft_probs"] else torch.ones_like(p)
    height = (p / q).clamp(max=1)  # [n, S]: coins below it accept
    accepts = (draws.below("accepts", 3, num_steps) > 0) & (height > 0) | (height >= 1)
    kind = draws.below("place of the coin", 6, num_steps)
    centre = torch.where(accepts, height / 2, (height + 1) / 2)
    beside = torch.where(accepts, height - MARGIN, height + MARGIN)
    zero = torch.zeros_like(centre)
    coins = torch.where((kind == 4) | (kind == 5), beside, centre)
    return torch.where((kind == 3) & (accepts | (height == 0)), zero, coins) if shape["zero_coins"] else coins


def _race(draws: Draws, shape: Sizes) -> Tensor:
    """[n, V] float32: different primes over 128, times 1 to 8."""
    vocab_size = shape["vocab_size"]
    primes = torch.tensor(RACES, dtype=torch.float64, device=draws.device)
    token = torch.arange(vocab_size, device=draws.device)
    first = draws.below("first noise", len(RACES))[:, None]
    stretch = 2.0 ** draws.below("stretch of the noise", 4, vocab_size)
    return (primes[(first + 5 * token) % len(RACES)] / 128 * stretch).to(torch.float32)


def _sampled_tensors(draws: Draws, shape: Sizes, counts: Tensor) -> Tensors:
    target, draft, drafts = _drafted(draws, shape)
    vocab_size = shape["vocab_size"]
    return {
        "cu_num_draft_tokens": _ends(counts),
        "draft_token_ids": _flat(drafts, counts).to(torch.int32),
        "draft_probs": _flat(draft, counts).to(torch.float32),
        "target_probs": _flat(target, counts).to(torch.float32),
        "bonus_token_ids": draws.below("bonus token", vocab_size).to(torch.int32),
        "recovered_token_ids": _flat(draws.below("recovered token", vocab_size, shape["num_steps"]), counts).to(
            torch.int32
        ),
        "uniform_probs": _flat(_coins(draws, shape, target, draft, drafts), counts),
        "race": _race(draws, shape),
        "is_greedy": draws.below("is greedy", 4) == 1,
    }


def _maker(op_args: Callable[[], tuple[str, ...]]) -> Callable[[Draws, Sizes], Case]:
    def make(draws: Draws, shape: Sizes) -> Case:
        counts = _counts(draws, shape)
        tensors = _sampled_tensors(draws, shape, counts)
        return Case(_sizes(shape, counts), {name: tensors[name] for name in op_args()})

    return make


def _make_expand(draws: Draws, shape: Sizes) -> Case:
    counts = _counts(draws, shape)
    values = (draws.below("value", 6) - 1).to(torch.float32) / 2
    from_to = {"replace_from": shape["replace_from"], "replace_to": 1}
    values = torch.where(draws.below("is replaced", 3) == 1, float(shape["replace_from"]), values)
    tensors = {"values": values, "cu_num_draft_tokens": _ends(counts)}
    return Case(_sizes(shape, counts, **from_to), tensors)


def _make_inputs(draws: Draws, shape: Sizes) -> Case:
    counts = _counts(draws, shape)
    accepted = torch.where(
        draws.below("accepted drafts", 3) == 1,
        counts,
        draws.below("any accepted drafts", counts + 1),
    )
    scheduled = counts + 1 + draws.below("prefill tokens", 3) * (counts == 0)
    starts = torch.cat([torch.zeros_like(scheduled[:1]), scheduled.cumsum(0)])
    tensors = {
        "cu_num_draft_tokens": _ends(counts),
        "valid_sampled_tokens_count": (accepted + 1).to(torch.int32),
        "query_start_loc": starts.to(torch.int32),
    }
    return Case(_sizes(shape, counts), tensors)


def _make_next_token(draws: Draws, shape: Sizes) -> Case:
    n, num_steps, vocab_size = draws.count, shape["num_steps"], shape["vocab_size"]
    width = num_steps + 1
    count = draws.below("valid tokens", width + 1)  # [n]
    tokens = draws.below("token", vocab_size, width)
    edge = draws.below("token at the edge of the vocabulary", 6, width)
    tokens = torch.where(edge == 1, 0, torch.where(edge == 2, vocab_size - 1, tokens))
    invalid = torch.where(draws.below("what is not valid", 3, width) == 1, vocab_size, -1)
    step = torch.arange(width, device=draws.device)
    tensors = {
        "sampled_token_ids": torch.where(step < count[:, None], tokens, invalid).to(torch.int32),
        "discard_request_mask": draws.below("discarded", 4) == 1,
        "backup_next_token_ids": draws.below("backup token", vocab_size).to(torch.int32),
    }
    return Case(_sizes(shape, torch.full((n,), num_steps, device=draws.device)), tensors)


def _make_step(draws: Draws, shape: Sizes) -> Case:
    n, page_size, max_model_len = draws.count, shape["page_size"], shape["max_model_len"]
    num_pages = -(-max_model_len // page_size)
    kind = draws.below("position", 4)
    page_end = draws.below("page", num_pages) * page_size + page_size - 1
    anywhere = draws.below("position anywhere", max_model_len)
    positions = torch.where(kind == 0, anywhere, torch.where(kind == 1, max_model_len - 1, max_model_len - 2))
    positions = torch.where(kind == 3, page_end, positions).clamp(min=0, max=max_model_len - 1)
    tensors = {
        "positions": positions,
        "block_table": draws.labels("page number", num_pages).to(torch.int32),
        "seq_lens": (positions + 1).to(torch.int32),
    }
    padded = n + shape["padding"]
    return Case(_sizes(shape, torch.full((n,), shape["num_steps"]), num_pages=num_pages, padded_bs=padded), tensors)


def _make_draft_inputs(draws: Draws, shape: Sizes) -> Case:
    n, slots, shift = draws.count, shape["num_padding_slots"], shape["shift_input_ids"]
    counts = _counts(draws, shape)
    rejected = draws.below("rejected drafts", counts + 1)
    scheduled = counts + 1 + draws.below("prefill tokens", 3) * (counts == 0)
    starts = torch.cat([torch.zeros_like(scheduled[:1]), scheduled.cumsum(0)])
    num_tokens = int(starts[-1])
    place = torch.arange(num_tokens, device=draws.device)
    owner = torch.arange(n, device=draws.device).repeat_interleave(scheduled)
    first = draws.below("first position", 2**16)
    tensors = {
        "target_token_ids": (TOKENS_START + draws.labels("first token")[owner] + place).to(torch.int32),
        "target_positions": first[owner] + place - starts[:-1][owner],
        "next_token_ids": (TOKENS_START + draws.below("next token", 2**16)).to(torch.int32),
        "query_start_loc": starts.to(torch.int32),
        "query_end_loc": (starts[1:] - 1 - rejected).to(torch.int32),
    }
    more = {"num_tokens": num_tokens, "num_out": num_tokens + n * (slots - shift), "num_new": n * slots}
    return Case(_sizes(shape, counts, padding_token_id=0, parallel_drafting_token_id=7, **more), tensors)


# Shapes of batches


def _draw_shape(chooser: Chooser) -> dict[str, int]:
    return {"num_steps": between(chooser, 1, NUM_STEPS_MAX, "num_steps"), "is_ragged": 0}


def _draw_inputs_shape(chooser: Chooser) -> dict[str, int]:
    slots = between(chooser, 1, 4, "num_padding_slots")
    return {**_draw_shape(chooser), "num_padding_slots": slots, "shift_input_ids": chooser.choose(2, "shift_input_ids")}


def _draw_expand_shape(chooser: Chooser) -> dict[str, int]:
    return {**_draw_shape(chooser), "replace_from": pick(chooser, (0, -1), "replace_from")}


def _draw_sampled_shape(chooser: Chooser) -> dict[str, int]:
    shape = {**_draw_shape(chooser), "vocab_size": between(chooser, VOCAB_SIZE_MIN, VOCAB_SIZE_MAX, "vocab_size")}
    zero_coins = pick(chooser, (0, 0, 1), "coins of 0")
    return {**shape, "has_draft_probs": chooser.choose(2, "has_draft_probs"), "zero_coins": zero_coins}


def _draw_next_token_shape(chooser: Chooser) -> dict[str, int]:
    return {**_draw_shape(chooser), "vocab_size": pick(chooser, (3, 32_000, 151_936), "vocab_size")}


def _draw_step_shape(chooser: Chooser) -> dict[str, int]:
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    pages = between(chooser, 1, SEQ_PAGES_MAX, "pages")
    max_model_len = max(2, pages * page_size - pick(chooser, (0, 1), "max_model_len below the end of a page"))
    shape = {**_draw_shape(chooser), "page_size": page_size, "max_model_len": max_model_len}
    return {**shape, "padding": between(chooser, 0, 3, "padding requests")}


def _draw_single(chooser: Chooser) -> dict[str, int]:
    return {"is_ragged": chooser.choose(2, "requests have drafts of their own number")}


def _cases(draw_shape: Callable[[Chooser], dict[str, int]], make: Callable[[Draws, Sizes], Case]) -> Cases:
    return Cases(draw_shape, make, draw_single=_draw_single)


def _defined_inputs(case: Case, expected: Tensors) -> Tensors:
    """Where hidden states go is said only when tokens are shifted against them."""
    every = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in expected.items()}
    every["hidden_state_mapping"] &= bool(case.sizes["shift_input_ids"])
    return every


def _defined_recovered(case: Case, expected: Tensors) -> Tensors:
    """Where nothing is left of a law, the draft is never rejected and what stands in for it is of no account."""
    target, draft = case.tensors["target_probs"], case.tensors["draft_probs"]
    if case.sizes["has_draft_probs"]:
        left = (target - draft).clamp(min=0)
    else:
        left = target.scatter(1, case.tensors["draft_token_ids"].long()[:, None], 0.0)
    return {"recovered_token_ids": (left > 0).any(dim=1).to(expected["recovered_token_ids"].device)}


_ENDS = TensorArg("cu_num_draft_tokens", Role.IN, ("num_ends",), torch.int32, "where the drafts of each request end")
_DRAFTS = TensorArg("draft_token_ids", Role.IN, ("num_drafts",), torch.int32, "drafted tokens, request by request")
_LAWS = (
    TensorArg(
        "draft_probs",
        Role.IN,
        ("num_drafts", "vocab_size"),
        torch.float32,
        "the law of each draft; not read when has_draft_probs is 0",
    ),
    TensorArg("target_probs", Role.IN, ("num_drafts", "vocab_size"), torch.float32, "the target's law at each draft"),
)
_BONUS = TensorArg("bonus_token_ids", Role.IN, ("bs",), torch.int32, "token after all drafts, if all are accepted")
_COINS = TensorArg("uniform_probs", Role.IN, ("num_drafts",), torch.float64, "coin in [0, 1) of each draft")
_RACE = TensorArg("race", Role.IN, ("bs", "vocab_size"), torch.float32, "exponential noise, above 0, of each request")
_GREEDY = TensorArg("is_greedy", Role.IN, ("bs",), torch.bool, "requests at temperature 0")
_HAS = ScalarArg("has_draft_probs", "0: every draft was certain, and draft_probs is not read")
_STEPS = ScalarArg("num_steps", "drafts that a request may have; accept_width less one")
_OUTPUT = TensorArg(
    "output_token_ids",
    Role.OUT,
    ("bs", "accept_width"),
    torch.int32,
    "emitted tokens, then -1; -1 throughout for requests that are left alone",
    prefill=-1,
)
_RECOVERED = "token in place of each draft, if it is rejected"


def _names(*args: TensorArg | ScalarArg) -> Callable[[], tuple[str, ...]]:
    return lambda: tuple(arg.name for arg in args if isinstance(arg, TensorArg))


_REJECTION = (
    *(_ENDS, _DRAFTS, *_LAWS, _BONUS),
    TensorArg("recovered_token_ids", Role.IN, ("num_drafts",), torch.int32, _RECOVERED),
    *(_COINS, _GREEDY, _HAS, _STEPS),
)
_RACES = (_ENDS, _DRAFTS, *_LAWS, _RACE, _HAS)
_WHOLE = (_ENDS, _DRAFTS, *_LAWS, _BONUS, _COINS, _RACE, _GREEDY, _HAS, _STEPS)

_greedy = _cases(_draw_shape, _make_greedy)
_rejection = _cases(_draw_sampled_shape, _maker(_names(*_REJECTION)))
_races = _cases(_draw_sampled_shape, _maker(_names(*_RACES)))
_whole = _cases(_draw_sampled_shape, _maker(_names(*_WHOLE)))
_expand = _cases(_draw_expand_shape, _make_expand)
_inputs = _cases(_draw_shape, _make_inputs)
_next_token = _cases(_draw_next_token_shape, _make_next_token)
_step = _cases(_draw_step_shape, _make_step)
_draft_inputs = _cases(_draw_inputs_shape, _make_draft_inputs)

OPS: tuple[Op, ...] = (
    Op(
        name="verify_ragged_greedy",
        family="ragged_drafts",
        summary="emit the target's tokens up to the first draft that differs, drafts in one flat row",
        args=(
            _ENDS,
            _DRAFTS,
            TensorArg("target_argmax", Role.IN, ("num_drafts",), torch.int64, "the target's token at each draft"),
            _BONUS,
            _GREEDY,
            _STEPS,
            _OUTPUT,
        ),
        reference=verify_ragged_greedy,
        loops=verify_ragged_greedy_loops,
        cases=_greedy,
        source="Leviathan et al. (arXiv 2211.17192) at temperature 0",
    ),
    Op(
        name="verify_ragged_rejection",
        family="ragged_drafts",
        summary="accept drafts of one flat row by the ratio of target to draft probability",
        args=(*_REJECTION, _OUTPUT),
        reference=verify_ragged_rejection,
        loops=verify_ragged_rejection_loops,
        cases=_rejection,
        source="Leviathan et al. (arXiv 2211.17192), algorithm 1",
    ),
    Op(
        name="sample_recovered_tokens",
        family="ragged_drafts",
        summary="the token in place of each draft, should it be rejected, by an exponential race",
        args=(
            *_RACES,
            TensorArg(
                "recovered_token_ids",
                Role.OUT,
                ("num_drafts",),
                torch.int32,
                f"{_RECOVERED}; undefined where the positive part of target less draft is empty",
            ),
        ),
        reference=sample_recovered_tokens,
        loops=sample_recovered_tokens_loops,
        cases=_races,
        defined=_defined_recovered,
        source="Leviathan et al. (arXiv 2211.17192), algorithm 1; the race: Maddison et al. (arXiv 1411.0030)",
    ),
    Op(
        name="verify_ragged_sampled",
        family="ragged_drafts",
        summary="verification of a batch of greedy and sampling requests, drafts in one flat row",
        args=(*_WHOLE, _OUTPUT),
        reference=verify_ragged_sampled,
        loops=verify_ragged_sampled_loops,
        cases=_whole,
        source="vLLM v1's rejection sampling; Leviathan et al. (arXiv 2211.17192), algorithm 1",
    ),
    Op(
        name="expand_to_drafts",
        family="ragged_drafts",
        summary="the value of each request, once for each of its drafts",
        args=(
            TensorArg("values", Role.IN, ("bs",), torch.float32, "of each request, e.g. its temperature"),
            _ENDS,
            ScalarArg("replace_from", "a value that stands for something else"),
            ScalarArg("replace_to", "what is put in its place"),
            TensorArg("expanded", Role.OUT, ("num_drafts",), torch.float32, "of each draft"),
        ),
        reference=expand_to_drafts,
        loops=expand_to_drafts_loops,
        cases=_expand,
        source="vLLM v1's expand_batch_to_tokens",
    ),
    Op(
        name="prepare_inputs_padded",
        family="ragged_drafts",
        summary="where each request's draft goes on, with rejected drafts left in the batch",
        args=(
            _ENDS,
            TensorArg("valid_sampled_tokens_count", Role.IN, ("bs",), torch.int32, "accepted drafts and one more"),
            TensorArg("query_start_loc", Role.IN, ("num_starts",), torch.int32, "where each request's tokens start"),
            TensorArg("token_indices_to_sample", Role.OUT, ("bs",), torch.int32, "its last token that stays"),
            TensorArg("num_rejected_tokens", Role.OUT, ("bs",), torch.int32, "rejected drafts; 0 without drafts"),
        ),
        reference=prepare_inputs_padded,
        loops=prepare_inputs_padded_loops,
        cases=_inputs,
        source="vLLM v1's padded drafting batch",
    ),
    Op(
        name="prepare_next_token_padded",
        family="ragged_drafts",
        summary="the last valid token that each request sampled, and how many are valid",
        args=(
            TensorArg(
                "sampled_token_ids",
                Role.IN,
                ("bs", "accept_width"),
                torch.int32,
                "valid tokens, 0 to vocab_size - 1, then what is not: -1 or vocab_size",
            ),
            TensorArg("discard_request_mask", Role.IN, ("bs",), torch.bool, "requests whose samples do not count"),
            TensorArg("backup_next_token_ids", Role.IN, ("bs",), torch.int32, "the token where nothing is valid"),
            ScalarArg("vocab_size", "tokens are below it"),
            TensorArg("next_token_ids", Role.OUT, ("bs",), torch.int32, "last valid token, or the backup"),
            TensorArg("valid_sampled_tokens_count", Role.OUT, ("bs",), torch.int32, "valid tokens"),
        ),
        reference=prepare_next_token_padded,
        loops=prepare_next_token_padded_loops,
        cases=_next_token,
        source="vLLM v1's padded drafting batch",
    ),
    Op(
        name="step_slot_mapping",
        family="ragged_drafts",
        summary="positions, lengths and slots of one drafting step further",
        args=(
            TensorArg("positions", Role.IN, ("bs",), torch.int64, "of each request's last token"),
            TensorArg("block_table", Role.IN, ("bs", "num_pages"), torch.int32, "pages of each request"),
            TensorArg("seq_lens", Role.INOUT, ("bs",), torch.int32, "one more, at most max_model_len; 1 at the end"),
            ScalarArg("page_size", "slots of a page"),
            ScalarArg("max_model_len", "a request that reaches it has no slot"),
            ScalarArg("padded_bs", "requests of a captured batch, at least bs"),
            TensorArg("clamped_positions", Role.OUT, ("bs",), torch.int64, "the next position; 0 at the end"),
            TensorArg("slot_mapping", Role.OUT, ("padded_bs",), torch.int64, "its slot; -1 at the end and as padding"),
        ),
        reference=step_slot_mapping,
        loops=step_slot_mapping_loops,
        cases=_step,
        source="vLLM v1's fused drafting step",
    ),
    Op(
        name="expand_draft_inputs",
        family="ragged_drafts",
        summary="the draft model's inputs: tokens, the new one, slots for parallel drafts, rejected drafts as padding",
        args=(
            TensorArg("target_token_ids", Role.IN, ("num_tokens",), torch.int32, "of the target's step"),
            TensorArg("target_positions", Role.IN, ("num_tokens",), torch.int64, "of the same tokens"),
            TensorArg("next_token_ids", Role.IN, ("bs",), torch.int32, "what each request goes on with"),
            TensorArg("query_start_loc", Role.IN, ("num_starts",), torch.int32, "where each request's tokens start"),
            TensorArg("query_end_loc", Role.IN, ("num_ends",), torch.int32, "its last token that is no rejected draft"),
            ScalarArg("padding_token_id", "held where drafts were rejected"),
            ScalarArg("parallel_drafting_token_id", "held by the slots after the new token"),
            ScalarArg("num_padding_slots", "the new token and the slots after it; 1 or more"),
            ScalarArg("shift_input_ids", "1: each request's first token is left out"),
            TensorArg("input_ids", Role.OUT, ("num_out",), torch.int32, "tokens"),
            TensorArg("positions", Role.OUT, ("num_out",), torch.int64, "counted from the first; 0 at rejected ones"),
            TensorArg("is_rejected", Role.OUT, ("num_out",), torch.bool, "padding where drafts were rejected"),
            TensorArg("is_masked", Role.OUT, ("num_out",), torch.bool, "slots of parallel drafts"),
            TensorArg("new_token_indices", Role.OUT, ("num_new",), torch.int32, "of the new token and its slots"),
            TensorArg(
                "hidden_state_mapping",
                Role.OUT,
                ("num_tokens",),
                torch.int32,
                "where each of the target's tokens is among the inputs; undefined without shift_input_ids",
            ),
        ),
        reference=expand_draft_inputs,
        loops=expand_draft_inputs_loops,
        cases=_draft_inputs,
        defined=_defined_inputs,
        source="vLLM v1's unified drafting inputs",
    ),
)
