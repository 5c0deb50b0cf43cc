"""The rules of schedulers: each is in the table, says one thing, and has defects that it finds."""

from __future__ import annotations

import importlib
import pkgutil

from specsim import rules
from specsim.engine.rules.table import BY_ID as OF_THE_MODEL
from specsim.rules.table import BY_ID, CHECKS
from specsim.world.rule import Check


def test_each_rule_of_the_folder_is_in_the_table_once() -> None:
    modules = [
        importlib.import_module(f"specsim.rules.{module.name}") for module in pkgutil.iter_modules(rules.__path__)
    ]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    assert {each for each in classes if issubclass(each, Check) and each is not Check} == set(CHECKS)
    assert len(CHECKS) == len(set(CHECKS)) == len(BY_ID)


def test_an_identifier_means_one_sentence() -> None:
    assert {name: rule for name, rule in BY_ID.items() if OF_THE_MODEL.get(name, rule) != rule} == {}


def test_each_rule_says_what_it_means_and_has_a_defect() -> None:
    assert [check for check in CHECKS if not (check.__doc__ and check.defects)] == []
    names = [lie.name for check in CHECKS for lie in check.defects]
    assert len(names) == len(set(names))


def test_an_identifier_of_the_model_is_not_used_for_another_rule() -> None:
    slugs = {rule.slug: rule.id for rule in OF_THE_MODEL.values()}
    assert [rule for rule in BY_ID.values() if slugs.get(rule.slug, rule.id) != rule.id] == []
