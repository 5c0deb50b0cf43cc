"""A module `sgl_kernel` for machines that cannot load the real one: its speculative operations by the reference, or by
specsim's kernels.

Each function takes what the package's function of that name takes, and writes the caller's buffers where the CUDA
kernel writes them and nowhere else: what the caller must have filled before is left as it is, so a buffer that was not
filled shows.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from specsim.contracts.contract import Case, Implementation, Role, Sizes, Tensors
from specsim.contracts.registry import OPS

FULL_MASK, QLEN_ONLY, PACKED = MODES = (0, 1, 2)
"""`tree_mask_mode`: rows span sequence and tree, the tree alone, or are bits of the latter."""
PACKED_NODES_MAX = 32
VERSION = "99.0.0"
"""Engines refuse an old one."""


class NoSuchOperationError(NotImplementedError):
    """An operation of the real package that this module does not have was called."""


def module_of(functions: Mapping[str, Implementation]) -> types.ModuleType:
    """The module, whose operations are done by `functions`, by the names of specsim's operations. See
    `specsim.testing.sgl_kernel`. A name that it lacks must be importable: engines import dozens that they do not call.
    """
    module = types.ModuleType("sgl_kernel", __doc__)
    operations = _Operations(functions)
    for name in OPERATIONS:
        setattr(module, name, getattr(operations, name))
    module.__dict__.update(__version__=VERSION, __path__=[], __getattr__=_missing)
    return module


def _missing(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(f"module 'sgl_kernel' has no attribute {name!r}")

    def operation(*_arguments: Any, **_named: Any) -> Any:
        raise NoSuchOperationError(f"sgl_kernel.{name} is not run: specsim has {', '.join(OPERATIONS)}")

    operation.__name__ = name
    return operation


class _Operations:
    """The operations. Arguments and their order are those of the package; `retrive` is its spelling."""

    def __init__(self, functions: Mapping[str, Implementation]) -> None:
        self._functions = functions

    def build_tree_kernel_efficient(
        self,
        parent_list: Tensor,
        selected_index: Tensor,
        verified_seq_len: Tensor,
        tree_mask: Tensor,
        positions: Tensor,
        retrive_index: Tensor,
        retrive_next_token: Tensor,
        retrive_next_sibling: Tensor,
        topk: int,
        depth: int,
        draft_token_num: int,
        tree_mask_mode: int,
    ) -> None:
        """Shapes and dtypes: specsim.reference.tree.build_tree, of `depth` steps; `tree_mask` may be longer, and of
        uint8 in place of bool: that of a CUDA graph is. In FULL_MASK the columns before a tree stay as they are, as do
        the links of a node that has no such neighbour.
        """
        _require_mode(tree_mask_mode, draft_token_num)
        bs, ndt = selected_index.shape[0], draft_token_num
        if not parent_list.numel():  # of one step: nothing is read of it, and its dtype may be any
            parent_list = parent_list.to(torch.int64)
        inputs = {"parent_list": parent_list, "selected_index": selected_index, "verified_seq_len": verified_seq_len}
        sizes = {"topk": topk, "num_steps": depth, "num_draft_tokens": ndt, "num_nodes": bs * ndt}
        if tree_mask_mode == PACKED:
            sizes["mask_bytes"] = bs * ndt * next(width for width in (1, 2, 4) if ndt <= 8 * width)
            tree = self._run("build_tree_packed", inputs, sizes)
        else:
            before = int(verified_seq_len.sum()) if tree_mask_mode == FULL_MASK else 0
            sizes |= {"tree_mask_mode": tree_mask_mode, "mask_numel": ndt * (before + bs * ndt)}
            tree = self._run("build_tree", inputs, sizes)
        mask = tree["tree_mask"]
        in_tree = _in_tree(verified_seq_len, ndt) if tree_mask_mode == FULL_MASK else torch.ones_like(mask).bool()
        if (tree_mask.dtype, mask.dtype) == (torch.uint8, torch.bool):
            tree_mask = tree_mask.view(torch.bool)
        _write("tree_mask", tree_mask.view(-1)[: mask.numel()], mask, in_tree)
        _write("positions", positions.view(-1), tree["positions"])
        _write("retrive_index", retrive_index, tree["retrieve_index"])
        for name, links in (("token", retrive_next_token), ("sibling", retrive_next_sibling)):
            found = tree[f"retrieve_next_{name}"]
            _write(f"retrive_next_{name}", links, found, found >= 0)

    def reconstruct_indices_from_tree_mask(
        self,
        tree_mask: Tensor,
        verified_seq_len: Tensor,
        positions: Tensor,
        retrive_index: Tensor,
        retrive_next_token: Tensor,
        retrive_next_sibling: Tensor,
        batch_size: int,
        draft_token_num: int,
    ) -> None:
        """Shapes and dtypes: specsim.reference.masks.reconstruct_tree."""
        mask = tree_mask.reshape(batch_size, draft_token_num, draft_token_num)
        sizes = {"num_nodes": batch_size * draft_token_num}
        tree = self._run("reconstruct_tree", {"tree_mask": mask, "verified_seq_len": verified_seq_len}, sizes)
        _write("positions", positions.view(-1), tree["positions"])
        _write("retrive_index", retrive_index, tree["retrieve_index"])
        _write("retrive_next_token", retrive_next_token, tree["retrieve_next_token"])
        _write("retrive_next_sibling", retrive_next_sibling, tree["retrieve_next_sibling"])

    def verify_tree_greedy(
        self,
        predicts: Tensor,
        accept_index: Tensor,
        accept_token_num: Tensor,
        candidates: Tensor,
        retrive_index: Tensor,
        retrive_next_token: Tensor,
        retrive_next_sibling: Tensor,
        target_predict: Tensor,
    ) -> None:
        """Shapes and dtypes: specsim.reference.verify.verify_tree_greedy. Of `predicts` and `accept_index` the accepted
        path alone is written.
        """
        inputs = _tree_of(candidates, retrive_index, retrive_next_token, retrive_next_sibling)
        inputs["target_predict"] = target_predict.reshape(candidates.shape)
        self._verify("verify_tree_greedy", inputs, predicts, accept_index, accept_token_num)

    def tree_speculative_sampling_target_only(
        self,
        predicts: Tensor,
        accept_index: Tensor,
        accept_token_num: Tensor,
        candidates: Tensor,
        retrive_index: Tensor,
        retrive_next_token: Tensor,
        retrive_next_sibling: Tensor,
        uniform_samples: Tensor,
        uniform_samples_for_final_sampling: Tensor,
        target_probs: Tensor,
        draft_probs: Tensor,
        threshold_single: float = 1.0,
        threshold_acc: float = 1.0,
        deterministic: bool = True,
    ) -> None:
        """Shapes and dtypes: specsim.reference.sampling.verify_tree_target_only. `draft_probs` is the CUDA kernel's
        scratch, which it takes as zeros: it is read for that, and not written. Of `predicts` and `accept_index` the
        accepted path alone is written.
        """
        if bool(draft_probs.any()):
            raise ValueError("draft_probs holds values other than 0; allowed: zeros, the kernel's scratch")
        inputs = _tree_of(candidates, retrive_index, retrive_next_token, retrive_next_sibling)
        inputs |= {"uniform_samples": uniform_samples, "uniform_final": uniform_samples_for_final_sampling}
        inputs |= {"target_probs": target_probs}
        for name, value in (("threshold_single", threshold_single), ("threshold_acc", threshold_acc)):
            inputs[name] = torch.tensor([value], dtype=target_probs.dtype, device=target_probs.device)
        self._verify("verify_tree_target_only", inputs, predicts, accept_index, accept_token_num)

    def top_k_renorm_prob(self, probs: Tensor, top_k: Tensor | int) -> Tensor:
        """`probs` [rows, vocab_size] float32 with all but the `top_k` ([rows] or one) most probable tokens of each row
        set to 0, and the rest divided by their sum (specsim.reference.logits.top_k_renorm_probs).
        """
        return self._renormed("top_k", probs, top_k, torch.int32)

    def top_p_renorm_prob(self, probs: Tensor, top_p: Tensor | float) -> Tensor:
        """The same with the fewest most probable tokens whose sum is `top_p` ([rows] or one) at least
        (specsim.reference.logits.top_p_renorm_probs).
        """
        return self._renormed("top_p", probs, top_p, torch.float32)

    top_k_renorm_probs, top_p_renorm_probs = top_k_renorm_prob, top_p_renorm_prob

    def fast_topk(self, values: Tensor, topk: int, dim: int) -> tuple[Tensor, Tensor]:
        """The `topk` largest of `values` along `dim` and their indices, contiguous; of equal ones the first."""
        found = values.sort(dim=dim, descending=True, stable=True)
        return found.values.narrow(dim, 0, topk).contiguous(), found.indices.narrow(dim, 0, topk).contiguous()

    def _renormed(self, name: str, probs: Tensor, value: Tensor | float, dtype: torch.dtype) -> Tensor:
        rows = torch.as_tensor(value, device=probs.device).to(dtype).expand(probs.shape[0]).contiguous()
        return self._run(f"{name}_renorm_probs", {"probs": probs, name: rows}, {})["renorm_probs"]

    def _verify(
        self, op: str, inputs: Tensors, predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor
    ) -> None:
        width = accept_index.shape[1]
        sizes = {"num_steps": width - 1, "accept_width": width, "num_nodes": inputs["candidates"].numel()}
        case = Case(sizes, inputs)
        verified = self._run(op, inputs, sizes)
        on_path = OPS[op].defined(case, verified)["predicts"]
        _write("predicts", predicts.view(-1)[: sizes["num_nodes"]], verified["predicts"], on_path)
        _write("accept_index", accept_index, verified["accept_index"], verified["accept_index"] >= 0)
        _write("accept_token_num", accept_token_num, verified["accept_token_num"])

    def _run(self, name: str, inputs: Tensors, sizes: Sizes) -> Tensors:
        """The outputs of an operation of the registry; sizes that inputs have need not be given."""
        op = OPS[name]
        known = dict(sizes)
        for arg in op.tensor_args:
            if arg.role is not Role.OUT:
                _require_dtype(arg.name, inputs[arg.name], arg.dtype)
                known |= {n: s for n, s in zip(arg.shape, inputs[arg.name].shape, strict=False) if isinstance(n, str)}
        case = Case(known, {arg: tensor.contiguous() for arg, tensor in inputs.items()})
        device = next(iter(inputs.values())).device
        return op.call(self._functions[name], known, {**case.tensors, **op.allocate_outputs(case, device)})


OPERATIONS = tuple(name for name in vars(_Operations) if not name.startswith("_"))
"""Those that the module has, by the package's names."""


