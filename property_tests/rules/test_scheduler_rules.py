"""The rules of schedulers: each says one thing, and has defects that it finds."""

from __future__ import annotations

from specsim.engine.rules.table import BY_ID as OF_THE_MODEL
from specsim.rules.table import BY_ID, CHECKS


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
