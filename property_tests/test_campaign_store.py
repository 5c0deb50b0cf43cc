"""The store of a campaign loses nothing, counts once, and refuses what it cannot use with one sentence."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.campaign.store import FORMAT, REPLAYS_MAX, Store, digest_of
from specsim.campaign.work import Batch, BatchResult, Found, KeptTape
from specsim.errors import UsageError


def batch(number: int = 0, shard: int = 0, target: str = "model", **fields: object) -> Batch:
    plain = {"campaign": 7, "first": number * 10, "count": 10, "tier": "accounting", "family": "any"}
    return Batch(shard=shard, number=number, target=target, **{**plain, "strategy": "swarm", **fields})  # type: ignore[arg-type]


def found(signature: str = "accounting:C1:x", size: tuple[int, ...] = (1,), **fields: object) -> Found:
    plain = {"rule": "C1", "title": "t", "severity": "leak", "reach": "default", "where": "f.py:1", "index": 3}
    rest = {"count": 2, "replay": f"replay of size {size}", "cpu_seconds": 0.5}
    return Found(signature=signature, tier="accounting", size=size, **{**plain, **rest, **fields})  # type: ignore[arg-type]


def result(of: Batch, version: str = "v1", **fields: object) -> BatchResult:
    plain = {"runs": 10, "events": 400, "seconds": 1.0, "cpu_seconds": 2.0}
    return BatchResult(batch=of, version=version, **{**plain, **fields})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "c.db", campaign=(1 << 64) - 1) as store:
        yield store


def test_what_was_stored_is_read_again_by_another_process_meanwhile(store: Store) -> None:
    assert store.campaign == (1 << 64) - 1
    kept = KeptTape((3, 1), ("mark:R1", "pair:running"), 40)
    given_ = result(
        batch(4, campaign=1 << 63),
        refused={"too large": 2},
        features={"mark:R1": 3},
        tapes=(kept,),
        findings=(found(),),
        ended="by a signal",
    )
    assert store.add(given_, model_hash="abc")
    with Store.open(store.path, read_only=True) as reader:
        (row,) = reader.batches()
        assert (row.number, row.first, row.runs, row.events, row.refused) == (4, 40, 10, 400, {"too large": 2})
        assert (row.ended, row.campaign, row.version) == ("by a signal", 1 << 63, "v1")
        assert reader.batch_of(0, 45) == row
        assert reader.batch_of(0, 50) is None
        (covered,) = reader.coverage()
        assert (covered.feature, covered.runs, covered.number) == ("mark:R1", 3, 4)
        (tape,) = reader.tapes("model", reader.tapes_to("model"))
        assert (tape.tape, tape.features, tape.cost, tape.model_hash) == ((3, 1), kept.features, 40, "abc")
        (finding,) = reader.findings()
        assert (finding.signature, finding.where, finding.run, finding.state) == (
            "accounting:C1:x",
            "f.py:1",
            3,
            "open",
        )
        assert [replay.text for replay in reader.replays(finding.signature, "model")] == ["replay of size (1,)"]


@settings(max_examples=20)
@given(
    numbers=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(1, 9)), max_size=30),
    reopened=st.integers(0, 29),
)
def test_a_batch_is_counted_once_however_often_it_comes(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[tuple[int, int, int]], reopened: int
) -> None:
    path = tmp_path_factory.mktemp("store") / "c.db"
    store = Store.open(path)
    counted: dict[tuple[int, int], int] = {}
    for place, (shard, number, runs) in enumerate(numbers):
        if place == reopened:
            store.close()
            store = Store.open(path)
        given_ = result(
            batch(number, shard), runs=runs, features={"mark:R1": runs}, findings=(found(count=runs),), events=runs
        )
        assert store.add(given_) is ((shard, number) not in counted)
        counted.setdefault((shard, number), runs)
        for each in range(3):
            stored = {n for s, n in counted if s == each}
            assert store.next_number(each) == next(n for n in range(99) if n not in stored)
    total = sum(counted.values())
    assert store.totals() == (total, total, 2.0 * len(counted))
    assert sum(covered.runs for covered in store.coverage()) == total
    assert sum(finding.count for finding in store.findings()) == total
    store.close()


def test_a_batch_that_was_lost_comes_before_new_ones(store: Store) -> None:
    for number in (0, 2, 3):
        store.add(result(batch(number)))
    assert store.next_number(0) == 1
    assert store.next_number(0, taken={1, 4}) == 5
    assert store.next_number(1) == 0


def test_a_finding_keeps_its_first_hit_and_its_smallest_replays(store: Store) -> None:
    sizes = [(5, 1), (4, 2), (9, 9), (4, 1), (7, 7), (4, 1)]
    for number, size in enumerate(sizes):
        store.add(result(batch(number, strategy=f"s{number}"), f"v{number}", findings=(found(size=size),)))
    (finding,) = store.findings()
    assert (finding.strategy, finding.number, finding.count) == ("s0", 0, 2 * len(sizes))
    assert (finding.first_seen, finding.last_seen) == ("v0", "v5")
    assert finding.cpu_seconds == 0.5
    kept = store.replays(finding.signature, "model")
    assert [replay.size for replay in kept] == sorted(set(sizes))[:REPLAYS_MAX]
    assert [seen.version for seen in store.seen()] == [f"v{number}" for number in range(len(sizes))]


def test_time_to_finding_is_the_cpu_time_of_the_whole_campaign(store: Store) -> None:
    store.add(result(batch(0), cpu_seconds=30.0))
    store.add(result(batch(1), findings=(found(),)))
    assert store.findings()[0].cpu_seconds == 30.5


def test_time_to_finding_of_a_strategy_is_its_own_cpu_time_on_the_target(store: Store) -> None:
    for number, strategy, cpu_seconds, findings in (
        (0, "swarm", 10.0, ()),
        (1, "pct", 7.0, (found(),)),
        (2, "swarm", 5.0, (found(), found("other"))),
        (3, "swarm", 5.0, (found(),)),
    ):
        store.add(result(batch(number, strategy=strategy), cpu_seconds=cpu_seconds, findings=findings))
    store.add(result(batch(4, target="elsewhere", strategy="delays"), findings=(found(),)))
    hits = {(h.strategy, h.target, h.signature): (h.cpu_seconds, h.count, h.number) for h in store.hits()}
    assert hits == {
        ("pct", "model", "accounting:C1:x"): (0.5, 2, 1),
        ("swarm", "model", "accounting:C1:x"): (10.5, 4, 2),
        ("swarm", "model", "other"): (10.5, 2, 2),
        ("delays", "elsewhere", "accounting:C1:x"): (0.5, 2, 4),
    }


def test_a_finding_that_is_marked_fixed_is_open_again_when_it_is_hit(store: Store) -> None:
    store.add(result(batch(0), "v1", findings=(found(),)))
    (finding,) = store.findings()
    store.mark(finding, "model", "v2", "fixed")
    assert [(f.state, f.last_seen) for f in store.findings()] == [("fixed", "v1")]
    store.mark(finding, "model", "v3", "not applicable")
    assert [f.state for f in store.findings()] == ["not applicable"]
    store.add(result(batch(1), "v4", findings=(found(),)))
    assert [(f.state, f.last_seen) for f in store.findings()] == [("open", "v4")]
    assert [(s.version, s.verdict) for s in store.seen()] == [
        ("v1", "shown"),
        ("v2", "fixed"),
        ("v3", "not applicable"),
        ("v4", "shown"),
    ]


def test_a_finding_that_another_target_shows_too_is_one_of_that_target(store: Store) -> None:
    store.add(result(batch(0), "v1", findings=(found(),)))
    (finding,) = store.findings()
    for target, verdict in (("same", "shown"), ("mended", "fixed")):
        store.mark(finding, target, "v2", verdict)  # type: ignore[arg-type]
    (_, other) = store.findings()
    assert (other.target, other.count, other.first_seen, other.state) == ("same", 0, "v2", "open")
    assert [replay.text for replay in store.replays(other.signature, "same")] == ["replay of size (1,)"]
    store.mark(finding, "same", "v3", "shown")
    assert [(f.target, f.last_seen) for f in store.findings()] == [("model", "v1"), ("same", "v3")]


def test_tapes_are_kept_once_and_given_as_they_were_at_the_time(store: Store) -> None:
    assert store.tapes_to("model") == 0
    for cost in (1, 2):
        store.add_tape("model", KeptTape((1, 2), ("a",), cost))
    assert store.add_tape("other", KeptTape((1, 2), ("a",), 1))
    assert store.add_tape("model", KeptTape((9,), ("b",), 1), origin="a folder")
    assert not store.add_tape("model", KeptTape((9,), ("b",), 1))
    newest = store.tapes_to("model")
    assert [tape.tape for tape in store.tapes("model", newest)] == [(1, 2), (9,)]
    assert [tape.tape for tape in store.tapes("model", newest, most=1)] == [(9,)]
    assert [tape.tape for tape in store.tapes("model", newest - 1)] == [(1, 2)]
    assert digest_of("model", (1, 2)) != digest_of("other", (1, 2))


def test_a_full_disk_stores_a_batch_whole_or_not_at_all(store: Store) -> None:
    store.add(result(batch(0)))
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = result(
        batch(1), features={f"pair:{n}": 1 for n in range(500)}, findings=(found(replay="x" * 50_000, count=1),)
    )
    with pytest.raises(UsageError, match=r"cannot write .*full.*--resume"):
        store.add(large)
    assert [row.number for row in store.batches()] == [0]
    assert store.coverage() == []
    assert store.next_number(0) == 1
    store._connection.execute("PRAGMA max_page_count = 100000")
    assert store.add(large)
    assert len(store.coverage()) == 500


def test_a_second_campaign_on_a_store_is_told_who_has_it(store: Store) -> None:
    with pytest.raises(UsageError, match=rf"is being written by a campaign in process {os.getpid()}"):
        Store.open(store.path)
    store.close()
    Store.open(store.path).close()


def test_a_process_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from specsim.campaign.store import Store\n"
        "store = Store.open(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "c.db")], check=False, timeout=60)
    assert ended.returncode == -9
    with Store.open(tmp_path / "c.db") as store:
        assert store.next_number(0) == 0


def test_a_store_that_was_replaced_or_removed_meanwhile_is_not_written(store: Store) -> None:
    store.path.rename(store.path.with_name("elsewhere.db"))
    with pytest.raises(UsageError, match="was removed while"):
        store.add(result(batch(0)))
    store.path.touch()
    with pytest.raises(UsageError, match="was replaced while"):
        store.add(result(batch(0)))


def damaged(path: Path) -> None:
    path.write_bytes(b"no database" * 100)


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs(x)")


def of_a_newer_format(path: Path) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", [str(FORMAT + 1)])
        connection.execute("UPDATE meta SET value = '9.0' WHERE key = 'specsim'")


def a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (damaged, "is no store of a campaign"),
        (of_another_program, "is a database, but no store"),
        (of_a_newer_format, f"has format '{FORMAT + 1}', this specsim reads {FORMAT}; use specsim 9.0"),
        (a_folder, "cannot open|there is no campaign in"),
    ],
)
def test_what_is_no_store_is_refused_and_left_as_it_is(
    tmp_path: Path,
    make: object,
    message: str,
    read_only: bool,
) -> None:
    path = tmp_path / "c.db"
    make(path)  # type: ignore[operator]
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(UsageError, match=message):
        Store.open(path, read_only=read_only)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_store_that_is_not_there_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no campaign in"):
        Store.open(tmp_path / "c.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_written_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.db"
    with Store.open(path) as store:
        store.add(result(batch(0)))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="is read-only; make it writable, or name another --store"):
        Store.open(path)
    with Store.open(path, read_only=True) as reader:
        assert Counter(row.runs for row in reader.batches()) == {10: 1}


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write beside"):
        Store.open(tmp_path / "file" / "c.db")
