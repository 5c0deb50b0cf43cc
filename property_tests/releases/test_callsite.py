"""A call is run as the caller's own code makes it, or it is said why not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from property_tests.support.made_up_sources import MadeUpSource
from specsim.lifting.call_sites import CallSite, CapturedCall, find_call
from specsim.lifting.lift import DriftError, parse_module

WORKER = """
class Worker:
    def verify(self, batch):
        log("start")
        rows = batch.rows
        width = self.width
        table = make_table(batch)
        unused = does_not_exist(batch)
        if not batch.idle:
            scaled = [row * width for row in rows]
            batch.scaled = scaled
            if self.depth > 1:
                deep = self.depth
            total, spare = sum(batch.scaled), 0
            kernel[(len(rows),)](total, stride=self.stride)
        else:
            total = 0
        return total

    def call_with_keywords(self, batch):
        out = compute(rows=batch.rows, width=self.width + 1)
        return out

    def call_twice(self, batch):
        kernel[(1,)](1, stride=1)
        kernel[(1,)](2, stride=2)

    def call_in_a_loop_over_unknown_things(self, batch):
        kernel[(1,)](mystery(batch), stride=2)

    def no_call(self, batch):
        return 1
"""


def site(function: str, callees: tuple[str, ...] = ("kernel", "compute"), text: str = WORKER) -> CallSite:
    module = parse_module(MadeUpSource({"srt/worker.py": text}), "srt/worker.py")
    return find_call(module, f"Worker.{function}", callees, environment())


def environment(**worker: Any) -> dict[str, Any]:
    return {
        "self": SimpleNamespace(width=10, stride=5, depth=3, **worker),
        "batch": SimpleNamespace(rows=[1, 2], idle=False),
    }


class FakeKernel:
    def __getitem__(self, grid: Any) -> Any:
        return lambda total, stride: (grid, total, stride)


def test_the_slice_computes_the_arguments_and_leaves_the_rest_of_the_function_alone() -> None:
    found = site("verify")
    assert found.run(environment(), FakeKernel()) == ((2,), 30, 5)
    assert found.where == "srt/worker.py:15"


def test_the_conditions_around_a_call_are_evaluated() -> None:
    found = site("verify")
    idle = environment()
    idle["batch"].idle = True
    assert found.applies(environment())
    assert not found.applies(idle)


def test_a_plain_call_with_keywords_is_run_and_gives_its_value() -> None:
    found = site("call_with_keywords")
    assert found.run(environment(), lambda rows, width: (rows, width)) == ([1, 2], 11)


def test_a_capture_remembers_arguments_by_name_and_fills_results_before_the_call() -> None:
    import torch

    capture = CapturedCall(FakeKernel(), ("total", "stride"))
    site("verify").run(environment(), capture)
    assert capture.arguments == {"total": 30, "stride": 5}
    assert capture.grid == (2,)
    result = torch.zeros(2)
    filling = CapturedCall(lambda out: out.clone(), ("out",))
    filling.fill_before_call(("out", "no_such_parameter"), 9)
    assert filling(result).tolist() == [9.0, 9.0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_call", "not found: a call of kernel or compute in Worker.no_call"),
        ("absent", "not found: Worker.absent"),
        ("call_twice", "signature changed: Worker.call_twice of srt/worker.py calls kernel at lines 25, 26"),
        (
            "call_in_a_loop_over_unknown_things",
            "signature changed: the call at srt/worker.py:29 needs mystery",
        ),
    ],
)
def test_a_call_that_cannot_be_taken_is_drift(function: str, message: str) -> None:
    with pytest.raises(DriftError, match=message):
        site(function)


def test_the_hash_of_a_call_sees_its_arguments() -> None:
    edited = WORKER.replace("stride=self.stride", "stride=self.width")
    assert site("verify").source_hash != site("verify", text=edited).source_hash
    assert site("verify").source_hash == site("verify", text=WORKER.replace('log("start")', "log(1)")).source_hash
