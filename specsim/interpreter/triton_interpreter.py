"""Triton's interpreter behind one interface. No other module names a private part of it.

    observed(observer)   observe and steer every launch: its tensors, programs, loads, stores, atomics and barriers
    mend_ranges()        let `range(scalar)` work with every NumPy
    interpreted()        whether kernels run in the interpreter in this process
    is_interpreted(f)    whether `f` is such a kernel
    kernel_classes()     what `triton.jit` makes of a function
    type_rules()         which type a result has
    one_line(error)      the kernel's own error
    source_line()        the kernel's statement that is being interpreted

The interpreter's own methods have other signatures in Triton 3.6 than in 3.9; what is passed on unread here is the same
in both. A launch that is compiled for a GPU is not observed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from specsim.errors import described

Program = tuple[int, int, int]
"""Coordinates of a program in its grid."""

Order = Callable[[Sequence[Program]], Sequence[Program]]

_MENDED = "ranges_are_mended"


def corners(programs: Sequence[Program]) -> Sequence[Program]:
    """An order of the first and the last alone, where a grid is too large to run and offsets are what matters."""
    return list(dict.fromkeys((programs[0], programs[-1]))) if programs else programs


class Launch(NamedTuple):
    """A launch that begins.

    kernel   its name
    tensors  by argument, "argument.field" for those in a tuple, as they lie in the host's memory
    passed   every argument as the caller passed it
    """

    kernel: str
    tensors: dict[str, torch.Tensor]
    passed: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """One load, store or atomic operation of a program.

    addresses  uint64, one a lane
    active     bool, of the same shape: lanes that are not masked off
    itemsize   bytes of an element
    """

    addresses: Any
    active: Any
    itemsize: int

    @property
    def is_scalar(self) -> bool:
        """Whether the kernel used a single pointer, not a block."""
        return bool(self.addresses.size == 1)

    @property
    def where(self) -> str:
        """FILE:LINE in the kernel's source, while the access is under way."""
        return source_line()


class Observer(Protocol):
    """What `observed` calls. `load`, `store` and `atomic` return the lanes to carry out, bool of the shape of
    `access.active`; the others have no effect.
    """

    def launch(self, launch: Launch) -> None: ...

    def program(self, number: int) -> None: ...

    def load(self, access: Access) -> Any: ...

    def store(self, access: Access, values: Any) -> Any: ...

    def atomic(self, access: Access, *, orders: bool) -> Any:
        """`orders`: with acquire or release semantics."""

    def barrier(self) -> None: ...

    def overflow(self, message: str, where: str) -> None:
        """Integer arithmetic did not fit its type."""

    def undefined(self, access: Access, values: Any, lanes: Any, *, stray: bool) -> None:
        """Set `values[lanes]` to what a load gives where nothing defines it: `stray` lanes, which `load` did not carry
        out; or those masked off of a load without `other`, where the interpreter gives 0.
        """


class ProgramRun(NamedTuple):
    """A program of a launch that may be run on a thread of its own. `enter` makes it the one whose number
    `tl.program_id` gives: to be called whenever it goes on.
    """

    run: Callable[[], None]
    enter: Callable[[], None]


@contextmanager
def observed(
    observer: Observer,
    order: Order = tuple,
    *,
    overflow: bool = False,
    runner: Callable[[Sequence[ProgramRun]], None] | None = None,
) -> Iterator[None]:
    """Show `observer` every launch through the interpreter while active.

    order     given the programs of each launch, which of them run, in which order
    overflow  whether integer arithmetic is checked, which takes as long again
    runner    runs the programs of each launch, which otherwise run one after the other
    """
    from triton.runtime import interpreter

    mend_ranges()
    hooks = _Hooks(interpreter, observer, order, runner)
    shared, options = interpreter.interpreter_builder, interpreter.interpreter_builder.options
    try:
        for owner, name in hooks.original:
            setattr(owner, name, hooks.replacement(owner, name))
        shared.options = dataclasses.replace(options, debug=options.debug or overflow, sanitize_overflow=overflow)
        with np.errstate(all="ignore"):  # a GPU has no warnings either
            yield
    finally:
        shared.options = options
        for (owner, name), function in hooks.original.items():
            setattr(owner, name, function)


