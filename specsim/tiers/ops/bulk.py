"""Check one implementation on cases by the thousand: made, run and compared where it runs, one bit back.

A case is a request: an operation's cases (`specsim.contracts.contract.Cases`) give request b of a launch from its
number and the launch's sizes. The requests of a launch are independent, so one launch of 4096 requests is 4096 cases.
What is compared: every defined element of every output with the reference, and every input with what it was.
Outputs hold one of two poisons before the call, by turns.

A launch that is wrong is shrunk, in requests, by `narrowed`; what is left is checked alone like any other case
(`specsim.tiers.ops.run`), with red zones and both poisons, and shrunk: its tape holds the choices of the sizes, then
how many requests, then their numbers (`generator`).

What this does not see: results that are wrong alone and right in company, and stray writes into memory that is nobody's
(only the interpreter's memcheck sees those here).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, RecordingChooser, Tape, replayed, seeded
from specsim.contracts.contract import Case, Op, Role, Sizes, Tensors, WrongResultError, differing
from specsim.contracts.draws import STREAMS
from specsim.contracts.provider import NotCalledError, Subject
from specsim.interpreter.lockstep.errors import UnsupportedError
from specsim.interpreter.memcheck import MemoryLog, memcheck
from specsim.interpreter.red_zones import poison_value
from specsim.interpreter.triton_names import interpreted
from specsim.reference import unchecked
from specsim.tiers.ops.relations import is_of_a_long_batch
from specsim.tiers.ops.rules import EQUALS_REFERENCE
from specsim.tiers.ops.run import CaseViolation, LaunchHere, Outcome, raise_if_lost, run_case
from specsim.tiers.ops.suite import SHRINK_ATTEMPTS_MAX, Counterexample, Failure, shrink, worst

DIGITS, DIGIT_BOUND = 3, 2**21
"""Case numbers are so many digits of a tape, each below the bound."""

REQUESTS_LABEL, NUMBER_LABEL = "requests", "digit of a case number"

SHAPES, DRAWS_PER_SHAPE = 24, 20
"""So many sizes a subject is checked on, by turns: a Triton kernel is compiled for each."""

REQUESTS_MAX = {"cpu": 4096, "interpreter": 16, "cuda": 131_072}
BYTES_MAX = {"cpu": 16 << 20, "interpreter": 64 << 10, "cuda": 2 << 30}
"""What the tensors of a launch may take: a CPU's caches, what the interpreter gets through, part of a GPU's memory."""

REQUESTS_OF_BATCH_MAX = 512
"""Of operations that go over the whole batch, as prefix sums do: implementations are made for an engine's batches."""

PROBED = 64  # requests that are made to see how much memory one takes
NARROWING_MAX = 400  # launches to find the requests that are to blame


class BulkPlace(NamedTuple):
    """Where a subject runs: `device` is "cpu" or "cuda", `kind` a key of REQUESTS_MAX."""

    device: str
    kind: str


def place_of(op: Op, subject: Subject, device: str, seed: int) -> BulkPlace:
    """Where a subject runs. Triton kernels on a CPU are interpreted: whether it launches any is seen on two
    requests.
    """
    if device == "cuda":
        return BulkPlace(device, "cuda")
    for shape, _tape in _shapes(op, subject, seed, shapes_max=1):
        with unchecked(), _watched(0) as log, suppress(Exception):
            case = op.cases.make(torch.arange(2), shape)
            subject.run(case.sizes, _copies(case) | _arguments(op, case, 0, torch.device("cpu")))
        return BulkPlace(device, "interpreter" if log.launches else "cpu")
    return BulkPlace(device, "cpu")


@dataclass(frozen=True, slots=True)
class BulkLaunch:
    """`count` cases of one launch: numbers `first`, `first` + 1, ... `tape` are the choices of `shape`."""

    shape: dict[str, int]
    tape: Tape
    first: int
    count: int

    def numbers(self, device: str) -> Tensor:
        return torch.arange(self.first, self.first + self.count, dtype=torch.int64, device=device)

    @property
    def halves(self) -> tuple[BulkLaunch, BulkLaunch]:
        """The same cases in two launches, of one that the device has no memory for."""
        half = self.count // 2
        return replace(self, count=half), replace(self, first=self.first + half, count=self.count - half)

    @property
    def poison(self) -> int:
        """Which of the two poisons undefined memory holds: by turns."""
        return self.first // self.count & 1


