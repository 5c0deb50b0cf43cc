"""The rules of schedulers: each says one thing, and has defects that it finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from specsim.engine.rules.table import BY_ID as OF_THE_MODEL
from specsim.rules.slots import RowOwner, SlotsAtRest
from specsim.rules.table import BY_ID, CHECKS
from specsim.world.scheduler import Pools, Setup, TreeNode

if TYPE_CHECKING:
    from specsim.world.rule import Check, Run
    from specsim.world.scheduler import Facts


def test_rules_have_identifiers_and_names_of_their_own() -> None:
    assert len(CHECKS) == len(set(CHECKS)) == len(BY_ID) == len({rule.slug for rule in BY_ID.values()})


def test_an_identifier_means_one_sentence() -> None:
    assert {name: rule for name, rule in BY_ID.items() if OF_THE_MODEL.get(name, rule) != rule} == {}


def test_each_rule_says_what_it_means_and_has_a_defect() -> None:
    assert [check for check in CHECKS if not (check.__doc__ and check.defects)] == []
    names = [lie.name for check in CHECKS for lie in check.defects]
    assert len(names) == len(set(names))


def test_an_identifier_of_the_model_is_not_used_for_another_rule() -> None:
    slugs = {rule.slug: rule.id for rule in OF_THE_MODEL.values()}
    assert [rule for rule in BY_ID.values() if slugs.get(rule.slug, rule.id) != rule.id] == []


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


def test_of_pools_that_are_not_listed_whole_no_slot_is_named() -> None:
    assert told_at_rest(SlotsAtRest, Pools(9, 2, 1, 3, 3, free_slots=[1, 2], writers={3: "a"})) == [("", "3")]
    assert told_at_rest(SlotsAtRest, Pools(9, 2, 0, 3, 3, writers={3: "a"})) == [("", "2")]
    assert told_at_rest(RowOwner, Pools(9, 9, 0, 3, 2, row_users={1: "a"})) == [("", "2")]
