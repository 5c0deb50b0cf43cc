"""The lockstep interpreter (`specsim.interpreter.lockstep`) beside Triton's own, a kernel and a size at a time.

What is timed is a call of the function that launches, on one core: in lockstep once as it is, and once with every
access checked for bounds, races and undefined lanes; in Triton's interpreter, which checks none of these, as it is.
Neither side runs anything twice, nor looks for int32 overflows. A kernel is
called on the cases that `specsim check` draws first, and on one of REQUESTS requests, or as many as its contract
allows; with `full`, those of WIDE on a row of so many tokens, too, which takes Triton's interpreter minutes. What is
done once for a kernel, compiling its syntax tree, has a time of its own. A kernel that lockstep leaves to Triton counts
as equally fast.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from specsim.bench.rows import BenchRow
from specsim.choices.chooser import seeded
from specsim.contracts.provider import NotCalledError, Subject
from specsim.contracts.registry import OPS
from specsim.errors import described
from specsim.reference import unchecked

if TYPE_CHECKING:
    from specsim.contracts.contract import Case, Op, Tensors
    from specsim.interpreter.lockstep.launch import Launches

NAME = "interpreter"
UNIT = "ms"
PLAIN, CHECKED = "plain", "checked"
DRAWN = 2
"""Cases of a kernel as `specsim check` draws them."""
REQUESTS = 64
WIDE = {"top_p_renorm_probs": 32_000}
"""Tokens of a row, all of which are possible."""
ROUNDS = 5
SECONDS_MAX = 1.0
"""A kernel gets fewer rounds when those of one case would take longer, but for the first."""
ELEMENTS_MAX = 1 << 22
"""Elements of the tensors of a large case."""


def rows(_device: str, rounds: int | None, full: bool = False, targets: Sequence[str] | None = None) -> list[BenchRow]:
    """Time specsim's kernels, and the Triton kernels of `targets`: a row a kernel, with an entry for each number of
    programs and way; the ratio is how many times faster lockstep is.
    """
    from specsim.kernels import provider as kernels

    def row(provider: str, subject: Subject) -> BenchRow:
        shape = {"provider": provider, "kernel": subject.op}
        return BenchRow(NAME, shape, lambda: entries_of(provider, subject, rounds or ROUNDS, full=full))

    providers = {"specsim": kernels()} | {text: _provider(text) for text in targets or ()}
    return [
        row(name, subject)
        for name, provider in providers.items()
        for subject in provider.subjects()[0]
        if subject.role == "kernel" and subject.far is None
    ]


def _provider(text: str) -> Any:
    from specsim.engines.load import load_provider
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache

    return load_provider(parse_target(text), open_cache())


def entries_of(provider: str, subject: Subject, rounds: int, *, full: bool = False) -> list[dict[str, Any]]:
    """Both ways of a subject on each of its cases; none of a subject that launches no Triton kernel."""
    op = OPS[subject.op]
    entries: list[dict[str, Any]] = []
    compiling = None
    for number, (kind, case) in enumerate(cases_of(op, subject, full=full)):
        call = _Call(op, subject, case)
        try:
            first, launches = call.seconds(_in_lockstep)
            again, _ = call.seconds(_in_lockstep)
        except NotCalledError:
            continue
        assert launches is not None
        if not launches.count and not launches.fallen_back:
            continue
        compiling = max(0.0, first - again) if compiling is None else compiling
        lacks = "; ".join(f"{kernel}: {', '.join(names)}" for kernel, names in sorted(launches.fallen_back.items()))
        for way, together in ((PLAIN, _in_lockstep), (CHECKED, _checked_in_lockstep)):
            shape = {"provider": provider, "kernel": subject.op, "case": f"{kind} {number}", "way": way}
            entry = {"name": NAME, "unit": UNIT, "shape": shape, "programs": launches.programs, "lacks": lacks}
            entry |= {"compiling_ms": compiling * 1e3, "ratio": "times faster"}
            entries.append(entry | {"peers": _compared(call, together, rounds, bool(lacks))})
    return entries


def _compared(call: _Call, together: _Way, rounds: int, is_equal: bool) -> list[dict[str, Any]]:
    """Both interpreters by turns, so that what else the machine does slows both."""
    times: list[tuple[float, float]] = []
    try:
        call.seconds(together)
        while len(times) < rounds and (not times or sum(map(sum, times)) < SECONDS_MAX):
            times.append((call.seconds(_mended)[0], call.seconds(together)[0]))
    except Exception as error:
        return [_peer(name, None, None, described(error)) for name in ("Triton's", "lockstep")]
    theirs, ours = (statistics.median(column) for column in zip(*times, strict=True))
    return [
        _peer("Triton's", theirs * 1e3, 1.0),
        _peer("lockstep", ours * 1e3, 1.0 if is_equal else theirs / ours),
    ]


def _peer(name: str, median: float | None, ratio: float | None, not_run: str | None = None) -> dict[str, Any]:
    return {"name": name, "timing": "cpu", "median": median, "ratio": ratio, "not_run": not_run}


def cases_of(op: Op, subject: Subject, *, full: bool = False) -> Iterator[tuple[str, Case]]:
    """DRAWN cases as they are drawn, and a large one of sizes of one of these; with `full` a wide one, too."""
    found, large = 0, None
    for index in range(20 * DRAWN):
        case = op.generate(seeded(0, "bench", NAME, op.name, index))
        if subject.accepts(case.sizes) and found < DRAWN:
            found += 1
            yield "drawn", case
        if large is None:
            large = _large(op, subject, index)
        if found == DRAWN and large is not None:
            break
    if large is not None:
        yield "large", large
    if full and op.name in WIDE:
        width = WIDE[op.name]
        shape = {"topk": 1, "num_steps": 1, "num_draft_tokens": 1, "vocab_size": width}
        case = op.cases.make(torch.arange(1), shape)
        if subject.accepts(case.sizes):
            # Rows as they are drawn have a few tokens of any probability.
            probs = torch.softmax(torch.arange(width)[None] * 7919 % width * (8 / width), dim=1)
            yield "wide", replace(case, tensors={"probs": probs, "top_p": torch.tensor([0.9])})


def _large(op: Op, subject: Subject, index: int) -> Case | None:
    shape = op.cases.draw_shape(seeded(0, "bench", NAME, "large", op.name, index))
    with unchecked():
        one = op.cases.make(torch.arange(1), shape)
        elements = sum(tensor.numel() for tensor in one.tensors.values())
        count = min(REQUESTS, max(1, ELEMENTS_MAX // max(1, elements)))
        case = op.cases.make(torch.arange(count), shape)
    return case if subject.accepts(case.sizes) else None


_Way = Callable[[], AbstractContextManager["Launches | None"]]


class _Call:
    """A subject on a case, whose tensors are new in each call."""

    def __init__(self, op: Op, subject: Subject, case: Case) -> None:
        self.op, self.subject, self.case = op, subject, case

    def tensors(self) -> Tensors:
        return {name: tensor.clone() for name, tensor in self.case.tensors.items()} | self.op.allocate_outputs(
            self.case
        )

    def seconds(self, way: _Way) -> tuple[float, Launches | None]:
        """Of the core's time, and what lockstep ran."""
        tensors = self.tensors()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with way() as launches:
                start = time.process_time()
                self.subject.run(self.case.sizes, tensors)
                return time.process_time() - start, launches


def _mended() -> AbstractContextManager[None]:
    from specsim.interpreter.triton_names import mend_interpreter

    mend_interpreter()
    return nullcontext()


def _in_lockstep() -> AbstractContextManager[Launches]:
    from specsim.interpreter.lockstep.launch import lockstep

    return lockstep()


def _checked_in_lockstep() -> AbstractContextManager[Launches]:
    from specsim.interpreter.lockstep.launch import lockstep
    from specsim.interpreter.lockstep.memory import Checks
    from specsim.interpreter.lockstep.watch import Watch

    return lockstep(Checks(), Watch())
