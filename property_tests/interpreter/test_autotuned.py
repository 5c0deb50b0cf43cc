"""An autotuned kernel runs in lockstep, with the first of its configurations that it does not prune."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from specsim.interpreter import run


def at_least_4(configs: list[Any], _arguments: dict[str, Any], **_more: Any) -> list[Any]:
    return [config for config in configs if config.kwargs["BLOCK"] >= 4]


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=1) for block in (2, 4, 8)],
    key=["n"],
    prune_configs_by={"early_config_prune": at_least_4},
)
@triton.heuristics({"IS_EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def blocks_kernel(p_out, n, BLOCK: tl.constexpr, IS_EVEN: tl.constexpr):
    o_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_out + o_n, BLOCK + tl.zeros([BLOCK], tl.int64), mask=IS_EVEN | (o_n < n))


def test_the_first_configuration_that_is_not_pruned_is_taken_and_nothing_is_kept() -> None:
    out = torch.zeros(10, dtype=torch.int64)
    configs = list(blocks_kernel.configs)
    run(blocks_kernel[lambda arguments: (triton.cdiv(10, arguments["BLOCK"]),)], out, 10)
    assert out.tolist() == [4] * 10
    assert blocks_kernel.configs == configs
    assert blocks_kernel.cache == {}
