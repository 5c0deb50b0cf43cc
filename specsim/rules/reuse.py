"""What was computed is not computed again while the prefix cache has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from specsim.verdict import Rule, Severity
from specsim.world.rule import Check, Lie, Run, Violation
from specsim.world.scheduler import Chunk, Seen, first_difference, held_in_window, held_of, of_salt
from specsim.world.users import LATENCY


def _begins_at(start: int, held: int) -> Callable[[Seen], Seen]:
    def says(seen: Seen) -> Seen:
        launches = [one._replace(chunks=(Chunk(start, 1, held),) * len(one.rids)) for one in seen.launches]
        return replace(seen, launches=launches)

    return says


class Reuse(Check):
    """A request that begins starts behind what the prefix cache holds of its prompt, but for a page: the last token is
    computed in any case, and an engine may need the one before a draft. Where an engine keeps what requests computed,
    who was in the last batch of all is in the cache at rest, up to its last page: nobody came who could want its slots.
    Of layers with a sliding window the cache needs what the first token behind attends to. Not looked at are turns of
    sessions, and prompts with logprobs, which are computed; and at rest not what had to make room for KV from outside.
    """

    rule = Rule("S15", "reuse", "what the prefix cache holds is not computed again", Severity.METRIC)
    defects = (Lie("begins with the first token", "seen", _begins_at(0, 10_000)),)

    def after(self, run: Run) -> Iterator[Violation]:
        turns = {turn.rid: turn for turn in run.users.workload.turns}
        for launch in run.started.seen.launches:
            for rid, chunk in zip(launch.rids, launch.chunks, strict=False):
                turn = turns.get(rid)
                if turn is None or turn.session or turn.prompt_logprobs >= 0:
                    continue
                could = self._whole_pages(min(chunk.held, len(turn.prompt) - 1))
                if chunk.start < could:
                    expected = f"to begin behind {could} positions that the cache has of its prompt"
                    yield self.broken("prompt", rid, expected, f"it begins at position {chunk.start}")
                    return

    def at_rest(self, run: Run) -> Iterator[Violation]:
        launches, users = run.started.seen.launches, run.users
        is_looked_at = self.facts.caches and self.setup.radix and not self.setup.connector and launches
        nodes = run.pools.nodes if is_looked_at else None
        windows = run.pools.window_nodes if self.setup.window else []
        drops = [*users.workload.flushes, *(end for pause, _start, end in users.paused if pause.retracts)]
        if nodes is None or windows is None or max(drops, default=-9) + LATENCY >= launches[-1].iteration:
            return
        for told, answer in run.answered:
            if answer.rid not in launches[-1].rids or answer.reason == "abort" or told.turn.session:
                continue
            tokens = (*told.prompt, *answer.tokens[: told.turn.answer])  # I40 finds those beyond its limit
            salt = told.turn.salt
            held, could = held_of(of_salt(nodes, salt), tokens), self._whole_pages(len(tokens) - 1)
            if self.setup.window:
                held = held_in_window(of_salt(windows, salt), tokens, held, self.setup.window - 1)
            if held < could:
                expected = f"{could} positions of it in the cache, behind which nobody came"
                yield self.broken("last", answer.rid, expected, f"it has {held}")
                return

    def _whole_pages(self, positions: int) -> int:
        """Whole pages of so many positions, but for a page."""
        page = max(self.setup.pages)
        return (positions // page - 1) * page


class Salts(Check):
    """What a request begins behind, another one of its salt began to compute before it, whose prompt and answer are the
    same up to there; one without a salt, where it has none. Salts keep tenants apart. Not looked at where KV comes from
    outside the engine.
    """

    rule = Rule("S22", "salts", "a request begins behind KV of requests with its salt", Severity.WRONG_RESULT)
    defects = (Lie("begins behind another's tokens", "seen", _begins_at(1, -1)),)

    def at_rest(self, run: Run) -> Iterator[Violation]:
        told = {one.turn.rid: one for one in run.turns}
        texts = {one.rid: (*one.prompt, *one.outputs) for one in run.started.requests() if one.rid in told}
        before: list[str] = []
        for launch in () if self.setup.connector else run.started.seen.launches:
            for rid, chunk in zip(launch.rids, launch.chunks, strict=False):
                if rid in before or rid not in texts:
                    continue
                others = (texts[one] for one in before if told[one].turn.salt == told[rid].turn.salt)
                shared = max((first_difference(texts[rid], other) for other in others), default=0)
                if chunk.start > shared and chunk.drafts < 0:  # who verifies drafts has begun
                    expected = f"to begin behind {shared} positions at most, of requests with its salt"
                    seen = f"it begins at position {chunk.start}"
                    yield self.broken(told[rid].kind, rid, expected, seen, when=launch.iteration)
                    return
                before.append(rid)  # what one computes, another one in the same launch may begin behind
