"""Run one implementation on one case and say which rules it breaks.

Running and comparing are apart: a `Launcher` runs the implementation and hands over what it left behind (`Launched`);
everything that decides is made of that here. So the code that is checked may run in a process of its own
(`specsim.tiers.ops.target_process`), where nothing that it does to torch reaches the comparison.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from specsim.contracts.contract import Case, Op, Role, Tensors, WrongResultError, differing
from specsim.contracts.pointers import span_bytes
from specsim.contracts.provider import NotCalledError, Subject
from specsim.interpreter.lockstep.errors import UnsupportedError
from specsim.interpreter.memcheck import MemoryLog, memcheck
from specsim.interpreter.offsets import overflow_of
from specsim.interpreter.red_zones import GuardedTensor, guarded_arguments, views
from specsim.interpreter.triton_names import interpreted, one_line
from specsim.tiers.ops import rules
from specsim.tiers.ops.relations import Difference, broken_relation
from specsim.verdict import Rule

if TYPE_CHECKING:
    from specsim.interpreter.lockstep.watch import Watch


@dataclass(frozen=True, slots=True)
class CaseViolation:
    """A broken rule on one case."""

    rule: Rule
    title: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one case showed. `checked` is False when the implementation does not make its call for this case. `digest`
    is of inputs, the defined part of outputs and violations, and the same on every machine.
    """

    violations: tuple[CaseViolation, ...]
    digest: str
    checked: bool = True

    def of(self, rule: Rule) -> CaseViolation | None:
        return next((v for v in self.violations if v.rule is rule), None)


class ComparedOutput(NamedTuple):
    """An output: the reference's, the implementation's, which elements are defined, and which differ."""

    expected: torch.Tensor
    actual: torch.Tensor
    defined: torch.Tensor
    differs: torch.Tensor


class EndedError(Exception):
    """The process that runs an implementation ended on a case, or had to be ended because it `hung`."""

    def __init__(self, hung: bool, text: str) -> None:
        super().__init__(text)
        self.hung = hung
        self.text = text


class RelatedCaseError(Exception):
    """A related case raised; the text says what."""


class DeviceLostError(Exception):
    """What ran has left a device that does no more work: its process is of no use any longer."""


def raise_if_lost(device: torch.device | str, error: BaseException) -> None:
    """Raise DeviceLostError, from `error`, if the device does no more work."""
    if torch.device(device).type == "cuda":
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise DeviceLostError(one_line(lost)) from error


@dataclass(frozen=True, slots=True)
class Freedoms:
    """What the interpreter does otherwise than a GPU may: `lanes` poisons what is masked off without `other`, `apart`
    gives each such lane a value of its own; `backwards` runs the programs of the second launch last one first.
    """

    lanes: bool = False
    backwards: bool = False
    apart: bool = False


PLAIN = Freedoms()


@dataclass(frozen=True, slots=True)
class Launched:
    """What one run of an implementation left behind, on the CPU.

    `results`  the outputs by name; None when it raised
    `raised`   the error on one line, "" for none; `misfit` says that it is of an output that is not the contract's
    `buffers`  every tensor argument's whole buffer afterwards, red zones included
    `moved`    arguments that no longer are the view of their buffer that was given, as they are now
    `stray`    the first access outside of every tensor that the interpreter saw, "" for none
    `lines`    the lines of loads without `other` of which lanes were masked off
    `undefined`  what undefined values decided: "a branch (line 12)"
    `race`     the first race of two programs that the interpreter saw, "" for none
    `warp_race`  the first one of two warps of a program, likewise
    `marks`    by output, where it has some, which elements hold undefined values, bool
    """

    results: Tensors | None
    buffers: Tensors
    moved: Tensors
    raised: str = ""
    misfit: bool = False
    stray: str = ""
    lines: frozenset[int] = frozenset()
    undefined: tuple[str, ...] = ()
    race: str = ""
    warp_race: str = ""
    marks: Tensors = field(default_factory=dict)


