"""Blocks of a tensor in memory, which kernels load and store by offsets: `tl.make_block_ptr` and tensor descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from specsim.interpreter.lockstep.control import machine
from specsim.interpreter.lockstep.errors import KernelError
from specsim.interpreter.lockstep.tensors import INT1, INT64, Pointer, Tensor, cast, constant, to_tensor

ALIGNMENT = 16
"""Bytes. A GPU's descriptors start and continue at multiples of it."""


class Block(NamedTuple):
    """Elements `offsets[d] <= i < offsets[d] + extents[d]` of a tensor. As a tuple, it is merged where programs differ.

    shape, strides  of the tensor, in elements, int64
    padding         what a lane outside of the tensor holds: "zero", "nan", or "", which is undefined
    is_descriptor   whether each access gives its offsets and checks every axis
    """

    base: Pointer
    shape: tuple[Tensor, ...]
    strides: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    extents: tuple[int, ...]
    padding: str
    is_descriptor: bool

    @property
    def dtype(self) -> Any:
        """A descriptor's is that of its elements."""
        return self.base.dtype.element_ty if self.is_descriptor else self.base.dtype

    @property
    def block_shape(self) -> tuple[int, ...]:
        return self.extents

    def lanes(self, checked: Sequence[int]) -> tuple[Pointer, Tensor | None]:
        """The pointers to the block's elements, and which lie inside of the tensor along the axes `checked`."""
        pointer: Any = self.base
        inside: Tensor | None = None
        rank = len(self.extents)
        for axis, extent in enumerate(self.extents):
            steps = np.arange(extent).reshape(1, *(extent if other == axis else 1 for other in range(rank)))
            at = cast(self.offsets[axis], INT64) + Tensor(steps, INT64)
            pointer = pointer + at * self.strides[axis]
            if axis in checked:
                on_axis = (at >= 0) & (at < self.shape[axis])
                inside = on_axis if inside is None else inside & on_axis
        return pointer, inside

    def other(self, padding: str) -> Any:
        dtype = self.base.dtype.element_ty
        if padding == "nan" and not dtype.is_floating():
            raise KernelError(f"padding with NaN is asked for of {dtype}; allowed: a floating-point type")
        return None if padding == "" else cast(constant(float("nan") if padding == "nan" else 0.0), dtype)

    def load(self, offsets: Any, *_hints: Any) -> Tensor:
        """`descriptor.load`."""
        moved = self.at(offsets)
        pointer, inside = moved.lanes(range(len(self.extents)))
        return machine().memory.load(pointer, inside, self.other(self.padding))  # type: ignore[no-any-return]

    def store(self, offsets: Any, value: Any) -> None:
        """`descriptor.store`."""
        pointer, inside = self.at(offsets).lanes(range(len(self.extents)))
        machine().memory.store(pointer, value, inside)

    def at(self, offsets: Any) -> Block:
        moved = self._replace(offsets=_tensors(offsets, len(self.extents), "offsets"))
        _aligned(cast(moved.offsets[-1], INT64).data * self.base.itemsize, "the last offset of a descriptor's block")
        return moved


def make_block_ptr(base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any) -> Block:
    extents = _constants(block_shape)
    rank = len(extents)
    if sorted(_constants(order)) != list(range(rank)):
        raise KernelError(f"order is {list(_constants(order))}; allowed: the {rank} axes of the block")
    if not isinstance(base, Pointer) or base.shape:
        raise KernelError("a block pointer is made of what is no pointer to one element")
    if base.dtype.element_ty == INT1:
        base = cast(base, tl.pointer_type(tl.int8))
    parent = (_int64(_tensors(shape, rank, "shape")), _int64(_tensors(strides, rank, "strides")))
    return Block(base, *parent, _tensors(offsets, rank, "offsets"), extents, "", False)


def advance(base: Block, offsets: Any) -> Block:
    more = _tensors(offsets, len(base.extents), "offsets")
    return base._replace(offsets=tuple(a + b for a, b in zip(base.offsets, more, strict=True)))


def make_tensor_descriptor(
    base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: str = "zero"
) -> Block:
    """Refuses what a GPU's descriptors cannot have."""
    extents = _constants(block_shape)
    rank = len(extents)
    parent = (_int64(_tensors(shape, rank, "shape")), _int64(_tensors(strides, rank, "strides")))
    size = base.itemsize
    _aligned(base.addresses(), "the base of a tensor descriptor")
    for stride in parent[1][:-1]:
        _aligned(stride.data * size, "a stride of a tensor descriptor")
    if (parent[1][-1].data != 1).any():
        raise KernelError(f"the last stride of a tensor descriptor is {int(parent[1][-1].data[0])}; allowed: 1")
    if extents[-1] * size < ALIGNMENT:
        raise KernelError(
            f"the last axis of a descriptor's block has {extents[-1] * size} bytes; allowed: {ALIGNMENT} and more"
        )
    return Block(base, *parent, (constant(0),) * rank, extents, padding_option, True)


def described(base: Pointer, descriptor: Any) -> Block:
    """What a launch passes as a `TensorDescriptor`, of which `base` is the tensor."""
    return make_tensor_descriptor(
        base, descriptor.shape, descriptor.strides, tuple(descriptor.block_shape), descriptor.padding
    )


def load_tensor_descriptor(desc: Block, offsets: Any) -> Tensor:
    return desc.load(offsets)


def store_tensor_descriptor(desc: Block, offsets: Any, value: Any) -> None:
    desc.store(offsets, value)


def _aligned(places: Any, what: str) -> None:
    if (places % ALIGNMENT != 0).any():
        raise KernelError(f"{what} is no multiple of {ALIGNMENT} bytes")


def _tensors(values: Any, rank: int, what: str) -> tuple[Tensor, ...]:
    found = tuple(to_tensor(value) for value in values)
    if len(found) != rank:
        raise KernelError(f"{len(found)} {what} of a block with {rank} axes")
    return found


def _int64(values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(cast(value, INT64) for value in values)


def _constants(values: Any) -> tuple[int, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)
