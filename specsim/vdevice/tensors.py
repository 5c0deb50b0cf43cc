"""Tensors of the virtual device, and tensors of the host that its copies reach.

Both keep their bytes in a CPU tensor, `host_bytes`, which holds what has been executed so far. Every operation on them
is dispatched to `specsim.vdevice.operations`; what is here are the methods that PyTorch does not dispatch, or that it
refuses without CUDA.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch

from specsim.vdevice.arrays import followed
from specsim.vdevice.device import CUDA, Device
from specsim.vdevice.history import Memory

aten = torch.ops.aten
POISON = -0x5EAD
"""What integers hold before their turn: odd, negative, and no index. Floats hold NaN."""
_POISON: dict[torch.dtype, bool | int | float] = {torch.bool: True, torch.uint8: 0xAD, torch.int8: -0x53}
_POISON |= dict.fromkeys((torch.uint16, torch.uint32, torch.uint64), 0xA153)
_POISON |= dict.fromkeys((torch.int16, torch.int32, torch.int64), POISON)


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a CPU tensor with what nobody has written."""
    try:
        return tensor.fill_(_POISON.get(tensor.dtype, math.nan))
    except NotImplementedError:  # numbers of less than a byte
        torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(0xAD)
        return tensor


class Lease:
    """What the tensors of one memory share: when the last of them is gone, the memory is free."""

    __slots__ = ("_device", "_memory", "_size")

    def __init__(self, device: Device, memory: Memory, size: int) -> None:
        self._device, self._memory, self._size = device, memory, size

    def __del__(self) -> None:
        if self._memory.users:
            self._device.free(self._memory, self._size)


class Traced(torch.Tensor):
    """A tensor whose every access is followed.

    host_bytes  its elements in the host's memory
    memory      the history of its storage
    operations  what carries operators out while `simulate` is active
    """

    host_bytes: torch.Tensor
    memory: Memory
    operations: ClassVar[Any]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return Traced.operations.dispatch(func, args, kwargs or {})

    def now(self, what: str) -> torch.Tensor:
        """The elements as the host reads them now."""
        raise NotImplementedError

    def data_ptr(self) -> int:
        """The address of `host_bytes`, which kernels may reach from now on."""
        address = self.host_bytes.data_ptr()
        Traced.operations.device.addressed[address] = (self.memory, self.host_bytes)
        return address

    def copy_(self, src: Any, non_blocking: bool = False) -> Any:
        return _dispatched(aten.copy_.default, self, src, non_blocking)

    def untyped_storage(self) -> Any:
        """That of `host_bytes`: two tensors share one as on a real device."""
        return self.host_bytes.untyped_storage()

    def tolist(self) -> Any:
        return self.now("tolist").tolist()

    def item(self) -> Any:
        return self.now("item").item()

    def __bool__(self) -> bool:
        return bool(self.now("bool"))

    def __int__(self) -> int:
        return int(self.now("int"))

    def __float__(self) -> float:
        return float(self.now("float"))

    def __index__(self) -> int:
        return self.now("index").__index__()

    def __iter__(self) -> Iterator[Any]:
        return iter(aten.unbind.int(self))

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.now("pickle").__reduce_ex__(protocol)

    def __repr__(self, **_options: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.memory.name}, {self.host_bytes!r})"


