"""The sanitizer on kernels of a release: it flags what is known to be wrong with them, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from property_tests.support.known_releases import OLDEST
from specsim.interpreter import Report, sanitize
from specsim.lifting.cache import Cache
from specsim.lifting.lift import Lifter
from specsim.lifting.source import SourceTree

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the sanitizer watches Triton's interpreter; CUDA runs compiled kernels",
)

SPEC_UTILS = "srt/speculative/spec_utils.py"

Lift = Callable[[str, str], Any]


@pytest.fixture
def lift(release: Callable[[str], SourceTree], wheel_cache: Cache) -> Lift:
    lifter = Lifter(release(OLDEST), wheel_cache, {})
    return lambda path, name: lifter.lift(path, name).value


def shown(report: Report) -> list[str]:
    return [str(flaw) for flaw in report.flaws]


def test_prefix_sums_of_masked_lanes_without_other_are_flagged(lift: Lift) -> None:
    kernel = lift(SPEC_UTILS, "get_target_cache_loc")

    def run(
        targets: torch.Tensor, freed: torch.Tensor, accepted: torch.Tensor, to_free: torch.Tensor, slots: Any
    ) -> None:
        kernel[(3,)](targets, freed, accepted, to_free, slots, 4, 4, 4)

    accepted = torch.tensor([1, 0, 2], dtype=torch.int32)
    to_free = torch.tensor([2, 3, 1])
    targets, freed = torch.empty(6, dtype=torch.int64), torch.empty(6, dtype=torch.int64)
    report = sanitize(run, targets, freed, accepted, to_free, torch.arange(50, 62), outputs=["targets", "freed"])
    assert report.kinds == {"masked-lanes"}, shown(report)
    assert len(report.without_other) >= 2


def test_the_same_defect_where_finished_requests_are_left_out(lift: Lift) -> None:
    kernel = lift(SPEC_UTILS, "filter_finished_cache_loc_kernel")

    def run(out: torch.Tensor, targets: torch.Tensor, accepted: torch.Tensor, kept: torch.Tensor) -> None:
        kernel[(3,)](out, targets, accepted, kept, 4, 4)

    accepted = torch.tensor([1, 0, 2], dtype=torch.int32)
    kept = torch.tensor([2, 1, 3], dtype=torch.int32)
    report = sanitize(run, torch.empty(6, dtype=torch.int64), torch.arange(50, 56), accepted, kept, outputs=["out"])
    assert report.kinds == {"masked-lanes"}, shown(report)


@pytest.mark.parametrize(("stride", "kinds"), [(8, {"out-of-bounds"}), (4, set())])
def test_a_stride_of_nodes_instead_of_the_paths_width_leaves_the_tensor(
    lift: Lift, stride: int, kinds: set[str]
) -> None:
    kernel = lift("srt/speculative/eagle_info_v2.py", "fill_new_verified_id")

    def run(verified: torch.Tensor, lens: torch.Tensor, bonus: torch.Tensor) -> None:
        kernel[(4,)](verified, lens, bonus, stride)

    verified = torch.arange(1000, 1016, dtype=torch.int32)  # [4, accept_width 4]
    lens = torch.tensor([4, 1, 2, 4], dtype=torch.int32)
    report = sanitize(run, verified, lens, torch.empty(4, dtype=torch.int32), outputs=["bonus"])
    assert report.kinds - {"undefined-memory"} == kinds, shown(report)


def test_a_kv_move_that_is_safe_by_its_layout_alone_is_flagged_where_ranges_overlap(lift: Lift) -> None:
    kernel = lift("srt/mem_cache/memory_pool.py", "copy_all_layer_kv_cache_tiled")
    buffer = torch.arange(6 * 8, dtype=torch.int64).view(6, 8)

    def run(source: torch.Tensor, target: torch.Tensor) -> None:
        pointers = torch.tensor([buffer.data_ptr()], dtype=torch.uint64)
        kernel[(1, 1)](pointers, torch.tensor([64]), target, source, 3, 4, 64)

    overlapping = sanitize(run, torch.tensor([2, 3, 4]), torch.tensor([1, 2, 3]), extra=[buffer])
    assert overlapping.kinds == {"race-within"}, shown(overlapping)
    apart = sanitize(run, torch.tensor([3, 4, 5]), torch.tensor([0, 1, 2]), extra=[buffer])
    assert shown(apart) == []


def test_a_row_offset_in_32_bits_is_flagged_at_a_vocabulary_and_batch_of_today(lift: Lift) -> None:
    kernel = lift("srt/constrained/triton_ops/bitmask_ops.py", "apply_token_bitmask_inplace_kernel")
    vocab_size = 151_936

    def run(logits: torch.Tensor, bitmask: torch.Tensor, indices: torch.Tensor) -> None:
        kernel[(1,)](logits, bitmask, indices, 1, 64, vocab_size, 0, 1, 64)

    masked = torch.full((1, 2), -1, dtype=torch.int32)
    last_row = torch.tensor([16_383], dtype=torch.int32)
    report = sanitize(run, torch.zeros(1, 64), masked, last_row)
    assert "int32-overflow" in report.kinds, shown(report)
