"""What a tier is. Nothing outside `specsim.tiers` asks which one it has.

A tier says how one kind of thing is tested: operations on drawn cases, a whole scheduler on a virtual device. Its
object is a `Tier`, which lives in both processes: the command that runs and the child that it starts. It must be cheap
to import, so what runs in the child is imported by its methods.

To add a tier:

- a package `specsim/tiers/NAME/` with `tier.py`, whose class has what the Protocol below lists, and with what its
  methods import;
- the dataclass of its replay files in `specsim.replay_file`, with the fields and properties of `Replay` there;
- a line in `specsim.tiers.registry`;
- what `specsim targets` and `specsim doctor` say of it: `specsim.engines.listing`, `specsim.commands.doctor`.

Budget, seeds, restarts, one signature one finding, replay files, replay twice, shrink, pin, bisect, campaigns, the
terminal's lines and "not run" come from what is written over the Protocol. A tier draws its cases and runs its search
itself (`check`), because the searches differ: rounds over implementations, schedules that are run again in
another order, one probe after the other.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from specsim.verdict import CheckedSubject, Rule, Suite

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.tiers.messages import At, Request

Answer = Mapping[str, Any]
"""The answer to a replay as JSON has it: what `specsim replay --json` writes."""


class State(enum.Enum):
    """Whether a replay shows the finding of its file."""

    SHOWN = "shown"
    GONE = "gone"
    NOT_RUN = "not run"  # the target does not run the case
    UNHEARD = "unheard"  # the process ended before the finding could show


@dataclass(frozen=True, slots=True)
class Code:
    """A function that was run: its name in specsim, FILE:LINE, and a hash of its body."""

    name: str
    where: str
    source_hash: str


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What a replay showed of the finding of its file.

    `reason`     why, one sentence; `what` is the violation alone, "" when the finding is not shown
    `blamed`     the name of the code that it is of
    `same_code`  whether what ran is what the file was made of: with other code another digest explains itself
    `before`     what failed before the finding could show, a sentence; "" for nothing
    `code`       the functions that were run
    """

    state: State
    reason: str
    what: str = ""
    blamed: str = ""
    same_code: bool = True
    before: str = ""
    code: tuple[Code, ...] = ()


def codes(entries: Sequence[Mapping[str, Any]]) -> tuple[Code, ...]:
    """The functions that an answer names."""
    return tuple(Code(e["name"], e["where"], e["source_hash"]) for e in entries if e["where"])


@dataclass(frozen=True, slots=True)
class Line:
    """A line for a reader: a `label` of a few characters and the text, or with the label None the text alone. `style`
    "rule" is for a rule that broke.
    """

    label: str | None
    text: str
    style: Literal["", "rule"] = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A replay as a reader is shown it. Its heading is `name`, printed in bold type, and `about`; `same` is what two
    runs have in common: "outputs and violations are".
    """

    name: str
    about: str
    lines: tuple[Line, ...]
    same: str


@dataclass(frozen=True, slots=True)
class Page:
    """What a page of a replay shows beside its finding. `kind` says how it is drawn, `blamed` are the texts of the
    violation, `parts` what only this kind has.
    """

    kind: str
    blamed: Mapping[str, Any]
    parts: Mapping[str, Any] = field(default_factory=dict)


class Tier(Protocol):
    """One tier. Of its name, and of what a command asks about it:

    `unit`            what is counted: "cases" or "schedules"
    `by_default`      whether a check without --only runs it
    `budget_share`    of a target's time, where each tier has its part
    `batch_count`, `batch_weight`  of campaigns: cases or schedules of a batch, and how often a batch is drawn
    `has_device`      whether its cases run on a device that a user chooses
    `loader`          the module that imports the target in its child, which so needs its files in a folder, "" where
                      none does: `load_target`; `hold`, for the forks of a process; `held_by`, which names what is held
    `resumes_skipped` whether the next check begins with what this one had no time for
    `end_rules`       the rule that a case breaks which ends its process, and of one that has to be ended
    `preloaded`       the modules that a fork server imports before it forks
    `ignored`         parameters of `specsim check` that say nothing to this tier, and why
    """

    name: str
    unit: Literal["cases", "schedules"]
    by_default: bool
    budget_share: float
    batch_count: int
    batch_weight: int
    has_device: bool
    loader: str
    resumes_skipped: bool
    end_rules: tuple[str, str]
    preloaded: tuple[str, ...]
    ignored: tuple[tuple[str, ...], str]

    # In the command

    def is_of(self, target: Target) -> bool:
        """Whether a check of the target runs this tier."""
        ...

    @property
    def rules(self) -> Mapping[str, Rule]:
        """Its rules by id."""
        ...

    def signature_of_end(self, subject: str, rule: Rule) -> str:
        """The signature of such a finding."""
        ...

    def title_of_end(self, subject: str, text: str) -> str:
        """Its title; `text` says how the process ended."""
        ...

    def finds(self, checked: CheckedSubject, signature: str) -> bool:
        """Whether a finding is of what was checked."""
        ...

    def why_not_checked(self, suite: Mapping[str, Any], name: str) -> str:
        """Why a suite could not have shown the finding of the signature TIER:`name`, or did not run what is called so,
        "" when it could or did.
        """
        ...

    def expectation(self, rule: str, shown: bool) -> dict[str, Any]:
        """What a fixture says of a target, on which a finding of the rule is shown or not."""
        ...

    def limit_seconds(self, request: Request) -> float:
        """How long a child may be silent while the target's code runs."""
        ...

    def blames(self, request: Request) -> bool:
        """Whether a child runs the target's code itself: what ends it is a finding then."""
        ...

    def cut_short(self, suite: Suite, at: At, index: int, text: str) -> bool:
        """Note what a child that ended at `at` leaves undone; `index` is the last case that was run, `text` how it
        ended. Returns whether another child goes on with the other subjects.
        """
        ...

    def answer_of_end(self, hung: bool, text: str) -> dict[str, Any] | None:
        """The answer to a replay whose case ended its process; None where that says nothing of the target."""
        ...

    def difference(self, one: Answer, two: Answer) -> str:
        """How the answers of two runs of one case differ, a sentence; "" when they do not."""
        ...

    def outcome(self, stored: Any, target: str, answer: Answer) -> ReplayOutcome:
        """What an answer shows of the finding of a replay file."""
        ...

    def explain(self, stored: Any, target: str, answer: Answer) -> Explanation:
        """An answer for a reader."""
        ...

    def page(self, stored: Any, target: str, answer: Answer) -> Page:
        """An answer for a page."""
        ...

    def answers(self, request: Request) -> str:
        """The module whose functions `check`, `failure`, `replay`, `shrink` and `search`, or the one that its work is
        called, answer a request in the child.
        Each takes the request, its work and the `Messages` that it sends its answer with (`specsim.tiers.messages`).
        """
        ...


def why_of(reasons: Mapping[str, str], names: Collection[str], otherwise: str) -> str:
    """The first of the reasons that is of one of the names."""
    return next((reasons[name] for name in names if name in reasons), otherwise)


def label_of(rules: Mapping[str, Rule], rule: str) -> str:
    """A rule for a reader: its name, and its number to search for. The number alone when it is none of `rules`."""
    return rules[rule].label if rule in rules else rule
