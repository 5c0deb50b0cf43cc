"""The store of a campaign loses nothing, counts once, and refuses what it cannot use with one sentence."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.support.batch_results import batch, found, result
from specsim.commands.campaign_pages import write_campaign
from specsim.errors import UsageError
from specsim.fuzz.batches import batch_at, plan_from_json
from specsim.fuzz.store import REPLAYS_MAX, Store
from specsim.fuzz.store_file import FORMAT


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "c.db", campaign=(1 << 64) - 1) as store:
        yield store


def test_what_was_stored_is_read_again_by_another_process_meanwhile(store: Store) -> None:
    assert store.campaign == (1 << 64) - 1
    given_ = result(
        batch(4, campaign=1 << 63),
        refused={"too large": 2},
        features={"ops:get_last_loc kernel:get_last_loc": 3},
        findings=(found(),),
        ended="by a signal",
    )
    assert store.add(given_)
    with Store.open(store.path, read_only=True) as reader:
        (row,) = reader.batches()
        assert (row.number, row.first, row.runs, row.events, row.refused) == (4, 40, 10, 400, {"too large": 2})
        assert (row.ended, row.campaign, row.version) == ("by a signal", 1 << 63, "v1")
        assert reader.batch_of(0, 45) == row
        assert reader.batch_of(0, 50) is None
        (covered,) = reader.coverage()
        assert (covered.feature, covered.runs, covered.number) == ("ops:get_last_loc kernel:get_last_loc", 3, 4)
        (finding,) = reader.findings()
        assert (finding.signature, finding.where, finding.run, finding.state) == (
            "scheduler:C1:x",
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
            batch(number, shard),
            runs=runs,
            features={"ops:get_last_loc kernel:get_last_loc": runs},
            findings=(found(count=runs),),
            events=runs,
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
        store.add(result(batch(number), f"v{number}", findings=(found(size=size),)))
    (finding,) = store.findings()
    assert (finding.number, finding.count) == (0, 2 * len(sizes))
    assert (finding.first_seen, finding.last_seen) == ("v0", "v5")
    assert finding.cpu_seconds == 0.5
    kept = store.replays(finding.signature, "model")
    assert [replay.size for replay in kept] == sorted(set(sizes))[:REPLAYS_MAX]
    assert [seen.version for seen in store.seen()] == [f"v{number}" for number in range(len(sizes))]


def test_time_to_finding_is_the_cpu_time_of_the_whole_campaign(store: Store) -> None:
    store.add(result(batch(0), cpu_seconds=30.0))
    store.add(result(batch(1), findings=(found(),)))
    assert store.findings()[0].cpu_seconds == 30.5


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


def test_a_second_campaign_on_a_store_learns_who_has_it(store: Store) -> None:
    with pytest.raises(UsageError, match=rf"is being written by a campaign in process {os.getpid()}"):
        Store.open(store.path)
    store.close()
    Store.open(store.path).close()


def test_a_process_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from specsim.fuzz.store import Store\n"
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
        (a_folder, "is not a regular file|there is no campaign in"),
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


# Damage

PLAN = '{"campaign": 7, "lots": [{"target": "model", "tier": "scheduler", "weight": 20}]}'


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with rows in every table."""
    path = tmp_path_factory.mktemp("sound") / "c.db"
    with Store.open(path, campaign=7) as store:
        store.set_meta(plan=PLAN)
        for number in range(3):
            features = {f"ops:gather_rows {number}": 3, "ops:get_last_loc kernel": 2}
            store.add(result(batch(number), features=features, findings=(found(),), refused={"why": 1}))
        store.mark(store.findings()[0], "model", "v2", "fixed")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()


def read_all(path: Path, folder: Path) -> str:
    """Report on a store and go on with it, as `report` and `fuzz --resume` do; how that ended."""
    said = []
    with contextlib.suppress(UsageError):
        write_campaign([path], folder / "page", folder / "page.json")
        said.append("report")
    with contextlib.suppress(UsageError), Store.open(path) as store:
        plan = plan_from_json(store.meta().get("plan", ""))
        number = store.next_number(0)
        batch_at(plan, 0, number)
        store.findings(), store.seen(), store.totals(), store.campaign
        store.add(result(batch(number), findings=(found(),)))
        said.append("campaign")
    return " and ".join(said)


