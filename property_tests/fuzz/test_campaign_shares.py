"""What one campaign finds another runs within its next batch; whatever becomes of the corpus, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from property_tests.support.redis_server import RedisServer
from property_tests.support.sharing_campaigns import Campaign


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
