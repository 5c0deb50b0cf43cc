"""The ops tier in bulk, in the child: launches of thousands of cases, each named before it runs. Here the child itself
runs the target. A launch that ends it is halved in forks of a fresh child until the request to blame is known.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specsim import interrupts
from specsim.tiers.messages import At, CheckWork, End, FailureWork, Lost, Request
from specsim.tiers.ops.answers import ON_CPU, asked, choose_device, load_subjects, send_done
from specsim.tiers.transfer import found as found_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specsim.contracts.contract import Op, Sizes
    from specsim.contracts.provider import Subject
    from specsim.isolation.messages import Messages
    from specsim.tiers.ops.bulk import BulkLaunch

NO_MEMORY = "the device has no memory for one of its cases"
DEVICE_START_SECONDS = 60.0  # a fork starts the device and compiles kernels


def check(request: Request, work: CheckWork, messages: Messages) -> None:
    """Check every subject that the request does not skip, in launches of thousands of cases."""
    device = choose_device(request.device)
    import torch

    from specsim.contracts.registry import OPS
    from specsim.interpreter.lockstep.errors import UnsupportedError
    from specsim.tiers.ops.bulk import check_in_bulk
    from specsim.tiers.ops.finding import Origin, finding_of
    from specsim.tiers.ops.suite import SHRINK_ATTEMPTS_MAX

    subjects, not_run = asked(*load_subjects(request), request)
    todo = [subject for subject in subjects if subject.name not in work.skip]
    failed: set[str] = set(work.failed)
    end = time.monotonic() + request.seconds
    for position, subject in enumerate(todo):
        on_launch = _OnLaunch(messages, subject.name, device)
        on_launch.again()
        now = time.monotonic()
        reason = _reason(subject, OPS[subject.op], failed, device, now >= end or interrupts.asked())
        if reason:
            send_done(messages, subject, 0, reason)
            continue
        with _until_lost(messages):
            try:
                result = check_in_bulk(
                    OPS[subject.op],
                    subject,
                    seed=request.seed,
                    cases=request.count,
                    device=device,
                    deadline=now + (end - now) / (len(todo) - position),
                    on_launch=on_launch,
                    on_attempt=on_launch.again,
                    attempts=SHRINK_ATTEMPTS_MAX if request.attempts is None else request.attempts,
                )
            except UnsupportedError as error:
                send_done(messages, subject, 0, error.problem)
                continue
            except torch.OutOfMemoryError:
                send_done(messages, subject, 0, NO_MEMORY)
                continue
            if result.counterexample:
                failed.add(subject.name)
                origin = Origin(request.target, request.seed, device, "bulk")
                messages.send(found_message(*finding_of(OPS[subject.op], subject, result.counterexample, origin)))
        why_not = "" if result.cases else "no bulk case is one that it accepts"
        packing = {"launches": result.launches, "packed": result.packed, "seconds": time.monotonic() - now}
        send_done(messages, subject, result.cases, why_not, **packing)
    messages.send(End(not_run=not_run))


class _OnLaunch:
    """Names the launch that comes next: its sizes' choices, its numbers, and how many cases came before it."""

    def __init__(self, messages: Messages, subject: str, device: str) -> None:
        self._messages = messages
        self._subject = subject
        self._index = 0
        self._place: dict[str, Any] = {"device": device, "tape": [], "first": 0, "count": 1}

    def __call__(self, index: int, launch: BulkLaunch) -> None:
        self._index = index
        self._place |= {"tape": list(launch.tape), "first": launch.first, "count": launch.count}
        self.again()

    def again(self) -> None:
        self._messages.send(At(subject=self._subject, index=self._index, count=self._index, place=self._place))


def _reason(subject: Any, op: Op, failed: set[str], device: str, is_late: bool) -> str:
    """Why a subject is not checked, "" if it is."""
    if subject.needs in failed:
        return f"it calls {subject.op}, which is itself wrong"
    if subject.on_cpu and device == "cuda":
        return ON_CPU
    return interrupts.why_not_run() if is_late else ""


@contextmanager
def _until_lost(messages: Messages) -> Iterator[None]:
    """End the process when the device does no more work."""
    from specsim.tiers.ops.run import DeviceLostError

    try:
        yield
    except DeviceLostError as error:
        messages.send(Lost(text=f"leaves a device that does no more work ({error})"))
        os._exit(1)


def failure(request: Request, work: FailureWork, messages: Messages) -> None:
    """Find which request of a launch ended its process, each part in a fork of its own, and make the finding of it."""
    place, device = work.place, work.place["device"]
    os.environ["TRITON_INTERPRET"] = "1"
    if device == "cuda":  # which this process does not touch
        os.environ.pop("TRITON_INTERPRET")
    from specsim.choices.chooser import replayed
    from specsim.contracts.registry import OPS
    from specsim.isolation.fork_runner import Ended, blame, run_apart
    from specsim.tiers.ops.bulk import BulkLaunch, tape_of, with_bulk_cases
    from specsim.tiers.ops.finding import Origin, process_failure
    from specsim.tiers.ops.rules import ENDS, SURVIVES

    subjects, _not_run = load_subjects(request)
    (subject,) = [s for s in subjects if s.name == work.subject]
    op = OPS[subject.op]
    shape = op.cases.draw_shape(replayed(place["tape"]))
    limit = request.hang_seconds + (DEVICE_START_SECONDS if device == "cuda" else 0.0)

    def ends(first: int, count: int) -> Ended | None:
        messages.send(At(subject=subject.name, index=work.index))
        return run_apart(lambda: _run(op, subject, shape, first, count, device), limit)

    first, count, ended = blame(ends, place["first"], place["count"])
    if ended is None and work.hung:
        slow = f"a launch of {place['count']} requests {work.text}, once; give a larger --hang-seconds"
        send_done(messages, subject, work.index, slow)
        return
    ended = ended or Ended(False, f"{work.text}, once and not again")
    hung, text = ended if count == 1 else (ended.hung, f"{ended.text}, in a launch of {count} requests alone")
    tape = tape_of(op, BulkLaunch(shape, tuple(place["tape"]), first, count), range(first, first + count))
    finding = process_failure(
        op,
        subject,
        with_bulk_cases(op).generate(replayed(tape)),
        ENDS if hung else SURVIVES,
        text,
        Origin(request.target, request.seed, device, "bulk"),
        tape,
    )
    messages.send(found_message(*finding))
    send_done(messages, subject, work.index + count)


def _run(op: Op, subject: Subject, shape: Sizes, first: int, count: int, device: str) -> None:
    import torch

    from specsim.isolation.fork_runner import LOST
    from specsim.tiers.ops.bulk import is_wrong_now
    from specsim.tiers.ops.run import DeviceLostError

    torch.set_num_threads(1)
    try:
        is_wrong_now(op, subject, shape, torch.arange(first, first + count, dtype=torch.int64, device=device), 0)
    except DeviceLostError:
        raise SystemExit(LOST) from None
