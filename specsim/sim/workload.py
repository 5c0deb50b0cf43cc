"""What clients send, and how much goes wrong: drawn up front from choices, into plain values.

Choice 0 is the dullest everywhere: one short request, nothing special, nothing wrong.

Not drawn yet: aborts and retractions of a session's turns, prefix sharing, chunked prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsim.explore.chooser import Chooser, between, pick
from specsim.sim.config import EngineConfig
from specsim.sim.model import EOS, FIRST_ORDINARY_TOKEN, STOP
from specsim.sim.request import Turn


@dataclass(frozen=True, slots=True)
class Workload:
    """Turns in the order in which they arrive (a session's turn waits for the one before it), and the faults to
    come.
    """

    turns: tuple[Turn, ...]
    aborts_max: int = 0
    retractions_max: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A configuration and a workload."""

    config: EngineConfig
    workload: Workload


def draw_scenario(chooser: Chooser) -> Scenario:
    """One scenario of the default swarm."""
    num_steps = pick(chooser, (3, 1, 2, 5), "num_steps")
    topk = pick(chooser, (1, 1, 2, 4), "topk")
    page_size = pick(chooser, (1, 4, 2, 16), "page_size") if topk == 1 else 1
    most = 1 + topk + (num_steps - 1) * topk**2
    num_draft_tokens = num_steps + 1 if topk == 1 else between(chooser, 2, min(most, 12), "num_draft_tokens")
    sessions = chooser.choose(3, "sessions") if chooser.choose(4, "has sessions") == 1 else 0
    turns = _draw_turns(chooser, sessions)
    lengths = _context_lens(turns)
    config = EngineConfig(
        page_size=page_size,
        topk=topk,
        num_steps=num_steps,
        num_draft_tokens=num_draft_tokens,
        context_len=max(lengths),
        rows=between(chooser, 1, 4, "rows") + sessions,
        overlap=chooser.choose(5, "overlap off") != 1,
    )
    # A pool that is just large enough for the longest request makes memory short; sessions hold theirs between turns.
    spare = pick(chooser, (3, 0, 1, 2), "spare requests in the pool") if not sessions else len(turns)
    pool = config.request_slots_max * (1 + spare)
    if not sessions:
        pool += config.page_size * chooser.choose(8, "spare pages in the pool")
    config = replace(config, pool_slots=pool)
    if sessions:
        return Scenario(config, Workload(turns))
    aborts_max = chooser.choose(3, "aborts")
    retractions_max = chooser.choose(3, "retractions")
    return Scenario(config, Workload(turns, aborts_max, retractions_max))


def _draw_turns(chooser: Chooser, sessions: int) -> tuple[Turn, ...]:
    of_sessions = [
        _draw_turn(chooser, f"s{session}t{turn}", f"s{session}")
        for session in range(sessions)
        for turn in range(between(chooser, 2, 3, "turns"))
    ]
    count = between(chooser, 0 if sessions else 1, 4, "requests")
    return (*of_sessions, *(_draw_turn(chooser, f"r{number}", "") for number in range(count)))


def _draw_turn(chooser: Chooser, rid: str, session: str) -> Turn:
    prompt_len = between(chooser, 1, 12, "prompt length")
    max_new_tokens = between(chooser, 1, 12, "max_new_tokens")
    special_at: dict[int, int] = {}
    kind = pick(chooser, ("none", "eos", "stop"), "special token")
    if kind != "none":
        special_at[chooser.choose(max_new_tokens, "special token at")] = EOS if kind == "eos" else STOP
    ignore_eos = kind == "eos" and chooser.choose(4, "ignore_eos") == 1
    open_ended = not session and chooser.choose(8, "names no limit") == 1
    logprob_start = (
        chooser.choose(prompt_len, "logprobs from") if session and chooser.choose(4, "logprobs") == 1 else -1
    )
    # Prompts differ from request to request, so that a slot of the wrong one is seen.
    number = sum(map(ord, rid)) * 1000
    tokens = tuple(FIRST_ORDINARY_TOKEN + number + i for i in range(prompt_len))
    return Turn(rid, tokens, max_new_tokens, special_at, ignore_eos, session, open_ended, logprob_start)


def _context_lens(turns: tuple[Turn, ...]) -> list[int]:
    """Prompt plus outputs of every turn at most, a session's turns upon one another."""
    lengths: dict[str, int] = {}
    found = []
    for turn in turns:
        before = lengths.get(turn.session, 0) if turn.session else 0
        found.append(before + len(turn.tokens) + turn.max_new_tokens)
        lengths[turn.session] = found[-1]
    return found
