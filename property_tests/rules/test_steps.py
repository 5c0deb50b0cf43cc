"""How much a step takes on, and whether what decodes verifies drafts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.rules.steps import Speculation, StepLimits
from specsim.world.rule import Check, Run
from specsim.world.scheduler import Chunk, Facts, Launch, Seen, Setup, Turn
from specsim.world.workload import Workload

SETUP = Setup(rows=3, chunk=16)
MADE = Chunk(20, 4, drafts=3)


def broken(check: type[Check], *launches: Launch, facts: Facts = FACTS, grammar: tuple[int, ...] = ()) -> list[str]:
    """The parts that are broken, each with its request."""
    turns = tuple(Turn(rid, tuple(range(20)), 9, at=0, grammar=grammar) for rid in "abcd")
    users: Any = SimpleNamespace(workload=Workload(turns))
    run = Run(SimpleNamespace(seen=Seen(launches=list(launches))), users)
    return [f"{one.part} {one.who} {one.when}" for one in check(SETUP, facts).after(run)]


def decodes(iteration: int, *chunks: Chunk, makes_none: bool = False) -> Launch:
    return Launch(iteration, "decode", tuple("abcd"[: len(chunks)]), chunks, makes_none)


def test_a_step_has_no_more_requests_than_rows_in_all_of_its_launches() -> None:
    two, one = decodes(4, Chunk(20, 1), Chunk(20, 1)), Launch(4, "extend", ("c",), (Chunk(0, 1),))
    assert broken(StepLimits, two, one) == []
    assert broken(StepLimits, two, one._replace(iteration=5), two._replace(iteration=6)) == []
    assert broken(StepLimits, two, two) == ["rows  4"]


def test_a_step_computes_no_more_tokens_than_a_prefill_may() -> None:
    begins = Launch(4, "extend", ("b",), (Chunk(0, 12),))
    assert broken(StepLimits, decodes(4, MADE), begins) == []
    assert broken(StepLimits, decodes(4, MADE), begins._replace(chunks=(Chunk(0, 13),))) == ["tokens  4"]


def test_whoever_decodes_verifies_as_many_drafts_as_are_made() -> None:
    assert broken(Speculation, decodes(4, MADE, MADE)) == []
    assert broken(Speculation, decodes(4, MADE, Chunk(20, 3, drafts=2))) == ["drafts b 4"]
    assert broken(Speculation, decodes(4, Chunk(20, 1, drafts=0))) == ["drafts a 4"]
    assert broken(Speculation, decodes(4, Chunk(20, 1))) == []  # nothing says whether it verifies any
    assert broken(Speculation, decodes(4, Chunk(20, 1, drafts=0)), grammar=(7, 8)) == []


def test_fewer_drafts_are_verified_where_a_step_is_full_and_where_the_context_ends() -> None:
    few = Chunk(20, 2, drafts=1)
    assert broken(Speculation, decodes(4, few, Chunk(0, 14))) == []
    assert broken(Speculation, decodes(4, few, Chunk(0, 13))) == ["drafts a 4"]
    assert broken(Speculation, decodes(4, few), facts=replace(FACTS, context=23)) == []
    assert broken(Speculation, decodes(4, few), facts=replace(FACTS, context=24)) == ["drafts a 4"]


def test_drafts_that_are_verified_were_made() -> None:
    last = decodes(4, MADE, makes_none=True)
    assert broken(Speculation, last) == []
    assert broken(Speculation, last, decodes(6, MADE)) == ["made a 6"]
    assert broken(Speculation, last, Launch(5, "extend", ("a",), (Chunk(0, 16),)), decodes(6, MADE)) == []
    assert broken(Speculation, last, decodes(5, Chunk(20, 1, drafts=0))) == ["drafts a 5"]
