"""Memory through which the programs of a launch communicate: zero before a launch, and zeroed by it at its end.

An eager launch uses the scratch of its stream. A launch that a CUDA graph captures uses the scratch of graphs, which
each eager launch, such as the warm-up before a capture, makes as large as its own; where no launch came before, new
scratch is zeroed inside the graph, at each replay. Graphs of a device share theirs, so two of them must not be replayed
at the same time. Scratch that became too small is never freed, since graphs hold pointers to it; sizes are powers of
two, so that all of it takes less than what is in use.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

_FOR_GRAPHS = -1  # in place of a stream
_KEPT: dict[tuple[str, torch.device, int], Tensor] = {}
_OUTGROWN: list[Tensor] = []


def scratch_of(name: str, device: torch.device, words: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """A tensor of at least `words` elements, the scratch `name` of a kernel on that device."""
    if device.type != "cuda":
        return _kept(name, device, 0, words, dtype)
    if torch.cuda.is_current_stream_capturing():
        kept = _KEPT.get((name, device, _FOR_GRAPHS))
        return kept if kept is not None and len(kept) >= words else torch.zeros(words, dtype=dtype, device=device)
    _kept(name, device, _FOR_GRAPHS, words, dtype)
    return _kept(name, device, torch.cuda.current_stream(device).cuda_stream, words, dtype)


def kept_scratch(name: str) -> list[Tensor]:
    """The tensors of scratch `name`, of every device and stream."""
    return [kept for (of, _device, _stream), kept in _KEPT.items() if of == name]


def _kept(name: str, device: torch.device, stream: int, words: int, dtype: torch.dtype) -> Tensor:
    kept = _KEPT.get((name, device, stream))
    if kept is None or len(kept) < words:
        _OUTGROWN.extend([] if kept is None else [kept])
        kept = _KEPT[name, device, stream] = torch.zeros(triton.next_power_of_2(words), dtype=dtype, device=device)
    return kept
