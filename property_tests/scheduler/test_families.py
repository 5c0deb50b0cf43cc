"""What an adapter changes in a release so that a schedule is the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specsim.engines.sglang.scheduler import families, states, target
from specsim.engines.sglang.scheduler.boot import Booted


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


def _tree(node: Callable[..., Any]) -> Any:
    """Tokens 1 and 2 in slots 5 and 6, and behind them 3 in slot 7 or 4 in no slot."""
    leaves = {3: node([3], [7], {}), 4: node([4], None, {})}
    return SimpleNamespace(root_node=node([], None, {1: node([1, 2], [5, 6], leaves)}))


def _of_one_pool(tokens: list[int], slots: list[int] | None, children: Any) -> Any:
    value = None if slots is None else torch.tensor(slots)
    return SimpleNamespace(value=value, key=SimpleNamespace(token_ids=tokens), children=children)


def _of_pools(tokens: list[int], slots: list[int] | None, children: Any) -> Any:
    value = None if slots is None else torch.tensor(slots)
    parts = [SimpleNamespace(value=value), SimpleNamespace(value=torch.tensor([9]))]
    return SimpleNamespace(component_data=parts, key=SimpleNamespace(token_ids=tokens), children=children)


@pytest.mark.parametrize("node", [_of_one_pool, _of_pools])
def test_the_slots_of_a_radix_tree_are_read_whether_or_not_its_nodes_have_a_value_for_each_pool(
    node: Callable[..., Any],
) -> None:
    booted = Booted.__new__(Booted)
    booted.scheduler = SimpleNamespace(tree_cache=SimpleNamespace(inner=_tree(node)))
    tree = booted.radix_tree
    nodes = target._nodes(tree)
    assert nodes is not None
    assert sorted((one.tokens, one.slots) for one in nodes) == [((1, 2), (5, 6)), ((1, 2, 3), (7,))]
    assert sorted(states._tree_slots(tree)) == [5, 6, 7]
