"""What the drafter proposes, and how much of it the target accepts: drawn from choices."""

from __future__ import annotations

from functools import lru_cache

from specsim.choices.chooser import Chooser
from specsim.engine.config import EngineConfig
from specsim.engine.launch import DraftPlan


@lru_cache(maxsize=1 << 8)  # the same few come back again and again
def _chain(num_steps: int, agree: int) -> DraftPlan:
    return DraftPlan(list(range(-1, num_steps)), frozenset(range(1, agree + 1)))


def draw_plan(chooser: Chooser, config: EngineConfig, num_steps: int) -> DraftPlan:
    """A tree, and how far the drafts agree with the target: an accepted path from the root.

    A chain has `num_steps` drafts.
    """
    if config.topk == 1:
        agree = num_steps - chooser.choose(num_steps + 1, "drafts that disagree")
        return _chain(num_steps, agree)
    parents, depth, children = [-1], [0], [0]
    open_nodes = [0]  # that may have another child
    for node in range(1, config.num_draft_tokens):
        place = len(open_nodes) - 1 - chooser.choose(len(open_nodes), "parent")
        parent = open_nodes[place]
        children[parent] += 1
        if children[parent] == config.topk:
            del open_nodes[place]
        parents.append(parent)
        depth.append(depth[parent] + 1)
        children.append(0)
        if depth[node] < config.num_steps:
            open_nodes.append(node)
    agreeing: list[int] = []
    node = 0
    while True:
        options = [child for child, parent in enumerate(parents) if parent == node]
        picked = chooser.choose(len(options) + 1, "agreeing child") if options else 0
        if not options or picked == len(options):
            return DraftPlan(parents, frozenset(agreeing))
        node = options[picked]
        agreeing.append(node)
