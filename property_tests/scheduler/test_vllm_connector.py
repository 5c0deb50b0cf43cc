"""A connector to KV outside vLLM's engine: when a load comes, what it writes and what is handed on."""

from __future__ import annotations

from typing import Any

import pytest

from property_tests.support.vllm_batches import BLOCK, PROMPT, arrives, batch, goes_on
from specsim.engines.vllm.scheduler.connector import Outside, Transfer, TransferPlan
from specsim.engines.vllm.scheduler.model import Model
from specsim.world.hash_model import Prefixes, decoded, prefix_of
from specsim.world.kv import UNWRITTEN, NoSlot
from specsim.world.ledger import Freed
from specsim.world.scheduler import WrongContent

SAID = decoded(PROMPT, 4)
OTHER = [31, 30, 29, 28, 27, 26]
LENGTH = len(PROMPT)
NOTHING = TransferPlan((), (), ())
SILENCE = (set[str](), set[str](), set[int]())


def made(*, is_told: bool = False, **draws: list[int]) -> tuple[Model, Outside]:
    """A model with a connector. `draws` are the choices of a label, whose blanks are underscores; then zeros."""
    outside, left = Outside(BLOCK), {label.replace("_", " "): iter(values) for label, values in draws.items()}
    outside.draws = lambda _count, label: next(left.get(label, iter(())), 0)
    model = Model(8, (BLOCK,), 3, context=240, is_told=is_told, outside=outside)
    model.prefixes.update(a=Prefixes(PROMPT), b=Prefixes(OTHER))
    return model, outside


def launched(model: Model, counts: dict[str, int], *, plan: TransferPlan = NOTHING, **more: Any) -> Any:
    assert model.outside is not None
    loads, _failed = model.outside.take(plan)
    return model.launch(batch(counts, **more), None, loads)


def new(rid: str, blocks: list[int], computed: int = 0) -> Any:
    one = arrives(blocks, computed)
    one.req_id, one.prompt_token_ids = rid, PROMPT if rid == "a" else OTHER
    return one


def kv_of(model: Model, block: int, count: int = BLOCK) -> list[int]:
    found: list[int] = model.kv.full[block * BLOCK : block * BLOCK + count].tolist()
    return found


HASHES = [prefix_of(PROMPT[: count + 1]) for count in range(LENGTH)]


def test_what_is_loaded_in_a_step_is_there_when_it_is_read() -> None:
    model, _outside = made()
    plan = TransferPlan((Transfer("a", (5, 2), 0, BLOCK),), (), ())
    said = launched(model, {"a": 2}, new=[new("a", [5, 2], BLOCK)], plan=plan)
    assert kv_of(model, 5) == [UNWRITTEN] * BLOCK  # nothing has run yet
    assert said() == {"a": SAID[:1]}
    assert kv_of(model, 5) == HASHES[:BLOCK]
    assert model.reports.records == []


def test_what_comes_meanwhile_is_written_and_said_once() -> None:
    model, outside = made(is_still_coming=[1])
    launched(model, {}, plan=TransferPlan((), (Transfer("a", (5, 2), 0, LENGTH),), ()))()
    outside.pass_time(model)
    assert (outside.said(), kv_of(model, 5)) == (SILENCE, [UNWRITTEN] * BLOCK)
    outside.pass_time(model)
    assert kv_of(model, 5) + kv_of(model, 2, 2) == HASHES
    assert outside.said() == ({"a"}, set(), set())
    assert outside.said() == SILENCE


