"""vLLM's own second model runner over a model that is none, driven by the release's scheduler: what it shows on
releases, and that the model reads what the runner selects.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from property_tests.support.found_schedules import found_by
from property_tests.support.known_releases import VLLM_OLD
from property_tests.support.release_schedules import shown_by, signatures_of
from specsim.choices.chooser import replayed
from specsim.engines.vllm.scheduler.release_model import BatchSeat, Pass, StageModel
from specsim.engines.vllm.scheduler.setups import SETUPS
from specsim.lifting.cache import Cache
from specsim.vdevice import Device, simulate
from specsim.world.hash_model import VOCABULARY, Prefixes, decoded, prefix_of
from specsim.world.kv import REJECTED, Kv, Reports
from specsim.world.scheduler import Setup, WrongContent, rows_of

ROWS = rows_of(SETUPS, "release")
ASSERTION = "scheduler:X1:prepare_inputs:AssertionError"


@pytest.fixture(scope="module")
def schedules(vllm_release: str) -> list[dict[str, Any]]:
    """Two of each setup."""
    count = 2 * len(ROWS)
    shown: list[dict[str, Any]] = shown_by(vllm_release, count, "0", engine="vllm", worker="release")["schedules"]
    return shown


def test_the_newest_release_breaks_no_rule_but_without_asynchronous_scheduling_in_a_pipeline_and_where_a_load_fails(
    schedules: list[dict[str, Any]],
) -> None:
    setups = [SETUPS[row] for row in ROWS] * 2
    shown = [(setup, schedule) for setup, schedule in zip(setups, schedules, strict=True) if not setup.overlap]
    in_a_pipeline = [schedule for setup, schedule in shown if setup.stages > 1]
    with_loads = [schedule for setup, schedule in shown if setup.connector]
    assert signatures_of(in_a_pipeline) == [ASSERTION]
    assert "scheduler:I05:full:nothing" in signatures_of(with_loads)
    known = [*in_a_pipeline, *with_loads]
    assert signatures_of([schedule for schedule in schedules if schedule not in known]) == []


def test_a_pipeline_that_waits_for_more_than_is_sent_is_found(vllm_release: str) -> None:
    schedules = shown_by(VLLM_OLD, len(ROWS), "0", engine="vllm", worker="release")["schedules"]
    assert "scheduler:S13:broadcast" in signatures_of(schedules)


def test_schedules_leave_nothing_behind_for_those_that_come_after_them_whatever_the_hash_seed(
    vllm_release: str, schedules: list[dict[str, Any]]
) -> None:
    alone = shown_by(vllm_release, len(ROWS) // 2, "7", engine="vllm", alone=True, worker="release")
    assert alone["schedules"] == schedules[: len(ROWS) // 2]


@pytest.mark.parametrize(
    ("mutant", "signature", "schedules"),
    [
        ("W03", "scheduler:S13:block-table", 1),
        ("W05", "scheduler:I05:full:other-tokens", 1),
        ("W15", "scheduler:S2:pinned-reuse", 5),
    ],
    ids=["blocks", "a-kernel", "a-race"],
)
def test_a_planted_defect_is_found(
    vllm_release: str, wheel_cache: Cache, mutant: str, signature: str, schedules: int
) -> None:
    found = found_by(f"vllm=={vllm_release}", wheel_cache, schedules, mutant=mutant, worker="release")
    assert any(one.startswith(signature) for one in found), found


# ---- the model


PROMPT = [20, 21, 22, 23, 24, 25]
SAID = decoded(PROMPT, 6)
TEXT = [40, 41, 42, 43, 44, 45]
BLOCK = 4
STEPS = 3


@pytest.fixture
def device() -> Iterator[Device]:
    with simulate(replayed(())) as one:
        yield one


def made(device: Device, *, is_first: bool = True, window: int = 0) -> tuple[StageModel, Reports, list[Any]]:
    """A model, what it reports, and what it finds otherwise than the scheduler."""
    reports, found = Reports(), list[Any]()
    setup = Setup(page_size=BLOCK, steps=STEPS, window=window)
    kv = Kv(reports, 10 * BLOCK, 10 * BLOCK if window else 0)
    return StageModel(setup, device, kv, lambda *one: found.append(one), is_first=is_first), reports, found


def seat(rid: str = "a", drafts: int = 0, blocks: tuple[int, ...] = (5, 2, 3), prompt: list[int] = PROMPT) -> BatchSeat:
    return BatchSeat(rid, Prefixes(prompt), drafts, (blocks,))


def run(
    model: StageModel, rows: list[tuple[BatchSeat, int, list[int]]], tables: list[list[int]] | None = None
) -> tuple[Any, Any]:
    """A pass of rows (request, its first position, tokens): its hashes, and its batch."""
    tables = tables or [list(one.blocks[0]) for one, _first, _tokens in rows]
    positions = [first + at for _one, first, tokens in rows for at in range(len(tokens))]
    starts = [sum(len(tokens) for _one, _first, tokens in rows[:n]) for n in range(len(rows) + 1)]
    slots = [
        table[position // BLOCK] * BLOCK + position % BLOCK
        for table, (_one, first, tokens) in zip(tables, rows, strict=True)
        for position in range(first, first + len(tokens))
    ]

    def there(values: Any, dtype: torch.dtype = torch.int64) -> Any:
        return torch.tensor(values, dtype=dtype, device="cuda")

    given = there([token for _one, _first, tokens in rows for token in tokens])
    logits = [at for n, (one, _f, _t) in enumerate(rows) for at in range(starts[n + 1] - one.drafts - 1, starts[n + 1])]
    counts = [one.drafts + 1 for one, _first, _tokens in rows]
    batch = SimpleNamespace(
        num_reqs=len(rows),
        query_start_loc=there(starts),
        seq_lens=there([first + len(tokens) for _one, first, tokens in rows]),
        input_ids=given,
        idx_mapping=there(list(range(len(rows)))),
        logits_indices=there(logits),
        cu_num_logits=there([sum(counts[:n]) for n in range(len(rows) + 1)]),
    )
    found = Pass([one for one, _first, _tokens in rows], batch, (there(tables),), there([slots]))
    return model.forward(found, there(positions), given), batch


def test_a_pass_writes_the_hashes_of_its_prefixes_to_its_slots_and_says_the_next_token(device: Device) -> None:
    model, reports, found = made(device)
    hidden, batch = run(model, [(seat(), 0, PROMPT)])
    slots = [*range(5 * BLOCK, 6 * BLOCK), 2 * BLOCK, 2 * BLOCK + 1]
    hashes = [prefix_of(PROMPT[: count + 1]) for count in range(len(PROMPT))]
    assert hidden.tolist() == model.kv.full[slots].tolist() == hashes
    tokens, counts = model.sample(model.logits(hidden[batch.logits_indices]), batch)
    assert (tokens.tolist(), counts.tolist()) == ([SAID[:1]], [1])
    assert reports.records == found == []


@pytest.mark.parametrize("right", range(STEPS + 1))
def test_a_verification_says_the_drafts_that_are_right_and_one_token(device: Device, right: int) -> None:
    model, reports, found = made(device)
    one = seat()
    hidden, batch = run(model, [(one, 0, PROMPT)])
    drafts = model.draft(
        [one], batch, torch.tensor([0], device="cuda"), torch.tensor([SAID[:1]], device="cuda"), [right]
    )
    given = drafts.tolist()[0]
    assert given[:right] == SAID[1 : right + 1]
    assert right == STEPS or given[right] != SAID[right + 1]
    hidden, batch = run(model, [(seat(drafts=STEPS), 6, [SAID[0], *given])])
    tokens, counts = model.verify(model.logits(hidden[batch.logits_indices]), batch)
    assert tokens.tolist()[0][: right + 1] == SAID[1 : right + 2]
    assert counts.tolist() == [right + 1]
    slots = [2 * BLOCK + 3, 3 * BLOCK, 3 * BLOCK + 1]
    assert [bool(kv != REJECTED) for kv in model.kv.full[slots]] == [at < right for at in range(STEPS)]
    assert reports.records == found == []


@pytest.mark.parametrize("invalid", range(1, STEPS + 1))
def test_a_draft_that_no_mask_was_made_for_is_rejected(device: Device, invalid: int) -> None:
    model, _reports, _found = made(device)
    run(model, [(seat(), 0, PROMPT)])
    hidden, batch = run(model, [(seat(drafts=STEPS), 6, SAID[: STEPS + 1])])
    rows = torch.tensor([row >= invalid for row in range(STEPS + 1)], device="cuda")
    tokens, counts = model.verify(model.logits(hidden[batch.logits_indices]), batch, rows)
    assert (counts.tolist(), tokens.tolist()[0][:invalid]) == ([invalid], SAID[1 : invalid + 1])


def test_what_a_mask_leaves_is_said_and_drafted(device: Device) -> None:
    model, reports, _found = made(device)
    one = seat()
    one.prefixes.say(len(PROMPT), TEXT)
    hidden, batch = run(model, [(one, 0, PROMPT)])
    logits = model.logits(hidden[batch.logits_indices])
    logits[:, [token for token in range(VOCABULARY) if token != TEXT[0]]] = -float("inf")
    tokens, _counts = model.sample(logits, batch)
    assert tokens.tolist() == [TEXT[:1]]
    drafts = model.draft([one], batch, torch.tensor([0], device="cuda"), tokens, [STEPS])
    assert drafts.tolist()[0] == TEXT[1 : STEPS + 1]
    assert reports.records == []


def test_a_later_stage_takes_the_hashes_of_the_one_before(device: Device) -> None:
    model, reports, _found = made(device, is_first=False)
    hashes = [prefix_of(PROMPT[: count + 1]) for count in range(len(PROMPT))]
    hidden, _batch = run(model, [(seat(), 0, hashes)])
    assert hidden.tolist() == hashes
    assert reports.records == []


def test_a_row_may_read_what_another_row_of_its_pass_writes(device: Device) -> None:
    """Requests that share blocks: a layer writes the KV of all before any reads."""
    model, reports, found = made(device)
    last = seat("b", blocks=(5, 7))
    hidden, _batch = run(model, [(last, 4, PROMPT[4:]), (seat("a", blocks=(5, 2)), 0, PROMPT)])
    assert hidden.tolist()[:2] == [prefix_of(PROMPT[:5]), prefix_of(PROMPT)]
    assert reports.records == found == []


def test_a_table_that_is_not_the_schedulers_is_a_disagreement(device: Device) -> None:
    model, reports, found = made(device)
    run(model, [(seat(), 0, PROMPT)])
    run(model, [(seat(), 6, SAID[:1])], tables=[[5, 6, 3]])
    assert found == [("block-table", "a", "block 2 at 1", "block 6")]
    (content,) = reports.records
    assert isinstance(content, WrongContent)
    assert (content.rid, content.pool, content.position, content.holds) == ("a", "full", 4, "nothing")


def test_another_token_than_the_requests_own_is_wrong_input(device: Device) -> None:
    model, reports, _found = made(device)
    run(model, [(seat(), 0, [*PROMPT[:5], 99])])
    (content,) = reports.records
    assert (content.rid, content.pool, content.position) == ("a", "input", 5)
