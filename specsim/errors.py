"""Errors that are written for the person who reads them.

A `UsageError` is bad input or a bad environment: what was wrong with which value, what is allowed, and
what to do next. The command line prints it as one sentence and exits with code 2, never with a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class UsageError(Exception):
    """Bad input or environment. `problem` says what is wrong, `remedy` what to do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class NondeterministicError(Exception):
    """Two runs of one case differ: nothing that the target shows can be trusted. Exit code 3."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The one of `names` that was most likely meant, or up to three that begin with it or are equally near, as a
    question; "" when none is near. Case makes no difference.
    """
    import difflib  # pytest's plugin imports this module

    by_lower, wanted = {one.lower(): one for one in names}, name.strip().lower()
    meant = [one for one in by_lower if one.startswith(wanted)] if wanted else []
    if not meant:
        near = difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.6)
        ratios = [difflib.SequenceMatcher(None, one, wanted).ratio() for one in near]
        meant = [one for one, ratio in zip(near, ratios, strict=True) if ratio == ratios[0]]
    return f"did you mean {' or '.join(sorted(by_lower[one] for one in meant)[:3])}?" if meant else ""


LISTED_MAX = 30
"""Names that are listed beside one that is near."""


def no_such(what: str, name: str, names: Iterable[str], *, lists_all: bool = False) -> UsageError:
    """The error for a `name` that is none of `names`, of which there is at least one: it says which was most likely
    meant, and which there are unless those are many and one is near. `lists_all` is for names that are all alike.
    """
    known = list(names)
    near, listed = did_you_mean(name, known), f"choose one of {', '.join(known)}"
    if near:
        is_short = lists_all or len(known) <= LISTED_MAX
        listed = f"{near} {listed[:1].upper()}{listed[1:]}" if is_short else near
    return UsageError(f"there is no {what} {name!r}", listed)


TEXT_MAX = 4_000  # characters that are kept of a text that somebody else's code made


def cut(text: str) -> str:
    """A text as it is kept: its beginning, and how long it was, where it is long."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


def described(error: BaseException) -> str:
    """What was raised, as it is kept: its type and its text, which may be of any length and may itself raise. Half a
    surrogate pair is spelled out: records of schedules are UTF-8.
    """
    try:
        text = str(error)
    except Exception as again:
        text = f"its text cannot be had: {type(again).__name__}"
    return cut(f"{type(error).__name__}: {text.encode(errors='backslashreplace').decode()}")
