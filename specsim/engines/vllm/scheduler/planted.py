"""Defects that are planted into vLLM's scheduler to see whether the tier finds them: `planted.toml`.

They were written by someone who had read the source of 0.33.0 and none of specsim's rules: mistakes in admission,
preemption, stale results, blocks and their hashes, aborts, pauses, priorities and the queue of batches (V); in the
second model runner (W); in what is done for connectors, and for reasoning before a grammar (K). Those in KV cache
events (E) were written with the rule that finds them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from specsim.lifting.planted import Planted
from specsim.world.planted import load


@cache
def planted() -> dict[str, Planted]:
    """The defects by id."""
    return load(Path(__file__).with_name("planted.toml"))
