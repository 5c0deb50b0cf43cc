"""Draft trees and their greedy verification, where SGLang has them in Triton."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelLaunch,
    KernelNames,
    host_call,
    named,
    running_batch,
    words,
)
from specsim.engines.sglang.where import places

_LINKS = "retrieve_index retrieve_next_token retrieve_next_sibling"
_RECONSTRUCT = f"tree_mask verified_seq_len positions {_LINKS}"
_BUILD = f"parent_list selected_index verified_seq_len tree_mask positions {_LINKS}"
_WALK = f"predicts accept_index accept_token_num candidates {_LINKS} target_predict"


def _launch_chain(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, "bonus_tokens draft_tokens verified_seq_len"), returned=_tokens_first)


def _tokens_first(returned: tuple[Any, ...]) -> tuple[Any, ...]:
    """Slots and positions of several axes come last, and have no contract."""
    return returned[5], *returned[:5]


def _launch_reconstruct(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, _RECONSTRUCT), *t["retrieve_index"].shape)


def _launch_build(sizes: Sizes, t: Tensors) -> KernelLaunch:
    numbers = (sizes[name] for name in ("topk", "num_steps", "num_draft_tokens", "tree_mask_mode"))
    return host_call(*named(t, _BUILD), *numbers)


def _launch_walk(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """The width of accept_index says how many drafts can be accepted."""
    return host_call(*named(t, _WALK))


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "build_chain_tree",
        places("build_chain_tree"),
        (words("bonus_tokens draft_tokens seq_lens tree_mask_buf req_pool_indices req_to_token with_mrope"),),
        _launch_chain,
    ),
    KernelNames(
        "reconstruct_tree",
        places("reconstruct_indices_from_tree_mask_triton"),
        (words(f"{_RECONSTRUCT} batch_size draft_token_num"),),
        _launch_reconstruct,
    ),
    # Where there is no CUDA extension these two run in Triton, and on such devices alone.
    KernelNames(
        "build_tree",
        places("sgl_build_tree_kernel_triton"),
        (words(f"{_BUILD} topk depth draft_token_num tree_mask_mode"),),
        _launch_build,
        variant="triton",
        cost=20,
    ),
    KernelNames(
        "verify_tree_greedy",
        places("verify_tree_greedy_triton"),
        (words(_WALK),),
        _launch_walk,
        variant="triton",
        cost=5,
    ),
)


class OnGpu(torch.Tensor):
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
        seq_lens=seq_lens.as_subclass(OnGpu),
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


CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "build_chain_tree",
        "build_eagle_verify_input",
        places("build_eagle_verify_input"),
        ("build_chain_tree",),
        _after_draft,
        (),
        outputs=_tokens_first,
    ),
)
