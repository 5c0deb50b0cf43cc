"""Triton kernels from source text, run by the lockstep interpreter and by Triton's own."""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specsim.interpreter.lockstep.launch import lockstep
from specsim.interpreter.triton_names import mend_interpreter

HEAD = "import typing\n\nimport triton\nimport triton.language as tl\n\n\n"
_numbers = itertools.count()
_folder = tempfile.TemporaryDirectory(prefix="specsim-kernels-")


def kernel_of(source: str, name: str = "kernel") -> Any:
    """The function `name` of a module with this source. It lies in a file, where compilers read it."""
    path = Path(_folder.name) / f"generated_{next(_numbers)}.py"
    path.write_text(HEAD + source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def outcome(
    kernel: Any, grid: tuple[int, ...], tensors: Sequence[torch.Tensor], scalars: Sequence[Any] = ()
) -> list[torch.Tensor] | Exception:
    """Copies of the tensors after a launch, or what it raised."""
    copies = [tensor.clone() for tensor in tensors]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():  # Triton's interpreter leaves NumPy's warnings on
            warnings.simplefilter("ignore")  # `nanmax` of NaNs alone, and deprecated names
            kernel[grid](*copies, *scalars)
    except Exception as error:
        return error
    return copies


def outcomes(
    kernel: Any, grid: tuple[int, ...], tensors: Sequence[torch.Tensor], scalars: Sequence[Any] = ()
) -> tuple[list[torch.Tensor] | Exception, list[torch.Tensor] | Exception]:
    """In lockstep, and in Triton's interpreter."""
    mend_interpreter()
    with lockstep(fall_back=False):
        actual = outcome(kernel, grid, tensors, scalars)
    return actual, outcome(kernel, grid, tensors, scalars)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit; all NaNs are one value."""
    if a.dtype.is_floating_point:
        nans = a.isnan()
        if not torch.equal(nans, b.isnan()):
            return False
        as_integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        a, b = (torch.where(nans, 0, tensor).view(as_integers) for tensor in (a, b))
    return torch.equal(a, b)
