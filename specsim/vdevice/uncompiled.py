"""`torch.compile` on the virtual device: a function stays as it is.

Dynamo knows no tensors of the device. It is not even imported where a program only decorates functions: its modules
would be a third of the memory of the process, which every fork of it has to map, and seconds of its start.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from typing import Any

import torch

_DECORATORS = ("disable", "allow_in_graph", "assume_constant_result")


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """What to put in place of PyTorch's own: owner, name, value."""
    yield torch, "compile", _unchanged
    for name in _DECORATORS:
        yield torch.compiler, name, _unchanged
    if "_dynamo" not in vars(torch):
        yield torch, "_dynamo", _Dynamo("torch._dynamo")


def _unchanged(function: Any = None, *_arguments: Any, model: Any = None, fn: Any = None, **_options: Any) -> Any:
    """In place of a decorator, with options or without: it gives what it is given."""
    given = next((of for of in (function, model, fn) if of is not None), None)
    return (lambda decorated: decorated) if given is None else given


class _Dynamo(types.ModuleType):
    """In place of the module `torch._dynamo`, which is imported when something else of it is used."""

    disable = allow_in_graph = assume_constant_result = staticmethod(_unchanged)
    is_compiling = staticmethod(lambda: False)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch._dynamo"), name)
