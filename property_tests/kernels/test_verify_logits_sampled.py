"""One launch from logits to the next step at a temperature: the reference's result, however a row is split and kept."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.interleaved_programs import interleaved_programs
from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case, Op, Tensors
from specsim.contracts.losslessness import distances
from specsim.contracts.registry import OPS
from specsim.kernels import verify_sampled
from specsim.kernels.scratch import kept_scratch
from specsim.kernels.verify import TreeTensors
from specsim.kernels.verify_logits import StepTensors
from specsim.kernels.verify_sampled import Requests, launch_verify_logits_sampled, splits_of_batch
from specsim.reference.logits import RELAXED

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
EVERYTHING = ON_GPU or os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
OP: Op = OPS["verify_logits_sampled"]
NDT, NUM_STEPS = 4, 2
SMALL = {"GROUP": 16, "BLOCK_V": 64, "BLOCK_SEARCH": 64, "LIST": 32, "SHORT_LIST": 8, "BLOCK_L": 8}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of infinities, of which a GPU does not warn


def run(case: Case, splits: int = 1, dtype: torch.dtype = torch.float32) -> Tensors:
    """Outputs of a launch whose buffers held something else before."""
    tensors = {name: tensor.to(DEVICE) for name, tensor in case.clone().tensors.items()}
    tensors["logits"] = tensors["logits"].to(dtype)
    tensors |= {name: tensor.fill_(77) for name, tensor in OP.allocate_outputs(case, DEVICE).items()}
    sizes = case.sizes
    launch(splits, tensors, sizes["num_steps"], sizes["law"])
    return {arg.name: tensors[arg.name].cpu() for arg in OP.outputs}


def launch(splits: int, tensors: Tensors, num_steps: int, law: int) -> None:
    logits, *rest = (tensors[arg.name] for arg in OP.tensor_args)
    groups = TreeTensors(*rest[:4]), Requests(*rest[4:23]), StepTensors(*rest[23:])
    launch_verify_logits_sampled(splits, logits, *groups, num_steps, law)


def assert_right(case: Case, results: Tensors) -> None:
    expected = OP.expected(case)
    for name, mask in OP.defined(case, expected).items():
        assert torch.equal(results[name][mask], expected[name][mask]), name


def case_of(logits: torch.Tensor, **changes: Any) -> Case:
    """Trees of a root with the children 1 and 2, and 3 below 1, under `logits` [bs * 4, V]; nothing is asked for."""
    vocab_size = logits.shape[1]
    bs = logits.shape[0] // NDT
    ones = torch.ones(bs)
    tensors = {
        "logits": logits,
        "candidates": torch.tensor([[0, 1, 2, 3]]).repeat(bs, 1) % vocab_size,
        "retrieve_index": torch.arange(bs * NDT).view(bs, NDT),
        "retrieve_next_token": torch.tensor([[1, 3, -1, -1]]).repeat(bs, 1),
        "retrieve_next_sibling": torch.tensor([[-1, 2, -1, -1]]).repeat(bs, 1),
        "uniform_samples": torch.full((bs, NDT), 0.4),
        "uniform_final": torch.full((bs,), 0.6),
        "output_counts": torch.zeros((bs, vocab_size), dtype=torch.int32),
        "output_lens": torch.ones(bs, dtype=torch.int32),
        **{name: torch.zeros(bs) for name in ("frequency_penalty", "presence_penalty", "min_p")},
        **{name: ones.clone() for name in ("repetition_penalty", "temperature", "top_p")},
        "min_new_tokens": torch.zeros(bs, dtype=torch.int32),
        "stop_token_ids": torch.full((bs, 1), vocab_size),
        "logit_bias": torch.zeros((0, vocab_size)),
        "bias_rows": torch.full((bs,), -1, dtype=torch.int32),
        "bitmask": torch.zeros((0, -(-vocab_size // 32)), dtype=torch.int32),
        "bitmask_rows": torch.full((bs * NDT,), -1, dtype=torch.int32),
        "top_k": torch.full((bs,), 2**30, dtype=torch.int32),
        "threshold_single": torch.ones(1),
        "threshold_acc": torch.ones(1),
        "seq_lens": torch.full((bs,), 5),
        "out_cache_loc": 1 + torch.arange(bs * NDT),
        **changes,
    }
    sizes = {"bs": bs, "num_draft_tokens": NDT, "num_steps": NUM_STEPS, "accept_width": NUM_STEPS + 1, "law": 1}
    sizes |= {"vocab_size": vocab_size, "num_nodes": bs * NDT, "num_stop_tokens": 1, "num_words": -(-vocab_size // 32)}
    sizes |= {"num_biases": tensors["logit_bias"].shape[0], "num_masks": tensors["bitmask"].shape[0]}
    return Case(sizes, tensors)


def random_logits(bs: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """Normal logits under which the first drafts are likely."""
    logits = 2 * torch.randn(bs * NDT, vocab_size, generator=torch.Generator().manual_seed(seed))
    logits[::NDT, 1] = 6.0
    return logits


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in SMALL.items():
        monkeypatch.setattr(verify_sampled, name, size)


@pytest.mark.usefixtures("_small_blocks")
def test_every_combination_of_filters_keeps_what_the_reference_keeps() -> None:
    """Some of them keep more than the list holds."""
    asked = list(itertools.product((2**30, 20, 70), (1.0, 0.7), (0.0, 0.02)))
    top_k, top_p, min_p = (torch.tensor(column) for column in zip(*asked, strict=True))
    case = case_of(
        random_logits(len(asked), 128),
        top_k=top_k.to(torch.int32),
        top_p=top_p,
        min_p=min_p,
        temperature=torch.tensor((1.0, 0.7, 1.5)).repeat(len(asked) // 3),
    )
    assert_right(case, run(case))


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_it_is(dtype: torch.dtype) -> None:
    logits = random_logits(2, 150).to(dtype).to(torch.float32)
    case = case_of(logits, top_k=torch.tensor([9, 2**30], dtype=torch.int32))
    assert_right(case, run(case, dtype=dtype))


def test_uniform_draws_on_thresholds_of_dyadic_distributions_fall_on_the_references_side() -> None:
    """A distribution that is the same for 2, 4 or 8 tokens: every sum is exact, and every uniform draw is on an edge or
    beside one.
    """
    edges = torch.arange(1, 9, 2) / 8
    coins = torch.cat([edges, torch.nextafter(edges, torch.zeros(())), torch.nextafter(edges, torch.ones(()))])
    coins = coins.clamp(0, 1)
    logits = torch.full((coins.shape[0] * NDT, 9), float("-inf"))
    for row in range(logits.shape[0]):
        logits[row, : 2 ** (1 + row % 3)] = -3.0
    k = torch.tensor((1, 2, 2**30), dtype=torch.int32).repeat(coins.shape[0] // 3)
    case = case_of(logits, uniform_samples=coins[:, None].repeat(1, NDT), uniform_final=coins.clone(), top_k=k)
    assert_right(case, run(case))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_a_distribution_accepts_nothing_and_is_followed_by_the_last_token(value: float) -> None:
    logits = random_logits(1, 40)
    logits[0] = value
    results = run(case_of(logits))
    assert results["accept_lens"].tolist() == [1]
    assert results["bonus_tokens"].tolist() == [39]


def test_what_is_rejected_alone_has_any_weight_leaves_the_last_token() -> None:
    """No token but the rejected one is possible; as in the reference, a token of no weight is drawn."""
    logits = torch.full((NDT, 20), float("-inf"))
    logits[:, 1] = 2.0
    case = case_of(logits, uniform_samples=torch.ones(1, NDT))
    assert_right(case, run(case))


@pytest.mark.parametrize("name", ["retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "candidates"])
@pytest.mark.parametrize("wrong", [-(2**40), -2, 4, 2**40])
def test_a_walk_over_broken_indices_ends_and_its_token_is_one(name: str, wrong: int) -> None:
    case = case_of(random_logits(1, 40))
    case.tensors[name][:] = wrong
    case.tensors["bias_rows"][:] = 7
    case.tensors["bitmask_rows"][:] = -9
    assert 0 <= int(run(case)["bonus_tokens"]) < 40


@pytest.mark.skipif(ON_GPU, reason="a GPU runs the programs side by side by itself")
@pytest.mark.usefixtures("_small_blocks")
def test_programs_that_take_turns_in_any_order_give_the_references_result() -> None:
    """Half of the requests are filtered, one by more than the list holds; heads are zero again after the launch."""
    top_k = torch.tensor((2**30, 5, 60), dtype=torch.int32)
    case = case_of(random_logits(3, 128), top_k=top_k)
    with interleaved_programs(0):
        assert_right(case, run(case, splits=2))
    assert not any(bool(heads.any()) for heads in kept_scratch("verify_logits_sampled heads"))


@given(bs=st.integers(1, 4096))
def test_programs_that_wait_for_each_other_are_on_the_device_at_once(bs: int) -> None:
    splits = splits_of_batch(bs, 132)
    assert splits & (splits - 1) == 0
    assert splits == 1 or bs * splits <= 132 * verify_sampled.PROGRAMS_PER_SM
    registers = verify_sampled.PROGRAMS_PER_SM * verify_sampled.NUM_WARPS * 32 * verify_sampled.REGISTERS
    assert registers <= 65536


def test_scratch_is_a_tenth_of_the_smallest_batchs_logits_at_most() -> None:
    shape = verify_sampled._shape(splits=1, vocab_size=128_256, num_steps=1, law=RELAXED)
    scratch = verify_sampled._scratch(torch.device("cpu"), 1, shape)
    assert sum(part.numel() * part.element_size() for part in scratch) < 0.1 * 4 * 128_256 * 2


@pytest.mark.skipif(not EVERYTHING, reason="takes the interpreter long; in make nightly and on a GPU")
def test_what_is_emitted_has_exactly_the_targets_distribution() -> None:
    found = distances("verify_tree_target_only", by_logits, device=DEVICE, quick=True)
    assert found
    assert set(found.values()) == {0}


def by_logits(target_probs: torch.Tensor, num_steps: int, **tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`verify_tree_target_only` as `verify_logits_sampled` of the distributions' logarithms."""
    bs, ndt, vocab_size = target_probs.shape
    device = target_probs.device
    sizes = {"bs": bs, "num_draft_tokens": ndt, "accept_width": num_steps + 1, "num_nodes": bs * ndt}
    sizes |= {"vocab_size": vocab_size, "num_words": -(-vocab_size // 32)}
    named = {**case_of(torch.zeros((bs * NDT, vocab_size))).tensors, **tensors}
    named["logits"] = target_probs.log().view(bs * ndt, vocab_size).contiguous()
    named["bitmask_rows"] = torch.full((bs * ndt,), -1, dtype=torch.int32)
    named["out_cache_loc"] = torch.arange(bs * ndt)
    named = {name: torch.as_tensor(value).to(device) for name, value in named.items()}
    named |= OP.allocate_outputs(Case(sizes, {}), device)
    launch(1, named, num_steps, RELAXED)
    return named["predicts"], named["accept_index"], named["accept_lens"] - 1


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs CUDA")
@pytest.mark.parametrize("splits", [1, 2, 4, 16])
def test_every_split_gives_the_references_result(splits: int) -> None:
    for index in range(60):
        case = OP.generate(seeded(5, "splits", index))
        assert_right(case, run(case, splits))
    case = case_of(random_logits(8, 5000), top_k=torch.tensor((2**30, 1, 50, 600) * 2, dtype=torch.int32))
    assert_right(case, run(case, splits))


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs CUDA")
@pytest.mark.parametrize("shape", [(1, 64), (16, 8), (64, 8), (256, 4)])
@pytest.mark.parametrize("filtered", [0, 1])
@pytest.mark.parametrize("bits", [32, 16])
def test_a_graph_replays_with_changed_logits_at_full_size(shape: tuple[int, int], filtered: int, bits: int) -> None:
    from specsim.bench.verify_logits_sampled import BENCHMARK, make_case
    from specsim.kernels import verify_logits_sampled

    bs, ndt = shape
    sizes = {"bs": bs, "num_draft_tokens": ndt, "filtered": filtered, "penalised": 1, "logit_bits": bits}
    first, second = (make_case({**sizes, "accepted": accepted}, "cuda") for accepted in (2, 1))
    tensors = first.clone().tensors | OP.allocate_outputs(first, "cuda")
    named: dict[str, Any] = {arg.name: tensors[arg.name] for arg in OP.tensor_args}
    named |= {"num_steps": first.sizes["num_steps"], "law": first.sizes["law"]}
    verify_logits_sampled(**named)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verify_logits_sampled(**named)
    for case in (first, second):
        right = BENCHMARK.op.expected(case)
        for _ in range(3):
            for name, tensor in case.tensors.items():
                tensors[name].copy_(tensor)
            graph.replay()
            for name, mask in OP.defined(case, right).items():
                assert torch.equal(tensors[name][mask], right[name][mask]), name
