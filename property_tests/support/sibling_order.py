"""Trees whose siblings are linked in descending order, so that links lead to earlier nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specsim.contracts.contract import Case


def descending(case: Case) -> Case:
    """The case with the siblings of every node linked from the last to the first."""
    linked = case.clone()
    firsts, siblings = (linked.tensors[name] for name in ("retrieve_next_token", "retrieve_next_sibling"))
    for first, sibling in zip(firsts, siblings, strict=True):
        following = sibling.tolist()
        for node in range(len(following)):
            family = [int(first[node])]
            while family[-1] >= 0:
                family.append(following[family[-1]])
            for child, older in zip(family[:-1], [-1, *family], strict=False):
                sibling[child] = older
            first[node] = family[-2] if len(family) > 1 else -1
    return linked
