"""The imports of a release's scheduler, in an environment that has little more than torch, triton and numpy.

A release imports some thirty packages on the way to its scheduler, gigabytes of them, and on this way uses almost
nothing of what they hold: base classes, decorators, names in annotations. Those that its engine calls fabricated are
made up here; those called real are the environment's; any other is not there for the release, be it installed or not.
So the same code runs everywhere.

A value of a fabricated module that does get used is none that a release could work with: what it returns is fabricated
as well. For that reason the smoke tests of `property_tests/scheduler` compare outputs token by token.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.abc
import importlib.machinery
import linecache
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specsim.lifting.planted import text_of
from specsim.lifting.probes import NAME, Span, probed, unprobed
from specsim.world.clock import overridden
from specsim.world.identity import Numbers

VERSION = "99.0.0"  # of every fabricated package: releases refuse old ones


@dataclass(frozen=True, slots=True)
class Packages:
    """What the releases of an engine import beside themselves; packages by their top-level name.

    `fabricated`       those that are made up, and `contents`, by module, what they must hold in earnest
    `real`             those of the environment
    `absent`           those that a release looks for by importlib.util.find_spec, too, and does not find
    `on_device`        how the names begin of its own modules that take the paths of a GPU, and get compiled operations
    `asked_for_device` its modules whose `is_cuda` says so to those
    `listed`           the last names of what it finds where it lists the modules of a folder of its own
    `imported`         its own modules that are imported, and all below them; any other is fabricated, be it there or
                       not. () for all
    """

    fabricated: frozenset[str]
    real: frozenset[str]
    absent: frozenset[str] = frozenset()
    contents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    on_device: tuple[str, ...] = ()
    asked_for_device: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    imported: tuple[str, ...] = ()

    def is_imported(self, module: str) -> bool:
        """Whether a module of the release is imported, and not fabricated."""
        return not self.imported or f"{module}.".startswith(tuple(f"{one}." for one in self.imported))

    def known(self, package: str) -> frozenset[str]:
        """What a release of that package may import."""
        return frozenset([package, *self.fabricated, *self.real, *sys.stdlib_module_names])


NUMBERS = Numbers()
"""Of the objects of the one release that this process imports."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Which statements of a release are run: in the folders and files `of`, relative to its package. `kept` is a folder
    for code, with probes and without. By file `spans` are the statements of what was imported, and `ran` has 1 at the
    first line of each that was run.
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
    packages: Packages,
    modules: Mapping[str, types.ModuleType],
    compiled: Mapping[str, types.ModuleType],
    edit: Edit | None = None,
    probes: Probes | None = None,
) -> None:
    """From now on `import package` in this process finds the release that lies unpacked in `root`, and its imports are
    answered as said above. Its modules get `modules` in place of the real ones of those names, and those that are on
    the device `compiled`.
    """
    few = functools.partial(_few_modules, packages.listed)
    modules = {**modules, **NUMBERS.modules(), "pkgutil": overridden(pkgutil, iter_modules=few)}
    sys.path.insert(0, str(root))  # for its version, which it looks up by importlib.metadata
    release = _Release(root, package, packages, modules, compiled, edit, probes or Probes())
    sys.meta_path[:0] = [_Fabrication(packages), release]
    for name in sorted(packages.absent):
        sys.modules[name] = None  # type: ignore[assignment]  # find_spec says None, and import that there is none


def _few_modules(names: frozenset[str], *arguments: Any, **named: Any) -> list[pkgutil.ModuleInfo]:
    """A release imports each of its models, and of its processors of images, to learn of their classes: a minute."""
    return [found for found in pkgutil.iter_modules(*arguments, **named) if found.name.split(".")[-1] in names]