def _tree_of(candidates: Tensor, index: Tensor, next_token: Tensor, next_sibling: Tensor) -> Tensors:
    return {
        "candidates": candidates,
        "retrieve_index": index,
        "retrieve_next_token": next_token,
        "retrieve_next_sibling": next_sibling,
    }


def _require_mode(mode: int, ndt: int) -> None:
    if mode not in MODES:
        raise ValueError(f"tree_mask_mode is {mode}; allowed: {', '.join(map(str, MODES))}")
    if mode == PACKED and ndt > PACKED_NODES_MAX:
        raise ValueError(f"draft_token_num is {ndt}; allowed: 1 to {PACKED_NODES_MAX} in a mask of bits")


def _require_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: {dtype}")


def _in_tree(verified_seq_len: Tensor, ndt: int) -> Tensor:
    """Of a ragged mask's elements, those of the trees' columns."""
    row_len = (verified_seq_len + ndt).repeat_interleave(ndt)  # [bs * ndt]
    column = torch.arange(int(row_len.sum()), device=row_len.device)
    column = column - (row_len.cumsum(0) - row_len).repeat_interleave(row_len)
    return column >= (row_len - ndt).repeat_interleave(row_len)


def _write(name: str, buffer: Tensor, values: Tensor, where: Tensor | None = None) -> None:
    """Write values into a caller's buffer, everywhere or where a boolean tensor says."""
    _require_dtype(name, buffer, values.dtype)
    if buffer.shape != values.shape:
        raise ValueError(f"{name} has shape {list(buffer.shape)}; allowed: {list(values.shape)}")
    if where is None:
        buffer.copy_(values)
    else:
        buffer[where] = values[where]
