"""What a release would have around its scheduler, by its own source: which model runner, and how many batches under
way at once. Both are properties of classes that import half of the release; they are read from its files.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from specsim.engines.vllm.scheduler.imports import PACKAGE
from specsim.world.fakes import DriftError

V1, V2 = "V1", "V2"
_CONFIG = "config/vllm.py", "VllmConfig"
_DEPTH = "max_concurrent_batches"
_DEPTHS = (_CONFIG, ("v1/executor/multiproc_executor.py", "MultiprocExecutor"))
"""To 0.22.1 it is the executor's, and later the configuration's."""


def runner_of(root: Path) -> str:
    """The model runner that a model has by default. To 0.26.0 it depends on the model, and most have the first one."""
    has = {node.name for node in _methods(root, *_CONFIG)}
    return V2 if "use_v2_model_runner" in has and "_is_default_v2_model_runner_model" not in has else V1


def depth_of(root: Path, configuration: Any) -> int:
    """Batches under way at once: `configuration` has what is asked of a VllmConfig. DriftError where nothing says."""
    for file, owner in _DEPTHS:
        for method in _methods(root, file, owner):
            if method.name == _DEPTH:
                method.decorator_list, method.returns = [], None
                names: dict[str, Any] = {}
                exec(compile(ast.Module([method], []), file, "exec"), names)
                return int(names[_DEPTH](configuration))
    raise DriftError([], [f"{_CONFIG[1]}.{_DEPTH}"])


def _methods(root: Path, file: str, owner: str) -> list[ast.FunctionDef]:
    path = root / PACKAGE / file
    if not path.is_file():
        return []
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    return [node for one in classes for node in one.body if isinstance(node, ast.FunctionDef)]
