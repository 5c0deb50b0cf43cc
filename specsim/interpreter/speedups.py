"""Triton's interpreter, made quicker: what it works out again and again and nobody looks at is left out.

`quickened()` changes no result. Of every addition and multiplication in 32 bits the interpreter computes whether it
overflows, and without `debug` (`specsim.interpreter.hooks` switches that on) does not look; each call of a function of
Triton's own library looks through all of Triton's language for what the launch has replaced there already; and each
load and store makes a table of all types. Together that is more than half of a small launch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LANGUAGES: dict[Any, frozenset[str]] = {}  # by function, the modules of Triton's language that its code sees
_TYPES: dict[str, Any] = {}  # by Triton's name, the NumPy type of a value


class _Nothing:
    """Stands for the scope of replaced attributes where none is replaced."""

    def restore(self) -> None: ...


@contextmanager
def quickened() -> Iterator[None]:
    """Leave out what does not matter of every launch through the interpreter while active."""
    from triton.runtime import interpreter

    tl = interpreter.tl
    shared, executor = interpreter.interpreter_builder, interpreter.GridExecutor
    options, call = shared.options, executor.__call__
    patch_lang, get_np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
    replaced: set[str] = set()

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = set(replaced)
        try:
            return call(self, *args, **kwargs)
        finally:
            replaced.clear()
            replaced.update(before)

    def patched_lang(function: Callable[..., Any]) -> Any:
        if function not in _LANGUAGES:
            seen = [value for value in function.__globals__.values() if value is tl or value is tl.core]
            _LANGUAGES[function] = frozenset(module.__name__ for module in seen)
        languages = _LANGUAGES[function]
        if languages and languages <= replaced:
            return _Nothing()
        replaced.update(languages)
        return patch_lang(function)

    def np_dtype(of: Any) -> Any:
        if isinstance(of, tl.block_type):
            of = of.element_ty
        name = "pointer" if isinstance(of, tl.pointer_type) else of.name
        if name not in _TYPES:
            _TYPES[name] = get_np_dtype(of)
        return _TYPES[name]

    interpreter._patch_lang, interpreter._get_np_dtype = patched_lang, np_dtype
    executor.__call__ = launched
    shared.options = dataclasses.replace(options, sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter._patch_lang, interpreter._get_np_dtype = patch_lang, get_np_dtype
        executor.__call__ = call
        shared.options = options
