"""The copies of a hierarchical cache move the slots that they are told, in their turn, and touch no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specsim.choices.chooser import replayed
from specsim.engines.sglang.scheduler.transfers import operations
from specsim.vdevice import simulate
from specsim.vdevice.device import active

LAZY = (1,)
COPIES = operations(active)


def buffers(device: Any) -> tuple[list[Any], list[Any]]:
    """Keys and values of 8 slots on the device, and of 16 in pinned memory of the host."""
    on_device = [torch.arange(8, dtype=torch.int64, device="cuda").reshape(8, 1, 1) + 100 * i for i in (1, 2)]
    whole: Any = torch.zeros((2, 16, 1, 1), dtype=torch.int64, pin_memory=True)
    for tensor in (*on_device, whole):
        device.track_elements(tensor)
    return on_device, [whole[0], whole[1]]


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda")


def table(tensor: Any) -> torch.Tensor:
    """Of one layer."""
    return torch.tensor([tensor.data_ptr()], dtype=torch.uint64, device="cuda")


def test_slots_are_copied_to_the_host_and_back_in_their_turn() -> None:
    with simulate(replayed(LAZY)) as device:
        (k, v), (host_k, host_v) = buffers(device)
        layers = {"src_k_layers": table(k), "dst_k_layers": table(host_k)}
        layers |= {"src_v_layers": table(v), "dst_v_layers": table(host_v)}
        COPIES["transfer_kv_all_layer"](
            **layers, src_indices=slots(1, 5), dst_indices=slots(9, 3), item_size=8, num_layers=1
        )
        assert not host_k.host_bytes.any()
        buffers_of_load = {"src_k": host_k, "dst_k": k, "src_v": host_v, "dst_v": v}
        COPIES["transfer_kv_per_layer"](
            **buffers_of_load, src_indices=slots(3, 9), dst_indices=slots(0, 2), item_size=8
        )
        torch.cuda.synchronize()
        assert [int(host_k.host_bytes[slot]) for slot in (3, 9)] == [105, 101]
        assert k.flatten().tolist() == [105, 101, 101, 103, 104, 105, 106, 107]
        assert v.flatten().tolist() == [205, 201, 201, 203, 204, 205, 206, 207]
    assert not device.findings


@pytest.mark.parametrize(("slot", "is_race"), [(5, True), (6, False)])
def test_a_copy_races_with_what_writes_its_slots_and_with_nothing_else(slot: int, *, is_race: bool) -> None:
    with simulate(replayed(())) as device:
        (k, v), (host_k, host_v) = buffers(device)
        torch.cuda.synchronize()
        other: Any = torch.cuda.Stream()
        with torch.cuda.stream(other):
            COPIES["transfer_kv_per_layer"](k, host_k, v, host_v, slots(1, 5), slots(0, 1), 8)
        k[slots(slot)] = 7
        torch.cuda.synchronize()
    assert [found.kind for found in device.findings] == ["race"] * is_race


def test_a_slot_that_there_is_not_stops_the_copy() -> None:
    with simulate(replayed(())) as device:
        (k, v), (host_k, host_v) = buffers(device)
        COPIES["transfer_kv_per_layer"](k, host_k, v, host_v, slots(1, 8), slots(0, 1), 8)
        assert not host_k.host_bytes.any()
    assert [found.kind for found in device.findings] == ["device-assert"]
