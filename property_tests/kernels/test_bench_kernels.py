"""The table of kernels: every kernel has a row, who is wrong has no time, and who is missing says why."""

from __future__ import annotations

import inspect
import io
import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rich.console import Console

from specsim import kernels
from specsim.bench import kernel_table, run, verify_logits_greedy, verify_step
from specsim.bench.kernel_cases import (
    KERNELS,
    READ_OF_TABLES,
    ReferenceOutcome,
    bytes_to_move,
    dependent_reads,
    make_case,
    shapes,
)
from specsim.bench.kernel_peers import KernelPeer, lift_all, peers_of
from specsim.contracts.contract import Case, Tensors
from specsim.engines.sgl_kernel import OPERATIONS as CUDA
from specsim.engines.sglang.operations import KERNELS as LAUNCHES
from specsim.engines.sglang.peers import AS_DOCUMENTED, PEER_RELEASES, PEERS, lifted_peers
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree
from specsim.report.kernels import print_kernels
from specsim.verdict import NotRun

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="times kernels on a CPU, in Triton's interpreter")
every_kernel = pytest.mark.parametrize("name", KERNELS)


def outcome_of(name: str, number: int = 0) -> ReferenceOutcome:
    op, case = KERNELS[name], make_case(name, shapes(name, "cpu")[number], "cpu")
    expected = op.expected(case)
    return ReferenceOutcome(case, expected, op.defined(case, expected))


def test_every_host_function_of_the_kernels_has_a_row() -> None:
    functions = {name for name, value in vars(kernels).items() if inspect.isfunction(value) and name[0] != "_"}
    assert set(KERNELS) == functions - {"provider", "kv_buffers"}


@every_kernel
def test_a_row_has_a_case_of_its_shape_on_each_device_and_bytes_to_move(name: str) -> None:
    for number, shape in enumerate(shapes(name, "cpu")):
        outcome = outcome_of(name, number)
        assert {size: outcome.case.sizes[size] for size in shape if size in outcome.case.sizes}.items() <= shape.items()
        assert bytes_to_move(KERNELS[name], outcome) > 0
        assert dependent_reads(KERNELS[name], outcome) >= 1
    on_gpu = shapes(name, "cuda")
    assert len(on_gpu) >= 3
    assert {1, 16, 64, 256} <= {shape["bs"] for shape in on_gpu}


@every_kernel
def test_every_shape_of_a_gpu_makes_a_valid_case(name: str) -> None:
    """Of fewer requests and narrower rows, which a CPU is done with at once."""
    narrow = {"bs": 2, "hidden_size": 2, "row_width": 2, "row_bytes": 4, "vocab_size": 140}
    for shape in shapes(name, "cuda", full=True):
        smaller = shape | {size: value for size, value in narrow.items() if size in shape}
        layers = {"num_buffers": 2} if name == "move_kv_of_buffers" else {}
        case = make_case(name, smaller | layers, "cpu")
        KERNELS[name].expected(case)


def test_bytes_are_those_that_a_case_reads_and_writes() -> None:
    bonus = outcome_of("fill_bonus_tokens")
    bs = bonus.case.sizes["bs"]
    assert bytes_to_move(KERNELS["fill_bonus_tokens"], bonus) == bs * (4 + 4 + 4 + 4)  # length, node, token; bonus
    moved = outcome_of("move_kv")
    changed = int((moved.case.tensors["buffer"] != moved.expected["buffer"]).sum())
    indices = 2 * 8 * moved.case.sizes["num_moves"]
    assert bytes_to_move(KERNELS["move_kv"], moved) == indices + 2 * 4 * changed
    walk = outcome_of("verify_tree_target_only")
    dists = walk.case.sizes["bs"] * walk.case.sizes["vocab_size"] * 4
    assert dists <= bytes_to_move(KERNELS["verify_tree_target_only"], walk) < dists + 2048


def test_rows_are_read_of_nodes_where_a_child_is_rejected_and_of_the_walks_end() -> None:
    """Two requests: one whose first child is accepted, whose child is; one whose second child is, which has none."""
    case = Case(
        {"bs": 2, "num_steps": 2, "vocab_size": 10},
        {
            "retrieve_index": torch.arange(6).view(2, 3),
            "retrieve_next_token": torch.tensor([[1, 2, -1], [1, -1, -1]]),
            "retrieve_next_sibling": torch.tensor([[-1, -1, -1], [-1, 2, -1]]),
        },
    )
    paths = {"accept_index": torch.tensor([[0, 1, 2], [3, 5, -1]]), "accept_token_num": torch.tensor([2, 1])}
    outcome = ReferenceOutcome(case, paths, {})
    of = {name: READ_OF_TABLES["verify_tree_rejection", name](outcome) for name in ("target_probs", "draft_probs")}
    assert of == {"target_probs": (1 + 2) * 10, "draft_probs": 1 * 10}


