"""A campaign's part in a corpus: what others found goes into its store, and what its store kept goes out.

What is received or sent reaches something that the store did not know; the store is what lasts, so what it has of a
target is offered again when the target's first batch begins, whatever became of the process that found it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from specsim.errors import UsageError
from specsim.fuzz.corpus import Corpus
from specsim.fuzz.reached import worth_keeping
from specsim.fuzz.store import Store
from specsim.fuzz.work import BatchResult, KeptTape

ORIGIN = "corpus"


class Sharing:
    """Between one store and one corpus. `received` and `sent` count tapes."""

    def __init__(self, store: Store, corpus: Corpus, model_hash: str) -> None:
        self._store = store
        self._corpus = corpus
        self._model_hash = model_hash
        self._known: dict[str, set[str]] = {}
        self.received = 0
        self.sent = 0

    def receive(self, target: str) -> None:
        """Store what others found of a target since the last call: before a batch gets its tapes."""
        known = self._known.get(target)
        if known is None:
            known = self._known[target] = {c.feature for c in self._store.coverage() if c.target == target}
            newest = self._store.tapes(target, self._store.tapes_to(target))
            mine = [each for each in newest if each.origin != ORIGIN and each.model_hash == self._model_hash]
            self._corpus.offer(target, [KeptTape(each.tape, each.features, each.cost) for each in mine])
        with contextlib.suppress(UsageError):  # a store that cannot be written says so at the next result
            for kept in self._worth(known, self._corpus.look(target)):
                self.received += self._store.add_tape(target, kept, self._model_hash, ORIGIN)

    def send(self, result: BatchResult) -> None:
        """Offer what a batch found: after its result was stored."""
        target = result.batch.target
        if not result.tapes:
            return
        kept = self._worth(self._known.setdefault(target, set()), result.tapes)
        self.sent += len(kept)
        self._corpus.offer(target, kept)

    def end(self) -> None:
        """A last look: what was sent is then known to have arrived, or not."""
        for target in self._known:
            self.receive(target)

    def __str__(self) -> str:
        skipped = ", ".join(f"{count} {what}" for what, count in sorted(self._corpus.skipped.items()))
        words = [f"{self.sent} tapes sent, {self.received} received"]
        words += [f"{self._corpus.unsent} not sent yet: the next campaign with this store does"] * bool(
            self._corpus.unsent
        )
        words += [f"entries that are no tapes of this version: {skipped}"] * bool(skipped)
        return "; ".join(words)

    def to_json(self) -> dict[str, int | dict[str, int]]:
        corpus = self._corpus
        skipped = dict(sorted(corpus.skipped.items()))
        return {"sent": self.sent, "received": self.received, "unsent": corpus.unsent, "skipped": skipped}

    def _worth(self, known: set[str], tapes: Iterable[KeptTape]) -> list[KeptTape]:
        kept = worth_keeping(tapes, known.__contains__)
        for tape in kept:
            known.update(tape.features)
        return kept
