"""Every schedule of a small scope is run, counted exactly, and no state is mistaken for another."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import comb, prod
from pathlib import Path
from typing import Any

import pytest
import torch

from specsim.choices.chooser import seeded
from specsim.choices.exhaustive import CycleError, Explored, Explorer, Scripted, following
from specsim.cli import main
from specsim.engines.reference import engine as reference
from specsim.reference.engine import Engine, Request, State
from specsim.rules.table import CHECKS
from specsim.tiers.scheduler import exploration
from specsim.tiers.scheduler.engine_state import EngineState, draft_outcomes
from specsim.tiers.scheduler.exploration import explore, lacked, log_of
from specsim.tiers.scheduler.small_scopes import SCOPES, Scope, scope_named
from specsim.world.hash_model import decoded
from specsim.world.schedule import run_schedule

# scope -> (schedules, states, ends)
COUNTS = {
    "one-request": (6, 18, 6),
    "two-requests": (600, 970, 376),
    "abort": (364, 456, 184),
    "retract": (783, 1232, 430),
    "session": (180, 78, 12),
    "tree": (28, 50, 20),
    "three-requests": (13212, 9951, 3848),
}
SMALL = [name for name in COUNTS if name != "three-requests"]
slow = pytest.mark.slow


@cache
def explored(name: str) -> Explored:
    return explore(scope_named(name)).explored


# Counts


@pytest.mark.parametrize("name", [*SMALL, pytest.param("three-requests", marks=slow)])
def test_the_counts_of_a_scope_are_exact_and_stay(name: str) -> None:
    seen = explored(name)
    assert (seen.schedules, seen.states, len(seen.ends)) == COUNTS[name]
    assert seen.complete


@pytest.mark.parametrize("name", [*SMALL, pytest.param("three-requests", marks=slow)])
def test_the_reference_breaks_no_rule_in_any_schedule(name: str) -> None:
    assert explored(name).broken == {}


@pytest.mark.parametrize("name", ["one-request", "abort", "session", "tree", pytest.param("retract", marks=slow)])
def test_counting_through_states_equals_running_every_schedule(name: str) -> None:
    one_by_one = Explorer(remembers=False).run(EngineState(scope_named(name)))
    assert one_by_one.complete
    assert one_by_one.schedules == explored(name).schedules
    assert one_by_one.ends == explored(name).ends


def test_running_each_schedule_from_its_start_gives_as_many() -> None:
    """Nothing is copied here."""
    script: tuple[int, ...] | None = ()
    count = 0
    while script is not None:
        chooser, state = Scripted(script), EngineState(scope_named("one-request"))
        while not state.is_over:
            state.step(chooser)
        script = following(chooser.values, chooser.bounds)
        count += 1
    assert count == COUNTS["one-request"][0]


def test_an_exploration_that_was_cut_short_says_so() -> None:
    cut = explore(scope_named("abort"), Explorer(100)).explored
    assert not cut.complete
    assert cut.states == 100
    assert not Explorer(10, remembers=False).run(EngineState(scope_named("abort"))).complete


def test_a_scope_is_left_out_while_the_engine_lacks_its_feature() -> None:
    assert [scope.name for scope in SCOPES if not lacked(scope)] == list(COUNTS)
    lacking = replace(scope_named("one-request"), setup=replace(scope_named("one-request").setup, adaptive=True))
    assert lacked(lacking) == ["adaptive"]


def test_drafts_are_as_right_as_their_tree_can_tell() -> None:
    """A chain of one, a chain of three, and a tree in which only the first of two drafts has one behind it."""
    chain = EngineState(scope_named("abort")).scheduler.engine.config
    assert draft_outcomes(chain) == ((0,), (1,))
    longer = replace(chain, num_steps=3, num_draft_tokens=4)
    assert draft_outcomes(longer) == ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    tree = EngineState(scope_named("tree")).scheduler.engine.config
    assert draft_outcomes(tree) == ((0, 0), (0, 2), (1, 2), (2, 0))


# States


def wandering(scope: Scope, seed: int) -> Iterator[EngineState]:
    """The states of one drawn schedule."""
    state, chooser = EngineState(scope), seeded(seed, "wandering")
    while not state.is_over:
        yield state
        state.step(chooser)
    yield state


def featured() -> Scope:
    """Three requests on pages of two slots, in chunks, with trees, a sliding window and little memory: one with
    logprobs, one with a grammar, one with a penalty and a higher priority.
    """
    scope = scope_named("three-requests")
    setup = replace(scope.setup, page_size=2, slots=48, chunk=2, steps=2, topk=2, draft_tokens=4, reserve=0.0)
    first, second, third = scope.turns
    turns = (
        replace(first, logprobs=1),
        replace(second, grammar=tuple(decoded(second.prompt, 3)), compiling=1),
        replace(third, penalty="presence_penalty", priority=1),
    )
    return replace(scope, setup=replace(setup, window=4, mixed=True, priorities=True), turns=turns)


@pytest.mark.parametrize("scope", [featured(), scope_named("session")], ids=["featured", "session"])
def test_a_fork_goes_on_as_the_original_would_and_leaves_it_alone(scope: Scope) -> None:
    for seed in range(3):
        for state in wandering(scope, seed):
            key, fork = state.key(), state.fork()
            assert fork.key() == key
            other = copy.deepcopy(state)
            for copied in (fork, other):
                chooser = seeded(seed, "further")
                for _ in range(3):
                    if not copied.is_over:
                        copied.step(chooser)
            assert fork.key() == other.key()
            assert fork.case == other.case
            assert state.key() == key


def parts(thing: Any, found: dict[int, str], where: str = "") -> dict[int, str]:
    """By identity where everything is that can be changed."""
    frozen = getattr(type(thing), "__dataclass_params__", None)
    if isinstance(thing, (int, str, bytes, float, type(None), State)) or (frozen is not None and frozen.frozen):
        return found
    if id(thing) in found:
        return found
    if not isinstance(thing, tuple):
        found[id(thing)] = where
    if isinstance(thing, dict):
        children = [(where, item) for item in thing.values()]
    elif isinstance(thing, (list, tuple, set)):
        children = [(where, item) for item in thing]
    else:
        names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        children = [(name, getattr(thing, name)) for name in [*names, *getattr(thing, "__dict__", ())]]
    for name, child in children:
        if not callable(child) and not isinstance(child, torch.Size):
            parts(child, found, name)
    return found


def test_a_fork_shares_nothing_that_changes() -> None:
    for state in wandering(featured(), 1):
        fork = state.fork()
        mine, its = parts(state.users, {}), parts(fork.users, {})  # which have the scheduler
        assert {where for at, where in its.items() if at in mine} == {"model"}
        assert len(its) == len(mine)


def test_whatever_changes_in_the_engine_is_another_state() -> None:
    *_, state = wandering(scope_named("retract"), 0)
    engine = state.scheduler.engine
    key = state.key()
    for tensor in (engine.device.kv, engine.device.draft_kv, engine.device.req_to_token, engine.device.counts):
        tensor[0, 0] += 1
        assert state.key() != key
        tensor[0, 0] -= 1
    request = next(iter(engine.requests.values()))
    for name in ("length", "allocated", "row", "shared", "launched"):
        value = getattr(request, name)
        setattr(request, name, value + 1)
        assert state.key() != key
        setattr(request, name, value)
    engine.free_pages.reverse()
    assert state.key() != key
    engine.free_pages.reverse()
    state.users.delays += 1
    assert state.key() != key
    state.users.delays -= 1
    engine.steps += 1  # history alone
    assert state.key() == key


@pytest.mark.parametrize("scope", [featured(), *map(scope_named, SMALL)], ids=["featured", *SMALL])
def test_a_schedule_that_is_explored_is_one_of_the_world(scope: Scope) -> None:
    for seed in range(5):
        *_, state = wandering(scope, seed)
        case = state.case
        record = run_schedule(
            reference.start(case.started_by()), case.started_by(), CHECKS, case.chooser(), workload=case.users()
        )
        assert record.events == tuple(launch.line for launch in state.scheduler.seen.launches)
        assert record.violations == ()


# Defects


def test_a_result_of_an_aborted_request_that_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Engine, launch: Any) -> None:
        for request, tokens in zip(launch.requests, launch.tokens, strict=True):
            if request.state is State.ENDED and tokens:
                request.outputs.extend(tokens)
        whole(self, launch)

    whole = Engine._take_results
    monkeypatch.setattr(Engine, "_take_results", read)
    broken = explore(scope_named("abort")).explored.broken
    assert "scheduler:I40:request:another-token" in broken or any("behind-the" in name for name in broken)


def test_a_page_that_is_lost_is_found_where_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def retract(self: Engine, request: Request) -> None:
        whole(self, request)
        self.free_pages.pop()

    whole = Engine._retract
    monkeypatch.setattr(Engine, "_retract", retract)
    seen = explore(scope_named("retract")).explored
    assert set(seen.broken) == {"scheduler:I16:pages"}
    log = log_of(scope_named("retract"), seen.broken["scheduler:I16:pages"])
    assert log[0] == "r0: 2 tokens for 4 at iteration 0"
    assert log[-1] == "pages : expected each page has one owner, seen a page is nobody's"


def test_what_the_engine_raises_ends_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(_self: Engine, rid: str) -> None:
        raise IndexError(rid)

    monkeypatch.setattr(Engine, "abort", abort)
    (signature,) = explore(scope_named("abort")).explored.broken
    assert signature.startswith("scheduler:X1:")
    assert signature.endswith(":IndexError")


# The explorer


class Counters:
    """Numbers that count up to their goals, one of them at a time."""

    def __init__(self, goals: Sequence[int], at: Sequence[int] | None = None, loop: bool = False) -> None:
        self.goals, self.at, self.loop = goals, list(at or [0] * len(goals)), loop

    @property
    def _open(self) -> list[int]:
        return [number for number, goal in enumerate(self.goals) if self.at[number] < goal]

    @property
    def is_over(self) -> bool:
        return not self._open

    def step(self, chooser: Any) -> None:
        number = self._open[chooser.choose(len(self._open), "counter")]
        self.at[number] += 1
        if self.loop and self.at[number] == self.goals[number]:
            self.at[number] = 0

    def broken(self) -> tuple[str, ...]:
        return ()

    def fork(self) -> Counters:
        return Counters(self.goals, self.at, self.loop)

    def key(self) -> bytes:
        return bytes(self.at)


def test_orders_are_counted_in_closed_form() -> None:
    for m, n in ((1, 1), (2, 3), (4, 6), (30, 30)):
        seen = Explorer().run(Counters((m, n)))
        assert (seen.schedules, seen.states, len(seen.ends)) == (comb(m + n, n), prod((m + 1, n + 1)), 1)
    assert Explorer(remembers=False).run(Counters((4, 6))).schedules == comb(10, 4)


def test_a_schedule_without_end_is_noticed() -> None:
    with pytest.raises(CycleError) as raised:
        Explorer().run(Counters((2, 1), loop=True))
    assert raised.value.tape == (0, 0)


def test_a_scope_without_end_breaks_the_rule_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "EngineState", lambda _scope: Counters((2, 1), loop=True))
    seen = explore(scope_named("one-request")).explored
    assert not seen.complete
    assert seen.broken == {"scheduler:S1:loop": (0, 0)}


# The command


def test_the_command_prints_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explore", "one-request", "--json", str(tmp_path / "counts.json")])
    assert not ended.value.code
    (scope,) = json.loads((tmp_path / "counts.json").read_text())["scopes"]
    assert (scope["schedules"], scope["states"], scope["ends"]) == COUNTS["one-request"]
    assert f"{COUNTS['one-request'][0]}" in capsys.readouterr().out


def test_the_command_finds_a_mutant_and_shows_its_schedule() -> None:
    command = [sys.executable, "-m", "specsim", "explore", "one-request", "--mutant", "A20"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert "broken: scheduler:" in ended.stdout
    assert "r0: 2 tokens for 3 at iteration 0" in ended.stdout


@pytest.mark.parametrize(
    "arguments", [["nowhere"], ["abort", "--of", "flashinfer"], ["abort", "--of", "mine:engine", "--states", "3"]]
)
def test_a_scope_or_scheduler_that_is_not_there_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explore", *arguments])
    assert ended.value.code == 2


def test_running_a_scheduler_again_counts_what_its_states_count(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    with pytest.raises(SystemExit) as ended:
        main(["explore", "one-request", "--of", "specsim.engines.reference:engine", "--json", str(file)])
    assert not ended.value.code
    counts = json.loads(file.read_text())
    assert (counts["schedules"], counts["complete"], counts["broken"]) == (COUNTS["one-request"][0], True, {})
