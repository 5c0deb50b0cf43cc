"""What is simulated: an accounting, and what is known of each function of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from specsim.engine.accounting import Accounting, Memory, ModelAccounting
from specsim.engine.config import EngineConfig
from specsim.engine.device import Move
from specsim.engine.features import FEATURES

# The functions of the accounting seam, in the order in which a request meets them. `Violation.part` and the verdict
# use these names.
PARTS = (
    "row width",
    "pool size",
    "alloc length",
    "session match",
    "extend",
    "prepare",
    "penalty feed",
    "draft locations",
    "verify locations",
    "resolve",
    "result handling",
    "finish check",
    "release",
    "session save",
    "decode need",
    "retract",
    "reset for retract",
    "abort",
    "session close",
)
# Those of an accounting with a radix cache.
TREE_PARTS = ("prefix match", "tree insert")
# The classes of the memory that those functions call back.
MEMORY_PARTS = (
    "token allocator",
    "paged allocator",
    "window allocator",
    "row pool",
    "radix cache",
    "session controller",
)


@dataclass(slots=True)
class SeamPart:
    """One function of the seam, and whose it is in this target.

    `where` is FILE:LINE and `source_hash` the hash of the body of a real one; `calls` counts the calls that were made
    of it, `lines_run` of the `lines` on which its statements begin ran; `why` says why it is not run.
    """

    name: str
    kind: Literal["real", "model", "not run"]
    where: str = ""
    source_hash: str = ""
    calls: int = 0
    why: str = ""
    lines: int = 0
    lines_run: int = 0


class AccountingTarget(Protocol):
    """An accounting that can be simulated. `features` are those of `specsim.engine.features` that it can run."""

    name: str

    @property
    def features(self) -> frozenset[str]: ...

    @property
    def parts(self) -> list[SeamPart]: ...

    def make(self, memory: Memory) -> Accounting:
        """A fresh accounting over the memory of one run."""
        ...

    def reach(self, config: EngineConfig, part: str) -> str:
        """Who reaches a defect of the seam function `part` in this configuration."""
        ...


class ModelTarget:
    """The model's own accounting. `move` as in `specsim.engine.device.Device`."""

    name = "model"
    features = FEATURES

    def __init__(self) -> None:
        self.parts = [SeamPart(name, "model") for name in (*PARTS, *TREE_PARTS, *MEMORY_PARTS)]
        self.move: Move | None = None

    def make(self, memory: Memory) -> Accounting:
        return ModelAccounting(memory)

    def reach(self, config: EngineConfig, part: str) -> str:
        return "default"


def move_of(target: AccountingTarget) -> Move | None:
    """What moves the KV of accepted paths, None for the simulator itself. Only the model's target may have it."""
    return target.move if isinstance(target, ModelTarget) else None