class VirtualTensor(Traced):
    """A tensor of the virtual device: `device` is cuda:0."""

    lease: Lease | None

    def now(self, what: str) -> torch.Tensor:
        """A copy to the host that blocks."""
        values: torch.Tensor = Traced.operations.read_back(self.memory, self.host_bytes, what)
        return values

    def numpy(self, **_options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def record_stream(self, s: Any) -> None:
        self.memory.lent_to |= {s.index}

    def contiguous(self, memory_format: Any = torch.contiguous_format) -> Any:
        if self.is_contiguous(memory_format=memory_format):
            return self
        return aten.clone.default(self, memory_format=memory_format)

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        found = aten.nonzero.default(self)
        return aten.unbind.int(found, 1) if as_tuple else found

    def __getitem__(self, indices: Any) -> Any:
        view, tensors = _indexed(self, indices)
        return view if tensors is None else _dispatched(aten.index.Tensor, view, _on_device(tensors))

    def __setitem__(self, indices: Any, value: Any) -> None:
        view, tensors = _indexed(self, indices)
        if not isinstance(value, torch.Tensor):
            if tensors is None:
                _dispatched(aten.fill_.Scalar, view, value)
                return
            value = torch.scalar_tensor(value, dtype=self.dtype)
        if tensors is None:
            while value.dim() > view.dim() and value.shape[0] == 1:
                value = value[0]
            if value.dim() == 0 and not isinstance(value, VirtualTensor):
                _dispatched(aten.fill_.Scalar, view, value.item())
            else:
                view.copy_(value)
            return
        if not isinstance(value, VirtualTensor):
            value = value.to(device=CUDA, dtype=self.dtype, non_blocking=value.dim() == 0)
        if value.dtype != self.dtype:
            value = value.to(self.dtype)
        _dispatched(aten.index_put_.default, view, _on_device(tensors), value)


class HostTensor(Traced):
    """Memory of the host that the device copies to or from while the host goes on: pinned, or the result of
    `.to("cpu", non_blocking=True)`. A read gives what has arrived so far.
    """

    def now(self, what: str) -> torch.Tensor:
        Traced.operations.device.host_access(self.memory, what, is_write=False)
        return self.host_bytes

    def numpy(self, **_options: Any) -> Any:
        """Shares memory, and what is done through it is followed."""
        return followed(self.host_bytes.numpy(), self.memory)

    def __array__(self, dtype: Any = None) -> Any:
        return np.asarray(self.now("numpy").numpy(), dtype)

    def is_pinned(self, device: Any = None) -> bool:
        return True

    def pin_memory(self, device: Any = None) -> Any:
        return self


def _dispatched(func: Any, *args: Any) -> Any:
    """What `func(*args)` gives, without a way through PyTorch's dispatcher and back, which takes as long again."""
    return Traced.operations.call(func, args, {})


def _on_device(tensors: list[Any]) -> list[Any]:
    return [tensor if tensor is None or isinstance(tensor, VirtualTensor) else tensor.to(CUDA) for tensor in tensors]


def _indexed(tensor: Any, indices: Any) -> tuple[Any, list[Any] | None]:
    """The view that integers, slices, None and Ellipsis make, and for each of its axes the tensor that indexes it;
    None where there is none.
    """
    if type(indices) is VirtualTensor and indices.dim():
        return tensor, [indices]
    if not isinstance(indices, tuple):
        indices = (indices,)
    if all(map(_is_plain, indices)):
        guard = torch._C._DisableTorchDispatch()
        try:
            return virtual(tensor.host_bytes[indices], tensor.memory, tensor.lease), None
        finally:
            del guard
    taken = sum(_axes(index) for index in indices)
    view, axis = tensor, 0
    tensors: list[Any] = []
    for index in indices:
        if index is Ellipsis:
            left_out = tensor.dim() - taken
            axis += left_out
            tensors += [None] * left_out
        elif index is None:
            view = aten.unsqueeze.default(view, axis)
            axis += 1
            tensors.append(None)
        elif isinstance(index, slice):
            view = _sliced(view, axis, index)
            axis += 1
            tensors.append(None)
        elif isinstance(index, bool) or (isinstance(index, torch.Tensor) and not index.dim() and _is_mask(index)):
            view = aten.unsqueeze.default(view, axis)
            tensors.append(torch.tensor([index]) if isinstance(index, bool) else aten.unsqueeze.default(index, 0))
            axis += 1
        elif isinstance(index, torch.Tensor) and index.dim():
            tensors.append(index)
            axis += _axes(index)
        elif isinstance(index, (list, range)) or type(index).__name__ == "ndarray":
            listed = torch.as_tensor(list(index) if isinstance(index, range) else index)
            tensors.append(listed if listed.numel() else listed.to(torch.int64))
            axis += _axes(listed)
        else:  # a tensor without axes, too: PyTorch reads it
            view = _dispatched(aten.select.int, view, axis, int(index))
    return view, (tensors if any(index is not None for index in tensors) else None)


def _is_plain(index: Any) -> bool:
    """Whether an index is an integer, a slice of integers, None or Ellipsis."""
    of = type(index)
    if of is slice:
        return type(index.start) in _BOUNDS and type(index.stop) in _BOUNDS and type(index.step) in _BOUNDS
    return of is int or index is None or index is Ellipsis


_BOUNDS = (int, type(None))


def _axes(index: Any) -> int:
    """How many axes of the tensor an index takes."""
    if index is None or index is Ellipsis or isinstance(index, bool):
        return 0
    return index.dim() if isinstance(index, torch.Tensor) and _is_mask(index) else 1


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _sliced(view: Any, axis: int, index: slice) -> Any:
    start, stop, step = (None if bound is None else int(bound) for bound in (index.start, index.stop, index.step))
    if start is stop is step is None:
        return _dispatched(aten.alias.default, view)
    return _dispatched(
        aten.slice.Tensor, view, axis, start, sys.maxsize if stop is None else stop, 1 if step is None else step
    )


def virtual(bytes_: torch.Tensor, memory: Memory, lease: Lease | None) -> VirtualTensor:
    made = torch.Tensor._make_wrapper_subclass(
        VirtualTensor,
        bytes_.size(),
        bytes_.stride(),
        bytes_.storage_offset(),
        None,
        bytes_.dtype,
        torch.strided,
        CUDA,
    )
    made.host_bytes = bytes_
    made.memory = memory
    made.lease = lease
    return made


_CPU = torch.device("cpu")


def trapped(bytes_: torch.Tensor, memory: Memory) -> HostTensor:
    made = torch.Tensor._make_wrapper_subclass(
        HostTensor,
        bytes_.size(),
        bytes_.stride(),
        bytes_.storage_offset(),
        None,
        bytes_.dtype,
        torch.strided,
        _CPU,
    )
    made.host_bytes = bytes_
    made.memory = memory
    return made


def device_view(host: HostTensor) -> VirtualTensor:
    """Pinned memory of the host as a tensor of the device, which reaches it without a copy (unified addressing): what
    the host writes meanwhile is seen, and reported.
    """
    return virtual(host.host_bytes, host.memory, None)
