"""Messages from a process that runs a target's code to the one that started it: a struct for each, checked at both
ends. The messages of every child are here; those of one kind of child are where that kind is.

To add a message: write its struct, with `tag="its event"`, and put it into the union of its conversation. `in_progress`
says that the target's code runs from there on, `is_last` that nothing comes after it.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import msgspec

from specsim.errors import UsageError, cut
from specsim.isolation import phases
from specsim.isolation.frames import FRAME_BYTES_MAX, Writer

VERSION = 2  # of the conversation, in both directions; parent and child are of one installation
LONG_BYTES = 1 << 20


class BadMessageError(Exception):
    """What came is no message of the conversation."""


class Message(msgspec.Struct, kw_only=True, tag_field="event", forbid_unknown_fields=True):
    """One message. Fields that are not always there have a default."""

    in_progress: ClassVar[bool] = False
    is_last: ClassVar[bool] = False

    @property
    def event(self) -> str:
        """What the message is called in its JSON form."""
        return str(self.__struct_config__.tag)


class Phase(Message, tag="phase"):
    """Whose code runs from here on (`specsim.isolation.phases`)."""

    name: str
    version: int


class Error(Message, tag="error"):
    """Bad input, or a target that cannot be tested; the question is over."""

    problem: str
    remedy: str


class Answered(Message, tag="answered"):
    """The question is over."""


OF_EVERY_CHILD = Phase | Error | Answered


class Envelope(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a question reaches a child: with the nonce of the conversation in hexadecimal, and the bytes of memory that
    the child may use, 0 for no limit. The request is the question itself, of the kind of child that is asked.
    """

    nonce: str
    memory_bytes: int
    request: Any


def to_bytes(value: Any) -> bytes:
    """A struct as JSON; NaN and infinity stand as Python writes them."""
    return json.dumps(msgspec.to_builtins(value)).encode()


def encoded(message: Message) -> bytes:
    """A message as bytes. Texts are cut where it is long: an exception may carry megabytes."""
    content = to_bytes(message)
    return json.dumps(_cut(msgspec.to_builtins(message))).encode() if len(content) > LONG_BYTES else content


def decoded(content: bytes, kinds: Any) -> Any:
    """The message of these bytes, which is one of the union `kinds`. Raises BadMessageError when it is none."""
    try:
        message = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadMessageError(f"it is no message ({type(error).__name__})") from None
    try:
        return msgspec.convert(message, kinds)
    except msgspec.ValidationError as error:
        event = message.get("event") if isinstance(message, dict) else message
        raise BadMessageError(f"its message {event!r} is none: {error}") from None


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, dict):
        return {name: _cut(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(part) for part in value]
    return value


class Messages:
    """The child's end of the pipe. `is_loading` says that none of the target's code runs; from the first case on it
    does.
    """

    def __init__(self, descriptor: int, nonce: str) -> None:
        self._writer = Writer(descriptor, bytes.fromhex(nonce))
        self._phase = phases.LOADING
        self._has_cases = False

    @property
    def is_loading(self) -> bool:
        return not self._has_cases and self._phase == phases.LOADING

    def send(self, message: Message) -> None:
        content = encoded(message)
        if len(content) > FRAME_BYTES_MAX:
            raise UsageError(
                f"an answer has {len(content)} bytes; {FRAME_BYTES_MAX} are allowed", "make what it is about smaller"
            )
        self._has_cases = self._has_cases or message.in_progress
        self._writer.send(content)

    def tell_phase(self, name: str) -> None:
        self._phase = name
        if not self._has_cases:
            self.send(Phase(name=name, version=VERSION))

    def move_here(self) -> None:
        """In a fork that answers in place of its parent."""
        self._writer.move_here()

    def close(self) -> None:
        self._writer.close()
