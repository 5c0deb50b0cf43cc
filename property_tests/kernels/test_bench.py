"""Benchmarks run, say where they ran, and never count a peer that is wrong or was not run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import torch
from torch import Tensor

from specsim.bench import (
    OPERATIONS,
    Peer,
    Timing,
    differential,
    environment,
    run,
    scheduler,
)
from specsim.bench.measure import run_shape
from specsim.contracts.provider import MappingProvider
from specsim.contracts.registry import OPS, REFERENCE
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.errors import UsageError
from specsim.report.page.tables import tables_of
from specsim.tiers.ops.bulk import BulkPlace
from specsim.verdict import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from specsim.contracts.contract import Case, Tensors

BENCHMARK = OPERATIONS["verify_tree_greedy"]
REPOSITORY = Path(__file__).parents[2]
SMALL = BENCHMARK.shapes["cpu"][0]


def test_a_run_is_json_with_environment_shapes_and_peers() -> None:
    result = json.loads(json.dumps(run(["verify_tree_greedy"], "cpu", rounds=2)))
    assert result["format"] == "specsim.bench/1"
    assert [entry["shape"] for entry in result["benchmarks"]] == [dict(shape) for shape in BENCHMARK.shapes["cpu"]]
    for entry in result["benchmarks"]:
        assert entry["name"] == "verify_tree_greedy"
        assert entry["unit"] == "us"
        assert [peer["name"] for peer in entry["peers"]] == [
            "reference",
            "reference, captured",
            "triton",
            "sgl_kernel",
        ]
        for peer in entry["peers"]:
            assert set(peer) == {"name", "timing", "median", "ratio", "not_run"}
            assert (peer["median"] is None) == (peer["ratio"] is None) == bool(peer["not_run"])


def test_peers_that_need_a_gpu_say_so_on_a_cpu() -> None:
    peers = {peer["name"]: peer for peer in run_shape(BENCHMARK, SMALL, "cpu", rounds=1)}
    assert "interprets" in peers["triton"]["not_run"]
    assert "CUDA" in peers["sgl_kernel"]["not_run"]
    assert peers["reference"]["ratio"] == 1.0
    assert peers["reference"]["median"] > 0


def test_a_wrong_result_has_no_time() -> None:
    def prepare(case: Case, tensors: Tensors) -> Callable[[], Tensors]:
        return lambda: {
            **BENCHMARK.op.expected(case),
            "accept_token_num": torch.full((case.sizes["bs"],), 99),
        }

    wrong = replace(BENCHMARK, peers=(*BENCHMARK.peers, Peer("wrong", Timing.EAGER, prepare)))
    peer = run_shape(wrong, SMALL, "cpu", rounds=1)[-1]
    assert peer["not_run"] == "its accept_token_num differs from the reference's"
    assert peer["median"] is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_shape_says_how_many_drafts_are_accepted(device: str) -> None:
    for shape in BENCHMARK.shapes[device]:
        case = BENCHMARK.make_case(shape, "cpu")
        assert BENCHMARK.op.expected(case)["accept_token_num"].tolist() == [shape["accepted"]] * shape["bs"]


def test_a_shape_of_logits_says_how_many_drafts_are_accepted_and_minus_one_is_a_distribution() -> None:
    benchmark = OPERATIONS["verify_logits_greedy"]

    def accepted(number: int) -> list[int]:
        shape = {"bs": 3, "num_draft_tokens": 12, "accepted": number, "logit_bits": 16}
        return [n - 1 for n in benchmark.op.expected(benchmark.make_case(shape, "cpu"))["accept_lens"].tolist()]

    assert accepted(2) == [2, 2, 2]
    assert accepted(8) == [8, 8, 8]
    assert len(set(accepted(-1))) > 1


def test_a_shape_of_sampled_logits_says_how_many_drafts_are_accepted() -> None:
    benchmark = OPERATIONS["verify_logits_sampled"]
    shape = {"bs": 1, "num_draft_tokens": 4, "accepted": 2, "filtered": 1, "penalised": 1, "logit_bits": 16}
    assert benchmark.op.expected(benchmark.make_case(shape, "cpu"))["accept_lens"].tolist() == [3]


def test_the_environment_says_what_else_must_be_equal() -> None:
    where = environment()
    assert list(where) == ["specsim", "commit", "python", "torch", "triton", "numpy", "cpu", "cores", "gpu"]
    assert where["torch"] == torch.__version__
    assert where["cpu"]
    assert (where["gpu"] is None) == (not torch.cuda.is_available())


def test_an_unknown_benchmark_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="there is no benchmark 'walk'; name one of verify_tree_greedy"):
        run(["walk"], "cpu")


def test_checking_in_bulk_is_timed_whole_and_by_parts() -> None:
    subject = MappingProvider("reference", REFERENCE).subjects()[0][0]
    spent = differential.measure(OPS[subject.op], subject, BulkPlace("cpu", "interpreter"), rounds=1)
    assert list(spent.parts) == list(differential.PARTS)
    assert spent.cases >= spent.launches * spent.packed_min > 0
    assert sum(spent.parts.values()) < 5 * spent.seconds / spent.cases


def test_a_provider_that_is_wrong_in_bulk_has_no_time() -> None:
    def wrong(predict: Tensor, accept_index: Tensor, accept_lens: Tensor) -> Tensor:
        return predict[accept_index[:, 0].long()]

    (subject,) = MappingProvider("mine", {"fill_bonus_tokens": wrong}).subjects()[0]
    with pytest.raises(RuntimeError, match="fill_bonus_tokens is wrong"):
        differential.measure(OPS[subject.op], subject, BulkPlace("cpu", "interpreter"), rounds=1)


def test_the_cost_of_a_schedule_is_told_apart_from_that_of_its_iterations() -> None:
    costs = [scheduler.Cost(n, 3, 0.05 + 0.002 * n, 1000) for n in (10, 40, 90)]
    spent = scheduler.SchedulerSeconds(4.0, [0.5], costs)
    measured = {unit: measure(spent) for unit, measure in scheduler.MEASURES.items()}
    assert measured["CPU ms an iteration"] == pytest.approx(2.0)
    assert measured["CPU ms a schedule beside its iterations"] == pytest.approx(50.0)
    assert measured["iterations/CPU s"] == pytest.approx(140 / 0.43)


def test_a_setup_that_a_release_refuses_has_no_cost() -> None:
    class Refusing:
        setups = SETUPS

        def start(self, _setup: object) -> NoReturn:
            raise UsageError("without overlap its worker is of spec v1", "use another setup")

    assert scheduler._measured(Refusing(), "release", [12, 26], 1) == ([], [])


def test_schedules_of_no_target_are_refused_with_the_command() -> None:
    with pytest.raises(UsageError, match="--target"):
        run(["scheduler"], "cpu")


INTERRUPTED_BENCH = """
import time
from specsim import bench
from specsim.cli import main

