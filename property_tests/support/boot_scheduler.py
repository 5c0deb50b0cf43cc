"""A release's scheduler that boots and decodes four requests, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from specsim.isolation.environment import of_target


def decoded(version: str, options: dict[str, Any], before: str = "") -> dict[str, Any]:
    """What `python -m specsim.engines.sglang.scheduler` prints, after the statements `before`. Each of four requests
    has the tokens of decoding one by one, and no slot and no row is lost.
    """
    main = "import runpy; runpy.run_module('specsim.engines.sglang.scheduler', run_name='__main__')"
    command = [sys.executable, "-c", f"{before}\n{main}", version, json.dumps(options)]
    ended = subprocess.run(command, env=of_target(), check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert {rid: output["token_ids"] for rid, output in answer["outputs"].items()} == answer["expected"]
    assert set(answer["pools"].values()) == {True}
    return answer
