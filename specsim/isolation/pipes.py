"""Messages over a pipe between two processes of ours: each is its length, then so many bytes."""

from __future__ import annotations

import os
import struct

SIZE = struct.Struct(">I")


def send(pipe: int, content: bytes) -> None:
    """BrokenPipeError when the other end is closed."""
    data = memoryview(SIZE.pack(len(content)) + content)
    while data:
        data = data[os.write(pipe, data) :]


def received(pipe: int) -> bytes:
    """The next message, b"" when the other end is closed."""
    head = _read(pipe, SIZE.size)
    return _read(pipe, SIZE.unpack(head)[0]) if head else b""


def _read(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(pipe, size - len(data))
        if not part:
            return b""
        data += part
    return data
