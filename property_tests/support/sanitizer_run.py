"""Run as a program: launch every kernel once or twice on small cases and compare with the reference, and nothing else.

    compute-sanitizer --tool memcheck python property_tests/support/sanitizer_run.py [OPERATION ...]

Made for NVIDIA's sanitizer, which finds wrong addresses, races in shared memory and reads of unwritten memory on the
device. Cases are made on the CPU, so that few other kernels are watched. Ends with 1 if a result is wrong. Without a
GPU the kernels run in Triton's interpreter if TRITON_INTERPRET=1.
"""

from __future__ import annotations

import sys

import torch

from specsim import kernels
from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case, Op
from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REQUESTS = 3
NODES_MAX = 16
CASES = 2
WITH_KERNELS = [name for name in OPS if name not in WITHOUT_A_KERNEL]


def small_cases(op: Op) -> list[Case]:
    shapes = [op.cases.draw_shape(seeded(5, op.name, number)) for number in range(40)]
    few = [shape for shape in shapes if shape.get("num_draft_tokens", 0) <= NODES_MAX][:CASES]
    return [op.cases.make(torch.arange(REQUESTS) + number, shape) for number, shape in enumerate(few)]


def wrong(op: Op, case: Case) -> list[str]:
    """Names of outputs that differ from the reference's."""
    expected = op.expected(case)
    tensors = {name: tensor.to(DEVICE) for name, tensor in case.clone().tensors.items()}
    tensors |= {name: tensor.to(DEVICE) for name, tensor in op.allocate_outputs(case).items()}
    results = op.call(getattr(kernels, op.name), case.sizes, tensors)
    return [
        name
        for name, mask in op.defined(case, expected).items()
        if not torch.allclose(
            results[name].cpu()[mask].double(),
            expected[name][mask].double(),
            rtol=0,
            atol=op.tolerance.get(name, 0.0),
            equal_nan=True,
        )
    ]


def main(names: list[str]) -> int:
    failures = 0
    for op in (OPS[name] for name in names or WITH_KERNELS):
        for case in small_cases(op):
            for output in wrong(op, case):
                failures += 1
                print(f"{op.name}: {output} differs from the reference's on {case.sizes}")
    buffers = [torch.arange(64, dtype=torch.float32, device=DEVICE).view(8, 8) for _ in range(3)]
    target, source = torch.tensor([1, 2, 3], device=DEVICE), torch.tensor([2, 3, 1], device=DEVICE)
    kernels.move_kv_of_buffers(kernels.kv_buffers(buffers), target, source)
    failures += not all(buffer[1:4, 0].tolist() == [16.0, 24.0, 8.0] for buffer in buffers)
    print(f"{len(names or WITH_KERNELS)} operations on {DEVICE}: {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
