"""The imports of a release's scheduler, in an environment that has little more than torch, triton and numpy.

A release imports some thirty packages on the way to its scheduler, gigabytes of them, and on this way uses almost
nothing of what they hold: base classes, decorators, names in annotations. Those of FABRICATED are made up here; those
of REAL are the environment's; any other is not there for the release, be it installed or not. So the same code runs
everywhere.

A value of a fabricated module that does get used is none that a release could work with: what it returns is fabricated
as well. For that reason the smoke tests of `property_tests/scheduler` compare outputs token by token.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.abc
import importlib.machinery
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specsim.engines.sglang.scheduler.clock import overridden
from specsim.engines.sglang.scheduler.configuration import AutoConfig, GenerationConfig, cached_file, config_dict
from specsim.engines.sglang.scheduler.identity import Numbers
from specsim.lifting.probes import NAME, Span, probed

_FABRICATED = """
    IPython PIL aiohttp compressed_tensors cuda cutlass dill einops fastapi flash_mla gguf huggingface_hub openai orjson
    partial_json_parser psutil pybase64 pydantic pydantic_core regex requests safetensors sentencepiece setproctitle
    sgl_kernel starlette torchvision tqdm transformers tvm_ffi uvicorn xgrammar yaml zmq
"""
FABRICATED = frozenset(_FABRICATED.split())
ON_DEVICE = (
    "sglang.kernels.ops.sampling",
    "sglang.kernels.ops.speculative",
    "sglang.srt.layers.attention.triton",
    "sglang.srt.speculative",
)
"""Modules of a release that take the paths of a GPU, and get compiled operations from `operations.modules`."""
_ASKED_FOR_DEVICE = frozenset(["sglang.srt.utils", "sglang.srt.utils.common"])
REAL = frozenset(["filelock", "msgspec", "numpy", "packaging", "torch", "triton", "typing_extensions"])
# Looked for by importlib.util.find_spec, too, which does not come by the import of a module of the release.
ABSENT = frozenset(["deep_gemm", "flashinfer", "mooncake", "torchao"])
VERSION = "99.0.0"  # of every fabricated package: releases refuse old ones

_MODELS = frozenset(["llama"])  # of the modules that a release looks for in a folder of its own, all that it finds

NUMBERS = Numbers()
"""Of the objects of the one release that this process imports."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Which statements of a release are run: in the folders and files `of`, relative to its package. `kept` is a folder
    for code that has probes. By file `spans` are the statements of what was imported, and `ran` has 1 at the first line
    of each that was run.
    """

    of: tuple[str, ...] = ()
    kept: Path | None = None
    spans: dict[str, tuple[Span, ...]] = field(default_factory=dict)
    ran: dict[str, list[int]] = field(default_factory=dict)
    _at_start: dict[str, bytes] = field(default_factory=dict)

    def started(self) -> None:
        """What was run by now is of the start, which every schedule has behind it."""
        self._at_start.update((file, bytes(ran)) for file, ran in self.ran.items())

    def clear(self) -> None:
        """Forget what was run since the start."""
        for file, ran in self.ran.items():
            ran[:] = self._at_start.get(file, bytes(len(ran)))

    def lines(self) -> dict[str, list[int]]:
        """The first lines of the statements that were run, by file."""
        return {
            file: np.flatnonzero(np.frombuffer(bytes(ran), np.uint8)).tolist()
            for file, ran in self.ran.items()
            if 1 in ran
        }


Edit = Callable[[str, str], str | ast.Module]  # (name of a module of the release, its source) -> what is run


def install(
    root: Path,
    package: str,
    modules: Mapping[str, types.ModuleType],
    compiled: Mapping[str, types.ModuleType],
    edit: Edit | None = None,
    probes: Probes | None = None,
) -> None:
    """From now on `import package` in this process finds the release that lies unpacked in `root`, and its imports are
    answered as said above. Its modules get `modules` in place of the real ones of those names, and those of ON_DEVICE
    `compiled`.
    """
    modules = {**modules, **NUMBERS.modules(), "pkgutil": overridden(pkgutil, iter_modules=_few_modules)}
    sys.path.insert(0, str(root))  # for its version, which it looks up by importlib.metadata
    sys.meta_path[:0] = [_Fabrication(), _Release(root, package, modules, compiled, edit, probes or Probes())]
    for name in sorted(ABSENT):
        sys.modules[name] = None  # type: ignore[assignment]  # find_spec says None, and import that there is none


def _few_modules(*arguments: Any, **named: Any) -> list[pkgutil.ModuleInfo]:
    """A release imports each of its models, and of its processors of images, to learn of their classes: a minute."""
    return [found for found in pkgutil.iter_modules(*arguments, **named) if found.name.split(".")[-1] in _MODELS]


@functools.cache
def _known(package: str) -> frozenset[str]:
    return frozenset([package, *FABRICATED, *REAL, *sys.stdlib_module_names])


class _Release(importlib.abc.MetaPathFinder):
    """Finds the modules of the release, and no others."""

    def __init__(
        self,
        root: Path,
        package: str,
        modules: Mapping[str, types.ModuleType],
        compiled: Mapping[str, types.ModuleType],
        edit: Edit | None,
        probes: Probes,
    ) -> None:
        self._root, self._package, self._edit, self._probes = str(root), package, edit, probes
        self._modules, self._on_device = modules, {**modules, **compiled}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != self._package:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path or [self._root], target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            modules = self._on_device if fullname.startswith(ON_DEVICE) else self._modules
            file = Path(spec.loader.path).relative_to(Path(self._root, self._package)).as_posix()
            spec.loader = _Loader(fullname, spec.loader.path, modules, self._edit, self._probes, file)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module of the release with an `import` of its own, by which it gets the modules that replace real ones."""

    def __init__(
        self,
        name: str,
        path: str,
        modules: Mapping[str, types.ModuleType],
        edit: Edit | None,
        probes: Probes,
        file: str,
    ) -> None:
        super().__init__(name, path)
        self._edit, self._probes, self._file = edit, probes if file.startswith(probes.of) else None, file
        package, is_on_device = name.split(".")[0], name.startswith(ON_DEVICE)

        def import_(
            asked: str, globals: Any = None, locals: Any = None, names: Sequence[str] = (), level: int = 0
        ) -> Any:
            if asked in modules and not level:
                return modules[asked]
            top = asked.split(".")[0]
            if not level and top not in _known(package):
                raise ModuleNotFoundError(f"No module named {top!r}", name=top)
            found = builtins.__import__(asked, globals, locals, names, level)
            if is_on_device and "is_cuda" in (names or ()) and asked in _ASKED_FOR_DEVICE:
                return overridden(found, is_cuda=_always)
            return found

        self._builtins = {**vars(builtins), **NUMBERS.names(), "__import__": import_}

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__builtins__"] = self._builtins
        super().exec_module(module)

    def get_code(self, fullname: str) -> types.CodeType | None:
        if self._edit is None and self._probes is None:
            return super().get_code(fullname)
        source = self.get_source(fullname)
        assert source is not None
        edited = self._edit(fullname, source) if self._edit is not None else source
        if self._probes is not None:
            code, spans = probed(edited, self.path, self._probes.kept)
            self._probes.spans[self._file] = spans
            self._builtins[NAME] = self._probes.ran[self._file] = [0] * (spans[-1][0] + 1 if spans else 0)
            return code
        return super().get_code(fullname) if edited == source else compile(edited, self.path, "exec", dont_inherit=True)


