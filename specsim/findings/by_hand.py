"""A schedule written by hand: what happened in an incident, as calls, on the scheduler of any target.

What is written is what a replay file of the scheduler tier has: how the scheduler is started, what its users do at
which iteration of its loop, and how the device and the model behave. So `source_of` writes a replay file as such a
test.
"""

from __future__ import annotations

import tempfile
import textwrap
import unittest
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specsim import replay_file
from specsim.errors import UsageError
from specsim.replay_file import SchedulerReplay
from specsim.tiers.process import ask_again
from specsim.tiers.registry import TIERS
from specsim.tiers.replaying import replay, request_of
from specsim.verdict import Severity
from specsim.world.case import ScheduleCase
from specsim.world.scheduler import ABORT, DRAIN, KEEP, Pause, Setup, Turn, defaults
from specsim.world.workload import Workload, prompt_of

if TYPE_CHECKING:
    from collections.abc import Mapping

RULES = TIERS["scheduler"].rules
TITLE = "a schedule written by hand"
ACCEPT = "accept"  # the label of a choice: how many tokens fewer a verification keeps than it could
WIDTH = 112  # columns of a line of `source_of`, which stands in a function
FIELDS = frozenset(Turn.__dataclass_fields__) - {"rid", "prompt", "answer", "at", "session", "abort"}
"""Of a request, beside what `Schedule.start` and `Schedule.abort` name."""
DEVICES = ("eager", "lazy", "lag")
"""How fast streams are: all run at once, none before the host waits for it, or one of them not before something waits
for it. See `specsim.vdevice.policies`.
"""
HANG_SECONDS = 60.0


class Shown(NamedTuple):
    """What a schedule showed that broke no rule: a line for each launch, and the signatures that were let pass."""

    launches: tuple[str, ...]
    passed: tuple[str, ...]


