"""Errors that are written for the person who reads them.

A `UsageError` is bad input or a bad environment: what was wrong with which value, what is allowed, and
what to do next. The command line prints it as one sentence and exits with code 2, never with a traceback.
"""

from __future__ import annotations


class UsageError(Exception):
    """Bad input or environment. `problem` says what is wrong, `remedy` what to do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class NondeterministicError(Exception):
    """Two runs of one case differ: nothing that the target shows can be trusted. Exit code 3."""


TEXT_MAX = 4_000  # characters that are kept of a text that somebody else's code made


def cut(text: str) -> str:
    """A text as it is kept: its beginning, and how long it was, where it is long."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


def described(error: BaseException) -> str:
    """What was raised, as it is kept: its type and its text, which may be of any length and may itself raise."""
    try:
        text = str(error)
    except Exception as again:
        text = f"its text cannot be had: {type(again).__name__}"
    return cut(f"{type(error).__name__}: {text}")
