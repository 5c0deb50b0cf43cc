"""The compiled operations that a release's workers call, by the reference, as launches on the virtual device."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from specsim.engines.sglang.scheduler import transfers

OPERATIONS: Mapping[str, tuple[str, ...]] = {  # by name, the buffers that each writes
    "build_tree_kernel_efficient": (
        "tree_mask",
        "positions",
        "retrive_index",
        "retrive_next_token",
        "retrive_next_sibling",
    ),
    "reconstruct_indices_from_tree_mask": ("positions", "retrive_index", "retrive_next_token", "retrive_next_sibling"),
    "verify_tree_greedy": ("predicts", "accept_index", "accept_token_num"),
    "tree_speculative_sampling_target_only": ("predicts", "accept_index", "accept_token_num"),
    "top_k_renorm_prob": (),
    "top_p_renorm_prob": (),
    "top_k_renorm_probs": (),
    "top_p_renorm_probs": (),
}
IN_PLACE_OF = (
    "flashinfer.sampling",
    "sgl_kernel",
    "sgl_kernel.kvcacheio",
    "sgl_kernel.speculative",
    "sgl_kernel.utils",
    "sglang.kernels.ops.speculative.sampling",
    "sglang.kernels.ops.speculative.tree",
    "sglang.kernels.ops.sampling.renorm",
)
"""Modules with compiled operations; of those of a release, ones that have no others."""


def modules(device: Callable[[], Any], reference: types.ModuleType) -> dict[str, types.ModuleType]:
    """A module for each name of IN_PLACE_OF, whose operations are those that `reference` has at a call. `device` gives
    the virtual device of a call.
    """
    held = {name: _launched(device, reference, name) for name in OPERATIONS}
    held.update(transfers.operations(device))
    held["fast_topk"] = reference.fast_topk
    held["is_arch_support_pdl"] = lambda: False
    made = {}
    for name in IN_PLACE_OF:
        module = made[name] = types.ModuleType(name, __doc__)
        vars(module).update(held, __getattr__=reference.__getattr__, __version__=reference.__version__, __path__=[])
    return made


def _launched(device: Callable[[], Any], reference: types.ModuleType, name: str) -> Callable[..., Any]:
    written, code = OPERATIONS[name], getattr(reference, name).__code__
    names = code.co_varnames[1 : code.co_argcount]

    def launch(*arguments: Any, **named: Any) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **named}
        tensors = {of: value for of, value in given.items() if isinstance(value, torch.Tensor)}
        out = [given[of] for of in written]
        made = None
        if not written:  # it returns what it makes of its first argument
            made = torch.empty_like(given[names[0]])
            out = [made]

        def run(access: Any) -> None:
            on_host = {of: access.host(value) if of in tensors else value for of, value in given.items()}
            try:
                result = getattr(reference, name)(**on_host)
            except ValueError as error:  # what no kernel is defined for
                access.failed(error)
                return
            if made is not None:
                access.host(made).copy_(result)

        device().launch(run, reads=list(tensors.values()), writes=out, name=name)
        return made

    launch.__name__ = name
    return launch
