"""The sampling family: verification at a temperature, over trees and chains, with the coins as inputs.

Probabilities are multiples of 1/64, so that sums of them are exact in float32 in any order, and rows have zeros or
all their weight on one token. Every coin that a walk reads is put in a cell between two thresholds of its decision,
at the centre or next to an edge: on the threshold itself, the float32 after it, or the one before the next. Edges are
used where thresholds have no rounding; elsewhere a coin keeps clear of them, and implementations that round otherwise
still agree. Coins that no walk reads differ from node to node, so that a coin from a wrong node shows.

Drafts of the rules that know the draft model's law have a positive probability under it, and siblings differ there:
others cannot have been drawn.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, pick
from specsim.contracts import batches
from specsim.contracts.contract import Cases, Op, Role, ScalarArg, TensorArg
from specsim.contracts.distributions import VOCAB_SIZE_MAX, VOCAB_SIZE_MIN
from specsim.contracts.naive.sampling import (
    verify_chain_block_loops,
    verify_chain_rejection_loops,
    verify_tree_rejection_loops,
    verify_tree_target_only_loops,
)
from specsim.contracts.sampling_cases import (
    make_verify_chain_block,
    make_verify_chain_rejection,
    make_verify_tree_rejection,
    make_verify_tree_target_only,
)
from specsim.contracts.verify import defined_by_verification
from specsim.reference.sampling import (
    verify_chain_block,
    verify_chain_rejection,
    verify_tree_rejection,
    verify_tree_target_only,
)

__all__ = ["OPS"]

WIDE_VOCAB_SIZES, WIDE_NODES_MAX = (31, 33, 127, 129, 257, 1025), 6
"""Of some cases of small trees; the loops of their makers go over the vocabulary."""

SMALL_PER_WIDE = 4  # how much more often a small vocabulary comes up than a wide one


def _draw_vocab_size(chooser: Chooser, low: int, num_draft_tokens: int) -> int:
    """A small vocabulary, and for small trees now and then one beside a power of two that blocks and words end at."""
    wide = WIDE_VOCAB_SIZES if num_draft_tokens <= WIDE_NODES_MAX else ()
    small = tuple(range(low, VOCAB_SIZE_MAX + 1))
    return pick(chooser, small * SMALL_PER_WIDE + wide, "vocab_size")


def _draw_target_only_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_shape(chooser)
    return {
        **shape,
        "vocab_size": _draw_vocab_size(chooser, VOCAB_SIZE_MIN, shape["num_draft_tokens"]),
        "threshold_single_64ths": pick(chooser, (64, 64, 16, 32, 0), "threshold_single"),
        "threshold_acc_64ths": pick(chooser, (64, 64, 48, 32, 0), "threshold_acc"),
    }


def _draw_tree_rejection_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_shape(chooser)
    low = max(VOCAB_SIZE_MIN, shape["topk"])
    return {**shape, "vocab_size": _draw_vocab_size(chooser, low, shape["num_draft_tokens"])}


def _draw_chain_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_chain_shape(chooser)
    return {**shape, "vocab_size": _draw_vocab_size(chooser, VOCAB_SIZE_MIN, shape["num_draft_tokens"])}


_NODES = ("bs", "num_draft_tokens")

_TREE = (
    TensorArg("candidates", Role.IN, _NODES, torch.int64, "token of each node, below vocab_size; node 0 is the root"),
    TensorArg("retrieve_index", Role.IN, _NODES, torch.int64, "number of the node in the batch, within its own row"),
    TensorArg("retrieve_next_token", Role.IN, _NODES, torch.int64, "first child, a later node; -1 if there is none"),
    TensorArg("retrieve_next_sibling", Role.IN, _NODES, torch.int64, "next sibling, a later node; -1 if there is none"),
)
_FINAL = TensorArg("uniform_final", Role.IN, ("bs",), torch.float32, "coin in [0, 1) of the token after the path")
_TARGET = TensorArg(
    "target_probs", Role.IN, (*_NODES, "vocab_size"), torch.float32, "the target model's law after each node"
)
_CHAIN = (
    TensorArg("candidates", Role.IN, _NODES, torch.int64, "the root, then the drafted tokens, below vocab_size"),
    TensorArg(
        "draft_probs",
        Role.IN,
        ("bs", "num_steps", "vocab_size"),
        torch.float32,
        "the law from which each draft was drawn; positive at the draft",
    ),
    _TARGET,
    TensorArg(
        "uniform_samples",
        Role.IN,
        ("bs", "num_steps"),
        torch.float32,
        "coin in [0, 1) of each draft, in the column of its parent",
    ),
    _FINAL,
)
_NUM_STEPS = ScalarArg("num_steps", "drafts that can be accepted; accept_width less one")
_VERIFIED = (
    TensorArg(
        "predicts",
        Role.OUT,
        ("num_nodes",),
        torch.int32,
        "token that follows each node; defined at the accepted path, accept_index[b, 0..n], alone",
    ),
    TensorArg(
        "accept_index",
        Role.OUT,
        ("bs", "accept_width"),
        torch.int32,
        "the accepted path as node numbers, root first, then -1",
        prefill=-1,
    ),
    TensorArg("accept_token_num", Role.OUT, ("bs",), torch.int32, "n: accepted drafts, without root and bonus"),
)

OPS: tuple[Op, ...] = (
    Op(
        name="verify_tree_target_only",
        family="sampling",
        summary="accept a path of each tree by the target model's law alone",
        args=(
            *_TREE,
            TensorArg(
                "uniform_samples",
                Role.IN,
                _NODES,
                torch.float32,
                "coin in [0, 1) of each node, which decides between its children",
            ),
            _FINAL,
            _TARGET,
            TensorArg(
                "threshold_single",
                Role.IN,
                (1,),
                torch.float32,
                "0 to 1: a child at least as probable is accepted; 1 changes nothing",
            ),
            TensorArg(
                "threshold_acc",
                Role.IN,
                (1,),
                torch.float32,
                "0 to 1: divides the children's cumulative probability, at least 1e-9; 1 changes nothing",
            ),
            _NUM_STEPS,
            *_VERIFIED,
        ),
        reference=verify_tree_target_only,
        loops=verify_tree_target_only_loops,
        cases=Cases(_draw_target_only_shape, make_verify_tree_target_only),
        defined=defined_by_verification,
        source="SGLang's tree_speculative_sampling_target_only, with PR #35798",
    ),
    Op(
        name="verify_chain_rejection",
        family="sampling",
        summary="accept drafts of each chain by the ratio of target to draft probability",
        args=(*_CHAIN, *_VERIFIED),
        reference=verify_chain_rejection,
        loops=verify_chain_rejection_loops,
        cases=Cases(_draw_chain_shape, make_verify_chain_rejection),
        defined=defined_by_verification,
        source="Leviathan et al. (arXiv 2211.17192), algorithm 1",
    ),
    Op(
        name="verify_chain_block",
        family="sampling",
        summary="accept a prefix of each chain as a block",
        args=(*_CHAIN, *_VERIFIED),
        reference=verify_chain_block,
        loops=verify_chain_block_loops,
        cases=Cases(_draw_chain_shape, make_verify_chain_block),
        defined=defined_by_verification,
        source="Sun et al. (arXiv 2403.10444), algorithm 2",
    ),
    Op(
        name="verify_tree_rejection",
        family="sampling",
        summary="accept a path of each tree; siblings are held against what the ones before them left over",
        args=(
            *_TREE,
            TensorArg("uniform_samples", Role.IN, _NODES, torch.float32, "coin in [0, 1) that decides about each node"),
            _FINAL,
            TensorArg(
                "draft_probs",
                Role.IN,
                (*_NODES, "vocab_size"),
                torch.float32,
                "the law from which the children of each node were drawn, without replacement",
            ),
            _TARGET,
            _NUM_STEPS,
            *_VERIFIED,
        ),
        reference=verify_tree_rejection,
        loops=verify_tree_rejection_loops,
        cases=Cases(_draw_tree_rejection_shape, make_verify_tree_rejection),
        defined=defined_by_verification,
        source="SpecInfer (arXiv 2305.09781), section 4.3; without replacement: Jeon et al. (arXiv 2402.14160)",
    ),
)
