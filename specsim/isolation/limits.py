"""How much memory a process that runs a target's code may take, and how many processes a command may start."""

from __future__ import annotations

import math
import os
import resource

from specsim.errors import UsageError

MEMORY = "SPECSIM_MEMORY_GIB"
MEMORY_GIB = 8.0
JOBS_A_CORE = 4

_GIB = 1 << 30
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def memory_bytes() -> int:
    """What a process that runs a target's code may take, 0 for no limit."""
    text = os.environ.get(MEMORY, "")
    try:
        gib = float(text) if text else MEMORY_GIB
    except ValueError:
        gib = math.nan
    if not 0 <= gib < 1 << 20:
        raise UsageError(f"{MEMORY}={text!r} is no size", "give GiB, such as 8, or 0 for no limit")
    return int(gib * _GIB)


def set_memory(gib: float) -> None:
    """As `--memory-gib` says, for the processes that are started from now on."""
    os.environ[MEMORY] = f"{gib:g}"


def limit_memory(size: int, device: str) -> None:
    """Limit what this process may allocate to `size` bytes, 0 for no limit. Where a GPU may be used nothing is limited:
    its driver maps more than it takes.

    What counts is memory that is written to (RLIMIT_DATA). The files that torch maps would use up a limit of addresses
    (RLIMIT_AS), and shared memory counts in neither as it should.
    """
    if not size or (device != "cpu" and any(map(os.path.exists, _GPUS))):
        return
    _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def allowed_jobs(jobs: int | None) -> int:
    """How many processes `--jobs` gives, None for one a core. UsageError when they would crowd one another out."""
    here = cores()
    if jobs is not None and jobs > JOBS_A_CORE * here:
        raise UsageError(
            f"--jobs {jobs}: this machine has {here} core{'' if here == 1 else 's'}",
            f"give {JOBS_A_CORE * here} at most, {JOBS_A_CORE} for each core",
        )
    return jobs or here
