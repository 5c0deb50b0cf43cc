"""What crosses the pipe between a command and the child that runs a target's code, in both directions: a `Request` with
its `Work` one way, the messages of `ANSWERS` the other. Both ends check what comes. The messages of every child are in
`specsim.isolation.messages`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from specsim.isolation.messages import OF_EVERY_CHILD, VERSION, Message
from specsim.verdict import CheckedSubject, Covered, Finding, NotRun, matches


class Work(msgspec.Struct, frozen=True, kw_only=True, tag_field="mode", forbid_unknown_fields=True):
    """What a child is to do."""


class CheckWork(Work, tag="check", frozen=True):
    """Run every subject but those that earlier children are done with, or died on: `skip`. Subjects that are known to
    fail are `failed`; what is found of those in `unshrunk` stays as large as it is.
    """

    skip: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unshrunk: tuple[str, ...] = ()


class FailureWork(Work, tag="failure", frozen=True):
    """Make the finding of a case that ended a child: case `index` of a subject, or that of the replay file `known`.
    `place` is what the child said of it, `text` how the child ended, and `hung` that it had to be ended.
    """

    subject: str
    index: int
    count: int
    known: str
    place: dict[str, Any]
    hung: bool
    text: str


class Replay(Work, tag="replay", frozen=True):
    """Run the case of a replay file once more. With `record`, note what a page shows; with `traces`, the functions of
    the target that it runs, where the tier can tell.
    """

    file: str
    record: bool = False
    traces: bool = False


class Shrink(Work, tag="shrink", frozen=True):
    """Shrink the case of a replay file, with so many attempts, for `seconds` at most."""

    file: str
    attempts: int
    seconds: float


class Search(Work, tag="search", frozen=True):
    """Look for one defect, and end at the first hit: of the rule or of the operation `what`, there of the
    implementations `subjects` alone unless it is empty. What is found is shrunk and sent with `write`, which names the
    implementation.
    """

    what: str
    subjects: tuple[str, ...] = ()
    write: str = ""


class Weigh(Work, tag="weigh", frozen=True):
    """Weigh every outcome of a release's own worker, whose drafts are a "chain" or a "tree"; `beyond_guards` where the
    release refuses them, too.
    """

    drafts: str
    beyond_guards: bool = False


class Explore(Work, tag="explore", frozen=True):
    """Run every schedule of a scope."""

    scope: str


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to a child, of any tier. A tier looks at what applies to it.

    `count`         cases of each subject, or schedules; for `seconds` at most
    `hang_seconds`  the limit of one call or schedule
    `shrinks`       without it what is found stays as large as it is, and so do the signatures `known`, and those that
                    no pattern of `select` matches, where there are any, or one of `ignore` does
                    (`specsim.findings.selection`); `attempts` at a smaller case of each finding, None for as many as
                    the tier makes by itself
    `fixtures`      folder of replay files whose cases are run first, "" for none
    `device`        "cpu", "cuda" or "auto"; `operation` the one that is run, "" for all; the implementations `first`
                    before the others; `bulk` for thousands of cases a launch
    `mutant`        id of a mutant that is put into the model, "" for none
    `worker`        "fake" or "release": under a release's scheduler
    `at_once`       schedules that run at a time
    `lines`         of the target's files, of which schedules note whether they are run
    `root`          folder with the files of a git revision, "" for another target and where none are imported
    """

    tier: str
    target: str
    cache: str
    seed: int
    count: int
    seconds: float
    hang_seconds: float
    work: CheckWork | FailureWork | Replay | Shrink | Search | Weigh | Explore = CheckWork()
    shrinks: bool = True
    known: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    attempts: int | None = None
    fixtures: str = ""
    device: str = "cpu"
    operation: str = ""
    first: tuple[str, ...] = ()
    bulk: bool = False
    mutant: str = ""
    worker: str = "fake"
    at_once: int = 1
    root: str = ""
    lines: dict[str, list[int]] = {}
    version: int = VERSION

    def is_shrunk(self, signature: str, rule: str = "") -> bool:
        """Whether a finding is made smaller. `rule` is "" where it is not known yet: then it may be reported."""
        if not self.shrinks or signature in self.known:
            return False
        selected = not self.select or any(
            matches(pattern, rule, signature) or not (rule or ":" in pattern) for pattern in self.select
        )
        return selected and not any(matches(pattern, rule, signature) for pattern in self.ignore)


