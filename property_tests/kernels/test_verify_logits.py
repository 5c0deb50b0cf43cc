"""One launch from logits to the next step: both variants, however a row is split, give what the reference gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case, Op, Tensors
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS
from specsim.kernels import verify_logits
from specsim.kernels.scratch import kept_scratch
from specsim.kernels.verify import TreeTensors
from specsim.kernels.verify_logits import (
    LaunchPlan,
    StepTensors,
    launch_verify_logits_greedy,
    plan_verify_logits_greedy,
)

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
OP: Op = OPS["verify_logits_greedy"]
PLANS = [
    LaunchPlan(False, 1),
    LaunchPlan(False, 4),
    LaunchPlan(True, 1),
    *([LaunchPlan(True, 4), LaunchPlan(True, 16)] if ON_GPU else []),
]


def run(plan: LaunchPlan, case: Case, dtype: torch.dtype = torch.float32) -> Tensors:
    """Outputs of a launch whose buffers held something else before."""
    tensors = {name: tensor.to(DEVICE) for name, tensor in case.clone().tensors.items()}
    tensors["logits"] = tensors["logits"].to(dtype)
    tensors |= {name: tensor.fill_(77) for name, tensor in OP.allocate_outputs(case, DEVICE).items()}
    launch(plan, tensors, case.sizes["num_steps"])
    return {arg.name: tensors[arg.name].cpu() for arg in OP.outputs}


def launch(plan: LaunchPlan, tensors: Tensors, num_steps: int) -> None:
    logits, *rest = (tensors[arg.name] for arg in OP.tensor_args)
    launch_verify_logits_greedy(plan, logits, TreeTensors(*rest[:4]), StepTensors(*rest[4:]), num_steps)


def assert_right(case: Case, results: Tensors) -> None:
    expected = OP.expected(case)
    for name, mask in OP.defined(case, expected).items():
        assert torch.equal(results[name][mask], expected[name][mask]), name


def wide_case(vocab_size: int, seed: int = 0) -> Case:
    """A case of random logits over a large vocabulary, whose walks accept what the small one's do."""
    case = OP.generate(seeded(seed, "wide"))
    small = case.tensors["logits"]
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(small.shape[0], vocab_size, generator=generator).clamp(max=4) - 5
    wide[:, torch.arange(small.shape[1])] = small
    return Case({**case.sizes, "vocab_size": vocab_size}, {**case.tensors, "logits": wide})


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_gives_the_references_result(plan: LaunchPlan) -> None:
    @given(case=cases(OP))
    @settings(max_examples=3)
    def holds(case: Case) -> None:
        assert_right(case, run(plan, case))

    holds()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("vocab_size", [2047, 2048, 5001])
@pytest.mark.slow(runs_one_in=3)
def test_a_row_that_is_many_blocks_long_is_read_to_its_end(plan: LaunchPlan, vocab_size: int) -> None:
    case = wide_case(vocab_size, seed=vocab_size)
    last = case.tensors["logits"].shape[1] - 1
    for at in (last, 1024):
        case.tensors["logits"][0, at] = 9.0
        assert_right(case, run(plan, case))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_it_is(dtype: torch.dtype) -> None:
    case = wide_case(3000)
    case.tensors["logits"] = case.tensors["logits"].to(dtype).to(torch.float32)  # ties that rounding makes are ties
    for plan in PLANS:
        assert_right(case, run(plan, case, dtype))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_row_of_one_value_gives_its_first_token(plan: LaunchPlan, value: float) -> None:
    case = wide_case(2500)
    case.tensors["logits"][:] = value
    assert_right(case, run(plan, case))


@given(seed=st.integers(0, 9))
@settings(max_examples=2)
def test_a_launch_leaves_its_scratch_as_it_found_it(seed: int) -> None:
    case = wide_case(2500, seed)
    for plan in PLANS:
        run(plan, case)
        assert all(not scratch.any() for scratch in kept_scratch("verify_logits_greedy"))


@given(
    bs=st.integers(1, 2048),
    ndt=st.integers(2, 64),
    num_steps=st.integers(1, 63),
    vocab_size=st.integers(2, 300_000),
    itemsize=st.sampled_from([2, 4]),
)
def test_a_plan_never_has_programs_wait_that_cannot_be_on_the_device_at_once(
    bs: int, ndt: int, num_steps: int, vocab_size: int, itemsize: int
) -> None:
    plan = plan_verify_logits_greedy(bs, ndt, num_steps, vocab_size, itemsize, 132)
    assert plan.splits in (1, 2, 4, 8, 16, 32)
    if plan.is_lazy and plan.splits > 1:
        assert bs * plan.splits <= 132 * verify_logits.LAZY_PROGRAMS_PER_SM


def test_small_batches_read_every_row_and_large_trees_only_those_that_are_visited() -> None:
    def plan(bs: int, ndt: int, num_steps: int) -> LaunchPlan:
        return plan_verify_logits_greedy(bs, ndt, num_steps, 128_256, 4, 132)

    assert not plan(1, 4, 3).is_lazy
    assert not plan(1, 64, 63).is_lazy  # a chain of 64 may take 64 levels
    assert plan(16, 64, 8).is_lazy
    assert plan(256, 8, 7).is_lazy
    assert plan(256, 64, 8).splits > 1


@pytest.mark.skipif(not ON_GPU, reason="needs CUDA")
@pytest.mark.parametrize("shape", [(1, 64), (16, 8), (16, 64), (64, 64), (256, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_graph_replays_with_changed_logits_at_full_size(shape: tuple[int, int], dtype: torch.dtype) -> None:
    from specsim.bench.verify_logits_greedy import make_case

    bs, ndt = shape
    bits = 32 if dtype == torch.float32 else 16
    first, second = (
        make_case({"bs": bs, "num_draft_tokens": ndt, "accepted": accepted, "logit_bits": bits}, "cuda")
        for accepted in (2, 3)
    )
    expected = [OP.expected(case) for case in (first, second)]
    for is_lazy in (False, True):
        plan = LaunchPlan(is_lazy, max(1, min(8, 1024 // bs)))
        tensors = first.clone().tensors | OP.allocate_outputs(first, "cuda")
        launch(plan, tensors, first.sizes["num_steps"])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(plan, tensors, first.sizes["num_steps"])
        for case, right in zip((first, second), expected, strict=True):
            for _ in range(3):
                for name, tensor in case.tensors.items():
                    tensors[name].copy_(tensor)
                graph.replay()
                for name, mask in OP.defined(case, right).items():
                    assert torch.equal(tensors[name][mask], right[name][mask]), name
