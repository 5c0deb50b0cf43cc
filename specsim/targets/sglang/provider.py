"""SGLang's operations as a provider: kernels as documented, and as the engine's own code calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specsim.explore.chooser import replayed
from specsim.ops.contract import Op, Role, Sizes, Tensors, WrongResultError
from specsim.ops.provider import NotCalledError, Subject
from specsim.ops.registry import OPS
from specsim.targets.callsite import CallSite, Capture, find_call
from specsim.targets.lift import DriftError, LiftedFunction, Lifter, TextStore
from specsim.targets.sglang.guards import Guards, read_guards
from specsim.targets.sglang.operations import (
    CALLERS,
    CUDA_ONLY,
    FUNCTIONS,
    KERNELS,
    CallerNames,
    FunctionNames,
    KernelNames,
)
from specsim.targets.sglang.operations.functions import function_subject
from specsim.targets.source import SourceTree
from specsim.verdict import NotRun

# The lifted code runs as it does on an NVIDIA machine, whatever this machine is.
_SHIMS: dict[str, Any] = {
    "is_cuda": lambda: True,
    "is_hip": lambda: False,
    "is_musa": lambda: False,
    "is_npu": lambda: False,
    "is_xpu": lambda: False,
    "is_cpu": lambda: False,
    "get_device_core_count": lambda *_device: 3,  # few: a program then has several blocks to do
    "next_power_of_2": lambda n: 1 << (n - 1).bit_length() if n > 0 else 1,
}

# What a result buffer holds before the call: no valid token or slot, so an element that is never written is seen.
_UNWRITTEN = 1_777_777_777


class SglangProvider:
    """The ops tier of a release or checkout of SGLang."""

    def __init__(self, source: SourceTree, store: TextStore) -> None:
        self.name = source.label
        self._lifter = Lifter(source, store, _SHIMS)
        self._guards: Guards = read_guards(source)

    def subjects(self) -> tuple[list[Subject], list[NotRun]]:
        found: list[Subject] = []
        missing: list[NotRun] = [
            NotRun(op, f"CUDA code of a compiled extension ({name}), which has no source to lift")
            for op, name in CUDA_ONLY.items()
        ]
        known = {*(names.op for names in KERNELS), *(names.op for names in FUNCTIONS), *CUDA_ONLY}
        missing += [NotRun(op, "specsim does not lift it from this engine yet") for op in OPS if op not in known]
        kernels: dict[str, tuple[KernelNames, LiftedFunction]] = {}
        for names in KERNELS:
            try:
                lifted = self._lift(names.names, names.paths, names.signatures)
            except DriftError as error:
                missing.append(NotRun(names.op, str(error)))
                continue
            kernels[names.op] = (names, lifted)
            found.append(self._kernel_subject(names, lifted))
        for caller in CALLERS:
            if caller.op not in kernels:
                missing.append(NotRun(f"{caller.op} in {caller.function}", "its kernel could not be lifted"))
                continue
            try:
                found.append(self._caller_subject(caller, *kernels[caller.op]))
            except DriftError as error:
                missing.append(NotRun(f"{caller.op} in {caller.function}", str(error)))
        for function in FUNCTIONS:
            try:
                found.append(self.function(function))
            except DriftError as error:
                missing.append(NotRun(function.what, str(error)))
        return found, missing

    def function(self, names: FunctionNames) -> Subject:
        """The subject of one tensor function. Raises DriftError as `function_subject` does."""
        return function_subject(self._lifter, names, self._guards.reach_of_overlap_worker)

    def _lift(
        self, names: tuple[str, ...], paths: tuple[str, ...], signatures: tuple[tuple[str, ...], ...]
    ) -> LiftedFunction:
        """The first of `names` that one of `paths` defines. Raises DriftError when none does, or its parameters are
        new.
        """
        for path in paths:
            if not self._lifter.source.exists(path):
                continue
            for name in names:
                if name in self._lifter.module(path).definitions:
                    lifted = self._lifter.lift(path, name)
                    if signatures and lifted.parameters not in signatures:
                        raise DriftError(f"signature changed: {lifted.where} {name}({', '.join(lifted.parameters)})")
                    return lifted
        raise DriftError(f"not found: {' or '.join(names)} in {', '.join(paths)}")

    def _kernel_subject(self, names: KernelNames, lifted: LiftedFunction) -> Subject:
        return Subject(
            op=names.op,
            role="kernel",
            name=f"kernel:{names.op}",
            run=partial(OPS[names.op].call, partial(names.launch, lifted.value)),
            where=lifted.where,
            reach=self._guards.reach_of_overlap_worker,
            source_hash=lifted.body_hash,
        )

    def _caller_subject(self, caller: CallerNames, names: KernelNames, kernel: LiftedFunction) -> Subject:
        path = next((p for p in caller.paths if self._lifter.source.exists(p)), caller.paths[0])
        sample = OPS[caller.op].generate(replayed(()))
        environment = caller.environment(sample.sizes, sample.tensors)
        site = find_call(self._lifter.module(path), caller.function, caller.callees, environment)
        callee = self._lift((site.callee,), caller.host_paths, ()) if caller.host_paths else kernel
        run = _CallerRun(caller, site, Capture(callee.value, callee.parameters), _DocumentedLaunch(names, kernel))
        return Subject(
            op=caller.op,
            role="caller",
            name=f"caller:{caller.function}",
            run=run,
            where=site.where,
            accepts=run.accepts,
            reach=self._guards.reach_of_overlap_worker,
            explain=run.explain,
            needs=f"kernel:{caller.op}",
            source_hash=site.source_hash,
        )


class _DocumentedLaunch:
    """The arguments of the launch that the kernel's documentation asks for."""

    def __init__(self, names: KernelNames, kernel: LiftedFunction) -> None:
        self._op = OPS[names.op]
        self._capture = Capture(kernel.value, kernel.parameters)
        self._launch: Callable[..., None] = partial(names.launch, self._capture)

    def arguments(self, sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
        self._op.call(self._launch, sizes, {name: tensor.clone() for name, tensor in tensors.items()})
        return self._capture.arguments


class _CallerRun:
    """Runs an operation through the engine's own call, in an environment made from the case."""

    def __init__(self, names: CallerNames, site: CallSite, callee: Capture, documented: _DocumentedLaunch) -> None:
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
        if self._names.result:
            self._callee.fill_before_call(self._names.result, _UNWRITTEN)
        returned = self._site.run(environment, self._callee)
        if self._names.result is not None:
            (output,) = [arg for arg in self._op.tensor_args if arg.role is Role.OUT]
            result = self._result(returned)
            tensors[output.name] = output.check(result.reshape(output.resolve_shape(sizes)), sizes)
        return {arg.name: tensors[arg.name] for arg in self._op.outputs}

    def _result(self, returned: Any) -> torch.Tensor:
        values = [self._callee.arguments[name] for name in self._names.result or () if name in self._callee.arguments]
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
