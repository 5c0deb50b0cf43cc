"""Calls that are known and not lifted, and why: each is listed as not run where the release has it."""

from __future__ import annotations

from typing import NamedTuple


class NotLifted(NamedTuple):
    """A call of the operation in `function`, see `where`, whose kernel is the subject `needs`."""

    op: str
    function: str
    needs: str
    why: str

    @property
    def what(self) -> str:
        """How it is listed."""
        return f"{self.op} in {self.function}"


_WRONG = "its kernel is itself wrong in every release that has it"
_DISPATCHED = "it passes its own arguments on to the kernel's host function, which is the documented launch"

NOT_LIFTED: tuple[NotLifted, ...] = (
    NotLifted(
        "assign_hidden_states_pool",
        "MultiLayerEagleDraftWorker._draft_extend_for_prefill",
        "kernel:assign_hidden_states_pool",
        _WRONG,
    ),
    NotLifted(
        "assign_new_state",
        "MultiLayerEagleDraftExtendCudaGraphRunner.capture_one_batch_size",
        "kernel:assign_new_state",
        _WRONG,
    ),
    NotLifted("get_target_cache_loc", "EagleVerifyInput.verify", "kernel:get_target_cache_loc", _WRONG),
    NotLifted("filter_finished_cache_loc", "EagleVerifyInput.verify", "kernel:filter_finished_cache_loc", _WRONG),
    NotLifted(
        "draft_cache_locs_paged",
        "EAGLEWorker._draft_preprocess_decode",
        "kernel:draft_cache_locs_paged",
        _WRONG,
    ),
    NotLifted("row_argmax", "fast_sample", "kernel:row_argmax", _WRONG),
    NotLifted(
        "rotate_input_ids",
        "MultiLayerEagleDraftWorker._draft_extend_for_decode",
        "kernel:rotate_input_ids",
        "it is in the loop over the layers, between their forward passes, which a slice does not follow",
    ),
    NotLifted(
        "get_last_loc",
        "get_last_loc",
        "kernel:get_last_loc",
        f"it chooses among functions by the attention backend, and {_DISPATCHED}",
    ),
    NotLifted(
        "apply_token_bitmask",
        "XGrammarGrammar.apply_vocab_mask",
        "kernel:apply_token_bitmask",
        f"it looks which device the logits are on, and {_DISPATCHED}",
    ),
    NotLifted(
        "pack_tree_mask",
        "fast_prefill_plan",
        "kernel:pack_tree_mask",
        "its lengths come from the buffers of a FlashInfer wrapper, which is not there",
    ),
    NotLifted(
        "reconstruct_tree",
        "reconstruct_indices_from_tree_mask_func",
        "kernel:reconstruct_tree",
        _DISPATCHED,
    ),
    *(
        NotLifted(
            op,
            function,
            f"kernel:{op}:triton",
            f"for an XPU {_DISPATCHED}",
        )
        for op, function in (
            ("build_tree", "build_tree_kernel_efficient_func"),
            ("verify_tree_greedy", "verify_tree_greedy_func"),
        )
    ),
    NotLifted(
        "temperature_softmax",
        "softmax",
        "kernel:temperature_softmax:split",
        f"for HIP alone {_DISPATCHED}",
    ),
)
