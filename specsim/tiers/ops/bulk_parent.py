"""The ops tier in bulk, in the parent: thousands of cases a launch, and a launch that ends its process costs one case.

Every launch is named before it runs. When the child dies, hangs or loses its device, a fresh one runs halves of the
launch in forks until the request to blame is known; the finding carries it, and a new child goes on with the next
implementation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from specsim.tiers.ops.parent import OpsRequest, take
from specsim.tiers.parent import START_SECONDS_MAX, ChildEnded, Message, ask, ended_early
from specsim.verdict import Finding, NotRun, Suite


def run_bulk_suite(request: OpsRequest, progress: Callable[[str, int], None]) -> tuple[Suite, list[Finding]]:
    """Judge every implementation that the target has on `request.cases` bulk cases each. `progress(subject, cases)` is
    called as launches run.
    """
    suite = Suite("ops")
    findings: list[Finding] = []
    started = time.monotonic()
    skip: list[str] = []
    failed: list[str] = []
    while True:
        remaining = max(0.0, request.seconds - (time.monotonic() - started))
        question = {**request.to_json(), "mode": "bulk.check", "seconds": remaining, "skip": skip, "failed": failed}
        subject, device, lost = "", "cpu", ""
        launch: Message = {"tape": [], "first": 0, "count": 1, "index": 0}
        try:
            for message in ask(question, request.hang_seconds):
                if message["event"] == "start":
                    subject, device = message["subject"], message["device"]
                elif message["event"] == "case" and "tape" in message:
                    launch = message
                    progress(subject, suite.cases + message["index"])
                elif message["event"] == "lost":
                    lost = message["text"]
                elif message["event"] == "done":
                    skip.append(subject)
                    take(suite, findings, message, request.out)
                    failed += [subject] if message["found"] else []
                elif message["event"] == "end":
                    suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
                    suite.seconds = time.monotonic() - started
                    return suite, findings
        except ChildEnded as ended:
            if not subject or subject in skip:
                raise ended_early(request.target, ended) from None
            skip.append(subject)
            how = {**launch, "device": device, "hung": ended.hung, "text": lost or ended.text}
            failed += [subject] if _take_failure(suite, findings, request, subject, how) else []


def _take_failure(suite: Suite, findings: list[Finding], request: OpsRequest, subject: str, how: Message) -> bool:
    """A child ended on a launch: let a fresh one find the request to blame, and make the finding of it; whether there
    is one.
    """
    before = len(findings)
    question = {
        **request.to_json(),
        "mode": "bulk.failure",
        "subject": subject,
        "on": how["device"],
        "hang_seconds": request.hang_seconds,
        **{name: how[name] for name in ("tape", "first", "count", "index", "hung", "text")},
    }
    for message in ask(question, START_SECONDS_MAX):
        if message["event"] == "done":
            take(suite, findings, message, request.out)
    return len(findings) > before
