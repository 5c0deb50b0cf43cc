"""A pytest fixture that holds a function against its contract: `pytest -p specsim.pytest_plugin`, or

    pytest_plugins = ["specsim.pytest_plugin"]

at the top of `conftest.py`. Triton kernels run on a CPU where `TRITON_INTERPRET=1` is set before triton is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

Hold = Callable[..., None]


@pytest.fixture
def holds_contract() -> Hold:
    """`holds_contract(operation, function, cases=100, seed=0, device="cpu")` fails with the smallest case on which the
    function is not what the operation's contract says, or with the reason why it cannot be called.
    """

    def hold(operation: str, function: Any, cases: int = 100, seed: int = 0, device: str = "cpu") -> None:
        from specsim.diff.suite import judge
        from specsim.ops.provider import MappingProvider
        from specsim.ops.registry import OPS

        subjects, not_run = MappingProvider("the test", {operation: function}).subjects()
        if not subjects:
            pytest.fail(next(f"{e.what}: {e.why}" for e in not_run if e.what == operation), pytrace=False)
        (subject,) = subjects
        result = judge(
            OPS[operation],
            subject,
            seed=seed,
            cases=cases,
            device=device,
            deadline=math.inf,
            on_case=lambda _index: None,
        )
        if found := result.counterexample:
            sizes = ", ".join(f"{name}={size}" for name, size in found.case.sizes.items())
            lines = [f"{v.rule.id}: {v.title}; {v.expected}, not {v.actual}" for v in found.outcome.violations]
            shown = "\n".join(f"{name} = {tensor.tolist()}" for name, tensor in found.case.tensors.items())
            pytest.fail(f"{operation}: {'; '.join(lines)}\nsmallest case: {sizes}\n{shown}", pytrace=False)

    return hold
