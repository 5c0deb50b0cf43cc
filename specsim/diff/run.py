"""Run one implementation on one case and say which rules it breaks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from specsim.diff import rules
from specsim.diff.memcheck import MemoryLog, memcheck
from specsim.diff.memory import GuardedTensor, guarded_arguments, views
from specsim.diff.offsets import overflow_of
from specsim.diff.relations import broken_relation
from specsim.ops.contract import Case, Op, Role, Tensors, WrongResultError, differing
from specsim.ops.provider import NotCalledError, Subject
from specsim.verdict import Rule


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule on one case."""

    rule: Rule
    title: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one case showed. `judged` is False when the implementation does not make its call for this case. `digest`
    is of inputs, the defined part of outputs and violations, and the same on every machine.
    """

    violations: tuple[Violation, ...]
    digest: str
    judged: bool = True

    def of(self, rule: Rule) -> Violation | None:
        return next((v for v in self.violations if v.rule is rule), None)


class Compared(NamedTuple):
    """An output: the reference's, the implementation's, which elements are defined, and which differ."""

    expected: torch.Tensor
    actual: torch.Tensor
    defined: torch.Tensor
    differs: torch.Tensor


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


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
class _Freedoms:
    """What the interpreter does otherwise than a GPU may: `lanes` poisons what is masked off and has no `other`,
    `backwards` runs the programs of the second launch last one first.
    """

    lanes: bool = False
    backwards: bool = False


_INTERPRETED = _Freedoms()


@contextmanager
def watched(which: int, freedoms: _Freedoms = _INTERPRETED) -> Iterator[MemoryLog]:
    if interpreted():
        with memcheck(which, lanes=freedoms.lanes, backwards=freedoms.backwards and which == 1) as log:
            yield log
    else:
        yield MemoryLog()


def run_case(
    op: Op, subject: Subject, case: Case, device: torch.device | str = "cpu", *, related: bool = False
) -> Outcome:
    """Judge `subject` on `case`, under both poisons; with `related` also on the cases that must have results according
    to it, if it is right on this one.

    In the interpreter masked-off lanes are poisoned and programs run in two orders. What breaks a rule is run again
    without, so that a defect of every machine is told from one that needs a machine which does so.
    """
    if subject.far is not None:
        return _judged_far(op, case, subject.far, subject.where)
    expected = op.expected(case)
    defined = op.defined(case, expected)
    try:
        if not interpreted():
            found, results, _lines = _run_twice(op, subject, case, device, expected, defined, _Freedoms())
        else:
            every = _run_twice(op, subject, case, device, expected, defined, _Freedoms(lanes=True, backwards=True))
            found, results, _lines = every
            if found:
                found, results, _lines = _run_twice(op, subject, case, device, expected, defined, _Freedoms())
            if every[0] and not found:
                in_order = _run_twice(op, subject, case, device, expected, defined, _Freedoms(lanes=True))
                reverse = _run_twice(op, subject, case, device, expected, defined, _Freedoms(backwards=True))
                found += [_needs_luck(in_order[2])] if in_order[0] else []
                found += [_needs_an_order()] if reverse[0] or not found else []
    except NotCalledError:
        return Outcome((), "", judged=False)
    if related and not found:
        found += _broken_relation(op, subject, case, device)
    return Outcome(tuple(found), _digest(op, case, results, found))


def _judged_far(op: Op, case: Case, far: Callable[[], None], where: str) -> Outcome:
    if not interpreted():
        return Outcome((), "", judged=False)
    overflow = overflow_of(far)
    found = []
    if overflow:
        text = f"{overflow[0]} at {where.rpartition(':')[0]}:{overflow[1]}"
        found = [Violation(rules.OFFSETS_FIT, text, "offsets that fit their type", text)]
    return Outcome(tuple(found), _digest(op, case, [], found))


def _needs_luck(lines: set[int]) -> Violation:
    numbers = ", ".join(map(str, sorted(lines)))
    title = f"what the masked-off lanes of loads without `other` hold changes the result (lines {numbers})"
    return Violation(rules.IGNORES_UNDEFINED, title, "the same whatever they hold", "another one")


def _needs_an_order() -> Violation:
    title = "the result changes when the programs of a launch run last one first"
    return Violation(rules.IGNORES_ORDER, title, "the same in every order", "another one")


def _run_twice(
    op: Op,
    subject: Subject,
    case: Case,
    device: torch.device | str,
    expected: Tensors,
    defined: Tensors,
    freedoms: _Freedoms,
) -> tuple[list[Violation], list[Tensors], set[int]]:
    """The violations under both poisons, the defined results of each, and the lines of the loads without `other` of
    which lanes were poisoned.
    """
    violations: list[Violation] = []
    defined_results: list[Tensors] = []
    lines: set[int] = set()
    for which in (0, 1):
        found, results, log = _run_once(op, subject, case, which, device, expected, defined, freedoms)
        violations += [v for v in found if all(v.rule is not seen.rule for seen in violations)]
        lines |= log.without_other
        if results is None:
            break
        defined_results.append({name: results[name][defined[name]] for name in results})
    if len(defined_results) == 2:
        violations += _poison_dependence(defined_results)
    return violations, defined_results, lines


def _run_once(
    op: Op,
    subject: Subject,
    case: Case,
    which: int,
    device: torch.device | str,
    expected: Tensors,
    defined: Tensors,
    freedoms: _Freedoms,
) -> tuple[list[Violation], Tensors | None, MemoryLog]:
    """The violations of one run, its outputs on the CPU (None when it raised), and what was seen of its accesses."""
    guarded = guarded_arguments(op, case, which, device, subject.strided)
    with watched(which, freedoms) as log:
        try:
            results = subject.run(case.sizes, views(guarded))
        except NotCalledError:
            raise
        except WrongResultError as error:
            return [Violation(rules.FITS_CONTRACT, str(error), "outputs as the contract says", str(error))], None, log
        except Exception as error:
            raise_if_lost(device, error)
            text = one_line(error)
            return [Violation(rules.DOES_NOT_RAISE, f"raises {text}", "no exception", text)], None, log
    try:
        results = {name: tensor.detach().to("cpu", copy=True) for name, tensor in results.items()}
    except RuntimeError as error:
        raise_if_lost(device, error)
        raise
    found = _out_of_bounds(log, guarded)
    found += _changed_inputs(op, case, guarded)
    for arg in op.outputs:
        difference = _first_difference(op, arg.name, expected[arg.name], results[arg.name], defined[arg.name])
        if difference:
            found.append(difference)
            break
    return found, results, log


def one_line(error: BaseException) -> str:
    """The error that the implementation raised, without the interpreter's wrapping, on one line."""
    while error.__cause__ is not None and type(error).__name__ == "InterpreterError":
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _out_of_bounds(log: MemoryLog, guarded: dict[str, GuardedTensor]) -> list[Violation]:
    if log.strays:
        text = str(log.strays[0])
        return [Violation(rules.STAYS_IN_BOUNDS, text, "accesses inside the given tensors", text)]
    for name, tensor in guarded.items():
        index = tensor.first_stray_write()
        if index is not None:
            text = f"writes element {index} of {name}, which has {tensor.view.numel()}"
            return [Violation(rules.STAYS_IN_BOUNDS, text, "accesses inside the given tensors", text)]
    return []


