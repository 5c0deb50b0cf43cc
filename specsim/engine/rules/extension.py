"""What a user adds to the simulation: an accounting, rules, a chooser. TARGET `module:object` names an `Extension`.

An extension is checked like everything else: what it raises is a finding against it, with the seed and a replay file,
and not the end of the run.

    def rows_are_few(call, memory, requests):
        return "" if len(requests) < 4 else f"{len(requests)} requests after {call}"

    extension = Extension(rules={"rows are few": rows_are_few})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specsim.choices.chooser import RecordingChooser, Tape
from specsim.engine.accounting import Accounting, HostFunctionError, Memory, ModelAccounting, Observed, OwnFunctions
from specsim.engine.config import EngineConfig
from specsim.engine.features import FEATURES
from specsim.engine.memory.allocator import OutOfSlotsError
from specsim.engine.memory.rows import RowsExhaustedError
from specsim.engine.rules.failures import EXTENSION_EXCEPTION, EXTENSION_RULE, HOST_EXCEPTION
from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import AccountingCalled
from specsim.errors import cut, described
from specsim.verdict import Rule

# `rule(call, memory, requests)` after every call of the accounting that changes something: "" when it holds, else what
# is wrong. `requests` are the observables by request id.
UserRule = Callable[[str, Memory, dict[str, Observed]], str]
# `propose(bound, label, value)` returns a choice in `[0, bound)` instead of `value`.
UserChooser = Callable[[int, str, int], int]

_PART_OF_CALL = {
    "extend_alloc": "extend",
    "prepare": "prepare",
    "resolve": "resolve",
    "append": "resolve",
    "check_finish": "finish check",
    "release": "release",
    "retract": "retract",
    "abort": "abort",
    "session_match": "session match",
    "session_close": "session close",
    "match_prefix": "prefix match",
    "cache_unfinished": "tree insert",
    "drop": "drop",
    "retract_all": "retract",
}


@dataclass(frozen=True, slots=True)
class Extension:
    """What is simulated instead of, or beside, what specsim has. A chooser sees the value that the seed or the tape
    gives; the tape keeps that value, so a replay calls the chooser again. `features` are those of
    `specsim.engine.features` that the accounting can run; schedules have none of the others.
    """

    accounting: Callable[[Memory], Accounting] = ModelAccounting
    rules: Mapping[str, UserRule] = field(default_factory=dict)
    chooser: UserChooser | None = None
    features: frozenset[str] = FEATURES


class ExtensionTarget:
    """An extension as a target of the accounting tier."""

    def __init__(self, name: str, extension: Extension) -> None:
        self.name = name
        self.features = extension.features
        self._extension = extension

    def make(self, memory: Memory) -> Any:
        """A fresh accounting over the memory of one run, and the rules that watch it."""
        try:
            accounting = self._extension.accounting(memory)
        except Exception as error:
            raise _raised(HOST_EXCEPTION, "accounting", error) from error
        return _Watched(accounting, memory, self._extension.rules)

    def reach(self, config: EngineConfig, part: str) -> str:
        return "unknown"

    def extended(self, chooser: RecordingChooser) -> RecordingChooser:
        """The choices that the extension's chooser makes of those of `chooser`."""
        propose = self._extension.chooser
        return chooser if propose is None else _ExtendedChooser(chooser, propose)


class _ExtendedChooser(RecordingChooser):
    """The choices of `inner` as `propose` changes them; the tape is that of `inner`."""

    __slots__ = ("_inner", "_propose")

    def __init__(self, inner: RecordingChooser, propose: UserChooser) -> None:
        super().__init__(inner.choose)
        self._inner = inner
        self._propose = propose

    def choose(self, bound: int, label: str) -> int:
        value = self._inner.choose(bound, label)
        try:
            proposed = self._propose(bound, label, value)
        except Exception as error:
            raise _raised(EXTENSION_EXCEPTION, "chooser", error) from error
        if not isinstance(proposed, int) or not 0 <= proposed < bound:
            text = f"{proposed!r} for {label!r}, which must be an integer from 0 to {bound - 1}"
            raise HostFunctionError("chooser", text, EXTENSION_EXCEPTION)
        return proposed

    @property
    def tape(self) -> Tape:
        return self._inner.tape


class ExtensionCheck(Check):
    """A rule of a user, by the name that it has in `Extension.rules`."""

    rule = EXTENSION_RULE
    after = (AccountingCalled,)

    def __init__(self, name: str, says: UserRule) -> None:
        self._part = f"rule {name}"
        self._says = says

    def check(self, view: AccountingCalled) -> Broken | None:
        """HostFunctionError when the rule raises."""
        try:
            problem = self._says(view.part, view.memory, view.requests)
        except Exception as error:
            raise _raised(EXTENSION_EXCEPTION, self._part, error) from error
        return self.broken(self._part, "", "nothing to say", cut(str(problem))) if problem else None


class _Watched:
    """An accounting whose exceptions are findings, and after whose calls the user's rules are evaluated."""

    def __init__(self, accounting: Accounting, memory: Memory, rules: Mapping[str, UserRule]) -> None:
        self._accounting = accounting
        self._memory = memory
        self._checks = [ExtensionCheck(name, rule) for name, rule in rules.items()]
        self._requests: list[Any] = []
        self.own = getattr(accounting, "own", OwnFunctions())  # a user's accounting need not have any

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._accounting, name)
        part = _PART_OF_CALL.get(name)

        def watched(*arguments: Any) -> Any:
            if name == "arrive":
                self._requests.append(arguments[0])
            try:
                answer = call(*arguments)
            except (HostFunctionError, OutOfSlotsError, RowsExhaustedError):
                raise  # the engine knows what these mean
            except Exception as error:
                raise _raised(HOST_EXCEPTION, part or name, error) from error
            if part is not None:
                self._evaluate(part)
            return answer

        return watched

    def _evaluate(self, part: str) -> None:
        if not self._checks:
            return
        requests = {request.rid: self._accounting.observe(request) for request in self._requests}
        view = AccountingCalled(part, self._memory, requests)
        for check in self._checks:
            broken = check.check(view)
            if broken is not None:
                raise HostFunctionError(broken.part, str(broken.actual), broken.rule, str(broken.expected))


def _raised(rule: Rule, part: str, error: Exception) -> HostFunctionError:
    return HostFunctionError(part, described(error).partition("\n")[0].removesuffix(": "), rule)
