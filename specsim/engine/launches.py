"""Launches: the host hands batches to the device, and takes their results in the same order."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable

from specsim.choices.chooser import Chooser
from specsim.engine.batch import Batch
from specsim.engine.device import Device
from specsim.engine.launch import Launch, LaunchRow
from specsim.engine.marks import reused_memory
from specsim.engine.observer import RunStopped
from specsim.engine.seam import Seam
from specsim.engine.streams import Streams


class Launches:
    """`device` runs them, by `streams` of operations when the configuration has streams. `unresolved` are those whose
    results the host has not taken, the oldest first.
    """

    __slots__ = (
        "_accounting",
        "_batch",
        "_config",
        "_count",
        "_device_lens",
        "_log",
        "_memory",
        "_needs_table",
        "_observer",
        "device",
        "streams",
        "unresolved",
    )

    def __init__(
        self,
        seam: Seam,
        batch: Batch,
        device: Device,
        *,
        needs_table: bool,
    ) -> None:
        self._config, self._memory, self._accounting, self._observer, self._log = seam
        self._batch = batch
        self._needs_table = needs_table  # the device asks functions of the target for slots
        self.device = device
        self.streams = Streams(seam.memory, device, seam.observer.accesses()) if seam.config.streams else None
        self.unresolved: deque[Launch] = deque()
        self._count = 0
        self._device_lens: dict[tuple[str, int], int] = {}

    def fork(self, seam: Seam, batch: Batch, device: Device, unresolved: Iterable[Launch]) -> Launches:
        """A copy, without streams, over copies of what it uses."""
        new = Launches.__new__(Launches)
        new._config, new._memory, new._accounting, new._observer, new._log = seam
        new._batch = batch
        new._needs_table = self._needs_table
        new.device = device
        new.streams = self.streams
        new.unresolved = deque(unresolved)
        new._count = self._count
        new._device_lens = dict(self._device_lens)
        return new

    def launch(self, kind: str, rows: list[LaunchRow], beside: list[LaunchRow] | None = None) -> Launch:
        config, batch = self._config, self._batch
        tree_size = batch.steps + 1 if config.topk == 1 else config.num_draft_tokens
        launch = Launch(self._count, kind, rows, batch.steps, tree_size)
        if beside:
            launch.beside = Launch(self._count, "decode", beside, batch.steps, tree_size)
        everybody = [*rows, *(beside or ())]
        for row, index in zip(everybody, self.device.ring.take(len(everybody)), strict=True):
            row.relay_out = index
        if launch.verifies is not None:
            batch.futures.indices = [row.relay_out for row in launch.verifies.rows]
        if self._needs_table:
            launch.table = array("i", self._memory.rows.buffer)
        self._log.marks |= reused_memory(self.unresolved, everybody)
        self._count += 1
        self.device.launch(launch)
        self.unresolved.append(launch)
        for part in () if self._log.is_quiet else launch.parts:
            self._log.record("host", "launch", part.name, " ".join(row.request.rid for row in part.rows))
        self._observer.at_launch(launch, len(self.unresolved))
        if self.streams is not None:
            self.streams.launch(launch)
            self._observer.in_order(self.streams.race)
        return launch

    def execute(self, chooser: Chooser) -> None:
        """The device goes on: it runs a launch, or with streams an operation of one."""
        agent, launch = "device", None
        try:
            if self.streams is None:
                launch = self.device.execute_next()
            else:
                operation, launch = self.streams.run_next(chooser)
                agent = operation.agent
                if launch is None:
                    self._log.record(agent, operation.name, operation.of, "")
                    return
        except (IndexError, ValueError) as error:
            self._observer.device_raised(error)
            raise RunStopped from error
        starts = {row.key: row.request.extend_len for part in launch.parts for row in part.rows}
        for part in () if self._log.is_quiet else launch.parts:
            if part.result is None:
                self._log.record(agent, "prefill", part.name, " ".join(row.request.rid for row in part.rows))
            else:
                accepted = zip(part.rows, part.result.accept_lens, strict=False)
                self._log.record(agent, "verify", part.name, " ".join(f"{row.request.rid}:{a}" for row, a in accepted))
        for step in self.device.steps:
            starts[step.key] = self._device_lens.get(step.key, starts[step.key])
            self._device_lens[step.key] = starts[step.key] + len(step.path)
        self._observer.after_device(launch, self.device, starts)

    def take(self, launch: Launch) -> None:
        """The host takes the result of a launch."""
        self._observer.resolves(launch, self.unresolved[0] if self.unresolved else None)
        self.unresolved.popleft()
        if self.streams is not None:
            self.streams.take(launch)
            self._observer.in_order(self.streams.race)

    def write_tables(self, launch: Launch) -> None:
        """The device gets what the host has written to its tables when it took the result of a launch."""
        if self.streams is not None:
            self.streams.write_tables(f"result {launch.name}")
            self._observer.in_order(self.streams.race)
