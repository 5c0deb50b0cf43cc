"""What is simulated: an accounting, and who reaches what it does wrong."""

from __future__ import annotations

from typing import Protocol

from specsim.engine.accounting import Accounting, Memory, ModelAccounting
from specsim.engine.config import EngineConfig
from specsim.engine.features import FEATURES


class AccountingTarget(Protocol):
    """An accounting that can be simulated. `features` are those of `specsim.engine.features` that it can run."""

    name: str

    @property
    def features(self) -> frozenset[str]: ...

    def make(self, memory: Memory) -> Accounting:
        """A fresh accounting over the memory of one run."""
        ...

    def reach(self, config: EngineConfig, part: str) -> str:
        """Who reaches a defect of the seam function `part` in this configuration."""
        ...


class ModelTarget:
    """The model's own accounting."""

    name = "model"
    features = FEATURES

    def make(self, memory: Memory) -> Accounting:
        return ModelAccounting(memory)

    def reach(self, config: EngineConfig, part: str) -> str:
        return "default"
