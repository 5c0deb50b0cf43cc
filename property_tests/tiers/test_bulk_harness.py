"""Checking by the thousand: one wrong request is found, made again alone, shrunk, and replayed; one that ends its
process costs one case.
"""

from __future__ import annotations

import itertools
import json
import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from property_tests.support.forked_target import forked
from specsim.choices.chooser import replayed
from specsim.cli import app
from specsim.contracts.contract import Implementation, Tensors
from specsim.contracts.provider import MappingProvider, Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.contracts.sampling import WIDE_VOCAB_SIZES
from specsim.isolation.fork_runner import Ended, blame, run_apart
from specsim.isolation.messages import Message, Messages
from specsim.reference import verify_tree_greedy
from specsim.tiers.checking import run_suite
from specsim.tiers.messages import Done, FailureWork, Found, Request
from specsim.tiers.ops import bulk, bulk_answers
from specsim.tiers.ops.run import DeviceLostError, raise_if_lost, run_case
from specsim.tiers.replaying import replay
from specsim.verdict import Finding, Suite

OP = OPS["verify_tree_greedy"]
CASES = 9_000


def subject_of(call: Implementation, op: str = "verify_tree_greedy") -> Subject:
    (subject,) = MappingProvider("mine", {op: call}).subjects()[0]
    return subject


def check(call: Implementation, op: str = "verify_tree_greedy", cases: int = CASES, seed: int = 0) -> bulk.BulkResult:
    return bulk.check_in_bulk(
        OPS[op],
        subject_of(call, op),
        seed=seed,
        cases=cases,
        device="cpu",
        deadline=time.monotonic() + 60,
        on_launch=lambda _cases, _launch: None,
        on_attempt=lambda: None,
    )


def wrong_at(root: int, change: Callable[[Tensors], None]) -> Implementation:
    """The reference, but for requests whose root is this token."""

    def call(**arguments: Any) -> Any:
        results = verify_tree_greedy(**arguments)
        rows = arguments["candidates"][:, 0] == root
        if bool(rows.any()):
            change({"rows": rows, **arguments, **results._asdict()})
        return results

    return call


def a_root(launch_at: int = 1, place: int = 1234) -> int:
    """The root token of one request of the default run, which few others of it have."""
    subject = subject_of(REFERENCE["verify_tree_greedy"])
    chosen = list(bulk.launches(OP, subject, bulk.BulkPlace("cpu", "cpu"), 0, CASES))[launch_at]
    case = OP.cases.make(chosen.numbers("cpu"), chosen.shape)
    return int(case.tensors["candidates"][place, 0])


