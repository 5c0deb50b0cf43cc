"""Arrays of numpy over memory of the host that the device reaches, too: `tensor.numpy()` of pinned memory, or of a copy
that does not block. What is read and written through them is followed as what is through the tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specsim.vdevice.device import active
from specsim.vdevice.history import Memory

_READ = (
    *("__array__", "__bool__", "__copy__", "__deepcopy__", "__float__", "__index__", "__int__", "__iter__"),
    *("argsort", "astype", "copy", "flatten", "item", "nonzero", "repeat", "searchsorted", "take", "tobytes", "tolist"),
)


class FollowedArray(np.ndarray[Any, Any]):
    """An array, and views of it. What is computed of one is an array like any other."""

    memory: Memory | None

    def __array_finalize__(self, of: Any) -> None:
        self.memory = getattr(of, "memory", None)

    def _plain(self, what: str = "numpy", *, is_write: bool = False) -> Any:
        if self.memory is not None:
            active().host_access(self.memory, what, is_write=is_write)
        return self.view(np.ndarray)

    def __getitem__(self, key: Any) -> Any:
        plain = self.view(np.ndarray)
        found = plain[key]
        if isinstance(found, np.ndarray) and np.may_share_memory(found, plain):
            return followed(found, self.memory)
        self._plain()
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._plain(is_write=True)[key] = _read(value)

    def fill(self, value: Any) -> None:
        self._plain("fill", is_write=True).fill(value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **named: Any) -> Any:
        read = [_read(one) for one in inputs]
        if method == "at" and isinstance(inputs[0], FollowedArray):
            inputs[0]._plain("numpy", is_write=True)
        if out is None:
            return getattr(ufunc, method)(*read, **named)
        into = tuple(one._plain(is_write=True) if isinstance(one, FollowedArray) else one for one in out)
        getattr(ufunc, method)(*read, out=into, **named)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*_read(args), **{name: _read(value) for name, value in kwargs.items()})


def _reading(name: str) -> Any:
    def method(self: FollowedArray, *args: Any, **named: Any) -> Any:
        return getattr(self._plain(), name)(*args, **named)

    method.__name__ = name
    return method


for _name in _READ:
    setattr(FollowedArray, _name, _reading(_name))


def followed(array: Any, memory: Memory | None) -> FollowedArray:
    """A view of an array, whose bytes are of that memory."""
    view: FollowedArray = array.view(FollowedArray)
    view.memory = memory
    return view


def _read(value: Any) -> Any:
    """A value with no array in it that is followed: they are read."""
    if isinstance(value, FollowedArray):
        return value._plain()
    if type(value) in (list, tuple):
        return type(value)(map(_read, value))
    return value
