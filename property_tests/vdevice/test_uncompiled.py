"""`torch.compile` and Dynamo's decorators leave functions as they are on the virtual device, and import nothing."""

from __future__ import annotations

import subprocess
import sys

import torch

from specsim.choices.chooser import replayed
from specsim.vdevice import simulate

PROGRAM = """
import sys

import torch

from specsim.choices.chooser import replayed
from specsim.vdevice import simulate

with simulate(replayed([0])):
    @torch._dynamo.disable
    def double(x):
        return x + x

    @torch.compile(dynamic=True)
    def quadruple(x):
        return double(double(x)) if not torch._dynamo.is_compiling() else x

    print(quadruple(torch.ones(2, device="cuda")).tolist())
print("torch._dynamo" in sys.modules, torch._dynamo.config is not None, "torch._dynamo" in sys.modules)
"""


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


def test_every_way_to_compile_a_function_gives_the_function() -> None:
    before = torch.compile
    with simulate(replayed([0])):
        for decorated in (
            torch.compile(doubled),
            torch.compile(model=doubled, backend="eager"),
            torch.compile(dynamic=True)(doubled),
            torch.compiler.disable(doubled),
            torch.compiler.disable(fn=None, recursive=False)(doubled),
            torch._dynamo.disable()(doubled),
        ):
            assert decorated is doubled
        assert torch.compile(doubled)(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]
    assert torch.compile is before


def test_dynamo_is_imported_by_who_needs_more_of_it_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["[4.0, 4.0]", "False True True"], ended.stderr
