"""From a TARGET to what can be tested of it: its operations, its scheduler."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.engines.packages import fetch_release, open_source
from specsim.engines.registry import ENGINES, Engine, Function
from specsim.engines.target import Checkout, ModelTarget, PythonTarget, Release, Target
from specsim.errors import UsageError, described
from specsim.isolation.phases import running
from specsim.lifting.cache import Cache
from specsim.verdict import NotRun
from specsim.world.planted import edit_of, find

if TYPE_CHECKING:
    from specsim.contracts.provider import Provider
    from specsim.lifting.planted import Planted
    from specsim.world.packages import Edit
    from specsim.world.scheduler import SchedulerTarget

# The provider of the built-in model: module and the function that makes it. By name, because kernels imports triton.
MODEL_PROVIDER = ("specsim.kernels", "provider")
MODEL_SCHEDULER = PythonTarget("specsim.engines.reference", "engine")


def load_provider(target: Target, cache: Cache, op: str = "") -> Provider:
    """The provider of a target. Runs the target's code where it is a user's own module. `op` names the operation that
    is wanted where one alone is: an engine's others are not lifted then.
    """
    if isinstance(target, PythonTarget):
        return _user_provider(target)
    provider: Provider
    if isinstance(target, ModelTarget):
        provider = function_of(MODEL_PROVIDER)()
    else:
        provider = function_of(_engine(target).subjects["ops"])(target, cache, op)
    return provider


def prepare(target: Target, cache: Cache, on_gpu: bool) -> None:
    """Fetch and build what a check of the target will need, which may take longer than a child may take to start: of
    what runs on a GPU alone nothing elsewhere. UsageError for a target whose source is not there.
    """
    if isinstance(target, ModelTarget | PythonTarget):
        return
    engine = _engine(target)
    if engine.source is not None:
        open_source(target, cache)
    elif on_gpu:
        fetch_release(target, cache)
    if on_gpu and engine.build is not None:
        function_of(engine.build)(target, cache)


def _engine(target: Release | Checkout) -> Engine:
    return ENGINES[target.engine]


def function_of(named: Function) -> Callable[..., Any]:
    """A function of an engine, by its module and name."""
    module, name = named
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def load_scheduler(
    target: Target,
    cache: Cache,
    mutant: str = "",
    root: Path | None = None,
    files: Collection[str] = (),
) -> SchedulerTarget | NotRun:
    """The scheduler of a target, imported with a planted defect in it, or why it is not run. `root` is the folder that
    `files_of` gave, None where it was not asked; of `files` schedules note which statements run, besides those of the
    scheduler.
    """
    edit = planted(target, mutant, cache) if mutant else None
    if isinstance(target, ModelTarget):
        target = MODEL_SCHEDULER
    if isinstance(target, PythonTarget):
        value: SchedulerTarget = _user_object(target)
        is_scheduler = callable(getattr(value, "start", None))
        return value if is_scheduler else NotRun("scheduler", "it has no `start`: it is no SchedulerTarget")
    maker = _engine(target).subjects.get("scheduler")
    if maker is None:
        return NotRun("scheduler", "packages of operations have no scheduler")
    found: SchedulerTarget | NotRun = function_of(maker)(target, cache, edit, root, files)
    return found


def planted(target: Target, mutant: str, cache: Cache) -> Edit:
    """Plants into the scheduler of a target what `--mutant` says: defects of its list, one of its source that is said
    outright, or a fix that it can take back itself, PRNUMBER. UsageError where there is none.
    """
    number = re.fullmatch(r"PR(\d+)", mutant, re.IGNORECASE)
    takes_back = _engine(target).reverted if isinstance(target, Release | Checkout) else None
    if number is not None and takes_back is not None:
        edit: Edit = function_of(takes_back)(target, cache, int(number[1]))
        return edit
    return edit_of(*find(mutant, planted_into(target)))


def planted_into(target: Target) -> Mapping[str, Planted]:
    """The defects that can be planted into the scheduler of a target, by id. UsageError where none can."""
    maker = _engine(target).planted if isinstance(target, Release | Checkout) else None
    if maker is None:
        others = ", ".join(name for name, engine in ENGINES.items() if engine.planted is not None)
        raise UsageError(f"no defect can be planted into {target.text}", f"name a release or a checkout of {others}")
    defects: Mapping[str, Planted] = function_of(maker)()
    return defects


def files_of(target: Target, cache: Cache) -> Path:
    """The folder from which an engine's target is imported; that of a git revision is there until this process ends."""
    assert not isinstance(target, ModelTarget | PythonTarget)
    files = _engine(target).files
    assert files is not None
    folder: Path = function_of(files)(target, cache)
    return folder


_OURS = ("torch", "triton", "numpy")  # what specsim imports itself, and takes long
_REMEDY = "name a mapping of operations to functions, in a module that the current folder or the environment has"


def _user_object(target: PythonTarget) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with running(*_OURS):
            module = importlib.import_module(target.module)
    except ModuleNotFoundError as error:
        if error.name != target.module and not target.module.startswith(f"{error.name}."):
            raise UsageError(
                f"{target.module} needs the module {error.name}, which is not installed", "install it"
            ) from error
        raise UsageError(f"there is no module {target.module!r}", _REMEDY) from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target.module} cannot be imported ({described(error)})", "mend the module") from error
    value: Any = module
    for attribute in target.object.split("."):
        if not hasattr(value, attribute):
            raise UsageError(f"{target.module} has no {target.object!r}", _REMEDY)
        value = getattr(value, attribute)
    return value


def _user_provider(target: PythonTarget) -> Provider:
    value = _user_object(target)
    if callable(getattr(value, "start", None)):
        value = {}  # of another tier: it has no operations
    if isinstance(value, Mapping):
        from specsim.contracts.provider import MappingProvider

        return MappingProvider(target.text, value)
    if callable(getattr(value, "subjects", None)):
        provider: Provider = value
        return provider
    raise UsageError(f"{target.text} is a {type(value).__name__}", _REMEDY)
