"""Operations run in a process that hands over buffers and no verdict: what a target does there spoils its own results
and nothing else.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS
from specsim.tiers.ops.answers import choose_device
from specsim.tiers.ops.run import EndedError, LaunchHere, run_case
from specsim.tiers.ops.suite import SuiteLimits, check_all, check_subject, chooser_of
from specsim.tiers.ops.target_process import TargetProcess

OP = OPS["fill_bonus_tokens"]

PROVIDER = """
    import os, time
    import torch
    from specsim.contracts.registry import REFERENCE

    right = REFERENCE["fill_bonus_tokens"]

    def wrong(predict, accept_index, accept_lens):
        return right(predict, accept_index, accept_lens) + 1

    def patches_torch(predict, accept_index, accept_lens):
        def same(one, other, *_more):
            return torch.zeros(one.shape, dtype=torch.bool)
        for name in ("ne", "not_equal", "isclose"):
            setattr(torch, name, same)
        torch.Tensor.__ne__ = torch.Tensor.ne = same
        torch.Tensor.any = lambda self, *_more: torch.tensor(False)
        torch.equal = lambda one, other: True
        return wrong(predict, accept_index, accept_lens)

    def writes_to_descriptors(predict, accept_index, accept_lens):
        for fd in range(3, 64):
            try:
                os.write(fd, b"\\x00" * 64)
            except OSError:
                pass
        return right(predict, accept_index, accept_lens)

    def forks(predict, accept_index, accept_lens):
        os.fork()
        return right(predict, accept_index, accept_lens)

    def changes_directory(predict, accept_index, accept_lens):
        os.chdir("/")
        return wrong(predict, accept_index, accept_lens)

    def closes_descriptors(predict, accept_index, accept_lens):
        os.closerange(0, 1024)
        return right(predict, accept_index, accept_lens)

    def raises_much(predict, accept_index, accept_lens):
        raise ValueError("x" * 20_000_000)

    def sparse(predict, accept_index, accept_lens):
        return right(predict, accept_index, accept_lens).to_sparse()

    now_and_then = {"calls": 0}

    def dies_when_smaller(predict, accept_index, accept_lens):
        if len(accept_lens) < 2:
            os._exit(7)
        return wrong(predict, accept_index, accept_lens)

    p = {"fill_bonus_tokens": right}
    p_wrong = {"fill_bonus_tokens": wrong}
    p_patches = {"fill_bonus_tokens": patches_torch}
    p_writes = {"fill_bonus_tokens": writes_to_descriptors}
    p_forks = {"fill_bonus_tokens": forks}
    p_moves = {"fill_bonus_tokens": changes_directory}
    p_closes = {"fill_bonus_tokens": closes_descriptors}
    p_raises = {"fill_bonus_tokens": raises_much}
    p_sparse = {"fill_bonus_tokens": sparse}
    p_dies = {"fill_bonus_tokens": dies_when_smaller}
    p_both = {"fill_bonus_tokens": patches_torch, "gather_rows": lambda **_arguments: None}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fenced.py").write_text(textwrap.dedent(PROVIDER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def process(request: pytest.FixtureRequest, folder: Path) -> Iterator[TargetProcess]:
    with TargetProcess(f"fenced:{request.param}", folder, hang_seconds=20.0) as process:
        yield process


def subject(process: TargetProcess) -> Subject:
    return process.subjects[0]


@pytest.mark.parametrize("process", ["p", "p_wrong"], indirect=True)
def test_a_case_shows_the_same_here_and_in_a_process_of_its_own(process: TargetProcess) -> None:
    import importlib

    from specsim.contracts.provider import MappingProvider

    name = "p" if "p_wrong" not in process._load.target else "p_wrong"
    mapping = getattr(importlib.import_module("fenced"), name)
    (here,) = MappingProvider("fenced", mapping).subjects()[0]
    for index in range(6):
        case = OP.generate(chooser_of(0, here, index))
        there = run_case(OP, subject(process), case, related=True, launcher=process)
        assert there == run_case(OP, here, case, related=True, launcher=LaunchHere())


