"""Whole verifications at a temperature, from the logits on.

Logits, penalties and trees are those of `apply_penalties`, on a small vocabulary in which one token of each request is
never forbidden. On top of it come biases and masks of their own rows, temperatures and filters, each on or off by
request, and tokens of some children are made probable.

Implementations round differently. So every limit and uniform draw of a case lies clear of the thresholds of its
decision: the reference, in double precision, gives the same result with all of them `CLEARANCE` lower and higher.
Limits that do not are switched off; uniform draws are drawn again. What happens exactly at a threshold, where laws are
dyadic, is for the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Role, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.contracts.logits import TEMPERATURES, TOP_K_ALL, make_penalties
from specsim.contracts.verify_logits import OPS as VERIFY_LOGITS_OPS
from specsim.reference.logits import (
    EXACT,
    RELAXED,
    WORD_BITS,
    SamplingBatchInfo,
    min_p_renorm_probs,
    process_logits,
    top_k_renorm_probs,
    top_p_renorm_probs,
)
from specsim.reference.masks import reconstruct_tree
from specsim.reference.sampling import verify_tree_target_only
from specsim.reference.validation import unchecked
from specsim.reference.verify_logits import verify_logits_sampled

__all__ = ["OPS"]

VOCAB_SIZES = (5, 4, 31, 32, 33, 65)
NODES_MAX = 12
ELEMENTS_MAX = 140  # of all rows of a request
BIAS_MAX = 4.0  # no probability gets so small that some formats have it and others do not
LIKELY = 7.0  # the logit of a child that is made probable
CLEARANCE = 2.0**-14
COINS = 4096
COINS_TRIED = 12
THRESHOLDS_64THS = (64, 64, 16, 32, 0)
TOP_PS = (1.0, 0.9, 0.5, 0.25, 0.001)
MIN_PS = (0.0, 0.05, 0.3, 0.75, 1.0)

_GREEDY = VERIFY_LOGITS_OPS[0]
_LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")


def _draw_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_shape(chooser)
    shape["num_draft_tokens"] = min(NODES_MAX, shape["num_draft_tokens"])
    vocab_size_max = max(5, ELEMENTS_MAX // shape["num_draft_tokens"])
    return {
        **shape,
        "vocab_size": pick(chooser, [size for size in VOCAB_SIZES if size <= vocab_size_max], "vocab_size"),
        "law": pick(chooser, (RELAXED, EXACT), "law"),
        "threshold_single_64ths": pick(chooser, THRESHOLDS_64THS, "threshold_single"),
        "threshold_acc_64ths": pick(chooser, THRESHOLDS_64THS, "threshold_acc"),
    }


def _make(draws: Draws, shape: Sizes) -> Case:
    bs, ndt = draws.count, shape["num_draft_tokens"]
    sizes = batches.path_sizes(shape, bs)
    history = make_penalties(draws, sizes)
    stays = draws.below("token that stays", sizes["vocab_size"], 1)  # [bs, 1]
    seq_lens = draws.below("seq_lens", 9, 1)[:, 0]
    mask = history.pop("tree_mask")
    links = reconstruct_tree(mask, seq_lens)
    device = mask.device
    tensors = {
        **history,
        **_biases(draws, sizes, history["logit_bias"], stays),
        **_masks(draws, sizes, stays),
        **{name: getattr(links, name) for name in _LINKS},
        "logits": _likely(draws, sizes, history, mask, stays).flatten(0, 1),
        "stop_token_ids": torch.where(
            history["stop_token_ids"] == stays, sizes["vocab_size"], history["stop_token_ids"]
        ),
        "temperature": torch.tensor(TEMPERATURES, device=device)[draws.below("temperature", 5, 1)[:, 0]],
        "top_k": _top_k(draws, sizes),
        "top_p": torch.tensor(TOP_PS, device=device)[draws.below("top_p", 5, 1)[:, 0]],
        "min_p": torch.tensor(MIN_PS, device=device)[draws.below("min_p", 5, 1)[:, 0]],
        "threshold_single": torch.full((1,), sizes["threshold_single_64ths"] / 64, device=device),
        "threshold_acc": torch.full((1,), sizes["threshold_acc_64ths"] / 64, device=device),
        "seq_lens": seq_lens,
        "out_cache_loc": 1 + torch.arange(bs * ndt, device=device) * 5 % (bs * ndt + (bs * ndt % 5 == 0)),
    }
    with unchecked():
        laws = _filter(tensors, _unfiltered(tensors, sizes, mask))
        _place_coins(draws, tensors, laws, sizes["num_steps"])
    names = [arg.name for arg in OPS[0].tensor_args if arg.role is not Role.OUT]
    return Case(sizes, {name: tensors[name].contiguous() for name in names})


def _likely(draws: Draws, sizes: Sizes, history: Tensors, mask: Tensor, stays: Tensor) -> Tensor:
    """Logits [bs, ndt, V] at whose nodes the tokens of some children are the most probable."""
    bs, ndt, vocab_size = sizes["bs"], sizes["num_draft_tokens"], sizes["vocab_size"]
    logits = history["logits"].view(bs, ndt, vocab_size)
    node = torch.arange(ndt, device=mask.device)
    parent = torch.where(mask & (node < node[:, None]), node, -1).amax(dim=2)  # [bs, ndt]
    request = torch.arange(bs, device=mask.device)
    likely = draws.below("likely child", 3, ndt) > 0  # [bs, ndt]
    for child in range(1, ndt):
        row, token = parent[:, child], history["candidates"][:, child]
        logits[request, row, token] = torch.where(likely[:, child], LIKELY, logits[request, row, token])
    is_token = torch.arange(vocab_size, device=mask.device) == stays[:, :, None]  # [bs, 1, V]
    return torch.where(is_token & logits.isinf(), 1.0, logits)


def _biases(draws: Draws, sizes: dict[str, int], biases: Tensor, stays: Tensor) -> Tensors:
    """A row for each request, of which some are used, after one that none has."""
    biases = biases.clamp(max=BIAS_MAX).scatter(1, stays, 0.0)
    used = draws.below("has a bias", 2, 1)[:, 0] == 1
    rows = torch.where(used, 1 + torch.arange(sizes["bs"], device=biases.device), -1)
    sizes["num_biases"] = sizes["bs"] + 1
    return {"logit_bias": torch.cat([torch.full_like(biases[:1], -3.0), biases]), "bias_rows": rows.to(torch.int32)}


def _masks(draws: Draws, sizes: dict[str, int], stays: Tensor) -> Tensors:
    """A row for each node, of which those of some requests are used, after one that forbids everything."""
    bs, ndt, vocab_size = sizes["bs"], sizes["num_draft_tokens"], sizes["vocab_size"]
    words = -(-vocab_size // WORD_BITS)
    sizes.update({"num_masks": 1 + bs * ndt, "num_words": words})
    token = torch.arange(words * WORD_BITS, device=stays.device)
    kind = draws.below("what is allowed", 4, ndt)[:, :, None]  # [bs, ndt, 1]
    allowed = (token == stays[:, :, None]) | ((kind < 3) & ((token + kind) % 3 != 0))  # [bs, ndt, words * 32]
    bits = allowed.view(bs * ndt, words, WORD_BITS).to(torch.int64) << torch.arange(WORD_BITS, device=stays.device)
    packed = bits.sum(2)  # without a sign
    table = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    used = draws.below("has a grammar", 2, 1) == 1  # [bs, 1]
    number = 1 + torch.arange(bs * ndt, device=stays.device).view(bs, ndt)
    rows = torch.where(used, number, -1).flatten().to(torch.int32)
    return {"bitmask": torch.cat([torch.zeros_like(table[:1]), table]), "bitmask_rows": rows}


def _top_k(draws: Draws, sizes: Sizes) -> Tensor:
    vocab_size = sizes["vocab_size"]
    drawn = draws.below("top_k", 8, 1)[:, 0]
    kinds = torch.tensor((TOP_K_ALL, 1, 2, 3, 4, vocab_size - 1, vocab_size, vocab_size + 1), device=drawn.device)
    return kinds[drawn].to(torch.int32)


def _unfiltered(tensors: Tensors, sizes: Sizes, mask: Tensor) -> Tensor:
    """The laws [bs * ndt, V] before top-k, in double precision."""
    wide = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    none = torch.zeros_like(wide["logit_bias"][:1])
    biases = torch.cat([wide["logit_bias"], none])[tensors["bias_rows"].to(torch.int64)]
    everything = torch.full_like(tensors["bitmask"][:1], -1)
    masks = torch.cat([tensors["bitmask"], everything])[tensors["bitmask_rows"].to(torch.int64)]
    zero, no_top_k = torch.zeros_like(wide["temperature"]), torch.full_like(tensors["top_k"], TOP_K_ALL)
    params = SamplingBatchInfo(
        frequency_penalty=wide["frequency_penalty"],
        presence_penalty=wide["presence_penalty"],
        repetition_penalty=wide["repetition_penalty"],
        min_new_tokens=tensors["min_new_tokens"],
        stop_token_ids=tensors["stop_token_ids"],
        logit_bias=biases,
        temperature=wide["temperature"],
        top_k=no_top_k,
        top_p=zero + 1,
        min_p=zero,
    )
    history = (tensors["output_counts"], tensors["output_lens"], tensors["candidates"], mask)
    return process_logits(wide["logits"], *history, params, sizes["law"], masks)


def _filter(tensors: Tensors, laws: Tensor) -> Tensor:
    """The laws [bs, ndt, V] after top-k, top-p and min-p, of which those are switched off whose limit lies too near to
    where it would keep more or less.
    """
    bs, ndt = tensors["candidates"].shape
    laws = top_k_renorm_probs(laws, tensors["top_k"].repeat_interleave(ndt))
    for name, keep, nothing in (("top_p", top_p_renorm_probs, 1.0), ("min_p", min_p_renorm_probs, 0.0)):
        limit = tensors[name].double()
        low, here, high = (
            keep(laws, (limit * (1 + by)).clamp(max=1.0).repeat_interleave(ndt)) for by in (-CLEARANCE, 0, CLEARANCE)
        )
        clear = ((low > 0) == (high > 0)).view(bs, -1).all(1) | (limit == nothing)  # [bs]
        tensors[name] = torch.where(clear, tensors[name], nothing)
        laws = torch.where(clear.repeat_interleave(ndt)[:, None], here, laws)
    return laws.view(bs, ndt, -1)


def _place_coins(draws: Draws, tensors: Tensors, laws: Tensor, num_steps: int) -> None:
    """Uniform draws at which nothing changes when all of them, and the thresholds, are a little lower or higher."""
    ndt = laws.shape[1]
    coins, final = draws.below("coins", COINS, ndt), draws.below("final coin", COINS, 1)  # [bs, ndt], [bs, 1]
    clear = torch.zeros_like(final[:, 0], dtype=torch.bool)  # [bs]
    for _ in range(COINS_TRIED):
        placed = ((coins.double() + 0.5) / COINS, (final.double() + 0.5) / COINS)
        low, high = (_outcome(tensors, laws, placed, by * CLEARANCE, num_steps) for by in (-1, 1))
        clear = (low == high).all(1)
        if bool(clear.all()):
            break
        coins = torch.where(clear[:, None], coins, (coins + 1597) % COINS)
        final = torch.where(clear[:, None], final, (final + 1597) % COINS)
    tensors["uniform_samples"] = ((coins.float() + 0.5) / COINS).contiguous()
    tensors["uniform_final"] = (final[:, 0].float() + 0.5) / COINS


def _outcome(tensors: Tensors, laws: Tensor, placed: tuple[Tensor, Tensor], by: float, num_steps: int) -> Tensor:
    """What verification gives for each request, with every uniform draw and threshold shifted."""
    single, acc = tensors["threshold_single"].double(), tensors["threshold_acc"].double()
    coins, final = placed
    verified = verify_tree_target_only(
        tensors["candidates"],
        tensors["retrieve_index"],
        tensors["retrieve_next_token"],
        tensors["retrieve_next_sibling"],
        coins + by,
        final[:, 0] + by,
        laws,
        single * (1 - by),
        acc,
        num_steps,
    )
    of_request = verified.predicts.view(tensors["candidates"].shape)
    return torch.cat([of_request, verified.accept_index], dim=1)


OPS: tuple[Op, ...] = (
    operation(verify_logits_sampled, "verify_logits", Cases(_draw_shape, _make), compared=_GREEDY.compared),
)
