"""How fast each stream of the virtual device is. A policy is drawn from a chooser; choice 0 is the simplest.

eager    everything runs as soon as it is launched, like CUDA_LAUNCH_BLOCKING=1
lazy     nothing runs before the host waits for it, or has asked for it often: the slowest device
lag      one stream runs only when something waits for it, the others at once
random   slow and fast phases: after some operations some stream runs some of its own
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from specsim.choices.chooser import Chooser, pick

STEPS = (1 << 30, 1, 2, 4, 16)
PAUSES = (0, 1, 4, 16, 64)
LAGGING_MIN = 4
"""Streams that may lag, at least: a program makes most of its streams after the policy is drawn."""


class Streams(Protocol):
    """What a policy moves."""

    @property
    def streams(self) -> Sequence[Any]: ...

    def drain(self) -> None: ...

    def advance(self, stream: Any, steps: int) -> None: ...


class Policy:
    """`launched` is called after each launch, and before each call with which the host waits or looks.

    is_immediate  whether an operation runs at its launch, unless its stream waits
    """

    name = "eager"
    is_immediate = True

    def launched(self, device: Streams) -> None:
        device.drain()


class Lazy(Policy):
    name = "lazy"
    is_immediate = False

    def launched(self, device: Streams) -> None: ...


class Lag(Policy):
    name = "lag"
    is_immediate = False

    def __init__(self, slow: int) -> None:
        self.slow = slow

    def launched(self, device: Streams) -> None:
        streams = device.streams
        slow = self.slow % len(streams)
        for i, stream in enumerate(streams):
            if i != slow and stream.queue:
                device.advance(stream, STEPS[0])


class Random(Policy):
    name = "random"
    is_immediate = False

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.pause = 0

    def launched(self, device: Streams) -> None:
        if self.pause:
            self.pause -= 1
            return
        live = [stream for stream in device.streams if stream.queue]
        if not live:
            return
        chosen = self.chooser.choose(len(live) + 1, "advance")
        if chosen == 0:
            device.drain()
        else:
            device.advance(live[chosen - 1], pick(self.chooser, STEPS, "steps"))
        self.pause = pick(self.chooser, PAUSES, "pause")


def drawn(chooser: Chooser, streams: int) -> Policy:
    """A policy for a device that has `streams` so far."""
    kind = chooser.choose(4, "device policy")
    if kind == 2:
        return Lag(chooser.choose(max(LAGGING_MIN, streams), "slow stream"))
    return (Policy(), Lazy(), None, Random(chooser))[kind] or Policy()
