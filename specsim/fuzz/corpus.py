"""Corpora that campaigns share: a folder or a Redis, through Hypothesis' database classes.

A corpus holds tapes, in the project's own format; to Hypothesis an entry is a string of bytes. It is a cache: the
store of a campaign keeps every tape, so a corpus may be emptied at any time, and what it could not take is sent again
as soon as it answers. What is no tape of this format is skipped and counted. A tape of another version of the
simulator is taken, since every tape is a schedule; but what it reached is not believed.

One place is written and read; others, such as what CI found, are only read.

    {"format": "specsim.tape/1", "specsim": VERSION, "target": TARGET, "model": HASH OF THE SIMULATOR,
     "tape": [...], "features": [...], "cost": EVENTS}
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, MultiplexedDatabase, ReadOnlyDatabase

from specsim.errors import UsageError
from specsim.files import make_folder
from specsim.fuzz.work import KeptTape

FORMAT = "specsim.tape/1"
KEY = "specsim tapes of "
COST_MAX = 1 << 40  # events, which a store adds up
TAPE_MAX = 1 << 16  # choices; schedules have hundreds
NUMBER_MAX = (1 << 63) - 1  # a choice, or a cost: what a store can hold
FEATURES_MAX, FEATURE_MAX = 1 << 14, 1 << 10  # names of an entry; characters of a name
ENTRY_BYTES_MAX = 4 << 20
SECONDS_MAX = 5.0  # that a Redis has for an answer
WAIT_MAX = 32  # looks that a place which is away is spared
CORRUPT, FOREIGN, NEWER = "corrupt", "foreign", "of another format"

Say = Callable[[str], None]


class Place(ExampleDatabase):
    """A database that may go away: it is then empty and takes nothing, which is said once, and is asked again after
    1, 2, 4, ... looks.
    """

    def __init__(
        self, database: ExampleDatabase, name: str, errors: tuple[type[Exception], ...], *, read_only: bool
    ) -> None:
        super().__init__()
        self._database = database
        self._name = name
        self._errors = errors
        self._consequence = "its tapes are not read" if read_only else "tapes stay in the campaign's own store"
        self._wait = 0
        self._looks_left = 0
        self.is_away = False
        self.say: Say = print

    def fetch(self, key: bytes) -> Iterator[bytes]:
        self._looks_left -= 1
        if self.is_away and self._looks_left > 0:
            return
        try:
            entries = list(self._database.fetch(key))
        except self._errors as error:
            self._lost(error)
            return
        if self.is_away:
            self.is_away, self._wait = False, 0
            self.say(f"the corpus {self._name} answers again")
        yield from entries

    def save(self, key: bytes, value: bytes) -> None:
        if not self.is_away:
            try:
                self._database.save(key, value)
            except self._errors as error:
                self._lost(error)

    def delete(self, key: bytes, value: bytes) -> None:
        """A corpus only grows."""

    def _lost(self, error: Exception) -> None:
        self._wait = min(WAIT_MAX, 2 * self._wait or 1)
        self._looks_left = self._wait
        if not self.is_away:
            self.is_away = True
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            self.say(f"the corpus {self._name} does not answer ({why}): {self._consequence} until it does")


class Corpus:
    """The tapes that campaigns share. `own` is written and read, `others` are only read. `model_hash` is that of this
    process' simulator. `skipped` counts the entries that are no tapes of this format, by what they are.
    """

    def __init__(self, own: Place | None, others: Sequence[Place], model_hash: str, specsim_version: str) -> None:
        self._own = own
        self._places = [*([own] if own is not None else []), *others]
        written = [own] if own is not None else []
        self._database = MultiplexedDatabase(*written, *(ReadOnlyDatabase(place) for place in others))
        self._model_hash = model_hash
        self._specsim_version = specsim_version
        self._seen: dict[str, set[bytes]] = {}
        self._unsent: dict[str, dict[bytes, None]] = {}
        self.skipped: Counter[str] = Counter()

    def tell(self, say: Say) -> None:
        """`say` gets one sentence when a place goes away, at the start too, and one when it is back."""
        for place in self._places:
            place.say = say

    def offer(self, target: str, tapes: Iterable[KeptTape]) -> None:
        """Send tapes. Each counts as sent when it was read from the corpus: until then it is sent with every look."""
        unsent = self._unsent.setdefault(target, {})
        for kept in tapes:
            entry = encode(target, kept, self._model_hash, self._specsim_version)
            if entry not in self._seen.get(target, ()) and self._own is not None:
                unsent[entry] = None
                self._own.save(_key(target), entry)

    def look(self, target: str) -> list[KeptTape]:
        """What others have sent since the last look, in an order that depends on the tapes alone. The tapes of another
        version of the simulator come without features.
        """
        seen, unsent = self._seen.setdefault(target, set()), self._unsent.setdefault(target, {})
        found = []
        for entry in sorted(self._database.fetch(_key(target))):
            if entry in seen:
                continue
            seen.add(entry)
            if entry in unsent:
                continue
            decoded = decode(target, entry, self._model_hash)
            if isinstance(decoded, str):
                self.skipped[decoded] += 1
            else:
                found.append(decoded)
        for entry in list(unsent):
            if entry in seen:
                del unsent[entry]
            elif self._own is not None:
                self._own.save(_key(target), entry)
        return found

    @property
    def unsent(self) -> int:
        """How many tapes the corpus has not taken yet."""
        return sum(map(len, self._unsent.values()))


def open_corpus(own: str | None, others: Sequence[str], *, model_hash: str, specsim_version: str) -> Corpus:
    """The corpus of `--corpus` and `--corpus-read`, each a folder or the URL of a Redis. Nothing is asked of a Redis
    yet. Raises UsageError for a folder that cannot be used and for a URL that none is.
    """
    written = _place(own, "--corpus", read_only=False) if own is not None else None
    read = [_place(other, "--corpus-read", read_only=True) for other in others]
    return Corpus(written, read, model_hash, specsim_version)


def encode(target: str, kept: KeptTape, model_hash: str, specsim_version: str) -> bytes:
    """A tape as an entry: the same bytes for the same tape."""
    entry = {
        "format": FORMAT,
        "specsim": specsim_version,
        "target": target,
        "model": model_hash,
        "tape": list(kept.tape),
        "features": sorted(kept.features),
        "cost": kept.cost,
    }
    return json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()


def decode(target: str, entry: bytes, model_hash: str) -> KeptTape | str:
    """The tape of an entry, without features when the simulator was another; or what the entry is, when it is none."""
    if len(entry) > ENTRY_BYTES_MAX:
        return CORRUPT
    try:
        data = json.loads(entry)
    except (ValueError, RecursionError):
        return CORRUPT
    name = data.get("format") if isinstance(data, dict) else None
    if not isinstance(name, str) or not name.startswith("specsim.tape/"):
        return FOREIGN
    if name != FORMAT:
        return NEWER
    tape, features, cost = data.get("tape"), data.get("features"), data.get("cost")
    if not (_are_numbers(tape) and _are_names(features) and _is_number(cost) and cost <= COST_MAX):
        return CORRUPT
    if data.get("target") != target:
        return FOREIGN
    return KeptTape(tuple(tape), tuple(features) if data.get("model") == model_hash else (), cost)


def _are_numbers(tape: Any) -> bool:
    return isinstance(tape, list) and len(tape) <= TAPE_MAX and all(map(_is_number, tape))


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= NUMBER_MAX


def _are_names(features: Any) -> bool:
    if not isinstance(features, list) or len(features) > FEATURES_MAX:
        return False
    return all(isinstance(name, str) and len(name) <= FEATURE_MAX and _is_unicode(name) for name in features)


def _is_unicode(text: str) -> bool:
    """Whether no half of a surrogate pair is in it, which a store cannot hold."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _key(target: str) -> bytes:
    return (KEY + target).encode()


