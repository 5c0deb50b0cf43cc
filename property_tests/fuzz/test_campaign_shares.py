"""What one campaign finds another runs within its next batch; whatever becomes of the corpus, nothing is lost."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from property_tests.fuzz.test_corpus import RedisServer, redis_server, where
from specsim.choices.chooser import Tape
from specsim.engine.accounting_target import ModelTarget
from specsim.fuzz.batch import run_batch_here, runs_of
from specsim.fuzz.batches import Lot, Plan
from specsim.fuzz.campaign import go_on
from specsim.fuzz.corpus import open_corpus
from specsim.fuzz.corpus_sharing import Sharing
from specsim.fuzz.store import Store
from specsim.fuzz.work import Batch, BatchResult

__all__ = ["redis_server", "where"]  # fixtures
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


@pytest.mark.parametrize("strategy", ["coverage", "portfolio"])
def test_a_tape_that_one_campaign_found_is_run_by_another_within_its_next_batch(
    where: str, tmp_path: Path, strategy: str
) -> None:
    said: list[str] = []
    one = Campaign(tmp_path / "1.db", 1, where, said)
    two = Campaign(tmp_path / "2.db", 2, where, said, strategy)
    one.run()
    found = one.tapes()
    assert len(found) == one.sharing.sent > 3
    two.run()
    assert two.sharing.received == len(found)
    assert found <= two.tapes()
    if strategy == "coverage":
        assert set(two.pool.ran()[: len(found)]) == found
    else:
        assert found & set(two.pool.ran())
    one.run()
    assert one.sharing.received == two.sharing.sent > 0
    assert said == []


def test_what_both_know_is_not_sent_twice(tmp_path: Path) -> None:
    one, two = (Campaign(tmp_path / f"{seed}.db", seed, str(tmp_path / "corpus"), []) for seed in (1, 2))
    one.run()
    two.run()
    names = [name for tape in (tmp_path / "corpus").rglob("*") if tape.is_file() for name in [tape.name]]
    assert len(names) == len(set(names))
    of_one = {c.feature for c in one.store.coverage()}
    stored = two.store.tapes("model", two.store.tapes_to("model"))
    own = [name for each in stored if each.origin != "corpus" for name in each.features]
    assert own
    assert of_one.isdisjoint(own)


def test_what_a_lost_redis_missed_is_sent_by_the_next_campaign_with_that_store(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    said: list[str] = []
    redis_server.end()
    one = Campaign(tmp_path / "1.db", 1, redis_server.url, said)
    one.run(2)
    found = one.tapes()
    assert one.corpus.unsent == one.sharing.sent == len(found) > 3
    assert len(said) == 1
    one.store.close()
    redis_server.start()
    again = Campaign(tmp_path / "1.db", 1, redis_server.url, said)
    again.run()
    two = Campaign(tmp_path / "2.db", 2, redis_server.url, said)
    two.run()
    assert found <= two.tapes()


def test_a_redis_that_is_lost_and_comes_back_gets_what_it_missed(redis_server: RedisServer, tmp_path: Path) -> None:
    said: list[str] = []
    one = Campaign(tmp_path / "1.db", 1, redis_server.url, said)
    one.run()
    redis_server.end()
    one.run(2)
    assert len(one.store.batches()) == 3
    assert one.corpus.unsent
    redis_server.start()
    one.run(2)
    one.sharing.receive("model")
    assert one.corpus.unsent == 0
    assert [line.split(" (")[0] for line in said] == [
        f"the corpus {redis_server.url} does not answer",
        f"the corpus {redis_server.url} answers again",
    ]