class Launcher(Protocol):
    """Runs implementations. Raises NotCalledError where a caller makes no call in the configuration of the case,
    EndedError where running it ends the process that it runs in, and UnsupportedError where the interpreter lacks what
    a kernel uses.
    """

    def launch(self, op: Op, subject: Subject, case: Case, which: int, freedoms: Freedoms) -> Launched:
        """One run on arguments that are poisoned with poison `which` and lie between red zones."""
        ...

    def overflow(self, subject: Subject) -> tuple[str, int] | None:
        """`specsim.interpreter.offsets.overflow_of` of a subject that is `far`."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchHere:
    """Runs implementations in this process."""

    device: torch.device | str = "cpu"

    def launch(self, op: Op, subject: Subject, case: Case, which: int, freedoms: Freedoms) -> Launched:
        """Where two programs race, what comes of them is what they do one after the other: the race is what is wrong,
        and not the value that it leaves. With a value of its own in each undefined lane they stay together, as they do
        without: a race is of these values.
        """
        if not interpreted():
            guarded = guarded_arguments(op, case, which, self.device, subject.strided)
            return self._left(op, subject, case, guarded, MemoryLog())
        launched, race = self._checked(op, subject, case, which, freedoms)
        if not race or freedoms.apart:
            return launched
        return replace(self._checked(op, subject, case, which, freedoms, in_turn=True)[0], race=race)

    def _checked(
        self, op: Op, subject: Subject, case: Case, which: int, freedoms: Freedoms, *, in_turn: bool = False
    ) -> tuple[Launched, str]:
        """A run in the interpreter, and the first race of it, "" for none."""
        unwritten = [arg.name for arg in op.outputs if arg.role is Role.OUT and arg.prefill is None]
        guarded = guarded_arguments(op, case, which, self.device, subject.strided)
        with memcheck(
            which,
            lanes=freedoms.lanes,
            backwards=freedoms.backwards and which == 1,
            apart=freedoms.apart,
            in_turn=in_turn,
            unwritten=[guarded[name].view for name in unwritten],
        ) as log:
            launched = self._left(op, subject, case, guarded, log)
        warp_race = min(log.warp_races.items())[1] if log.warp_races else ""
        return replace(launched, warp_race=warp_race), min(log.races.items())[1] if log.races else ""

    def _left(
        self, op: Op, subject: Subject, case: Case, guarded: dict[str, GuardedTensor], log: MemoryLog
    ) -> Launched:
        given = {name: (tensor.view.data_ptr(), tensor.view.shape) for name, tensor in guarded.items()}
        results, raised, misfit = None, "", False
        try:
            results = subject.run(case.sizes, views(guarded))
        except (NotCalledError, UnsupportedError):
            raise
        except WrongResultError as error:
            raised, misfit = str(error), True
        except Exception as error:
            raise_if_lost(self.device, error)
            raised = one_line(error)
        try:
            now = {name: tensor.view for name, tensor in guarded.items()}
            return Launched(
                results=None if results is None else {name: _on_cpu(tensor) for name, tensor in results.items()},
                buffers={name: _on_cpu(tensor.buffer) for name, tensor in guarded.items()},
                moved={n: _on_cpu(view) for n, view in now.items() if (view.data_ptr(), view.shape) != given[n]},
                raised=raised,
                misfit=misfit,
                stray=str(log.strays[0]) if log.strays else "",
                lines=frozenset(log.without_other),
                undefined=tuple(sorted(log.undefined)),
                marks=_marks(guarded, results, log.watch) if log.watch is not None and results is not None else {},
            )
        except RuntimeError as error:
            raise_if_lost(self.device, error)
            raise

    def overflow(self, subject: Subject) -> tuple[str, int] | None:
        assert subject.far is not None
        return overflow_of(subject.far)


def _marks(guarded: dict[str, GuardedTensor], results: Tensors, watch: Watch) -> Tensors:
    """By output that lies where it was given, which elements hold undefined values; only those that have some."""
    marks: Tensors = {}
    for name, result in results.items():
        view = guarded[name].view
        if view.numel() and result.data_ptr() == view.data_ptr() and result.stride() == view.stride():
            count = span_bytes(view) // view.element_size()
            undefined = torch.from_numpy(watch.still_undefined(view.data_ptr(), count, view.element_size()))
            if bool(undefined.any()):
                marks[name] = torch.as_strided(undefined, view.shape, view.stride()).clone()
    return marks


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def run_case(
    op: Op,
    subject: Subject,
    case: Case,
    device: torch.device | str = "cpu",
    *,
    related: bool = False,
    launcher: Launcher | None = None,
) -> Outcome:
    """Check `subject` on `case`, under both poisons; with `related` also on the cases that must have results according
    to it, if it is right on this one. `launcher` runs it; when left out it runs here, on `device`.

    In the interpreter masked-off lanes are poisoned and programs run in two orders. What breaks a rule is run again
    without, so that a defect of every machine is told from one that needs a machine which does so.
    """
    launcher = launcher or LaunchHere(device)
    if subject.far is not None:
        return _checked_far(op, subject, case, launcher)
    run = _Run(op, subject, case, launcher)
    try:
        if not interpreted():
            found, results, _lines = run.twice(PLAIN)
        else:
            every = run.twice(Freedoms(lanes=True, backwards=True))
            found, results, _lines = every
            if found:
                found, results, _lines = run.twice(PLAIN)
            if every[0] and not found:
                in_order = run.twice(Freedoms(lanes=True))
                reverse = run.twice(Freedoms(backwards=True))
                found += [_needs_luck(in_order[2])] if in_order[0] else []
                found += [_needs_an_order()] if reverse[0] or not found else []
    except NotCalledError:
        return Outcome((), "", checked=False)
    if not found and run.undefined:
        found += run.depends_on_undefined(results[0])
    if run.race:
        found.append(CaseViolation(rules.DOES_NOT_RACE, run.race, "accesses that are ordered", run.race))
    if run.warp_race:
        found.append(CaseViolation(rules.WARPS_DO_NOT_RACE, run.warp_race, "a barrier between them", run.warp_race))
    if related and not found:
        found += _broken_relation(op, subject, case, launcher)
    return Outcome(tuple(found), _digest(op, case, results, found))


def _checked_far(op: Op, subject: Subject, case: Case, launcher: Launcher) -> Outcome:
    if not interpreted():
        return Outcome((), "", checked=False)
    overflow = launcher.overflow(subject)
    found = []
    if overflow:
        text = f"{overflow[0]} at {subject.where.rpartition(':')[0]}:{overflow[1]}"
        found = [CaseViolation(rules.OFFSETS_FIT, text, "offsets that fit their type", text)]
    return Outcome(tuple(found), _digest(op, case, [], found))


def _needs_luck(lines: set[int]) -> CaseViolation:
    numbers = ", ".join(map(str, sorted(lines)))
    title = f"what the masked-off lanes of loads without `other` hold changes the result (lines {numbers})"
    return CaseViolation(rules.IGNORES_UNDEFINED, title, "the same whatever they hold", "another one")


def _needs_an_order() -> CaseViolation:
    title = "the result changes when the programs of a launch run last one first"
    return CaseViolation(rules.IGNORES_ORDER, title, "the same in every order", "another one")


class _Run:
    """The runs of one case, compared with the reference's outputs."""

    def __init__(self, op: Op, subject: Subject, case: Case, launcher: Launcher) -> None:
        self._op = op
        self._subject = subject
        self._case = case
        self._launcher = launcher
        self.expected = op.expected(case)
        self.defined = op.defined(case, self.expected)
        self.undefined: set[str] = set()
        self.race = self.warp_race = ""

    def twice(self, freedoms: Freedoms) -> tuple[list[CaseViolation], list[Tensors], set[int]]:
        """The violations under both poisons, the defined results of each, and the lines of the loads without `other`
        of which lanes were poisoned.
        """
        violations: list[CaseViolation] = []
        defined_results: list[Tensors] = []
        lines: set[int] = set()
        for which in (0, 1):
            found, results, seen = self.once(which, freedoms)
            violations += [v for v in found if all(v.rule is not known.rule for known in violations)]
            lines |= seen
            if results is None:
                break
            defined_results.append(self._defined_of(results))
        if len(defined_results) == 2:
            violations += _poison_dependence(defined_results)
        return violations, defined_results, lines

    def once(self, which: int, freedoms: Freedoms) -> tuple[list[CaseViolation], Tensors | None, frozenset[int]]:
        """The violations of one run, its outputs (None when it raised), and the lines as `Launched` has them."""
        op, case = self._op, self._case
        launched = self._launcher.launch(op, self._subject, case, which, freedoms)
        self.race = self.race or launched.race
        self.warp_race = self.warp_race or launched.warp_race
        if launched.misfit:
            text = launched.raised
            return (
                [CaseViolation(rules.FITS_CONTRACT, text, "outputs as the contract says", text)],
                None,
                launched.lines,
            )
        if launched.results is None:
            text = f"raises {launched.raised}"
            return [CaseViolation(rules.DOES_NOT_RAISE, text, "no exception", text)], None, launched.lines
        try:
            results = {arg.name: arg.check(launched.results.get(arg.name), case.sizes) for arg in op.outputs}
        except WrongResultError as error:
            return (
                [CaseViolation(rules.FITS_CONTRACT, str(error), "outputs as the contract says", str(error))],
                None,
                (launched.lines),
            )
        self.undefined.update(launched.undefined)
        for name, marks in launched.marks.items():
            reached = (marks & self.defined[name]).nonzero()
            if reached.shape[0]:
                self.undefined.add(f"{name}{[int(i) for i in reached[0]]}")
        guarded = guarded_arguments(op, case, which, "cpu", self._subject.strided)
        for name, tensor in guarded.items():
            tensor.buffer.copy_(launched.buffers[name])
        found = _out_of_bounds(launched.stray, guarded)
        found += _changed_inputs(op, case, guarded, launched.moved)
        found += self._first_wrong(results)
        return found, results, launched.lines

    def _first_wrong(self, results: Tensors) -> list[CaseViolation]:
        """The first element, in memory order, of the first output that is wrong."""
        for name, wrong in self._op.wrong(self._case, self.expected, results).items():
            if not wrong.any():
                continue
            at = tuple(int(i) for i in wrong.nonzero()[0])
            place = f"{name}{list(at)}"
            if self.defined[name][at]:
                title, value = f"{place} differs from the reference", f"{place} = {self.expected[name][at].item()}"
            else:
                title, value = f"{place} is no token", f"{place} from 0 to {self._case.sizes['vocab_size'] - 1}"
            return [CaseViolation(rules.EQUALS_REFERENCE, title, value, f"{place} = {results[name][at].item()}")]
        return []

    def depends_on_undefined(self, results: Tensors) -> list[CaseViolation]:
        """An undefined value reached something. That counts if the result is another one, or breaks a rule, with a
        value of its own in each undefined lane of each load: two poisons may cancel each other.
        """
        uses = ", ".join(sorted(self.undefined))
        found, others, _lines = self.once(0, Freedoms(lanes=True, apart=True))
        changed = found or others is None or _poison_dependence([results, self._defined_of(others)])
        if not changed:
            return []
        title = f"what masked-off lanes or unwritten memory hold changes the result: it reaches {uses}"
        return [CaseViolation(rules.IGNORES_UNDEFINED, title, "the same whatever they hold", "another one")]

    def _defined_of(self, results: Tensors) -> Tensors:
        return {name: results[name][self.defined[name]] for name in results}


