"""What the user types as TARGET, parsed.

| TARGET | read as |
|---|---|
| `model` | the built-in engine with specsim's own kernels |
| `sglang==VERSION` | a release, fetched once as a wheel |
| `sglang@PATH` | a checkout of the repository, an unpacked wheel or the package folder |
| `sglang@PATH#REV` | a git revision of it, read without touching the work tree; `REV...` is where HEAD left REV |
| `vllm==VERSION`, `vllm@PATH`, `vllm@PATH#REV` | the same of vLLM: its operations alone |
| `sglang-kernel==VERSION`, `sgl-kernel@PATH` | the CUDA operations of a wheel, a folder or one library |
| `flashinfer==VERSION`, `flashinfer@PATH` | FlashInfer's sampling, built from its headers |
| `module:object` | a provider of the user's own |

Parsing is pure: no file, no network. It accepts only a version that is safe to hand to pip, and only a
revision that git cannot take for an option. The last `#` of a checkout starts the revision, so a folder whose
name has a `#` in it can only be given through a link.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from specsim.engines.registry import ENGINES
from specsim.errors import UsageError
from specsim.lifting.versions import VERSION_TEXT, is_version

FORMS = ("model", "sglang==VERSION", "sglang@PATH", "sglang@PATH#REV", "module:object")
PACKAGES = tuple(name for name in ENGINES if name != "sglang")
"""Beside SGLang, those whose operations specsim knows."""

_NEAR_RELEASE = re.compile(rf"(?:sglang)?\s*(?:[=~<>!]*|[-_:@/ ])?\s*v?(?P<version>{VERSION_TEXT})", re.IGNORECASE)
_NEAR_CHECKOUT = re.compile(r"sglang\s*@\s*(?P<path>.+)", re.IGNORECASE)
_OTHER_PACKAGE = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9._-]*)\s*(?:[=~<>!]=?|@).*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """The built-in engine with specsim's own kernels."""

    @property
    def text(self) -> str:
        return "model"


@dataclass(frozen=True, slots=True)
class ReleaseTarget:
    """A released SGLang, by its exact version."""

    version: str

    @property
    def text(self) -> str:
        return f"sglang=={self.version}"


@dataclass(frozen=True, slots=True)
class CheckoutTarget:
    """A folder with SGLang in it, as it lies there (`revision` None) or at a git revision."""

    path: str
    revision: str | None = None

    @property
    def text(self) -> str:
        return f"sglang@{self.path}" if self.revision is None else f"sglang@{self.path}#{self.revision}"


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """An object in an importable module: the user's own provider."""

    module: str
    object: str

    @property
    def text(self) -> str:
        return f"{self.module}:{self.object}"


@dataclass(frozen=True, slots=True)
class PackageTarget:
    """Another package than SGLang: a release, `version` not "", or what lies at `path`, at a git revision of it where
    `revision` is one.
    """

    package: str  # of PACKAGES
    version: str = ""
    path: str = ""
    revision: str | None = None

    @property
    def text(self) -> str:
        if self.version:
            return f"{self.package}=={self.version}"
        return f"{self.package}@{self.path}" + ("" if self.revision is None else f"#{self.revision}")


Target: TypeAlias = ModelTarget | ReleaseTarget | CheckoutTarget | PythonTarget | PackageTarget


def parse_target(text: str) -> Target:
    """The target that `text` names. `parse_target(target.text) == target` for every target that it returns.

    Raises `UsageError`, which says what was most likely meant, for anything else.
    """
    text = text.strip()
    if _CONTROL.search(text):
        raise _refused(text, "has a control character in it")
    if text == "model":
        return ModelTarget()
    if text.startswith("sglang=="):
        version = text.removeprefix("sglang==")
        if is_version(version):
            return ReleaseTarget(version)
        raise _refused(text, f"has no version after ==: {version!r}", _hint(text))
    if text.startswith("sglang@"):
        return CheckoutTarget(*_parse_path(text, "sglang"))
    for package in PACKAGES:
        if text.startswith((f"{package}==", f"{package}@")):
            return _parse_package(text, package)
    module, colon, name = text.partition(":")
    if colon and _is_dotted(module) and _is_dotted(name):
        return PythonTarget(module, name)
    raise _refused(text, "is not a target", _hint(text))


def _parse_package(text: str, package: str) -> PackageTarget:
    version = text.removeprefix(f"{package}==")
    if version != text:
        if is_version(version):
            return PackageTarget(package, version)
        raise _refused(text, f"has no version after ==: {version!r}")
    path, revision = _parse_path(text, package)
    if revision is not None and ENGINES[package].source is None:
        raise _refused(text, "has a revision, and is no Python source", f"did you mean {package}@{path}?")
    return PackageTarget(package, path=path, revision=revision)


def _parse_path(text: str, package: str) -> tuple[str, str | None]:
    """The path and the revision of PACKAGE@PATH and PACKAGE@PATH#REV."""
    path, hash_sign, revision = text.removeprefix(f"{package}@").rpartition("#")
    if not hash_sign:
        path, revision = revision, ""
    if not path:
        raise _refused(text, "has no path after @")
    if not hash_sign:
        return path, None
    if not revision:
        raise _refused(text, "has no revision after #", f"did you mean {package}@{path}?")
    if revision.startswith("-"):
        raise _refused(text, f"has a revision that starts with '-': {revision!r}")
    return path, revision


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _refused(text: str, problem: str, hint: str = "") -> UsageError:
    allowed = f"llowed are {', '.join(FORMS[:-1])}, such of {', '.join(PACKAGES)}, and {FORMS[-1]}"
    return UsageError(f"TARGET {text!r} {problem}", f"{hint} A{allowed}" if hint else f"a{allowed}")


def _hint(text: str) -> str:
    """What was most likely meant by a text that is no target, as a sentence, or ""."""
    if near := _NEAR_RELEASE.fullmatch(text):
        return f"did you mean sglang=={near['version'].lower()}?"
    if near := _NEAR_CHECKOUT.fullmatch(text):
        return f"did you mean sglang@{near['path']}?"
    other = _OTHER_PACKAGE.fullmatch(text)
    name = other["name"].lower() if other else ""
    meant = difflib.get_close_matches(name, ENGINES, n=1, cutoff=0.7)
    if name not in ENGINES and meant:
        return f"did you mean {meant[0]}{text[len(name) :].strip()}?"
    if re.match(r"sglang\b", text, re.IGNORECASE):
        return "write the exact number of a release after sglang==."
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return f"did you mean sglang@{text}?"
    if other:
        return f"specsim reads no {other['name']}; it needs a provider of your own, module:object."
    if difflib.get_close_matches(text.lower(), ["model"], cutoff=0.6):
        return "did you mean model?"
    path, _, name = text.rpartition(":")
    if path.endswith(".py") and _is_dotted(name):
        module = path.removesuffix(".py").lstrip("./").replace("/", ".")
        return f"did you mean {module}:{name}, a module and not a file?"
    if _is_dotted(text) and Path(f"{text}.py").is_file():
        return f"did you mean {text}:provider, an object of that module?"
    if "." in text and _is_dotted(text):
        return f"did you mean {':'.join(text.rsplit('.', 1))}?"
    if "/" in text:
        return f"did you mean sglang@{text}?"
    return ""
