"""What a release would have around its scheduler, by its own source: which model runner, how many batches under way at
once, how many tokens ahead. These are properties of classes that import half of the release: they are read from its
files, and run on the configuration here.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

from specsim.engines.vllm.model_runner import CONFIG, default_runner
from specsim.engines.vllm.scheduler.imports import PACKAGE
from specsim.world.fakes import AdapterDriftError

_DEPTH = "max_concurrent_batches"
_PROPERTIES = (
    _DEPTH,
    "max_in_flight_tokens",
    "num_speculative_tokens",
    "num_lookahead_tokens",
    "num_prefill_lookahead_tokens",
    "num_hash_lookahead_tokens",
)
"""Each may read those before it. Older releases have few of them."""
_RING = "v1/worker/gpu/pp_utils.py", "PPHandler", "get_prev_sampled_outputs"
_OWNERS = (("v1/executor/multiproc_executor.py", "MultiprocExecutor"), CONFIG)
"""To 0.22.1 the first property is the executor's."""


def runner_of(root: Path) -> str:
    """The model runner that a model has by default."""
    return default_runner({node.name for node in _methods(root, *CONFIG)})


def has_ring(root: Path) -> bool:
    """Whether the second model runner gives the stages of a pipeline what was sampled by a ring, which has a place for
    each of so many steps: what it gives in a step is that of as many steps before.
    """
    return _RING[2] in {node.name for node in _methods(root, *_RING[:2])}


def complete(root: Path, configuration: Any) -> None:
    """Give an object that has what else is asked of a VllmConfig the properties that the release computes of that.
    DriftError where nothing says how many batches are under way at once.
    """
    methods = {method.name: (file, method) for file, owner in _OWNERS for method in _methods(root, file, owner)}
    if _DEPTH not in methods:
        raise AdapterDriftError([], [f"{CONFIG[1]}.{_DEPTH}"])
    for name in _PROPERTIES:
        if name in methods:
            file, method = methods[name]
            names: dict[str, Any] = {}
            exec(compile(ast.Module([method], []), file, "exec"), names)
            setattr(configuration, name, names[name](configuration))


@functools.cache
def _methods(root: Path, file: str, owner: str) -> tuple[ast.FunctionDef, ...]:
    """Those of a class, without what decorates them and the types of what they return."""
    path = root / PACKAGE / file
    if not path.is_file():
        return ()
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    methods = tuple(node for one in classes for node in one.body if isinstance(node, ast.FunctionDef))
    for method in methods:
        method.decorator_list, method.returns = [], None
    return methods