@interpreted
def test_the_table_is_json_with_ratios_to_specsims_and_reasons() -> None:
    result = json.loads(
        json.dumps(run(["kernels"], "cpu", only=["fill_bonus_tokens", "build_tree_packed"], targets=[]))
    )
    ceilings, entries = result["benchmarks"][:3], result["benchmarks"][3:]
    assert [entry["unit"] for entry in ceilings] == ["GB/s", "us", "us"]
    assert [entry["kernel"] for entry in entries] == ["build_tree_packed", "fill_bonus_tokens"]
    launch = ceilings[1]["peers"][0]["median"]
    for entry in entries:
        ours = entry["peers"][0]
        assert ours["name"] == "specsim"
        assert entry["bound_us"] >= launch
        assert entry["percent"] == pytest.approx(100 * entry["bound_us"] / ours["median"])
        for peer in entry["peers"]:
            assert (peer["median"] is None) == (peer["ratio"] is None) == bool(peer["not_run"])
            if peer["ratio"] is not None:
                assert peer["ratio"] == pytest.approx(peer["median"] / ours["median"])
    assert {peer["name"]: peer["not_run"] for peer in entries[0]["peers"]}["sgl_kernel"] == "needs a CUDA device"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Case, Tensors], Any]], dict[str, Any]]:
    """The entry of a peer of `fill_bonus_tokens` that `prepare` makes."""

    def time(prepare: Callable[[Case, Tensors], Any]) -> dict[str, Any]:
        ours = peers_of("fill_bonus_tokens", lift_all([]))[0]
        monkeypatch.setattr(kernel_table, "peers_of", lambda *_: [ours, KernelPeer("other", prepare)])
        entry: dict[str, Any] = kernel_table.rows("cpu", 1, only=["fill_bonus_tokens"], targets=[])[-1].measure()[0]
        found: dict[str, Any] = entry["peers"][1]
        return found

    return time


@interpreted
def test_a_peer_that_is_wrong_has_no_time(timed: Callable[..., dict[str, Any]]) -> None:
    peer = timed(lambda _case, tensors: lambda: {"bonus_tokens": tensors["bonus_tokens"] + 7})
    assert peer["median"] is None
    assert peer["not_run"] == "its bonus_tokens differs from the reference's"


@interpreted
def test_a_peer_that_fails_says_with_what_and_the_others_go_on(timed: Callable[..., dict[str, Any]]) -> None:
    def fails(_case: Case, _tensors: Tensors) -> Any:
        raise RuntimeError("no such launch\nand more")

    assert timed(fails)["not_run"] == "RuntimeError: no such launch"


@interpreted
def test_a_shape_without_a_case_has_a_row_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> Case:
        raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(kernel_table, "make_case", no_memory)
    (ours,) = kernel_table.rows("cpu", 1, only=["fill_bonus_tokens"], targets=[])[-1].measure()[0]["peers"]
    assert ours["not_run"] == "there is no case: OutOfMemoryError: too large"


@interpreted
def test_rows_that_a_budget_does_not_reach_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_table, "lift_all", lambda _targets: time.sleep(30))
    found = run(["kernels"], "cpu", 1, only=["row_argmax"], targets=[], budget_seconds=0.5)["benchmarks"]
    assert [entry["shape"].get("kernel") for entry in found] == [None, "row_argmax"]
    assert {entry["left_out"] for entry in found} == {"the time budget was spent"}


def test_a_name_that_is_no_operation_is_refused() -> None:
    with pytest.raises(UsageError, match="--only 'walk' is no operation or family"):
        kernel_table.rows("cpu", 1, only=["walk"], targets=[])


def entry(kernel: str, **peers: float | str) -> dict[str, Any]:
    listed = [
        {
            "name": name,
            "timing": "graph",
            "median": None if isinstance(value, str) else 2.0 * value,
            "ratio": None if isinstance(value, str) else value,
            "not_run": value if isinstance(value, str) else None,
            "launches": 1,
        }
        for name, value in {"specsim": 1.0, **peers}.items()
    ]
    shape = {"bs": 4, "num_draft_tokens": 8}
    fields = {"bytes": 100, "bound": "launch", "bound_us": 1.0, "percent": 50.0, "l2": "warm"}
    return {"name": "kernels", "kernel": kernel, "unit": "us", "shape": shape, **fields, "peers": listed}


def test_the_page_names_who_is_slower_than_what_ships_and_what_was_not_run() -> None:
    out = io.StringIO()
    other = {"name": "sim", "unit": "events/s", "shape": {}, "peers": []}
    fast, slow = entry("fast", shipped=3.0, PyTorch=0.5), entry("slow", shipped=0.8, absent="needs a CUDA device")
    assert print_kernels(Console(file=out, width=200), [fast, slow, other]) == [other]
    page = out.getvalue()
    assert "slow: absent: needs a CUDA device" in page
    assert "slower     slow bs=4 nodes=8: 2.00 us, shipped 1.60 us (0.80)" in page
    assert "slower     fast" not in page
    assert "2 kernels in 2 shapes; 2 have a peer that ships, and in 1 of them none is faster" in page


