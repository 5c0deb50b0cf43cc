"""The Triton kernels give the reference's results: on the GPU if there is one, else in the interpreter."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton import knobs
from triton.runtime.jit import JITFunction

from property_tests.support.sibling_order import descending
from specsim import kernels
from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case, Op, Role, TensorArg, Tensors, differing
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL
from specsim.kernels import (
    accepted,
    alloc,
    cache_locs,
    drafting,
    kv,
    kv_move,
    logits,
    masks,
    multi_layer,
    renorm,
    sampling,
    tree,
    verify,
    verify_chain,
    verify_ragged,
    verify_sampled,
    verify_tree,
)
from specsim.kernels.launch import checked_launch
from specsim.reference import FULL_MASK, QLEN_ONLY
from specsim.reference.logits import NAN_HIGHEST, NAN_LOWEST, row_argmax

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GUARD = 64
POISONS = (-(10**6) - 1, 1_234_567)

KERNEL_OPS = {subject.op: OPS[subject.op] for subject in kernels.provider().subjects()[0]}
every_op = pytest.mark.parametrize("op", KERNEL_OPS.values(), ids=list(KERNEL_OPS))


def kernel(op: Op) -> Callable[..., None]:
    launch: Callable[..., None] = getattr(kernels, op.name)
    return launch


class Guarded:
    """Copies of a case's tensors on the device and poisoned outputs, each inside a larger buffer whose rest
    must stay as it is.
    """

    def __init__(self, op: Op, case: Case, poison: int) -> None:
        self.tensors: Tensors = {}
        self._buffers: Tensors = {}
        self._before: Tensors = {}
        for arg in op.tensor_args:
            shape = arg.resolve_shape(case.sizes)
            numel = torch.Size(shape).numel()
            value = {torch.bool: poison % 2 == 0, torch.uint8: poison % 251}.get(arg.dtype, poison)
            buffer = torch.full((numel + 2 * GUARD,), value, dtype=arg.dtype, device=DEVICE)
            view = buffer[GUARD : GUARD + numel].view(shape)
            if arg.role is not Role.OUT:
                view.copy_(case.tensors[arg.name])
            self.tensors[arg.name] = view
            self._buffers[arg.name] = buffer
            self._before[arg.name] = buffer.clone()

    def changed(self) -> set[str]:
        """Arguments whose tensor is not what it was."""
        return {name for name, view in self.tensors.items() if bool(differing(view, self.before(name)).any())}

    def before(self, name: str) -> torch.Tensor:
        view = self.tensors[name]
        return self._before[name][GUARD : GUARD + view.numel()].view(view.shape)

    def overrun(self) -> set[str]:
        """Arguments next to whose tensor something was written."""
        return {
            name
            for name, buffer in self._buffers.items()
            if bool(differing(buffer, self._before[name])[:GUARD].any())
            or bool(differing(buffer, self._before[name])[-GUARD:].any())
        }


def assert_equals_the_reference(op: Op, case: Case, poison: int) -> None:
    """Every defined element equals the reference's, and nothing else that a kernel could touch has changed."""
    expected = op.expected(case)
    defined, tokens = op.defined(case, expected), op.tokens(case, expected)
    guarded = Guarded(op, case, poison)
    op.call(kernel(op), case.sizes, guarded.tensors)
    wrong = op.wrong(case, expected, {name: guarded.tensors[name].cpu() for name in defined})
    for name, mask in defined.items():
        result = guarded.tensors[name].cpu()
        assert not bool(wrong[name].any()), name
        torch.testing.assert_close(
            result[mask], expected[name][mask], rtol=0, atol=op.tolerance.get(name, 0), equal_nan=True, msg=name
        )
        left = differing(result, guarded.before(name).cpu())[~(mask | tokens.get(name, mask))]
        assert not bool(left.any()), f"undefined part of {name}"
    assert guarded.overrun() == set()
    assert guarded.changed() <= {arg.name for arg in op.outputs}


ROWS_OF_A_CASE_MAX = 16
EXAMPLES = {"logits": 3, "sampling": 6, "verify_logits_sampled": 2}  # a program of these takes the interpreter long
ignore_nan_warnings = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # inf * 0


def is_quick(case: Case) -> bool:
    """Whether the interpreter, which runs one program after the other, takes less than seconds for it."""
    return DEVICE == "cuda" or case.sizes.get("num_nodes", 0) <= ROWS_OF_A_CASE_MAX


@ignore_nan_warnings
@every_op
def test_a_kernel_gives_the_references_result_whatever_its_buffers_held(op: Op) -> None:
    @given(case=cases(op).filter(is_quick), poison=st.sampled_from(POISONS))
    @settings(max_examples=EXAMPLES.get(op.name, EXAMPLES.get(op.family, 12)), suppress_health_check=list(HealthCheck))
    def holds(case: Case, poison: int) -> None:
        assert_equals_the_reference(op, case, poison)

    holds()


