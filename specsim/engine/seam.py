"""What every part of the engine is given."""

from __future__ import annotations

from typing import NamedTuple

from specsim.engine.accounting import Accounting, Memory
from specsim.engine.config import EngineConfig
from specsim.engine.event_log import EventLog
from specsim.engine.observer import Observer


class Seam(NamedTuple):
    """The configuration, both sides of the accounting seam, and to whom events are reported."""

    config: EngineConfig
    memory: Memory
    accounting: Accounting
    observer: Observer
    log: EventLog
