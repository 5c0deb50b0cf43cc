"""`[tool.specsim]` in the pyproject.toml of a project: what `specsim check` takes where the command line does not say.

The nearest pyproject.toml upward of the working folder that has the table is read, and no other. Paths in it are
relative to its folder. The command line wins; `--isolated` reads none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specsim.errors import UsageError, did_you_mean
from specsim.files import read_toml

FILE = "pyproject.toml"
KEYS = {  # of the table: the parameter of `check` that it stands for
    "target": "target",
    "budget": "budget_seconds",
    "cases": "cases",
    "schedules": "schedules",
    "attempts": "attempts",
    "select": "select",
    "ignore": "ignore",
    "fail-on": "fail_on",
    "baseline": "baseline",
}
_LISTS = ("target", "select", "ignore")
_COUNTS = ("cases", "schedules", "attempts")
_NUMBERS: Mapping[str, tuple[Any, str]] = {
    "budget": (int | float, "give seconds, as a number"),
    **dict.fromkeys(_COUNTS, (int, "give a whole number")),
}
_CHECKOUT = re.compile(r"(?P<package>[\w-]+)@(?P<path>[^#]+)(?P<revision>#.*)?")


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings that hold in a folder, by parameter of `check`. UsageError for a table that is wrong."""
    for parent in (folder, *folder.parents):
        table = _table(parent / FILE)
        if table is not None:
            return {KEYS[key]: _value(parent, folder, key, value) for key, value in table.items()}
    return {}


def _table(file: Path) -> Mapping[str, Any] | None:
    """The table of a file; None where there is no such file, or no such table in it."""
    if not os.path.exists(file):
        return None
    data = read_toml(file, "repair it, or give --isolated")
    tool = data.get("tool", {})
    table = tool.get("specsim") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise UsageError(f"{file}: tool.specsim is {table!r}", "make it a table: [tool.specsim]")
    for key in table:
        if key not in KEYS:
            near, allowed = did_you_mean(key, KEYS), f"keys are {', '.join(KEYS)}"
            remedy = f"{near} {allowed[:1].upper()}{allowed[1:]}" if near else allowed
            raise UsageError(f"{file}: [tool.specsim] has no key {key!r}", remedy)
    return table


def _value(project: Path, folder: Path, key: str, value: Any) -> Any:
    if key in _NUMBERS:
        allowed, remedy = _NUMBERS[key]
        if isinstance(value, allowed) and not isinstance(value, bool):
            return value
        raise _refused(project, key, value, remedy)
    texts = value if isinstance(value, list) and key in _LISTS else [value]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise _refused(project, key, value, "give a text or a list of texts" if key in _LISTS else "give a text")
    if key in ("target", "baseline"):
        texts = [_from(project, folder, text, may_be_file=key == "baseline") for text in texts]
    return texts if key in _LISTS else texts[0]


def _refused(project: Path, key: str, value: Any, remedy: str) -> UsageError:
    return UsageError(f"{project / FILE}: {key} = {value!r} in [tool.specsim]", remedy)


def _from(project: Path, folder: Path, text: str, may_be_file: bool) -> str:
    """A target or file of the project as it is named from the working folder."""
    checkout = _CHECKOUT.fullmatch(text)
    path = checkout["path"] if checkout else text
    is_path = checkout or (may_be_file and text != "model" and not re.search(r"==|:", text))
    if not is_path or folder == project or Path(path).expanduser().is_absolute():
        return text
    moved = os.path.relpath(project / path, folder)
    return f"{checkout['package']}@{moved}{checkout['revision'] or ''}" if checkout else moved


def leave_out(values: dict[str, Any], from_project: set[str]) -> None:
    """Take back settings of the project that do not go with what the command line says, in `values` by parameter."""
    counted = any(values[name] is not None and name not in from_project for name in _COUNTS)
    of_the_model = values["canary"] or (values["mutant"] and values["only"] != "scheduler")
    if values["provider"] or of_the_model:
        _take_back(values, from_project, "target")
    if values["ci"] or counted or values["canary"]:
        _take_back(values, from_project, "budget_seconds")
    if "target" not in from_project:  # the baseline is of the project's target
        _take_back(values, from_project, "baseline")


def _take_back(values: dict[str, Any], from_project: set[str], name: str) -> None:
    if name in from_project:
        values[name] = None
        from_project.discard(name)
