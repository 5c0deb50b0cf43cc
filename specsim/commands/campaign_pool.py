"""Where `specsim fuzz` runs its batches: processes of this machine, and a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specsim.fuzz.campaign import BatchPool


def pool_of(
    stack: ExitStack,
    jobs: int,
    ray: str | None,
    beside: bool,
    cache: Path,
    nodes_cache: Path | None,
    hang_seconds: float,
    say: Callable[[str], None],
) -> BatchPool:
    """The pool, closed with the stack. With `ray`, the address of a cluster, workers of this machine run what the
    cluster does not, and, when they are to work `beside` it, from the start; `nodes_cache` is the folder of wheels on
    its nodes. UsageError when there is no such cluster.
    """
    from specsim.fuzz.workers import LocalPool

    cluster = None
    if ray is not None:
        from specsim.fuzz.ray_pool import RayCluster

        cluster = RayCluster.connect(ray, nodes_cache, hang_seconds)
        stack.callback(cluster.close)
        stack.callback(lambda: say(f"Ray: {sum(cluster.ran.values())} batches on {len(cluster.ran)} nodes"))
    local = LocalPool(jobs, cache, hang_seconds)
    stack.callback(local.close)
    if cluster is None:
        return local
    from specsim.fuzz.ray_pool import RayPool

    say(f"Ray at {cluster.address}: {cluster.nodes} nodes, {cluster.cpus} CPUs, {cluster.gpus} GPUs")
    return RayPool(cluster, local, beside, lambda text: say(f"specsim: {text}."))
