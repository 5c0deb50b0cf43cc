"""Other packages than SGLang: what is kept of their wheels, and who makes their providers.

Their wheels are hundreds of megabytes, of which little is read: what is needed goes into a zip of its own in the cache,
`packages/NAME-VERSION.zip`, and the wheel is not kept. Nothing of it is installed, and no Python of it is imported.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.errors import UsageError
from specsim.files import write_bytes
from specsim.lifting.archive import LIBRARY_BYTES_MAX, ArchiveError, open_archive, read_member
from specsim.lifting.checksums import note, require_noted
from specsim.lifting.fetch import download, run_pip
from specsim.lifting.target import CheckoutTarget, PackageTarget, ReleaseTarget

if TYPE_CHECKING:
    from specsim.contracts.provider import Provider
    from specsim.lifting.cache import Cache
    from specsim.lifting.fetch import PipRunner
    from specsim.lifting.target import Target

FOLDER = "packages"


@dataclass(frozen=True, slots=True)
class Kept:
    """`index_name` is what pip calls the package, `entries` what of a wheel is kept, `note` what it is good for.
    `maker` is the function that makes its provider of a target, the path of what was fetched (or None) and the cache.
    """

    index_name: str
    entries: re.Pattern[str]
    note: str
    maker: tuple[str, str]


_METADATA = r"[^/]+\.dist-info/METADATA"
_CUDA = Kept(
    "sglang-kernel",
    re.compile(rf"sgl_kernel/(sm\d+/)?common_ops\.abi3\.so|{_METADATA}"),
    "its CUDA operations, on a GPU",
    ("specsim.engines.packages", "sgl_kernel_provider"),
)
KEPT = {
    "vllm": Kept(
        "vllm",
        re.compile(rf"vllm/v1/.*\.py|{_METADATA}"),
        "its rejection sampling and EAGLE input kernels",
        ("specsim.engines.vllm.provider", "vllm_provider"),
    ),
    "sglang-kernel": _CUDA,
    "sgl-kernel": _CUDA,
    "flashinfer": Kept(
        "flashinfer-python",
        re.compile(rf"flashinfer/data/include/.*|{_METADATA}"),
        "its sampling, built on a GPU by nvcc",
        ("specsim.engines.flashinfer.provider", "flashinfer_provider"),
    ),
}


def package_provider(target: PackageTarget, cache: Cache) -> Provider:
    """The provider of a package's release or path. UsageError when it cannot be fetched or is not there."""
    module, name = KEPT[target.package].maker
    make: Callable[..., Any] = getattr(importlib.import_module(module), name)
    provider: Provider = make(target, cache)
    return provider


def sgl_kernel_provider(target: PackageTarget, cache: Cache) -> Provider:
    """The provider of sglang-kernel's CUDA operations."""
    from specsim.engines.sgl_kernel import SglKernelProvider

    if target.path:
        located(target, cache)  # a path that does not exist is bad input on every machine
    return SglKernelProvider(target.text, lambda: located(target, cache), cache)


def located(target: PackageTarget, cache: Cache) -> Path:
    """The path of a target, for a release what is kept of its wheel; fetched where the cache lacks it."""
    if target.version:
        return fetch_package(target.package, target.version, cache)
    path = Path(os.path.expanduser(target.path)).absolute()
    if not path.exists():
        raise UsageError(
            f"{target.text}: the path {target.path} does not exist",
            f"a release is written {target.package}==VERSION; else give a wheel, or a folder with what is in one",
        )
    return path


def prepare(target: Target, cache: Cache, on_gpu: bool) -> None:
    """Fetch and build what a check of the target will need, which may take longer than a child may take to start: of
    what runs on a GPU alone nothing elsewhere.
    """
    if isinstance(target, PackageTarget):
        if target.version and (on_gpu or target.package == "vllm"):
            fetch_package(target.package, target.version, cache)
        if on_gpu and target.package == "flashinfer":
            from specsim.engines.flashinfer.launcher import built

            built(located(target, cache), cache)
    elif on_gpu and isinstance(target, ReleaseTarget | CheckoutTarget):
        from specsim.engines.sglang.cuda_sources import prepare as prepare_sources
        from specsim.lifting.source import open_source

        prepare_sources(open_source(target, cache), cache)


def fetch_package(package: str, version: str, cache: Cache, *, pip: PipRunner = run_pip) -> Path:
    """What is kept of a release: the cached zip, else fetched with pip. UsageError when pip cannot deliver it."""
    kept = KEPT[package]
    place = f"{FOLDER}/{kept.index_name}-{version}.zip"
    stored = cache.path(place)
    if stored.is_file() and zipfile.is_zipfile(stored):
        require_noted(stored, stored)
        return stored
    with cache.scratch() as scratch:
        download(kept.index_name, version, cache, scratch, pip)
        wheels = sorted(scratch.glob("*.whl"))
        if len(wheels) != 1 or not zipfile.is_zipfile(wheels[0]):
            raise UsageError(
                f"pip ended well but left {len(wheels)} wheels for {kept.index_name}=={version}",
                "fetch the wheel by hand and give its path",
            )
        slim = scratch / "slim.zip"
        try:
            write_bytes(slim, _slim(wheels[0], kept))
        except ArchiveError as error:
            raise UsageError(
                f"pip delivered {wheels[0].name}, but {error}", "fetch the wheel by hand and give its path"
            ) from error
        cache.store_file(place, slim)
        note(stored, stored)
        return stored


def _slim(wheel: Path, kept: Kept) -> bytes:
    content = io.BytesIO()
    with open_archive(wheel) as source, zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as slim:
        for name in dict.fromkeys(source.namelist()):
            if kept.entries.fullmatch(name):
                slim.writestr(name, read_member(source, name, LIBRARY_BYTES_MAX))
    return content.getvalue()


def cached_packages(cache: Cache) -> list[tuple[str, str]]:
    """(package, version) of what the cache has, in order."""
    found: list[tuple[str, str]] = []
    for package, kept in KEPT.items():
        if package == "sgl-kernel":
            continue
        try:
            paths = sorted((cache.folder / FOLDER).glob(f"{kept.index_name}-*.zip"))
        except OSError:
            paths = []
        found += [(package, path.stem.removeprefix(f"{kept.index_name}-")) for path in paths]
    return found