class _Release(importlib.abc.MetaPathFinder):
    """Finds the modules of the release, and no others."""

    def __init__(
        self,
        root: Path,
        package: str,
        packages: Packages,
        modules: Mapping[str, types.ModuleType],
        compiled: Mapping[str, types.ModuleType],
        edit: Edit | None,
        probes: Probes,
    ) -> None:
        self._root, self._package, self._packages, self._edit, self._probes = str(root), package, packages, edit, probes
        self._modules, self._on_device = modules, {**modules, **compiled}
        self._known = packages.known(package)
        self._fabrication = _Fabrication(packages)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != self._package:
            return None
        if not self._packages.is_imported(fullname):
            made = importlib.machinery.ModuleSpec(fullname, self._fabrication, is_package=True)
            made.submodule_search_locations = [str(Path(self._root, *fullname.split(".")))]
            return made
        spec = importlib.machinery.PathFinder.find_spec(fullname, path or [self._root], target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            is_on_device = fullname.startswith(self._packages.on_device)
            modules = self._on_device if is_on_device else self._modules
            says_cuda = self._packages.asked_for_device if is_on_device else frozenset()
            import_ = _import_by(modules, self._known, says_cuda)
            file = Path(spec.loader.path).relative_to(Path(self._root, self._package)).as_posix()
            spec.loader = _Loader(fullname, spec.loader.path, import_, self._edit, self._probes, file)
        return spec


def _import_by(
    modules: Mapping[str, types.ModuleType], known: frozenset[str], says_cuda: frozenset[str]
) -> Callable[..., Any]:
    """An `import` that answers with these `modules`, finds no package that is not `known`, and gives an `is_cuda` that
    is true where that is asked of `says_cuda`.
    """

    def import_(asked: str, globals: Any = None, locals: Any = None, names: Sequence[str] = (), level: int = 0) -> Any:
        if asked in modules and not level:
            return modules[asked]
        top = asked.split(".")[0]
        if not level and top not in known:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
        found = builtins.__import__(asked, globals, locals, names, level)
        if asked in says_cuda and "is_cuda" in (names or ()):
            return overridden(found, is_cuda=_always)
        return found

    return import_


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module of the release with an `import` of its own, by which it gets the modules that replace real ones."""

    def __init__(
        self, name: str, path: str, import_: Callable[..., Any], edit: Edit | None, probes: Probes, file: str
    ) -> None:
        super().__init__(name, path)
        self._edit, self._probes, self._file = edit, probes if file.startswith(probes.of) else None, file
        self._kept = probes.kept
        self._builtins = {**vars(builtins), **NUMBERS.names(), "__import__": import_}

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__builtins__"] = self._builtins
        super().exec_module(module)

    def get_code(self, fullname: str) -> types.CodeType | None:
        if self._edit is None and self._probes is None:
            return unprobed(self.get_data(self.path), self.path, self._kept)
        source = self.get_source(fullname)
        assert source is not None
        edited = self._edit(fullname, source) if self._edit is not None else source
        if isinstance(edited, ast.Module):
            text = text_of(source, edited)
            linecache.cache[self.path] = len(text), None, text.splitlines(keepends=True), self.path
        if self._probes is not None:
            code, spans = probed(edited, self.path, self._probes.kept)
            self._probes.spans[self._file] = spans
            self._builtins[NAME] = self._probes.ran[self._file] = [0] * (spans[-1][0] + 1 if spans else 0)
            return code
        if edited == source:
            return unprobed(self.get_data(self.path), self.path, self._kept)
        return compile(edited, self.path, "exec", dont_inherit=True)


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
        made = fabricated(name, cls.__module__)
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
        return fabricated(name, type(self).__module__)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if _is_decoration(arguments, named) else self  # @decorator(option=value)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_raised: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _is_decoration(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    return len(arguments) == 1 and not named and callable(arguments[0]) and not isinstance(arguments[0], Fabricated)


def fabricated(name: str, module: str) -> Fabricated:
    """A class of that name in a fabricated module."""
    return Fabricated(name, (_Base,), {"__module__": module})


class _FabricatedModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return VERSION
        if name.startswith("__"):
            raise AttributeError(name)
        made = fabricated(name, self.__name__)
        setattr(self, name, made)
        return made


class _Fabrication(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the fabricated packages and whatever is imported from below them; says nothing of any other."""

    def __init__(self, packages: Packages) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] in self._packages.fabricated:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _FabricatedModule(spec.name)
        module.__path__ = list(spec.submodule_search_locations or ())
        module.__file__ = "<fabricated>"
        held = self._packages.contents.get(spec.name, {})
        vars(module).update({name: value for name, value in held.items() if not name.startswith("__")})
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...