def adds_one(to: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        if to == "predicts":  # of the root, which every path has
            tensors[to].view(tensors["candidates"].shape)[tensors["rows"], 0] += 1
        else:
            tensors[to][tensors["rows"]] += 1

    return change


@pytest.mark.parametrize("name", {op.family: name for name, op in OPS.items()}.values())
@pytest.mark.slow(runs_one_in=3)
def test_the_reference_is_correct_in_bulk(name: str) -> None:
    result = check(REFERENCE[name], name, cases=300)
    assert result.counterexample is None
    assert result.cases == 300


@pytest.mark.parametrize("what", ["predicts", "accept_index", "candidates"])
def test_one_wrong_request_of_tens_of_thousands_is_found_and_made_again_alone(what: str) -> None:
    """In every output, and when it is an input that is changed."""
    call = wrong_at(a_root(), adds_one(what))
    result = check(call)
    found = result.counterexample
    assert found is not None
    assert found.case.sizes["bs"] == 1
    assert found.rule.id == ("O3" if what == "candidates" else "O1")
    alone = bulk.with_bulk_cases(OP).generate(replayed(found.tape))
    assert all(torch.equal(alone.tensors[name], tensor) for name, tensor in found.case.tensors.items())
    assert run_case(OP, subject_of(call), alone).of(found.rule) is not None
    assert "in a launch of 4096 requests" in found.explanation


def test_a_defect_that_takes_two_requests_keeps_two() -> None:
    def of_the_request_before(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
        at = accept_index.gather(1, (accept_lens.roll(1) - 1).long()[:, None])
        return predict[at[:, 0].long()]

    found = check(of_the_request_before, "fill_bonus_tokens").counterexample
    assert found is not None
    assert found.case.sizes["bs"] == 2
    assert found.rule.id == "O1"


def test_a_result_that_is_wrong_only_once_is_reported() -> None:
    calls = iter(range(10**9))

    def now_and_then(**arguments: Any) -> Any:
        results = verify_tree_greedy(**arguments)
        if next(calls) == 2:
            results.accept_token_num[0] += 1
        return results

    found = check(now_and_then).counterexample
    assert found is not None
    assert found.outcome is not None
    assert "once, and not again" in found.outcome.violations[0].title


def test_launches_are_a_function_of_seed_and_cases_alone_and_numbers_never_repeat() -> None:
    subject = subject_of(REFERENCE["verify_tree_greedy"])
    place = bulk.BulkPlace("cpu", "cpu")
    some = list(bulk.launches(OP, subject, place, 3, CASES))
    assert some == list(bulk.launches(OP, subject, place, 3, CASES))
    assert sum(launch.count for launch in some) == CASES
    for earlier, later in itertools.pairwise(some):
        assert earlier.first + earlier.count == later.first
    others = list(bulk.launches(OP, subject, place, 4, CASES))
    assert others[0].first > some[-1].first + some[-1].count


@pytest.mark.parametrize("room", [1, 7, 4096])
def test_a_launch_that_does_not_fit_into_memory_is_made_in_halves(room: int) -> None:
    taken = []

    def small(**arguments: Any) -> Any:
        if len(arguments["candidates"]) > room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        taken.append(len(arguments["candidates"]))
        return verify_tree_greedy(**arguments)

    result = check(small, cases=300)
    assert result.counterexample is None
    launched = taken[-result.launches :]  # before them two requests tell whether kernels are interpreted
    assert sum(launched) == result.cases == 300
    assert max(launched) == result.packed <= room


def test_the_distribution_of_verifications_is_wide() -> None:
    subject = subject_of(REFERENCE["verify_tree_greedy"])
    accepted, nodes, cases, seen = 0, 0, 0, []
    for launch in bulk.launches(OP, subject, bulk.BulkPlace("cpu", "cpu"), 0, 80_000):
        shape = launch.shape
        assert 2 <= shape["num_draft_tokens"] <= 64
        assert 1 <= shape["topk"] <= 8
        assert 1 <= shape["num_steps"] <= 9
        case = OP.cases.make(launch.numbers("cpu"), shape)
        assert int(case.tensors["candidates"].min()) >= 2**17
        accepted += int((OP.expected(case)["accept_token_num"] >= 2).sum())
        cases, nodes = cases + launch.count, nodes + launch.count * shape["num_draft_tokens"]
        columns = torch.cat([case.tensors[name] for name in ("candidates", "target_predict")], dim=1).double()
        seen.append((columns * torch.linspace(1.0, 2.0, columns.shape[1], dtype=torch.float64)).sum(dim=1))
    assert accepted >= 0.3 * cases
    assert 16 <= nodes / cases <= 44
    assert torch.cat(seen).unique().shape[0] > 0.999 * cases


@pytest.mark.parametrize(
    ("op", "packed"),
    [
        ("verify_tree_greedy", 4096),
        ("verify_ragged_greedy", 4096),
        ("fill_accept_out_cache_loc", bulk.REQUESTS_OF_BATCH_MAX),
    ],
)
def test_launches_are_wide_where_requests_do_not_meet(op: str, packed: int) -> None:
    assert check(REFERENCE[op], op, cases=5_000).packed == packed


MISBEHAVING = """
    import os
    import time

    import torch
    from specsim.reference import verify_tree_greedy as right

    ROOT = {root}

    def _at(candidates):
        return bool((candidates[:, 0] == ROOT).any())

    def wrong(candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, target_predict, num_steps):
        results = right(
            candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, target_predict, num_steps
        )
        results.accept_token_num[candidates[:, 0] == ROOT] += 1
        return results

    def dies(candidates, **others):
        if _at(candidates):
            os._exit(9)
        return right(candidates, **others)

    def leaves(candidates, **others):
        if _at(candidates):
            os._exit(0)
        return right(candidates, **others)

    def hangs(candidates, **others):
        while _at(candidates):
            time.sleep(0.1)
        return right(candidates, **others)

    def large(candidates, **others):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def bonus(predict, accept_index, accept_lens):
        return predict[accept_index.gather(1, (accept_lens - 1).long()[:, None])[:, 0].long()]

    wrongly = {{"verify_tree_greedy": wrong}}
    too_large = {{"verify_tree_greedy": large}}
    dying = {{"verify_tree_greedy": dies, "fill_bonus_tokens": bonus}}
    leaving = {{"verify_tree_greedy": leaves, "fill_bonus_tokens": bonus}}
    hanging = {{"verify_tree_greedy": hangs, "fill_bonus_tokens": bonus}}
"""


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Request]:
    (tmp_path / "bulky.py").write_text(textwrap.dedent(MISBEHAVING).format(root=a_root(1, 77)))
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name: Request(
        tier="ops",
        target=f"bulky:{name}",
        cache=str(tmp_path),
        seed=0,
        count=9_000,
        seconds=60.0,
        hang_seconds=5.0,
        bulk=True,
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Request], tuple[Suite, list[Finding]]]:
    monkeypatch.setattr("specsim.tiers.process.ask", forked)
    return lambda request: run_suite(request, tmp_path / "found", lambda _subject, _cases: None)


def test_the_finding_of_a_bulk_case_replays_alone(
    request_of: Callable[[str], Request], run: Callable[[Request], tuple[Suite, list[Finding]]]
) -> None:
    request = request_of("wrongly")
    _suite, (finding,) = run(request)
    stored = json.loads(Path(finding.replay).read_text())
    assert stored["sizes"]["bs"] == 1
    assert stored["generator"] == "bulk"
    assert replay(request, Path(finding.replay), ask=forked)["violations"][0]["rule"] == "O1"