def _changed_inputs(op: Op, case: Case, guarded: dict[str, GuardedTensor]) -> list[Violation]:
    for arg in op.tensor_args:
        if arg.role is Role.IN:
            before, after = case.tensors[arg.name], guarded[arg.name].view.cpu()
            if before.shape != after.shape:
                shapes = [f"{arg.name} of shape {list(tensor.shape)}" for tensor in (before, after)]
                return [Violation(rules.LEAVES_INPUTS, f"input {arg.name} has another shape afterwards", *shapes)]
            changed = differing(before, after)
            if bool(changed.any()):
                at = tuple(int(i) for i in changed.nonzero()[0])
                return [
                    Violation(
                        rules.LEAVES_INPUTS,
                        f"input {arg.name}{list(at)} is changed",
                        f"{arg.name}{list(at)} = {before[at].item()}",
                        f"{arg.name}{list(at)} = {after[at].item()}",
                    )
                ]
    return []


def _first_difference(
    op: Op, name: str, expected: torch.Tensor, actual: torch.Tensor, defined: torch.Tensor
) -> Violation | None:
    """The first defined element, in memory order, that differs from the reference."""
    differs = _differing(op, name, expected, actual, defined)
    if not differs.any():
        return None
    at = tuple(int(i) for i in differs.nonzero()[0])
    place = f"{name}{list(at)}"
    return Violation(
        rules.EQUALS_REFERENCE,
        f"{place} differs from the reference",
        f"{place} = {expected[at].item()}",
        f"{place} = {actual[at].item()}",
    )


def _differing(op: Op, name: str, expected: torch.Tensor, actual: torch.Tensor, defined: torch.Tensor) -> torch.Tensor:
    tolerance = op.tolerance.get(name, 0.0)
    if tolerance:
        return ~torch.isclose(actual, expected, rtol=0.0, atol=tolerance, equal_nan=True) & defined
    return differing(actual, expected) & defined


def compared(op: Op, subject: Subject, case: Case, device: torch.device | str = "cpu") -> dict[str, Compared]:
    """The outputs of one run by name, beside the reference's: of the first that differs, under the other poison, with
    poisoned lanes or in another order of programs; of the plain one when none does; none when that raised.
    """
    expected = op.expected(case)
    defined = op.defined(case, expected)
    runs = [(0, _INTERPRETED), (1, _INTERPRETED)]
    if interpreted():
        runs += [(which, _Freedoms(lanes=True)) for which in (0, 1)] + [(1, _Freedoms(backwards=True))]
    plain: dict[str, Compared] | None = None
    for which, freedoms in runs:
        _, results, _log = _run_once(op, subject, case, which, device, expected, defined, freedoms)
        found = {
            name: Compared(
                expected[name], actual, defined[name], _differing(op, name, expected[name], actual, defined[name])
            )
            for name, actual in (results or {}).items()
        }
        plain = found if plain is None else plain
        if any(bool(output.differs.any()) for output in found.values()):
            return found
        if not plain:
            break
    return plain or {}


def _poison_dependence(results: list[Tensors]) -> list[Violation]:
    first, second = results
    for name in first:
        changed = differing(first[name], second[name])
        if changed.any():
            index = int(changed.nonzero()[0])
            values = f"{first[name][index].item()} and {second[name][index].item()}"
            title = f"a defined element of {name} changes with the content of undefined memory"
            return [Violation(rules.IGNORES_UNDEFINED, title, "the same under both poisons", values)]
    return []


def _broken_relation(op: Op, subject: Subject, case: Case, device: torch.device | str) -> list[Violation]:
    try:
        with watched(0):
            found = broken_relation(op, subject, case, device)
    except Exception as error:
        raise_if_lost(device, error)
        return [Violation(rules.KEEPS_RELATIONS, f"a related case raises {one_line(error)}", "no exception", "")]
    if found is None:
        return []
    title = f"{found.place} is another with {found.what}"
    return [Violation(rules.KEEPS_RELATIONS, title, found.expected, found.actual)]


def _digest(op: Op, case: Case, results: list[Tensors], violations: list[Violation]) -> str:
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
