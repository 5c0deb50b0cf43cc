"""What a replay file asks of a child: the request for its one case or schedule, of whatever tier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specsim.replay_file import OpReplay, Replay, ScheduleReplay, WorkerReplay
    from specsim.tiers.accounting.parent import AccountingRequest
    from specsim.tiers.ops.parent import OpsRequest
    from specsim.tiers.workers.parent import WorkersRequest


def _of_one(stored: Replay, target: str, hang_seconds: float, cache_dir: Path | None, out: Path) -> dict[str, Any]:
    """What a request for the case or schedule of one replay file has, of any tier."""
    from specsim.lifting.cache import open_cache

    cache = open_cache(cache_dir).folder
    limits = {"seconds": hang_seconds, "hang_seconds": hang_seconds}
    return {"target": target, "cache": cache, "seed": stored.seed, "out": out, **limits}


def ops_request(
    stored: OpReplay, target: str, device: str | None, hang_seconds: float, cache_dir: Path | None, out: Path
) -> OpsRequest:
    from specsim.tiers.ops.parent import OpsRequest

    return OpsRequest(
        **_of_one(stored, target, hang_seconds, cache_dir, out),
        cases=1,
        device=device or stored.device,
    )


def schedule_request(
    stored: ScheduleReplay, target: str, hang_seconds: float, cache_dir: Path | None, out: Path
) -> AccountingRequest:
    from specsim.tiers.accounting.parent import AccountingRequest

    return AccountingRequest(
        **_of_one(stored, target, hang_seconds, cache_dir, out),
        schedules=1,
        mutant=stored.mutant if target == stored.target else "",
        kernels=stored.kernels if target == stored.target else "",
    )


def workers_request(
    stored: WorkerReplay, target: str, hang_seconds: float, cache_dir: Path | None, out: Path
) -> WorkersRequest:
    from specsim.tiers.workers.parent import WorkersRequest

    return WorkersRequest(
        **_of_one(stored, target, hang_seconds, cache_dir, out),
        cases=1,
    )


def noted(
    stored: Replay, file: Path, target: str, device: str | None, hang_seconds: float, cache_dir: Path | None
) -> dict[str, Any]:
    """A replay with the engine's states noted, or the outputs of a case."""
    from specsim import replay_file
    from specsim.tiers.accounting.parent import replay_schedule
    from specsim.tiers.ops.parent import replay_ops
    from specsim.tiers.workers.parent import replay_case

    if isinstance(stored, replay_file.OpReplay):
        return replay_ops(ops_request(stored, target, device, hang_seconds, cache_dir, Path()), file, record=True)
    if isinstance(stored, replay_file.WorkerReplay):
        return replay_case(workers_request(stored, target, hang_seconds, cache_dir, Path()), file)
    return replay_schedule(schedule_request(stored, target, hang_seconds, cache_dir, Path()), file, record=True)
