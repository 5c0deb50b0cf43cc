"""A batch size that a server has not had before compiles nothing, for that would be a pause of its requests.

On a machine without a GPU: the keys by which Triton would compile each launch are compared, and nothing is compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL

ROOT = Path(__file__).parents[2]
PROGRAM = "property_tests.support.compile_keys"
OPERATIONS = [name for name in OPS if name not in WITHOUT_A_KERNEL]

VARIANTS = {
    "row_argmax": {"_row_argmax_kernel": 6, "_best_word_kernel": 5},
    "temperature_softmax": {"_parts_of_row_kernel": 2, "_softmax_of_parts_kernel": 2},
    "top_k_renorm_probs": {"_renorm_kernel": 7},
    "top_p_renorm_probs": {"_renorm_kernel": 7},
    "verify_tree_rejection": {"_verify_tree_rejection_kernel": 8},
    "verify_chain_block": {"_masses_of_prefixes_kernel": 6, "_verify_chain_kernel": 7},
    "move_kv": {"_move_kv_kernel": 7},
    "verify_logits_greedy": {"_eager_kernel": 3, "_lazy_kernel": 6},
    "verify_logits_sampled": {"_kernel": 7},
    "verify_ragged_sampled": {"_verify_kernel": 8},
}
"""Kernels that share rows between as many programs as fill the device, a power of two: their variants at batch sizes
from 1 to 4096."""


@cache
def keys() -> dict[str, dict[str, list[tuple[str, list[int]]]]]:
    """Of each operation and kernel: keys, and the batch sizes of each. In a process of its own, without the
    interpreter.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", PROGRAM, *OPERATIONS]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, list[tuple[str, list[int]]]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("op", OPERATIONS)
def test_batch_sizes_from_1_to_4096_share_one_compiled_kernel_or_a_fixed_few(op: str) -> None:
    allowed = VARIANTS.get(op, {})
    assert keys()[op], "no launch was recorded"
    for kernel, by_key in keys()[op].items():
        assert len(by_key) == allowed.get(kernel, 1), "\n".join(f"{batches}: {key}" for key, batches in by_key)
