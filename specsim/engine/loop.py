"""The run loop of the simulated engine: a host and a device, and a chooser that picks whose step is next.

One iteration of the host, with overlap: receive; choose a batch (a prefill first, if a request waits and fits, else a
decode step); prepare and launch it; then take the result of the launch before. So a step is launched before the host
knows what the step before it gave: a request may turn out to be finished, or be retracted, while a launch of it is
still under way, and the result of that launch is *stale*. Without overlap the host takes each result at once.

Events are logged, one line each, and make a running digest: two runs are the same when their digests are.
"""

from __future__ import annotations

import contextlib
from typing import Literal

from specsim.choices.chooser import Chooser
from specsim.engine.accounting import Accounting, HostFunctionError, Memory
from specsim.engine.admission import Admission
from specsim.engine.arrivals import Arrivals
from specsim.engine.batch import Batch
from specsim.engine.device import Device
from specsim.engine.event_log import EventLog, Run
from specsim.engine.launch import Launch, LaunchRow
from specsim.engine.launches import Launches
from specsim.engine.lifecycle import State
from specsim.engine.marks import features_of
from specsim.engine.observer import Observer, RunStopped
from specsim.engine.request_table import RequestTable
from specsim.engine.results import Results
from specsim.engine.seam import Seam
from specsim.engine.workload import Scenario

ITERATIONS_MAX = 600

Phase = Literal["receive", "schedule", "pause", "launch", "resolve", "ended"]


class UnsupportedScenarioError(Exception):
    """The accounting does not run this scenario; the schedule is not checked."""


