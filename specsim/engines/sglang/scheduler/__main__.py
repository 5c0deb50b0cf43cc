"""Boot a release's scheduler and decode four requests: `python -m specsim.engines.sglang.scheduler VERSION [OPTIONS]`,
OPTIONS as JSON. Prints one JSON object: what each request got, what it should have got, and what was found.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict
from typing import Any

from specsim.choices.chooser import between, seeded
from specsim.engines.packages import fetch_release
from specsim.engines.sglang.scheduler.boot import Booted, boot
from specsim.engines.sglang.scheduler.options import Options
from specsim.engines.target import Release
from specsim.lifting.cache import open_cache
from specsim.vdevice import simulate
from specsim.world.hash_model import decoded
from specsim.world.kv import OBSERVATIONS
from specsim.world.unpack import unpacked

LENGTHS = (5, 25, 45, 65)  # tokens of the prompts; one is longer than a chunk
NEW_TOKENS = 12
ITERATIONS_MAX = 400


def main() -> None:
    version, options = sys.argv[1], Options(**json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
    cache = open_cache()
    wheel = fetch_release(Release("sglang", version), cache)
    assert wheel is not None
    chooser = seeded(0, "smoke")
    root = unpacked(wheel, cache)
    with simulate(chooser, sites=lambda file: file.startswith(str(root))) as device:
        started = time.process_time()
        booted = boot(root, options, device)
        boot_seconds = time.process_time() - started
        booted.worker.restart(lambda _rid, bound: between(chooser, 1, bound, "accepted"))
        answer = decode_four(booted)
        device.drain()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer |= {"boot CPU seconds": round(boot_seconds, 1), "MiB": memory >> 10}
    print(json.dumps({**answer, "findings": [str(finding) for finding in device.findings]}))


def decode_four(booted: Booted) -> dict[str, Any]:
    """Two requests at once, and two more while those run."""
    prompts = {f"r{i}": [11 + i, *range(20, 19 + length)] for i, length in enumerate(LENGTHS)}
    requests = [booted.generate(rid, prompt, NEW_TOKENS) for rid, prompt in prompts.items()]
    arrivals = {0: requests[:2], 3: requests[2:]}

    def script(booted: Booted, iteration: int) -> list[Any] | None:
        if iteration > ITERATIONS_MAX:
            raise RuntimeError(f"four requests have not ended after {ITERATIONS_MAX} iterations")
        return None if iteration > max(arrivals) and booted.idle() else arrivals.get(iteration, [])

    booted.run(script)
    return {
        "outputs": {rid: asdict(output) for rid, output in booted.outputs().items()},
        "expected": {rid: decoded(prompt, NEW_TOKENS) for rid, prompt in prompts.items()},
        "records": [str(one) for one in booted.worker.reports.records if not isinstance(one, OBSERVATIONS)],
        "pools": {pool.name: pool.is_whole for pool in booted.pools()},
        "iterations": booted.iteration,
    }


if __name__ == "__main__":
    main()