def _out_of_bounds(stray: str, guarded: dict[str, GuardedTensor]) -> list[CaseViolation]:
    if stray:
        return [CaseViolation(rules.STAYS_IN_BOUNDS, stray, "accesses inside the given tensors", stray)]
    for name, tensor in guarded.items():
        index = tensor.first_stray_write()
        if index is not None:
            text = f"writes element {index} of {name}, which has {tensor.view.numel()}"
            return [CaseViolation(rules.STAYS_IN_BOUNDS, text, "accesses inside the given tensors", text)]
    return []


def _changed_inputs(op: Op, case: Case, guarded: dict[str, GuardedTensor], moved: Tensors) -> list[CaseViolation]:
    for arg in op.tensor_args:
        if arg.role is Role.IN:
            before, after = case.tensors[arg.name], moved.get(arg.name, guarded[arg.name].view)
            if before.shape != after.shape:
                shapes = [f"{arg.name} of shape {list(tensor.shape)}" for tensor in (before, after)]
                return [CaseViolation(rules.LEAVES_INPUTS, f"input {arg.name} has another shape afterwards", *shapes)]
            changed = differing(before, after)
            if bool(changed.any()):
                at = tuple(int(i) for i in changed.nonzero()[0])
                return [
                    CaseViolation(
                        rules.LEAVES_INPUTS,
                        f"input {arg.name}{list(at)} is changed",
                        f"{arg.name}{list(at)} = {before[at].item()}",
                        f"{arg.name}{list(at)} = {after[at].item()}",
                    )
                ]
    return []


