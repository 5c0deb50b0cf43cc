"""Damage done to JSON and to bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

HOSTILE_TEXT = (
    "",
    " ",
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "a\r\nb\x00c",
    "\u202ebackwards",
    "\ud800",
    "é\u0301\U0001f600",
    "'''\"\"\"\\",
    "{0.__class__}%s%n$(touch owned)`touch owned`;touch owned",
    "<script>alert(1)</script>]]>--><!--",
    "[bold red]markup[/] ::error::x",
    "../../outside/file",
    "../outside/file",
    "x" * 100_000,
    "a/b\n    import os",
    "-1",
    "--help",
    "NaN",
    "1e999",
)
TARGETS = (
    "model",
    "evil:provider",
    "evil:missing",
    "os:system",
    "sys:exit",
    "nosuchmodule:thing",
    "sglang==0.0.0",
    "sglang==999999999.1",
    "sglang@.",
    "sglang@folder",
    "sglang@loop",
    "sglang@fifo",
    "sglang@file#HEAD",
    "sglang@.#--upload-pack=touch owned",
    "vllm@folder",
    "sgl-kernel@file",
    "flashinfer@folder",
    "model with mutant A01",
    "",
)
NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    3,
    255,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(2**63) - 1,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
)
SHAPES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [{}], {"": None}, [None] * 3, {"a": {"b": {"c": []}}})
JSON_SHAPES = ("null", "0", "[]", "{}", '""', "[1, 2]", '{"a": [null]}', "NaN", "1e999", "[[[", '{"a"', "\x00", "true")


def value(random_: random.Random) -> Any:
    """A value that nobody expects."""
    kind = random_.randrange(10)
    if kind < 3:
        return random_.choice(NUMBERS)
    if kind < 6:
        return random_.choice(HOSTILE_TEXT)
    if kind < 8:
        return copy.deepcopy(random_.choice(SHAPES))
    if kind == 8:
        return [random_.choice(NUMBERS) for _ in range(random_.choice((1, 3, 1000)))]
    nested: Any = random_.choice(NUMBERS)
    for _ in range(random_.choice((3, 50, 600))):
        nested = [nested] if random_.random() < 0.5 else {"a": nested}
    return nested


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below `data`."""
    if isinstance(data, dict):
        for key in data:
            yield data, key
            yield from places(data[key])
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield data, index
            yield from places(item)


def damaged(random_: random.Random, data: Any) -> Any:
    """A copy of JSON with one to four places changed. Those near the top are as likely as those far below together."""
    changed = copy.deepcopy(data)
    for _ in range(random_.choice((1, 1, 1, 2, 4))):
        found = list(places(changed))
        top = [(changed, key) for key in changed] if isinstance(changed, dict) else []
        container, key = random_.choice(top if top and random_.random() < 0.5 else found or [({"": 0}, "")])
        _change(random_, container, key)
    return changed


def _change(random_: random.Random, container: Any, key: Any) -> None:
    was = container[key]
    what = random_.randrange(9)
    if what < 4:
        container[key] = value(random_)
    elif what == 4:
        del container[key]
    elif what == 5 and isinstance(was, list):
        container[key] = was * random_.choice((0, 2, 100)) or [value(random_)]
    elif what == 6 and isinstance(was, list) and was:
        was.insert(random_.randrange(len(was)), value(random_))
    elif what == 7 and isinstance(container, dict):
        container[random_.choice(HOSTILE_TEXT[:14])] = was
    elif isinstance(was, int) and not isinstance(was, bool):
        container[key] = was + random_.choice((-1, 1, 7, -1000, 10**6))
    else:
        container[key] = [was] if random_.random() < 0.5 else str(was)


def as_text(random_: random.Random, data: Any) -> bytes:
    """JSON as bytes, in one case of eight as no JSON reader wants them."""
    text = json.dumps(data, ensure_ascii=random_.random() < 0.7)
    content = text.encode("utf-8", "surrogatepass")
    kind = random_.randrange(8 * 9)
    broken: dict[int, Callable[[], bytes]] = {
        0: lambda: content[: random_.randrange(len(content) + 1)],
        1: lambda: b"[" * 200_000,
        2: lambda: b'{"a":' * 100_000,
        3: lambda: text.encode("utf-16", "surrogatepass"),
        4: lambda: b"\xef\xbb\xbf" + content,
        5: lambda: flipped(random_, content),
        6: lambda: content + b"\x00" * 100 + content,
        7: lambda: content.replace(b": 0", b": " + b"9" * 5000, 3),
        8: lambda: b"",
    }
    return broken[kind]() if kind in broken else content


def flipped(random_: random.Random, content: bytes) -> bytes:
    """The bytes with some of them changed, a part gone, or a part twice."""
    changed = bytearray(content)
    for _ in range(random_.choice((1, 2, 8, 64))):
        if not changed:
            break
        at = random_.randrange(len(changed))
        what = random_.randrange(5)
        if what < 3:
            changed[at] = random_.choice((0, 1, 0xFF, 0x80, random_.randrange(256)))
        elif what == 3:
            del changed[at : at + random_.choice((1, 4, 100))]
        else:
            changed[at:at] = changed[at : at + random_.choice((1, 4, 100))]
    return bytes(changed)