SMALL_BLOCKS: dict[Any, dict[str, int]] = {
    alloc: {"BLOCK_B": 2, "BLOCK_LOCS": 4, "BLOCK_LOCS_SHORT": 2},
    accepted: {"BLOCK_B": 2, "BLOCK_LOCS": 2, "BLOCK_H": 2},
    cache_locs: {"BLOCK_B": 2, "BLOCK_LOCS": 2},
    drafting: {"BLOCK_J": 2},
    kv: {"BLOCK_B": 2, "BLOCK_LOCS": 2, "BLOCK_H": 2, "PROGRAMS_MAX": 30},
    kv_move: {"TILE_BYTES": 64, "BLOCK_M_MIN": 2},
    logits: {"BLOCK_V": 16, "BLOCK_ROW": 16, "BITMASK_BLOCK": 64, "ARGMAX_BLOCK": 8},
    masks: {"BLOCK_C": 2},
    multi_layer: {"BLOCK_T": 2, "BLOCK_H": 2},
    renorm: {"GROUP": 4, "BLOCK_V": 32, "BLOCK_SEARCH": 32, "LIST": 16, "SHORT_LIST": 4},
    sampling: {"BLOCK_V": 2},
    tree: {"BLOCK_B": 2, "BLOCK_C": 2, "BLOCK_FILL": 2, "FILL_BYTES": 64},
    verify: {"BLOCK_B": 2},
    verify_chain: {"BLOCK_V": 2, "LAZY_FROM": 2},
    verify_ragged: {"BLOCK_V": 2},
    verify_sampled: {"GROUP": 4, "BLOCK_V": 32, "BLOCK_SEARCH": 32, "LIST": 16, "SHORT_LIST": 4},
    verify_tree: {"BLOCK_V": 2},
}


