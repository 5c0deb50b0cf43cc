"""The move of accepted KV by a provider's kernel, in place of the simulator's own.

The simulator moves fingerprints between slots. Here they become rows of the kernel's buffer, four exact float32 of 16
bits for each slot of the pool, so that a row that the kernel moves wrongly, or should not have touched, is content that
the rules see.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from specsim.contracts.provider import MappingProvider, Provider, Subject
from specsim.errors import UsageError

OP = "move_kv"
Move = Callable[[list[int], list[int], list[int]], None]

_BITS = (0, 16, 32, 48)
_MASK64 = (1 << 64) - 1


def mover(name: str, cache: Path) -> Move:
    """`move(content, target, source)` by the operation `move_kv` of a provider: "reference", "triton", or what a TARGET
    names. UsageError when there is none. The move raises ValueError for whatever the kernel raises.
    """
    subject = _subject(name, cache)

    def move(content: list[int], target: list[int], source: list[int]) -> None:
        tensors = {"buffer": to_rows(content), "target": torch.tensor(target), "source": torch.tensor(source)}
        sizes = {"num_slots": len(content), "row_width": len(_BITS), "num_moves": len(target)}
        try:
            subject.run(sizes, tensors)
        except Exception as error:
            raise ValueError(f"{OP} of {name}: {type(error).__name__}: {error}") from error
        content[:] = to_content(tensors["buffer"])

    return move


def to_rows(content: list[int]) -> Tensor:
    """[num_slots, 4] float32 of the 64-bit numbers of `content`, the lowest 16 bits first."""
    whole = torch.frombuffer(array("Q", content), dtype=torch.int64)  # [num_slots]
    return torch.stack([whole >> bits & 0xFFFF for bits in _BITS], 1).to(torch.float32)


def to_content(rows: Tensor) -> list[int]:
    """The numbers whose rows these are. What is no number of 16 bits gives another number, not an error."""
    parts = rows.nan_to_num().to(torch.int64) & 0xFFFF  # [num_slots, 4]
    whole = (parts << torch.tensor(_BITS)).sum(1)  # [num_slots], its sign is the highest bit
    return [number & _MASK64 for number in whole.tolist()]


def _subject(name: str, cache: Path) -> Subject:
    subjects, _ = _provider(name, cache).subjects()
    for subject in subjects:
        if subject.op == OP and subject.role == "kernel":
            return subject
    has = ", ".join(dict.fromkeys(subject.op for subject in subjects)) or "nothing"
    raise UsageError(f"--kernels {name}: it has no {OP}", f"name a provider that has it; this one has {has}")


def _provider(name: str, cache: Path) -> Provider:
    if name == "reference":
        from specsim.contracts.registry import REFERENCE

        return MappingProvider(name, REFERENCE)
    from specsim.engines.load import load_provider
    from specsim.engines.target import parse_target
    from specsim.interpreter.triton_interpreter import mend_ranges
    from specsim.lifting.cache import Cache

    mend_ranges()
    return load_provider(parse_target("model" if name == "triton" else name), Cache(cache))
