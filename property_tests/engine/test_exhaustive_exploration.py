"""Every schedule of a small scope is run, counted exactly, and no state is mistaken for another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache
from math import comb
from pathlib import Path
from typing import Any

import pytest

from specsim.choices.chooser import Chooser, RecordingChooser, replayed, seeded
from specsim.choices.exhaustive import CycleError, Explored, Explorer, Method, NotIndependentError, require_independent
from specsim.cli import main
from specsim.engine.accounting import Held, ModelAccounting
from specsim.engine.launch import Launch
from specsim.engine.loop import Engine
from specsim.engine.request import Request
from specsim.engine.rules.checked_engine import checked_engine, checked_parts
from specsim.engine.sampling_params import SamplingParams
from specsim.engine.small_scopes import Scope, scope_named
from specsim.engine.snapshot import EngineState
from specsim.engine.workload import Scenario, Workload
from specsim.errors import UsageError
from specsim.tiers.accounting import exploration
from specsim.tiers.accounting.exploration import explore, first_state, log_of

# scope -> (schedules, states, ends, schedules and states that the reduction needs)
COUNTS = {
    "one-request": (1926, 116, 6, 6, 63),
    "two-requests": (6917296, 10292, 600, 700, 5456),
    "abort": (1633516, 9178, 540, 916, 4872),
    "retract": (1531228748, 10902, 500, 980, 5707),
    "session": (72217128, 2751, 120, 180, 1445),
    "tree": (463936, 5262, 70, 1216, 1705),
}

nightly = pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="runs every night")


@cache
def explored(name: str, method: Method) -> Explored:
    return explore(scope_named(name), method).explored


# Counts


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.slow(runs_one_in=2)
def test_the_counts_of_a_scope_are_exact_and_stay(name: str) -> None:
    schedules, states, ends, _, _ = COUNTS[name]
    seen = explored(name, "visited")
    assert (seen.schedules, seen.states, len(seen.ends)) == (schedules, states, ends)
    assert seen.complete


@pytest.mark.parametrize("name", COUNTS)
def test_the_reduction_reaches_the_same_ends_with_less(name: str) -> None:
    seen = explored(name, "reduced")
    assert (seen.schedules, seen.states) == COUNTS[name][3:]
    assert seen.ends == explored(name, "visited").ends
    assert seen.states < explored(name, "visited").states


def test_counting_through_states_equals_running_every_schedule() -> None:
    one_by_one = explored("one-request", "stateless")
    assert one_by_one.schedules == explored("one-request", "visited").schedules
    assert one_by_one.ends == explored("one-request", "visited").ends


@pytest.mark.parametrize("name", COUNTS)
def test_the_model_breaks_no_rule_in_any_schedule(name: str) -> None:
    assert explored(name, "visited").broken == {}


def test_an_exploration_that_was_cut_short_says_so() -> None:
    cut = explore(scope_named("abort"), states_max=100).explored
    assert not cut.complete
    assert cut.states == 100
    assert not explore(scope_named("abort"), "stateless", states_max=10).explored.complete


# An enumeration that shares nothing with the explorer: whole runs, and a dump of every object of the engine

HISTORY = {
    Engine: {"chooser", "log", "seen", "delays", "is_new"},
    "Launches": {"_count"},
    "Results": {"stale_finished", "stale_retracted"},
    "Checker": {"events", "_table", "_account"},
    "SlotLedger": {"changed"},  # read by an account, which forks do not have
    "Device": {"steps", "content_errors", "short_rows", "relayed", "pad_writes", "collectives", "longest", "_output"},
    "Launch": {"number"},
}
SCRATCH = {"_prefix_lens"} | {"_config", "config", "workload", "turn", "_rules", "_checks"}  # not read; constant
# What a part uses beside its own: the engine has each once.
USED = {"_accounting", "_admission", "_batch", "_launches", "_log", "_memory", "_observer", "_requests"}


def dump(thing: Any) -> Any:
    """Every attribute of everything that an engine is made of."""
    if type(thing) in (int, bool, str, type(None)):
        return thing
    if isinstance(thing, Enum):
        return thing.name
    if type(thing) is array:
        return thing.tobytes()
    if type(thing) is list and thing and type(thing[0]) is int:
        return tuple(thing)
    if isinstance(thing, (list, tuple, deque, array)):
        return tuple(dump(item) for item in thing)
    if isinstance(thing, (set, frozenset)):
        return tuple(sorted(thing))
    if isinstance(thing, dict):
        return tuple(sorted((key, dump(item)) for key, item in thing.items()))
    if isinstance(thing, Engine) and thing.phase != "launch":
        thing.prepared = []  # launched, and not read again
    skipped = HISTORY.get(Engine if isinstance(thing, Engine) else type(thing).__name__, set()) | SCRATCH | USED
    if isinstance(thing, Launch) and thing.done:
        rows = tuple((row.key, row.is_middle) for row in thing.rows)
        return (thing.kind, "done", rows, tuple(thing.first_tokens), dump(thing.result))
    return (
        type(thing).__name__.strip("_"),
        *((name, dump(of)) for name, of in attributes(thing) if name not in skipped),
    )


def attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    names = set(getattr(thing, "__dict__", ()))
    for cls in type(thing).__mro__:
        names |= set(getattr(cls, "__slots__", ()))
    for name in sorted(names):
        yield name, getattr(thing, name)


class Dumping(Engine):
    """An engine that is dumped before each of its steps."""

    delays = 0
    seen: set[Any]
    is_new: Callable[[], bool]

    def step(self, of_device: bool) -> None:
        if self.is_new():
            self.seen.add((self.delays, dump(self)))
        super().step(of_device)


def brute_force(scope: Scope) -> tuple[int, int, int]:
    """Schedules, states and ends, by running every tape from the start."""
    two_outcomes = ("arrives later", "admit later", "abort", "retract on demand")
    states: set[Any] = set()
    ends: set[Any] = set()
    schedules = 0
    engine: Dumping
    bounds: list[int]
    values: list[int]
    script: Iterator[int]

    def choose(bound: int, label: str) -> int:
        later = label.endswith(" later")
        bounds.append(1 if later and not engine.delays else 2 if label in two_outcomes else bound)
        values.append(next(script, 0))
        engine.delays -= later and values[-1] > 0
        return values[-1]

    tape: list[int] | None = []
    while tape is not None:
        script, bounds, values = iter(tape), [], []
        engine = Dumping(scope.scenario, RecordingChooser(choose), *checked_parts(scope.scenario))
        engine.seen, engine.delays = states, scope.delays
        length = len(tape)
        engine.is_new = lambda: len(values) >= length  # noqa: B023 - before, the run is one that was dumped
        engine.run()
        schedules += 1
        ends.add((engine.delays, dump(engine)))
        while values and values[-1] == bounds[len(values) - 1] - 1:
            values.pop()
        tape = [*values[:-1], values[-1] + 1] if values else None
    return schedules, len(states | ends), len(ends)


def tiny(name: str, outputs: tuple[int, ...], aborts: int = 0, retractions: int = 0, delays: int = 0) -> Scope:
    """The requests of a scope with fewer outputs."""
    scope = scope_named(name)
    turns = tuple(replace(t, max_new_tokens=n) for t, n in zip(scope.scenario.workload.turns, outputs, strict=True))
    return Scope("tiny", "", Scenario(scope.scenario.config, Workload(turns, aborts, retractions)), delays)


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(scope_named("one-request"), marks=nightly),
        tiny("one-request", (2,)),
        tiny("two-requests", (1, 1), delays=1),
        tiny("two-requests", (1, 1), aborts=1),
    ],
    ids=["one-request", "one-short-request", "delays", "abort"],
)
@pytest.mark.slow(runs_one_in=2)
def test_brute_force_counts_the_same(scope: Scope) -> None:
    seen = explore(scope).explored
    assert brute_force(scope) == (seen.schedules, seen.states, len(seen.ends))


# States


def wandering(scope: Scope, seed: int) -> Iterator[EngineState]:
    """The states of one drawn schedule."""
    state, chooser = first_state(scope), Outcomes(seed)
    while state.agents():
        yield state
        chooser.state = state
        state.step(state.agents()[chooser.draw.choose(len(state.agents()), "agent")], chooser)
    yield state


class Outcomes:
    """Draws among the outcomes of each choice."""

    def __init__(self, seed: int) -> None:
        self.draw = seeded(seed, "wandering")
        self.state: Any = None

    def choose(self, bound: int, label: str) -> int:
        options = self.state.outcomes(bound, label)
        value: int = options[self.draw.choose(len(options), label)]
        self.state.chosen(value, label)
        return value


def featured(page_size: int = 1) -> Scope:
    """Three requests, with every option that an exploration has."""
    scope = scope_named("three-requests")
    workload = replace(scope.scenario.workload, timeouts_max=1, pauses_max=1)
    config = replace(
        scope.scenario.config,
        page_size=page_size,
        num_steps=2,
        num_draft_tokens=3,
        pool_slots=60,
        chunk_size=2,
        late_results=True,
        adaptive=True,
        idle_batches=True,
        tight_pool=True,
    )
    return Scope("featured", "", Scenario(config, workload), scope.delays)


def session_of_two(scope: Scope) -> Scope:
    """The same with its first two requests as turns of a session. Nobody aborts: it would be the first turn."""
    first, second, *others = scope.scenario.workload.turns
    turns = (replace(first, session="s"), replace(second, session="s"), *others)
    config = replace(scope.scenario.config, context_len=20, pool_slots=90)
    return replace(scope, scenario=Scenario(config, Workload(turns, retractions_max=1, pauses_max=1)))


FEATURED = {"featured": featured(), "featured-session": session_of_two(featured(2))}


def of_name(name: str) -> Scope:
    return FEATURED.get(name) or scope_named(name)


def test_the_featured_scopes_reach_what_they_are_about() -> None:
    marks: set[str] = set()
    for scope in FEATURED.values():
        for seed in range(40):
            *_, state = wandering(scope, seed)
            engine: Any = state.engine
            marks |= engine.log.marks
            assert state.broken() == ()
    assert {
        "chunked",
        "pause",
        "retract",
        "abort",
        "finished_before_prepared_launch",
        "stride_changed",
        "session resumed",
    } <= marks


@pytest.mark.parametrize("name", ["three-requests", "session", "retract", "tree", *FEATURED])
def test_states_are_the_same_exactly_when_every_attribute_is(name: str) -> None:
    by_key: dict[bytes, set[Any]] = {}
    dumps: set[Any] = set()
    for seed in range(12):
        for state in wandering(of_name(name), seed):
            dumped = (state.delays, dump(state.engine))
            dumps.add(dumped)
            by_key.setdefault(state.key(), set()).add(dumped)
    assert len(by_key) == len(dumps)
    assert all(len(same) == 1 for same in by_key.values())


@pytest.mark.parametrize("name", ["three-requests", "session", "tree", *FEATURED])
def test_a_fork_goes_on_as_the_original_would_and_leaves_it_alone(name: str) -> None:
    for seed in range(4):
        for state in wandering(of_name(name), seed):
            fork, key = state.fork(), state.key()
            assert fork.key() == key
            assert dump(fork.engine) == dump(state.engine)
            other = fork.fork()
            for forked in (fork, other):
                chooser = Outcomes(seed + 1)
                chooser.state = forked
                for _ in range(4):
                    if forked.agents():
                        forked.step(forked.agents()[-1], chooser)
            assert fork.key() == other.key()
            assert state.key() == key


SHARED = {  # what is never changed, or written before it is read
    *("_config", "config", "workload", "own", "turn", "prompt", "specials", "slots", "plan", "tokens", "first_tokens"),
    *("next_token_ids", "accept_lens", "steps", "content_errors", "short_rows", "relayed", "pad_writes"),
    *(
        "collectives",
        "distribution_states",
        "_unread",
        "special_at",
        "_table",
        "_prefix_lens",
        "events",
        "_digest",
        "chooser",
    ),
    *("marks", "retracted_in", "swa_content", "_swa_ledger", "tree_slots", "locks", "swa_slots"),
    *("_rules", "_checks"),
}


def parts(thing: Any, path: str = "") -> Iterator[tuple[int, str]]:
    """(id, where) of everything in an engine that can be changed."""
    if isinstance(thing, (int, str, bytes, type(None), Enum)):
        return
    if not isinstance(thing, tuple):
        yield id(thing), path
    if isinstance(thing, dict):
        children: list[tuple[str, Any]] = [(path, item) for item in thing.values()]
    elif isinstance(thing, (list, tuple, deque)):
        children = [(path, item) for item in thing]
    elif isinstance(thing, (set, array)):
        children = []
    else:
        children = [(name, of) for name, of in attributes(thing) if name not in SHARED]
    for name, child in children:
        yield from parts(child, name)


@pytest.mark.parametrize("name", ["three-requests", "session", *FEATURED])
def test_a_fork_shares_nothing_that_changes(name: str) -> None:
    for state in wandering(of_name(name), 3):
        fork = state.fork()
        mine = dict(parts(state.engine))
        frozen = {"to_come", "violations", "histories"}  # whose items are replaced, never changed
        assert {where for it, where in parts(fork.engine) if it in mine} <= frozen


@pytest.mark.parametrize(
    "options",
    [
        {"radix": True},
        {"window": 4},
        {"draft_layers": 1},
        {"graph_sizes": (2,)},
        {"mixed_chunk": True, "chunk_size": 4},
        {"relaxed_penalties": True},
        {"streams": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_a_fork_does_not_copy_is_refused(options: dict[str, Any]) -> None:
    scope = scope_named("one-request")
    scenario = replace(scope.scenario, config=replace(scope.scenario.config, **options))
    with pytest.raises(UsageError, match=f"no exploration copies the state of {next(iter(options))}"):
        explore(replace(scope, scenario=scenario))


@pytest.mark.parametrize("law", [{"sampling": SamplingParams()}, {"return_logprob": True}], ids=str)
def test_a_request_with_a_distribution_is_refused(law: dict[str, Any]) -> None:
    scope = scope_named("one-request")
    (turn,) = scope.scenario.workload.turns
    workload = replace(scope.scenario.workload, turns=(replace(turn, **law),))
    with pytest.raises(UsageError, match="no exploration copies the state of sampling"):
        explore(replace(scope, scenario=replace(scope.scenario, workload=workload)))


# Reduction


class CountsStaleResults(ModelAccounting):
    """A stale result of a finished request is counted."""

    def resolve(self, result: Any, batch: list[Request]) -> list[list[int]]:
        stale = [r for r in batch if r.state_of_accounting.finished]
        for request in stale:
            request.state_of_accounting.verify_count += 1
        return super().resolve(result, batch)


class FreesTooLittle(ModelAccounting):
    """A retraction keeps a slot."""

    def _take_back(self, held: Held) -> None:
        held.allocated -= 1
        super()._take_back(held)


class SwapsSlots(ModelAccounting):
    """A result swaps the first two slots of the row: only the device sees it."""

    def append(self, request: Request, run: list[int]) -> None:
        super().append(request, run)
        rows, row = self._memory.rows, request.state_of_accounting.row
        rows.write(row, 0, rows.read(row, 0, 2)[::-1])


@pytest.mark.parametrize(
    ("accounting", "name"), [(CountsStaleResults, "abort"), (FreesTooLittle, "retract"), (SwapsSlots, "session")]
)
@pytest.mark.slow(runs_one_in=2)
def test_the_reduction_misses_no_broken_rule(accounting: type[ModelAccounting], name: str) -> None:
    scope = scope_named(name)
    seen = {}
    for method in ("visited", "reduced"):
        start = EngineState(checked_engine(scope.scenario, replayed(()), accounting), scope.delays)
        seen[method] = Explorer(method, checked_every=1).run(start)
    assert set(seen["visited"].broken) == set(seen["reduced"].broken)
    assert seen["visited"].broken
    for signature, tape in seen["reduced"].broken.items():
        run = checked_engine(scope.scenario, replayed(tape), accounting).run()
        assert signature in {violation.signature for violation in run.violations}


def test_steps_of_host_and_device_commute_wherever_both_can_go() -> None:
    for name in ("one-request", "session"):
        scope = scope_named(name)
        assert Explorer("reduced", checked_every=1).run(first_state(scope)).complete


@pytest.mark.parametrize("scope", FEATURED.values(), ids=FEATURED)
def test_steps_of_host_and_device_commute_with_every_option(scope: Scope) -> None:
    pairs = 0
    for seed in range(12):
        for state in wandering(scope, seed):
            if len(state.agents()) == 2:
                require_independent(state, *state.agents())
                pairs += 1
    assert pairs


class Counters:
    """Agents that count up to their goals; `bonus` makes their steps depend on each other."""

    def __init__(self, goals: Sequence[int], at: Sequence[int] | None = None, bonus: bool = False, loop: bool = False):
        self.goals, self.at = goals, list(at or [0] * len(goals))
        self.bonus, self.loop = bonus, loop

    def agents(self) -> list[int]:
        return [agent for agent, goal in enumerate(self.goals) if self.at[agent] < goal]

    def chooses(self, agent: int) -> bool:
        return False

    def step(self, agent: int, _chooser: Chooser) -> None:
        self.at[agent] += 1
        if self.bonus and sum(self.at) == 2 and agent == 0:
            self.at[1] += 2
        if self.loop and self.at[agent] == self.goals[agent]:
            self.at[agent] = 0

    def outcomes(self, bound: int, _label: str) -> range:
        return range(bound)

    def chosen(self, value: int, label: str) -> None: ...

    def broken(self) -> tuple[str, ...]:
        return ()

    def fork(self) -> Counters:
        return Counters(self.goals, self.at, self.bonus, self.loop)

    def key(self) -> bytes:
        return bytes(self.at)


def test_independent_agents_are_counted_in_closed_form() -> None:
    for m, n in ((1, 1), (2, 3), (4, 6), (30, 30)):
        seen = Explorer("visited").run(Counters((m, n)))
        assert (seen.schedules, seen.states) == (comb(m + n, n), (m + 1) * (n + 1))
        less = Explorer("reduced", checked_every=1).run(Counters((m, n)))
        assert (less.schedules, less.states, less.ends) == (1, m + n + 1, seen.ends)
    assert Explorer("stateless").run(Counters((4, 6))).schedules == comb(10, 4)


def test_steps_that_depend_on_each_other_are_not_reduced_in_silence() -> None:
    with pytest.raises(NotIndependentError):
        Explorer("reduced", checked_every=1).run(Counters((3, 6), bonus=True))


def test_a_schedule_without_end_is_noticed() -> None:
    with pytest.raises(CycleError) as raised:
        Explorer("visited").run(Counters((2, 1), loop=True))
    assert raised.value.tape == (0, 0)


def test_a_scope_without_end_breaks_the_rule_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "first_state", lambda _scope: Counters((2, 1), loop=True))
    seen = explore(scope_named("one-request")).explored
    assert not seen.complete
    assert seen.broken == {"accounting:S1:loop": (0, 0)}


def test_a_scope_that_cannot_be_reduced_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "first_state", lambda _scope: Counters((3, 6), bonus=True))
    monkeypatch.setattr(exploration, "Explorer", lambda method, states: Explorer(method, states, checked_every=1))
    with pytest.raises(UsageError, match="cannot be reduced"):
        explore(scope_named("one-request"), "reduced")


# The command


def test_the_command_prints_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explore", "one-request", "--json", str(tmp_path / "counts.json")])
    assert not ended.value.code
    (scope,) = json.loads((tmp_path / "counts.json").read_text())["scopes"]
    assert (scope["schedules"], scope["states"], scope["ends"]) == COUNTS["one-request"][:3]
    assert f"{COUNTS['one-request'][0]}" in capsys.readouterr().out


def test_the_command_finds_a_mutant_and_shows_its_schedule() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "specsim", "explore", "session", "--mutant", "A01"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "accounting:I53:short:session save" in ended.stdout
    assert "finish    st0" in ended.stdout


@pytest.mark.parametrize("arguments", [["nowhere"], ["abort", "--strategy", "guessing"]])
def test_a_scope_or_strategy_that_is_not_there_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explore", *arguments])
    assert ended.value.code == 2


def test_the_events_of_a_schedule_can_be_shown() -> None:
    log = log_of(scope_named("one-request"), ())
    assert [log[0].event, log[-1].event] == ["arrive", "resolve"]
