"""The module `sgl_kernel` of specsim.testing: what the package's functions promise, by the contracts' cases."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case, Op, Tensors
from specsim.contracts.registry import OPS
from specsim.engines.sgl_kernel_module import OPERATIONS, NoSuchOperationError
from specsim.errors import UsageError
from specsim.reference.tree import FULL_MASK
from specsim.testing import sgl_kernel

LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
CASES = 12


@pytest.fixture(params=["reference", "kernels"], scope="module")
def module(request: pytest.FixtureRequest) -> types.ModuleType:
    return sgl_kernel(request.param)


def cases(name: str, count: int = CASES) -> list[tuple[Case, Tensors]]:
    """Cases of an operation with what the reference says of them."""
    made = [OPS[name].generate(seeded(0, name, index)) for index in range(count)]
    return [(case, OPS[name].expected(case)) for case in made]


def buffers(op: Op, case: Case) -> Tensors:
    """Outputs as a worker hands them over: prefilled where the contract says so, others with a value of nobody."""
    made = op.allocate_outputs(case)
    for arg in op.outputs:
        if arg.prefill is None:
            made[arg.name].fill_(77)
    return made


def assert_defined_equal(op: Op, case: Case, actual: Tensors, expected: Tensors) -> None:
    for name, mask in op.defined(case, expected).items():
        atol = op.tolerance.get(name, 0)
        torch.testing.assert_close(actual[name][mask], expected[name][mask], rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("name", ["build_tree", "build_tree_packed"])
def test_a_tree_is_built_in_the_callers_buffers(module: types.ModuleType, name: str) -> None:
    for case, expected in cases(name):
        t, out = case.tensors, buffers(OPS[name], case)
        mode = 2 if name == "build_tree_packed" else case.sizes["tree_mask_mode"]
        arguments = [t["parent_list"], t["selected_index"], t["verified_seq_len"], out["tree_mask"], out["positions"]]
        numbers = [case.sizes[size] for size in ("topk", "num_steps", "num_draft_tokens")]
        module.build_tree_kernel_efficient(*arguments, *(out[link] for link in LINKS), *numbers, mode)
        assert_defined_equal(OPS[name], case, out, expected)


def test_the_mask_of_a_graph_is_bytes(module: types.ModuleType) -> None:
    for case, expected in cases("build_tree"):
        t, out = case.tensors, buffers(OPS["build_tree"], case)
        mask = out["tree_mask"].to(torch.uint8)
        arguments = [t["parent_list"], t["selected_index"], t["verified_seq_len"], mask, out["positions"]]
        numbers = [case.sizes[size] for size in ("topk", "num_steps", "num_draft_tokens", "tree_mask_mode")]
        module.build_tree_kernel_efficient(*arguments, *(out[link] for link in LINKS), *numbers)
        assert torch.equal(mask, expected["tree_mask"].to(torch.uint8))


def test_one_step_has_parents_of_any_dtype(module: types.ModuleType) -> None:
    mask, positions = torch.ones(6 + 2 * 2, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    links = [torch.full((1, 2), -1) for _ in LINKS]
    parents, selected, lengths = torch.empty(1, 0), torch.tensor([[0]]), torch.tensor([3])
    module.build_tree_kernel_efficient(parents, selected, lengths, mask, positions, *links, 1, 1, 2, FULL_MASK)
    assert (positions.tolist(), [link.tolist() for link in links]) == ([3, 4], [[[0, 1]], [[1, -1]], [[-1, -1]]])


def test_the_columns_before_a_tree_are_the_callers(module: types.ModuleType) -> None:
    seen = 0
    for case, expected in cases("build_tree"):
        t, out = case.tensors, buffers(OPS["build_tree"], case)
        if case.sizes["tree_mask_mode"] != FULL_MASK or not int(t["verified_seq_len"].sum()):
            continue
        out["tree_mask"].fill_(False)
        arguments = [t["parent_list"], t["selected_index"], t["verified_seq_len"], out["tree_mask"], out["positions"]]
        numbers = [case.sizes[size] for size in ("topk", "num_steps", "num_draft_tokens")]
        module.build_tree_kernel_efficient(*arguments, *(out[link] for link in LINKS), *numbers, FULL_MASK)
        lost = int((expected["tree_mask"] & ~out["tree_mask"]).sum())
        assert lost == int(t["verified_seq_len"].sum()) * case.sizes["num_draft_tokens"]
        seen += 1
    assert seen


def test_a_mask_gives_its_tree_back(module: types.ModuleType) -> None:
    op = OPS["reconstruct_tree"]
    for case, expected in cases(op.name):
        out = buffers(op, case)
        bs, ndt, _ = case.tensors["tree_mask"].shape
        outputs = [out["positions"], *(out[link] for link in LINKS)]
        module.reconstruct_indices_from_tree_mask(
            case.tensors["tree_mask"].flatten(), case.tensors["verified_seq_len"], *outputs, bs, ndt
        )
        assert_defined_equal(op, case, out, expected)


def verified(module: types.ModuleType, name: str, case: Case, out: Tensors) -> None:
    t = case.tensors
    tensors = [out["predicts"], out["accept_index"], out["accept_token_num"], t["candidates"]]
    tensors += [t[link] for link in LINKS]
    if name == "verify_tree_greedy":
        module.verify_tree_greedy(*tensors, t["target_predict"])
        return
    module.tree_speculative_sampling_target_only(
        *tensors,
        uniform_samples=t["uniform_samples"],
        uniform_samples_for_final_sampling=t["uniform_final"],
        target_probs=t["target_probs"],
        draft_probs=torch.zeros_like(t["target_probs"]),
        threshold_single=float(t["threshold_single"]),
        threshold_acc=float(t["threshold_acc"]),
        deterministic=True,
    )


@pytest.mark.parametrize("name", ["verify_tree_greedy", "verify_tree_target_only"])
def test_a_verification_writes_the_accepted_path_and_nothing_else(module: types.ModuleType, name: str) -> None:
    op = OPS[name]
    for case, expected in cases(name):
        out = buffers(op, case)
        verified(module, name, case, out)
        assert_defined_equal(op, case, out, expected)
        on_path = op.defined(case, expected)["predicts"]
        assert bool((out["predicts"][~on_path] == 77).all())


def test_a_buffer_that_was_not_prefilled_shows(module: types.ModuleType) -> None:
    case, expected = next(
        (case, expected) for case, expected in cases("verify_tree_greedy") if (expected["accept_index"] < 0).any()
    )
    out = buffers(OPS["verify_tree_greedy"], case)
    out["accept_index"].fill_(5)
    verified(module, "verify_tree_greedy", case, out)
    assert not torch.equal(out["accept_index"], expected["accept_index"])


@pytest.mark.parametrize("name", ["top_k", "top_p"])
def test_filters_take_a_tensor_or_a_number(module: types.ModuleType, name: str) -> None:
    op = OPS[f"{name}_renorm_probs"]
    function = getattr(module, f"{name}_renorm_prob")
    for case, expected in cases(op.name, 2):
        probs, value = case.tensors["probs"], case.tensors[name]
        atol = op.tolerance.get("renorm_probs", 0)
        torch.testing.assert_close(function(probs, value), expected["renorm_probs"], rtol=0, atol=atol)
        torch.testing.assert_close(
            function(probs[:1], value[0].item()), expected["renorm_probs"][:1], rtol=0, atol=atol
        )


def test_of_equal_values_the_first_is_on_top(module: types.ModuleType) -> None:
    values, indices = module.fast_topk(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 2, dim=-1)
    assert values.tolist() == [[3.0, 3.0]]
    assert indices.tolist() == [[1, 2]]


def test_what_is_on_top_can_be_viewed_in_another_shape(module: types.ModuleType) -> None:
    values, indices = module.fast_topk(torch.arange(12.0).view(3, 4), 2, dim=-1)
    assert values.view(-1).tolist() == [3.0, 2.0, 7.0, 6.0, 11.0, 10.0]
    assert indices.view(-1).tolist() == [3, 2] * 3


def test_it_answers_an_import_and_names_what_it_lacks(
    module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sgl_kernel", module)
    from sgl_kernel import silu_and_mul, verify_tree_greedy  # type: ignore[import-not-found, unused-ignore]

    assert verify_tree_greedy == module.verify_tree_greedy
    with pytest.raises(NoSuchOperationError, match=r"sgl_kernel\.silu_and_mul is not run: specsim has build_tree"):
        silu_and_mul(torch.zeros(2))
    assert "verify_tree_greedy" in OPERATIONS


def test_wrong_arguments_are_named(module: types.ModuleType) -> None:
    case, _ = cases("verify_tree_greedy")[0]
    out = buffers(OPS["verify_tree_greedy"], case)
    wrong = Case(case.sizes, {**case.tensors, "candidates": case.tensors["candidates"].to(torch.int32)})
    with pytest.raises(ValueError, match=r"candidates has dtype torch\.int32; allowed: torch\.int64"):
        verified(module, "verify_tree_greedy", wrong, out)
    with pytest.raises(ValueError, match=r"accept_token_num has dtype torch\.int64; allowed: torch\.int32"):
        verified(module, "verify_tree_greedy", case, {**out, "accept_token_num": out["accept_token_num"].long()})
    with pytest.raises(UsageError, match="there is no implementation 'numpy'"):
        sgl_kernel("numpy")
