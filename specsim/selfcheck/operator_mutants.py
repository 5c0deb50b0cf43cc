"""The mutants of operations: mistakes that shipped code has made, put into specsim's own kernels and reference.

`operator_mutants.toml` lists them; each is one line of one function. Of a mutant the kernel
is compared with the reference, one of which it changes. What no value shows, a race or an overflow of an offset, is the
sanitizer's to find.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from specsim.errors import UsageError, no_such
from specsim.selfcheck.catalogue import load

Side = Literal["kernel", "reference"]
FoundBy = Literal["cases", "race-within", "masked-lanes", "int32-overflow"]


class OperatorMutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a kernel or of the reference.

    `mistake`  key of MISTAKES
    `side`     whose line it is
    `op`       the operation that is checked
    `function` where the line is, by the function's name
    `line`     the line without its indentation, once in that function; it becomes `becomes`
    `by`       "cases" when a wrong value shows it, else the kind of flaw that the sanitizer has to report
    """

    mistake: int
    side: Side
    op: str
    module: str
    function: str
    line: str
    becomes: str
    by: FoundBy = "cases"

    @property
    def id(self) -> str:
        return f"{self.mistake:02d}-{self.side}"


class NotExpressed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A side on which a mistake cannot be made."""

    mistake: int
    side: Side
    why: str


def changed_source(mutant: OperatorMutant, source: str) -> str:
    """`source` with the mutant's line replaced. UsageError when the function has it not exactly once."""
    lines = source.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(f"def {mutant.function}(")]
    if len(starts) == 1:
        start = starts[0]
        end = next(
            (i for i in range(start + 1, len(lines)) if lines[i].startswith(("def ", "@", "class "))), len(lines)
        )
        at = [i for i in range(start, end) if lines[i].strip() == mutant.line]
        if len(at) == 1:
            lines[at[0]] = lines[at[0]].replace(mutant.line, mutant.becomes)
            return "".join(lines)
        found = f"{mutant.line!r} is in {mutant.function} of {mutant.module} {len(at)} times"
    else:
        found = f"{mutant.module} has {len(starts)} functions {mutant.function}"
    raise UsageError(
        f"mutant {mutant.id} does not apply: {found}",
        "give the line in specsim/selfcheck/operator_mutants.toml as it is now",
    )


def find(mutant_id: str) -> OperatorMutant:
    """The mutant of that id."""
    for mutant in MUTANTS:
        if mutant.id == mutant_id:
            return mutant
    raise no_such("mutant of operations", mutant_id, (mutant.id for mutant in MUTANTS))


class _Mutants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of operator_mutants.toml."""

    mistakes: dict[int, str]
    not_expressed: tuple[NotExpressed, ...]
    mutants: tuple[OperatorMutant, ...]


_TABLE = load("operator_mutants.toml", _Mutants)
MISTAKES = _TABLE.mistakes
NOT_EXPRESSED = _TABLE.not_expressed
MUTANTS = _TABLE.mutants
