"""The contract of an operation, stated once: a table of its arguments beside the function.

    @contract(
        '''
        predict          [num_nodes] int32: token that follows each node
        accept_index     [bs, accept_width] int32: the accepted path as node numbers, root first, then -1
        accept_lens      [bs] int32, 1 to accept_width: entries of the path
        -> bonus_tokens  [bs] int32: `predict[accept_index[b, accept_lens[b] - 1]]`
        page_size        int, 1 or more: slots of a page
        '''
    )

A row is a name, a shape, a dtype, what holds of every value, and after the colon what it means; it goes on in rows that
are indented. A size is a name, equal wherever it occurs; `num_nodes = bs * topk` says what it must be, and `topk >= 1`
how large at least. An integer argument has no shape, and its value is the size of its name. Of dtypes, `float` is
float32 or float64, all of a call the same, `any` any, and `number` a number or a tensor, which the function checks.
`changed in place` marks arguments that are results too. `->` marks results, in their order; `-> Tree` stands for the
fields of that NamedTuple, which has such a table too, and a row that follows and names one of them replaces it.
`prefilled with -1` is a value that the caller of an implementation that writes in place puts there before.

From the table follow the docstring's, the checks of arguments (`validation` says how to switch them off) and the
arguments in `specsim.contracts`. What relates values of arguments to one another, the function checks itself.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal, ParamSpec, TypeVar

import torch

from specsim.reference import validation

P = ParamSpec("P")
R = TypeVar("R")
Fields = TypeVar("Fields", bound=type)

FLOATS = (torch.float32, torch.float64)

_DTYPES = {dtype: getattr(torch, dtype) for dtype in ("bool", "uint8", "int32", "int64", "float32", "float64")}
_DTYPES |= dict.fromkeys(("float", "any", "number"), torch.float32)
_ROW = re.compile(
    r"(?P<name>\w+)\s+(?:\[(?P<shape>[^\]]*)\] )?(?P<dtype>\w+)"
    r"(?:, (?P<low>[^,:]+?) (?:or more|to (?P<high>[^,:]+?)(?P<nan> or NaN)?))?"
    r"(?P<in_place>, changed in place)?(?:, prefilled with (?P<prefill>[-\w]+))?: (?P<doc>.+)"
)


@dataclass(frozen=True, slots=True)
class Argument:
    """A row of a table.

    role      a scalar is an int; an inout argument is changed in place
    shape     names of sizes, or numbers
    dtype     of the contract: float32 where the table says float, any or number
    allowed   dtypes that the reference takes, the same for all `float`s; () for any, None if the function checks it
    low       least value, an expression of sizes; None if the table does not say
    high      greatest value, likewise
    is_nan    whether NaN is allowed, too
    prefill   what a result that is written in place holds before
    """

    name: str
    role: Literal["in", "inout", "out", "scalar"]
    shape: tuple[str | int, ...]
    dtype: torch.dtype
    allowed: tuple[torch.dtype, ...] | None
    low: CodeType | None
    high: CodeType | None
    is_nan: bool
    prefill: int | bool | None
    doc: str


@dataclass(frozen=True, slots=True)
class Contract:
    """The arguments of an operation in the order of its table.

    sizes  what sizes must be that follow from others
    least  how large sizes must be at least
    """

    arguments: tuple[Argument, ...]
    sizes: Mapping[str, CodeType]
    least: Mapping[str, int]

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ValueError, with name, value and what is allowed, for an argument that does not fit."""
        sizes: dict[str, int] = {}
        for arg in self.arguments:
            if arg.role == "scalar":
                sizes[arg.name] = arguments[arg.name]
                _check_values(arg, arguments[arg.name], sizes)
        tensors = [arg for arg in self.arguments if arg.role in ("in", "inout") and arg.allowed is not None]
        floats: tuple[torch.dtype, ...] = FLOATS
        for arg in tensors:
            if arg.allowed == FLOATS and floats == FLOATS:
                validation.require_dtype(arg.name, arguments[arg.name], FLOATS)
                floats = (arguments[arg.name].dtype,)
        # First the tensors that say how large sizes are, then those that have sizes which follow from others.
        for arg in sorted(tensors, key=lambda arg: any(dim in self.sizes for dim in arg.shape)):
            tensor = arguments[arg.name]
            validation.require_shape(arg.name, tensor, self._dims(arg, tensor, sizes))
            for dim, size in zip(arg.shape, tensor.shape, strict=True):
                if dim in self.least:
                    validation.require_scalar(f"{dim} (the width of {arg.name})", size, self.least[str(dim)])
            if arg.allowed:
                validation.require_dtype(arg.name, tensor, floats if arg.allowed == FLOATS else arg.allowed)
        for arg in tensors:
            _check_values(arg, arguments[arg.name], sizes)

    def _dims(self, arg: Argument, tensor: torch.Tensor, sizes: dict[str, int]) -> list[tuple[str, int | None]]:
        """The tensor's dimensions with the sizes that they must have, None for one that it is the first to have."""
        dims: list[tuple[str, int | None]] = []
        for i, dim in enumerate(arg.shape):
            if isinstance(dim, int):
                dims.append((str(dim), dim))
                continue
            if dim not in sizes and dim in self.sizes:
                sizes[dim] = _value(self.sizes[dim], sizes)
            dims.append((dim, sizes.get(dim)))
            if dim not in sizes and i < tensor.ndim:
                sizes[dim] = tensor.shape[i]
        return dims


