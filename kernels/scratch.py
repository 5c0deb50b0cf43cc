"""Memory through which the programs of a launch talk: zero before a launch, and left zero by it.

An eager launch takes what is kept for its stream. A launch that a CUDA graph captures takes what is kept for graphs,
which eager launches, such as the warm-up before a capture, make as large as theirs; without one it is zeroed inside the
graph, at each replay. Graphs of a device share it, so two of them must not be replayed at the same time. What is
outgrown stays, since graphs hold pointers to it; sizes are powers of two, so that is less than what is in use.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

_FOR_GRAPHS = -1  # in place of a stream
_KEPT: dict[tuple[str, torch.device, int], Tensor] = {}
_OUTGROWN: list[Tensor] = []


def scratch_of(name: str, device: torch.device, words: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """At least `words` elements of a kernel's scratch `name`."""
    if device.type != "cuda":
        return _kept(name, device, 0, words, dtype)
    if torch.cuda.is_current_stream_capturing():
        kept = _KEPT.get((name, device, _FOR_GRAPHS))
        return kept if kept is not None and len(kept) >= words else torch.zeros(words, dtype=dtype, device=device)
    _kept(name, device, _FOR_GRAPHS, words, dtype)
    return _kept(name, device, torch.cuda.current_stream(device).cuda_stream, words, dtype)


def kept_scratch(name: str) -> list[Tensor]:
    """All that is kept of a kernel's scratch."""
    return [kept for (of, _device, _stream), kept in _KEPT.items() if of == name]


def _kept(name: str, device: torch.device, stream: int, words: int, dtype: torch.dtype) -> Tensor:
    kept = _KEPT.get((name, device, stream))
    if kept is None or len(kept) < words:
        _OUTGROWN.extend([] if kept is None else [kept])
        kept = _KEPT[name, device, stream] = torch.zeros(triton.next_power_of_2(words), dtype=dtype, device=device)
    return kept
