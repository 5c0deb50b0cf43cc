"""Stores of campaigns: a small one that is whole, damaged."""

from __future__ import annotations

import functools
import json
import random
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from property_tests.support.attack.damage import HOSTILE_TEXT, JSON_SHAPES, NUMBERS, damaged, flipped
from property_tests.support.attack.folder import Folder
from property_tests.support.attack.replays import FIXTURES
from property_tests.support.attack.runner import Attack
from specsim.fuzz.batches import BatchPlan, lots_of
from specsim.fuzz.store import Store
from specsim.fuzz.work import Batch, BatchResult, RunFinding

TABLES = ("meta", "batches", "coverage", "findings", "seen", "replays")
# Columns that hold JSON.
JSON_COLUMNS = (
    ("meta", "value", "key = 'plan'"),
    ("batches", "refused", "1"),
    ("replays", "size", "1"),
    ("replays", "text", "1"),
)
STORE = "campaign.db"
BRIEF = ("--budget-seconds", "3", "--jobs", "1", "--hang-seconds", "10")


@functools.cache
def whole() -> bytes:
    """A store with two batches, a finding and its replay file."""
    replay = (FIXTURES / "slots-freed-under-a-running-request.json").read_text()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, STORE)
        with Store.open(path, campaign=7) as store:
            plan = BatchPlan(7, lots_of({"model": ["scheduler"]}))
            store.set_meta(campaign="7", plan=plan.to_json())
            for number in range(2):
                batch = Batch(7, 0, number, number * 10, 10, "model", "scheduler")
                found = RunFinding(
                    signature="scheduler:I05:read",
                    tier="scheduler",
                    rule="I05",
                    title="a title",
                    severity="leak",
                    reach="default",
                    where="f.py:1",
                    index=number * 10 + 3,
                    count=2,
                    replay=replay,
                    size=(4, 2),
                    cpu_seconds=0.5,
                )
                features = {f"ops:gather_rows {number}": 3, "ops:get_last_loc kernel": 2}
                store.add(
                    BatchResult(
                        batch=batch,
                        version="v1",
                        runs=10,
                        events=400,
                        seconds=1.0,
                        cpu_seconds=2.0,
                        refused={"too large": 1},
                        features=features,
                        findings=(found,),
                    ),
                )
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("UPDATE meta SET value = '0' WHERE key = 'created'")
            connection.execute("UPDATE batches SET at = 1.0")
            connection.commit()
        return path.read_bytes()


def attack(random_: random.Random, folder: Folder) -> Attack:
    """A damaged store, and a command that reads it."""
    path = folder.write(STORE, whole())
    kind = random_.randrange(8)
    if kind == 0:
        content = whole()
        path.write_bytes(content[: random_.choice((0, 1, 50, 100, 4096, random_.randrange(len(content))))])
        what = "a store that is cut off"
    elif kind == 1:
        path.write_bytes(flipped(random_, whole()))
        what = "a store with bytes changed"
    else:
        what = _damage_by_sql(random_, path)
    other = folder.write("other.db", whole()).name if random_.random() < 0.2 else ""
    commands = (
        ("report", "--campaign", STORE, *((other,) if other else ()), "--html", "pages", "--json", "listed.json"),
        ("report", "--campaign", STORE, "--html", "pages"),
        ("fuzz", "--resume", "--store", STORE, "--json", "ran.json", *BRIEF),
        ("fuzz", "--again", "0:3", "--store", STORE, "--hang-seconds", "10"),
        ("fuzz", "--again", "0:13", "--store", STORE, "--out", "found", "--json", "again.json"),
    )
    weights = (4, 4, 1, 1, 1)
    (command,) = random_.choices(commands, weights)
    may_change = frozenset({STORE, f"{STORE}-wal", f"{STORE}-shm"}) if command[0] == "fuzz" else frozenset()
    return Attack(what, command, limit_s=30.0, may_change=may_change)


def _damage_by_sql(random_: random.Random, path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        what = ""
        for _ in range(random_.choice((1, 1, 2, 3))):
            try:
                what = _one_change(random_, connection)
            except sqlite3.Error as error:  # a table that an earlier change dropped
                what = what or f"a store that SQLite says is damaged ({error})"
        connection.commit()
    return what


def _one_change(random_: random.Random, connection: sqlite3.Connection) -> str:
    table = random_.choice(TABLES)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column = random_.choice(columns) if columns else "x"
    kind = random_.randrange(8)
    if kind == 0:
        connection.execute(f"DROP TABLE {table}")
        return f"a store without its table {table}"
    if kind == 1:
        connection.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO renamed')
        return f"a store without the column {column} of {table}"
    if kind == 2:
        connection.execute(f"DELETE FROM {table}")
        return f"a store with an empty table {table}"
    if kind == 3:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN more TEXT DEFAULT 'x'")
        return f"a store with one more column in {table}"
    if kind < 6:
        table, column, which = random_.choice(JSON_COLUMNS)
        (text,) = connection.execute(f'SELECT "{column}" FROM {table} WHERE {which}').fetchone() or ("0",)
        if random_.random() < 0.5:
            text = random_.choice((*JSON_SHAPES, "[" * 100_000))
        else:
            text = json.dumps(damaged(random_, json.loads(text)))
        connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {which}', (_storable(text),))
        return f"a store with JSON of another shape in {column} of {table}"
    value = random_.choice((None, b"\x00\xff", *HOSTILE_TEXT[:12], *NUMBERS))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = str(value)
    connection.execute(f'UPDATE OR REPLACE {table} SET "{column}" = ?', (_storable(value),))
    return f"a store with {value!r:.30} as {column} of {table}"


def _storable(value: object) -> object:
    """Text as bytes where SQLite's interface would refuse it: a file can hold it all the same."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass")
    return value