@pytest.mark.skipif(DEVICE == "cuda", reason="blocks that small are for the interpreter alone")
@ignore_nan_warnings
@every_op
def test_a_kernel_that_needs_many_blocks_gives_the_same(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, blocks in SMALL_BLOCKS.items():
        for name, size in blocks.items():
            monkeypatch.setattr(module, name, size)
    made = (op.generate(seeded(4, op.name, index)) for index in range(300))
    several = (case for case in made if is_quick(case) and case.sizes["bs"] >= 3)
    case = next(case for case in several if case.sizes.get("vocab_size", 0) < 70)
    assert_equals_the_reference(op, case, POISONS[0])


@every_op
def test_a_kernel_has_the_contracts_signature_with_its_outputs(op: Op) -> None:
    assert list(inspect.signature(kernel(op)).parameters) == [arg.name for arg in op.args]


def test_the_provider_has_every_operation() -> None:
    subjects, missing = kernels.provider().subjects()
    assert [subject.op for subject in subjects] == [name for name in OPS if name not in WITHOUT_A_KERNEL]
    assert {entry.what for entry in missing} == set(WITHOUT_A_KERNEL), "write its kernel, or list it there"
    assert all(subject.where and subject.role == "kernel" for subject in subjects)
    assert {subject.reach({}) for subject in subjects} == {"default"}


ADD_AN_OPERATION = """
from dataclasses import replace
from specsim.contracts.registry import OPS
OPS["new_operation"] = replace(OPS["fill_bonus_tokens"], name="new_operation")
from specsim import kernels
print("new_operation" in {entry.what for entry in kernels.provider().subjects()[1]})
"""


def test_an_operation_whose_kernel_is_not_written_yet_is_one_that_is_not_run() -> None:
    ended = subprocess.run([sys.executable, "-c", ADD_AN_OPERATION], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["True"], ended.stderr


def test_a_kernel_of_no_operation_is_an_error_that_says_what_to_do() -> None:
    def no_operation() -> None:
        pass

    with pytest.raises(ValueError, match=r"no_operation is no operation; .*add that to OPS"):
        checked_launch()(no_operation)


BATCH_SIZES: tuple[str, ...] = (
    "bs",
    "num_nodes",
    "num_locs",
    "num_draft_locs",
    "mask_numel",
    "mask_bytes",
    "num_tokens",
    "num_targets",
)
BATCH_SIZES += ("num_freed", "num_kept", "num_prefix", "num_rows", "num_copies", "num_accept_entries", "num_moves")
BATCH_SIZES += ("num_old", "num_new", "num_src_rows", "num_window", "num_indices")


@every_op
def test_an_empty_batch_launches_nothing(op: Op) -> None:
    case = op.generate(seeded(0, "empty"))
    sizes = case.sizes | dict.fromkeys(BATCH_SIZES, 0) | {"num_bounds": 1}
    tensors = {
        arg.name: torch.zeros(arg.resolve_shape(sizes), dtype=arg.dtype, device=DEVICE) for arg in op.tensor_args
    }
    op.call(kernel(op), sizes, tensors)


@every_op
def test_a_tensor_that_is_not_contiguous_is_refused(op: Op) -> None:
    made = (op.generate(seeded(0, "strided", index)) for index in range(100))
    several = (case for case in made if case.sizes["bs"] >= 2)
    case, name, tensor = next((c, n, t) for c in several for n, t in c.tensors.items() if t.numel() >= 2 <= t.shape[0])
    spread = torch.stack([tensor, tensor], dim=-1)[..., 0]
    tensors = {**case.tensors, **op.allocate_outputs(case), name: torch.cat([spread, spread])[::2]}
    with pytest.raises(ValueError, match=f"{name} has strides .*; allowed: contiguous tensors"):
        op.call(kernel(op), case.sizes, tensors)


@every_op
def test_what_does_not_fit_the_contract_is_refused_by_name_before_any_launch(op: Op) -> None:
    case = op.generate(seeded(0, "refused"))
    right = {**case.tensors, **op.allocate_outputs(case)}
    for arg in op.args:
        if not isinstance(arg, TensorArg):
            with pytest.raises(ValueError, match=f"^{arg.name} is 2.5; allowed: an int"):
                op.call(kernel(op), {**case.sizes, arg.name: 2.5}, dict(right))  # type: ignore[dict-item]
            continue
        wrong = {"dtype": right[arg.name].to(torch.complex64), "shape": right[arg.name][None]}
        for what, tensor in wrong.items():
            if what == "dtype" and arg.name in MOVED_WHATEVER_THEY_ARE:
                continue
            with pytest.raises(ValueError, match=f"^{arg.name} has {what} .*; allowed: "):
                op.call(kernel(op), case.sizes, {**right, arg.name: tensor})


MOVED_WHATEVER_THEY_ARE = {"buffer", "topk_p_buf", "hidden_states_buf", "hidden_states", "verify_hiddens"}
MOVED_WHATEVER_THEY_ARE |= {"compacted_hidden_states", "req_to_hidden_states_pool", "old_hidden_states", "src_hiddens"}
MOVED_WHATEVER_THEY_ARE |= {"stash_hiddens", "topk_p"}


def test_tensors_that_do_not_fit_one_another_are_refused_by_name() -> None:
    op = OPS["verify_chain_rejection"]
    case = op.generate(seeded(0, "refused"))
    tensors = {name: t.to(DEVICE) for name, t in {**case.tensors, **op.allocate_outputs(case)}.items()}
    shorter = {**tensors, "uniform_samples": tensors["uniform_samples"][:, 1:]}
    with pytest.raises(ValueError, match=r"^uniform_samples has shape .*; allowed: \[bs=\d, num_steps=\d\]"):
        op.call(kernel(op), case.sizes, shorter)
    with pytest.raises(ValueError, match=r"^predicts has num_nodes \d+; allowed: \d+, as the other arguments say"):
        op.call(kernel(op), case.sizes, {**tensors, "predicts": tensors["predicts"][1:]})
    compaction = OPS["compact_accepted_path"]
    case = compaction.generate(seeded(0, "refused"))
    tensors = {name: t.to(DEVICE) for name, t in {**case.tensors, **compaction.allocate_outputs(case)}.items()}
    tensors["hidden_states"] = tensors["hidden_states"].to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"compacted_hidden_states has dtype torch.float32; allowed: torch.bfloat16"):
        compaction.call(kernel(compaction), case.sizes, tensors)


def test_a_batch_of_more_than_one_block_of_requests_finds_its_segments() -> None:
    bs, pool_len = 300, 8
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(0, 4, (bs,), generator=generator)
    ends = starts + torch.randint(0, 5, (bs,), generator=generator)
    slots = torch.arange(1, 1 + (bs + 1) * pool_len, dtype=torch.int32).view(bs + 1, pool_len)
    arguments = {
        "req_pool_indices": 1 + torch.randperm(bs, generator=generator),
        "req_to_token": slots,
        "start_offset": starts,
        "end_offset": ends,
    }
    case = Case(
        {"bs": bs, "num_locs": int((ends - starts).sum()), "pool_rows": bs + 1, "pool_len": pool_len},
        arguments,
    )
    op = OPS["assign_extend_cache_locs"]
    guarded = Guarded(op, case, POISONS[0])
    op.call(kernel(op), case.sizes, guarded.tensors)
    assert torch.equal(guarded.tensors["out_cache_loc"].cpu(), op.expected(case)["out_cache_loc"])


def orphaned_case(mask_mode: int) -> Case:
    """Two requests of topk 2 and 2 steps; the first one's last node is a child of candidate 1, which is not
    selected."""
    prefix = 3 + 5 if mask_mode == FULL_MASK else 0
    sizes = {
        "bs": 2,
        "topk": 2,
        "num_steps": 2,
        "num_draft_tokens": 4,
        "tree_mask_mode": mask_mode,
        "num_selected": 3,
    }
    sizes |= {"parent_width": 3, "num_nodes": 8, "mask_numel": 4 * (prefix + 8)}
    tensors = {
        "parent_list": torch.tensor([[-1, 0, 1], [-1, 0, 1]]),
        "selected_index": torch.tensor([[0, 2, 4], [0, 1, 4]]),
        "verified_seq_len": torch.tensor([3, 5]),
    }
    return Case(sizes, tensors)


@pytest.mark.parametrize("mask_mode", [FULL_MASK, QLEN_ONLY])
def test_an_orphan_ends_its_walk_and_leaves_other_requests_alone(mask_mode: int) -> None:
    op, case = OPS["build_tree"], orphaned_case(mask_mode)
    guarded = Guarded(op, case, POISONS[1])
    op.call(kernel(op), case.sizes, guarded.tensors)
    assert guarded.overrun() == set()
    healthy = case.clone()
    healthy.tensors["selected_index"][0] = torch.tensor([0, 1, 4])
    expected = op.expected(healthy)
    for name in ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling"):
        assert torch.equal(guarded.tensors[name][1].cpu(), expected[name][1]), name
    assert torch.equal(guarded.tensors["positions"][4:].cpu(), expected["positions"][4:])
    assert guarded.tensors["retrieve_next_token"][0].tolist() == [1, 2, -1, -1]
    assert guarded.tensors["retrieve_next_sibling"][0].tolist() == [-1, -1, -1, -1]
    own = op.expected(case_of_second(healthy))["tree_mask"]
    assert torch.equal(guarded.tensors["tree_mask"][-own.numel() :].cpu(), own)


def case_of_second(case: Case) -> Case:
    """The second request of a batch of two alone."""
    prefix = 5 if case.sizes["tree_mask_mode"] == FULL_MASK else 0
    sizes = case.sizes | {"bs": 1, "num_nodes": 4, "mask_numel": 4 * (prefix + 4)}
    return Case(sizes, {name: tensor[1:] for name, tensor in case.tensors.items()})


@pytest.mark.parametrize("root_alone", [False, True])
def test_greedy_verification_without_steps_emits_the_roots_bonus_token(root_alone: bool) -> None:
    op = OPS["verify_tree_greedy"]
    case = op.generate(seeded(0, "no steps"))
    if root_alone:
        bs = case.sizes["bs"]
        case.tensors.update({name: tensor[:, :1].contiguous() for name, tensor in case.tensors.items()})
        case.tensors["retrieve_index"] = torch.arange(bs)[:, None]
        case.tensors["retrieve_next_token"] = torch.full((bs, 1), -1)
        case.tensors["retrieve_next_sibling"] = torch.full((bs, 1), -1)
        case.sizes.update({"num_draft_tokens": 1, "num_nodes": bs})
    case.sizes.update({"num_steps": 0, "accept_width": 1})
    assert_equals_the_reference(op, case, POISONS[0])


@pytest.mark.parametrize("excess", [2.0**-23, 5e-4])
@pytest.mark.parametrize("name", ["verify_chain_rejection", "verify_chain_block", "verify_tree_rejection"])
def test_a_certain_draft_whose_probability_rounds_to_more_than_one_is_accepted(name: str, excess: float) -> None:
    op = OPS[name]
    sizes = {"bs": 1, "num_draft_tokens": 3, "num_steps": 2, "accept_width": 3, "num_nodes": 3, "vocab_size": 5}
    certain = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    rows_of_drafts = 2 if "chain" in name else 3
    available = {
        "candidates": torch.zeros(1, 3, dtype=torch.int64),
        "retrieve_index": torch.arange(3)[None],
        "retrieve_next_token": torch.tensor([[1, 2, -1]]),
        "retrieve_next_sibling": torch.full((1, 3), -1),
        "draft_probs": (certain * (1 + excess)).repeat(1, rows_of_drafts, 1),
        "target_probs": certain.repeat(1, 3, 1),
        "uniform_samples": torch.full((1, rows_of_drafts), 1 - 2.0**-24),
        "uniform_final": torch.full((1,), 1 - 2.0**-24),
    }
    case = Case(sizes, {arg.name: available[arg.name] for arg in op.tensor_args if arg.role is Role.IN})
    assert op.expected(case)["accept_token_num"].tolist() == [2]
    assert_equals_the_reference(op, case, POISONS[0])


@pytest.mark.parametrize("name", ["verify_chain_rejection", "verify_chain_block", "verify_tree_rejection"])
def test_a_placeholder_is_rejected_and_no_probability_is_read_for_it(name: str) -> None:
    op = OPS[name]
    made = (op.generate(seeded(8, name, index)) for index in range(300))
    absent = (case for case in made if is_quick(case) and bool((case.tensors["candidates"] == -1).any()))
    for case in itertools.islice(absent, 6):
        assert_equals_the_reference(op, case, POISONS[0])


@pytest.mark.parametrize("vocab_size", [5, 200, 3_000])
@pytest.mark.parametrize("name", ["top_k_renorm_probs", "top_p_renorm_probs", "min_p_renorm_probs"])
def test_a_limit_that_keeps_all_changes_no_bit_of_a_row_whose_sum_is_rounded(name: str, vocab_size: int) -> None:
    probs = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(1)).softmax(dim=1).to(DEVICE)
    limits = {"top_k": torch.full((6,), vocab_size).int(), "top_p": torch.ones(6), "min_p": torch.zeros(6)}
    kept = torch.full_like(probs, -1.0)
    kernel(OPS[name])(probs, limits[name.removesuffix("_renorm_probs")].to(DEVICE), kept)
    assert torch.equal(kept, probs)