class Schedule:
    """Times are iterations of the scheduler's loop, from 0 on. Each call adds something; `check` runs it all."""

    def __init__(self, target: str, setup: Mapping[str, Any], out: Path, cache: Path) -> None:
        self._target, self._out, self._cache = target, out, cache
        self._setup = dict(setup)
        self._turns: dict[str, Turn] = {}
        self._pauses: list[Pause] = []
        self._flushes: list[int] = []
        self._aborts_of_all: list[int] = []
        self._leaps: list[int] = []
        self._choices: dict[str, list[int]] = {}

    # ---- what users do

    def start(
        self,
        prompt: int | Sequence[int] = 8,
        answer: int = 8,
        *,
        at: int = 0,
        rid: str = "",
        session: str = "",
        **fields: Any,
    ) -> str:
        """A request that arrives at an iteration; its name, which is `rid` where that is given.

        `prompt` are its token ids, or how many there are: no other request's prompt begins as one of those. `answer` is
        max_new_tokens. With `session` it is that session's next turn, `prompt` what it adds to the turns before, and of
        a turn that is not the first `at` counts from the end of the one before. `fields` are others of
        `specsim.world.scheduler.Turn`. UsageError for a field that there is not, and a name that is taken.
        """
        number = len(self._turns)
        turns = sum(turn.session == session for turn in self._turns.values())
        rid = rid or (f"{session}.{turns}" if session else f"r{number}")
        if rid in self._turns:
            raise UsageError(f"there is a request {rid!r} already", "give the second one another rid")
        if unknown := sorted(fields.keys() - FIELDS):
            raise UsageError(f"a request has no field {unknown[0]!r}", f"allowed: {', '.join(sorted(FIELDS))}")
        tokens = prompt_of(number, prompt) if isinstance(prompt, int) else tuple(prompt)
        if not tokens or answer < 1:
            raise UsageError(f"a request of {len(tokens)} tokens for {answer}", "both are at least 1")
        self._turns[rid] = Turn(rid, tokens, answer, _iteration(at), session=session, **fields)
        return rid

    def abort(self, rid: str, at: int) -> None:
        """Abort a request: at an iteration; of a later turn of a session, so many after its arrival."""
        turn = self._turn(rid)
        is_later = turn.session and any(other.session == turn.session for other in self._before(rid))
        after = at if is_later else at - turn.at
        if after < 0:
            raise UsageError(f"{rid} is aborted at iteration {at}, and arrives at {turn.at}", "abort it later")
        self._turns[rid] = replace(turn, abort=after)

    def abort_all(self, at: int) -> None:
        """Abort all that was sent until then."""
        self._aborts_of_all.append(_iteration(at))

    def pause(
        self, at: int, iterations: int = 1, *, retracts: bool = False, mode: str = KEEP, refuses: bool = False
    ) -> None:
        """Pause the scheduler for so many iterations. With `retracts` what runs gives back its KV, and waits again;
        `mode` is "keep", "drain" or "abort", see `specsim.world.scheduler.Facts`, and `refuses` refuses new requests.
        """
        if iterations < 1:
            raise UsageError(f"a pause of {iterations} iterations", "a pause takes at least 1")
        if mode not in (KEEP, DRAIN, ABORT):
            raise UsageError(f"a pause of mode {mode!r}", f"modes are {KEEP!r}, {DRAIN!r} and {ABORT!r}")
        self._pauses.append(Pause(_iteration(at), iterations, retracts, mode, refuses))

    def retract(self, at: int) -> None:
        """Retract all that runs, by a pause of one iteration."""
        self.pause(at, retracts=True)

    def flush(self, at: int) -> None:
        """Ask for the cache to be flushed."""
        self._flushes.append(_iteration(at))

    def leap(self, at: int) -> None:
        """Let so much time pass that what has a time-out has timed out."""
        self._leaps.append(_iteration(at))

    # ---- how the model and the device behave

    def accept(self, *tokens: int) -> None:
        """How many tokens verifications keep, the one beyond the drafts included: in the order of their launches, and
        in one launch in the order of its batch. After these, and without this call, all that there are.
        """
        setup = self._started_by()
        if setup.worker != "fake":
            remedy = "it drafts itself: give the ranks of the right tokens among its drafts by choose()"
            raise UsageError(f"accept with worker={setup.worker!r}", remedy)
        bound = setup.draft_tokens
        if wrong := [count for count in tokens if not 1 <= count <= bound]:
            raise UsageError(f"a verification that keeps {wrong[0]} tokens", f"from 1 to {bound} with this setup")
        self.choose(ACCEPT, *(bound - count for count in tokens))

    def device(self, policy: str, stream: int = 0) -> None:
        """How fast streams are, one of DEVICES; of "lag" the number of the slow one, in the order in which they were
        made. Without this call "eager".
        """
        if policy not in DEVICES:
            raise UsageError(f"there is no device {policy!r}", f"allowed: {', '.join(DEVICES)}")
        self.choose("device policy", DEVICES.index(policy))
        self.choose("slow stream", stream)

    def choose(self, label: str, *values: int) -> None:
        """Choices of the run by what they are for, as replay files have them; after them zeros."""
        if wrong := [value for value in values if value < 0]:
            raise UsageError(f"a choice of {wrong[0]} for {label!r}", "choices are at least 0")
        self._choices[label] = [*self._choices.get(label, ()), *values]

    # ---- what must hold

    def check(self, *, only: Collection[str] = (), known: Collection[str] = ()) -> Shown:
        """Run it, and every rule holds of which `only` are the identifiers; without them all whose severity is no
        metric, as that of a race is which made no token wrong. `known` are signatures that are let pass.

        Raises AssertionError with what broke first, whose replay file is written to `out`; unittest.SkipTest where the
        target is not started so; UsageError for a setup that there is not, and a target that cannot be used.
        """
        __tracebackhide__ = True
        stored = self._stored()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "by-hand.json"
            replay_file.save(file, stored)
            answer = replay(request_of(stored, self._target, self._cache, HANG_SECONDS), file, ask=ask_again)
        if not answer["judged"]:
            raise unittest.SkipTest(f"{self._target} is not started so: {answer['why']}")
        if unknown := sorted(set(only) - RULES.keys()):
            raise UsageError(f"there is no rule {unknown[0]!r}", f"allowed: {', '.join(sorted(RULES))}")
        broken = [v for v in answer["violations"] if (v["rule"] in only if only else not is_metric(v))]
        new = [violation for violation in broken if violation["signature"] not in known]
        if new:
            raise AssertionError(self._told(stored, new))
        return Shown(tuple(answer.get("events", ())), tuple(violation["signature"] for violation in broken))

    def _told(self, stored: SchedulerReplay, violations: Sequence[Mapping[str, Any]]) -> str:
        """What broke, and the command that shows it again."""
        first = violations[0]
        told = replace(
            stored, part=first["part"], rule=first["rule"], signature=first["signature"], title=title_of(first)
        )
        file = replay_file.save_in(self._out, told)
        return text_of(violations, [("replay", replay_file.command(str(file), self._target, self._target))])

    def _started_by(self) -> Setup:
        return ScheduleCase(self._setup, {}, {}).started_by()

    def _stored(self) -> SchedulerReplay:
        setup = self._started_by()
        if not self._turns:
            raise UsageError("a schedule without a request", "start one")
        asking = [rid for rid, turn in self._turns.items() if turn.hidden or turn.prompt_logprobs >= 0]
        if asking and not setup.hidden_states:
            wish = f"{asking[0]} asks for hidden states or logprobs of its prompt"
            raise UsageError(wish, "start the scheduler with worker='release' and hidden_states=True")
        workload = Workload(
            tuple(self._turns.values()),
            tuple(sorted(self._flushes)),
            tuple(sorted(self._aborts_of_all)),
            tuple(sorted(self._pauses, key=lambda pause: pause.at)),
            tuple(sorted(self._leaps)),
        )
        return SchedulerReplay(
            target=self._target,
            tier="scheduler",
            part="",
            where="",
            source_hash="",
            tape=[],
            setup=self._setup,
            workload=workload.plain(),
            choices=self._choices,
            seed=0,
            rule="",
            signature="by-hand",
            title=TITLE,
            digest="",
        )

    def _turn(self, rid: str) -> Turn:
        if rid not in self._turns:
            raise UsageError(f"there is no request {rid!r}", f"there are {', '.join(self._turns) or 'none'}")
        return self._turns[rid]

    def _before(self, rid: str) -> list[Turn]:
        return list(self._turns.values())[: list(self._turns).index(rid)]


