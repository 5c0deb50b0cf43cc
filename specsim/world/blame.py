"""What the virtual device found, as a record: who made an access, in words that are the same on every release.

An access of the model is one of ours, and its line is none of the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specsim.vdevice.findings import Access, Finding, Place
from specsim.world.scheduler import MODEL, RESULT, Fault, Race

_FAULTS = frozenset(("out-of-bounds", "device-assert"))
TEMPORARY = " of "
"""In the name of memory that nobody named: the operation that made it, and the function."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Whose an access is.

    `models`  files of ours in which a model reads and writes, and `result` its function that makes what it returns
    `made_by` the function that makes tensors which nobody has written, for the model to write
    `parties` by what FILE:FUNCTION has in it, parts of the target that are one party each
    `below`   FILE:LINE of a file and a line, the file below the target's package
    """

    models: frozenset[str]
    result: str
    made_by: str
    parties: Mapping[str, str]
    below: Callable[[str, int | str], str]

    def record(self, finding: Finding) -> Race | Fault:
        accesses = finding.first, finding.second
        blamed = next((access for access in reversed(accesses) if not self._is_of_model(access)), accesses[1])
        parts = [finding.kind, finding.memory, *sorted({self._party(access) for access in accesses})]
        if finding.kind == "use-after-free":  # who has the memory next is chance, as is what it was
            parts = [finding.kind, self._party(finding.first)]
        elif finding.kind == "race" and TEMPORARY in finding.memory and not finding.memory.endswith(self.made_by):
            parts = parts[:2]  # a tensor that one function makes: it is handed over, or is not
        which = f" ({finding.detail})" if finding.detail else ""
        is_fault = finding.kind in _FAULTS
        return (Fault if is_fault else Race)(
            what=":".join(parts).replace(" ", "-"),
            accesses=f"{' and '.join(map(self._text, accesses))}{which}",
            details=tuple(
                f"{self._text(access)} from {', '.join(map(self._shortened, self._callers(access)))}"
                for access in accesses
            ),
            where=self.below(blamed.file, blamed.line),
            wait="" if is_fault else " for ".join(access.stream for access in reversed(accesses)),
        )

    def where(self, place: Place) -> str:
        """Where the target does something, for a reader."""
        if place.file in self.models:
            return RESULT if place.function == self.result else MODEL
        return f"{place.function} at {self.below(place.file, place.line)}" if place.line else ""

    def _callers(self, access: Access) -> list[str]:
        """The frames that called it, but for ours."""
        return [
            caller for caller in access.callers if caller.partition(" at ")[2].rpartition(":")[0] not in self.models
        ]

    def _is_of_model(self, access: Access) -> bool:
        """Whether it is one of a model, in whichever phase."""
        return access.file in self.models

    def _party(self, access: Access) -> str:
        """Who makes an access, without lines: the model, or a function of the target and the one that calls it."""
        if self._is_of_model(access):
            return "the-model"
        where = f"{access.file}:{access.function}"
        party = next((party for part, party in self.parties.items() if part in where), "")
        if party:
            return party
        callers = self._callers(access)
        caller = callers[0].partition(" at ")[0] if callers else ""
        return f"{access.function}<{caller}" if caller else access.function

    def _text(self, access: Access) -> str:
        if self._is_of_model(access):
            return f"the model's {access.what} on {access.stream}"
        return f"{access.what} on {access.stream} in {access.function} ({self.below(access.file, access.line)})"

    def _shortened(self, caller: str) -> str:
        """FUNCTION at FILE:LINE, the file below the package."""
        function, _, place = caller.partition(" at ")
        return f"{function} ({self.below(*place.rsplit(':', 1))})"
