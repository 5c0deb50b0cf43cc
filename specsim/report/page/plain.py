"""Values as a page may show them: nothing that a browser, a terminal or a reader takes for something else."""

from __future__ import annotations

import json
import math
import re
from typing import Any

TEXT_MAX = 4000
_SAFE_INTEGER = 2**53
# Controls, what changes direction or cannot be seen, and halves of surrogate pairs.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


# What the runner of GitHub's workflows takes for a command: ##[ anywhere in a line, :: at its start.
_COMMAND = re.compile(r"#(?=\[)(?<=##)|^(?=\s*::)")


def visible(text: str, most: int = TEXT_MAX) -> str:
    """`text` with every character that cannot be seen spelled out, and cut after `most`; no runner of workflows takes
    it for a command.
    """
    if len(text) > most:
        text = f"{text[:most]} ... ({len(text) - most} more characters)"
    text = _HIDDEN.sub(lambda found: _spelled(found[0]), text)
    return _COMMAND.sub(lambda found: "\\x23" if found[0] else "\\", text)


def _spelled(character: str) -> str:
    number = ord(character)
    known = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    return known or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")


def plain(value: Any) -> Any:
    """`value` as JSON that a browser reads back as it is: see the package's docstring."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < _SAFE_INTEGER else visible(str(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {visible(str(key)): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]


def in_html(payload: Any) -> str:
    """JSON that can stand in a script element: no character of it is one of markup's."""
    text = json.dumps(payload, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
