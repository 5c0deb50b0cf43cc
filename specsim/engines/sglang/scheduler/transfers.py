"""The compiled copies of a hierarchical cache (HiCache), between the pool of KV and memory of the host, as launches on
the virtual device: of each slot the elements that it has, so that two copies of other slots are no race.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from specsim.vdevice.history import Memory


class Buffer(NamedTuple):
    """Of one layer, keys or values by slot: [slots, heads, width]."""

    memory: Memory
    host_bytes: torch.Tensor


def operations(device: Callable[[], Any]) -> Mapping[str, Callable[..., Any]]:
    """By name. `device` gives the virtual device of a call."""

    def transfer_kv_per_layer(
        src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, src_indices: Any, dst_indices: Any, *_sizes: Any, **_named: Any
    ) -> None:
        def run(access: Any) -> None:
            for source, target in ((src_k, dst_k), (src_v, dst_v)):
                _copy(access, source, target, src_indices, dst_indices)

        device().launch(run, reads=[src_indices, dst_indices], name=transfer_kv_per_layer.__name__)

    def transfer_kv_all_layer(
        src_k_layers: Any,
        dst_k_layers: Any,
        src_v_layers: Any,
        dst_v_layers: Any,
        src_indices: Any,
        dst_indices: Any,
        *_sizes: Any,
        **_named: Any,
    ) -> None:
        """Layers are tables of pointers."""
        addressed = device().addressed

        def run(access: Any) -> None:
            for tables in ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers)):
                for pair in zip(*(access.host(table).tolist() for table in tables), strict=True):
                    source, target = (Buffer(*addressed[address]) for address in pair)
                    _copy(access, source, target, src_indices, dst_indices)

        device().launch(run, reads=[src_indices, dst_indices], name=transfer_kv_all_layer.__name__)

    return {made.__name__: made for made in (transfer_kv_per_layer, transfer_kv_all_layer)}


def _copy(access: Any, source: Any, target: Any, src_indices: Any, dst_indices: Any) -> None:
    """Slots of one buffer to slots of another; both have `memory` and `host_bytes`."""
    into, out_of = access.host(target), access.host(source)
    sources, targets = (access.host(indices).numpy() for indices in (src_indices, dst_indices))
    for part, slots in ((out_of, sources), (into, targets)):
        if outside := [slot for slot in slots.tolist() if not 0 <= slot < len(part)]:
            access.failed(IndexError(f"slot {outside[0]} of {len(part)}"))
            return
    access.read(source, elements_of(source, sources))
    into[targets] = out_of[sources]
    access.write(target, elements_of(target, targets))


def elements_of(buffer: Any, slots: Any) -> Any:
    """The elements of a buffer's storage that its slots have: flat indices, [n] int64. None where none are tracked."""
    tracked, part = buffer.memory.elements, buffer.host_bytes
    return None if tracked is None else tracked.of(part).reshape(len(part), -1)[slots].reshape(-1)
