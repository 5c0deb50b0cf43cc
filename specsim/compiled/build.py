"""Building: the sources are rewritten in a folder of their own, mypyc and the C compiler run there, and what they made
is renamed into the cache as a whole. An interrupted build leaves nothing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from specsim import DISTRIBUTION
from specsim.compiled.finder import FOLDER, MANIFEST, PACKAGE, RefusedBuildError, key, read_build
from specsim.compiled.sources import modules, rewritten
from specsim.errors import UsageError
from specsim.files import make_folder, write_json, write_text
from specsim.isolation import processes
from specsim.lifting.cache import Cache
from specsim.lifting.checksums import sha256_of

OPT_LEVEL = "1"

_SETUP = """
from setuptools import setup
from mypyc.build import mypycify
extensions = mypycify({arguments!r}, opt_level={opt_level!r}, debug_level="0")
setup(name="specsim-compiled", packages=[], ext_modules=extensions)
"""


def find_build(cache: Cache) -> Path | None:
    """The folder of the build of the installed sources; None when there is none, or none that is imported."""
    folder = cache.path(f"{FOLDER}/{key()}")
    try:
        return folder if read_build(folder) else None
    except RefusedBuildError:
        return None


def build(cache: Cache, opt_level: str = OPT_LEVEL) -> Path:
    """Compile the installed sources into the cache; returns the folder. Older builds of the same installation and
    Python go. UsageError without mypyc, setuptools or a C compiler, and when compiling fails.
    """
    _require_tools()
    built_key = key()
    compiled = modules(PACKAGE)
    with cache.scratch() as scratch:
        source, made = scratch / "source", scratch / "made"
        shutil.copytree(PACKAGE, source / "specsim", ignore=shutil.ignore_patterns("__pycache__"))
        paths = []
        for module, path in compiled.items():
            relative = Path("specsim") / path.relative_to(PACKAGE)
            text = path.read_text(encoding="utf-8")
            write_text(source / relative, rewritten(text, module))
            paths.append(str(relative))
        arguments = [
            "--strict",
            "--follow-imports=silent",
            "--no-warn-unused-ignores",
            "--no-warn-redundant-casts",
            *paths,
        ]
        setup = _SETUP.format(arguments=arguments, opt_level=opt_level)
        write_text(source / "setup.py", setup)
        _run([sys.executable, "setup.py", "build_ext", "--build-lib", str(made)], source)
        if key() != built_key:
            raise UsageError("the sources of specsim changed while they were compiled", "run specsim dev compile again")
        mypyc = importlib.metadata.version("mypy")
        manifest = {"package": str(PACKAGE), "python": sys.version, "mypyc": mypyc, "files": _files(made)}
        write_json(made / MANIFEST, manifest)
        folder = cache.path(f"{FOLDER}/{built_key}")
        _replace(made, folder, scratch)
    _drop_older(cache, folder)
    return folder


def _require_tools() -> None:
    missing = [name for name in ("mypyc", "setuptools") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{' and '.join(missing)} is not installed", f"pip install '{DISTRIBUTION}[compiled]'")
    compiler = shlex.split(os.environ.get("CC", "") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        raise UsageError(f"the C compiler {compiler!r} is not there", "install one, or name another one in CC")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise UsageError(f"Python's headers are not there: no {header}", "install them, such as python3-dev")


def _run(command: list[str], folder: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = processes.run(command, environment=environ, cwd=folder)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        raise UsageError(
            f"compiling failed: {' | '.join(said[:3]) or 'no reason given'}", "use it in Python, or report this"
        )


def _files(made: Path) -> dict[str, dict[str, str]]:
    """The extension modules by import name: each file as a path in the build, and its SHA-256."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    found = {path.relative_to(made).as_posix(): sha256_of(path) for path in sorted(made.rglob(f"*{suffix}"))}
    return {
        name.removesuffix(suffix).replace("/", "."): {"file": name, "sha256": digest} for name, digest in found.items()
    }


def _replace(made: Path, folder: Path, scratch: Path) -> None:
    """Put a build in its place, also where an older one of the same key is."""
    make_folder(folder.parent)
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder, scratch / "older")
    os.replace(made, folder)


def _drop_older(cache: Cache, kept: Path) -> None:
    for manifest in sorted(cache.path(FOLDER).glob(f"*/{MANIFEST}")):
        try:
            known = json.loads(manifest.read_text(encoding="utf-8"))
            is_of_this = (known["package"], known["python"]) == (str(PACKAGE), sys.version)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # not written by a build: left alone
            continue
        if manifest.parent != kept and is_of_this:
            shutil.rmtree(manifest.parent, ignore_errors=True)