def packing(op: Op, subject: Subject, shape: Sizes, place: BulkPlace) -> int:
    """How many requests a launch takes: a power of two, bounded by memory, by the place's own limit, by
    REQUESTS_OF_BATCH_MAX, and by the sizes that the subject accepts, as far as those grow with the requests.
    """
    with unchecked():
        one, many = (op.cases.make(torch.arange(count), shape) for count in (1, PROBED))
    outputs = op.allocate_outputs(many)
    taken = sum(tensor.numel() * tensor.itemsize for tensor in [*many.tensors.values(), *outputs.values()])
    fits = max(1, BYTES_MAX[place.kind] * PROBED // max(1, taken))
    most = REQUESTS_MAX[place.kind] if is_of_a_long_batch(op) else min(REQUESTS_OF_BATCH_MAX, REQUESTS_MAX[place.kind])
    count = min(most, 1 << (fits.bit_length() - 1))
    while count > 1:
        growth = {name: (size - one.sizes[name]) / (PROBED - 1) for name, size in many.sizes.items()}
        sizes = {name: one.sizes[name] + round(each * (count - 1)) for name, each in growth.items()}
        if subject.accepts(sizes):
            break
        count //= 2
    return count


def launches(op: Op, subject: Subject, place: BulkPlace, seed: int, cases: int) -> Iterator[BulkLaunch]:
    """Launches with `cases` cases together, of up to SHAPES sizes by turns; none when the subject accepts no size.
    What one launch would take is spread over all sizes.
    """
    fresh = _shapes(op, subject, seed, SHAPES)
    chosen: list[tuple[dict[str, int], Tape, int]] = []
    first = (seed % 2**20) << 42  # a seed's own numbers
    turn, spread, total = 0, max(1, -(-cases // SHAPES)), cases
    while cases > 0:
        drawn = next(fresh, None)
        if drawn is not None:
            chosen.append((*drawn, packing(op, subject, drawn[0], place)))
        if not chosen:
            return
        shape, tape, packed = chosen[turn % len(chosen)]
        count = min(packed, cases, spread if total <= packed else cases)
        yield BulkLaunch(shape, tape, first, count)
        first, cases, turn = first + count, cases - count, turn + 1


def _shapes(op: Op, subject: Subject, seed: int, shapes_max: int) -> Iterator[tuple[dict[str, int], Tape]]:
    seen: list[dict[str, int]] = []
    for index in range(DRAWS_PER_SHAPE * shapes_max):
        chooser = seeded(seed, "bulk", op.name, index)
        shape = op.cases.draw_shape(chooser)
        if shape in seen:
            continue
        with unchecked():
            one = op.cases.make(torch.arange(1), shape)
        if subject.accepts(one.sizes):
            seen.append(shape)
            yield shape, chooser.tape
        if len(seen) == shapes_max:
            return


def is_wrong(
    op: Op, subject: Subject, case: Case, which: int = 0, on_part: Callable[[str], None] = lambda _part: None
) -> Tensor:
    """Whether `subject` breaks a rule on `case`, as a boolean without dimensions on the case's device, which is not
    waited for; `which` is the poison that undefined memory holds. An exception breaks one too; NotCalledError,
    UnsupportedError and torch.OutOfMemoryError pass through, and DeviceLostError says that the device takes no more
    work. `on_part` is told what was just done: "expected", "run", "compared".
    """
    device = next(iter(case.tensors.values())).device
    with unchecked():
        expected = op.expected(case)
        arguments, given = _arguments(op, case, which, device), _copies(case)
        on_part("expected")
        with _watched(which) as log:
            try:
                results = subject.run(case.sizes, arguments | given)
            except (NotCalledError, UnsupportedError, torch.OutOfMemoryError):
                raise
            except WrongResultError:
                return torch.ones((), dtype=torch.bool, device=device)
            except Exception as error:
                raise_if_lost(device, error)
                return torch.ones((), dtype=torch.bool, device=device)
    on_part("run")
    wrong = torch.full((), bool(log.strays), dtype=torch.bool, device=device)
    for each in op.wrong(case, expected, results).values():
        wrong |= each.any()
    for arg in op.tensor_args:
        if arg.role is Role.IN:
            wrong |= _changed(given[arg.name], case.tensors[arg.name]).any()
    on_part("compared")
    return wrong


def _watched(which: int) -> AbstractContextManager[MemoryLog]:
    return memcheck(which, follows=False) if interpreted() else nullcontext(MemoryLog())


def _changed(after: Tensor, before: Tensor) -> Tensor:
    """Where a tensor is not what it was; a NaN is a NaN."""
    return differing(after, before) if before.is_floating_point() else after != before


def _copies(case: Case) -> Tensors:
    return {name: tensor.clone() for name, tensor in case.tensors.items()}


def _arguments(op: Op, case: Case, which: int, device: torch.device) -> Tensors:
    """OUT tensors, with their prefill or poison."""
    return {
        arg.name: torch.full(
            arg.resolve_shape(case.sizes),
            poison_value(arg.dtype, which) if arg.prefill is None else arg.prefill,
            dtype=arg.dtype,
            device=device,
        )
        for arg in op.tensor_args
        if arg.role is Role.OUT
    }


def make_and_check(op: Op, subject: Subject, launch: BulkLaunch, place: BulkPlace) -> Tensor:
    """Make the cases of a launch, run them and compare: `is_wrong` of all of them together."""
    with unchecked():
        case = op.cases.make(launch.numbers(place.device), launch.shape)
    return is_wrong(op, subject, case, launch.poison)


def is_wrong_now(op: Op, subject: Subject, shape: Sizes, numbers: Tensor, which: int) -> bool:
    """Make the cases of these numbers, run them and compare: `is_wrong` of all of them, waited for."""
    with unchecked():
        case = op.cases.make(numbers, shape)
    try:
        return bool(is_wrong(op, subject, case, which))
    except RuntimeError as error:
        raise_if_lost(numbers.device, error)
        raise


def narrowed(
    op: Op, subject: Subject, launch: BulkLaunch, place: BulkPlace, on_attempt: Callable[[], None]
) -> list[int]:
    """The numbers of a wrong launch that are wrong together and of which none, up to a number of attempts, can be left
    out: one, unless it takes several. Empty when the launch is right this time.
    """

    def fails(numbers: Sequence[int]) -> bool:
        on_attempt()
        tensor = torch.tensor(numbers, dtype=torch.int64, device=place.device)
        return any(is_wrong_now(op, subject, launch.shape, tensor, which) for which in (0, 1))

    numbers = list(range(launch.first, launch.first + launch.count))
    if not fails(numbers):
        return []
    size, attempts = len(numbers), 0
    while size > 1 and len(numbers) > 1:
        size = -(-size // 2)
        start = 0
        while start < len(numbers) and attempts < NARROWING_MAX:
            rest = numbers[:start] + numbers[start + size :]
            attempts += 1
            if rest and fails(rest):
                numbers = rest
            else:
                start += size
    return numbers


def with_bulk_cases(op: Op) -> Op:
    """The same operation with its bulk cases as its single ones: choices of the sizes, then how many requests, the
    number of each in three digits, and what overrides the draws of these numbers.
    """

    def draw_numbers(chooser: Chooser, _requests_max: int) -> list[int]:
        numbers = []
        for _ in range(1 + chooser.choose(REQUESTS_MAX["cuda"], REQUESTS_LABEL)):
            number = 0
            for _digit in range(DIGITS):
                number = number * DIGIT_BOUND + chooser.choose(DIGIT_BOUND, NUMBER_LABEL)
            numbers.append(number)
        return numbers

    return replace(op, cases=replace(op.cases, draw_single=lambda _chooser: {}, draw_numbers=draw_numbers))


def tape_of(op: Op, launch: BulkLaunch, numbers: Sequence[int]) -> Tape:
    """The choices by which `with_bulk_cases` makes these requests of a launch: nothing is overridden."""
    sizes = iter(launch.tape)
    digits = [number // DIGIT_BOUND**place % DIGIT_BOUND for number in numbers for place in range(DIGITS)[::-1]]
    requests: deque[int] = deque([len(numbers) - 1, *digits])

    def source(bound: int, label: str) -> int:
        if label in (REQUESTS_LABEL, NUMBER_LABEL):
            return requests.popleft()
        return next(sizes, 0) if requests else bound - STREAMS

    chooser = RecordingChooser(source)
    with_bulk_cases(op).generate(chooser)
    return chooser.tape


@dataclass(slots=True)
class BulkResult:
    """What checking a subject in bulk gave. `packed` is the most requests that a launch had."""

    cases: int = 0
    launches: int = 0
    packed: int = 0
    counterexample: Counterexample | None = None
    cut_short: bool = False


def check_in_bulk(
    op: Op,
    subject: Subject,
    *,
    seed: int,
    cases: int,
    device: str,
    deadline: float,
    on_launch: Callable[[int, BulkLaunch], None],
    on_attempt: Callable[[], None],
    attempts: int = SHRINK_ATTEMPTS_MAX,
) -> BulkResult:
    """Run `cases` cases in launches that the subject accepts, until `deadline` (of time.monotonic) or one is wrong;
    that one is narrowed down and shrunk. `on_launch(cases so far, launch)` is called before each launch, `on_attempt()`
    before each run that looks for less. What a device has no memory for is launched in halves. Raises
    torch.OutOfMemoryError where it has none for one case.
    """
    result = BulkResult()
    place = place_of(op, subject, device, seed)
    parts: list[BulkLaunch] = []
    whole = launches(op, subject, place, seed, cases)
    while launch := parts.pop() if parts else next(whole, None):
        if result.launches and time.monotonic() > deadline:
            result.cut_short = True
            break
        on_launch(result.cases, launch)
        try:
            wrong = is_wrong_now(op, subject, launch.shape, launch.numbers(device), launch.poison)
        except NotCalledError:
            continue
        except torch.OutOfMemoryError:
            if launch.count == 1:
                raise
            parts += launch.halves[::-1]
            continue
        result.cases += launch.count
        result.launches += 1
        result.packed = max(result.packed, launch.count)
        if wrong:
            numbers = narrowed(op, subject, launch, place, on_attempt)
            result.counterexample = _counterexample(op, subject, launch, numbers, device, on_attempt, attempts)
            break
    return result


def _counterexample(
    op: Op,
    subject: Subject,
    launch: BulkLaunch,
    numbers: list[int],
    device: str,
    on_attempt: Callable[[], None],
    attempts: int,
) -> Counterexample:
    blamed = numbers or [launch.first]
    bulk_op = with_bulk_cases(op)
    tape = tape_of(op, launch, blamed)
    case = bulk_op.generate(replayed(tape))
    reach = subject.reach(case.sizes)
    on_attempt()
    outcome = run_case(op, subject, case, device)
    sizes = ", ".join(f"{name}={size}" for name, size in launch.shape.items())
    said = f"first seen in a launch of {launch.count} requests: {_listed(blamed)} of the bulk cases with {sizes}"
    if numbers and outcome.violations:
        chosen = Failure(0, tape, worst(outcome), reach, outcome)
        found = shrink(bulk_op, subject, chosen, lambda _index: on_attempt(), attempts, 1, launcher=LaunchHere(device))
        return replace(found, explanation="; ".join(filter(None, [found.explanation, said])))
    company = f"in a launch of {len(numbers)} requests and not in guarded memory" if numbers else "once, and not again"
    title = f"results of {launch.count} requests differ from the reference {company}"
    violation = CaseViolation(EQUALS_REFERENCE, title, "the same results each time", title)
    shown = Outcome((violation,), outcome.digest)
    return Counterexample(case, tape, shown, EQUALS_REFERENCE, reach, 1, said)


def _listed(numbers: Sequence[int]) -> str:
    some = ", ".join(map(str, numbers[:4]))
    return f"number {some}" if len(numbers) == 1 else f"{len(numbers)} numbers, {some}{' ...' * (len(numbers) > 4)}"
