"""`simulate`: a virtual CUDA device for whatever PyTorch code runs inside."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from specsim.choices.chooser import Chooser
from specsim.vdevice import kernels, uncompiled
from specsim.vdevice.device import CUDA, Active, Device, Event, Stream, StreamContext
from specsim.vdevice.findings import Finding, is_user_code
from specsim.vdevice.graphs import CUDAGraph, graph
from specsim.vdevice.operations import Operations
from specsim.vdevice.tensors import HostTensor, Traced, VirtualTensor

MEMORY_BYTES = 80 << 30
_PROPERTIES = types.SimpleNamespace(
    name="virtual", major=9, minor=0, total_memory=MEMORY_BYTES, multi_processor_count=132, warp_size=32,
    is_integrated=0, integrated=0, is_multi_gpu_board=0, max_threads_per_multi_processor=2048,
    shared_memory_per_block_optin=232448, regs_per_multiprocessor=65536, L2_cache_size=50 << 20, gcnArchName="",
)  # fmt: skip

_RUNTIME = types.SimpleNamespace(
    cudaHostRegister=lambda _address, _size, _flags: 0, cudaHostUnregister=lambda _address: 0
)


@contextmanager
def simulate(
    chooser: Chooser,
    *,
    sites: Callable[[str], bool] | None = None,
    ignored: Sequence[Callable[[Finding], bool]] = (),
) -> Iterator[Device]:
    """A virtual CUDA device in place of `torch.cuda` while active, for a PyTorch with or without CUDA.

    chooser  how fast each stream is: choice 0 runs everything at once
    sites    whether a file is the user's code, in which findings have their places; by default every file that is
             neither PyTorch's, specsim's nor the standard library's
    ignored  findings for which one of these holds go to `Device.ignored`: pairs known to be harmless

    Gradients stay off: autograd of a PyTorch without CUDA ends the process when it sees a tensor of the device.

    What is pending at the end is run, so that it is judged; not after an exception. Raises RuntimeError where one is
    active already.
    """
    if Active.device is not None:
        raise RuntimeError("specsim.vdevice.simulate is active already; one virtual device at a time")
    device = Device(chooser, is_site=sites or is_user_code, ignored=ignored)
    operations = Operations(device)
    Active.device = device
    replaced = _Replaced()
    has_gradients = torch.is_grad_enabled()
    lifts_all = not torch._C._only_lift_cpu_tensors()
    try:
        Traced.operations = operations
        _replace_cuda(device, replaced)
        _replace_functions(device, operations, replaced)
        for owner, name, value in uncompiled.replacements():
            replaced.put(owner, name, value)
        for owner, name, method in kernels.replacements(device) if kernels.is_available() else ():
            replaced.put(owner, name, method)
        torch._C._set_only_lift_cpu_tensors(True)
        # Module.to makes new parameters: those that it has cannot take a tensor of the device in.
        replaced.put(torch.__future__, "_overwrite_module_params_on_conversion", True)
        torch._C._set_grad_enabled(False)
        replaced.put(torch._C, "_set_grad_enabled", _giving(None))
        # What is queued runs outside of it, and could not write what was made inside.
        replaced.put(torch._C, "_InferenceMode", lambda _mode: nullcontext())
        gc.callbacks.append(device.collect)
        with operations:
            yield device
        device.drain()
    finally:
        torch._C._set_only_lift_cpu_tensors(not lifts_all)
        replaced.restore()
        if device.collect in gc.callbacks:
            gc.callbacks.remove(device.collect)
        torch._C._set_grad_enabled(has_gradients)
        Active.device = None


class _Replaced:
    """Attributes that stand for others until `restore`."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner).get(name, self)))
        setattr(owner, name, value)

    def restore(self) -> None:
        for owner, name, value in reversed(self._before):
            if value is self:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._before.clear()


def _replace_cuda(device: Device, replaced: _Replaced) -> None:
    """`torch.cuda`: what makes, selects and waits for streams, and what describes the device."""

    def set_stream(stream: Stream) -> None:
        if stream is not None:
            device.current = stream

    constant: dict[str, Any] = {
        "_lazy_init": None,
        "init": None,
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "get_device_name": _PROPERTIES.name,
        "get_device_capability": (_PROPERTIES.major, _PROPERTIES.minor),
        "get_device_properties": _PROPERTIES,
        "mem_get_info": (MEMORY_BYTES * 7 // 8, MEMORY_BYTES),
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "manual_seed": None,
        "manual_seed_all": None,
        "empty_cache": None,
        "ipc_collect": None,
        "cudart": _RUNTIME,
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
        "reset_peak_memory_stats": None,
        "is_bf16_supported": True,
    }
    for name, value in constant.items():
        replaced.put(torch.cuda, name, _giving(value))
    functions: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "set_stream": set_stream,
        "current_stream": lambda _device=None: device.current,
        "default_stream": lambda _device=None: device.default,
        "synchronize": device.synchronize,
        "is_current_stream_capturing": lambda: device.capture is not None,
        "graph_pool_handle": lambda: (0, 0),
        "CUDAGraph": CUDAGraph,
        "graph": graph,
    }
    for name, value in functions.items():
        replaced.put(torch.cuda, name, value)
        if name in vars(torch.cuda.graphs):
            replaced.put(torch.cuda.graphs, name, value)