WALKS = ("verify_tree_greedy", "verify_tree_target_only", "verify_tree_rejection", "verify_logits_greedy")


@pytest.mark.parametrize("name", [*WALKS, "verify_logits_sampled"])
def test_siblings_in_descending_order_are_walked_as_they_are_linked(name: str) -> None:
    op = OPS[name]
    made = (op.generate(seeded(6, name, index)) for index in range(300))
    bushes = (case for case in made if is_quick(case) and bool((case.tensors["retrieve_next_sibling"] >= 0).any()))
    for case in itertools.islice(bushes, 4):
        other_way = descending(case)
        assert bool((other_way.tensors["retrieve_next_sibling"] > 0).any())
        assert_equals_the_reference(op, other_way, POISONS[0])


BROKEN_LINKS = [
    ({"retrieve_next_sibling": [-1, 2, 1, -1]}, 99),  # siblings in a circle, none accepted
    ({"retrieve_next_token": [1, 1, -1, -1]}, 11),  # a node that is its own child, always accepted
    ({"retrieve_next_token": [4, -1, -1, -1]}, 99),  # a child beyond the row
    ({"retrieve_next_token": [-7, -1, -1, -1]}, 99),
]


@pytest.mark.parametrize("name", ["verify_tree_greedy", "verify_tree_target_only", "verify_tree_rejection"])
@pytest.mark.parametrize(("links", "target"), BROKEN_LINKS)
def test_a_walk_over_broken_links_ends(name: str, links: dict[str, list[int]], target: int) -> None:
    op = OPS[name]
    tree = {"retrieve_next_token": [1, 3, -1, -1], "retrieve_next_sibling": [-1, 2, -1, -1]} | links
    dist = torch.nn.functional.one_hot(torch.tensor(target), 100).to(torch.float32)
    available = {
        "candidates": torch.tensor([[10, 11, 12, 13]]),
        "retrieve_index": torch.arange(4)[None],
        **{name: torch.tensor([link]) for name, link in tree.items()},
        "target_predict": torch.full((1, 4), target),
        "target_probs": dist.expand(1, 4, 100).contiguous(),
        "draft_probs": torch.full((1, 4, 100), 0.01),
        "uniform_samples": torch.full((1, 4), 0.5),
        "uniform_final": torch.full((1,), 0.5),
        "threshold_single": torch.ones(1),
        "threshold_acc": torch.ones(1),
    }
    tensors = {arg.name: available[arg.name] for arg in op.tensor_args if arg.role is Role.IN}
    sizes = {"bs": 1, "num_draft_tokens": 4, "num_steps": 9, "accept_width": 10, "num_nodes": 4, "vocab_size": 100}
    guarded = Guarded(op, Case(sizes, tensors), POISONS[0])
    op.call(kernel(op), sizes, guarded.tensors)
    assert guarded.overrun() == set()
    assert guarded.tensors["accept_index"][0, 0] == 0
    assert 0 <= int(guarded.tensors["accept_token_num"][0]) < 4