def _place(where: str, option: str, *, read_only: bool) -> Place:
    """The folder or Redis at `where`."""
    if "://" in where:
        return _redis(where, option, read_only=read_only)
    folder = Path(where).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{option} {where} is a file", "give a folder, or redis://HOST:PORT")
    if read_only and not folder.is_dir():
        raise UsageError(f"{option} {where}: there is no such folder", "give a folder that holds a corpus")
    if not read_only:
        try:
            make_folder(folder)
            writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError as error:
            raise UsageError(f"{option} {where} cannot be made ({error.strerror})", "give another folder") from error
        if not writable:
            raise UsageError(f"{option} {where} cannot be written", f"read it only: --corpus-read {where}")
    return Place(DirectoryBasedExampleDatabase(folder), str(folder), (OSError,), read_only=read_only)


def _redis(url: str, option: str, *, read_only: bool) -> Place:
    """The Redis at a URL; it is not asked anything yet."""
    scheme = urlsplit(url).scheme
    if scheme not in ("redis", "rediss", "unix"):
        raise UsageError(f"{option} {url}: a corpus cannot be a {scheme}://", "give a folder, or redis://HOST:PORT")
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
        from redis.retry import Retry
    except ImportError as error:
        raise UsageError(
            f"{option} {shown(url)} needs the package redis", "install it with pip install 'specsim[redis]'"
        ) from error
    try:
        connection = Redis.from_url(
            url, socket_timeout=SECONDS_MAX, socket_connect_timeout=SECONDS_MAX, retry=Retry(NoBackoff(), 0)
        )
    except ValueError as error:
        raise UsageError(f"{option} {shown(url)} is no URL of a Redis ({error})", "give redis://HOST:PORT") from error
    return Place(RedisExampleDatabase(connection), shown(url), (RedisError, OSError), read_only=read_only)


def shown(url: str) -> str:
    """A URL without its user and password."""
    before, _, after = url.partition("://")
    return f"{before}://{after.rpartition('@')[2]}"