def _iteration(at: int) -> int:
    if at < 0:
        raise UsageError(f"iteration {at}", "iterations are numbered from 0 on")
    return at


def is_metric(violation: Mapping[str, Any]) -> bool:
    """Whether no token is wrong where the rule is broken."""
    return violation["harmless"] or RULES[violation["rule"]].severity is Severity.METRIC


def title_of(violation: Mapping[str, Any]) -> str:
    return f"{violation['part']}: expected {violation['expected']}, got {violation['actual']}"


def text_of(violations: Sequence[Mapping[str, Any]], more: Iterable[tuple[str, str]]) -> str:
    """What broke first; what came after it, which may be no more than a symptom, by its signature alone; and `more`."""
    first, *later = violations
    rule = RULES[first["rule"]]
    rows = [
        ("rule", f"{rule.label}: {rule.sentence}"),
        ("request", first["who"] or "none"),
        ("where", first["where"] or "unknown"),
        *(("", line) for line in first["details"]),
        ("signature", first["signature"]),
        *(("after it", violation["signature"]) for violation in later),
        *more,
    ]
    return "\n".join([title_of(first), *(f"   {name:<10} {value}" for name, value in rows)])


def source_of(stored: SchedulerReplay) -> str:
    """The calls that write a replay file's schedule down and check its rule, a line each: the body of a test that has
    a TARGET.
    """
    case = ScheduleCase(stored.setup, stored.workload, stored.choices)
    workload, bound = case.users(), case.started_by().draft_tokens
    lines = [_call("incident = schedule", "TARGET", **stored.setup)]
    for turn in workload.turns:
        others = {name: getattr(turn, name) for name in Turn.__dataclass_fields__ if name not in _BY_CALL}
        others = {name: value for name, value in others.items() if value != _TURN.get(name)}
        lines.append(_call("incident.start", repr(list(turn.prompt)), repr(turn.answer), **others))
    sessions: set[str] = set()
    for turn in workload.turns:
        at = turn.abort if turn.session in sessions else turn.at + turn.abort
        sessions |= {turn.session} - {""}
        if turn.abort >= 0:
            lines.append(_call("incident.abort", repr(turn.rid), at=at))
    lines += [_call("incident.abort_all", at=at) for at in workload.abort_all]
    for pause in workload.pauses:
        said = {name: value for name, value in asdict(pause).items() if value != _PAUSE.get(name)}
        lines.append(_call("incident.pause", **said))
    lines += [_call("incident.flush", at=at) for at in workload.flushes]
    lines += [_call("incident.leap", at=at) for at in workload.leaps]
    for label, values in stored.choices.items():
        if label == ACCEPT and case.started_by().worker == "fake":
            lines.append(_call("incident.accept", *(repr(bound - value) for value in values)))
        else:
            lines.append(_call("incident.choose", repr(label), *map(repr, values)))
    lines.append(_call("incident.check", only=[stored.rule]))
    return "\n".join(lines)


_BY_CALL = ("prompt", "answer", "abort")
_TURN, _PAUSE = {"at": 0, **defaults(Turn)}, defaults(Pause)


def _call(name: str, *given: str, **named: Any) -> str:
    """A call as text; where it is too long for a line of 116 columns, an argument a line, or some."""
    arguments = [*given, *(f"{key}={value!r}" for key, value in named.items())]
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return line
    inner = textwrap.fill(", ".join(arguments), WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return f"{name}(\n{textwrap.indent(inner, '    ')}\n)"
