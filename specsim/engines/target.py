"""What the user types as TARGET, parsed.

| TARGET | read as |
|---|---|
| `model` | the built-in engine with specsim's own kernels |
| `ENGINE==VERSION` | a release of an engine or a package of kernels (`registry.ENGINES`), fetched once as a wheel |
| `ENGINE@PATH` | a checkout of its repository, an unpacked wheel, the package folder; of what is no Python a library |
| `ENGINE@PATH#REV` | a git revision of it, read without touching the work tree; `REV...` is where HEAD left REV |
| `module:object` | a provider or an engine of the user's own |

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

from specsim.engines.registry import ENGINES, MAIN
from specsim.errors import UsageError
from specsim.lifting.versions import VERSION_TEXT, is_version

FORMS = ("model", f"{MAIN}==VERSION", f"{MAIN}@PATH", f"{MAIN}@PATH#REV", "module:object")

_NEAR_RELEASE = re.compile(rf"(?:{MAIN})?\s*(?:[=~<>!]*|[-_:@/ ])?\s*v?(?P<version>{VERSION_TEXT})", re.IGNORECASE)
_NEAR_CHECKOUT = re.compile(rf"{MAIN}\s*@\s*(?P<path>.+)", re.IGNORECASE)
_OTHER_PACKAGE = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9._-]*)\s*(?:[=~<>!]=?|@).*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """The built-in engine with specsim's own kernels."""

    @property
    def text(self) -> str:
        return "model"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of an engine, by its exact version."""

    engine: str  # of ENGINES
    version: str

    @property
    def text(self) -> str:
        return f"{self.engine}=={self.version}"


@dataclass(frozen=True, slots=True)
class Checkout:
    """What lies at a path: a folder with an engine in it, as it is (`revision` None) or at a git revision; of what is
    no Python a wheel, a folder or a library.
    """

    engine: str  # of ENGINES
    path: str
    revision: str | None = None

    @property
    def text(self) -> str:
        return f"{self.engine}@{self.path}" + ("" if self.revision is None else f"#{self.revision}")


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """An object in an importable module: the user's own provider or engine."""

    module: str
    object: str

    @property
    def text(self) -> str:
        return f"{self.module}:{self.object}"


Target: TypeAlias = ModelTarget | Release | Checkout | PythonTarget


def parse_target(text: str) -> Target:
    """The target that `text` names. `parse_target(target.text) == target` for every target that it returns.

    Raises `UsageError`, which says what was most likely meant, for anything else.
    """
    text = text.strip()
    if _CONTROL.search(text):
        raise _refused(text, "has a control character in it")
    if text == "model":
        return ModelTarget()
    for engine in ENGINES:
        if text.startswith((f"{engine}==", f"{engine}@")):
            return _parse_engine(text, engine)
    module, colon, name = text.partition(":")
    if colon and _is_dotted(module) and _is_dotted(name):
        return PythonTarget(module, name)
    raise _refused(text, "is not a target", _hint(text))


def _parse_engine(text: str, engine: str) -> Release | Checkout:
    version = text.removeprefix(f"{engine}==")
    if version != text:
        if is_version(version):
            return Release(engine, version)
        raise _refused(text, f"has no version after ==: {version!r}", _hint(text) if engine == MAIN else "")
    path, revision = _parse_path(text, engine)
    if revision is not None and ENGINES[engine].source is None:
        raise _refused(text, "has a revision, and is no Python source", f"did you mean {engine}@{path}?")
    return Checkout(engine, path, revision)


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
    others = ", ".join(name for name in ENGINES if name != MAIN)
    allowed = f"llowed are {', '.join(FORMS[:-1])}, such of {others}, and {FORMS[-1]}"
    return UsageError(f"TARGET {text!r} {problem}", f"{hint} A{allowed}" if hint else f"a{allowed}")


def _hint(text: str) -> str:
    """What was most likely meant by a text that is no target, as a sentence, or ""."""
    if near := _NEAR_RELEASE.fullmatch(text):
        return f"did you mean {MAIN}=={near['version'].lower()}?"
    if near := _NEAR_CHECKOUT.fullmatch(text):
        return f"did you mean {MAIN}@{near['path']}?"
    other = _OTHER_PACKAGE.fullmatch(text)
    name = other["name"].lower() if other else ""
    meant = difflib.get_close_matches(name, ENGINES, n=1, cutoff=0.7)
    if name not in ENGINES and meant:
        return f"did you mean {meant[0]}{text[len(name) :].strip()}?"
    if re.match(rf"{MAIN}\b", text, re.IGNORECASE):
        return f"write the exact number of a release after {MAIN}==."
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return f"did you mean {MAIN}@{text}?"
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
        return f"did you mean {MAIN}@{text}?"
    return ""
