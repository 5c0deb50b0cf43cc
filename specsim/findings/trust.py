"""Which code a file chooses to run. A replay file names a target, a store names several.

A release and a checkout are said before they are run. `module:object` is refused unless whoever runs it named it, or
trusts the file: it is any module that Python finds, the folder that the file came in included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from specsim.engines.target import ModelTarget, PythonTarget, parse_target
from specsim.errors import UsageError


def require_named(
    file: object, texts: Iterable[str], named: Collection[str], remedy: str, *, trust: bool = False
) -> list[str]:
    """Of the targets that a file chooses, those whose code is run and that nobody `named`. UsageError for one of them
    that is a `module:object`, without `trust` in the file; `remedy` says how to allow it, with its name in place of {}.
    """
    chosen = []
    for text in dict.fromkeys(texts):
        if text in named:
            continue
        target = parse_target(text)
        if isinstance(target, ModelTarget):
            continue
        if isinstance(target, PythonTarget) and not trust:
            raise UsageError(
                f"{file} names {target.text}, and running it runs the code of that module",
                remedy.format(target.text),
            )
        chosen.append(target.text)
    return chosen
