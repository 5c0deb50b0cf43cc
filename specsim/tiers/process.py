"""The child that answers a request: started for one question, or a fork server for many."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from specsim.isolation.conversation import blamed, child
from specsim.isolation.fork_server import ForkServer
from specsim.tiers.messages import ANSWERS, Request
from specsim.tiers.registry import TIERS

# How a child is asked: the request, the limit of one call in seconds, PYTHONHASHSEED or "".
Ask = Callable[[Request, float, str], Iterator[Any]]
HASH_SEEDS = ("0", "1")  # under which what counts is run twice


def ask(request: Request, hang_seconds: float, hash_seed: str = "") -> Iterator[Any]:
    """Start a child, give it the request, and yield its messages. Raises ChildEnded when it dies or hangs while the
    target's code runs, UsageError when it says so, and when it dies or hangs while specsim's own code runs.
    `hash_seed` is the child's PYTHONHASHSEED, "" for this process' own; where the target is imported its own sets of
    texts would follow it, and it is always the first of HASH_SEEDS.
    """
    request = prepared(request)
    if (tier := TIERS.get(request.tier)) is not None and tier.loader:
        hash_seed = HASH_SEEDS[0]
    with child("specsim.tiers.child", request, ANSWERS, hash_seed, hang_seconds) as conversation:
        yield from blamed(conversation, request.target)


def fork_server(hash_seed: str) -> ForkServer:
    """A child that has torch, triton and the tiers loaded, and answers each request in a fork of itself. It keeps the
    target of the last one as it was imported: what is edited meanwhile shows once another target was asked about.
    """
    return ForkServer(hash_seed, "specsim.tiers.fork_server_child", ANSWERS, prepared)


@contextmanager
def ask_often() -> Iterator[Ask]:
    """How many questions are asked. A target that is imported is imported once for those that follow one another about
    it, and must stay as it is until the end.
    """
    with ExitStack() as stack:
        server: ForkServer | None = None

        def asked(request: Request, hang_seconds: float, hash_seed: str = "") -> Iterator[Any]:
            nonlocal server
            if not TIERS[request.tier].loader:  # and may run on a GPU, which a fork cannot
                return ask(request, hang_seconds, hash_seed)
            if server is None:
                server = stack.enter_context(closing(fork_server(HASH_SEEDS[0])))
            return server.ask(request, hang_seconds)

        yield asked


def ask_again(request: Request, hang_seconds: float, hash_seed: str = "") -> Iterator[Any]:
    """As `ask`, for tests, of which a process runs many: a release is asked by a child that stays until this process
    ends, and so loads torch once. What a user may edit, or imports from where this process is now, has a child anew.
    """
    from specsim.engines.target import Release, parse_target

    is_release = isinstance(parse_target(request.target), Release)
    return (_staying() if is_release and not hash_seed else ask)(request, hang_seconds, hash_seed)


@functools.cache
def _staying() -> Ask:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(ask_often())


def prepared(request: Request) -> Request:
    """The request with what its child needs: a release is fetched here, since a child does not see how pip is
    configured, nor its passwords; and a git revision that it imports is written here, where it is removed even when
    the child is killed.
    """
    request = fetch(request)
    tier = TIERS.get(request.tier)  # one that there is not is refused where the request is answered
    root = _written(request.target, Path(request.cache)) if tier is not None and tier.loader else ""
    return msgspec.structs.replace(request, root=root) if root else request


def fetch(request: Any) -> Any:
    """The request, whose release is in the cache now."""
    _fetch(request.target, Path(request.cache))
    return request


@functools.cache
def _fetch(target: str, cache: Path) -> None:
    from specsim.engines.packages import fetch_release
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import Cache

    fetch_release(parse_target(target), Cache(cache))


def _written(text: str, cache: Path) -> str:
    """The folder with the files of a target that is a git revision, "" for another target."""
    from specsim.engines.load import files_of
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import Cache

    target = parse_target(text)
    return str(files_of(target, Cache(cache))) if getattr(target, "revision", None) else ""