def _always() -> bool:
    return True


class Fabricated(type):
    """A class that can stand for a class, a function, a decorator or a table: whatever is looked up in it is another.

    Each rule answers one use that a release makes of an imported name while its modules are executed.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **_keywords: Any) -> Fabricated:
        return super().__new__(mcs, name, bases, body)  # class Config(PretrainedConfig, key=value)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_keywords: Any) -> None:
        super().__init__(name, bases, body)

    def __getattr__(cls, name: str) -> Any:
        if name == "__func__":
            return lambda *_arguments, **_named: None  # Tokenizer.from_pretrained.__func__, to be wrapped
        if name == "__class_validators__":
            return []  # a list of a configuration class, to be extended
        if name.startswith("__"):
            raise AttributeError(name)
        made = _fabricated(name, cls.__module__)
        setattr(cls, name, made)
        return made

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if _is_decoration(arguments, named):
            return arguments[0]  # @decorator
        return super().__call__(*arguments, **named)

    def __getitem__(cls, key: Any) -> Any:
        return cls  # Generic[T], TABLE[key]

    def __setitem__(cls, key: Any, value: Any) -> None: ...  # TABLE[key] = value

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __contains__(cls, key: object) -> bool:
        return False

    def __bool__(cls) -> bool:
        return True  # in spite of __len__


class _Base(metaclass=Fabricated):
    """What every fabricated class derives from, and with it each class of a release that derives from one."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None: ...

    def __init_subclass__(cls, **_keywords: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _fabricated(name, type(self).__module__)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if _is_decoration(arguments, named) else self  # @decorator(option=value)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_raised: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _is_decoration(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    return len(arguments) == 1 and not named and callable(arguments[0]) and not isinstance(arguments[0], Fabricated)


def _fabricated(name: str, module: str) -> Fabricated:
    return Fabricated(name, (_Base,), {"__module__": module})


class _Bar(list[Any]):
    """A bar of progress: what it goes through, and nothing to see."""

    def set_description(self, *_arguments: Any, **_named: Any) -> None: ...


_HOST_MEMORY = types.SimpleNamespace(total=64 << 30, available=48 << 30, used=16 << 30, percent=25.0)
_PRETRAINED = _fabricated("PretrainedConfig", "transformers")
type.__setattr__(_PRETRAINED, "get_config_dict", config_dict)
CONTENTS: Mapping[str, Mapping[str, Any]] = {  # what a fabricated module must hold in earnest
    "dill": {"dumps": lambda value: value.__qualname__.encode()},  # into JSON, at import
    "psutil": {"virtual_memory": lambda: _HOST_MEMORY},
    "regex": vars(re),  # a superset of it; patterns are compiled at import
    "tqdm": {"tqdm": _Bar},
    "transformers": {"AutoConfig": AutoConfig, "GenerationConfig": GenerationConfig, "PretrainedConfig": _PRETRAINED},
    "transformers.configuration_utils": {"PretrainedConfig": _PRETRAINED},
    "transformers.utils": {"cached_file": cached_file},
    "transformers.utils.hub": {"cached_file": cached_file},
}


class _FabricatedModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return VERSION
        if name.startswith("__"):
            raise AttributeError(name)
        made = _fabricated(name, self.__name__)
        setattr(self, name, made)
        return made


class _Fabrication(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the fabricated packages and whatever is imported from below them; says nothing of any other."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] in FABRICATED:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _FabricatedModule(spec.name)
        module.__path__ = []
        module.__file__ = "<fabricated>"
        held = CONTENTS.get(spec.name, {})
        vars(module).update({name: value for name, value in held.items() if not name.startswith("__")})
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...