@ignore_nan_warnings
@pytest.mark.parametrize("name", ["verify_tree_target_only", "verify_chain_rejection", "verify_tree_rejection"])
def test_a_distribution_of_nan_accepts_nothing_and_emits_a_token_of_the_vocabulary(name: str) -> None:
    op = OPS[name]
    case = op.generate(seeded(0, "nan"))
    case.tensors["target_probs"].fill_(float("nan"))
    guarded = Guarded(op, case, POISONS[1])
    op.call(kernel(op), case.sizes, guarded.tensors)
    assert guarded.tensors["accept_token_num"].tolist() == [0] * case.sizes["bs"]
    root = guarded.tensors["accept_index"][:, 0].long()
    assert guarded.tensors["predicts"][root].tolist() == [case.sizes["vocab_size"] - 1] * case.sizes["bs"]


@pytest.mark.parametrize("nan_policy", [NAN_HIGHEST, NAN_LOWEST])
@pytest.mark.parametrize("value", [0.0, float("nan"), float("-inf"), -3.0])
def test_rows_that_programs_share_give_the_lowest_of_equal_tokens(nan_policy: int, value: float) -> None:
    for num_rows, vocab_size in ((2, 5_000), (3, 4_099), (1, 8_192)):
        rows = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(num_rows)) - 9
        for i, row in enumerate(rows):
            row[1_500 + i :: 1_000] = value
        rows[0, 700] = -0.0
        ids = torch.full((num_rows,), -1, device=DEVICE)
        kernels.row_argmax(rows.to(DEVICE), nan_policy, ids)
        assert ids.tolist() == row_argmax(rows, nan_policy).tolist()
    assert logits._argmax_splits(1, 128_256) == 32
    assert logits._argmax_splits(512, 128_256) == logits._argmax_splits(1, 1_000) == 1


