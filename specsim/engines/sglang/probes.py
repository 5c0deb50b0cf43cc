"""The probes of one SGLang: its multi-layer worker and its penalties."""

from __future__ import annotations

from specsim.engines.packages import open_source
from specsim.engines.probe import Probe
from specsim.engines.sglang.guards import read_guards
from specsim.engines.sglang.multi_layer import multi_layer_probes
from specsim.engines.sglang.penalties import penalty_probes
from specsim.engines.target import CheckoutTarget, ReleaseTarget
from specsim.lifting.cache import Cache
from specsim.lifting.gc_pause import without_collections
from specsim.lifting.lift import Lifter, TextStore
from specsim.lifting.source import SourceTree
from specsim.verdict import NotRun


def sglang_probes(target: ReleaseTarget | CheckoutTarget, cache: Cache) -> tuple[list[Probe], list[NotRun]]:
    """The probes of a release or checkout, and those that cannot be run, with the reasons."""
    return probes_of(open_source(target, cache), cache)


def probes_of(source: SourceTree, store: TextStore) -> tuple[list[Probe], list[NotRun]]:
    """The probes that can be run on a source tree, and those that cannot, with the reasons."""
    with without_collections():
        lifter, guards = Lifter(source, store, {}), read_guards(source)
        found = [*multi_layer_probes(lifter, guards), *penalty_probes(lifter, guards)]
    return [p for p in found if isinstance(p, Probe)], [p for p in found if isinstance(p, NotRun)]