CONTRACTS: dict[str, Contract] = {}
"""The contracts of the reference's functions, by name."""

_FIELDS: dict[str, Contract] = {}


def contract(table: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function of the reference: its arguments are checked against the table, which its docstring shows."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        found = CONTRACTS[function.__name__] = _parsed(table, "in")
        function.__doc__ = _with_table(function.__doc__, table)
        parameters = inspect.signature(function).parameters
        defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}

        @functools.wraps(function)
        def checked(*positional: P.args, **named: P.kwargs) -> R:
            if validation.enabled():
                given = {**defaults, **dict(zip(parameters, positional, strict=False)), **named}
                if given.keys() == parameters.keys():  # otherwise the call says what is missing
                    found.check(given)
            return function(*positional, **named)

        return checked

    return decorate


def fields(table: str) -> Callable[[Fields], Fields]:
    """Decorates a NamedTuple of results: the table says what its fields are, and its docstring shows it."""

    def decorate(results: Fields) -> Fields:
        _FIELDS[results.__name__] = _parsed(table, "out")
        results.__doc__ = _with_table(results.__doc__, table)
        return results

    return decorate


def _with_table(docstring: str | None, table: str) -> str:
    """The docstring with the table after its first paragraph."""
    first, _, rest = inspect.cleandoc(docstring or "").partition("\n\n")
    return "\n\n".join(part for part in (first, textwrap.dedent(table).strip(), rest) if part)


def _parsed(table: str, role: str) -> Contract:
    arguments: dict[str, Argument] = {}
    sizes: dict[str, CodeType] = {}
    least: dict[str, int] = {}
    for row in _rows(table):
        if re.fullmatch(r"-> \w+", row):
            arguments |= {field.name: field for field in _FIELDS[row[3:]].arguments}
            sizes |= _FIELDS[row[3:]].sizes
            continue
        match = _ROW.fullmatch(row.removeprefix("-> "))
        if match is None:
            raise ValueError(f"{row!r} is no row of a table; see {__name__}")
        dims = [dim.partition(" ") for dim in (match["shape"] or "").split(", ") if dim]
        sizes |= {name: _expression(rest[2:]) for name, _, rest in dims if rest.startswith("= ")}
        least |= {name: int(rest[3:]) for name, _, rest in dims if rest.startswith(">= ")}
        arg = _argument(match, "out" if row.startswith("-> ") else role, [name for name, _, _ in dims])
        arguments[arg.name] = arg
    return Contract(tuple(arguments.values()), sizes, least)


def _rows(table: str) -> Iterator[str]:
    for row in re.split(r"\n(?! )", textwrap.dedent(table).strip()):
        yield re.sub(r"\n\s+", " ", row)


def _argument(match: re.Match[str], role: Any, shape: list[str]) -> Argument:
    dtype = match["dtype"]
    is_scalar = dtype == "int"
    of_table = {"float": FLOATS, "any": (), "number": None}
    prefill = match["prefill"]
    return Argument(
        name=match["name"],
        role="scalar" if is_scalar else "inout" if match["in_place"] else role,
        shape=tuple(int(dim) if dim.isdigit() else dim for dim in shape),
        dtype=torch.int64 if is_scalar else _DTYPES[dtype],
        allowed=of_table.get(dtype, () if is_scalar else (_DTYPES[dtype],)),
        low=_expression(match["low"]) if match["low"] else None,
        high=_expression(match["high"]) if match["high"] else None,
        is_nan=bool(match["nan"]),
        prefill=None if prefill is None else prefill == "True" if dtype == "bool" else int(prefill),
        doc=match["doc"],
    )


def _expression(text: str) -> CodeType:
    return compile(text, f"<{text}>", "eval")


def _value(expression: CodeType, sizes: Mapping[str, int]) -> int:
    return int(eval(expression, {"__builtins__": {}}, sizes))


def _check_values(arg: Argument, value: Any, sizes: Mapping[str, int]) -> None:
    if arg.low is None:
        return
    low = _value(arg.low, sizes)
    high = None if arg.high is None else _value(arg.high, sizes)
    if arg.role == "scalar":
        validation.require_scalar(arg.name, value, low, high)
    else:
        validation.require_between(arg.name, value, low, high, is_nan=arg.is_nan)
