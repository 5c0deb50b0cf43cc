"""What is done with a replay file, of whatever tier: run its case once more, twice, or shrink it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specsim.errors import NondeterministicError
from specsim.isolation.conversation import ChildEnded, ended_early, no_answer
from specsim.replay_file import Replay as Stored
from specsim.tiers import process
from specsim.tiers.messages import At, Replay, Replayed, Request, Shrink, Shrunk
from specsim.tiers.process import HASH_SEEDS, Ask
from specsim.tiers.registry import TIERS
from specsim.tiers.tier import ReplayOutcome
from specsim.tiers.transfer import kept


@dataclass(frozen=True, slots=True)
class Smaller:
    """A replay file that was shrunk: the new file, its choices and its size before and after, and whether the code and
    the case are still those of the old one.
    """

    replay: Path
    before: tuple[int, int]
    after: tuple[int, int]
    same_source: bool = True
    same_case: bool = True


def request_of(
    stored: Stored, target: str, cache: Path, hang_seconds: float, *, device: str | None = None, as_found: bool = True
) -> Request:
    """The request for the case of a replay file on a target, with `device` in place of the one that it was found on.
    With `as_found` a mutant that it was found with is put into the target that it was found on.
    """
    is_seeded = as_found and target == stored.target
    return Request(
        tier=stored.tier,
        target=target,
        cache=str(cache),
        seed=stored.seed,
        count=1,
        seconds=hang_seconds,
        hang_seconds=hang_seconds,
        device=device or stored.device or "cpu",
        mutant=stored.mutant if is_seeded else "",
    )


def replay(
    request: Request,
    file: Path,
    hash_seed: str = "",
    ask: Ask | None = None,
    record: bool = False,
    traces: bool = False,
) -> dict[str, Any]:
    """Run a replay file's case; the answer of its tier, also where the case ended its process. With `record` it has
    what a page shows, with `traces` what functions `ran` (NAME, FILE, FIRST LINE, LAST LINE).
    """
    tier = TIERS[request.tier]
    question = msgspec.structs.replace(request, work=Replay(file=str(file), record=record, traces=traces))
    has_begun = False
    try:
        for message in (ask or process.ask)(question, tier.limit_seconds(question), hash_seed):
            has_begun = has_begun or isinstance(message, At)
            if isinstance(message, Replayed):
                return message.answer
    except ChildEnded as ended:
        answer = tier.answer_of_end(ended.hung, ended.text) if has_begun else None
        if answer is None:
            raise ended_early(request.target, ended) from None
        return answer
    raise no_answer(request.target)


def replay_twice(request: Request, file: Path) -> dict[str, Any]:
    """Run a replay file's case in two processes under two hash seeds. Raises NondeterministicError when they differ."""
    one, two = (replay(request, file, hash_seed) for hash_seed in HASH_SEEDS)
    difference = TIERS[request.tier].difference(one, two)
    if difference:
        raise NondeterministicError(difference)
    return two


def outcome_of(stored: Stored, target: str, answer: dict[str, Any]) -> ReplayOutcome:
    """What an answer shows of the finding of a replay file."""
    return TIERS[stored.tier].outcome(stored, target, answer)


def shrink(request: Request, file: Path, out: Path, attempts: int, seconds: float = math.inf) -> Smaller:
    """Shrink a replay file's case, for `seconds` at most; the new file is written into `out`."""
    question = msgspec.structs.replace(request, work=Shrink(file=str(file), attempts=attempts, seconds=seconds))
    try:
        for message in process.ask(question, TIERS[request.tier].limit_seconds(question)):
            if isinstance(message, Shrunk) and message.before and message.after:
                made = kept(message, out)
                return Smaller(made, message.before, message.after, message.same_source, message.same_case)
    except ChildEnded as ended:
        raise ended_early(request.target, ended) from None
    raise no_answer(request.target)
