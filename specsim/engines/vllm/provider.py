"""vLLM's operations as a provider: kernels as documented, through the host functions that launch them where it has
some, and `rejection_sample` as a whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.provider import Reach, Subject
from specsim.contracts.registry import OPS
from specsim.engines.packages import open_source
from specsim.engines.vllm.model_runner import CONFIG, default_runner
from specsim.engines.vllm.operations import IMPLEMENTATIONS, CoinTorch, Names
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter, class_functions
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from specsim.engines.target import Checkout, Release
    from specsim.lifting.cache import Cache
    from specsim.lifting.lift import TextStore
    from specsim.lifting.source import SourceTree


def vllm_provider(target: Release | Checkout, cache: Cache, _op: str) -> VllmProvider:
    """The provider of a release, checkout or revision of vLLM. UsageError when it is not there."""
    return VllmProvider(open_source(target, cache), cache)


class VllmProvider:
    """The ops tier of a vLLM."""

    def __init__(self, source: SourceTree, store: TextStore) -> None:
        self.name = source.label
        self._coins = CoinTorch()
        self._lifter = Lifter(source, store, shims(self._coins))
        path, owner = CONFIG
        methods = class_functions(self._lifter.module(path), owner) if source.exists(path) else ()
        self._runner = default_runner(methods)

    def subjects(self) -> tuple[list[Subject], list[NotRun]]:
        found: list[Subject] = []
        known = {names.op for names in IMPLEMENTATIONS}
        missing = [NotRun(op, f"{self.name} has no such operation that specsim lifts") for op in OPS if op not in known]
        for names in IMPLEMENTATIONS:
            try:
                found.append(self._subject(names, self._lift(names)))
            except DriftError as error:
                if not names.variant:  # which is the same code as the first one's
                    missing.append(NotRun(names.op, str(error)))
        return found, missing

    def _lift(self, names: Names) -> LiftedFunction:
        """The first of the names. Raises DriftError when there is none, or its parameters are new."""
        version = self._lifter.source.version
        if names.since and version and Version(version) < Version(names.since):
            raise DriftError(f"not found: {self.name} has no such form of {names.names[0]}")
        for path in filter(self._lifter.source.exists, names.paths):
            for name in names.names:
                if name in self._lifter.module(path).definitions:
                    lifted = self._lifter.lift(path, name)
                    if lifted.parameters not in names.signatures:
                        raise DriftError(f"signature changed: {lifted.where} {name}({', '.join(lifted.parameters)})")
                    beside = [self._lifter.lift(path, other).value for other in names.beside]
                    return replace(lifted, value=(lifted.value, *beside)) if beside else lifted
        raise DriftError(f"not found: {' or '.join(names.names)} in {', '.join(names.paths)}")

    def _subject(self, names: Names, lifted: LiftedFunction) -> Subject:
        return Subject(
            op=names.op,
            role="kernel",
            name=names.subject,
            run=partial(_run, names, names.prepare(lifted.value), self._coins),
            where=lifted.where,
            accepts=names.accepts,
            reach=partial(_reach, "default" if names.runner == self._runner else "option"),
            cost=names.cost,
            source_hash=lifted.body_hash,
        )


def _reach(who: Reach, _sizes: Sizes) -> Reach:
    """Every server that drafts and has the default model runner reaches what that calls."""
    return who


def _run(names: Names, value: Any, coins: CoinTorch, sizes: Sizes, tensors: Tensors) -> Tensors:
    op = OPS[names.op]
    parameters = list(inspect.signature(names.launch).parameters)[2:]
    call = partial(names.launch, value, coins)
    outs = {arg.name for arg in op.outputs}

    def implementation(**arguments: Any) -> Any:
        return call(**{name: arguments[name] for name in parameters})

    named = Parameters(implementation, tuple(parameters)) if outs & set(parameters) else call
    return op.call(named, sizes, tensors)


class Parameters:
    """A callable that says which parameters it has, for a contract to hand outputs to it."""

    def __init__(self, function: Callable[..., Any], parameters: tuple[str, ...]) -> None:
        self._function = function
        kinds = inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kinds) for name in parameters])

    def __call__(self, **arguments: Any) -> Any:
        return self._function(**arguments)


def shims(coins: CoinTorch) -> dict[str, Any]:
    """Names that do not come from the source: randomness, logging, what compiles kernels ahead of their use, and what
    the release imports of Triton by way of a package that is not kept.
    """
    from triton.language.extra import libdevice

    return {
        "torch": coins,
        "init_logger": lambda _name: None,
        "HAS_TRITON": True,
        "tldevice": libdevice,
        "triton_kernel_dispatcher_with_warmup": _dispatcher,
        "TritonWarmupTensor": _nothing,
        "WarmupChoices": _nothing,
        "WarmupIntRange": _nothing,
        "DispatchSpec": object,
    }


def _nothing(*_arguments: Any, **_named: Any) -> None:
    return None


def _dispatcher(kernel: Any, **_warmup: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A host function that says grid and constants becomes the launch of its kernel.

    A kernel's parameter is the host function's of the same name, or of that name without `_ptr`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(function)

        def launch(*arguments: Any, **named: Any) -> None:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            grid, constants = function(*arguments, **named)
            values: Mapping[str, Any] = {**bound.arguments, **constants}
            launched = {
                name: values[name] if name in values else values[name.removesuffix("_ptr")] for name in kernel.arg_names
            }
            kernel[grid](**launched)

        return launch

    return decorate
