"""What a child that runs a target's code may say to its parent: a struct for each message, which both ends check.

To add a field to a message: add it to its struct, with `UNSET` as its default where it is not always there. To add a
message: write its struct, and name it in `MESSAGES`. An event may have several structs, one of which must fit. A
field that a struct does not have is an error in an `_Exact` message and is passed on unchecked in any other.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from specsim.errors import cut
from specsim.verdict import Finding, NotRun

VERSION = 1  # of the conversation; parent and child are of one installation
PROGRESS_EVENTS = ("start", "case", "schedule")  # from the first of them on the target's code runs
LONG_BYTES = 1 << 20

Message = dict[str, Any]


class BadMessageError(Exception):
    """What came is no message of the table."""


class _Open(msgspec.Struct, kw_only=True):
    """A message that may have fields beside those that are checked."""

    event: str


class _Exact(_Open, kw_only=True, forbid_unknown_fields=True):
    """A message that has these fields and no others."""


# Of every child


class Phase(_Exact, kw_only=True):
    """Whose code runs from here on (`specsim.isolation.phases`)."""

    name: str
    version: int


class Error(_Exact, kw_only=True):
    """Bad input, or a target that cannot be judged; the question is over."""

    problem: str
    remedy: str


class Answered(_Exact, kw_only=True):
    """The question is over."""


# Of the tiers


class Found(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A finding, and what its replay file holds (`specsim.tiers.transfer`)."""

    finding: Finding
    replay: dict[str, Any]


class FoundNow(_Exact, kw_only=True):
    """A finding as it was hit; once more when it was shrunk."""

    finding: Finding
    replay: dict[str, Any]


class Alive(_Exact, kw_only=True):
    """Calls are being made."""


class Start(_Exact, kw_only=True):
    """The cases of a subject or probe begin."""

    subject: str | UnsetType = UNSET
    probe: str | UnsetType = UNSET
    device: str | UnsetType = UNSET


class Case(_Open, kw_only=True):
    """A case comes next, or a launch of them; -1 while shrinking."""

    index: int
    subject: str | UnsetType = UNSET
    cases: int | UnsetType = UNSET
    tape: list[int] | UnsetType = UNSET
    first: int | UnsetType = UNSET
    count: int | UnsetType = UNSET


class Schedule(_Open, kw_only=True):
    """A schedule comes next, -1 while shrinking, with what was counted so far."""

    index: int
    known: str | UnsetType = UNSET
    features: list[str] | UnsetType = UNSET
    schedules: int | UnsetType = UNSET
    events: int | UnsetType = UNSET
    findings: int | UnsetType = UNSET
    marks: int | UnsetType = UNSET
    marks_of: int | UnsetType = UNSET


class SubjectDone(_Open, kw_only=True):
    """The cases of a subject are over."""

    op: str
    subject: str
    where: str
    cases: int
    found: Found | None
    not_run: list[NotRun]
    launches: int | UnsetType = UNSET
    packed: int | UnsetType = UNSET
    seconds: float | UnsetType = UNSET


class ProbeDone(_Open, kw_only=True):
    """The cases of a probe are over."""

    probe: str
    function: str
    where: str
    cases: int
    findings: list[Found]
    not_run: list[NotRun]


class Lost(_Exact, kw_only=True):
    """The device does no more work, and the process ends."""

    text: str


class TierEnd(_Open, kw_only=True):
    """All subjects or probes are done."""

    not_run: list[NotRun]


class SimulationEnd(_Open, kw_only=True):
    """All schedules are done."""

    schedules: int
    events: int
    seam: list[dict[str, Any]]
    not_run: list[NotRun]
    nondeterministic: str


class Broken(msgspec.Struct, kw_only=True):
    """A rule that a replayed case or schedule breaks."""

    rule: str


class Replayed(_Open, kw_only=True):
    """The answer to a replay, or to a search."""

    judged: bool | UnsetType = UNSET
    digest: str | UnsetType = UNSET
    where: str | UnsetType = UNSET
    violations: list[Broken] | UnsetType = UNSET
    broken: list[Broken] | UnsetType = UNSET


class DoneAlone(_Open, kw_only=True):
    """The finding of a failure, or what a shrink left."""

    found: Found
    before: list[int] | UnsetType = UNSET
    after: list[int] | UnsetType = UNSET


# Of a campaign


class Running(_Exact, kw_only=True):
    """The fork that runs a batch is at this run."""

    index: int


class BatchEnd(_Exact, kw_only=True):
    """A batch is done."""

    result: dict[str, Any]


class Again(_Open, kw_only=True):
    """One run that was made again."""

    judged: bool
    version: str


# Of the process that is connected to a Ray cluster


class Cluster(_Exact, kw_only=True):
    """What the cluster has."""

    nodes: int
    cpus: int
    gpus: int


class NoCluster(_Exact, kw_only=True):
    """There is no cluster."""

    why: str


class BatchResulted(_Exact, kw_only=True):
    """A batch is done, on a node."""

    key: tuple[int, int, int]
    result: dict[str, Any]
    node: str


class BatchRefused(_Exact, kw_only=True):
    """The node that was to run a batch has no such target."""

    key: tuple[int, int, int]
    problem: str
    remedy: str


class BatchLost(_Exact, kw_only=True):
    """Ray lost a batch as often as it tries one."""

    key: tuple[int, int, int]
    why: str


MESSAGES: dict[str, tuple[type[_Open], ...]] = {
    "phase": (Phase,),
    "error": (Error, NoCluster),
    "answered": (Answered,),
    "start": (Start,),
    "alive": (Alive,),
    "found": (FoundNow,),
    "case": (Case,),
    "schedule": (Schedule,),
    "done": (SubjectDone, ProbeDone),
    "lost": (Lost, BatchLost),
    "end": (SimulationEnd, TierEnd, BatchEnd),
    "replayed": (Replayed,),
    "done alone": (DoneAlone,),
    "running": (Running,),
    "again": (Again,),
    "cluster": (Cluster,),
    "result": (BatchResulted,),
    "refused": (BatchRefused,),
}


def encoded(event: str, fields: dict[str, Any]) -> bytes:
    """A message as bytes. Texts are cut where it is long: an exception may carry megabytes."""
    if event not in MESSAGES:
        raise ValueError(f"there is no message {event!r}; there are {', '.join(MESSAGES)}")
    message = {"event": event, **fields}
    content = json.dumps(message).encode()
    return json.dumps(_cut(message)).encode() if len(content) > LONG_BYTES else content


def decoded(content: bytes) -> Message:
    """The message of these bytes. Raises BadMessageError when it is none of the table."""
    try:
        message = json.loads(content)
        candidates = MESSAGES[message["event"]]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise BadMessageError(f"it is no message ({type(error).__name__})") from None
    whys = []
    for struct in candidates:
        try:
            msgspec.convert(message, struct)
        except msgspec.ValidationError as error:
            whys.append(str(error))
        else:
            fits: Message = message
            return fits
    raise BadMessageError(f"its message {message['event']!r} is none: {whys[0]}")


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, dict):
        return {name: _cut(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(part) for part in value]
    return value
