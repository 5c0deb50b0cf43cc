"""Run as a program: by what key each launch would be compiled, at many batch sizes and without a GPU, as JSON.

    python -m property_tests.support.compile_keys OPERATION ...

For each operation its kernels, and of each a list of `[key, batch sizes]`. A key is Triton's own: types, alignment,
constants and options; two launches of one key share what was compiled. Not under Triton's interpreter, which compiles
nothing.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from property_tests.support.compiled_kernels import NUM_SMS, TARGET, arguments_of, sizes_of
from specsim import kernels
from specsim.kernels import kv_move, renorm, verify_logits, verify_sampled, verify_tree

BATCHES = sorted({near for power in range(13) for near in (2**power - 1, 2**power, 2**power + 1, 3 * 2**power)})
"""Up to 4096, with what is beside each power of two: thresholds of a launch lie there, or at one and a half of it."""


def keys_of(name: str) -> dict[str, list[tuple[str, list[int]]]]:
    """The keys of an operation's launches, by kernel."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    backend = make_backend(TARGET)
    binders: dict[JITFunction[Any], Any] = {}

    def record(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if self not in binders:
            binders[self] = create_function_from_signature(self.signature, self.params, backend)
        _, specialization, options = binders[self](*args, debug=False, instrumentation_mode="", **kwargs)
        batches = found[self.__name__][f"{specialization} {options}"]
        if bs not in batches:
            batches.append(bs)

    JITFunction.run = record
    for bs in (bs for bs in BATCHES if 0 < bs <= 4096):
        getattr(kernels, name)(**arguments_of(name, sizes_of(name, 8, bs)))
    return {kernel: list(batches_of.items()) for kernel, batches_of in found.items()}


if __name__ == "__main__":
    for module in (kv_move, renorm, verify_logits, verify_sampled, verify_tree):
        module.num_sms_of = lambda _device: NUM_SMS  # type: ignore[attr-defined] # of an H100 or H200
    print(json.dumps({name: keys_of(name) for name in sys.argv[1:]}))
