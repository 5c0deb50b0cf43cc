"""Many inputs, one after the other on each core: made, run, checked; what fails is run once more as a user runs it."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from property_tests.support.attack import options, replays, runner, sources, stores, wheels
from property_tests.support.attack.folder import Folder, made, snapshot
from property_tests.support.attack.oracle import Failure, failures
from property_tests.support.attack.runner import Attack, Ended

KINDS: dict[str, Callable[[random.Random, Folder], Attack]] = {
    "replays": replays.attack,
    "stores": stores.attack,
    "wheels": wheels.attack,
    "sources": sources.attack,
    "options": options.attack,
}
SHARES = {"replays": 4, "stores": 4, "wheels": 3, "sources": 2, "options": 6}  # of the inputs, as their runs cost
AS_A_USER_EVERY = 25  # inputs of a kind
PATIENCE = 2.0  # with a run that is made once more: the machine may be busy
_LOADED_BEFORE = (
    "specsim.cli",
    "specsim.fuzz.workers",
    "specsim.fuzz.store",
    "specsim.tiers.scheduler.answers",
    "specsim.tiers.ops.finding",
    "specsim.tiers.ops.suite",
    "specsim.tiers.child",
    "specsim.findings.matrix",
    "specsim.tiers.ops.answers",
    "specsim.kernels",
    "specsim.contracts.registry",
    "specsim.report.page.render",
    "specsim.report.terminal",
    "specsim.engines.sglang.provider",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one input."""

    kind: str
    index: int
    attack: Attack
    ended: Ended
    failures: tuple[Failure, ...]


@dataclass(slots=True)
class Campaign:
    """What was run, and each class of failure with how often it was seen and the first input that showed it."""

    inputs: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    codes: Counter[int | None] = field(default_factory=Counter)
    failed: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)
    confirmed: dict[tuple[str, str], bool] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.inputs[outcome.kind] += 1
        self.seconds[outcome.kind] += outcome.ended.seconds
        self.codes[outcome.ended.code] += 1
        for failure in dict.fromkeys((failure.aspect, failure.which) for failure in outcome.failures):
            self.failed.setdefault(failure, []).append(outcome)


def attack_of(seed: int, kind: str, index: int, folder: Folder) -> Attack:
    """The input of (seed, kind, index), written into a folder that `made` made."""
    return KINDS[kind](random.Random(f"{seed}:{kind}:{index}"), folder)


def attacked(seed: int, kind: str, index: int, *, as_a_user: bool, patience: float = 1.0, keep: str = "") -> Outcome:
    """Make one input in a folder of its own, run it, and check it. `keep` is a folder to make it in and to leave."""
    path = Path(keep).absolute() if keep else Path(tempfile.mkdtemp(prefix="specsim-attack-"))
    try:
        folder = made(path / "input")
        attack = attack_of(seed, kind, index, folder)
        before = snapshot(folder)
        ended = runner.run(folder, attack, as_a_user=as_a_user, patience=patience)
        found = failures(folder, attack, before, snapshot(folder), ended)
        return Outcome(kind, index, attack, ended, tuple(found))
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)


def jobs(kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Kinds and indices for ever, each kind by its share."""
    turn = [kind for kind in kinds for _ in range(SHARES[kind])]
    turn.sort(key=kinds.index)
    numbers = {kind: count() for kind in kinds}
    while True:
        for kind in turn:
            yield kind, next(numbers[kind])


def load() -> None:
    """Import what runs need, before this process is forked for them."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    torch.set_num_threads(1)
    for name in _LOADED_BEFORE:
        importlib.import_module(name)
    stores.whole(), wheels.whole()


def campaign(
    seed: int,
    kinds: Sequence[str],
    inputs: int,
    until: float,
    cores: int,
    tell: Callable[[Campaign], None] = lambda _campaign: None,
) -> Campaign:
    """Attack with so many inputs, or as many as begin before `until`; then confirm what failed."""
    load()
    run = Campaign()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(cores, context, runner.adopt_orphans) as pool:
        wanted = jobs(kinds)
        pending: set[Future[Outcome]] = set()
        begun = 0
        while True:
            while len(pending) < 2 * cores and begun < inputs and time.monotonic() < until:
                kind, index = next(wanted)
                begun += 1
                as_a_user = index % AS_A_USER_EVERY == AS_A_USER_EVERY - 1
                pending.add(pool.submit(attacked, seed, kind, index, as_a_user=as_a_user))
            if not pending:
                break
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                run.add(future.result())
            tell(run)
        again: dict[tuple[str, str], Future[Outcome]] = {}
        once: dict[tuple[str, int], Future[Outcome]] = {}
        for failure, outcomes in run.failed.items():
            first = min(outcomes, key=lambda outcome: (outcome.kind, outcome.index))
            if (first.kind, first.index) not in once:
                once[first.kind, first.index] = pool.submit(
                    attacked, seed, first.kind, first.index, as_a_user=True, patience=PATIENCE
                )
            again[failure] = once[first.kind, first.index]
        for (aspect, which), future in again.items():
            found = future.result().failures
            run.confirmed[aspect, which] = any(failure.aspect == aspect for failure in found)
    return run
