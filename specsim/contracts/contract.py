"""The contract of an operation: what every implementation of it takes, returns and leaves unchanged.

An `Op` holds the shapes, dtypes and roles of the arguments, which output elements are defined, how results are
compared, the valid cases, and the reference. Specsim's kernels, a release's kernels and a user's own function are all
compared with it. `operation` makes one from a function of the reference, whose table of arguments
(`specsim.reference.argument_tables`) is the only place where they are stated.

Calling convention of an implementation, the same for everybody: it is called with keyword arguments by the names in the
contract: inputs, in-out tensors (changed in place) and scalars. For outputs it may choose:

* it names them as parameters: then they arrive preallocated, hold the contract's `prefill` where there is one and
  poison where there is none, and are written in place; or
* it does not: then it returns them, one tensor or a tuple in the contract's order.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from specsim.choices.chooser import Chooser
from specsim.contracts.draws import ChosenDraws, CounterDraws, Draws
from specsim.reference.argument_tables import CONTRACTS, Argument

Sizes = Mapping[str, int]
Tensors = dict[str, torch.Tensor]
Implementation = Callable[..., Any]


class WrongResultError(Exception):
    """An implementation returned something that is not the contract's outputs (count, type, shape or dtype)."""


class Role(enum.Enum):
    """What an implementation may do with a tensor argument."""

    IN = "in"  # read; must come back unchanged
    OUT = "out"  # written; its elements in the defined mask must equal the reference's
    INOUT = "inout"  # read and written in place; every element is defined


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor argument. `shape` names the case's sizes (or gives literal integers); `doc` gives meaning, units and
    sentinel values. `prefill` is the value that the caller must write into an output before the call, None if the
    implementation may not rely on any.
    """

    name: str
    role: Role
    shape: tuple[str | int, ...]
    dtype: torch.dtype
    doc: str
    prefill: int | bool | None = None

    def resolve_shape(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in self.shape)

    def check(self, result: Any, sizes: Sizes) -> torch.Tensor:
        """`result`, when it is a tensor of the contract's shape and dtype; else raises WrongResultError."""
        shape = self.resolve_shape(sizes)
        if not isinstance(result, torch.Tensor):
            raise WrongResultError(f"{self.name} is a {type(result).__name__}, the contract says a tensor")
        if result.layout is not torch.strided:
            raise WrongResultError(f"{self.name} has layout {result.layout}, the contract says a dense tensor")
        if tuple(result.shape) != shape:
            raise WrongResultError(f"{self.name} has shape {list(result.shape)}, the contract says {list(shape)}")
        if result.dtype != self.dtype:
            raise WrongResultError(f"{self.name} has dtype {result.dtype}, the contract says {self.dtype}")
        return result


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """An integer argument; its value is the case's size of the same name."""

    name: str
    doc: str


@dataclass(frozen=True, slots=True)
class Case:
    """One valid input of an operation.

    `sizes` holds every symbolic size and scalar; `tensors` the IN and INOUT arguments, contiguous, on the CPU unless a
    bulk generator made them elsewhere.
    """

    sizes: dict[str, int]
    tensors: Tensors

    def clone(self) -> Case:
        return Case(dict(self.sizes), {name: tensor.clone() for name, tensor in self.tensors.items()})


BS_MAX = 5  # requests of a single case
NUMBERS = 2**10  # of requests of a single case


