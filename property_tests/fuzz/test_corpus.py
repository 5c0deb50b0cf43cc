"""Corpora: what one campaign sends the others read, what is no tape is counted, and what goes away loses nothing."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from property_tests.support.redis_server import HOW_TO_ADD, RedisServer
from specsim.errors import UsageError
from specsim.fuzz.corpus import CORRUPT, FOREIGN, FORMAT, KEY, NEWER, Corpus, decode, encode, open_corpus
from specsim.fuzz.corpus_sharing import Sharing
from specsim.fuzz.store import Store
from specsim.fuzz.work import KeptTape

ONE = KeptTape((1, 0, 2), ("mark:stale_result_of_finished", "pair:new/0/live/arrive"), 40)
TWO = KeptTape((5,), ("mark:stale_result_of_retracted",), 12)
TAPES = st.builds(
    KeptTape,
    st.lists(st.integers(0, 1 << 40), max_size=20).map(tuple),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=4, unique=True)
    .map(sorted)
    .map(tuple),
    st.integers(0, 10**6),
)


def corpus(own: str | None, *others: str, said: list[str] | None = None, model: str = "m") -> Corpus:
    lines = [] if said is None else said
    opened = open_corpus(own, others, model_hash=model, specsim_version="1.0")
    opened.tell(lines.append)
    return opened


@given(TAPES)
def test_a_tape_comes_back_as_it_was(kept: KeptTape) -> None:
    entry = encode("model", kept, "m", "1.0")
    assert decode("model", entry, "m") == kept
    assert encode("model", kept, "m", "1.0") == entry


@given(st.binary() | st.text().map(str.encode))
def test_bytes_that_are_no_tape_are_distinguished_and_never_raise(entry: bytes) -> None:
    assert decode("model", entry, "m") in (CORRUPT, FOREIGN)


@given(TAPES, st.data())
def test_an_entry_that_was_cut_is_corrupt(kept: KeptTape, data: st.DataObject) -> None:
    entry = encode("model", kept, "m", "1.0")
    assert decode("model", entry[: data.draw(st.integers(0, len(entry) - 1))], "m") == CORRUPT


@pytest.mark.parametrize(
    ("change", "is_"),
    [
        ({"format": "specsim.tape/2"}, NEWER),
        ({"format": "specsim.replay/1"}, FOREIGN),
        ({"format": None}, FOREIGN),
        ({"target": "another"}, FOREIGN),
        ({"tape": None}, CORRUPT),
        ({"tape": [1, True]}, CORRUPT),
        ({"tape": [-1]}, CORRUPT),
        ({"tape": [0.5]}, CORRUPT),
        ({"tape": [0] * 70000}, CORRUPT),
        ({"features": [1]}, CORRUPT),
        ({"cost": -1}, CORRUPT),
        ({"cost": 1 << 63}, CORRUPT),
        ({"cost": 10**400}, CORRUPT),
        ({"tape": [1 << 63]}, CORRUPT),
        ({"features": ["\ud800"]}, CORRUPT),
        ({"features": ["x" * 5000]}, CORRUPT),
        ({"features": ["x"] * 20_000}, CORRUPT),
    ],
)
def test_each_wrong_entry_is_what_it_is(change: dict[str, Any], is_: str) -> None:
    entry = json.loads(encode("model", ONE, "m", "1.0")) | change
    assert decode("model", json.dumps(entry).encode(), "m") == is_


def test_what_one_sends_the_other_reads_once_and_the_sender_never(where: str) -> None:
    sender, reader = corpus(where), corpus(where)
    sender.offer("model", [ONE, TWO])
    assert set(reader.look("model")) == {ONE, TWO}
    assert reader.look("model") == []
    assert sender.look("model") == []
    assert sender.unsent == 0
    assert reader.look("another target") == []
    reader.offer("model", [KeptTape((9,), (), 1)])
    assert sender.look("model") == [KeptTape((9,), (), 1)]


def test_a_tape_of_another_simulator_is_taken_and_its_features_are_not_believed(where: str) -> None:
    corpus(where, model="older").offer("model", [ONE])
    assert corpus(where).look("model") == [KeptTape(ONE.tape, (), ONE.cost)]


def test_wrong_entries_are_counted_once_and_the_rest_is_read(tmp_path: Path) -> None:
    database = DirectoryBasedExampleDatabase(tmp_path)
    for entry in (b"\x00\x01", b'{"format":"specsim.tape/9"}', b"[]", encode("model", ONE, "m", "1.0")):
        database.save((KEY + "model").encode(), entry)
    reader = corpus(str(tmp_path))
    assert reader.look("model") == [ONE]
    assert reader.look("model") == []
    assert reader.skipped == {CORRUPT: 1, NEWER: 1, FOREIGN: 1}


def test_what_ci_found_is_read_and_only_the_local_place_is_written(where: str, tmp_path: Path) -> None:
    corpus(where).offer("model", [ONE])
    developer = corpus(str(tmp_path / "mine"), where)
    assert developer.look("model") == [ONE]
    developer.offer("model", [TWO])
    assert corpus(str(tmp_path / "mine")).look("model") == [TWO]
    assert corpus(where).look("model") == [ONE]


def test_who_only_reads_writes_nowhere(where: str) -> None:
    corpus(where).offer("model", [ONE])
    reader = corpus(None, where)
    reader.offer("model", [TWO])
    assert (reader.look("model"), reader.unsent) == ([ONE], 0)
    assert corpus(where).look("model") == [ONE]


def test_a_redis_that_is_lost_half_way_is_reported_once_and_gets_what_it_missed(redis_server: RedisServer) -> None:
    said: list[str] = []
    sender = corpus(redis_server.url, said=said)
    sender.offer("model", [ONE])
    assert sender.look("model") == []
    redis_server.end()
    for _ in range(3):
        sender.offer("model", [TWO])
        assert sender.look("model") == []
    assert len(said) == 1
    assert f"the corpus {redis_server.url} does not answer (" in said[0]
    assert said[0].endswith("): tapes stay in the campaign's own store until it does")
    assert sender.unsent == 1
    redis_server.start()
    for _ in range(10):
        sender.look("model")
    assert said[1:] == [f"the corpus {redis_server.url} answers again"]
    assert sender.unsent == 0
    assert corpus(redis_server.url).look("model") == [TWO]


def test_a_redis_that_is_not_there_at_the_start_costs_nothing_but_a_sentence(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    redis_server.end()
    said: list[str] = []
    developer = corpus(str(tmp_path / "mine"), redis_server.url, said=said)
    developer.offer("model", [ONE])
    assert developer.look("model") == []
    assert corpus(str(tmp_path / "mine")).look("model") == [ONE]
    assert len(said) == 1
    assert said[0].endswith("): its tapes are not read until it does")
    redis_server.start()
    corpus(redis_server.url).offer("model", [TWO])
    assert [kept for _ in range(4) for kept in developer.look("model")] == [TWO]


def test_a_redis_that_refuses_is_reported_with_its_reason_and_without_the_password(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason=HOW_TO_ADD)
    if shutil.which("redis-server") is None:
        pytest.skip(HOW_TO_ADD)
    server = RedisServer(tmp_path, "--requirepass", "right")
    server.start()
    said: list[str] = []
    sender = corpus(f"redis://:wrong-secret@127.0.0.1:{server.port}", said=said)
    sender.offer("model", [ONE])
    server.end()
    assert len(said) == 1
    assert "password" in said[0]
    assert "secret" not in said[0]


def test_a_place_that_is_away_is_asked_less_and_less_often(redis_server: RedisServer) -> None:
    said: list[str] = []
    sender = corpus(redis_server.url, said=said)
    redis_server.end()
    tries = 0
    fetch = sender._own._database.fetch  # type: ignore[union-attr]

    def counted(key: bytes) -> Any:
        nonlocal tries
        tries += 1
        return fetch(key)

    sender._own._database.fetch = counted  # type: ignore[union-attr, method-assign]
    for _ in range(100):
        sender.look("model")
    assert tries == 8  # after 1, 2, 4, ..., 32, 32 looks


def test_without_the_package_the_command_that_adds_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=r"--corpus redis://host needs the package redis; .*'specsim\[redis\]'"):
        corpus("redis://user:secret@host")


def test_bad_places_are_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for own, others, text in (
        (str(file), (), "--corpus .* is a file; give a folder"),
        (str(file / "below"), (), r"--corpus .* cannot be made \(Not a directory\); give another folder"),
        (None, (str(tmp_path / "nowhere"),), "--corpus-read .*: there is no such folder; give a folder"),
        ("http://host", (), "--corpus http://host: a corpus cannot be a http://; give a folder, or redis://HOST:PORT"),
    ):
        with pytest.raises(UsageError, match=text):
            corpus(own, *others)


def test_a_bad_url_is_refused(redis_server: RedisServer) -> None:
    with pytest.raises(UsageError, match="is no URL of a Redis"):
        corpus(f"{redis_server.url}?socket_timeout=soon")


def test_the_format_is_part_of_every_entry() -> None:
    assert json.loads(encode("model", ONE, "m", "1.0"))["format"] == FORMAT


def test_an_entry_with_a_huge_cost_stops_no_campaign(tmp_path: Path) -> None:
    place, kept = tmp_path / "corpus", KeptTape((1,), ("mark:stale_result_of_finished",), 40)
    entries = DirectoryBasedExampleDatabase(place)
    for cost in (1 << 63, 10**400):
        entries.save(f"{KEY}model".encode(), encode("model", replace(kept, cost=cost), "m", "1.0"))
    entries.save(f"{KEY}model".encode(), encode("model", kept, "m", "1.0"))
    with Store.open(tmp_path / "c.db") as store:
        sharing = Sharing(store, corpus(str(place)), "m")
        sharing.receive("model")
        assert (sharing.received, sharing.to_json()["skipped"]) == (1, {CORRUPT: 2})
        assert [stored.cost for stored in store.tapes("model", store.tapes_to("model"))] == [40]
