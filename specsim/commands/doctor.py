"""`specsim doctor`: what is installed, which tiers and devices work, and the one command that adds what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specsim import DISTRIBUTION
from specsim.commands.invocation import output_file
from specsim.commands.options import CacheOption
from specsim.files import save_json
from specsim.verdict import PASS, USAGE

if TYPE_CHECKING:
    from specsim.lifting.cache import Cache

FORMAT = "specsim.doctor/1"
PYTHON_MIN = (3, 11)
PROBE_SECONDS = 120.0
# What a child says of torch and triton: that they are installed does not mean that they can be imported.
_PROBE = """
import json, os
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda, "gpus": gpus}))
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that specsim uses.

    `name`    of it
    `found`   version, place or count; "" when it is missing
    `why`     what it is for, or what is wrong with it
    `add`     the command that adds it; "" when it is there, or when no command can
    `needed`  whether nothing works without it
    """

    name: str
    found: str
    why: str
    add: str = ""
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Working:
    """A tier on a device: whether it works, or why it does not."""

    tier: str
    device: str
    works: bool
    note: str


def doctor(
    json_file: Annotated[Path | None, output_file("--json", help="Write what it says to this file.")] = None,
    cache_dir: CacheOption = None,
) -> None:
    """Say what is installed here, which tiers and devices work, and what adds each missing piece. Exit code 2 when
    specsim cannot check anything here.
    """
    from specsim.lifting.cache import open_cache
    from specsim.report.terminal import print_doctor

    cache = open_cache(cache_dir)
    imported, problem = probe()
    pieces = [*_python(imported, problem), *_programs(), *_gpu(imported), *_cached(cache)]
    working = tiers(imported, problem)
    data = {"format": FORMAT, "pieces": [asdict(p) for p in pieces], "tiers": [asdict(w) for w in working]}
    if json_file is not None:
        save_json(json_file, data)
    print_doctor(data)
    raise typer.Exit(USAGE if any(piece.needed and not piece.found for piece in pieces) else PASS)


def probe() -> tuple[dict[str, Any], str]:
    """What torch and triton say of themselves, in a process of their own; or {} and the last line of the error."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired:
        return {}, f"importing torch and triton takes more than {PROBE_SECONDS:g} s"
    try:
        answer: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}, (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
    return answer, ""


def tiers(imported: dict[str, Any], problem: str) -> list[Working]:
    """Which tier works on which device."""
    gpus = imported.get("gpus", [])
    no_gpu = "torch sees no GPU" if imported else problem
    return [
        Working("ops", "cpu", bool(imported), problem or "interpreted"),
        Working("ops", "cuda", bool(gpus), ", ".join(gpus) or no_gpu),
        Working("scheduler", "cpu", bool(imported), problem or "of the model, releases and checkouts"),
    ]


def _python(imported: dict[str, Any], problem: str) -> Iterator[Piece]:
    version = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info >= PYTHON_MIN
    yield Piece(DISTRIBUTION, _version(DISTRIBUTION) or "a source tree", "this package", _other_package())
    yield Piece("python", version if is_new else "", f"{'.'.join(map(str, PYTHON_MIN))} or newer", needed=True)
    for name in ("torch", "triton"):
        found = str(imported.get(name, ""))
        yield Piece(name, found, problem or "kernels and the reference", "" if found else _pip(name), needed=True)
    for names, why in (
        ("numpy hypothesis typer rich packaging", "specsim itself"),
        ("xgrammar llguidance", "grammars of engines behind the reference's protocol"),
        ("pytest", "the pytest plugin and the test-suite"),
        ("ray", "specsim fuzz --ray"),
        ("playwright", "tests of pages in a browser"),
    ):
        for name in names.split():
            found = _version(name)
            yield Piece(name, found, why, "" if found else _pip(name), needed=why == "specsim itself")


def _other_package() -> str:
    """The command that removes the other package that is imported as specsim; "" where there is none."""
    if not _version("specsim"):
        return ""
    pip = shlex.join([sys.executable, "-m", "pip"])
    return f"{pip} uninstall -y specsim {DISTRIBUTION}; {pip} install {DISTRIBUTION}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _pip(package: str) -> str:
    """The command that installs a package, in the range that specsim asks for."""
    try:
        wanted = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        wanted = []
    named = (text.split(";")[0].strip() for text in wanted)
    ranges = {re.split(r"[\[<>=!~ ]", text)[0].lower(): text for text in named}
    return shlex.join([sys.executable, "-m", "pip", "install", ranges.get(package, package)])


_PROGRAMS = (
    ("git", ("git",), "targets ENGINE@PATH#REV, bisect --repo", "apt-get install git"),
    ("C compiler", ("cc", "gcc", "clang"), "specsim dev compile", "apt-get install gcc"),
    ("chromium", ("chromium", "chromium-browser", "google-chrome"), "tests of pages", "apt-get install chromium"),
    ("nvcc", ("nvcc",), "benchmarks beside CUDA sources", "apt-get install nvidia-cuda-toolkit"),
    ("compute-sanitizer", ("compute-sanitizer",), "make sanitize-gpu", "apt-get install nvidia-cuda-toolkit"),
)


def _programs() -> Iterator[Piece]:
    for name, commands, why, add in _PROGRAMS:
        found = next(filter(None, map(shutil.which, commands)), None) or _in_cuda(commands[0])
        yield Piece(name, found, why, "" if found else add)


def _in_cuda(command: str) -> str:
    """Where the CUDA toolkit has a program that is not on PATH, "" where it does not."""
    file = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / command
    return str(file) if file.is_file() else ""


def _gpu(imported: dict[str, Any]) -> Iterator[Piece]:
    from specsim.engines.listing import gpus

    seen, used = gpus(), imported.get("gpus", [])
    yield Piece("GPU", ", ".join(seen or used), "kernels as they ship; no command adds one")
    if seen and imported and not used:
        yield Piece("torch for CUDA", "", f"torch {imported['torch']} sees no GPU", _pip("torch"))


def _cached(cache: Cache) -> Iterator[Piece]:
    from specsim.engines.packages import cached_releases
    from specsim.engines.registry import MAIN
    from specsim.engines.releases import releases_of

    have = set(cached_releases(MAIN, cache))
    known = releases_of(MAIN)
    missing = [version for version in known if version not in have]
    found = f"{len(known) - len(missing)} of {len(known)} known ones in {cache.folder}" if have else ""
    fetch = " ".join(f"--fetch {MAIN}=={version}" for version in missing)
    yield Piece(
        f"releases of {MAIN}", found, f"{MAIN}==VERSION, offline", f"specsim targets {fetch}" if missing else ""
    )
