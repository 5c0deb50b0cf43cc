"""The kernels of releases give in lockstep, bit for bit, what Triton's own interpreter makes of them."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from property_tests.support.known_releases import RELEASES
from specsim.choices.chooser import seeded
from specsim.contracts.provider import NotCalledError
from specsim.contracts.registry import OPS
from specsim.engines.packages import cached_packages, open_source
from specsim.engines.sglang.provider import SglangProvider
from specsim.engines.target import Release
from specsim.engines.vllm.provider import VllmProvider
from specsim.interpreter.lockstep.launch import lockstep
from specsim.interpreter.triton_names import mend_interpreter, one_line
from specsim.tiers.ops.run import run_case

if TYPE_CHECKING:
    from collections.abc import Callable

    from specsim.contracts.contract import Case, Op, Tensors
    from specsim.contracts.provider import Subject
    from specsim.lifting.cache import Cache
    from specsim.lifting.source import SourceTree

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is one side of the comparison"
)

CASES = 4
QUICK = RELEASES[2]
VLLM = ("0.11.0", "0.33.0")


def outcome(op: Op, subject: Subject, case: Case) -> Tensors | str:
    """What the subject leaves in its tensors, or what it raised."""
    tensors = {name: tensor.clone() for name, tensor in case.tensors.items()} | op.allocate_outputs(case)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject.run(case.sizes, tensors)
    except NotCalledError:
        raise
    except Exception as error:
        return one_line(error)
    return tensors


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    nans = a.isnan()
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(nans, b.isnan()) and torch.equal(
        torch.where(nans, 0, a).view(integer), torch.where(nans, 0, b).view(integer)
    )


def differences(subjects: list[Subject]) -> tuple[dict[str, int], list[str]]:
    """How many launches of each kernel ran in lockstep, and what differs from Triton's interpreter."""
    launched: dict[str, int] = {}
    differ: list[str] = []
    mend_interpreter()
    for subject in subjects:
        op: Any = OPS[subject.op]
        if subject.role != "kernel" or subject.far is not None:
            continue
        for index in range(CASES):
            case = op.generate(seeded(0, "lockstep", op.name, index))
            if not subject.accepts(case.sizes):
                continue
            try:
                with lockstep() as launches:
                    actual = outcome(op, subject, case)
                expected = outcome(op, subject, case)
            except NotCalledError:
                continue
            launched[subject.name] = launched.get(subject.name, 0) + launches.count
            if isinstance(expected, str):  # what Triton's interpreter cannot run is right when the reference says so
                if not isinstance(actual, str) and (broken := run_case(op, subject, case).violations):
                    differ.append(f"{subject.op} {index}: {broken}, Triton's {expected!r:.200}")
                continue
            if isinstance(actual, str):
                differ.append(f"{subject.op} {index}: {actual!r:.200}")
                continue
            for name, mask in op.defined(case, op.expected(case)).items():
                if not same_bits(actual[name][mask], expected[name][mask]):
                    differ.append(f"{subject.op} {index}: {name}")
    return launched, differ


@pytest.mark.parametrize("version", RELEASES)
def test_every_kernel_of_a_release_gives_the_same_bits_in_both_interpreters(
    version: str, release: Callable[[str], SourceTree], wheel_cache: Cache, pytestconfig: pytest.Config
) -> None:
    if version != QUICK and not pytestconfig.getoption("--all-releases"):
        pytest.skip(f"the kernels of sglang=={version} are compared by `make test-releases`")
    subjects, _ = SglangProvider(release(version), wheel_cache).subjects()
    launched, differ = differences(subjects)
    assert differ == []
    assert sum(count > 0 for count in launched.values()) >= 8


@pytest.mark.parametrize("version", VLLM)
def test_every_kernel_of_vllm_gives_the_same_bits_in_both_interpreters(
    version: str, wheel_cache: Cache, pytestconfig: pytest.Config
) -> None:
    if not pytestconfig.getoption("--all-releases"):
        pytest.skip(f"the kernels of vllm=={version} are compared by `make test-releases`")
    target = Release("vllm", version)
    if ("vllm", version) not in cached_packages(wheel_cache):
        pytest.skip(f"vllm=={version} is not in the cache; `make test-releases` fetches it")
    subjects, _ = VllmProvider(open_source(target, wheel_cache), wheel_cache).subjects()
    launched, differ = differences(subjects)
    assert differ == []
    assert sum(count > 0 for count in launched.values()) >= 4
