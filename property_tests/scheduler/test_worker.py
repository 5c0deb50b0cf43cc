"""The worker of the hash model: what it computes, and what it finds in KV that is not what it should be.

Tensors are the CPU's, and each launch runs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specsim.engines.sglang.scheduler.worker import Parts, Tables, Worker
from specsim.rules.sampling import is_right as is_as_said
from specsim.world.fakes import AdapterDriftError, Answers, Fake
from specsim.world.hash_model import Prefixes, decoded, logprob_row
from specsim.world.kv import UNMASKED, BadValue, BatchInput, Disagreement, Masked, NoSlot, Penalized
from specsim.world.scheduler import WrongContent

PROMPT = [11, 12, 13, 14, 15]
DRAFTS = 4


class Launches:
    """A device whose launches run at once."""

    def launch(self, function: Any, reads: Any = (), writes: Any = (), name: str = "") -> None:
        function(self)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def read(self, tensor: torch.Tensor, elements: Sequence[int], is_used: object = None) -> None:
        assert all(0 <= element < tensor.numel() for element in elements)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """One request in row 0 of one, whose position p is in slot p + 1."""
    on_cpu = {name: _on_cpu(getattr(torch, name)) for name in ("empty", "ones", "zeros")}
    for name, function in on_cpu.items():
        monkeypatch.setattr(torch, name, function)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None))
    rows = torch.arange(1, 41, dtype=torch.int32).reshape(1, 40).clone()
    names = "bonus", "new_seq_lens", "verify_done", "logits_output", "next_token_ids", "next_draft_input", "accept_lens"
    parts = Parts(SimpleNamespace, frozenset(names), SimpleNamespace, frozenset(names), "bonus", SimpleNamespace)
    return Worker(Answers({}), Launches(), parts, Tables(rows), (64, 0), DRAFTS)


def _on_cpu(function: Any) -> Any:
    return lambda *arguments, **named: function(*arguments, **{**named, "device": "cpu"})


UNPENALIZED = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}


def request(rid: str = "r", *, finished: bool = False) -> Any:
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=PROMPT,
        output_ids=[],
        grammar=None,
        sampling_params=SimpleNamespace(**UNPENALIZED),
        is_retracted=False,
        finished=lambda: finished,
    )


def batch(of: Any, length: int, start: int | None = None, bonus: int = 0, top: int = -1) -> Any:
    """A batch of one: extend from `start`, or decode without it. From 0 on `top` asks for logprobs."""
    tokens = [*PROMPT, *decoded(PROMPT, 40)]
    return SimpleNamespace(
        reqs=[of],
        forward_mode=SimpleNamespace(is_extend=lambda: start is not None, name="DECODE" if start is None else "EXTEND"),
        has_grammar=False,
        sampling_info=SimpleNamespace(acc_additive_penalties=None, acc_scaling_penalties=None),
        return_logprob=top >= 0,
        top_logprobs_nums=[top],
        extend_lens=[length - (start or 0)],
        extend_logprob_start_lens=[length - (start or 0)],
        extend_prefix_lens=[start or 0],
        input_ids=torch.tensor(tokens[start or 0 : length]),
        req_pool_indices=torch.tensor([0]),
        seq_lens=torch.tensor([length]),
        seq_lens_cpu=torch.tensor([length]),
        seq_lens_sum=length,
        spec_info=SimpleNamespace(bonus=torch.tensor([bonus])),
    )


def records(worker: Worker) -> list[Any]:
    """Without the sizes of inputs, which are right."""
    inputs = [record for record in worker.reports.records if isinstance(record, BatchInput)]
    assert all(one.requests == one.elements for one in inputs)
    return [record for record in worker.reports.records if not isinstance(record, BatchInput)]


def contents(worker: Worker) -> list[tuple[str, str, int, int, str]]:
    found = [record for record in records(worker) if isinstance(record, WrongContent)]
    return [(record.phase, record.pool, record.position, record.slot, record.holds) for record in found]


def decode(worker: Worker, passes: int, accepted: int) -> list[int]:
    """The tokens that a prompt and so many passes give."""
    worker.restart(lambda _rid, _bound: accepted)
    result = worker.forward_batch_generation(batch(request(), len(PROMPT), 0))
    tokens: list[int] = result.next_token_ids.tolist()
    length = len(PROMPT)
    for _ in range(passes):
        result = worker.forward_batch_generation(batch(request(), length, bonus=tokens[-1]))
        tokens += result.next_token_ids.tolist()[: int(result.accept_lens[0])]
        length = int(result.next_draft_input.new_seq_lens[0])
    return tokens


@pytest.mark.parametrize("accepted", range(1, DRAFTS + 1))
def test_speculative_decoding_gives_what_sequential_decoding_gives(worker: Worker, accepted: int) -> None:
    assert decode(worker, 5, accepted) == decoded(PROMPT, 1 + 5 * accepted)
    assert records(worker) == []


@pytest.mark.parametrize("top", [0, 2])
def test_each_accepted_token_has_its_row_of_logprobs(worker: Worker, top: int) -> None:
    expected, hashed = decoded(PROMPT, 3), Prefixes(PROMPT)
    rows = [logprob_row(hashed.of(len(PROMPT) + i), token, top) for i, token in enumerate(expected)]
    worker.restart(lambda _rid, _bound: 2)
    first = worker.forward_batch_generation(batch(request(), 5, 0, top=top)).logits_output
    then = worker.forward_batch_generation(batch(request(), 5, bonus=expected[0], top=top)).logits_output
    assert then.next_token_logprobs.shape == (1, DRAFTS)
    values = [*first.next_token_logprobs.tolist(), *then.next_token_logprobs[0, :2].tolist()]
    assert values == [row[0][0] for row in rows]
    if not top:
        assert not hasattr(then, "next_token_top_logprobs_val")
        return
    for name, column in (("val", 0), ("idx", 1)):
        tops = [getattr(logits, f"next_token_top_logprobs_{name}") for logits in (first, then)]
        found = [row.tolist() for row in (*tops[0], *tops[1][:2])]
        assert found == [[pair[column] for pair in row[1:]] for row in rows]


@pytest.mark.parametrize("position", range(5))
def test_kv_of_any_position_that_is_another_is_recorded_and_changes_the_tokens(worker: Worker, position: int) -> None:
    decode(worker, 0, 1)
    worker.kv.full[position + 1] = 7
    result = worker.forward_batch_generation(batch(request(), 5, bonus=decoded(PROMPT, 1)[0]))
    (record,) = records(worker)
    assert isinstance(record, WrongContent)
    assert (record.phase, record.pool, record.rid, record.position, record.slot) == (
        "verify",
        "full",
        "r",
        position,
        position + 1,
    )
    assert record.holds == "other tokens"
    assert result.next_token_ids.tolist()[0] != decoded(PROMPT, 2)[1]


def test_a_prompt_token_that_is_another_is_recorded(worker: Worker) -> None:
    wrong = batch(request(), 5, 0)
    wrong.input_ids[2] += 1
    worker.forward_batch_generation(wrong)
    assert [content[:3] for content in contents(worker)] == [("extend", "input", 4)]


def test_a_draft_in_the_slot_of_nobody_is_recorded(worker: Worker) -> None:
    decode(worker, 0, 1)
    worker.tables.rows[0, 6] = 0
    worker.forward_batch_generation(batch(request(), 5, bonus=decoded(PROMPT, 1)[0]))
    assert NoSlot("draft", "r", 6) in worker.reports.records


@pytest.mark.parametrize("name", ["req_pool_indices", "seq_lens"])
def test_a_value_that_nobody_wrote_is_recorded(worker: Worker, name: str) -> None:
    decode(worker, 0, 1)
    wrong = batch(request(), 5, bonus=20)
    getattr(wrong, name)[0] = -24_237
    worker.forward_batch_generation(wrong)
    assert BadValue("draft", "r", name, -24_237) in records(worker)


@pytest.mark.parametrize(
    ("copy", "rid", "expected", "actual"),
    [("req_pool_indices", "r", 0, 1), ("seq_lens", "r", 5, 6), ("seq_lens_sum", "", 5, 6)],
)
@pytest.mark.parametrize("start", [None, 0])
@pytest.mark.parametrize("finished", [False, True])
def test_a_copy_on_the_host_that_is_another_is_recorded(
    worker: Worker, copy: str, rid: str, expected: int, actual: int, start: int | None, finished: bool
) -> None:
    decode(worker, 0, 1)
    wrong = batch(request(finished=finished), 5, start, bonus=decoded(PROMPT, 1)[0])
    wrong.req_pool_indices_cpu = wrong.req_pool_indices.clone()
    setattr(wrong, copy if copy == "seq_lens_sum" else f"{copy}_cpu", actual if not rid else torch.tensor([actual]))
    if copy == "seq_lens":
        wrong.seq_lens_sum = None
    worker.forward_batch_generation(wrong)
    recorded = [Disagreement(f"mirror:{copy}", rid, str(expected), f"{actual} on the host")]
    assert records(worker) == recorded * (not finished or not rid)


def test_a_copy_that_a_release_does_not_keep_is_not_compared(worker: Worker) -> None:
    decode(worker, 0, 1)
    without = batch(request(), 5, bonus=decoded(PROMPT, 1)[0])
    without.seq_lens_cpu, without.seq_lens_sum = None, 7
    worker.forward_batch_generation(without)
    assert records(worker) == []


def test_rows_of_finished_requests_are_not_looked_at(worker: Worker) -> None:
    decode(worker, 0, 1)
    worker.kv.full[:] = 7
    worker.forward_batch_generation(batch(request(finished=True), 5, bonus=20))
    assert records(worker) == []


def test_an_attribute_that_nobody_thought_of_is_drift() -> None:
    answers = Answers({"worker.known": 3})
    fake = Fake("worker", answers, given=4)
    with answers.required():
        assert (fake.known, fake.given) == (3, 4)
    with pytest.raises(AdapterDriftError, match=r"worker\.other, worker\.unknown"), answers.required():
        fake.unknown, fake.other  # noqa: B018


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("fed", [0, 1])
def test_masks_are_of_a_grammar_that_has_read_all_that_was_said(worker: Worker, read: int, fed: int) -> None:
    decode(worker, 0, 1)
    asking = request()
    asking.grammar = SimpleNamespace(read=read, tokens=decoded(PROMPT, 9))
    one = batch(asking, len(PROMPT), bonus=decoded(PROMPT, 1)[0])
    one.has_grammar = True
    worker.forward_batch_generation(
        one, grammar_barrier=lambda: setattr(asking.grammar, "read", asking.grammar.read + fed)
    )
    assert records(worker) == [Masked("r", 1, 9, read + fed)]


def test_a_grammar_in_a_batch_that_says_it_has_none_is_recorded(worker: Worker) -> None:
    decode(worker, 0, 1)
    asking = request()
    asking.grammar = SimpleNamespace(read=1, tokens=decoded(PROMPT, 9))
    worker.forward_batch_generation(batch(asking, len(PROMPT), bonus=decoded(PROMPT, 1)[0]))
    assert records(worker) == [Masked("r", 1, 9, UNMASKED)]


FIRST, OTHER = decoded(PROMPT, 1)[0], 0
PENALIZED = [  # verifications since the prefill, what the last one adds to the logits of tokens, and whether it may
    ("frequency_penalty", 1, {FIRST: -1.5}, True),
    ("frequency_penalty", 2, {FIRST: -3.0}, True),
    ("frequency_penalty", 2, {FIRST: -1.5, PROMPT[-1]: -1.5}, True),
    ("frequency_penalty", 2, {FIRST: -1.5}, False),
    ("frequency_penalty", 1, {FIRST: -3.0}, False),
    ("frequency_penalty", 1, {OTHER: -1.5}, False),
    ("frequency_penalty", 1, {}, False),
    ("presence_penalty", 2, {FIRST: -1.5}, True),
    ("presence_penalty", 2, {FIRST: -1.5, OTHER: -1.5}, False),
    ("presence_penalty", 1, {FIRST: -3.0}, False),
    ("repetition_penalty", 2, {FIRST: 1.5}, True),
    ("repetition_penalty", 2, {FIRST: 1.5, OTHER: 1.5}, False),
    ("repetition_penalty", 1, {}, False),
    ("", 1, {}, True),
    ("", 1, {FIRST: -1.5}, False),
]


@pytest.mark.parametrize(("kind", "passes", "row", "is_right"), PENALIZED)
def test_penalties_are_of_what_the_request_has_said_and_of_nothing_else(
    worker: Worker, kind: str, passes: int, row: dict[int, float], is_right: bool
) -> None:
    decode(worker, 0, 1)
    asking = request()
    asking.output_ids = [FIRST]
    asking.sampling_params = SimpleNamespace(**{**UNPENALIZED, **({kind: 1.5} if kind else {})})
    is_scaling = kind == "repetition_penalty"
    values = torch.full((1, 128), float(is_scaling))
    for token, value in row.items():
        values[0, token] = value
    for number in range(1, passes + 1):
        one = batch(asking, len(PROMPT), bonus=FIRST)
        name = f"acc_{'scaling' if is_scaling else 'additive'}_penalties"
        before = torch.full((1, 128), float(is_scaling))
        before[0, FIRST] = 1.5 if is_scaling else -1.5
        setattr(one.sampling_info, name, values if number == passes else before)
        worker.forward_batch_generation(one)
    found = [record for record in records(worker) if isinstance(record, Penalized)]
    assert [is_as_said(record) for record in found[-1:]] == [is_right]
