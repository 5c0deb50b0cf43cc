"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specsim.errors import UsageError


def write_text(file: Path, text: str) -> None:
    """Write `file` as UTF-8, and the folders above it. Half of a surrogate pair, which UTF-8 cannot say, becomes the
    escape by which JSON says it. Raises UsageError where the file cannot be written; what it held before is kept.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        temporary.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UsageError(
            f"cannot write {file} ({error.strerror})", "name a file in a folder that can be written"
        ) from error


def write_json(file: Path, data: Mapping[str, Any]) -> None:
    """Write `data` as JSON, as `write_text` does."""
    write_text(file, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