@pytest.mark.parametrize("name", ["dying", "leaving"])  # with exit code 0 too, which says nothing
@pytest.mark.slow(runs_one_in=2)
def test_a_launch_that_ends_its_process_costs_one_case(
    name: str, request_of: Callable[[str], Request], run: Callable[[Request], tuple[Suite, list[Finding]]]
) -> None:
    _one_case_is_lost(run, request_of(name), "O8")


@pytest.mark.slow
def test_a_launch_that_hangs_costs_one_case_and_the_run_goes_on(
    request_of: Callable[[str], Request], run: Callable[[Request], tuple[Suite, list[Finding]]]
) -> None:
    _one_case_is_lost(run, msgspec.structs.replace(request_of("hanging"), hang_seconds=2.0), "O7")


def _one_case_is_lost(run: Callable[[Request], tuple[Suite, list[Finding]]], request: Request, rule: str) -> None:
    suite, (finding,) = run(request)
    assert finding.rule == rule
    stored = json.loads(Path(finding.replay).read_text())
    assert stored["tensors"]["candidates"]["shape"][0] == 1
    assert stored["tensors"]["candidates"]["data"][0] == a_root(1, 77)
    assert {checked.op: checked.cases for checked in suite.judged}["fill_bonus_tokens"] == request.count


def hangs_on(wanted: int, first: int, count: int) -> None:
    while first <= wanted < first + count:
        time.sleep(0.01)


def dies_on(wanted: int, first: int, count: int) -> None:
    if first <= wanted < first + count:
        os._exit(7)


@pytest.mark.parametrize(("what", "hung", "text"), [(hangs_on, True, "1.5 s"), (dies_on, False, "exit code 7")])
def test_the_part_that_ends_a_process_is_found(what: Callable[..., None], hung: bool, text: str) -> None:
    limit = 1.5 if hung else 30.0
    found = blame(lambda first, count: run_apart(lambda: what(1002, first, count), limit), 1000, 4)
    assert found[:2] == (1002, 1)
    assert found[2] is not None
    assert found[2].hung == hung
    assert text in found[2].text


def test_an_operation_of_which_no_case_fits_is_not_run(
    request_of: Callable[[str], Request], run: Callable[[Request], tuple[Suite, list[Finding]]]
) -> None:
    suite, findings = run(request_of("too_large"))
    assert not findings
    assert bulk_answers.NO_MEMORY in [entry.why for entry in suite.not_run]


def test_what_ends_a_process_in_company_alone_is_blamed_whole() -> None:
    first, count, ended = blame(lambda _first, count: Ended(False, "dies") if count == 8 else None, 0, 8)
    assert (first, count, ended) == (0, 8, Ended(False, "dies"))


def test_an_exception_ends_no_process() -> None:
    assert run_apart(lambda: 1 / 0, 5.0) is None


def test_bulk_is_of_operations_alone() -> None:
    ended = CliRunner().invoke(app, ["check", "model", "--bulk"])
    assert "--bulk without --only ops" in str(ended.exception)


def test_a_launch_that_is_only_slow_is_no_finding(request_of: Callable[[str], Request]) -> None:
    """It did not end within the limit, and its parts do: that is said, and it counts as not run."""
    sent = Sent()
    launch = {"device": "cpu", "tape": [], "first": 0, "count": 4}
    subject, text = "kernel:verify_tree_greedy", "does not end within 5 s"
    work = FailureWork(subject=subject, index=8, count=8, known="", place=launch, hung=True, text=text)
    request = msgspec.structs.replace(request_of("wrongly"), work=work, hang_seconds=60.0)
    bulk_answers.failure(request, work, cast("Messages", sent))
    done = sent.messages[-1]
    assert isinstance(done, Done)
    assert done.judged.cases == 8
    assert "once" in done.not_run[0].why
    assert not any(isinstance(message, Found) for message in sent.messages)


def test_a_device_that_does_no_more_work_ends_the_process_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupts(**_arguments: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    error = RuntimeError("launch failed")
    raise_if_lost("cpu", error)  # nothing can be lost there
    monkeypatch.setattr("torch.cuda.synchronize", lost)
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        raise_if_lost("cuda", error)
    monkeypatch.setattr("specsim.tiers.ops.bulk.raise_if_lost", lambda _device, error: raise_if_lost("cuda", error))
    with pytest.raises(DeviceLostError):
        check(corrupts)


class Sent:
    """What a child says, kept."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("op", ["verify_tree_target_only", "verify_tree_rejection", "verify_chain_block"])
def test_some_vocabularies_lie_beside_powers_of_two(op: str) -> None:
    subject, place = subject_of(REFERENCE[op], op), bulk.BulkPlace("cpu", "interpreter")
    launches = itertools.islice(bulk.launches(OPS[op], subject, place, 0, 10_000), bulk.SHAPES)
    sizes = {launch.shape["vocab_size"] for launch in launches}
    assert sizes & set(WIDE_VOCAB_SIZES)
    assert min(sizes) < 13
