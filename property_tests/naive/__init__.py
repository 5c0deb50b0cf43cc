"""A naive implementation of every operation, with which tests compare the reference.

There is a file for each of the reference's, and in it a function NAME_naive with the signature of NAME. It works with
lists, dicts and for loops, one request, node or token at a time, and does not check its arguments.
"""

import importlib

from specsim.contracts.contract import Implementation, Op
from specsim.contracts.registry import OPS


def _naive_of(op: Op) -> Implementation:
    """That of the reference's function, in the file of the same name."""
    file, name = op.reference.__module__.rpartition(".")[2], op.reference.__name__
    found: Implementation = getattr(importlib.import_module(f"{__name__}.{file}"), f"{name}_naive")
    return found


NAIVE: dict[str, Implementation] = {op.name: _naive_of(op) for op in OPS.values()}
"""The naive implementations, by operation."""
