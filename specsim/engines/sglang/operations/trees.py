"""Draft trees and their greedy verification, where SGLang has them in Triton."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import CallerNames, KernelNames, running_batch

# Where there is no CUDA extension these two run in Triton, and on such devices alone.
_TREES = ("kernels/ops/speculative/spec_tree.py", "srt/speculative/eagle_utils.py")
_EAGLE = ("kernels/ops/speculative/eagle.py",)


def _launch_chain(
    function: Any, bonus_tokens: torch.Tensor, draft_tokens: torch.Tensor, verified_seq_len: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    mask, positions, index, next_token, next_sibling, tokens, _locs, _mrope = function(
        bonus_tokens, draft_tokens, verified_seq_len
    )
    return tokens, mask, positions, index, next_token, next_sibling


def _launch_reconstruct(
    function: Any,
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
) -> None:
    bs, num_draft_tokens = retrieve_index.shape
    function(
        tree_mask,
        verified_seq_len,
        positions,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        bs,
        num_draft_tokens,
    )


def _launch_build(
    function: Any,
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
    tree_mask_mode: int,
) -> None:
    function(
        parent_list,
        selected_index,
        verified_seq_len,
        tree_mask,
        positions,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        topk,
        num_steps,
        num_draft_tokens,
        tree_mask_mode,
    )


def _launch_verify(
    function: Any,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    num_steps: int,
) -> None:
    """The width of accept_index says how many drafts can be accepted."""
    assert accept_index.shape[1] == num_steps + 1
    function(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        target_predict,
    )


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "build_chain_tree",
        ("build_chain_tree",),
        _EAGLE,
        (
            (
                "bonus_tokens",
                "draft_tokens",
                "seq_lens",
                "tree_mask_buf",
                "req_pool_indices",
                "req_to_token",
                "with_mrope",
            ),
        ),
        _launch_chain,
    ),
    KernelNames(
        "reconstruct_tree",
        ("reconstruct_indices_from_tree_mask_triton",),
        ("kernels/ops/speculative/reconstruct_tree.py",),
        (
            (
                "tree_mask",
                "verified_seq_len",
                "positions",
                "retrieve_index",
                "retrieve_next_token",
                "retrieve_next_sibling",
                "batch_size",
                "draft_token_num",
            ),
        ),
        _launch_reconstruct,
    ),
    KernelNames(
        "build_tree",
        ("sgl_build_tree_kernel_triton",),
        _TREES,
        (
            (
                "parent_list",
                "selected_index",
                "verified_seq_len",
                "tree_mask",
                "positions",
                "retrieve_index",
                "retrieve_next_token",
                "retrieve_next_sibling",
                "topk",
                "depth",
                "draft_token_num",
                "tree_mask_mode",
            ),
        ),
        _launch_build,
        variant="triton",
        cost=20,
    ),
    KernelNames(
        "verify_tree_greedy",
        ("verify_tree_greedy_triton",),
        _TREES,
        (
            (
                "predicts",
                "accept_index",
                "accept_token_num",
                "candidates",
                "retrieve_index",
                "retrieve_next_token",
                "retrieve_next_sibling",
                "target_predict",
            ),
        ),
        _launch_verify,
        variant="triton",
        cost=5,
    ),
)


class _OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU, where it matters which launch is made."""

    is_cuda = True


def _after_draft(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The tail of a draft whose trees are chains, with masks of the nodes alone; slots and positions of several axes,
    which the launch prepares too, have no contract here.
    """
    seq_lens = tensors["verified_seq_len"]
    bs, device = len(seq_lens), seq_lens.device
    table = torch.zeros(bs, int(seq_lens.max()) + sizes["num_draft_tokens"], dtype=torch.int32, device=device)
    batch = running_batch(
        seq_lens=seq_lens.as_subclass(_OnGpu),
        req_pool_indices=torch.arange(bs, device=device),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        multimodal_inputs=[],
    )
    runner = SimpleNamespace(model_config=SimpleNamespace(model_is_mrope=False))
    return {
        "batch": batch,
        "bs": bs,
        "topk": 1,
        "num_steps": sizes["num_steps"],
        "num_draft_tokens": sizes["num_draft_tokens"],
        "draft_input": SimpleNamespace(bonus_tokens=tensors["bonus_tokens"]),
        "draft_tokens": tensors["draft_tokens"],
        "target_worker": SimpleNamespace(model_runner=runner),
        "TreeMaskMode": SimpleNamespace(QLEN_ONLY=1),
        "mask_mode": 1,
        "tree_mask_buf": None,
    }


def _tokens_first(returned: tuple[Any, ...]) -> tuple[Any, ...]:
    return returned[5], *returned[:5]


CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "build_chain_tree",
        "build_eagle_verify_input",
        ("srt/speculative/eagle_worker_common.py",),
        ("build_chain_tree",),
        _after_draft,
        (),
        outputs=_tokens_first,
    ),
)
