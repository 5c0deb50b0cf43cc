"""Building a small library of C functions from CUDA headers, once, with the machine's own nvcc, and calling it.

What is built goes into the cache under a hash of all that it is made of, with the log beside it. A build that fails is
an answer and not an error: which line of the log says why, and where the log is. Imports no torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.files import write_text
from specsim.lifting.checksums import note, require_noted

if TYPE_CHECKING:
    from specsim.lifting.cache import Cache

SECONDS_MAX = 480.0
_OPTIONS = ("-O2", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr", "-w")


@dataclass(frozen=True, slots=True)
class Built:
    """A library, or why there is none."""

    library: Path | None
    why: str = ""


def build(name: str, text: str, includes: Sequence[Path], cache: Cache) -> Built:
    """The library made of the CUDA source `text`, which includes headers from the folders `includes`."""
    compiler = find_nvcc()
    if compiler is None:
        return Built(None, "nvcc is neither on PATH nor in CUDA_HOME: there is nothing to build it with")
    architecture = gpu_architecture()
    if not architecture:
        return Built(None, "nvidia-smi finds no GPU to build it for")
    digest = _digest(text, includes, f"{compiler} {architecture} {_OPTIONS}")
    place = f"built/{name}-{digest}"
    library, log = cache.path(f"{place}.so"), cache.path(f"{place}.log")
    if library.is_file():
        require_noted(library, library)
        return Built(library)
    with cache.scratch() as scratch:
        source, made = scratch / f"{name}.cu", scratch / f"{name}.so"
        write_text(source, text)
        folders = [word for folder in includes for word in ("-I", str(folder))]
        # Headers of CUDA libraries that the toolkit lacks may be in the wheels that torch needs.
        folders += [f"-Xcompiler=-idirafter,{folder}" for folder in _wheels_headers()]
        command = [compiler, *_OPTIONS, f"-arch={architecture}", *folders, "-o", str(made), str(source)]
        started = time.monotonic()
        said, code = _run(command)
        seconds = time.monotonic() - started
        cache.store_text(f"{place}.log", f"{shlex.join(command)}\n{said}\nexit code {code} after {seconds:.0f} s\n")
        if code or not made.is_file():
            return Built(None, f"nvcc does not build it: {_reason(said, code)} (log: {log})")
        cache.store_file(f"{place}.so", made)
        note(library, library)
    return Built(library)


def find_nvcc() -> str | None:
    """The compiler: of CUDA_HOME, on PATH, or where toolkits are installed."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
    for home in (*filter(None, homes), "/usr/local/cuda"):
        if (Path(home) / "bin" / "nvcc").is_file():
            return str(Path(home) / "bin" / "nvcc")
    return shutil.which("nvcc")


def gpu_architecture() -> str:
    """The architecture of the first GPU as nvcc calls it, "" without one; read from the driver, for CUDA must not start
    in a process that forks.
    """
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = ended.stdout.split() if ended.returncode == 0 else []
    return f"sm_{lines[0].replace('.', '')}" if lines else ""


def load(library: Path) -> ctypes.CDLL | str:
    """The library, ready to call, or why it cannot be loaded."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        return f"{library} cannot be loaded: {error}"


def call(function: Any, *arguments: Any) -> None:
    """Call a C function on torch's current stream; tensors are handed on as their addresses. Raises RuntimeError for
    what it returns, an error of CUDA.
    """
    import torch

    values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in arguments]
    code = function(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if code:
        raise RuntimeError(f"{function.__name__} returns CUDA error {code}")


def _digest(text: str, includes: Iterable[Path], how: str) -> str:
    sha = hashlib.sha256(f"{how}\n{text}".encode())
    for folder in includes:
        for path in sorted(folder.rglob("*.cuh")) + sorted(folder.rglob("*.h")):
            sha.update(path.relative_to(folder).as_posix().encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()[:24]


def _wheels_headers() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [path for root in roots for path in sorted(Path(root).glob("*/include")) if path.is_dir()]


def _run(command: Sequence[str]) -> tuple[str, int]:
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        return f"{error.output or ''}\nnot done within {SECONDS_MAX:g} s", 124
    except OSError as error:
        return str(error), 127
    return ended.stdout, ended.returncode


def _reason(said: str, code: int) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines[-1:] or [f"exit code {code}"])[0][:300]