def _giving(value: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: value


def _replace_functions(device: Device, operations: Operations, replaced: _Replaced) -> None:
    """What of PyTorch asks for a CUDA of its own before it dispatches."""
    nonzero: Callable[..., Any] = torch.nonzero
    get_device_module = torch.get_device_module
    tensor, as_tensor, to = _undispatched(torch.tensor), torch.as_tensor, torch.Tensor.to
    uploaded = _undispatched(operations.uploaded)

    def tensor_(
        data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
    ) -> Any:
        if isinstance(data, (list, tuple)) and any(isinstance(item, Traced) for item in data):
            data = [item.item() if isinstance(item, torch.Tensor) else item for item in data]
        if isinstance(data, Traced):
            device = data.device if device is None else device
            made = data.now("tensor").clone() if dtype is None else data.now("tensor").to(dtype)
        else:
            device = device or _default_device()
            made = tensor(data, dtype=dtype, device=_CPU)
        if pin_memory:
            return operations.pinned(made, "tensor")
        made = uploaded(made) if _is_cuda(device) else made
        return made.requires_grad_() if requires_grad else made

    def as_tensor_(data: Any, dtype: Any = None, device: Any = None) -> Any:
        if isinstance(data, torch.Tensor):
            return data.to(device=data.device if device is None else device, dtype=dtype or data.dtype)
        if _is_cuda(device or _default_device()):
            return uploaded(tensor(data, dtype=dtype, device=_CPU))
        return as_tensor(data, dtype=dtype)

    def to_(self: Any, *args: Any, **kwargs: Any) -> Any:
        target, dtype, options = _target(args, kwargs)
        if not isinstance(self, Traced) and not _is_cuda(target):
            return to(self, *args, **kwargs)
        target = self.device if target is None else torch.device(target)
        options["device"] = CUDA if target.type == "cuda" else target
        is_there = target.type == self.device.type and dtype in (None, self.dtype)
        if is_there and not options.pop("copy", False):
            return self
        options.pop("copy", None)
        if dtype is not None:
            options["dtype"] = dtype
        return operations.call(torch.ops.aten._to_copy.default, (self,), options)

    def cuda_(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        return to_(self, CUDA, non_blocking=non_blocking)

    def pin_(self: Any, device: Any = None) -> Any:
        if isinstance(self, VirtualTensor):
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        return self if isinstance(self, HostTensor) else operations.pinned(self.clone(), "pin_memory")

    def new_tensor_(self: Any, data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
        return tensor_(data, dtype=dtype or self.dtype, device=self.device if device is None else device, **options)

    def nonzero_(input: Any, **options: Any) -> Any:
        return input.nonzero(**options) if isinstance(input, VirtualTensor) else nonzero(input, **options)

    def get_device_module_(device: Any = None) -> Any:
        return torch.cuda if device is None or _is_cuda(device) else get_device_module(device)

    def record_stream_(self: Any, stream: Any) -> None: ...

    replaced.put(torch, "get_device_module", get_device_module_)
    replaced.put(torch, "tensor", tensor_)
    replaced.put(torch, "nonzero", nonzero_)
    replaced.put(torch, "as_tensor", as_tensor_)
    for name in ("empty", "zeros", "ones", "full", "arange"):
        replaced.put(torch, name, _factory(name, operations))
    for name, method in {
        "to": to_,
        "cuda": cuda_,
        "pin_memory": pin_,
        "new_tensor": new_tensor_,
        "record_stream": record_stream_,
    }.items():
        replaced.put(torch.Tensor, name, method)


def _undispatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function in which PyTorch's operators are those of the host, without a way through Python for each."""

    def call(*args: Any, **kwargs: Any) -> Any:
        guard = torch._C._DisableTorchDispatch()
        try:
            return function(*args, **kwargs)
        finally:
            del guard

    return call


def _factory(name: str, operations: Operations) -> Callable[..., Any]:
    """A factory of PyTorch that makes tensors of the device itself: the way through PyTorch's dispatcher and back takes
    as long again.
    """
    original: Callable[..., Any] = getattr(torch, name)
    made = _undispatched(lambda args, kwargs: operations.made(original(*args, **kwargs), name))

    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device") or _default_device()
        if not _is_cuda(device) or kwargs.get("out") is not None or kwargs.get("requires_grad"):
            return original(*args, **kwargs)
        kwargs["device"] = _CPU
        kwargs.pop("pin_memory", None)
        return made(_read_back(args), {key: _read_back(value) for key, value in kwargs.items()})

    return make


def _default_device() -> Any:
    """The device of an enclosing `with torch.device(...)`, or of `torch.set_default_device`; None where there is none.
    PyTorch knows its own factories in there, and not what is put in their place.
    """
    if not torch._C._len_torch_function_stack():
        return None
    modes = reversed(_get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


def _read_back(value: Any) -> Any:
    """Sizes and values of a factory, where a tensor of the device is read as PyTorch does: the host waits for it."""
    if isinstance(value, Traced):
        return value.item()
    if type(value) in (tuple, list):
        return type(value)([_read_back(item) for item in value])
    return value


_CPU = torch.device("cpu")


def _is_cuda(device: Any) -> bool:
    of = type(device)
    if of is torch.device:
        return device.type == "cuda"  # type: ignore[no-any-return]
    return device is not None and torch.device(device).type == "cuda"


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The device, the type and the other options of a call of `Tensor.to`."""
    if len(args) == 1 and not kwargs and type(args[0]) is torch.dtype:
        return None, args[0], {}
    options = dict(kwargs)
    device, dtype = options.pop("device", None), options.pop("dtype", None)
    other = options.pop("other", None)
    rest = list(args)
    if rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
    if other is not None:
        device, dtype = other.device, other.dtype
    if rest and (rest[0] is None or isinstance(rest[0], (str, int, torch.device))) and not isinstance(rest[0], bool):
        device = rest.pop(0)
    if rest and isinstance(rest[0], torch.dtype):
        dtype = rest.pop(0)
    options |= dict(zip(("non_blocking", "copy"), rest, strict=False))
    return device, dtype, options
