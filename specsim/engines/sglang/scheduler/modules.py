"""The modules of the release that this process has imported, by their names below `sglang.srt`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from specsim.engines.sglang.where import places

PACKAGE = "sglang"
MARKER = f"/{PACKAGE}/"
"""In the path of a file of the release."""


@functools.cache
def release_module(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.srt.{name}")


def is_there(name: str) -> bool:
    """Whether the release has this module."""
    try:
        return importlib.util.find_spec(f"{PACKAGE}.srt.{name}") is not None
    except ModuleNotFoundError:  # nor is its package
        return False


def home_of(name: str) -> ModuleType | None:
    """The newest module of the release that has a name of `where.PLACES`."""
    for file, attribute in places(name):
        module = file.removeprefix("srt/").removesuffix(".py").replace("/", ".")
        if is_there(module) and hasattr(release_module(module), attribute):
            return release_module(module)
    return None


def imported_modules() -> list[ModuleType]:
    """What was imported of it so far."""
    return [
        module for name, module in list(sys.modules.items()) if name.startswith(f"{PACKAGE}.") and module is not None
    ]


def below(file: str, line: int | str) -> str:
    """FILE:LINE, the file below the package."""
    return f"{file.rpartition(MARKER)[2]}:{line}"


def replace_in(module: ModuleType, name: str, value: Any) -> None:
    """Put a value in place of the one that a module has of that name, if it has one."""
    if name in vars(module):
        vars(module)[name] = value
