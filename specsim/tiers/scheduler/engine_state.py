"""A state of the reference engine between two iterations: copied for an explorer, and as a value that distinguishes it.

What the engine has is plain data: numbers, tensors, containers, and objects with attributes. So it is copied and valued
without a list of its parts, and one that it gets later counts without a change here. What the value leaves out is named
below: what never changes, and what nothing that happens later depends on. Slots that nobody owns and rows that nobody
has count too: a defect may read them.
"""

from __future__ import annotations

import hashlib
import marshal
from copy import copy
from enum import Enum
from functools import cache
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from specsim.choices.chooser import replayed
from specsim.engines.reference import HashModel, ReferenceScheduler
from specsim.reference.engine import Config, Device, Engine, Node, PrefixCache, Request
from specsim.reference.tree import QLEN_ONLY, build_tree
from specsim.rules.answers import ANOTHER, VisibleOutputs
from specsim.rules.slots import FreeSlot
from specsim.rules.table import CHECKS
from specsim.tiers.scheduler.small_scopes import expected_of
from specsim.world.case import ScheduleCase
from specsim.world.chosen_users import ChosenUsers
from specsim.world.hash_model import FIRST_TOKEN, Prefixes
from specsim.world.rule import Rules, Run, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specsim.choices.chooser import Chooser
    from specsim.tiers.scheduler.small_scopes import Scope

ATOMS = (int, str, bool, float, type(None), bytes, Enum, FunctionType, BuiltinFunctionType, HashModel, Violation)
CONSTANT = frozenset({"config", "model", "params", "detokenize", "page_size", "setup", "facts", "seen"})
"""Attributes that never change, or, of what was seen, that nothing in the scheduler depends on."""
HISTORY = frozenset(
    {
        (Engine, "steps"),
        (PrefixCache, "clock"),
        (Prefixes, "_hashes"),
        (Prefixes, "prompt"),
        (ReferenceScheduler, "_expected"),
    }
)
"""What nothing depends on, or what follows from the rest. Of when a node of the prefix cache was used last only the
order counts, and of when a grammar is ready how long that takes.
"""


class EngineState:
    """An engine with its users that an explorer forks and steps (`specsim.choices.exhaustive.System`). In every state
    the rules are checked that are of a running scheduler, and some that it can only break by a token or a page; at the
    end all of them. A state in which one is broken is over.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.iteration = 0
        self.ranks: list[int] = []
        """How right each draft was, step by step: for whoever runs the schedule again."""
        self.violations: list[Violation] = []
        self.scheduler = ReferenceScheduler(scope.setup)
        self.rules = Rules(CHECKS, scope.setup, self.scheduler.facts)
        self.users = ChosenUsers(self.scheduler, scope.turns, scope.bounds, scope.setup, self.rules.at)

    @property
    def is_over(self) -> bool:
        return bool(self.violations) or self.users.is_over

    def step(self, chooser: Chooser) -> None:
        users, scheduler = self.users, self.scheduler
        users.chooser = chooser
        run = Run(scheduler, users)
        try:
            messages = users.at(self.iteration)
            scheduler.step(messages or (), self._ranks(chooser), self.iteration)
            self.violations += self._broken_now()
        except Exception as error:
            run.error = error
        users.chooser = replayed(())
        self.iteration += 1
        if run.error is not None or users.is_over:
            self.violations += self.rules.broken(run)
        else:
            self.violations += self.rules.broken_so_far(run)

    def _ranks(self, chooser: Chooser) -> Any:
        """One choice for each request of a step: where in its tree the accepted path ends."""
        outcomes = draft_outcomes(self.scheduler.engine.config)
        chosen: dict[str, tuple[int, ...]] = {}

        def rank(request: Request, step: int) -> int:
            if step == 0:
                chosen[request.rid] = outcomes[chooser.choose(len(outcomes), "accept")]
            self.ranks.append(chosen[request.rid][step])
            return chosen[request.rid][step]

        return rank

    def _broken_now(self) -> Iterator[Violation]:
        """Pages that have two owners or none, and answers that are no more the beginning of what they must be."""
        try:
            self.scheduler.engine.owners()
        except AssertionError as error:
            actual = str(error).partition("\n")[0]
            yield Violation(
                rule=FreeSlot.rule.id, part="pages", who="", expected="each page has one owner", actual=actual
            )
        expected_of_all = {turn.rid: expected_of(turn) for turn in self.scope.turns if not turn.session}
        for answer in self.scheduler.answers():
            expected = expected_of_all.get(answer.rid, answer.tokens)
            if answer.tokens != expected[: len(answer.tokens)]:
                yield Violation(
                    rule=VisibleOutputs.rule.id,
                    part=f"request:{ANOTHER}",
                    who=answer.rid,
                    expected=f"the beginning of {list(expected)}",
                    actual=str(list(answer.tokens)),
                )

    def broken(self) -> tuple[str, ...]:
        return tuple(violation.signature for violation in self.violations)

    def fork(self) -> EngineState:
        forked: EngineState = _copied(self, {id(check): check for check in self.rules.stateless})
        return forked

    def key(self) -> bytes:
        return hashlib.blake2b(marshal.dumps(self.value(), 2), digest_size=16).digest()

    def value(self) -> tuple[Any, ...]:
        """The state as tuples, numbers, strings and bytes."""
        users, engine = self.users, self.scheduler.engine
        late: dict[str, int] = {}
        """How often each request was verified after its abort, which a rule counts at the end."""
        for launch in self.scheduler.seen.launches:
            for rid in launch.rids:
                if launch.kind == "decode" and launch.iteration > users.aborted.get(rid, launch.iteration):
                    late[rid] = late.get(rid, 0) + 1
        order = {used: n for n, used in enumerate(sorted({node.used for node in engine.cache.nodes()}))}
        values = _Values(engine.steps, order)
        return (
            users.left,
            sorted(late.items()),
            values.of(self.rules.remembered),
            self.broken(),
            values.of(self.scheduler),
        )

    @property
    def case(self) -> ScheduleCase:
        """The schedule so far, as any other that is run."""
        return ScheduleCase(self.scope.setup.settings, self.users.workload.plain(), {"accept": self.ranks})


@cache
def draft_outcomes(config: Config) -> tuple[tuple[int, ...], ...]:
    """How right the drafts of a step may be, by ranks of its steps: one for each node of the tree at which the accepted
    path may end, the simplest first. The shape of the tree is always the same.
    """
    topk, num_steps, ndt = config.topk, config.num_steps, config.num_draft_tokens
    device = Device(config, HashModel())
    drafts = device._draft([0], [0], [FIRST_TOKEN], [[0] * num_steps])
    tree = build_tree(drafts.parent_list, drafts.selected_index, torch.tensor([0]), topk, num_steps, ndt, QLEN_ONLY)
    ranks = [0, *(drafts.selected_index[0] % topk).tolist()]  # of a node among its siblings
    found = []
    for visible in tree.tree_mask.view(ndt, ndt).tolist():
        path = [ranks[node] for node in range(1, ndt) if visible[node]]
        found.append(tuple([*path, topk, *[0] * num_steps][:num_steps]))
    return tuple(sorted(found))


@cache
def _is_shared(kind: type) -> bool:
    """Whether what is of this class never changes."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, ATOMS) or (parameters is not None and parameters.frozen)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in getattr(each, "__slots__", ()))


