"""What a process that runs a target's code sees of this process' environment: the variables of this list.

A token of a CI system, a password or a cloud's key has no name in it, and so cannot come into a finding, a replay file
or a target's hands. `SPECSIM_KEEP_ENVIRONMENT` and `--keep-environment` name more to let through.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

KEEP = "SPECSIM_KEEP_ENVIRONMENT"  # names, with commas between them

_LISTED = """
    PATH HOME USER LOGNAME TMPDIR TEMP TMP XDG_CACHE_HOME XDG_STATE_HOME VIRTUAL_ENV CONDA_PREFIX
    LD_LIBRARY_PATH LD_PRELOAD LANG LANGUAGE TZ CC CXX
    PYTHONPATH PYTHONHOME PYTHONHASHSEED PYTHONUTF8 PYTHONIOENCODING PYTHONWARNINGS PYTHONUNBUFFERED PYTHONMALLOC
    PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX PYTHONNOUSERSITE PYTHONSAFEPATH PYTHONFAULTHANDLER
"""
NAMES = frozenset(_LISTED.split())
PREFIXES = (
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "TRITON_",
    "TORCH",
    "PYTORCH_",
    "FLASHINFER_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "HYPOTHESIS",
    "SPECSIM_",
)


ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Tensors of a case are small, and a fork of a process that computed with several threads waits for them for ever."""


def of_target(environ: Mapping[str, str] = os.environ, hash_seed: str = "") -> dict[str, str]:
    """The environment of a process that runs a target's code: torch and NumPy have one thread there, unless the user
    wants more. `hash_seed` is its PYTHONHASHSEED, "" for this process' own.
    """
    kept = set(environ.get(KEEP, "").split(","))
    seen = {
        name: value
        for name, value in environ.items()
        if name in NAMES or name.startswith(PREFIXES) or (name in kept and name)
    }
    return ONE_THREAD | of_ours(seen) | ({"PYTHONHASHSEED": hash_seed} if hash_seed else {})


def of_ours(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that runs specsim alone. It finds specsim where this process found it, whatever its
    own path says.
    """
    path = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
    return {**environ, "PYTHONPATH": path}


def keep(names: Iterable[str]) -> None:
    """Let variables of these names through too, from now on."""
    already = filter(None, os.environ.get(KEEP, "").split(","))
    os.environ[KEEP] = ",".join(dict.fromkeys([*already, *names]))
