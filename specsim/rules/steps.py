"""What a step takes on: how many requests and tokens, and whether whoever decodes verifies drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from specsim.verdict import Rule, Severity
from specsim.world.rule import Check, Lie, Run, Violation, first_of_each
from specsim.world.scheduler import Chunk, Launch, Seen


def _many_more(seen: Seen) -> Seen:
    return replace(seen, launches=[one._replace(chunks=(Chunk(0, 0),) * 99) for one in seen.launches])


def _all_at_once(seen: Seen) -> Seen:
    return replace(seen, launches=[_computes(one, Chunk(0, 10_000)) for one in seen.launches])


def _computes(launch: Launch, chunk: Chunk) -> Launch:
    return launch._replace(chunks=(chunk,) * len(launch.rids))


def _steps(run: Run) -> Iterator[tuple[int, list[Launch]]]:
    """The launches of each iteration that has some."""
    for iteration, launches in groupby(run.started.seen.launches, attrgetter("iteration")):
        yield iteration, list(launches)


class StepLimits(Check):
    """A step has the launches of an iteration that say what they compute. Its requests have a row each, and its tokens
    are those of a prefill of the largest size at most.
    """

    rule = Rule("S18", "step-limits", "a step has no more requests and tokens than it may", Severity.WRONG_RESULT)
    defects = (Lie("runs many more", "seen", _many_more), Lie("computes all at once", "seen", _all_at_once))

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(self._beyond(run))

    def _beyond(self, run: Run) -> Iterator[Violation]:
        for iteration, step in _steps(run):
            chunks = [chunk for launch in step for chunk in launch.chunks]
            for part, count, most in (
                ("rows", len(chunks), self.setup.rows),
                ("tokens", sum(chunk.tokens for chunk in chunks), self.setup.chunk),
            ):
                if count > most:
                    yield self.broken(part, "", f"{most} {part} at most", str(count), when=iteration)


def _drafts_nothing(seen: Seen) -> Seen:
    return replace(seen, launches=[_computes(one, Chunk(30, 1, drafts=0)) for one in seen.launches])


def _verifies_what_nobody_made(seen: Seen) -> Seen:
    launches = [_computes(one, Chunk(30, 4, drafts=3))._replace(makes_none=True) for one in seen.launches]
    return replace(seen, launches=launches)


class Speculation(Check):
    """Where a launch says what it computes, whoever decodes verifies as many drafts as are made, and none behind a
    launch that makes none. Fewer are verified where a step is full and where the context ends. Requests with a grammar,
    which may forbid a draft, are not looked at.
    """

    rule = Rule("S19", "speculation", "whoever decodes verifies the drafts that are made", Severity.METRIC)
    defects = (
        Lie("drafts nothing", "seen", _drafts_nothing),
        Lie("verifies what nobody made", "seen", _verifies_what_nobody_made),
    )

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(self._wrong(run))

    def _wrong(self, run: Run) -> Iterator[Violation]:
        free = {turn.rid for turn in run.users.workload.turns if not turn.grammar}
        unmade = set[str]()
        for iteration, step in _steps(run):
            computed = [each for launch in step for each in zip(launch.rids, launch.chunks, strict=False)]
            is_full = sum(chunk.tokens for _rid, chunk in computed) >= self.setup.chunk
            for rid, chunk in computed:
                whole = min(self.setup.steps, self.facts.context - chunk.start - 2)
                if chunk.drafts < 0 or rid not in free:
                    continue
                if chunk.drafts and rid in unmade:
                    actual = f"{chunk.drafts} behind a launch that made none"
                    yield self.broken("made", rid, "drafts that were made", actual, when=iteration)
                elif chunk.drafts < whole and not is_full:
                    yield self.broken("drafts", rid, f"{whole} drafts", str(chunk.drafts), when=iteration)
            for launch in step:
                unmade = unmade.union(launch.rids) if launch.makes_none else unmade.difference(launch.rids)