def rows(*_):
    peers = [{"name": "fast", "timing": "cpu", "median": 1234.5, "ratio": 1.0, "not_run": None}]
    quick = lambda: [{"name": "walk", "unit": "us", "shape": {"bs": 1}, "peers": peers}]
    slow = lambda: time.sleep(600)
    return [bench.BenchRow("walk", {"bs": bs}, quick if bs == 1 else slow) for bs in (1, 2, 3)]

bench.BENCHMARKS["walk"] = rows
main(["bench", "walk", "--device", "cpu", "--json", "results.json"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_prints_each_row_at_once_and_keeps_it(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_BENCH], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stdout is not None
        assert any("1,234.5" in line for line in bench.stdout), "the row is printed while the next one is measured"
        bench.send_signal(number)
        rest = bench.stdout.read()
    assert "not run    walk: the check was interrupted: bs=2; bs=3" in rest
    assert bench.returncode == INTERRUPTED
    first, *left = json.loads((tmp_path / "results.json").read_text())["benchmarks"]
    assert first["peers"][0]["median"] == 1234.5
    assert [entry["shape"] for entry in left if entry["left_out"]] == [{"bs": 2}, {"bs": 3}]


def test_every_result_that_is_kept_has_a_row_in_the_table_of_speed() -> None:
    (speed,) = [table for table in tables_of(REPOSITORY) if table.title == "Speed"]
    named = {str(row[0]) for row in speed.rows}
    for path in (REPOSITORY / "bench" / "results").glob("*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if str(kept.get("format", "")).startswith("specsim.bench/"):
            assert named >= {entry["name"] for entry in kept["benchmarks"]}, path.name