def compared(
    op: Op, subject: Subject, case: Case, device: torch.device | str = "cpu", launcher: Launcher | None = None
) -> dict[str, ComparedOutput]:
    """The outputs of one run by name, beside the reference's: of the first that differs, under the other poison, with
    poisoned lanes or in another order of programs; of the plain one when none does; none when that raised.
    """
    run = _Run(op, subject, case, launcher or LaunchHere(device))
    runs = [(0, PLAIN), (1, PLAIN)]
    if interpreted():
        runs += [(which, Freedoms(lanes=True)) for which in (0, 1)] + [(1, Freedoms(backwards=True))]
    plain: dict[str, ComparedOutput] | None = None
    for which, freedoms in runs:
        _, results, _lines = run.once(which, freedoms)
        wrong = {} if results is None else op.wrong(case, run.expected, results)
        found = {
            name: ComparedOutput(run.expected[name], actual, run.defined[name], wrong[name])
            for name, actual in (results or {}).items()
        }
        plain = found if plain is None else plain
        if any(bool(output.differs.any()) for output in found.values()):
            return found
        if not plain:
            break
    return plain or {}


def _poison_dependence(results: list[Tensors]) -> list[CaseViolation]:
    first, second = results
    for name in first:
        changed = differing(first[name], second[name])
        if changed.any():
            index = int(changed.nonzero()[0])
            values = f"{first[name][index].item()} and {second[name][index].item()}"
            title = f"a defined element of {name} changes with the content of undefined memory"
            return [CaseViolation(rules.IGNORES_UNDEFINED, title, "the same under both poisons", values)]
    return []