class At(Message, tag="at"):
    """Case `index` of a subject comes next, -1 while shrinking; `count` is what a reader is shown. `known` names the
    replay file whose case it is. `place` is what the tier needs to make the finding of a case that ends the child here,
    beside what it said of this subject before. `counts` are counts so far.
    """

    in_progress: ClassVar[bool] = True
    subject: str
    index: int = 0
    count: int = 0
    known: str = ""
    place: dict[str, Any] = msgspec.field(default_factory=dict)
    counts: dict[str, int] = msgspec.field(default_factory=dict)


class Alive(Message, tag="alive"):
    """Calls are being made."""


class Found(Message, tag="found"):
    """A finding, and what its replay file holds (`specsim.tiers.transfer`); once more when it was shrunk."""

    finding: Finding
    replay: dict[str, Any]


class Done(Message, tag="done"):
    """The cases of a subject are over; what was found of it was sent before."""

    subject: str
    judged: CheckedSubject
    not_run: list[NotRun]


class Lost(Message, tag="lost"):
    """The device does no more work, and the process ends."""

    text: str


class Differs(msgspec.Struct, frozen=True):
    """Two runs of one case differ: `what` was run, and `text` says how. `gone` is the signature of the finding that
    only the first run showed, "" where both did.
    """

    what: str
    text: str
    gone: str = ""


class End(Message, tag="end"):
    """All subjects are done. `setups` says on which of the target's setups schedules were; `nondeterministic` what did
    not run the same twice; `ran_lines`, by FILE:LINE, in how many schedules each of the request's lines was run;
    `coverage`, by file, how much of the target was; `trees` those of its radix trees on which they were, where it has
    more than one.
    """

    is_last: ClassVar[bool] = True
    not_run: list[NotRun]
    schedules: int = 0
    events: int = 0
    setups: list[str] = msgspec.field(default_factory=list)
    nondeterministic: list[Differs] = msgspec.field(default_factory=list)
    ran_lines: dict[str, int] = msgspec.field(default_factory=dict)
    coverage: dict[str, Covered] = msgspec.field(default_factory=dict)
    trees: list[str] = msgspec.field(default_factory=list)


class Broken(msgspec.Struct, kw_only=True):
    """A rule that a replayed case breaks; a tier has more to say of it."""

    rule: str


class _Answer(msgspec.Struct, kw_only=True):
    """What is checked of the answer to a replay."""

    judged: bool = True
    digest: str = ""
    where: str = ""
    violations: list[Broken] = []
    broken: list[Broken] = []


class Replayed(Message, tag="replayed"):
    """The answer to a replay or a search, as its tier writes it."""

    is_last: ClassVar[bool] = True
    answer: dict[str, Any]

    def __post_init__(self) -> None:
        msgspec.convert(self.answer, _Answer)


class Weighed(Message, tag="weighed"):
    """How many outcomes there are, and how far they are `off` in total variation, a fraction; or with `why` what the
    target raised.
    """

    is_last: ClassVar[bool] = True
    outcomes: int
    off: str = ""
    why: str = ""


class BrokenSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The first schedule that breaks a rule, the `count` of those that do, its `choices` in their order, and for a
    reader what users do and what is launched.
    """

    choices: tuple[int, ...]
    lines: tuple[str, ...] = ()
    title: str = ""
    count: int = 1


class ExploredByRuns(Message, tag="explored"):
    """How many schedules of a scope were run, whether these are all, and by signature what they broke."""

    is_last: ClassVar[bool] = True
    schedules: int
    complete: bool
    broken: dict[str, BrokenSchedule] = msgspec.field(default_factory=dict)


class Shrunk(Message, tag="shrunk"):
    """What a shrink left: the finding, the choices and the size `before` and `after`, and whether the code and the case
    are still those of the file.
    """

    is_last: ClassVar[bool] = True
    finding: Finding
    replay: dict[str, Any]
    before: tuple[int, int] | None = None
    after: tuple[int, int] | None = None
    same_source: bool = True
    same_case: bool = True


ANSWERS = OF_EVERY_CHILD | At | Alive | Found | Done | Lost | End | Replayed | Weighed | ExploredByRuns | Shrunk
