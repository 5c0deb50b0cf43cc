"""What can be tested on this machine, at which tier, and why the rest cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
from typing import Any

from specsim.engines.packages import cached_packages, cached_releases
from specsim.engines.registry import ENGINES, MAIN
from specsim.lifting.cache import Cache

FORMAT = "specsim.targets/1"


def list_targets(cache: Cache) -> dict[str, Any]:
    """The targets, JSON-ready: {"format", "cache", "devices", "targets": [{"target", "tiers", "note"}], "not_run":
    [{"what", "why"}]}.
    """
    not_run: list[dict[str, str]] = []
    found = gpus()
    if not found:
        not_run.append({"what": "device cuda", "why": "nvidia-smi finds no GPU; kernels are interpreted on the CPU"})
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        why = f"{' and '.join(missing)} not installed; install specsim with its dependencies"
        not_run.append({"what": "tier ops", "why": why})
    of_own = [] if missing else ["ops", "scheduler"]
    targets = [
        {"target": "model", "tiers": of_own, "note": "the built-in engine with specsim's own kernels"},
        *_of_main(cache, not missing),
        *_of_packages(cache, not missing, bool(found)),
        {
            "target": "module:object",
            "tiers": of_own,
            "note": "your own: a mapping of operations to functions, or an engine",
        },
    ]
    return {
        "format": FORMAT,
        "cache": str(cache.folder),
        "devices": ["cpu", *found],
        "targets": targets,
        "not_run": not_run,
    }


def _of_main(cache: Cache, can_run: bool) -> list[dict[str, Any]]:
    """The releases in the cache, an installed one, and how others are written."""
    tiers = list(ENGINES[MAIN].subjects) if can_run else []
    listed = [
        {"target": f"{MAIN}=={version}", "tiers": tiers, "note": "in the cache"}
        for version in cached_releases(MAIN, cache)
    ]
    installed = _installed(MAIN)
    if installed:
        path, version = installed
        listed.append({"target": f"{MAIN}@{path}", "tiers": tiers, "note": f"installed, version {version}"})
    return [
        *listed,
        {
            "target": f"{MAIN}==VERSION",
            "tiers": tiers,
            "note": "any release; fetched once, as a wheel, when it is checked",
        },
        {"target": f"{MAIN}@PATH", "tiers": tiers, "note": "a checkout or an unpacked wheel"},
        {
            "target": f"{MAIN}@PATH#REV",
            "tiers": tiers,
            "note": "a git revision of a checkout, read without touching it",
        },
    ]


def _of_packages(cache: Cache, can_run: bool, has_gpu: bool) -> list[dict[str, Any]]:
    """The other engines and packages: those in the cache, and how they are written."""
    others = [name for name in ENGINES if name != MAIN]
    tiers_of = {package: list(ENGINES[package].subjects) if can_run else [] for package in others}
    listed = [
        {
            "target": f"{package}=={version}",
            "tiers": tiers_of[package],
            "note": f"in the cache; {ENGINES[package].note}",
        }
        for package, version in cached_packages(cache)
    ]
    for package in others:
        forms = "sgl-kernel@PATH" if package == "sgl-kernel" else f"{package}==VERSION, {package}@PATH"
        needs_gpu = ENGINES[package].source is None and not has_gpu
        note = ENGINES[package].note + ("; not run here: there is no GPU" if needs_gpu else "")
        listed.append({"target": forms, "tiers": tiers_of[package], "note": note})
    return listed


def _installed(package: str) -> tuple[str, str] | None:
    """Folder and version of an installed package, without importing it."""
    try:
        version = importlib.metadata.version(package)
        spec = importlib.util.find_spec(package)
    except (importlib.metadata.PackageNotFoundError, ValueError, ImportError):
        return None
    folders = list(spec.submodule_search_locations or []) if spec else []
    return (folders[0], version) if folders else None


def gpus() -> list[str]:
    """The GPUs that nvidia-smi lists, by number and name; none where it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = [line.strip() for line in listed.stdout.splitlines() if line.strip()] if listed.returncode == 0 else []
    return [f"cuda:{i} {name}" for i, name in enumerate(names)]