def _broken_relation(op: Op, subject: Subject, case: Case, launcher: Launcher) -> list[CaseViolation]:
    try:
        found = relation_broken_by(op, subject, case, launcher)
    except (RelatedCaseError, WrongResultError) as error:
        return [CaseViolation(rules.KEEPS_RELATIONS, f"a related case raises {error}", "no exception", "")]
    if found is None:
        return []
    title = f"{found.place} is another with {found.what}"
    return [CaseViolation(rules.KEEPS_RELATIONS, title, found.expected, found.actual)]


def relation_broken_by(op: Op, subject: Subject, case: Case, launcher: Launcher) -> Difference | None:
    """The first relation that the subject does not keep to on `case`. Raises RelatedCaseError or WrongResultError when
    a related case does not come to its end.
    """

    def run(related: Case) -> Tensors:
        launched = launcher.launch(op, subject, related, 0, PLAIN)
        if launched.results is None:
            raise RelatedCaseError(launched.raised)
        return {arg.name: arg.check(launched.results.get(arg.name), related.sizes) for arg in op.outputs}

    return broken_relation(op, subject.accepts, run, case)


def _digest(op: Op, case: Case, results: list[Tensors], violations: list[CaseViolation]) -> str:
    """SHA-256 of the case, the defined outputs under both poisons, and what was wrong."""
    digest = hashlib.sha256(f"{op.name}\n{sorted(case.sizes.items())}\n".encode())
    for tensors in [case.tensors, *results]:
        for name in sorted(tensors):
            tensor = tensors[name]
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.numpy().tobytes())
    for violation in violations:
        digest.update(f"{violation.rule.id} {violation.title} {violation.expected} {violation.actual}\n".encode())
    return digest.hexdigest()
