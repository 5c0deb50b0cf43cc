"""Questions to a process that answers one after the other, over a socket: each comes with the pipe for its answers.

What is sent: the length of the question, with the descriptor of the pipe, then the question. What comes back when
whoever answered is done or dead: its exit status, which a fork of the process cannot write, for it has no socket.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import NamedTuple

CODE = struct.Struct(">i")
_LENGTH = struct.Struct(">I")


def put(control: socket.socket, content: bytes, pipe: int) -> None:
    """Ask. Raises OSError when nobody is there to answer."""
    socket.send_fds(control, [_LENGTH.pack(len(content))], [pipe])
    control.sendall(content)


class Question(NamedTuple):
    """A question, and the descriptor for its answers, which whoever takes it closes."""

    content: bytes
    pipe: int


class Questions:
    """The end of the process that answers."""

    def __init__(self, descriptor: int) -> None:
        self._control = socket.socket(fileno=descriptor)
        os.set_inheritable(descriptor, False)

    def take(self) -> Question | None:
        """Wait for the next question; None when whoever asked is gone."""
        try:
            head, descriptors, _flags, _address = socket.recv_fds(self._control, _LENGTH.size, 1)
            if len(head) < _LENGTH.size:
                return None
            (size,) = _LENGTH.unpack(head)
            content = bytearray()
            while len(content) < size:
                part = self._control.recv(min(1 << 20, size - len(content)))
                if not part:
                    return None
                content += part
        except ConnectionError:
            return None
        return Question(bytes(content), descriptors[0])

    def done(self, code: int) -> None:
        """Say how whoever answered ended: 0, its exit code, or a negative signal."""
        with contextlib.suppress(ConnectionError):
            self._control.sendall(CODE.pack(code))

    def close(self) -> None:
        """In a fork, which may not say that it is done."""
        self._control.close()