@pytest.mark.parametrize(("before", "is_wrong"), [(0, False), (1, False), (2, True)])
def test_a_load_comes_before_or_after_what_was_launched(before: int, is_wrong: bool) -> None:
    """A block is given to a load while a step that writes it is under way."""
    model, outside = made(launches_that_it_comes_before=[before])
    first = launched(model, {"a": LENGTH}, new=[new("a", [5, 2])])
    launched(model, {}, finished=["a"], plan=TransferPlan((), (Transfer("b", (2, 3), 0, LENGTH),), ()))
    outside.pass_time(model)
    assert first() == {"a": SAID[:1]}
    launched(model, {"b": 1}, new=[new("b", [2, 3], LENGTH - 1)])()
    assert [type(one) for one in model.reports.records] == [WrongContent] * is_wrong


def test_a_load_that_fails_writes_what_comes_before_and_names_the_blocks() -> None:
    model, outside = made(fails=[1], fails_from=[1])
    launched(model, {}, plan=TransferPlan((), (Transfer("a", (5, 2), 0, LENGTH),), ()))()
    outside.pass_time(model)
    assert (kv_of(model, 5), kv_of(model, 2)) == (HASHES[:BLOCK], [UNWRITTEN] * BLOCK)
    assert outside.said() == ({"a"}, set(), {2})


def test_what_is_computed_in_the_step_of_a_load_that_fails_nobody_reads() -> None:
    """The first model runner is told to forget what it said, and to begin anew."""
    model, outside = made(fails=[1], is_told=True)
    outside.fails_in_steps = True
    plan = TransferPlan((Transfer("a", (5, 2), 0, BLOCK),), (), ())
    loads, failed = outside.take(plan)
    assert (loads, failed) == ([(plan.in_the_step[0], 0)], [5])
    model.launch(batch({"a": 2}, new=[new("a", [5, 2], BLOCK)]), None, loads)()
    assert model.reports.records == []
    again = goes_on([], 0)
    again.num_output_tokens = [0]
    assert launched(model, {"a": LENGTH}, cached=again)() == {"a": SAID[:1]}
    assert model.reports.records == []


def test_what_is_handed_on_is_read_when_its_time_comes() -> None:
    model, outside = made(is_still_to_be_read=[1])
    launched(model, {"a": LENGTH}, new=[new("a", [5, 2])])()
    launched(model, {}, finished=["a"], plan=TransferPlan((), (), (Transfer("a", (5, 2), 0, LENGTH),)))()
    outside.pass_time(model)
    assert outside.said() == SILENCE
    launched(model, {"b": LENGTH}, new=[new("b", [3, 2])])()  # block 2 is given away too soon
    outside.pass_time(model)
    (wrong,) = model.reports.records
    assert isinstance(wrong, WrongContent)
    assert (wrong.rid, wrong.phase, wrong.position) == ("a", "send", BLOCK)
    assert outside.said() == (set(), {"a"}, set())


def test_what_is_handed_on_needs_blocks() -> None:
    model, outside = made()
    launched(model, {}, plan=TransferPlan((), (), (Transfer("a", (), 0, LENGTH),)))()
    outside.pass_time(model)
    assert model.reports.records == [NoSlot("send", "a", 0)]


def test_a_block_is_freed_after_what_was_launched_before() -> None:
    """Or else nobody would be said to have freed it: it is written afterwards."""
    model, _outside = made()
    launched(model, {"a": LENGTH}, new=[new("a", [5, 2, 3])])
    model.freed([2], Freed("free", "scheduler.py:1"))
    launched(model, {"b": LENGTH}, new=[new("b", [4, 2, 6])])
    launched(model, {"a": 1}, cached=goes_on([]))()
    (wrong,) = model.reports.records
    assert isinstance(wrong, WrongContent)
    assert (wrong.rid, wrong.holds, wrong.freed_by) == ("a", "other tokens", "free")


def test_a_batch_is_the_workers_own() -> None:
    """The scheduler may go on to change what it sent."""
    model, _outside = made()
    one = new("a", [5, 2])
    one.prefill_token_ids = list(PROMPT)
    said = launched(model, {"a": LENGTH}, new=[one])
    one.prefill_token_ids.append(99)
    assert said() == {"a": SAID[:1]}
