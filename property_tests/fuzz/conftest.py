"""Where campaigns of the tests share tapes: a folder, or a Redis server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from property_tests.support.redis_server import HOW_TO_ADD, RedisServer


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    pytest.importorskip("redis", reason=HOW_TO_ADD)
    if shutil.which("redis-server") is None:
        pytest.skip(HOW_TO_ADD)
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.end()


@pytest.fixture(params=["folder", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place to share tapes in."""
    if request.param == "folder":
        return str(tmp_path / "corpus")
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url
