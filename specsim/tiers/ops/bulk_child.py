"""The ops tier in bulk, in the child. Messages beside those of `ops_child`:

{"event": "case", "index", "tape", "first", "count"}  a launch comes next: its sizes' choices, its numbers; index counts
                                                      cases; without the others while a wrong launch is made smaller
{"event": "lost", "text"}                             the device does no more work, and the process ends
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specsim import interrupts
from specsim.tiers.child import Messages, Request
from specsim.tiers.ops.child import ON_CPU, asked, choose_device, listed, load_subjects, send_done
from specsim.tiers.transfer import sent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specsim.contracts.contract import Op, Sizes
    from specsim.contracts.provider import Subject

DEVICE_START_SECONDS = 60.0  # a fork starts the device and compiles kernels


def check(request: Request, messages: Messages) -> None:
    """Judge every subject that the request does not skip, in launches of thousands of cases."""
    device = choose_device(request["device"])
    from specsim.contracts.registry import OPS
    from specsim.tiers.ops.bulk import judge_in_bulk
    from specsim.tiers.ops.finding import finding_of
    from specsim.tiers.ops.suite import SHRINK_ATTEMPTS_MAX

    subjects, not_run = asked(*load_subjects(request), request)
    todo = [subject for subject in subjects if subject.name not in request["skip"]]
    failed: set[str] = set(request["failed"])
    end = time.monotonic() + request["seconds"]
    for position, subject in enumerate(todo):
        messages.send("start", subject=subject.name, device=device)
        now = time.monotonic()
        reason = _reason(subject, OPS[subject.op], failed, device, now >= end or interrupts.asked())
        if reason:
            send_done(messages, subject, 0, None, listed(subject, reason))
            continue
        with _until_lost(messages):
            result = judge_in_bulk(
                OPS[subject.op],
                subject,
                seed=request["seed"],
                cases=request["cases"],
                device=device,
                deadline=now + (end - now) / (len(todo) - position),
                on_launch=lambda index, launch: messages.send(
                    "case", index=index, tape=launch.tape, first=launch.first, count=launch.count
                ),
                on_attempt=lambda: messages.send("case", index=-1),
                attempts=SHRINK_ATTEMPTS_MAX if request["attempts"] is None else request["attempts"],
            )
            finding = None
            if result.counterexample:
                failed.add(subject.name)
                finding = sent(
                    *finding_of(
                        OPS[subject.op],
                        subject,
                        result.counterexample,
                        target=request["target"],
                        seed=request["seed"],
                        device=device,
                        generator="bulk",
                    )
                )
        unjudged = [] if result.cases else listed(subject, "no bulk case is one that it accepts")
        packing = {"launches": result.launches, "packed": result.packed, "seconds": time.monotonic() - now}
        send_done(messages, subject, result.cases, finding, unjudged, **packing)
    messages.send("end", not_run=[asdict(entry) for entry in not_run])


def _reason(subject: Any, op: Op, failed: set[str], device: str, is_late: bool) -> str:
    """Why a subject is not judged, "" if it is."""
    if subject.needs in failed:
        return f"it calls {subject.op}, which is itself wrong"
    if subject.on_cpu and device == "cuda":
        return ON_CPU
    if op.bulk is None:
        return "its operation has no bulk generator: check it without --bulk"
    return interrupts.why_not_run() if is_late else ""


@contextmanager
def _until_lost(messages: Messages) -> Iterator[None]:
    """End the process when the device does no more work."""
    from specsim.tiers.ops.run import DeviceLostError

    try:
        yield
    except DeviceLostError as error:
        messages.send("lost", text=f"leaves a device that does no more work ({error})")
        os._exit(1)


def failure(request: Request, messages: Messages) -> None:
    """Find which request of a launch ended its process, each part in a fork of its own, and make the finding of it."""
    device = request["on"]
    os.environ["TRITON_INTERPRET"] = "1"
    if device == "cuda":  # which this process does not touch
        os.environ.pop("TRITON_INTERPRET")
    from specsim.choices.chooser import replayed
    from specsim.contracts.registry import OPS
    from specsim.isolation.fork_runner import Ended, blame, run_apart
    from specsim.tiers.ops.bulk import Launch, bulk_of, tape_of, with_bulk_cases
    from specsim.tiers.ops.finding import process_failure
    from specsim.tiers.ops.rules import BY_ID

    subjects, _not_run = load_subjects(request)
    (subject,) = [s for s in subjects if s.name == request["subject"]]
    op = OPS[subject.op]
    shape = bulk_of(op).draw_shape(replayed(request["tape"]))
    limit = request["hang_seconds"] + (DEVICE_START_SECONDS if device == "cuda" else 0.0)

    def ends(first: int, count: int) -> Ended | None:
        messages.send("case", index=-1)
        return run_apart(lambda: _run(op, subject, shape, first, count, device), limit)

    first, count, ended = blame(ends, request["first"], request["count"])
    if ended is None and request["hung"]:
        slow = f"a launch of {request['count']} requests {request['text']}, once; give a larger --hang-seconds"
        send_done(messages, subject, request["index"], None, listed(subject, slow))
        return
    ended = ended or Ended(False, f"{request['text']}, once and not again")
    hung, text = ended if count == 1 else (ended.hung, f"{ended.text}, in a launch of {count} requests alone")
    tape = tape_of(op, Launch(shape, tuple(request["tape"]), first, count), range(first, first + count))
    finding = process_failure(
        op,
        subject,
        with_bulk_cases(op).generate(replayed(tape)),
        BY_ID["O7" if hung else "O8"],
        text,
        target=request["target"],
        seed=request["seed"],
        device=device,
        tape=tape,
        generator="bulk",
    )
    send_done(messages, subject, request["index"] + count, sent(*finding), [])


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
