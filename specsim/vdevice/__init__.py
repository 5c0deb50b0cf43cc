"""A virtual CUDA device for a CPU: any PyTorch code, with streams as slow as a chooser says, and every race reported.

with specsim.vdevice.simulate(seeded(0)) as device:
    x = torch.zeros(4, device="cuda")
    ...
device.findings
"""

from __future__ import annotations

from specsim.vdevice.device import Accesses, Device
from specsim.vdevice.findings import Access, Finding
from specsim.vdevice.simulation import simulate

__all__ = ["Access", "Accesses", "Device", "Finding", "simulate"]
