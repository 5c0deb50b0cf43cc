"""What clients send, and how much goes wrong: drawn up front from choices, into plain values.

Choice 0 is the simplest everywhere: one short request, nothing special, nothing wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsim.choices.chooser import Chooser, between, pick
from specsim.engine.config import EngineConfig
from specsim.engine.features import FEATURES, draw_features, turn_without
from specsim.engine.model import EOS, FIRST_ORDINARY_TOKEN, STOP
from specsim.engine.request import Turn
from specsim.engine.stop_strings import draw_stop

# Large pages in a small share: their pools are large too, and a schedule with them is slow.
_PAGE_SIZES = (*((1, 4, 2, 16) * 8), 64, 256)
# Turns of a session: a few of any length, or many short ones, each of which leaves its own slip in what is kept.
_TURNS_MAX, _LONG_TURNS_MAX = 7, 4
_COMMON_TOKENS = FIRST_ORDINARY_TOKEN + 900_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Turns in the order in which they arrive (a session's turn waits for the one before it), and the faults to
    come.
    """

    turns: tuple[Turn, ...]
    aborts_max: int = 0
    retractions_max: int = 0
    timeouts_max: int = 0
    pauses_max: int = 0

    @property
    def has_distributions(self) -> bool:
        """Whether a request is sampled, penalized or constrained, or wants logprobs."""
        return any(turn.sampling is not None or turn.return_logprob for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A configuration and a workload."""

    config: EngineConfig
    workload: Workload


def draw_scenario(chooser: Chooser, features: frozenset[str] = FEATURES) -> Scenario:
    """One scenario of the default swarm, for an accounting with these of FEATURES. The choices are the same whatever it
    has.
    """
    num_steps = pick(chooser, (3, 1, 2, 5), "num_steps")
    topk = pick(chooser, (1, 1, 2, 4), "topk")
    page_size = pick(chooser, _PAGE_SIZES, "page_size")
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
    pages = chooser.choose(8, "spare pages in the pool") if not sessions else 0
    config = _with_pool(config, spare, pages)
    workload = Workload(turns, aborts_max=chooser.choose(3, "aborts"), retractions_max=chooser.choose(3, "retractions"))
    drawn = _with_features(chooser, Scenario(config, workload))
    if topk > 1 and "paged trees" not in features:
        config = _with_pool(replace(config, page_size=1), spare, pages)
        tight = drawn.config.pool_slots if drawn.config.tight_pool else config.pool_slots
        drawn = replace(drawn, config=replace(drawn.config, page_size=1, pool_slots=tight, swa_pool_slots=0))
    return drawn if features >= FEATURES else _without(FEATURES - features, drawn, Scenario(config, Workload(turns)))


def _with_pool(config: EngineConfig, spare: int, pages: int) -> EngineConfig:
    return replace(config, pool_slots=config.request_slots_max * (1 + spare) + config.page_size * pages)


def _with_features(chooser: Chooser, scenario: Scenario) -> Scenario:
    """Turn on what not every accounting has, each in some scenarios."""
    config, workload = scenario.config, scenario.workload
    if chooser.choose(3, "radix cache") == 1:
        config = replace(config, radix=True, bigram=chooser.choose(2, "bigram keys") == 1)
        workload = replace(workload, turns=tuple(_sharing(chooser, turn) for turn in workload.turns))
    if chooser.choose(4, "chunked prefill") == 1:
        pages = between(chooser, 1, max(1, 8 // config.page_size), "pages of a chunk")
        mixed = chooser.choose(2, "mixed chunk") == 1
        config = replace(config, chunk_size=config.page_size * pages, mixed_chunk=mixed)
    if chooser.choose(4, "late results") == 1:
        config = replace(config, late_results=True)
    if chooser.choose(4, "no limit") == 1:
        whom = chooser.choose(len(workload.turns), "who names no limit")
        turns = tuple(
            replace(turn, open_ended=number == whom and not turn.session) for number, turn in enumerate(workload.turns)
        )
        workload = replace(workload, turns=turns)
    if any(turn.session for turn in workload.turns) and chooser.choose(3, "prompt logprobs") == 1:
        start = chooser.choose(4, "logprobs from")
        workload = replace(workload, turns=tuple(replace(turn, logprob_start=start) for turn in workload.turns))
    config, turns = draw_features(chooser, config, workload.turns)
    workload = replace(workload, turns=turns)
    if config.topk == 1 and not config.graph_sizes and chooser.choose(4, "adaptive steps") == 1:
        config = replace(config, adaptive=True)
    has_sessions = any(turn.session for turn in workload.turns)
    if chooser.choose(4, "sliding window") == 1:
        config = replace(config, window=between(chooser, 1, 12, "window"))
        # A session keeps its window between turns, whatever waits for it.
        pages = (config.pool_slots - config.request_slots_max) // config.page_size if not has_sessions else 0
        fewer = chooser.choose(1 + pages, "fewer pages in the window's pool")
        config = replace(config, swa_pool_slots=config.pool_slots - fewer * config.page_size)
    if not has_sessions and chooser.choose(6, "tight pool") == 1:
        first_need = max(len(turn.tokens) for turn in workload.turns) + config.reserve
        least = -(-first_need // config.page_size) * config.page_size
        spare = chooser.choose(1 + (config.request_slots_max - least) // config.page_size, "pages of the tight pool")
        config = replace(config, tight_pool=True, pool_slots=least + spare * config.page_size, swa_pool_slots=0)
    if chooser.choose(4, "timeouts") == 1:
        workload = replace(workload, timeouts_max=1)
    if chooser.choose(4, "pauses") == 1:
        workload = replace(workload, pauses_max=1)
    if chooser.choose(4, "streams") == 1:
        config = replace(config, streams=True)
    return Scenario(config, workload)


def _without(lacking: frozenset[str], scenario: Scenario, plain: Scenario) -> Scenario:
    """The scenario without the features of `lacking`; `plain` has none."""
    config, workload = scenario.config, scenario.workload
    if "radix cache" in lacking:
        config = replace(config, radix=False, bigram=False)
        pairs = zip(workload.turns, plain.workload.turns, strict=True)
        turns = tuple(replace(turn, tokens=was.tokens, extra_key=was.extra_key) for turn, was in pairs)
        workload = replace(workload, turns=turns)
    if "no limit" in lacking:
        workload = replace(workload, turns=tuple(replace(turn, open_ended=False) for turn in workload.turns))
    if "chunked prefill" in lacking:
        config = replace(config, chunk_size=0, mixed_chunk=False)
    if "mixed chunk" in lacking:
        config = replace(config, mixed_chunk=False)
    if "late results" in lacking:
        config = replace(config, late_results=False)
    if "adaptive steps" in lacking:
        config = replace(config, adaptive=False)
    if "sliding window" in lacking:
        config = replace(config, window=0, swa_pool_slots=0)
    if "streams" in lacking:
        config = replace(config, streams=False)
    if "tight pool" in lacking:
        config = replace(config, tight_pool=False, pool_slots=plain.config.pool_slots, swa_pool_slots=0)
    if "timeouts" in lacking:
        workload = replace(workload, timeouts_max=0)
    if "pauses" in lacking:
        workload = replace(workload, pauses_max=0)
    if "draft pools" in lacking:
        config = replace(config, draft_layers=0)
    if "graph padding" in lacking:
        config = replace(config, graph_sizes=())
    if "idle batches" in lacking:
        config = replace(config, idle_batches=False)
    workload = replace(workload, turns=tuple(turn_without(lacking, turn) for turn in workload.turns))
    if "session faults" in lacking and any(turn.session for turn in workload.turns):
        workload = replace(workload, aborts_max=0, retractions_max=0, timeouts_max=0, pauses_max=0)
    if "session retractions" in lacking and any(turn.session for turn in workload.turns):
        workload = replace(workload, retractions_max=0, pauses_max=0)
    return Scenario(config, workload)


def _sharing(chooser: Chooser, turn: Turn) -> Turn:
    """The turn with a prompt that begins as others do, in one of two namespaces."""
    common = len(turn.tokens) - chooser.choose(len(turn.tokens) + 1, "own tokens")
    tokens = (*range(_COMMON_TOKENS, _COMMON_TOKENS + common), *turn.tokens[common:])
    return replace(turn, tokens=tokens, extra_key=pick(chooser, ("", "", "x"), "extra_key"))


def _draw_turns(chooser: Chooser, sessions: int) -> tuple[Turn, ...]:
    of_sessions = []
    for session in range(sessions):
        turns = between(chooser, 2, _TURNS_MAX, "turns")
        is_short = turns > _LONG_TURNS_MAX
        of_sessions += [
            _draw_turn(chooser, f"s{session}t{turn}", f"s{session}", is_short=is_short) for turn in range(turns)
        ]
    count = between(chooser, 0 if sessions else 1, 6, "requests")
    return (*of_sessions, *(_draw_turn(chooser, f"r{number}", "") for number in range(count)))


def _draw_turn(chooser: Chooser, rid: str, session: str, *, is_short: bool = False) -> Turn:
    prompt_len = between(chooser, 1, 3 if is_short else 12, "prompt length")
    max_new_tokens = between(chooser, 1, 4 if is_short else 24, "max_new_tokens")
    special_at: dict[int, int] = {}
    kind = pick(chooser, ("none", "eos", "stop", "string"), "special token")
    stop = draw_stop(chooser) if kind == "string" else ()
    if kind in ("eos", "stop"):
        special_at[chooser.choose(max_new_tokens, "special token at")] = EOS if kind == "eos" else STOP
    ignore_eos = kind == "eos" and chooser.choose(4, "ignore_eos") == 1
    # Prompts differ from request to request, so that a slot of the wrong one is seen.
    number = sum(map(ord, rid)) * 1000
    tokens = tuple(FIRST_ORDINARY_TOKEN + number + i for i in range(prompt_len))
    return Turn(rid, tokens, max_new_tokens, special_at, ignore_eos, session, stop=stop)


def _context_lens(turns: tuple[Turn, ...]) -> list[int]:
    """Prompt plus outputs of every turn at most, a session's turns upon one another."""
    lengths: dict[str, int] = {}
    found = []
    for turn in turns:
        before = lengths.get(turn.session, 0) if turn.session else 0
        found.append(before + len(turn.tokens) + turn.max_new_tokens)
        lengths[turn.session] = found[-1]
    return found
