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
