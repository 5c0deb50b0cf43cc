"""Which side is at fault where a lifted function raises: our objects, which are stubs of the release's, or the release.

An object of ours that lacks what the release's has, or a function of ours that is called with arguments that it does
not take, says that the adapter is to be mended. An attribute that nothing in the release defines is the release's own
mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from specsim.engines.sglang import host_objects as objects
from specsim.lifting.source import SourceTree

# Where the classes are that our objects are stubs of, and what assigns their attributes.
_DECLARING = (
    "srt/managers",
    "srt/mem_cache",
    "srt/sampling",
    "srt/session",
    "srt/speculative",
    "srt/runtime_context.py",
)
_DECLARING_FILES = ("srt/server_args.py", "srt/environ.py")

_OURS = {
    name for name, value in vars(objects).items() if isinstance(value, type) and value.__module__ == objects.__name__
}


def is_of_ours(error: Exception, declares: Callable[[str], bool]) -> bool:
    """Whether `error` is for want of something on an object of ours that the release's has. `declares(name)` says
    whether anything in the release defines an attribute of that name.
    """
    if isinstance(error, objects.StubError):
        return declares(error.attribute)
    if isinstance(error, TypeError):
        called = re.match(r"(\w+)\.\w+\(\)", str(error))
        return called is not None and called[1] in _OURS
    return False


def attribute_is_declared(source: SourceTree, name: str) -> bool:
    """Whether a host file of the source assigns, annotates or defines an attribute `name`."""
    pattern = re.compile(
        rf"\bdef {re.escape(name)}\b|\.{re.escape(name)}\s*(?::[^=\n]+)?=[^=]|^\s+{re.escape(name)}\s*[:=][^=]", re.M
    )
    paths = [path for folder in _DECLARING for path in source.paths(folder) if path.endswith(".py")]
    return any(pattern.search(source.read(path)) for path in [*paths, *filter(source.exists, _DECLARING_FILES)])
