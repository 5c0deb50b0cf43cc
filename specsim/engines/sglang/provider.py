"""SGLang's operations as a provider: kernels as documented, and as the engine's own code calls them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from specsim.choices.chooser import replayed
from specsim.contracts.contract import Op, Role, Sizes, Tensors, WrongResultError
from specsim.contracts.provider import NotCalledError, Reach, Subject
from specsim.contracts.registry import OPS
from specsim.engines.sglang.guards import Guards, read_guards
from specsim.engines.sglang.operations import (
    CALLERS,
    CUDA_ONLY,
    FUNCTIONS,
    KERNELS,
    CallerNames,
    FunctionNames,
    KernelNames,
)
from specsim.engines.sglang.operations.functions import function_subject
from specsim.engines.sglang.operations.not_lifted import NOT_LIFTED
from specsim.engines.sglang.operations.offsets import OFFSETS, offset_subject
from specsim.engines.sglang.where import Place, files
from specsim.lifting.call_sites import CallSite, CapturedCall, find_call
from specsim.lifting.gc_pause import without_collections
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter, TextStore
from specsim.lifting.source import SourceTree
from specsim.verdict import NotRun

# The lifted code runs as it does on an NVIDIA machine, whatever this machine is.
SHIMS: dict[str, Any] = {
    "is_cuda": lambda: True,
    "is_hip": lambda: False,
    "is_musa": lambda: False,
    "is_npu": lambda: False,
    "is_xpu": lambda: False,
    "is_cpu": lambda: False,
    "inputs_on_cuda": lambda *_arguments, **_named: True,
    "_get_oot_speculative_cache_locs_fn": lambda: None,
    # As many processors as divide no grid: each has more than one block to do.
    "get_device_core_count": lambda *_device: 3,
    "next_power_of_2": lambda n: 1 << (n - 1).bit_length() if n > 0 else 1,
}


def _on_a_cpu(*_arguments: Any, **_named: Any) -> Any:
    raise AssertionError("what runs on a CPU alone is never called: is_cpu() is False")


# What the releases import from their extension for machines without a GPU.
SHIMS |= {
    f"{name}_cpu": _on_a_cpu
    for name in (
        "assign_draft_cache_locs_contiguous",
        "assign_extend_cache_locs",
        "assign_req_to_token_pool",
        "copy_all_layer_kv_cache",
        "fill_accept_out_cache_loc",
        "fill_bonus_tokens",
        "rotate_input_ids",
    )
}

# What a result buffer holds before the call: no valid token or slot, so an element that is never written is seen.
_UNWRITTEN = 1_777_777_777


def lift_first(lifter: Lifter, known: tuple[Place, ...], parameters: tuple[str, ...] = ()) -> LiftedFunction:
    """What the first of the places defines that has it. Raises DriftError when none does, or its first parameters are
    not `parameters`.
    """
    for path, name in known:
        if lifter.source.exists(path) and name.partition(".")[0] in lifter.module(path).definitions:
            lifted = lifter.lift(path, name)
            if lifted.parameters[: len(parameters)] != parameters:
                raise _changed(lifted, name)
            return lifted
    paths, names = (dict.fromkeys(place[part] for place in known) for part in (0, 1))
    raise DriftError(f"not found: {' or '.join(names)} in {', '.join(paths)}")


def lift_kernel(lifter: Lifter, names: KernelNames) -> LiftedFunction:
    """A kernel with parameters that are known. Raises DriftError when there is none."""
    lifted = lift_first(lifter, names.places)
    if lifted.parameters not in names.signatures:
        if any(lifted.parameters in other.signatures for other in KERNELS if other.places == names.places):
            raise DriftError(f"not found: {lifted.where} {lifted.name} has no such form")
        raise _changed(lifted, lifted.name)
    return replace(lifted, value=names.prepare(lifted.value))


def _changed(lifted: LiftedFunction, name: str) -> DriftError:
    return DriftError(f"signature changed: {lifted.where} {name}({', '.join(lifted.parameters)})")


_Kernel = tuple[KernelNames, LiftedFunction | DriftError]


class SglangProvider:
    """The ops tier of a release or checkout of SGLang; of one operation alone where `op` names it, so that no other is
    lifted.
    """

    def __init__(self, source: SourceTree, store: TextStore, op: str = "") -> None:
        self.name = source.label
        self._op = op
        self._lifter = Lifter(source, store, SHIMS)
        with without_collections():
            self._guards: Guards = read_guards(source)

    def subjects(self) -> tuple[list[Subject], list[NotRun]]:
        with without_collections():
            return self._subjects()

    def _subjects(self) -> tuple[list[Subject], list[NotRun]]:
        kernels = self._kernels()
        entries = [
            *self._without_entry(),
            *self._of_kernels(kernels),
            *self._of_offsets(),
            *self._of_callers(kernels),
            *self._of_calls_not_lifted(kernels),
            *self._of_functions(),
        ]
        found = [entry for entry in entries if isinstance(entry, Subject)]
        missing = [entry for entry in entries if isinstance(entry, NotRun)]
        return found, _without_what_is_found(missing, found)

    def _wants(self, op: str) -> bool:
        return self._op in ("", op)

    def _without_entry(self) -> Iterator[NotRun]:
        """Operations of which nothing can be lifted, or nothing is known."""
        for op, name in CUDA_ONLY.items():
            if self._wants(op):
                yield NotRun(op, f"CUDA code of a compiled extension ({name}), which has no source to lift")
        known = {*(names.op for names in KERNELS), *(names.op for names in FUNCTIONS), *CUDA_ONLY}
        for op in OPS:
            if op not in known and self._wants(op):
                yield NotRun(op, "specsim does not lift it from this engine yet")

    def _kernels(self) -> dict[str, _Kernel]:
        """The kernels that are wanted, and those that a wanted caller launches, by the names of their subjects."""
        needed = {caller.needs for caller in CALLERS if self._wants(caller.op)}
        kernels: dict[str, _Kernel] = {}
        for names in KERNELS:
            if self._wants(names.op) or names.subject in needed:
                try:
                    kernels[names.subject] = (names, lift_kernel(self._lifter, names))
                except DriftError as error:
                    kernels[names.subject] = (names, error)
        return kernels

    def _of_kernels(self, kernels: Mapping[str, _Kernel]) -> Iterator[Subject | NotRun]:
        for names, lifted in kernels.values():
            if not self._wants(names.op):
                continue
            if isinstance(lifted, DriftError):
                yield NotRun(f"{names.op} ({names.variant})" if names.variant else names.op, str(lifted))
            else:
                yield self._kernel_subject(names, lifted)

    def _of_offsets(self) -> Iterator[Subject | NotRun]:
        for offsets in OFFSETS:
            if self._wants(offsets.op):
                try:
                    lifted = lift_first(self._lifter, offsets.places, offsets.parameters)
                    yield offset_subject(offsets, lifted)
                except DriftError as error:
                    yield NotRun(offsets.what, str(error))

    def _of_callers(self, kernels: Mapping[str, _Kernel]) -> Iterator[Subject | NotRun]:
        for caller in CALLERS:
            if not self._wants(caller.op):
                continue
            names, kernel = kernels[caller.needs]
            what = f"{caller.op} in {caller.function}"
            if isinstance(kernel, DriftError):
                yield NotRun(what, "its kernel could not be lifted")
                continue
            try:
                yield self._caller_subject(caller, names, kernel)
            except DriftError as error:
                yield NotRun(what, str(error))

    def _of_calls_not_lifted(self, kernels: Mapping[str, _Kernel]) -> Iterator[NotRun]:
        lifted = {name for name, (_names, kernel) in kernels.items() if isinstance(kernel, LiftedFunction)}
        for call in NOT_LIFTED:
            is_there = any(map(self._lifter.source.exists, files(call.function)))
            if is_there and call.needs in lifted and self._wants(call.op):
                yield NotRun(call.what, call.why)

    def _of_functions(self) -> Iterator[Subject | NotRun]:
        for function in FUNCTIONS:
            if self._wants(function.op):
                try:
                    yield self.function(function)
                except DriftError as error:
                    yield NotRun(function.what, str(error))

    def function(self, names: FunctionNames) -> Subject:
        """The subject of one tensor function. Raises DriftError as `function_subject` does."""
        return function_subject(self._lifter, names, self._guards.reach_of_overlap_worker)

    def _kernel_subject(self, names: KernelNames, lifted: LiftedFunction) -> Subject:
        return Subject(
            op=names.op,
            role="kernel",
            name=names.subject,
            run=partial(_run_launch, names, lifted.value),
            where=lifted.where,
            accepts=names.accepts,
            reach=self._reach_of(names, lifted.name),
            cost=names.cost,
            source_hash=lifted.body_hash,
            strided=names.strided,
        )

    def _reach_of(self, names: KernelNames | CallerNames, name: str) -> Callable[[Sizes], Reach]:
        """Who reaches what is called `name`; nobody does where no file of the folders that may call it does."""
        if names.called_from and not self._is_called(names.called_from, name):
            return lambda _sizes: "not called"
        return partial(names.reach, self._guards)

    def _is_called(self, folders: tuple[str, ...], name: str) -> bool:
        source = self._lifter.source
        call = re.compile(rf"(?<!def )\b{re.escape(name)}(_func)?\s*[\[(]")
        paths = (path for folder in folders for path in source.paths(folder) if path.endswith(".py"))
        return any(name in text and call.search(text) for text in map(source.read, paths))

    def _caller_subject(self, caller: CallerNames, names: KernelNames, kernel: LiftedFunction) -> Subject:
        site, function = self._find_call(caller)
        host = tuple(place for place in caller.host if place[1] == site.callee)
        callee = lift_first(self._lifter, host) if caller.host else kernel
        run = _CallerRun(caller, site, CapturedCall(callee.value, callee.parameters), _DocumentedLaunch(names, kernel))
        return Subject(
            op=caller.op,
            role="caller",
            name=f"caller:{caller.function}",
            run=run,
            where=site.where,
            accepts=run.accepts,
            reach=self._reach_of(caller, function),
            explain=run.explain,
            needs=caller.needs,
            cost=caller.cost,
            source_hash=site.source_hash,
        )

    def _find_call(self, caller: CallerNames) -> tuple[CallSite, str]:
        """The call and the name of the function that it stands in. Raises DriftError when no place has it; one that
        has it otherwise than known is the one to name.
        """
        op = OPS[caller.op]
        sample = op.generate(replayed(()))
        tensors = {**sample.tensors, **op.allocate_outputs(sample)}
        environment = caller.environment(sample.sizes, tensors)
        reasons: list[str] = []
        for path, function in caller.places:
            if self._lifter.source.exists(path):
                try:
                    module = self._lifter.module(path)
                    site = find_call(module, function, caller.callees, environment, caller.which)
                    return site, function.rpartition(".")[2]
                except DriftError as error:
                    reasons.append(str(error))
        missing = f"not found: {' or '.join(dict.fromkeys(path for path, _function in caller.places))}"
        raise DriftError(next((r for r in reasons if r.startswith("signature")), [*reasons, missing][0]))


def _without_what_is_found(missing: list[NotRun], found: list[Subject]) -> list[NotRun]:
    """One entry for each call, none where another form of it was found: a caller has stood in many places."""
    names = {f"{subject.op} in {subject.name.removeprefix('caller:')}" for subject in found}
    whys: dict[str, list[str]] = {}
    for entry in missing:
        whys.setdefault(entry.what, []).append(entry.why)
    return [
        NotRun(what, next((why for why in reasons if why.startswith("signature")), reasons[0]))
        for what, reasons in whys.items()
        if what not in names
    ]


def _run_launch(names: KernelNames, kernel: Any, sizes: Sizes, tensors: Tensors) -> Tensors:
    """Launch the kernel as documented; the operation's outputs by name. WrongResultError where what is returned does
    not fit the contract.
    """
    op, launch = OPS[names.op], names.launch(sizes, tensors)
    returned = launch.bound(kernel)() if launch is not None else None
    if launch is not None and launch.returned is not None:
        results = launch.returned(returned)
        results = results if isinstance(results, tuple | list) else (results,)
        outputs = [arg for arg in op.tensor_args if arg.role is Role.OUT]
        if len(results) != len(outputs):
            raise WrongResultError(f"returned {len(results)} values where the contract has {len(outputs)} outputs")
        for arg, result in zip(outputs, results, strict=True):
            tensors[arg.name] = arg.check(result, sizes)
    return {arg.name: tensors[arg.name] for arg in op.outputs}


class _DocumentedLaunch:
    """The arguments of the launch that the kernel's documentation describes."""

    def __init__(self, names: KernelNames, kernel: LiftedFunction) -> None:
        self._names = names
        self._capture = CapturedCall(kernel.value, kernel.parameters)

    def arguments(self, sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        _run_launch(self._names, self._capture, sizes, copies)
        return self._capture.arguments


class _CallerRun:
    """Runs an operation through the engine's own call, in an environment made from the case."""

    def __init__(self, names: CallerNames, site: CallSite, callee: CapturedCall, documented: _DocumentedLaunch) -> None:
        self._names = names
        self._site = site
        self._callee = callee
        self._documented = documented
        self._op: Op = OPS[names.op]
        self._last: tuple[Sizes, Tensors] | None = None

    def accepts(self, sizes: Sizes) -> bool:
        """Whether the caller's class accepts the configuration."""
        return self._names.accepts(sizes)

    def __call__(self, sizes: Sizes, tensors: Tensors) -> Tensors:
        self._last = (sizes, {name: tensor.clone() for name, tensor in tensors.items()})
        environment = self._names.environment(sizes, tensors)
        if not self._site.applies(environment):
            raise NotCalledError(self._site.where)
        written = self._names.written or ((self._names.result,) if self._names.result else ())
        if written:
            self._callee.fill_before_call(tuple(name for names in written for name in names), _UNWRITTEN)
        returned = self._site.run(environment, self._callee)
        if self._names.result is not None:
            outputs = [arg for arg in self._op.tensor_args if arg.role is Role.OUT]
            if self._names.outputs:
                results = self._names.outputs(returned)
            elif self._names.written:
                results = tuple(self._result(None, names) for names in written)
            else:
                results = returned if isinstance(returned, tuple) else (self._result(returned, *written),)
            for output, result in zip(outputs, results, strict=True):
                tensors[output.name] = output.check(self._fitted(result, output.resolve_shape(sizes)), sizes)
        return {arg.name: tensors[arg.name] for arg in self._op.outputs}

    def _fitted(self, result: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        count = math.prod(shape)
        if self._names.other_length:
            short = max(0, count - result.numel())
            result = torch.nn.functional.pad(result.flatten(), (0, short), value=_UNWRITTEN)[:count]
        return result.reshape(shape) if result.numel() == count else result

    def _result(self, returned: Any, names: tuple[str, ...] = ()) -> torch.Tensor:
        values = [self._callee.arguments[name] for name in names if name in self._callee.arguments]
        result = values[0] if values else returned
        if not isinstance(result, torch.Tensor):
            raise WrongResultError(f"{self._site.where} gives a {type(result).__name__}, the contract says a tensor")
        return result

    def explain(self) -> str:
        """How the last call's integer arguments differ from those of the documented launch, "" when they do not."""
        if self._last is None:
            return ""
        documented = self._documented.arguments(*self._last)
        actual = self._callee.arguments
        differences = [
            f"{name}={actual[name]} where the documented launch has {documented[name]}"
            for name in documented
            if isinstance(actual.get(name), int) and actual[name] != documented[name]
        ]
        return (
            f"the kernel is right for what it is given; the caller passes {', '.join(differences)}"
            if differences
            else ""
        )