@pytest.mark.parametrize("mask_mode", [FULL_MASK, QLEN_ONLY])
def test_a_tree_and_its_slots_in_one_launch_are_what_two_operations_give(mask_mode: int) -> None:
    op, slots = OPS["build_tree"], OPS["assign_extend_cache_locs"]
    case = next(
        case
        for case in (op.generate(seeded(1, "slots", index)) for index in range(200))
        if case.sizes["tree_mask_mode"] == mask_mode and case.sizes["bs"] >= 2 and is_quick(case)
    )
    bs, ndt = case.sizes["bs"], case.sizes["num_draft_tokens"]
    seq_lens = case.tensors["verified_seq_len"]
    pool_len = int(seq_lens.max()) + ndt
    table = torch.arange(1, 1 + (bs + 1) * pool_len, dtype=torch.int32).view(bs + 1, pool_len)
    rows = torch.arange(bs, 0, -1)
    lookup = {"req_pool_indices": rows, "req_to_token": table, "start_offset": seq_lens, "end_offset": seq_lens + ndt}
    expected = op.expected(case) | slots.expected(Case({"num_locs": bs * ndt}, lookup))
    guarded = Guarded(op, case, POISONS[0]).tensors
    locs = torch.full((bs * ndt,), POISONS[0], device=DEVICE)
    on_device = {"req_pool_indices": rows.to(DEVICE), "req_to_token": table.to(DEVICE), "out_cache_loc": locs}
    scalars = {arg.name: case.sizes[arg.name] for arg in op.args if not isinstance(arg, TensorArg)}
    arguments: dict[str, Any] = {**guarded, **on_device, **scalars}
    kernels.build_tree_and_cache_locs(**arguments)
    for name, result in {**guarded, "out_cache_loc": locs}.items():
        if name in expected:
            assert torch.equal(result.cpu(), expected[name]), name


