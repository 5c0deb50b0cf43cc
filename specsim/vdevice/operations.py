"""What the operators of PyTorch do on the virtual device.

A view is immediate. An operator that gives the host a value, or a tensor whose shape depends on values, blocks: it runs
the current stream up to itself. Every other one is put on the current stream and runs in its turn, on the host's copies
of its arguments' bytes; until then its results hold poison. Their shapes come from the operator itself on zeros where
it is small, else from its meta kernel, once for each operator, shapes and types.

Copies follow CUDA: from pinned memory, and to memory that `non_blocking` made, they run in their turn; from other
memory of the host they take what it holds at the call; one that is not `non_blocking` blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specsim.vdevice.device import Device
from specsim.vdevice.findings import Site
from specsim.vdevice.history import Memory, Operation, Uses, uses_of
from specsim.vdevice.tensors import HostTensor, Lease, Traced, VirtualTensor, poison, trapped, virtual

aten = torch.ops.aten
_CPU = torch.device("cpu")
_META = torch.device("meta")

Way = Literal[
    "view", "in-place", "reshape", "factory", "function", "blocking", "copy", "to", "lift", "mask", "resize", "never"
]

_BY_NAME: dict[str, Way] = {
    "_to_copy": "to",
    "copy_": "copy",
    "lift_fresh": "lift",
    "lift": "lift",
    "index": "mask",
    "index_put_": "mask",
    "_index_put_impl_": "mask",
    "equal": "blocking",
    "set_": "resize",
    "resize_": "resize",
    "_has_compatible_shallow_copy_type": "never",
    "split": "view",
    "split_with_sizes": "view",
    "unbind": "view",
    "chunk": "view",
    "_unsafe_view": "view",
    "_reshape_alias": "view",
}
_EMPTY = frozenset({"empty", "empty_strided", "new_empty", "new_empty_strided", "empty_like"})
"""Factories that write nothing."""
_LIKE = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_full", "new_ones"})
_SCATTERS = frozenset(
    {"copy_", "fill_", "zero_", "masked_fill_", "masked_scatter_", "index_put_", "_index_put_impl_", "index_fill_"}
    | {"index_copy_", "index_add_", "scatter_", "scatter_add_", "scatter_reduce_", "_foreach_copy_", "_foreach_zero_"}
)
"""Operators that read no element of what they write but those that they change."""
_READS_ELEMENTS = {aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.take.default}
_DYNAMIC = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of an operator, from its schema.

    compute   what PyTorch itself carries it out with
    written   which of its positional arguments, and which keyword arguments, it writes
    is_empty  whether it is a factory that writes nothing
    is_random whether it draws numbers
    """

    way: Way
    name: str
    compute: Callable[..., Any]
    written: tuple[int, ...]
    written_names: tuple[str, ...]
    is_empty: bool
    is_random: bool


