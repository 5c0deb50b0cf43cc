"""Arrays of addresses: what an argument that a kernel reads pointers from leads to.

Some kernels take a tensor of addresses instead of tensors. A memory check must know which memory those are, and what
they lead to must outlive the launch; so the array carries its tensors along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def pointers_to(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """[n] uint64, the address of the first element of each tensor, on the device of the tensors."""
    addresses = torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64, device=tensors[0].device)
    setattr(addresses, _CARRIED, tuple(tensors))
    return addresses


def pointees(argument: Any) -> tuple[torch.Tensor, ...]:
    """The tensors that an argument made by `pointers_to` leads to; none for any other."""
    return getattr(argument, _CARRIED, ())


_CARRIED = "specsim_points_into"


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if not tensor.numel():
        return 0
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
