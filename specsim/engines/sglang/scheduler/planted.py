"""Defects that are planted into a release's scheduler and worker to see whether the tier finds them: `planted.toml`.

They were written by someone who had read the release's source and none of specsim's rules. P01 to P30 are mistakes in
admission, filtering, merging, retraction, aborts, chunks, sessions, caches and results; Q01 to Q08 and R01 to R08 leave
out one wait or synchronisation each, of an older and of a newer release. A coarser barrier covers two of those: they do
harm when it is left out, too (`--mutant Q07+Q06`). W01 to W10 are one-statement mistakes in and around the worker: its
graph runners, its attention plan, its write window, its sampling. E01 to E05, in KV cache events, were written with the
rule that finds them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from specsim.lifting.planted import Planted
from specsim.world.planted import load

WORKERS = ("sglang.srt.layers.", "sglang.srt.model_executor.", "sglang.srt.speculative.")
"""Modules in whose place a fake worker stands."""


@cache
def planted() -> dict[str, Planted]:
    """The defects by id."""
    defects = load(Path(__file__).with_name("planted.toml"))
    of_workers = {
        name: replace(one, worker="release") for name, one in defects.items() if one.module.startswith(WORKERS)
    }
    return defects | of_workers