def test_an_intact_store_is_reported_and_goes_on(sound: bytes, tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(sound)
    assert read_all(tmp_path / "c.db", tmp_path) == "report and campaign"


@pytest.mark.parametrize("part", range(8))
def test_a_store_with_damaged_bytes_is_one_sentence_or_a_report(sound: bytes, tmp_path: Path, part: int) -> None:
    path = tmp_path / "c.db"
    for number in range(part * 24, part * 24 + 24):
        at = len(sound) * number // 192
        flipped = bytearray(sound)
        flipped[at] ^= 0xFF
        for content in (sound[:at], bytes(flipped), sound[:at] + bytes(64) + sound[at + 64 :]):
            for leftover in tmp_path.glob("c.db*"):
                leftover.unlink()
            path.write_bytes(content)
            read_all(path, tmp_path)


COLUMNS = {
    "meta": "key value",
    "batches": "shard number first count target version tier runs events seconds cpu_seconds refused ended at campaign",
    "coverage": "target feature runs shard number",
    "findings": "signature target tier rule title severity reach where count shard number run "
    "cpu_seconds first_seen last_seen state",
    "seen": "signature target version verdict",
    "replays": "signature target digest size text",
}
VALUES: tuple[Any, ...] = (
    None,
    "",
    "x",
    "\n",
    "pair:x",
    "pair:a b c d e",
    -1,
    0,
    (1 << 63) - 1,
    -(1 << 63),
    1.5,
    -1.5,
    1e300,
    float("inf"),
    b"\xff\xfe",
    "9" * 5000,
    "[" * 100_000,
    "[]",
    "{}",
    "null",
    '{"a": "b"}',
    "[1.5]",
    '["\\ud800"]',
    "[99999999999999999999999]",
    "../../../x",
    "x" * 10_000,
)


@pytest.mark.slow(runs_one_in=3)
@pytest.mark.parametrize(
    ("table", "column"), [(table, name) for table, names in COLUMNS.items() for name in names.split()]
)
def test_a_store_with_a_wrong_value_is_one_sentence_or_a_report(
    sound: bytes, tmp_path: Path, table: str, column: str
) -> None:
    path = tmp_path / "c.db"
    for value in VALUES:
        for leftover in tmp_path.glob("c.db*"):
            leftover.unlink()
        path.write_bytes(sound)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            try:
                connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = 1', (value,))
            except sqlite3.Error:  # a table without rowid, and what the schema refuses
                with contextlib.suppress(sqlite3.Error):
                    connection.execute(f'UPDATE OR IGNORE {table} SET "{column}" = ?', (value,))
            if isinstance(value, bytes):  # text that is no UTF-8
                with contextlib.suppress(sqlite3.Error):
                    connection.execute(f'UPDATE OR IGNORE {table} SET "{column}" = CAST("{column}" AS TEXT)')
        read_all(path, tmp_path)


@pytest.mark.parametrize("table", list(COLUMNS))
@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE {table}",
        "DELETE FROM {table}",
        "ALTER TABLE {table} ADD COLUMN more TEXT",
        "ALTER TABLE {table} RENAME TO old_{table}",
        "ALTER TABLE {table} RENAME COLUMN {column} TO other",
        "CREATE TABLE old AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE old RENAME TO {table}; "
        "INSERT INTO {table} SELECT * FROM {table}",
        "DROP TABLE {table}; CREATE VIEW {table} AS WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "CREATE TRIGGER t AFTER INSERT ON batches BEGIN DELETE FROM {table}; END",
    ],
)
def test_a_store_with_other_tables_is_one_sentence_or_a_report(
    sound: bytes, tmp_path: Path, table: str, change: str
) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(sound)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(change.format(table=table, column=COLUMNS[table].split()[-1]))
    read_all(path, tmp_path)


@pytest.mark.parametrize("path", [".", "..", "/", "folder", "folder/", "fifo", "x" * 300, "folder/c.db/x"])
def test_a_store_that_is_no_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "c.db").write_bytes(b"a file")
    os.mkfifo(tmp_path / "fifo")
    for read_only in (False, True):
        with pytest.raises(UsageError):
            Store.open(Path(path), read_only=read_only)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fifo", "folder"]


def test_text_that_sqlite_does_not_take_is_stored_escaped(store: Store) -> None:
    odd = found(signature="scheduler:C1:\ud800", title="half a pair: \udfff", replay="\ud800")
    assert store.add(result(batch(), findings=(odd,), refused={"\ud800": 1}, ended="\ud800"))
    (row,) = store.findings()
    assert (row.signature, row.title) == ("scheduler:C1:\\ud800", "half a pair: \\udfff")
    assert store.batches()[0].refused == {"\\ud800": 1}
