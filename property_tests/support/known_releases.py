"""Which releases the tests read: few at every run, all of those that specsim knows by `make test-releases`."""

from __future__ import annotations

from pathlib import Path

from specsim.engines.packages import package_of
from specsim.engines.releases import load, releases_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
FEW = load((FIXTURES / "releases.txt").read_text(encoding="utf-8"))
"""The releases that every run of the tests reads, oldest first."""
OLDEST, NEWEST = FEW[0], FEW[-1]
"""Of those few."""
RELEASES, VLLM_RELEASES = releases_of("sglang"), releases_of("vllm")
SGLANG, VLLM = package_of("sglang"), package_of("vllm")
VLLM_OLD, VLLM_NEW = "0.26.0", "0.33.0"
"""Releases of vLLM that every run of the tests reads: the last one with a known defect, and the newest one."""
