"""Bytes from one process to another over a pipe, in frames that only the one writer that was meant can have made.

A frame is its length, the nonce of the conversation, its number, and its content. The reader knows the nonce, for it
made it, and the number that comes next: whatever else comes through the pipe is a `BadFrameError`, be it what a target
prints to a descriptor that it guessed, what a fork of the writer goes on to send, or a frame of an earlier
conversation. Reading takes time in proportion to what is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import struct

NONCE_BYTES = 16
FRAME_BYTES_MAX = 64 << 20

_HEADER = struct.Struct(f">I{NONCE_BYTES}sQ")
_HIGHEST = 4096  # descriptors are given out from below: what a target opens or closes by number is down there


class BadFrameError(Exception):
    """What came is no frame of this conversation. `before` are the contents of those that came before it."""

    def __init__(self, before: list[bytes]) -> None:
        super().__init__("what came through the pipe is no message")
        self.before = before


def new_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


class Writer:
    """The end that sends, in the process that made it alone: in a fork of it `send` does nothing."""

    def __init__(self, descriptor: int, nonce: bytes) -> None:
        self._descriptor = out_of_the_way(descriptor)
        self._nonce = nonce
        self._number = 0
        self._owner = os.getpid()

    def move_here(self) -> None:
        """In a fork that goes on with the conversation in place of its parent."""
        self._owner = os.getpid()

    def send(self, content: bytes) -> None:
        """Send a frame. Raises ValueError when it is too long."""
        if os.getpid() != self._owner:
            return
        if len(content) > FRAME_BYTES_MAX:
            raise ValueError(f"{len(content)} bytes in one message; {FRAME_BYTES_MAX} are allowed")
        data = memoryview(_HEADER.pack(len(content), self._nonce, self._number) + content)
        self._number += 1
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class FrameReader:
    """The end that receives: bytes go in as they come, frames come out."""

    def __init__(self, nonce: bytes) -> None:
        self._nonce = nonce
        self._number = 0
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The contents of the frames that `data` completes. Raises BadFrameError; call it no more then."""
        self._pending += data
        frames: list[bytes] = []
        at = 0
        while len(self._pending) - at >= _HEADER.size:
            size, nonce, number = _HEADER.unpack_from(self._pending, at)
            if nonce != self._nonce or number != self._number or size > FRAME_BYTES_MAX:
                raise BadFrameError(frames)
            end = at + _HEADER.size + size
            if len(self._pending) < end:
                break
            frames.append(bytes(self._pending[at + _HEADER.size : end]))
            self._number += 1
            at = end
        del self._pending[:at]
        return frames


def out_of_the_way(descriptor: int) -> int:
    """The same as a high descriptor, closed when another program is executed; the low one is closed."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for lowest in (min(_HIGHEST, soft) - 16, 3):
        try:
            moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except (OSError, ValueError):
            continue
        os.close(descriptor)
        return moved
    os.set_inheritable(descriptor, False)
    return descriptor