@pytest.mark.parametrize("process", ["p_patches"], indirect=True)
def test_patching_torch_does_not_make_a_wrong_operation_right(process: TargetProcess) -> None:
    found = check_subject(OP, subject(process), seed=0, limits=SuiteLimits(10), launcher=process).counterexample
    assert found is not None
    assert found.rule.id == "O1"
    assert bool(torch.ne(torch.tensor(1), torch.tensor(2)))  # nothing is patched on this side


@pytest.mark.parametrize("process", ["p_writes", "p_closes"], indirect=True)
def test_what_is_written_to_descriptors_is_no_verdict(process: TargetProcess) -> None:
    result = check_subject(OP, subject(process), seed=0, limits=SuiteLimits(5), launcher=process)
    found = result.counterexample
    assert found is not None
    assert (found.rule.id, found.outcome) == ("O8", None)
    assert "descriptor" in found.ended or "ends its process" in found.ended


@pytest.mark.parametrize("process", ["p_forks"], indirect=True)
def test_a_fork_that_comes_back_answers_nothing(process: TargetProcess) -> None:
    result = check_subject(OP, subject(process), seed=0, limits=SuiteLimits(6), launcher=process)
    assert (result.cases, result.failures) == (6, [])


@pytest.mark.parametrize("process", ["p_raises"], indirect=True)
def test_the_text_of_an_exception_is_cut(process: TargetProcess) -> None:
    found = check_subject(
        OP, subject(process), seed=0, limits=SuiteLimits(2, attempts=0), launcher=process
    ).counterexample
    assert found is not None
    assert found.outcome is not None
    (violation,) = found.outcome.violations
    assert len(violation.title) < 5_000
    assert violation.title.endswith("x... (20000012 characters)")


@pytest.mark.parametrize("process", ["p_sparse"], indirect=True)
def test_a_result_that_is_no_dense_tensor_is_a_finding(process: TargetProcess) -> None:
    found = check_subject(OP, subject(process), seed=0, limits=SuiteLimits(2), launcher=process).counterexample
    assert found is not None
    assert found.rule.id == "O5"


@pytest.mark.parametrize("process", ["p_dies"], indirect=True)
def test_an_attempt_that_ends_its_process_leaves_the_case_as_it_was_hit(process: TargetProcess) -> None:
    known = [i for i in range(40) if OP.generate(chooser_of(0, subject(process), i)).sizes["bs"] > 1]
    assert known
    case = OP.generate(chooser_of(0, subject(process), known[0]))
    assert run_case(OP, subject(process), case, launcher=process).violations
    smaller = next(i for i in range(200) if OP.generate(chooser_of(0, subject(process), i)).sizes["bs"] == 1)
    with pytest.raises(EndedError, match="exit code 7"):
        run_case(OP, subject(process), OP.generate(chooser_of(0, subject(process), smaller)), launcher=process)
    assert run_case(OP, subject(process), case, launcher=process).violations  # a new process answers


@pytest.mark.parametrize("process", ["p_both"], indirect=True)
def test_what_one_operation_does_to_torch_is_no_matter_to_the_next(process: TargetProcess) -> None:
    checked = check_all(OPS, process.subjects, seed=0, limits=SuiteLimits(3), launcher=process, on_case=lambda *_: None)
    assert [result.counterexample is not None for _subject, result in checked] == [True, True]


@pytest.mark.parametrize("process", ["p_moves"], indirect=True)
def test_a_target_that_changes_directory_changes_its_own(process: TargetProcess) -> None:
    before = os.getcwd()
    assert (
        check_subject(OP, subject(process), seed=0, limits=SuiteLimits(2), launcher=process).counterexample is not None
    )
    assert os.getcwd() == before


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_trusted_side_computes_with_one_thread_on_every_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of a process that has computed with several waits for ever for threads that it does not have."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    assert choose_device(device) == device
    assert threads == [1]
