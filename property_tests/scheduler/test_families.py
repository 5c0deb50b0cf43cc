"""What an adapter changes in a release so that a schedule is the same in every process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specsim.engines.sglang.scheduler import families


def test_penalizers_are_in_the_order_of_their_names_whatever_the_set_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class Orchestrator:
        def __init__(self, vocab_size: int, batch: Any, penalizers: Any) -> None:
            self.names = [kind.__name__ for kind in penalizers]

    released = SimpleNamespace(BatchedPenalizerOrchestrator=Orchestrator)
    monkeypatch.setattr(families, "release_module", {"sampling.penaltylib.orchestrator": released}.__getitem__)
    monkeypatch.setattr(families, "is_there", lambda _name: True)
    families.Family.order_penalizers(families.Family.__new__(families.Family))
    kinds = [type(name, (), {}) for name in ("Presence", "Frequency", "Repetition", "MinNewTokens")]
    made = Orchestrator(vocab_size=8, batch=None, penalizers=kinds)
    assert made.names == sorted(made.names) != [kind.__name__ for kind in kinds]