def draw_numbers(chooser: Chooser, requests_max: int) -> list[int]:
    """How many requests a single case has, and their numbers."""
    count = 1 + chooser.choose(max(1, min(BS_MAX, requests_max)), "bs")
    return [chooser.choose(NUMBERS, "number of a request") for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Cases:
    """The valid cases of an operation, stated once: by the thousand on a device, or one from choices.

    `draw_shape`    from choices, the sizes that all requests of a batch share; all-zero choices give the smallest
    `make_from`     from named draws and such sizes a case, whose tensors are on the device of the draws. Request b
                    depends on the draws of request b and the sizes alone, except for what keeps the requests of a batch
                    apart (the numbers of nodes, rows and slots)
    `requests_max`  the most requests that a single case of such sizes may have, if it may not have BS_MAX
    `draw_single`   sizes that are others in single cases
    `draw_numbers`  the numbers of a single case's requests
    """

    draw_shape: Callable[[Chooser], dict[str, int]]
    make_from: Callable[[Draws, Sizes], Case]
    requests_max: Callable[[Sizes], int] = lambda _shape: BS_MAX
    draw_single: Callable[[Chooser], dict[str, int]] = lambda _chooser: {}
    draw_numbers: Callable[[Chooser, int], list[int]] = draw_numbers

    def make(self, ids: torch.Tensor, shape: Sizes) -> Case:
        """The case of the requests with case numbers `ids` [n] int64, on their device; `make(ids[b:b+1], shape)` is
        request b, alone.
        """
        return self.make_from(CounterDraws(ids), shape)

    def generate(self, chooser: Chooser) -> Case:
        """A single case from choices: its sizes, how many requests, their numbers, and what is simpler than those."""
        shape = {**self.draw_shape(chooser), **self.draw_single(chooser)}
        numbers = self.draw_numbers(chooser, self.requests_max(shape))
        return self.make_from(ChosenDraws(torch.tensor(numbers, dtype=torch.int64), chooser), shape)


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors of one shape differ, as booleans; a NaN is equal to a NaN."""
    return (a != b) & ~((a != a) & (b != b))


def _no_tokens(_case: Case, _expected: Tensors) -> Tensors:
    return {}


def _all_defined(_case: Case, expected: Tensors) -> Tensors:
    return {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in expected.items()}


def _but(tokens: Tensors, compared: Tensors) -> Tensors:
    """What is compared, but for what may be any token."""
    return {name: mask & ~tokens[name] if name in tokens else mask for name, mask in compared.items()}


@dataclass(frozen=True, slots=True)
class Op:
    """A named operation. See the module's docstring for the calling convention.

    `args`       the arguments, outputs included, in the order of a kernel's parameters
    `reference`  the batched PyTorch implementation, whose results are the expected ones
    `cases`      its valid cases
    `compared`   which elements of each output are defined, as boolean tensors; the rest is never compared
    `tolerance`  absolute tolerance by output name; outputs that it does not name are compared exactly
    `tokens`     which of these may be any token of the vocabulary, and have to be one: a caller looks them up; likewise
    `aliasing`   which arguments may share memory
    `source`     the paper section or pull request that defines the operation
    `sizes`      what sizes must be that follow from others: an expression of their names, by name
    """

    name: str
    family: str
    summary: str
    args: tuple[TensorArg | ScalarArg, ...]
    reference: Implementation
    cases: Cases
    source: str
    compared: Callable[[Case, Tensors], Tensors] = _all_defined
    tolerance: Mapping[str, float] = field(default_factory=dict)
    tokens: Callable[[Case, Tensors], Tensors] = _no_tokens
    aliasing: str = "no two arguments share memory"
    sizes: Mapping[str, CodeType] = field(default_factory=dict)

    def generate(self, chooser: Chooser) -> Case:
        """A valid case from choices; all choices zero give the simplest."""
        return self.cases.generate(chooser)

    @property
    def tensor_args(self) -> tuple[TensorArg, ...]:
        return tuple(arg for arg in self.args if isinstance(arg, TensorArg))

    @property
    def outputs(self) -> tuple[TensorArg, ...]:
        """The arguments that carry results: OUT and INOUT, in the contract's order."""
        return tuple(arg for arg in self.tensor_args if arg.role is not Role.IN)

    def allocate_outputs(self, case: Case, device: torch.device | str = "cpu") -> Tensors:
        """Zeroed OUT tensors of the case's shapes, with the contract's prefill where there is one."""
        return {
            arg.name: torch.full(
                arg.resolve_shape(case.sizes), 0 if arg.prefill is None else arg.prefill, dtype=arg.dtype, device=device
            )
            for arg in self.tensor_args
            if arg.role is Role.OUT
        }

    def call(self, implementation: Implementation, sizes: Sizes, tensors: Tensors) -> Tensors:
        """Call `implementation` and return its OUT and INOUT tensors by name.

        `tensors` holds every tensor argument, outputs included; INOUT and, where the implementation names them, OUT
        tensors are written in place. Raises WrongResultError when a returned value does not fit the contract; what the
        implementation raises passes through.
        """
        named = _parameter_names(implementation)
        outs = [arg for arg in self.tensor_args if arg.role is Role.OUT]
        in_place = not outs or (named is not None and all(arg.name in named for arg in outs))
        arguments: dict[str, Any] = {}
        for arg in self.args:
            if isinstance(arg, ScalarArg):
                arguments[arg.name] = sizes[arg.name]
            elif arg.role is not Role.OUT or in_place:
                arguments[arg.name] = tensors[arg.name]
        returned = implementation(**arguments)
        if not in_place:
            results = returned if isinstance(returned, (tuple, list)) else (returned,)
            if len(results) != len(outs):
                raise WrongResultError(f"returned {len(results)} values where the contract has {len(outs)} outputs")
            for arg, result in zip(outs, results, strict=True):
                tensors[arg.name] = arg.check(result, sizes)
        return {arg.name: tensors[arg.name] for arg in self.outputs}

    def defined(self, case: Case, expected: Tensors) -> Tensors:
        """Which elements of each output have one value, as booleans."""
        return _but(self.tokens(case, expected), self.compared(case, expected))

    def wrong(self, case: Case, expected: Tensors, results: Tensors) -> Tensors:
        """Where each output is wrong, as booleans: where it is defined and another one, or has to be a token and is
        none.
        """
        tokens = self.tokens(case, expected)
        defined = _but(tokens, self.compared(case, expected))
        found = {}
        for name, actual in results.items():
            tolerance = self.tolerance.get(name, 0.0)
            if tolerance:
                differs = ~torch.isclose(actual, expected[name], rtol=0.0, atol=tolerance, equal_nan=True)
            else:
                differs = differing(actual, expected[name])
            found[name] = differs & defined[name]
            if name in tokens:
                found[name] |= tokens[name] & ((actual < 0) | (actual >= case.sizes["vocab_size"]))
        return found

    def expected(self, case: Case) -> Tensors:
        """The reference's outputs for a case, on the device of its tensors; the case itself is left as it was."""
        changed = {arg.name for arg in self.outputs}
        inputs = {name: tensor.clone() if name in changed else tensor for name, tensor in case.tensors.items()}
        device = next(iter(inputs.values())).device if inputs else "cpu"
        tensors = {**inputs, **self.allocate_outputs(case, device)}
        return self.call(self.reference, case.sizes, tensors)


def operation(
    reference: Implementation,
    family: str,
    cases: Cases,
    *,
    name: str = "",
    compared: Callable[[Case, Tensors], Tensors] = _all_defined,
    tolerance: Mapping[str, float] | None = None,
    tokens: Callable[[Case, Tensors], Tensors] = _no_tokens,
) -> Op:
    """The operation of a function of the reference: its table has the arguments, its docstring summary and source."""
    function = reference.__name__
    contract = CONTRACTS[function]
    text = inspect.getdoc(reference) or ""
    source = re.search(r"Source: (.*)\Z", text, re.DOTALL)
    return Op(
        name=name or function,
        family=family,
        summary=_sentence(text.partition("\n\n")[0]),
        args=tuple(map(_argument, contract.arguments)),
        reference=reference,
        cases=cases,
        source=_sentence(source[1]) if source else "",
        compared=compared,
        tolerance=tolerance or {},
        tokens=tokens,
        sizes=contract.sizes,
    )


def in_place_of(op: Op, implementation: Implementation) -> Callable[..., Any]:
    """A function with the arguments and results of the reference's, which calls an implementation: for code that is
    written on the reference. Results have the shapes of the reference's, which is run for them.
    """
    signature = inspect.signature(op.reference)

    def call(*positional: Any, **named: Any) -> Any:
        given = signature.bind(*positional, **named)
        given.apply_defaults()
        tensors = {name: v for name, v in given.arguments.items() if isinstance(v, torch.Tensor)}
        expected = op.reference(**{**given.arguments, **{name: tensor.clone() for name, tensor in tensors.items()}})
        results = () if expected is None else expected if isinstance(expected, tuple) else (expected,)
        outs = [arg.name for arg in op.tensor_args if arg.role is Role.OUT]
        shown = {**tensors, **dict(zip(outs, results, strict=True))}
        sizes = {name: v for name, v in given.arguments.items() if name not in tensors}
        sizes |= {
            dim: size
            for arg in op.tensor_args
            for dim, size in zip(arg.shape, shown[arg.name].shape, strict=True)
            if isinstance(dim, str)
        }
        inputs = {name: tensor.contiguous() for name, tensor in tensors.items()}
        found = op.call(implementation, sizes, {**inputs, **op.allocate_outputs(Case(sizes, inputs))})
        returned = [found[name] for name in outs]
        if expected is None:
            return None
        return type(expected)(*returned) if isinstance(expected, tuple) else returned[0]

    return call


def _sentence(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")


def _argument(arg: Argument) -> TensorArg | ScalarArg:
    if arg.role == "scalar":
        return ScalarArg(arg.name, arg.doc)
    return TensorArg(arg.name, Role(arg.role), arg.shape, arg.dtype, arg.doc, arg.prefill)


def _parameter_names(implementation: Implementation) -> set[str] | None:
    try:
        return set(inspect.signature(implementation).parameters)
    except (TypeError, ValueError):
        return None


def documentation_of(op: Op) -> str:
    """What an operation does: of each argument its shape, dtype and values, of each result what it holds and which of
    it is defined.
    """
    text = inspect.getdoc(op.reference) or ""
    for results in re.findall(r"^-> (\w+)$", text, re.MULTILINE):
        text += f"\n\n{results}: {inspect.getdoc(getattr(inspect.getmodule(op.reference), results))}"
    return text
