"""Campaigns in this process that share what they found."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from specsim.choices.chooser import Tape
from specsim.engine.accounting_target import ModelTarget
from specsim.fuzz.batch import run_batch_here, runs_of
from specsim.fuzz.batches import Lot, Plan
from specsim.fuzz.campaign import go_on
from specsim.fuzz.corpus import open_corpus
from specsim.fuzz.corpus_sharing import Sharing
from specsim.fuzz.store import Store
from specsim.fuzz.work import Batch, BatchResult

RUNS = 8


class Here:
    """A pool of one worker in this process."""

    width = 1

    def __init__(self) -> None:
        self.batch: Batch | None = None

    def ran(self) -> list[Tape]:
        """The tapes of the runs of the last batch."""
        assert self.batch is not None
        return [schedule.tape for _, schedule in runs_of(ModelTarget(), self.batch, {}, lambda _: None) if schedule]

    def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
        self.batch = batch
        future: Future[BatchResult] = Future()
        future.set_result(run_batch_here(ModelTarget(), batch, "1", seconds=seconds))
        return future

    def give_up(self) -> None:
        pass

    def interrupt(self) -> None:
        pass


class Campaign:
    """A campaign of the model with a store of its own, which shares its tapes."""

    def __init__(self, store: Path, seed: int, where: str, said: list[str], strategy: str = "coverage") -> None:
        self.store = Store.open(store, campaign=seed)
        self.plan = Plan(seed, (Lot("model", "accounting", 1),), (("any", 1),), ((strategy, 1),))
        self.corpus = open_corpus(where, [], model_hash="m", specsim_version="1.0")
        self.corpus.tell(said.append)
        self.sharing = Sharing(self.store, self.corpus, "m")
        self.pool = Here()

    def run(self, batches: int = 1) -> None:
        go_on(
            self.plan,
            self.store,
            0,
            self.pool,
            until=math.inf,
            batches_max=batches,
            prepare=lambda batch: replace(batch, count=len(batch.tapes) + RUNS),
            on_learning=self.sharing.receive,
            on_result=lambda result, _outcome: self.sharing.send(result),
            model_hash="m",
        )

    def tapes(self) -> set[Tape]:
        return {stored.tape for stored in self.store.tapes("model", self.store.tapes_to("model"))}
