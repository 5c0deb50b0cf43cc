"""The memory of a launch: which addresses lie in its tensors, and which tensor one outside is nearest to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Element:
    """An address as element `index` of a tensor that has `size`: below 0, or `size` and more, if it is outside."""

    tensor: str
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from a tensor's first element to the end of its last: addresses `start` to before `end`."""

    start: int
    end: int
    name: str
    itemsize: int


class LaunchMemory:
    """The spans of the tensors that a launch may touch, without those of no elements."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.spans = [
            Span(tensor.data_ptr(), tensor.data_ptr() + span_bytes(tensor), name, tensor.element_size())
            for name, tensor in tensors
            if tensor.numel()
        ]

    def inside(self, addresses: Any, itemsize: int = 1) -> Any:
        """bool, of the shape of `addresses` (uint64): where `itemsize` bytes lie in one span."""
        low, high = int(addresses.min()), int(addresses.max())
        if any(span.start <= low and high + itemsize <= span.end for span in self.spans):
            return np.ones(addresses.shape, dtype=bool)
        inside = np.zeros(addresses.shape, dtype=bool)
        for span in self.spans:
            inside |= (addresses >= np.uint64(span.start)) & (addresses <= np.uint64(span.end - itemsize))
        return inside

    def nearest(self, address: int) -> Element | None:
        """The address as an element of the nearest tensor; None where the launch has no tensor."""
        if not self.spans:
            return None
        near = min(self.spans, key=lambda span: max(span.start - address, address - span.end))
        return Element(near.name, (address - near.start) // near.itemsize, (near.end - near.start) // near.itemsize)


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if not tensor.numel():
        return 0
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