def test_a_chain_and_its_slots_in_one_launch_are_what_two_operations_give() -> None:
    op, slots = OPS["build_chain_tree"], OPS["assign_extend_cache_locs"]
    made = (op.generate(seeded(1, "slots", index)) for index in range(200))
    case = next(case for case in made if case.sizes["bs"] >= 2 and is_quick(case))
    bs, ndt, seq_lens = case.sizes["bs"], case.sizes["num_draft_tokens"], case.tensors["verified_seq_len"]
    pool_len = int(seq_lens.max()) + ndt - 1  # the last node of the longest sequence has no column
    table = torch.arange(1, 1 + (bs + 1) * (pool_len + 1), dtype=torch.int32).view(bs + 1, pool_len + 1)
    rows = torch.arange(bs, 0, -1)
    lookup = {"req_pool_indices": rows, "req_to_token": table, "start_offset": seq_lens, "end_offset": seq_lens + ndt}
    found = slots.expected(Case({"num_locs": bs * ndt}, lookup))["out_cache_loc"].view(bs, ndt)
    beyond = seq_lens[:, None] + torch.arange(ndt) >= pool_len
    expected = op.expected(case) | {"out_cache_loc": found.masked_fill(beyond, 0).flatten()}
    guarded = Guarded(op, case, POISONS[0]).tensors
    locs = torch.full((bs * ndt,), POISONS[0], device=DEVICE)
    narrow = table[:, :pool_len].contiguous().to(DEVICE)
    more = {"req_pool_indices": rows.to(DEVICE), "req_to_token": narrow, "out_cache_loc": locs}
    kernels.build_chain_tree_and_cache_locs(**guarded, **more)
    for name, result in {**guarded, "out_cache_loc": locs}.items():
        if name in expected:
            assert torch.equal(result.cpu(), expected[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
@pytest.mark.parametrize("row_width", [3, 8])
def test_rows_of_any_dtype_and_width_move(dtype: torch.dtype, row_width: int) -> None:
    buffer = torch.arange(6 * row_width, device=DEVICE).view(6, row_width).to(dtype)
    expected = buffer[torch.tensor([0, 2, 3, 3, 4, 5])].cpu()
    target, source = torch.tensor([0, 1, 2], device=DEVICE), torch.tensor([0, 2, 3], device=DEVICE)
    kernels.move_kv(buffer, target, source)
    assert torch.equal(buffer.cpu(), expected)


@pytest.mark.parametrize(("row_width", "num_buffers"), [(3, 2), (8, 5), (256, 3)])
@given(moves=st.lists(st.tuples(st.integers(-1, 12), st.integers(-1, 12)), max_size=9, unique_by=lambda move: move[0]))
@settings(max_examples=6)
def test_the_same_slots_move_in_every_buffer_of_a_pool(
    row_width: int, num_buffers: int, moves: list[tuple[int, int]]
) -> None:
    pool = torch.arange(num_buffers * 12 * row_width, device=DEVICE).view(num_buffers, 12, row_width).to(torch.float16)
    buffers = list(pool.clone())
    inside = [(target, source) for target, source in moves if 0 <= target < 12 and 0 <= source < 12]
    for layer, buffer in enumerate(buffers):
        expected = buffer.clone()
        for target, source in inside:
            expected[target] = pool[layer, source]
        pool[layer] = expected
    target, source = torch.tensor(moves, dtype=torch.int64, device=DEVICE).view(-1, 2).T.contiguous()
    kernels.move_kv_of_buffers(kernels.kv_buffers(buffers), target, source)
    assert torch.equal(torch.stack(buffers), pool)


def test_buffers_that_do_not_fit_one_another_are_refused_by_name() -> None:
    buffer = torch.zeros(4, 8, device=DEVICE)
    with pytest.raises(ValueError, match=r"buffers is empty"):
        kernels.kv_buffers([])
    with pytest.raises(ValueError, match=r"^buffers\[1\] has num_slots 3; allowed: 4"):
        kernels.kv_buffers([buffer, buffer[:3]])
    with pytest.raises(ValueError, match=r"^buffers\[1\] has bytes 64; allowed: 128"):
        kernels.kv_buffers([buffer, buffer.half()])
    slots = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=r"^target has dtype torch.int32"):
        kernels.move_kv_of_buffers(kernels.kv_buffers([buffer]), slots, slots)


def test_columns_beyond_the_row_are_padding_and_never_the_next_row() -> None:
    table = torch.arange(1, 21, dtype=torch.int32, device=DEVICE).view(2, 10)
    row, seq_len = torch.tensor([0], device=DEVICE), torch.tensor([8], device=DEVICE)
    out = torch.full((4,), POISONS[0], device=DEVICE)
    kernels.assign_draft_cache_locs_contiguous(row, table, seq_len, out, topk=1, num_steps=4)
    assert out.tolist() == [9, 10, 0, 0]
    kernels.assign_extend_cache_locs(row, table, seq_len, seq_len + 4, out)
    assert out.tolist() == [9, 10, 0, 0]
    kernels.assign_req_to_token_pool(row, table, seq_len, seq_len + 4, torch.full((4,), 77, device=DEVICE))
    assert table.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 77, 77], list(range(11, 21))]


def test_a_padded_request_without_a_path_gets_token_zero() -> None:
    int32: dict[str, Any] = {"dtype": torch.int32, "device": DEVICE}
    bonus = torch.full((3,), POISONS[0], **int32)
    path = torch.tensor([[0, 1], [-1, -1], [4, -1]], **int32)
    kernels.fill_bonus_tokens(torch.arange(50, 56, **int32), path, torch.tensor([2, 0, 1], **int32), bonus)
    assert bonus.tolist() == [51, 0, 54]


