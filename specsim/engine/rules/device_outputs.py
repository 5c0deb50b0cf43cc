"""The outputs of every incarnation of a request that samples or wants logprobs, as the device made them."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.engine.config import EngineConfig
from specsim.engine.device import Device
from specsim.engine.launch import Launch
from specsim.engine.rules.views import DistributionSeen, PenaltiesFed
from specsim.engine.sampling import bincount
from specsim.engine.sampling_params import Counts


class DeviceOutputs:
    """For one run. Call `fed` and then `executed` after each launch."""

    def __init__(self, config: EngineConfig) -> None:
        self._is_relaxed = config.relaxed_penalties
        self._outputs: dict[tuple[str, int], list[int]] = {}
        self._fed: dict[str, tuple[int, Counts]] = {}  # by request: incarnation, and what was fed up to its last launch

    def fed(self, launch: Launch) -> Iterator[PenaltiesFed]:
        """What the target's own penalizers count at a launch, beside the outputs before it, its root among them. With
        relaxed penalties the bounds of `DistributionSeen` are what the device goes by.
        """
        verifies = launch.verifies
        for row in verifies.rows if verifies is not None and not self._is_relaxed else ():
            if row.fed is None:
                continue
            who, incarnation = row.key
            of, before = self._fed.get(who, (incarnation, {}))
            yield PenaltiesFed(who, row.fed, bincount(self._outputs[row.key]), before if of != incarnation else None)
            self._fed[who] = (incarnation, row.fed)

    def executed(self, launch: Launch, device: Device) -> Iterator[DistributionSeen]:
        """What the launch knew of the outputs before it."""
        prefilled = launch.rows if launch.kind == "prefill" else []
        for row in prefilled:
            self._outputs[row.key] = row.tokens[len(row.request.prompt) :]
        new = {row.key for row in prefilled}
        for state in device.distribution_states:
            yield DistributionSeen(state, self._outputs[state.key], state.key in new, self._is_relaxed)
        for part in launch.parts:
            for i, row in enumerate(part.rows):
                self._outputs[row.key] += part.run(i)