def _classified(func: Any) -> Operator:
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    written = [i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    names = tuple(schema.arguments[i].name for i in written)
    tags = func.tags
    is_random = torch.Tag.nondeterministic_seeded in tags
    way: Way
    takes_tensor = any("Tensor" in str(a.type) for a in schema.arguments)
    if name in _BY_NAME:
        way = _BY_NAME[name]
    elif any(tag in tags for tag in _DYNAMIC):
        way = "blocking"
    elif torch.Tag.inplace_view in tags:
        way = "reshape"
    elif written:
        way = "in-place"
    elif name in _EMPTY or name in _LIKE or (not takes_tensor and any(a.name == "device" for a in schema.arguments)):
        way = "factory"
    elif schema.returns and schema.returns[0].alias_info is not None:
        way = "view"
    else:
        way = "function"
    return Operator(way, name, func._op, tuple(written), names, name in _EMPTY, is_random)


class OperatorCall(NamedTuple):
    """A call of an operator: as the program made it, and with the host's copies of its tensors' bytes."""

    func: Any
    operator: Operator
    traced: list[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    host_args: tuple[Any, ...]
    host_kwargs: dict[str, Any]

    def on_host(self) -> Any:
        return self.operator.compute(*self.host_args, **self.host_kwargs)


class Operations(TorchDispatchMode):
    """Sends operators that involve the device to it."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.operators: dict[Any, Operator] = {}
        self.shapes: dict[Any, Any] = {}
        self.ways: dict[Way, Callable[[OperatorCall], Any]] = {
            "view": self._view,
            "in-place": self._in_place,
            "reshape": self._reshape,
            "factory": self._factory,
            "function": self._function,
            "blocking": self._blocking,
            "copy": self._copy,
            "to": self._to,
            "lift": self._lift,
            "mask": self._mask,
            "resize": self._resize,
            "never": lambda _: False,
        }

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise each operator passes through Dynamo, which is imported for it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs:
            device = kwargs.get("device")
            if (device is not None and device.type == "cuda") or kwargs.get("pin_memory"):
                return self.dispatch(func, args, kwargs)
        for of in types:
            if of is VirtualTensor or of is HostTensor:
                return self.dispatch(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call of an operator gives, without a way through PyTorch's dispatcher and back."""
        guard = torch._C._DisableTorchDispatch()
        try:
            return self.dispatch(func, args, kwargs)
        finally:
            del guard

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        operator = self.operators.get(func)
        if operator is None:
            operator = self.operators[func] = _classified(func)
        traced: list[Any] = []
        host_args = tuple([value if type(value) in _PLAIN else _on_host(value, traced) for value in args])
        host_kwargs = {name: _on_host(value, traced) for name, value in kwargs.items()} if kwargs else {}
        call = OperatorCall(func, operator, traced, args, kwargs, host_args, host_kwargs)
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            host_kwargs["device"] = _CPU
            return self.ways[operator.way](call)
        for tensor in traced:
            if type(tensor) is VirtualTensor:
                return self.ways[operator.way](call)
        return self._of_host(call)

    # Operators on the host, some of whose arguments the device reaches.

    def _of_host(self, call: OperatorCall) -> Any:
        operator, traced = call.operator, call.traced
        if call.kwargs.get("pin_memory"):
            made = call.func(*call.host_args, **{**call.host_kwargs, "pin_memory": False})
            return self.pinned(poison(made) if operator.is_empty else made, operator.name)
        if operator.way == "view":
            return _each(call.on_host(), lambda view: trapped(view, traced[0].memory))
        if operator.way == "reshape":
            return self._reshape(call)
        written = _written(call)
        for tensor in () if operator.way == "factory" else traced:
            if not any(tensor is out for out in written):
                self.device.host_access(tensor.memory, operator.name, is_write=False)
        result = call.on_host()
        for tensor in written:
            if type(tensor) is HostTensor:
                self.device.host_access(tensor.memory, operator.name, is_write=True)
        return _written_result(call, written) if written else result

    def pinned(self, values: torch.Tensor, what: str) -> HostTensor:
        """Pinned memory that holds these values."""
        return trapped(values, Memory(0, f"pinned {what}", self.device.sites.here(), is_host=True))

    # Operators on the device.

    def _view(self, call: OperatorCall) -> Any:
        base = call.traced[0]
        return _each(call.on_host(), lambda view: virtual(view, base.memory, base.lease))

    def _reshape(self, call: OperatorCall) -> Any:
        """`unsqueeze_` and its kin: a tensor becomes a view of what it was. What is queued keeps its shape."""
        tensor, part = call.args[0], call.host_args[0]
        tensor.host_bytes = part = part.as_strided(part.size(), part.stride(), part.storage_offset())
        call.operator.compute(part, *call.host_args[1:], **call.host_kwargs)
        guard = torch._C._DisableTorchDispatch()
        try:
            call.func(*call.args, **call.kwargs)
        finally:
            del guard
        return tensor

    def _factory(self, call: OperatorCall) -> Any:
        target = call.kwargs.get("device")
        if target is not None and target.type != "cuda":
            return self._of_host(call)
        call.host_kwargs["device"] = _CPU
        call.host_kwargs.pop("pin_memory", None)
        return self.made(call.on_host(), call.operator.name)

    def made(self, values: torch.Tensor, name: str) -> VirtualTensor:
        """A new tensor with what the factory `name` gives; poison where it writes nothing."""
        site = self.device.sites.here()
        return self.new(poison(values), name, site) if name in _EMPTY else self.upload(values, name, site)

    def upload(self, values: torch.Tensor, what: str, site: Site, reads: Uses = ()) -> VirtualTensor:
        """A new tensor that a copy of `values` fills in its turn. Without `reads`, nobody else has `values`."""
        if self.device.is_immediate() and not reads:
            out = self.new(values, what, site)
            self.enqueue(what, site, _nothing, (), ((out.memory, values),))
            return out
        into = poison(torch.empty_like(values))
        out = self.new(into, what, site)
        self.enqueue(what, site, lambda _: into.copy_(values), reads, ((out.memory, into),))
        return out

    def uploaded(self, values: torch.Tensor) -> VirtualTensor:
        """A new tensor with `values` of the host's, which nobody else has; the host waits for the copy."""
        out = self.upload(values, "copy to the device", self.device.sites.here())
        self.block()
        return out

    def new(self, values: torch.Tensor, what: str, site: Site) -> VirtualTensor:
        """A tensor of the device in memory of its own."""
        device = self.device
        memory, size = Memory(device.current.index, what, site), values.untyped_storage().nbytes()
        if device.freed:
            device.take(memory, size)
        return virtual(values, memory, Lease(device, memory, size))

    def enqueue(self, what: str, site: Site, run: Callable[[Operation], Any], reads: Uses, writes: Uses) -> Operation:
        operation = self.device.new_operation(what, site, reads, writes)
        operation.run = run
        self.device.enqueue(operation)
        return operation

    def _in_place(self, call: OperatorCall) -> Any:
        call = self._on_one_device(call)
        written = _written(call)
        self._check_shapes(call, written)
        read = call.traced
        if call.operator.name in _SCATTERS:
            read = [tensor for tensor in read if not any(tensor is out for out in written)]
        site = self.device.sites.here()
        self.enqueue(call.operator.name, site, self._runner(call), uses_of(read), uses_of(written))
        return _written_result(call, written)

    def _function(self, call: OperatorCall) -> Any:
        call = self._on_one_device(call)
        what, site = call.operator.name, self.device.sites.here()
        is_immediate = self.device.is_immediate() and not call.operator.is_random
        made, run = self._computed(call, what, site) if is_immediate else (None, _nothing)
        if made is None:
            shape = self._shape(call)
            if shape is None:
                return self._blocking(call)
            made = _each(shape, lambda of: self.new(_poisoned(of), what, site))
            run = self._runner(call, made)
        reads, run = self._elements_read(call, run)
        self.enqueue(what, site, run, reads, uses_of(made if isinstance(made, (list, tuple)) else (made,)))
        return made

    def _computed(self, call: OperatorCall, what: str, site: Site) -> tuple[Any, Callable[[Operation], Any]]:
        """The results at once; None where the operator fails, to be told from an error of the call."""
        try:
            return _each(call.on_host(), lambda values: self.new(values, what, site)), _nothing
        except (RuntimeError, IndexError, ValueError):
            return None, _nothing

    def _elements_read(
        self, call: OperatorCall, run: Callable[[Operation], Any]
    ) -> tuple[Uses, Callable[[Operation], Any]]:
        """What an operator reads. Of a memory whose elements are tracked, indexing reads those that it takes, which are
        known when it runs.
        """
        reads = uses_of(call.traced)
        elements = reads[0][0].elements if reads else None
        if elements is None or call.func not in _READS_ELEMENTS or reads[0][1] is not call.host_args[0]:
            return reads, run
        memory, part = reads[0]
        func, indices, options = call.operator.compute, call.host_args[1:], call.host_kwargs

        def run_and_note(operation: Operation) -> None:
            at = elements.numbers.as_strided(part.size(), part.stride(), part.storage_offset())
            taken = func(at, *indices, **options)
            memory.read(operation, self.device.report, taken.reshape(-1).numpy())
            run(operation)

        return reads[1:], run_and_note

    def _runner(self, call: OperatorCall, made: Any = None) -> Callable[[Operation], None]:
        """Carries a call out in its turn, and puts its results into `made`. Where it fails, they stay poison."""
        device, func, args, kwargs = self.device, call.operator.compute, call.host_args, call.host_kwargs
        if call.operator.is_random:
            func = _seeded(func)
        into = (
            [] if made is None else [out.host_bytes for out in (made if isinstance(made, (list, tuple)) else (made,))]
        )

        def run(operation: Operation) -> None:
            try:
                result = func(*args, **kwargs)
                if len(into) == 1 and isinstance(result, torch.Tensor):
                    into[0].copy_(result)
                else:
                    for out, values in zip(into, result if into else (), strict=True):
                        out.copy_(values)
            except (RuntimeError, IndexError, ValueError) as error:
                device.failed(operation, error)

        return run

    def _blocking(self, call: OperatorCall) -> Any:
        """The host waits for the result."""
        device, what, site = self.device, call.operator.name, self.device.sites.here()
        results: list[Any] = []
        operation = self.enqueue(
            what, site, lambda _: results.append(call.on_host()), uses_of(call.traced), uses_of(_written(call))
        )
        device.wait_for(operation.stream, operation.n, operation.stream.now())
        return _each(results[0], lambda values: self.new(values, what, site))

    def read_back(self, memory: Memory, part: torch.Tensor, what: str) -> torch.Tensor:
        """What a copy to the host that blocks gives."""
        device, site = self.device, self.device.sites.here()
        values: list[torch.Tensor] = []
        operation = self.enqueue(what, site, lambda _: values.append(part.clone()), ((memory, part),), ())
        device.wait_for(operation.stream, operation.n, operation.stream.now())
        return values[0]

    def block(self) -> None:
        """The host waits for the current stream, as a copy that is not `non_blocking` makes it."""
        stream = self.device.current
        self.device.wait_for(stream, stream.n, stream.now())

    def _lift(self, call: OperatorCall) -> Any:
        return call.args[0]

    def _mask(self, call: OperatorCall) -> Any:
        """Indexing. With a mask the shape depends on values, so the host waits; one value is filled in without."""
        is_write = call.operator.name != "index"
        masks = [index for index in call.args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        if not is_write:
            return self._blocking(call) if masks else self._function(call)
        if masks and call.args[2].numel() != 1:
            self.block()
        return self._in_place(call)

    def _resize(self, call: OperatorCall) -> Any:
        raise NotImplementedError(f"{call.operator.name} on the virtual device; allowed: a new tensor")

    # Copies.

    def _to(self, call: OperatorCall) -> Any:
        source, kwargs = call.args[0], call.kwargs
        target = kwargs.get("device")
        is_virtual = type(source) is VirtualTensor
        to_device = is_virtual if target is None else target.type == "cuda"
        blocks = not kwargs.get("non_blocking", False)
        options = {name: value for name, value in call.host_kwargs.items() if name not in _COPY_OPTIONS}
        if is_virtual and to_device:
            return self._function(call._replace(kwargs=options, host_kwargs=options))
        if is_virtual:
            if options.get("dtype", source.dtype) != source.dtype:
                source = self._function(call._replace(kwargs=options, host_kwargs=options))
            return self._to_host(source, blocks=blocks)
        if to_device:
            return self._to_device(source, options, blocks=blocks)
        return self._of_host(call)

    def _to_host(self, source: VirtualTensor, *, blocks: bool) -> torch.Tensor:
        part = source.host_bytes
        if blocks:
            return self.read_back(source.memory, part, "copy to the host")
        site = self.device.sites.here()
        into = poison(torch.empty_like(part))
        out = trapped(into, Memory(0, "copy to the host", site, is_host=True))
        self.enqueue(
            "copy to the host", site, lambda _: into.copy_(part), ((source.memory, part),), ((out.memory, into),)
        )
        return out

    def _to_device(self, source: Any, options: dict[str, Any], *, blocks: bool) -> VirtualTensor:
        site = self.device.sites.here()
        is_pinned = type(source) is HostTensor
        values = source.host_bytes if is_pinned else source.detach()
        dtype = options.get("dtype", values.dtype)
        if not is_pinned or dtype != values.dtype:
            if is_pinned:  # converted on the host first
                self.device.host_access(source.memory, "to", is_write=False)
            reads: Uses = ()
            values = aten._to_copy.default(values, **options)
        else:
            reads = ((source.memory, values),)
        out = self.upload(values, "copy to the device", site, reads)
        if blocks:
            self.block()
        return out

    def _copy(self, call: OperatorCall) -> Any:
        into, source = call.args[0], call.args[1]
        blocks = not (call.args[2] if len(call.args) > 2 else call.kwargs.get("non_blocking", False))
        if type(into) is VirtualTensor and type(source) is VirtualTensor:
            return self._in_place(call)
        if into.size() != source.size():
            self._check_shapes(call, [into])
        site = self.device.sites.here()
        reads: Uses = ((source.memory, source.host_bytes),) if isinstance(source, Traced) else ()
        writes: Uses = ((into.memory, into.host_bytes),) if isinstance(into, Traced) else ()
        target, values = call.host_args[0], call.host_args[1]
        if type(into) is VirtualTensor and not reads:
            values = values.clone()
        self.enqueue("copy_", site, lambda _: target.copy_(values), reads, writes)
        if blocks or not writes:  # a copy to memory that is not pinned blocks
            self.block()
        return into

    # Shapes.

    def _on_one_device(self, call: OperatorCall) -> OperatorCall:
        """The call with what the host's single numbers hold now. Raises RuntimeError for other tensors of the host."""
        if _OF_DEVICE.issuperset(map(type, call.args)):
            return call
        numbers = []
        for i, value in enumerate(call.args):
            of = type(value)
            if of is list or of is tuple:
                for item in value if call.operator.way != "mask" else ():
                    if isinstance(item, torch.Tensor) and type(item) is not VirtualTensor and item.dim():
                        raise RuntimeError(_TWO_DEVICES.format(call.operator.name))
            elif isinstance(value, torch.Tensor) and of is not VirtualTensor:
                if value.dim():
                    raise RuntimeError(_TWO_DEVICES.format(call.operator.name))
                numbers.append(i)
        if not numbers:
            return call
        host_args = list(call.host_args)
        for i in numbers:
            host_args[i] = (call.args[i].now("value") if type(call.args[i]) is HostTensor else call.args[i]).clone()
        traced = [tensor for tensor in call.traced if type(tensor) is VirtualTensor]
        return call._replace(traced=traced, host_args=tuple(host_args))

    def _check_shapes(self, call: OperatorCall, written: list[Any]) -> None:
        """Raises at the call what the operator says of shapes and types. An `out` is not resized."""
        shape = self._shape(call)
        results = (shape,) if isinstance(shape, torch.Tensor) else shape or ()
        for result, tensor in zip(results, written, strict=False):
            if isinstance(result, torch.Tensor) and result.size() != tensor.size():
                raise NotImplementedError(
                    f"{call.operator.name} would resize a tensor of the device from {[*tensor.size()]}; allowed: "
                    f"the result's shape, {[*result.size()]}"
                )

    def _shape(self, call: OperatorCall) -> Any:
        """The results as tensors of no use but for their shapes, strides and types; None where nothing knows them."""
        options = call.host_kwargs
        key: Any = (call.func, _described(call.host_args), _described(options.items()) if options else ())
        try:
            return self.shapes[key]
        except KeyError:
            pass
        except TypeError:
            key = None
        shape = _of_zeros(call)
        if shape is None:
            try:
                shape = call.func(*_meta(call.host_args), **{name: _meta(value) for name, value in options.items()})
            except NotImplementedError:
                shape = None
        if key is not None:
            self.shapes[key] = shape
        return shape


_TWO_DEVICES = "Expected all tensors to be on the same device, but {} got cuda:0 and cpu"
_COPY_OPTIONS = frozenset({"device", "non_blocking", "pin_memory", "layout"})


def _seeded(func: Any) -> Callable[..., Any]:
    """An operator that draws numbers: which ones is decided at its launch, whenever it runs."""
    seed = int(torch.randint(1 << 62, ()))

    def run(*args: Any, **kwargs: Any) -> Any:
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            return func(*args, **kwargs)
        finally:
            generator.set_state(before)

    return run


def _nothing(_operation: Operation) -> None: ...


_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
"""Types of arguments that are no tensors and hold none."""
_OF_DEVICE = _PLAIN | {VirtualTensor}


def _on_host(value: Any, traced: list[Any]) -> Any:
    """`value` with the host's copies of its tensors, which are added to `traced`."""
    of = type(value)
    if of is VirtualTensor or of is HostTensor:
        traced.append(value)
        return value.host_bytes
    if of is tuple:
        return tuple([_on_host(item, traced) for item in value])
    if isinstance(value, list):
        return [_on_host(item, traced) for item in value]
    return value


def _each(result: Any, wrapped: Callable[[torch.Tensor], Any]) -> Any:
    """The result of an operator with each tensor in it wrapped."""
    if isinstance(result, torch.Tensor):
        return wrapped(result)
    if isinstance(result, (list, tuple)):
        return type(result)(_each(item, wrapped) for item in result)
    return result


def _written(call: OperatorCall) -> list[Any]:
    """The tensors that a call writes."""
    operator, args = call.operator, call.args
    found: list[Any] = []
    for i, name in zip(operator.written, operator.written_names, strict=True):
        value = args[i] if i < len(args) else call.kwargs.get(name)
        if isinstance(value, (list, tuple)):
            found.extend(value)
        elif value is not None:
            found.append(value)
    return found


def _written_result(call: OperatorCall, written: list[Any]) -> Any:
    """What an operator returns of what it writes: nothing where its schema says so, as of the `_foreach` ones."""
    if not call.func._schema.returns:
        return None
    return written[0] if len(written) == 1 else tuple(written)


def _poisoned(meta: torch.Tensor) -> torch.Tensor:
    return poison(torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype))


def _described(values: Iterable[Any]) -> tuple[Any, ...]:
    """What the results' shapes depend on."""
    return tuple(
        [
            (value.size(), value.stride(), value.dtype)
            if isinstance(value, torch.Tensor)
            else _described(value)
            if isinstance(value, (list, tuple))
            else (type(value), value)
            for value in values
        ]
    )


SMALL_ELEMENTS = 4096
"""Of a tensor with which an operator is tried for its results' shapes."""


def _of_zeros(call: OperatorCall) -> Any:
    """The results of a call on zeros of the same shapes and types; None where they are large, or it fails on them. A
    meta kernel, most of which are in Python, takes fifty times as long for small ones.
    """
    if call.operator.is_random or call.operator.way == "blocking":
        return None
    try:
        return call.operator.compute(
            *_zeros(call.host_args), **{name: _zeros(value) for name, value in call.host_kwargs.items()}
        )
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return None


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        size, stride = value.size(), value.stride()
        extent = 1 + sum([(n - 1) * step for n, step in zip(size, stride, strict=True)]) if value.numel() else 0
        if extent > SMALL_ELEMENTS:
            raise ValueError(f"{extent} elements; allowed: {SMALL_ELEMENTS}")
        return torch.zeros(extent, dtype=value.dtype).as_strided(size, stride)
    if isinstance(value, (list, tuple)):
        return [_zeros(item) for item in value]
    return value


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_META)
    if isinstance(value, (list, tuple)):
        return type(value)(_meta(item) for item in value)
    return _META if isinstance(value, torch.device) else value