def test_cuda_operations_and_releases_have_kernels_of_the_table() -> None:
    assert set(CUDA) <= set(KERNELS)
    assert {peer.op for peer in PEERS} <= set(KERNELS)
    documented = {kernel.subject: kernel.op for kernel in LAUNCHES}
    assert set(AS_DOCUMENTED) <= set(documented)
    assert {documented[subject] for subject in AS_DOCUMENTED} <= set(KERNELS)


@pytest.mark.parametrize("nodes", [4, 12])
def test_a_step_as_a_release_launches_it_gives_what_specsims_does(
    nodes: int, monkeypatch: pytest.MonkeyPatch, release: Callable[[str], SourceTree], wheel_cache: Cache
) -> None:
    """With a stub of the walk in CUDA; a chain, and a tree whose accepted KV moves."""
    version = PEER_RELEASES[0]
    release(version)

    def walk(predicts: torch.Tensor, index: torch.Tensor, accepted: torch.Tensor, *inputs: Any) -> None:
        run: Callable[..., None] = kernels.verify_tree_greedy
        run(*inputs, predicts, index, accepted, num_steps=index.shape[1] - 1)

    def build(parents: torch.Tensor, selected: torch.Tensor, *more: Any) -> None:
        topk, num_steps = more[-4], more[-3]
        assert parents.shape == (
            len(selected),
            topk * (num_steps - 1) + 1,
        )  # else it finds the parents of another request

    cuda: dict[str, Callable[..., None]] = {"verify_tree_greedy": walk, "build_tree_kernel_efficient": build}
    monkeypatch.setattr(verify_step, "sgl_kernel_operation", lambda name, _device: cuda[name])
    monkeypatch.setattr(verify_logits_greedy, "VOCAB_SIZE", 64)
    step = verify_step.make_step({"bs": 2, "num_draft_tokens": nodes}, "cpu")
    for peer in verify_step.peers(step, lift_all([f"sglang=={version}"])):
        call = peer.prepare(step.walked, {})
        assert not isinstance(call, NotRun), call
        assert {name: tensor.tolist() for name, tensor in call().items()} == {
            "new_seq_lens": [780, 780],
            "bonus_tokens": [nodes, nodes],
        }


@pytest.mark.skipif(not IS_INTERPRETED and DEVICE == "cpu", reason="needs Triton's interpreter")
@pytest.mark.parametrize("version", PEER_RELEASES)
def test_a_releases_kernels_are_launched_as_they_want_to_be(
    version: str, release: Callable[[str], SourceTree], wheel_cache: Cache
) -> None:
    """Else they would be timed on work that is not the operation's. The one that differs holds 8 rows of a window."""
    found, missing = lifted_peers(release(version), wheel_cache)
    assert len(found) >= 20
    assert not [reason for reason in missing if not reason.why.startswith("not found")]
    for peer in found:
        op, case = KERNELS[peer.op], make_case(peer.op, shapes(peer.op, "cpu")[0], DEVICE)
        if peer.op in ("assign_new_state", "row_argmax") or not peer.accepts(case.sizes):  # the latter takes seconds
            continue
        expected = op.expected(case)
        tensors = case.clone().tensors | op.allocate_outputs(case, DEVICE)
        results = peer.prepare(case.sizes, tensors)()
        for name, mask in op.defined(case, expected).items():
            if name in results:
                atol = 10 * op.tolerance.get(name, 0)
                torch.testing.assert_close(
                    results[name][mask].double(),
                    expected[name][mask].double(),
                    rtol=0,
                    atol=atol,
                    msg=f"{peer.op} {name}",
                )


@pytest.mark.skipif(not IS_INTERPRETED and DEVICE == "cpu", reason="needs Triton's interpreter")
@pytest.mark.parametrize("bs", [1, 6])
def test_vllms_verification_of_ragged_batches_gives_what_specsims_does(bs: int, vllm_release: str) -> None:
    """Greedy and sampling requests, with the drafter's probabilities and without."""
    lifted = lift_all([f"vllm=={vllm_release}"])
    name = "verify_ragged_sampled"
    ((_label, peer),) = lifted.peers[name]
    op = KERNELS[name]
    for shape in shapes(name, "cpu"):
        case = make_case(name, {**shape, "bs": bs, "num_steps": 3}, DEVICE)
        expected = op.expected(case)
        results = peer.prepare(case.sizes, case.clone().tensors | op.allocate_outputs(case, DEVICE))()
        mask = op.defined(case, expected)["output_token_ids"]
        assert torch.equal(results["output_token_ids"].cpu()[mask], expected["output_token_ids"][mask])


@pytest.mark.parametrize("target", ["model", "sglang-kernel==1.0"])
def test_what_no_peer_is_lifted_from_is_refused_before_it_is_fetched(target: str) -> None:
    with pytest.raises(UsageError, match="is no release or checkout"):
        lift_all([target])
