"""The rules of schedulers: each says one thing, and has defects that it finds."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from specsim import replay_file
from specsim.rules.slots import FreeSlot, RowOwner, SlotsAtRest, TreeContent
from specsim.rules.table import BY_ID, CHECKS
from specsim.tiers.ops.rules import RULES as RULES_OF_OPS
from specsim.world.scheduler import Pools, Setup, TreeNode

if TYPE_CHECKING:
    from specsim.world.rule import Check, Run
    from specsim.world.scheduler import Facts


ROOT = Path(__file__).parents[2]
EVERY = [*BY_ID.values(), *RULES_OF_OPS]


def test_every_rule_has_a_number_and_a_name_of_its_own_in_every_tier() -> None:
    assert len(CHECKS) == len(set(CHECKS)) == len(BY_ID)
    assert len({rule.id for rule in EVERY}) == len({rule.slug for rule in EVERY}) == len(EVERY)
    assert all(re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", rule.slug) for rule in EVERY)


def test_no_number_of_a_rule_stands_outside_its_definition() -> None:
    stray, numbers = {}, {rule.id for rule in EVERY}
    for path in sorted((ROOT / "specsim").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined = {
            id(argument)
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Rule"
            for argument in call.args
        }
        found = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in numbers and id(node) not in defined
        ]
        name = path.relative_to(ROOT).as_posix()
        if found and not name.startswith("specsim/selfcheck/"):  # mutants have numbers of their own
            stray[name] = found
    assert stray == {"specsim/replay_file.py": list(replay_file.ENDED)}  # in a layer below the rules


def test_each_rule_says_what_it_means_and_has_a_defect() -> None:
    assert [check for check in CHECKS if not (check.__doc__ and check.defects)] == []
    names = [lie.name for check in CHECKS for lie in check.defects]
    assert len(names) == len(set(names))


def told_at_rest(check: type[Check], pools: Pools) -> list[tuple[str, str]]:
    """Whose it is and what is seen, of each violation of a scheduler at rest."""
    run = cast("Run", SimpleNamespace(pools=pools))
    return [(found.who, found.actual) for found in check(Setup(), cast("Facts", None)).at_rest(run)]


def test_slots_and_rows_that_are_lost_are_named_with_the_request_that_had_them() -> None:
    tree = [TreeNode((5,), (2,))]
    writers = {0: "a", 1: "a", 2: "a", **dict.fromkeys(range(3, 9), "b")}
    pools = Pools(
        9, 2, 1, 3, 1, free_slots=[1, 9], nodes=tree, free_row_numbers=[0], writers=writers, row_users={1: "b"}
    )
    assert told_at_rest(SlotsAtRest, pools) == [("b", "3: not slots 3, 4, 5, 6 and 2 more, written last for b")]
    assert told_at_rest(RowOwner, pools) == [("b", "1: not row 1, used last by b")]
    writers[7] = "c"
    pools.row_users = {1: "b", 2: "c"}
    assert told_at_rest(SlotsAtRest, pools) == [
        ("", "3: not slots 3, 4, 5, 6 and 1 more, written last for b, nor slot 7, written last for c")
    ]
    assert told_at_rest(RowOwner, pools) == [("", "1: not row 1, used last by b, nor row 2, used last by c")]


def test_what_the_cache_has_of_a_window_is_compared_whatever_is_wrong_with_the_rest() -> None:
    nodes, windows = [TreeNode((5, 6), (2, 3))], [TreeNode((5, 6), (3,)), TreeNode((5,), (4,))]
    pools = Pools(9, 7, 2, 3, 3, free_slots=[3], nodes=nodes, window_nodes=windows)

    def wrong(full: dict[int, int], window: dict[int, int]) -> list[str]:
        started = SimpleNamespace(slot_content=full.get, window_content=window.get, content_of=sum)
        run = cast("Run", SimpleNamespace(pools=pools, started=started))
        return [f"{one.part}: {one.actual}" for one in TreeContent(Setup(), cast("Facts", None)).at_rest(run)]

    assert wrong({2: 5}, {3: 11, 4: 5}) == []  # slot 3 of the pool is free
    assert wrong({2: 6}, {3: 11, 4: 11}) == ["tree: other content in slot 2", "window: other content in slot 4"]


def test_a_pool_in_the_memory_of_the_host_is_looked_at_as_the_others_are() -> None:
    nodes = [TreeNode((5, 6), (0, 1)), TreeNode((5, 6, 7), (3,))]
    pools = Pools(9, 9, 0, 3, 3, host_total=8, host_free=5, host_nodes=nodes, host_contents={0: 5, 1: 11, 3: 18})
    started = SimpleNamespace(slot_content={}.get, window_content={}.get, content_of=sum)

    def told(check: type[Check]) -> list[str]:
        run = cast("Run", SimpleNamespace(pools=pools, started=started))
        return [f"{one.part}: {one.actual}" for one in check(Setup(), cast("Facts", None)).at_rest(run)]

    assert [told(check) for check in (SlotsAtRest, FreeSlot, TreeContent)] == [[], [], []]
    pools.host_free, pools.host_contents = 4, {0: 5, 1: 10, 3: 18}
    assert told(SlotsAtRest) == ["host-slots:lost: 7"]
    assert told(TreeContent) == ["host: other content in slot 1"]
    pools.host_nodes = [*nodes, TreeNode((8,), (1,))]
    assert told(FreeSlot) == ["host-twice: slot 1 at two places of the tree"]


def test_of_pools_that_are_not_listed_whole_no_slot_is_named() -> None:
    assert told_at_rest(SlotsAtRest, Pools(9, 2, 1, 3, 3, free_slots=[1, 2], writers={3: "a"})) == [("", "3")]
    assert told_at_rest(SlotsAtRest, Pools(9, 2, 0, 3, 3, writers={3: "a"})) == [("", "2")]
    assert told_at_rest(RowOwner, Pools(9, 9, 0, 3, 2, row_users={1: "a"})) == [("", "2")]
