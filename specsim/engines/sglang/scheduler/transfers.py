"""The compiled copies of a hierarchical cache (HiCache), between the pool of KV and memory of the host, as launches on
the virtual device: of each slot the elements that it has, so that two copies of other slots are no race.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
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
        pairs = [(_buffer(source), _buffer(target)) for source, target in ((src_k, dst_k), (src_v, dst_v))]
        _launch(device(), "transfer_kv_per_layer", lambda _access: pairs, src_indices, dst_indices)

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
        tables = ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers))
        pairs = _pointed(device(), tables)
        _launch(device(), "transfer_kv_all_layer", pairs, src_indices, dst_indices)

    return {made.__name__: made for made in (transfer_kv_per_layer, transfer_kv_all_layer)}


def _buffer(tensor: Any) -> Buffer:
    return Buffer(tensor.memory, tensor.host_bytes)


def _pointed(device: Any, tables: Any) -> Callable[[Any], list[tuple[Buffer, Buffer]]]:
    def pairs(access: Any) -> list[tuple[Buffer, Buffer]]:
        found = []
        for one in tables:
            columns = [[Buffer(*device.addressed[address]) for address in access.host(table).tolist()] for table in one]
            found += list(zip(*columns, strict=True))
        return found

    return pairs


def _launch(
    device: Any,
    name: str,
    pairs: Callable[[Any], list[tuple[Buffer, Buffer]]],
    src_indices: Any,
    dst_indices: Any,
) -> None:
    def run(access: Any) -> None:
        sources, targets = (access.host(indices).numpy() for indices in (src_indices, dst_indices))
        for source, target in pairs(access):
            for buffer, slots in ((source, sources), (target, targets)):
                if outside := [slot for slot in slots.tolist() if not 0 <= slot < len(buffer.host_bytes)]:
                    access.failed(IndexError(f"slot {outside[0]} of {len(buffer.host_bytes)}"))
                    return
            access.read(source, elements_of(source, sources))
            target.host_bytes[targets] = source.host_bytes[sources]
            access.write(target, elements_of(target, targets))

    device.launch(run, reads=[src_indices, dst_indices], name=name)


def elements_of(buffer: Any, slots: Any) -> Any:
    """The elements of a buffer's storage that its slots have: flat indices, [n] int64."""
    part = buffer.host_bytes
    width = part[0].numel()
    return (part.storage_offset() + slots[:, None] * part.stride(0) + np.arange(width)).reshape(-1)