def test_too_many_nodes_and_unknown_mask_modes_are_refused() -> None:
    op = OPS["build_tree"]
    case = op.generate(seeded(0, "refused"))
    tensors = {name: t.to(DEVICE) for name, t in {**case.tensors, **op.allocate_outputs(case)}.items()}
    with pytest.raises(ValueError, match=r"tree_mask_mode is 2; allowed: 0 .* or 1"):
        op.call(kernel(op), case.sizes | {"tree_mask_mode": 2}, tensors)
    sizes = case.sizes | {"bs": 1, "num_draft_tokens": 257, "num_selected": 256, "num_nodes": 257}
    sizes |= {"tree_mask_mode": QLEN_ONLY, "mask_numel": 257 * 257}
    tensors = {arg.name: torch.zeros(arg.resolve_shape(sizes), dtype=arg.dtype) for arg in op.tensor_args}
    with pytest.raises(ValueError, match="num_draft_tokens is 257; allowed: at most 256"):
        op.call(kernel(op), sizes, {name: tensor.to(DEVICE) for name, tensor in tensors.items()})


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@every_op
def test_a_captured_graph_replays_on_new_inputs(op: Op) -> None:
    pairs = alike_pairs(op)
    assert pairs
    for first, second in pairs[:5]:
        guarded = Guarded(op, first, POISONS[0])
        op.call(kernel(op), first.sizes, guarded.tensors)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            op.call(kernel(op), first.sizes, guarded.tensors)
        for name, tensor in second.tensors.items():
            guarded.tensors[name].copy_(tensor)
        graph.replay()
        expected = op.expected(second)
        for name, mask in op.defined(second, expected).items():
            result, atol = guarded.tensors[name].cpu()[mask], op.tolerance.get(name, 0)
            torch.testing.assert_close(result, expected[name][mask], rtol=0, atol=atol, equal_nan=True, msg=name)


def alike_pairs(op: Op) -> list[tuple[Case, Case]]:
    """Cases of equal sizes, none of them 0: some that choices make, and some of a bulk generator."""
    shapes: dict[tuple[tuple[str, int], ...], list[Case]] = {}
    pairs: list[tuple[Case, Case]] = []

    def add(case: Case) -> None:
        alike = shapes.setdefault(tuple(sorted(case.sizes.items())), [])
        alike.append(case)
        if len(alike) == 2 and case.sizes["bs"] >= 2 and all(t.numel() for t in case.tensors.values()):
            pairs.append((alike[0], case))

    for index in range(1000):
        add(op.generate(seeded(3, op.name, index)))
    shape = op.cases.draw_shape(seeded(4, op.name, 1))
    for batch in range(400 if len(pairs) < 3 else 0):
        add(op.cases.make(torch.arange(2 * batch, 2 * batch + 2), shape))
    return pairs


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_a_new_batch_size_compiles_nothing() -> None:
    """What tests before this one compiled in this process is forgotten first: it would hide a variant. What is on disk
    hides none, for the hook is called of a kernel from there as well.
    """
    for module in [module for name, module in sys.modules.items() if name.startswith("specsim.kernels")]:
        for function in vars(module).values():
            if isinstance(function, JITFunction):
                function.device_caches.clear()
    compiled: list[str] = []
    knobs.runtime.jit_post_compile_hook = lambda **what: compiled.append(what["repr"])
    try:
        launch_every_kernel(16)
        assert compiled, "nothing was compiled, so that this test could not fail"
        compiled.clear()
        for bs in (1, 2, 5, 7, 32, 100, 256, 512):
            launch_every_kernel(bs)
    finally:
        knobs.runtime.jit_post_compile_hook = None
    assert compiled == []


def launch_every_kernel(bs: int) -> None:
    """The operations of a decode step on `bs` requests of one engine configuration: topk 3, 1 step, 4 draft tokens."""
    sizes = {"bs": bs, "topk": 3, "num_steps": 1, "num_draft_tokens": 4, "accept_width": 2, "num_nodes": 4 * bs}
    sizes |= {"num_selected": 3, "parent_width": 0, "num_locs": 4 * bs, "num_draft_locs": 3 * bs}
    sizes |= {"pool_rows": bs + 1, "pool_len": 8 + bs}
    for mask_mode in (FULL_MASK, QLEN_ONLY):
        sizes |= {"tree_mask_mode": mask_mode, "mask_numel": 16 * bs}
        for op in (op for op in KERNEL_OPS.values() if op.family in ("cache_locs", "tree", "verify")):
            sizes["mask_bytes"] = 4 * bs
            tensors = {
                arg.name: torch.zeros(arg.resolve_shape(sizes), dtype=arg.dtype, device=DEVICE)
                for arg in op.tensor_args
            }
            for name in {"end_offset", "accept_lens"} & set(tensors):
                tensors[name].fill_(4 if name == "end_offset" else 1)
            op.call(kernel(op), sizes, tensors)
