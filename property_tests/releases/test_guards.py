"""A guard is read from the source that is tested, and a check of something else is not taken for one."""

from __future__ import annotations

import pytest

from property_tests.support.made_up_sources import MadeUpSource
from specsim.engines.sglang.guards import read_guards

FALLS_BACK = """
def handle(args):
    if args.speculative_algorithm in ("EAGLE",):
        if (args.speculative_eagle_topk is not None and args.speculative_eagle_topk > 1
                and not args.disable_overlap_schedule):
            args.disable_overlap_schedule = True
"""
REFUSES = """
class ServerArgs:
    def handle(self):
        if self.speculative_algorithm == "EAGLE" and envs.SGLANG_ENABLE_SPEC_V2.get():
            if self.speculative_eagle_topk > 1:
                raise ValueError("chains only")
"""
ABOUT_A_BACKEND = """
def handle(args):
    if args.attention_backend == "some":
        if args.speculative_eagle_topk > 1:
            raise ValueError("chains only")
    if args.speculative_eagle_topk > 1 and args.page_size > 1:
        raise ValueError("one token a page")
    if args.speculative_eagle_topk > 1:
        args.disable_overlap_schedule = False
"""
CHOOSES_TREES = """
def auto_choose_speculative_params(args):
    if args.small:
        return (3, 1, 4)
    return (5, 4, 8)
"""
TREE = {"topk": 4}
CHAIN = {"topk": 1}


@pytest.mark.parametrize(("text", "line"), [(FALLS_BACK, 4), (REFUSES, 5)])
def test_a_guard_against_trees_is_found_with_its_line(text: str, line: int) -> None:
    guards = read_guards(MadeUpSource({"srt/server_args.py": text}))
    assert guards.reach_of_overlap_worker(TREE) == f"guarded:srt/server_args.py:{line}"
    assert guards.reach_of_overlap_worker(CHAIN) == "default"


def test_a_condition_on_something_else_is_no_guard() -> None:
    guards = read_guards(MadeUpSource({"srt/server_args.py": ABOUT_A_BACKEND}))
    assert guards.tree_overlap == ""
    assert guards.reach_of_overlap_worker(TREE) == "option"


def test_trees_are_reached_by_default_where_the_release_chooses_them_itself() -> None:
    guards = read_guards(MadeUpSource({"srt/server_args.py": ABOUT_A_BACKEND + CHOOSES_TREES}))
    assert guards.reach_of_overlap_worker(TREE) == "default"


def test_the_newer_file_of_the_configuration_is_read_too() -> None:
    guards = read_guards(MadeUpSource({"srt/arg_groups/speculative_hook.py": FALLS_BACK, "srt/server_args.py": ""}))
    assert guards.tree_overlap == "srt/arg_groups/speculative_hook.py:4"


@pytest.mark.parametrize(("default", "reach"), [("True", "default"), ("False", "option")])
def test_a_switch_that_is_off_makes_the_overlap_workers_an_option(default: str, reach: str) -> None:
    switch = f"class Envs:\n    SGLANG_ENABLE_SPEC_V2 = EnvBool({default})\n"
    guards = read_guards(MadeUpSource({"srt/environ.py": switch}))
    assert guards.reach_of_overlap_worker(CHAIN) == reach