class Engine:
    """One run of a scenario on an accounting over its memory, which `observer` watches. The run ends when nothing is
    left to do, or when the observer stops it.

    Its parts, each of which may use those before it: `requests`, `batch`, `arrivals`, `launches`, `admission`,
    `results`. The engine itself knows where the host is.
    """

    __slots__ = (
        "accounting",
        "admission",
        "arrivals",
        "awaited",
        "batch",
        "chooser",
        "config",
        "launches",
        "log",
        "memory",
        "observer",
        "paused",
        "pauses_left",
        "phase",
        "prepared",
        "requests",
        "results",
        "to_resolve",
        "workload",
    )

    def __init__(
        self,
        scenario: Scenario,
        chooser: Chooser,
        memory: Memory,
        accounting: Accounting,
        observer: Observer,
    ) -> None:
        config, workload = scenario.config, scenario.workload
        refusal = accounting.refuses(config)
        if refusal:
            raise UnsupportedScenarioError(refusal)
        self.config = config
        self.workload = workload
        self.chooser = chooser
        self.memory = memory
        self.accounting = accounting
        self.observer = observer
        has_distributions, locations = workload.has_distributions, accounting.own.locations
        self.log = EventLog(observer, features_of(config))
        seam = Seam(config, memory, accounting, observer, self.log)
        self.requests = requests = RequestTable()
        self.batch = batch = Batch(
            seam, requests, retractions_max=workload.retractions_max, has_distributions=has_distributions
        )
        self.arrivals = Arrivals(seam, workload, requests, batch)
        device = Device(config, has_distributions=has_distributions, locations=locations)
        self.launches = launches = Launches(seam, batch, device, needs_table=locations is not None)
        self.admission = Admission(seam, requests, batch, launches)
        self.results = Results(seam, requests, batch, launches, self.admission, has_distributions=has_distributions)
        self.phase: Phase = "receive"
        self.awaited: Launch | None = None  # the launch for whose result the host waits
        self.to_resolve = 0
        self.prepared: list[LaunchRow] = []
        self.paused = 0
        self.pauses_left = workload.pauses_max

    @property
    def ended(self) -> bool:
        """Whether the run is over: nothing is left to do, or a rule was broken that it cannot go on from."""
        return self.phase == "ended"

    @property
    def host_can_go(self) -> bool:
        return self.awaited is None or self.awaited.done

    @property
    def device_can_go(self) -> bool:
        launches = self.launches
        return bool(launches.device.stream) if launches.streams is None else launches.streams.can_go

    def run(self) -> Run:
        """Run to the end, or to a broken rule that the run cannot go on from."""
        while not self.ended:
            self.step(not self.host_can_go or bool(self.device_can_go and self.chooser.choose(2, "device goes first")))
        return Run(
            tuple(self.observer.violations),
            tuple(self.log.events),
            self.log.digest,
            self.results.stale_finished,
            self.results.stale_retracted,
            frozenset(self.log.marks),
        )

    def step(self, of_device: bool) -> None:
        """One step of the device or of the host, which must be able to go."""
        try:
            if of_device:
                self._execute()
            else:
                self._host_step()
                unresolved = self.launches.unresolved
                self.observer.waits(self.awaited, unresolved[0] if unresolved else None)
        except RunStopped:
            self.phase = "ended"
        except HostFunctionError as error:
            self.phase = "ended"
            with contextlib.suppress(RunStopped):
                self.observer.host_function_raised(error)

    # One iteration of the host, from one place where the device may come between to the next

    def _host_step(self) -> None:
        """What the host does until the device may come between: schedule; or take a result, when it has waited for
        one; and after the last result of an iteration, receive.
        """
        if self.phase == "schedule":
            if self.pauses_left and self.chooser.choose(5, "pause") == 1:
                self._begin_pause()
            else:
                self._schedule_unless_paused()
            return
        if self.awaited is not None:
            self._resolve(self.awaited)
            self.to_resolve -= 1
        self.awaited = self.launches.unresolved[0] if self.to_resolve > 0 else None
        if self.awaited is not None:
            return
        if self.phase == "pause":
            self._retract_everybody()
            self._schedule_unless_paused()
        elif self.phase == "launch":
            self._launch_prepared()
        else:
            self._next_iteration()

    def _next_iteration(self) -> None:
        if not self._is_busy():
            device = self.launches.device
            self.observer.at_idle(device.content, device.swa_content)
            self.phase = "ended"
            return
        self.log.iterations += 1
        if self.log.iterations > ITERATIONS_MAX:
            self.observer.pending(self._pending_reason())
        self._receive()
        self.phase = "schedule"

    def _receive(self) -> None:
        self.arrivals.receive(self.chooser)

    def _schedule(self) -> None:
        """Launch the next batch, a prefill before a decode step."""
        chooser, admission, batch = self.chooser, self.admission, self.batch
        if self.arrivals.timeouts_left and chooser.choose(6, "timeout") == 1:
            self.arrivals.time_out(chooser)
        admission.drop_aborted_chunk()
        admission.cache_chunk()
        batch.merge()
        admitted = admission.admit(chooser)
        if admitted:
            beside = batch.prepare_beside(chooser) if self.config.mixed_chunk else []
            self._launched(self.launches.launch("prefill", admission.rows_of(admitted), beside))
            return
        self.prepared = batch.prepare_decode(chooser)
        if not self.prepared:
            idles = self.config.idle_batches and not batch.running and chooser.choose(2, "idle batch") == 1
            if idles:
                self.log.marks.add("idle batch")
            self._launched(self.launches.launch("decode", []) if idles else None)
        elif self.config.late_results and self.launches.unresolved and chooser.choose(2, "result before launch") == 1:
            self._await_results(1, "launch")
        else:
            self._launched(self.launches.launch("decode", self.prepared))

    def _launch_prepared(self) -> None:
        """Launch what was prepared before the last result was taken."""
        if any(row.request.state is State.FINISHED for row in self.prepared):
            self.log.marks.add("finished_before_prepared_launch")
        self._launched(self.launches.launch("decode", self.prepared))

    def _launched(self, launch: Launch | None) -> None:
        """With overlap, all results but the newest launch's are due; without, all."""
        self._await_results(len(self.launches.unresolved) - (1 if launch and self.config.overlap else 0), "resolve")

    def _await_results(self, count: int, then: Phase) -> None:
        """Take so many results, each when the device has it, and go on with the phase `then`."""
        self.to_resolve = count
        self.phase = then

    def _resolve(self, launch: Launch) -> None:
        """Take the result of a launch."""
        self.launches.take(launch)
        self.results.take(launch)
        self.launches.write_tables(launch)

    def _execute(self) -> None:
        self.launches.execute(self.chooser)

    # Pauses

    def _schedule_unless_paused(self) -> None:
        if self.paused:
            self.paused -= 1
            if not self.paused:
                self.log.marks.add("resume")
            self._next_iteration()
        else:
            self._schedule()

    def _begin_pause(self) -> None:
        """Take the results that are due, then retract everybody, and admit nobody for a while."""
        self.pauses_left -= 1
        self.paused = self.chooser.choose(3, "iterations paused")
        self.log.record("host", "pause", "", f"{self.paused} iterations")
        self.log.marks.add("pause")
        self._await_results(len(self.launches.unresolved), "pause")

    def _retract_everybody(self) -> None:
        batch = self.batch.disband()
        self.admission.drop_aborted_chunk()
        if self.admission.chunked is not None:
            batch.append(self.admission.chunked)
        self.admission.chunked = None
        if batch:
            self.log.marks.add("retracted_by_pause")
            self.observer.before_tree_calls()
            self.accounting.retract_all(batch)
            self.observer.after_memory_calls("retract")
            for request in batch:
                self.batch.retracted(request, "pause")
            self.observer.ownership("retract", self.requests.everybody, self.requests.open_sessions)

    # The end

    def _is_busy(self) -> bool:
        batch = self.batch
        if self.arrivals.to_come or self.requests.waiting or batch.running or batch.merging:
            return True
        if self.launches.unresolved or self.admission.chunked:
            return True
        for session in list(self.requests.open_sessions):
            self._close_session(session)
        return False

    def _close_session(self, session: str) -> None:
        self.arrivals.close_session(session)

    def _pending_reason(self) -> str:
        waiting, running = ([request.rid for request in some] for some in (self.requests.waiting, self.batch.running))
        return f"after {ITERATIONS_MAX} iterations {waiting} wait and {running} run"