class _Hooks:
    """What replaces methods of the interpreter's classes. Each method here is named as the one that it replaces, has
    the interpreter's own object as its first argument, and calls the original.
    """

    def __init__(
        self,
        interpreter: Any,
        observer: Observer,
        order: Order,
        runner: Callable[[Sequence[ProgramRun]], None] | None,
    ) -> None:
        from triton.language.semantic import TritonSemantic

        executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
        self.handle, self.int1 = interpreter.TensorHandle, interpreter.tl.int1
        self.shared = interpreter.interpreter_builder
        self.asserts = self.shared.options.debug
        self.observer, self.runner = observer, runner
        self.grid = _Grid(order)
        self.quick = _Quick(interpreter)
        self.has_other = True
        names = {
            executor: ("__call__", "_init_args_hst"),
            builder: (
                "set_grid_dim",
                "set_grid_idx",
                "create_masked_load",
                "create_masked_store",
                "create_atomic_rmw",
                "create_atomic_cas",
                "create_barrier",
                "create_assert",
                "create_splat",
            ),
            TritonSemantic: ("load",),
            interpreter: ("_patch_lang", "_patch_builtin", "_get_np_dtype"),
        }
        self.original = {(owner, name): vars(owner)[name] for owner, of_owner in names.items() for name in of_owner}
        self.calls = {name: function for (_owner, name), function in self.original.items()}

    def replacement(self, owner: Any, name: str) -> Callable[..., Any]:
        if not inspect.isclass(owner):
            return getattr(self.quick, name)  # type: ignore[no-any-return]
        hook = self.call if name == "__call__" else getattr(self, name)

        def method(of: Any, *args: Any, **kwargs: Any) -> Any:
            return hook(of, *args, **kwargs)

        return method

    def call(self, of: Any, *args: Any, **kwargs: Any) -> Any:
        grid, kernel = of.grid, of.fn
        of.grid = self.grid.flat(grid)
        if self.runner is not None:
            of.fn = _Deferred(kernel, self.shared, self.runner)
        try:
            with self.quick.launch():
                return self.calls["__call__"](of, *args, **kwargs)
        finally:
            of.grid, of.fn = grid, kernel

    def _init_args_hst(self, of: Any, args: Any, kwargs: Any) -> Any:
        hosted = self.calls["_init_args_hst"](of, args, kwargs)
        named = {**dict(zip(of.arg_names, hosted[0], strict=False)), **hosted[1]}
        self.observer.launch(Launch(of.fn.__name__, dict(_tensors(named)), (*args, *kwargs.values())))
        return hosted

    def set_grid_dim(self, of: Any, *_flat: int) -> None:
        self.calls["set_grid_dim"](of, *self.grid.dims)

    def set_grid_idx(self, of: Any, i: int, _y: int, _z: int) -> None:
        x, y, z = self.grid.programs[i]
        self.observer.program((x * self.grid.dims[1] + y) * self.grid.dims[2] + z)
        self.calls["set_grid_idx"](of, x, y, z)

    def load(self, of: Any, ptr: Any, mask: Any, other: Any, *rest: Any) -> Any:
        """Triton drops an `other` of one element on the way to the interpreter, which cannot tell it from none."""
        self.has_other = other is not None or mask is None
        try:
            return self.calls["load"](of, ptr, mask, other, *rest)
        finally:
            self.has_other = True

    def create_masked_load(self, of: Any, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
        access = _access(ptrs, mask)
        lanes = self.observer.load(access)
        loaded = self.calls["create_masked_load"](of, ptrs, self.masked(lanes, access, mask), other, *rest)
        if lanes is not access.active:
            stray = access.active & ~np.broadcast_to(lanes, access.active.shape)
            if stray.any():
                self.observer.undefined(access, loaded.data, stray, stray=True)
        if not self.has_other and not access.active.all():
            self.observer.undefined(access, loaded.data, ~access.active, stray=False)
        return loaded

    def create_masked_store(self, of: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        access = _access(ptrs, mask)
        lanes = self.observer.store(access, value.data)
        return self.calls["create_masked_store"](of, ptrs, value, self.masked(lanes, access, mask), *rest)

    def create_atomic_rmw(self, of: Any, op: Any, ptr: Any, value: Any, mask: Any, sem: Any, *rest: Any) -> Any:
        access = _access(ptr, mask)
        lanes = self.observer.atomic(access, orders=_orders(sem))
        return self.calls["create_atomic_rmw"](of, op, ptr, value, self.masked(lanes, access, mask), sem, *rest)

    def create_atomic_cas(self, of: Any, ptr: Any, compared: Any, value: Any, sem: Any, *rest: Any) -> Any:
        everything = self.handle(np.ones_like(ptr.data, dtype=bool), ptr.dtype)
        self.observer.atomic(_access(ptr, everything), orders=_orders(sem))
        return self.calls["create_atomic_cas"](of, ptr, compared, value, sem, *rest)

    def create_barrier(self, of: Any, *rest: Any) -> Any:
        self.observer.barrier()
        return self.calls["create_barrier"](of, *rest)

    def create_assert(self, of: Any, condition: Any, message: str, *rest: Any) -> Any:
        if "overflow" in str(message):
            if not bool(condition):
                self.observer.overflow(str(message), source_line())
            return None
        return self.calls["create_assert"](of, condition, message, *rest) if self.asserts else None

    def create_splat(self, of: Any, *args: Any) -> Any:
        """A comparison's handle keeps the type of what was compared: Triton makes no mask of it without this."""
        args = tuple(
            self.handle(arg.data, self.int1) if isinstance(arg, self.handle) and arg.data.dtype == np.bool_ else arg
            for arg in args
        )
        return self.calls["create_splat"](of, *args)

    def masked(self, lanes: Any, access: Access, mask: Any) -> Any:
        """`mask` where the observer carries out all of an access; a mask of the lanes that it does otherwise."""
        return mask if lanes is access.active else self.handle(np.ascontiguousarray(lanes), mask.dtype)


def mend_ranges() -> None:
    """Let a kernel's `range(scalar)` work with every NumPy, in this process and for good. The interpreter of Triton 3.6
    makes an integer of an array of one element, which NumPy refuses from 2.4 on; the later ones do as is done here.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if hasattr(patch, _MENDED):
        return

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    setattr(patched, _MENDED, True)
    interpreter._patch_lang_tensor = patched


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def is_interpreted(function: Any) -> bool:
    """Whether `function` is a kernel that runs in the interpreter."""
    return type(function).__name__ == "InterpretedFunction"


@functools.cache
def kernel_classes() -> tuple[Any, ...]:
    """What `triton.jit` makes of a function, for a GPU or for Triton's interpreter: classes whose `run` launches."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return (JITFunction, InterpretedFunction)


def type_rules() -> Any:
    """Triton's rules of types: `computation_type_impl` of two operands."""
    from triton.language.semantic import TritonSemantic

    return TritonSemantic(None)


def one_line(error: BaseException) -> str:
    """The error that the implementation raised, without the interpreter's wrapping, on one line."""
    while error.__cause__ is not None and type(error).__name__ == "InterpreterError":
        error = error.__cause__
    return described(error).strip().partition("\n")[0].removesuffix(": ").removesuffix(":")


def source_line() -> str:
    """FILE:LINE of the kernel's statement that is being interpreted."""
    import triton

    inside = (os.path.dirname(triton.__file__), os.path.dirname(__file__))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


@dataclasses.dataclass(slots=True)
class _Grid:
    """The grid of the launch that is under way, and its programs in the order in which they run."""

    order: Order
    dims: Program = (1, 1, 1)
    programs: Sequence[Program] = ()

    def flat(self, grid: Any) -> Callable[[Any], tuple[int]]:
        """What the interpreter runs instead of `grid`: one axis, along the chosen programs."""

        def flat(arguments: Any) -> tuple[int]:
            dims = tuple(int(extent) for extent in (grid(arguments) if callable(grid) else grid))
            x, y, z = (*dims, 1, 1)[:3]
            self.programs = self.order(list(itertools.product(range(x), range(y), range(z))))
            # A program beyond the grid, whose offsets alone are looked at, makes the grid as large.
            for i, j, k in self.programs:
                x, y, z = max(x, i + 1), max(y, j + 1), max(z, k + 1)
            self.dims = (x, y, z)
            return (len(self.programs),)

        return flat


class _Deferred:
    """In place of a kernel: collects the programs of a launch, and has them run with the last one."""

    def __init__(self, kernel: Any, builder: Any, runner: Callable[[Sequence[ProgramRun]], None]) -> None:
        self.__globals__, self.__name__ = kernel.__globals__, kernel.__name__
        self.__signature__ = inspect.signature(kernel)
        self.kernel, self.builder, self.runner = kernel, builder, runner
        self.programs: list[ProgramRun] = []

    def __call__(self, **arguments: Any) -> None:
        place = self.builder.grid_idx
        enter = lambda: setattr(self.builder, "grid_idx", place)  # noqa: E731
        self.programs.append(ProgramRun(lambda: self.kernel(**arguments), enter))
        x, y, z = self.builder.grid_dim
        if len(self.programs) == x * y * z:
            self.runner(self.programs)


class _Recorder:
    """In place of a scope of replaced attributes: notes what would be replaced."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, str, Any]] = []

    def set_attr(self, owner: Any, name: str, value: Any) -> None:
        self.found.append((owner, name, value))


class _Empty:
    """A scope in which no attribute is replaced."""

    def restore(self) -> None: ...


class _Quick:
    """What the interpreter works out again and again, once: more than half of a small launch. No result changes.

    Each call of a function of Triton's own library looks through all of Triton's language for what the launch has
    replaced there already, and so does each launch for what the launch before had; and each load and store makes a
    table of all types. (Whether arithmetic in 32 bits overflows is computed, too, and not looked at without `debug`:
    `observed` switches that off.)
    """

    # By function, the modules of Triton's language that its code sees; by such a module or class, what the interpreter
    # replaces of it; by name of a type of Triton's, that of its values in NumPy.
    languages: ClassVar[dict[Any, frozenset[str]]] = {}
    builtins: ClassVar[dict[Any, list[tuple[Any, str, Any]]]] = {}
    types: ClassVar[dict[str, Any]] = {}

    def __init__(self, interpreter: Any) -> None:
        self.tl = interpreter.tl
        self.original = interpreter._patch_lang, interpreter._patch_builtin, interpreter._get_np_dtype
        self.replaced: set[str] = set()

    @contextmanager
    def launch(self) -> Iterator[None]:
        before = set(self.replaced)
        try:
            yield
        finally:
            self.replaced = before

    def _patch_lang(self, function: Callable[..., Any]) -> Any:
        if function not in self.languages:
            seen = [value for value in function.__globals__.values() if value is self.tl or value is self.tl.core]
            self.languages[function] = frozenset(module.__name__ for module in seen)
        languages = self.languages[function]
        if languages and languages <= self.replaced:
            return _Empty()
        self.replaced |= languages
        return self.original[0](function)

    def _patch_builtin(self, namespace: Any, builder: Any, scope: Any) -> None:
        if namespace not in self.builtins:
            recorder = _Recorder()
            self.original[1](namespace, builder, recorder)
            self.builtins[namespace] = recorder.found
        for owner, name, value in self.builtins[namespace]:
            scope.set_attr(owner, name, value)

    def _get_np_dtype(self, of: Any) -> Any:
        if isinstance(of, self.tl.block_type):
            of = of.element_ty
        name = "pointer" if isinstance(of, self.tl.pointer_type) else of.name
        if name not in self.types:
            self.types[name] = self.original[2](of)
        return self.types[name]


def _tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The tensors among a launch's arguments, those in tuples by "argument.field" or "argument[i]"."""
    for name, value in arguments.items():
        if hasattr(value, "data_ptr"):
            yield name, value
        elif isinstance(value, tuple):
            fields = getattr(value, "_fields", None)
            names = [f"{name}.{field}" for field in fields] if fields else [f"{name}[{i}]" for i in range(len(value))]
            yield from _tensors(dict(zip(names, value, strict=True)))


def _access(ptrs: Any, mask: Any) -> Access:
    addresses = ptrs.data.astype(np.uint64, copy=False)
    active = np.broadcast_to(mask.data.astype(bool, copy=False), addresses.shape)
    return Access(addresses, active, max(1, ptrs.get_element_ty().primitive_bitwidth // 8))


def _orders(sem: Any) -> bool:
    return "RELAXED" not in str(sem).upper()
