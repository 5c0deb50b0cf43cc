"""A tier that runs beside another one: each waits for a child process of its own, so that two cores are used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def beside(work: Callable[[], T]) -> Callable[[], T]:
    """Begin `work` in a thread. What is returned waits for it, and gives what it gave or raises what it raised. An
    interrupt ends the process without waiting; the child then ends at its next message, which nobody reads.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> T:
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return result
