"""Objects that a release's scheduler reads and that stand for a model, a worker or a group of ranks.

An attribute that such an object has not been given is answered as DEFAULTS says. One that is not there is *drift*: the
release has come to read something of which nobody has thought, and what it then does cannot be trusted. It is noted, so
that all of them can be named at once, and answered with None until then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


class NotRunError(Exception):
    """This release, or this configuration of it, is not run: why, as a sentence."""


class AdapterDriftError(NotRunError):
    """A release reads attributes of a fake that this adapter does not know, or lacks some that the adapter needs: it is
    not run.
    """

    def __init__(self, names: list[str], lacks: Sequence[str] = ()) -> None:
        parts = [f"reads {', '.join(names)}, which the adapter does not know"] if names else []
        parts += [f"has no {', '.join(lacks)}"] if lacks else []
        super().__init__(f"drift: the scheduler {' and '.join(parts)}")
        self.names = [*names, *lacks]


def nothing(*_arguments: Any, **_named: Any) -> None:
    """A method that does nothing on a device without a model."""


def said(value: object) -> Callable[..., Any]:
    """A method that says `value`, whatever it is asked."""
    return lambda *_arguments, **_named: value


class Answers:
    """What every fake of one boot answers by default: `defaults` by "object.attribute"; the rest is noted."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._defaults = defaults
        self._drifted: dict[str, None] = {}

    def of(self, name: str) -> Any:
        try:
            return self._defaults[name]
        except KeyError:
            self._drifted[name] = None
            return None

    @contextlib.contextmanager
    def required(self) -> Iterator[None]:
        """Raise DriftError when anything is read in here that is not known, whatever else comes of it."""
        try:
            yield
        except Exception as error:
            if self._drifted:
                raise AdapterDriftError(sorted(self._drifted)) from error
            raise
        if self._drifted:
            raise AdapterDriftError(sorted(self._drifted))


class Fake:
    """An object with the attributes `given`; for others see `Answers`. Private names are absent."""

    def __init__(self, name: str, answers: Answers, **given: Any) -> None:
        self.__dict__.update(given, _name=name, _answers=answers)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return self._answers.of(f"{self._name}.{attribute}")