def _copied(thing: Any, memo: dict[int, Any]) -> Any:
    """A copy that shares nothing that changes. `memo` has what was copied already, by its identity."""
    kind: Any = type(thing)
    if _is_shared(kind):
        return thing
    new = memo.get(id(thing))
    if new is not None:
        return new
    if kind is list:
        new = memo[id(thing)] = []
        new += [_copied(item, memo) for item in thing]
        return new
    if kind is dict:
        new = memo[id(thing)] = {}
        for key, item in thing.items():
            new[_copied(key, memo)] = _copied(item, memo)
        return new
    if kind is set:
        new = set(thing)
    elif isinstance(thing, tuple):
        items = [_copied(item, memo) for item in thing]
        if all(map(is_, items, thing)):
            return thing
        new = tuple(items) if kind is tuple else kind(*items)
    elif kind is torch.Tensor:
        new = thing.clone()
    elif hasattr(thing, "tobytes"):  # an array
        new = copy(thing)
    elif kind is MethodType:
        new = MethodType(thing.__func__, _copied(thing.__self__, memo))
    elif not _slots(kind) and not hasattr(thing, "__dict__"):
        raise TypeError(f"{kind.__name__} is nothing that is copied here")
    else:
        new = memo[id(thing)] = kind.__new__(kind)
        for name in _slots(kind):
            if hasattr(thing, name):
                object.__setattr__(new, name, _copied(getattr(thing, name), memo))
        for name, item in getattr(thing, "__dict__", {}).items():
            new.__dict__[name] = _copied(item, memo)
    memo[id(thing)] = new
    return new


class _Values:
    """The values of one engine. An object that is met again is its number. The order in which a dict was filled counts
    where names are its keys: the first of some sessions may be the one that is taken. Rows and pages have their own.
    """

    def __init__(self, steps: int, order_of_use: dict[int, int]) -> None:
        self._steps, self._order_of_use = steps, order_of_use
        self._numbers: dict[int, int] = {}

    def of(self, thing: Any) -> Any:
        kind: Any = type(thing)
        if kind in (int, str, bool, float, type(None), bytes):
            return thing
        if kind is list or isinstance(thing, tuple):
            return tuple([self.of(item) for item in thing])
        if isinstance(thing, Enum):
            return thing.name
        if kind is torch.Tensor:
            return thing.numpy().tobytes()
        if kind is dict:
            keys = thing if all(isinstance(key, str) for key in thing) else sorted(thing)
            return tuple([(key, self.of(thing[key])) for key in keys])
        if kind is set:
            return tuple(sorted(thing))
        if isinstance(thing, (FunctionType, HashModel)):
            return kind.__name__
        number = self._numbers.get(id(thing))
        if number is not None:
            return ("again", number)
        self._numbers[id(thing)] = len(self._numbers)
        names = [*_slots(kind), *getattr(thing, "__dict__", ())]
        return (kind.__name__, *(self._attribute(thing, name) for name in names if name not in CONSTANT))

    def _attribute(self, thing: Any, name: str) -> Any:
        value = getattr(thing, name)
        if isinstance(thing, Node) and name == "used":
            return self._order_of_use.get(value, -1)
        if isinstance(thing, Request) and name == "ready_at":
            return max(0, value - self._steps)
        return 0 if any((kind, name) in HISTORY for kind in type(thing).__mro__) else self.of(value)
