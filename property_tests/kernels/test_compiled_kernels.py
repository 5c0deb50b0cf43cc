"""Compiled for the GPU that they are written for, on a machine without one: no spills, wide accesses, one launch.

The normal suite compiles the kernels that move or scan much; `make test-sm90` all of them, and larger trees.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import triton

from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL

PROGRAM = Path(__file__).parents[1] / "support" / "compiled_kernels.py"
EVERYTHING = os.environ.get("SPECSIM_COMPILE") == "all"
WIDE = 16  # bytes that a thread can move at once

HOT = (
    *("build_tree", "verify_tree_target_only", "verify_chain_rejection", "verify_tree_rejection"),
    *("top_k_renorm_probs", "apply_penalties", "row_argmax", "move_kv", "compact_accepted_path"),
    *("move_kv_of_buffers", "verify_logits_sampled", "verify_ragged_sampled"),
)
LARGE = ("build_tree", "reconstruct_tree", "organize_draft_results", "verify_tree_target_only", "verify_tree_rejection")
WITH_KERNELS = [name for name in OPS if name not in WITHOUT_A_KERNEL]
OPERATIONS = (*WITH_KERNELS, "move_kv_of_buffers", *(f"{op}@64" for op in LARGE)) if EVERYTHING else HOT

# What a launch reads and writes most of, where that is rows of logits, distributions, KV or hidden states.
READS_ROWS = {
    *("verify_tree_target_only", "verify_chain_rejection", "verify_chain_block", "verify_tree_rejection"),
    *("top_k_renorm_probs", "top_p_renorm_probs", "min_p_renorm_probs", "temperature_softmax", "row_argmax"),
    *(
        "apply_penalties",
        "move_kv",
        "move_kv_of_buffers",
        "compact_accepted_path",
        "gather_rows",
        "assign_hidden_states_pool",
    ),
    *("assign_new_state", "stash_append_boundary_state", "fill_widened_draft_extend_inputs"),
    *("verify_logits_sampled", "verify_ragged_sampled"),
}
WRITES_ROWS = READS_ROWS - {
    *("verify_tree_target_only", "verify_chain_rejection", "verify_chain_block", "verify_tree_rejection", "row_argmax"),
    *("verify_logits_sampled", "verify_ragged_sampled"),
}


def missing() -> str:
    """Why nothing can be compiled here, or ""."""
    try:
        tools = (triton.knobs.nvidia.ptxas, triton.knobs.nvidia.ptxas_blackwell)
        return "" if all(Path(tool.path).is_file() for tool in tools) else "this triton ships no ptxas"
    except (AttributeError, RuntimeError) as error:
        return f"this triton has no ptxas to compile with: {error}"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@cache
def compiled() -> dict[str, list[dict[str, Any]]]:
    """What compiling each operation's launches gave; in a process of its own, where Triton compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *OPERATIONS], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


SPILLS_MOST = {"verify_logits_sampled": 160, "verify_ragged_sampled": 8}
"""Bytes of a thread. Of the one it is an address, kept beside the call that looks for a NaN, with Triton 3.6 alone. Of
the other 8 with Triton 3.9, 100 with 3.7, 152 with 3.6: addresses of arguments, stored once before the walk and read
again outside of its loops over tokens; with twice the warps it spills none, and takes 1.1 to 1.9 times as long on an
H200."""


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_kernel_spills_nothing_and_is_not_compiled_again_for_another_number(op: str) -> None:
    (launch,) = compiled()[op]
    assert launch["spill_bytes"] <= SPILLS_MOST.get(op, 0), launch
    assert launch["specialized"] == []


@pytest.mark.parametrize("op", sorted(READS_ROWS & set(OPERATIONS)))
def test_rows_are_read_as_wide_as_a_thread_can(op: str) -> None:
    assert compiled()[op][0]["load_bytes"] == WIDE


@pytest.mark.parametrize("op", sorted(WRITES_ROWS & set(OPERATIONS)))
def test_rows_are_written_as_wide_as_a_thread_can(op: str) -> None:
    assert compiled()[op][0]["store_bytes"] == WIDE


@pytest.mark.parametrize("op", ["move_kv", "move_kv_of_buffers"])
def test_moves_wait_at_a_barrier_between_reading_and_writing(op: str) -> None:
    assert compiled()[op][0]["barriers"] >= 1
