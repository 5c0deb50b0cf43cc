"""What the engine reports of a run, and to whom: the checker of the rules is an observer.

The engine calls an observer where something has happened, or is about to, and reads nothing of it but whether the run
goes on: an observer that raises `RunStopped` ends it. So `specsim.engine` knows no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specsim.engine.accounting import Accounting, HostFunctionError, Memory, Observed
from specsim.engine.agents import Race, Step, Thing
from specsim.engine.device import Device
from specsim.engine.launch import DecodeResult, Launch
from specsim.engine.memory.allocator import SlotWatcher
from specsim.engine.memory.sessions import SessionSlot
from specsim.engine.request import Request
from specsim.verdict import Rule


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule broken at an event. `aspect` tells apart two ways of breaking one rule; `part` names the seam function."""

    rule: Rule
    aspect: str
    part: str
    who: str
    expected: str
    actual: str
    event: int

    @property
    def signature(self) -> str:
        """The same for the same defect, in every schedule and on every release that has it."""
        return ":".join(["accounting", self.rule.id, *([self.aspect] if self.aspect else []), self.part])


class RunStopped(Exception):  # noqa: N818 - how a run ends
    """The run cannot go on: an observer found a broken rule after which nothing that it shows means anything."""


class Accesses(Protocol):
    """Who touches what the host and the streams of the device share; steps are reported before those that wait for
    them.
    """

    race: Race | None  # the first that was seen

    def step(self, agent: int, name: str, after: Iterable[Step]) -> Step:
        """The next step of an agent, which waits for the steps `after`."""
        ...

    def read(self, thing: Thing, step: Step) -> None: ...

    def write(self, thing: Thing, step: Step) -> None: ...

    def read_row(self, row: int, start: int, end: int, step: Step) -> None:
        """Read columns `[start, end)` of a row of `req_to_token`."""
        ...

    def write_row(self, row: int, start: int, end: int, step: Step) -> None: ...


class Observer(Protocol):
    """What watches one run. `events` is the number of the current event, kept by the engine; `part` and `kind` name the
    seam function that was called. Any method may raise RunStopped.
    """

    events: int
    violations: list[Violation]

    # What ends a run: each of these raises RunStopped

    def pending(self, reason: str) -> None:
        """The schedule goes on for too long."""
        ...

    def device_raised(self, error: Exception) -> None: ...

    def host_function_raised(self, error: HostFunctionError) -> None: ...

    # Memory

    def after_memory_calls(self, part: str) -> None:
        """A call into the accounting that may take or give back memory is over."""
        ...

    def free_group_begin(self) -> None: ...

    def free_group_end(self) -> None: ...

    def ownership(
        self, part: str, requests: Sequence[Request], sessions: Sequence[str], at_match: bool = False
    ) -> None:
        """Every slot and row should have one owner now, or be free. `sessions` are the open ones."""
        ...

    def before_tree_calls(self) -> None: ...

    def prefix_matched(self, request: Request, reused: int) -> None: ...

    def inserted(self, request: Request, claim: int, part: str, locks: int) -> None:
        """The tree was handed the first `claim` tokens of a request, and took `locks` more locks."""
        ...

    def inserted_nothing(self, request: Request, part: str) -> None: ...

    # Requests

    def waiting(self, request: Request, part: str) -> None:
        """A request waits, and owns nothing."""
        ...

    def extended(self, request: Request) -> None: ...

    def before_prepare(self, batch: list[Request]) -> None: ...

    def after_prepare(self, batch: list[Request], before: list[Observed], after: list[Observed]) -> None: ...

    def after_append(self, request: Request, kind: str) -> None: ...

    def after_finish_check(self, request: Request) -> Observed:
        """Returns what the accounting says of the request."""
        ...

    def visible_outputs(self, request: Request) -> None:
        """The client of a request that has ended sees its outputs."""
        ...

    def before_release(self, request: Request) -> None: ...

    # Sessions

    def other_prompt(self, request: Request, expected: str, made: str, follows_retracted: bool) -> None:
        """A session made another prompt of a turn than its client; the turn before may have been retracted."""
        ...

    def session_matched(self, request: Request, claim: int, reused: int | None) -> None:
        """A turn has `reused` positions of the `claim` that its session has; None when it does without them."""
        ...

    def session_saved(self, request: Request, kv_ready: int) -> None: ...

    def session_aborted(self, request: Request, before: SessionSlot | None) -> None:
        """A turn was aborted; `before` is what its session should hold still."""
        ...

    # Launches

    def at_launch(self, launch: Launch, unresolved: int) -> None: ...

    def in_order(self, race: Race | None) -> None: ...

    def waits(self, awaited: Launch | None, oldest: Launch | None) -> None:
        """The host has done a step, and waits for the result of `awaited`, if for any."""
        ...

    def after_device(self, launch: Launch, device: Device, expected_start: dict[tuple[str, int], int]) -> None:
        """The device has run a launch; the requests of its decode steps should have started there."""
        ...

    def resolves(self, launch: Launch, oldest: Launch | None) -> None:
        """The host takes the result of a launch."""
        ...

    def after_resolve(
        self, launch: Launch, result: DecodeResult, before: list[Observed], runs: list[list[int]], live: list[bool]
    ) -> None: ...

    def stale_run_taken(self, request: Request) -> None:
        """The target's own function for a result gave a run to a request whose result is stale."""
        ...

    def run_not_taken(self, rid: str) -> None:
        """That function is over, and a live request has not got its run."""
        ...

    def at_idle(self, content: Sequence[int] = (), swa_content: Sequence[int] = ()) -> None:
        """Nothing runs and no session is open. `content` and `swa_content` are the device's."""
        ...

    # An explorer forks a run

    @property
    def slots(self) -> SlotWatcher:
        """What watches the allocator."""
        ...

    def accesses(self) -> Accesses:
        """A new watch over what streams share."""
        ...

    def fork(self) -> Observer:
        """A copy that shares nothing that changes, to be given the memory and the accounting of the copied engine."""
        ...

    def attach(self, memory: Memory, accounting: Accounting) -> None: ...

    def state(self, running: Sequence[Request]) -> tuple[Any, ...]:
        """What decides which rules are found broken from here on; `running` are the requests of the batch."""
        ...
