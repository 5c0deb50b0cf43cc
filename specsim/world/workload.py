"""What users do in a schedule: requests, turns of sessions, aborts, flushes, each at an iteration of the scheduler.

Drawn from the schedule's chooser; all-zero choices are one request of one token for one token. Whole kinds are left out
of a schedule by a swarm (Groce et al., ISSTA 2012). A prompt and its answer fit a row and the pool, but of those that
are to be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from specsim.choices.chooser import between, each, pick
from specsim.world.hash_model import reasoned
from specsim.world.scheduler import (
    ABORT,
    DRAIN,
    KEEP,
    NO_GRAMMAR,
    PENALTIES,
    SAMPLINGS,
    TOO_LONG,
    Pause,
    Turn,
    defaults,
)

if TYPE_CHECKING:
    from specsim.choices.chooser import Chooser
    from specsim.world.scheduler import Facts, Setup

REQUESTS_MAX = 12
PROMPT_MAX = 40
ANSWER_MAX = 72
SESSIONS_MAX = 3
TURNS_MAX = 4
ARRIVALS = (1, 40, 70, 110)
"""Iterations within which requests arrive."""
TOKENS = range(20, 90)
LATER_FIELDS = {
    "turns": (Turn, ("sampling", "bias", "stream", "hidden", "prompt_logprobs", "salt", "refused")),
    "pauses": (Pause, ("mode", "refuses")),
}
"""What is left out where it has its default, so that digests are those of before these fields came."""

Decode = Callable[[Sequence[int], int, int], list[int]]
"""The tokens that sequential decoding gives after a prompt, so many of them, each of a rank: 0 for the most likely."""

FEATURES = {
    "aborts": 2,
    "shared prefixes": 2,
    "continued answers": 2,
    "stop tokens": 3,
    "bursts": 4,
    "flushes": 4,
    "abort all": 8,
    "pauses": 6,
    "stop strings": 4,
    "grammars": 5,
    "early closes": 3,
    "time-outs": 3,
    "logprobs": 6,
    "penalties": 6,
}
"""A schedule in so many has it."""
CROSSED = "crossed prefixes"
"""Beside shared ones: a prompt goes on as another one does from there, whose beginning it does not have."""
SYSTEM = "system prompts"
"""In a quarter of schedules prompts begin with one that all have, if they do not begin as another one does."""
BIASED = "biases"
"""Beside penalties: requests may have a logit bias, which a fake worker has seldom."""
SALTED = "salts"
"""Requests have one, or none."""
SALTS = ("", "a", "b")
REFUSED = "refusals"
"""Some requests have to be refused."""
LATER_FEATURES = {SALTED: 4, REFUSED: 6}
"""A schedule in so many has it, drawn behind all else."""
RANKS = 3
"""Of how likely a token of a grammar may be: drafts have them, too."""
BIASES = (0, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Workload:
    """`flushes` and `abort_all` are iterations, and `leaps` those at which the clock leaps. A session lasts from its
    first turn to the end of its last, if it is not closed or timed out before. While the scheduler is paused requests
    wait before it, where the release's own server has them wait there.
    """

    turns: tuple[Turn, ...]
    flushes: tuple[int, ...] = ()
    abort_all: tuple[int, ...] = ()
    pauses: tuple[Pause, ...] = ()
    leaps: tuple[int, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        data = asdict(self)
        for kind, (of, later) in LATER_FIELDS.items():
            usual = defaults(of)
            data[kind] = [
                {
                    name: list(value) if isinstance(value, tuple) else value
                    for name, value in one.items()
                    if name not in later or value != usual[name]
                }
                for one in data[kind]
            ]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


def told(workload: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What users do, as rows for a reader: a request or what is done to all, and its words."""
    rows = [(turn["rid"], turn_text(turn)) for turn in workload.get("turns", ())]
    rows += [("all requests", f"aborted at iteration {at}") for at in workload.get("abort_all", ())]
    rows += [("prefix cache", f"flushed at iteration {at}") for at in workload.get("flushes", ())]
    rows += [("scheduler", _pause_text(pause)) for pause in workload.get("pauses", ())]
    rows += [("clock", f"leaps at iteration {at}") for at in workload.get("leaps", ())]
    return rows


_PAUSES = {KEEP: "all stay where they are", DRAIN: "those that run go on", ABORT: "all are aborted"}


def _pause_text(pause: Mapping[str, Any]) -> str:
    count, mode = pause["iterations"], pause.get("mode", KEEP)
    parts = [f"paused at iteration {pause['at']} for {count} iteration{'' if count == 1 else 's'}", _PAUSES[mode]]
    if pause["retracts"]:
        parts.append("what they hold is given back")
    if pause.get("refuses"):
        parts.append("new ones are refused")
    return ", ".join(parts)


def turn_text(turn: Mapping[str, Any]) -> str:
    """What a user asks for."""
    after = "iterations after the turn before" if turn["session"] and not turn["rid"].endswith(".0") else ""
    when = f"{turn['at']} {after}" if after else f"at iteration {turn['at']}"
    parts = [f"{_tokens(turn['prompt'])} for {turn['answer']} {when}"]
    if turn.get("sampling"):
        parts.append(f"sampled ({turn['sampling']})")
    if turn.get("stream"):
        parts.append("streamed")
    if turn["session"]:
        parts.append(f"of session {turn['session']}")
    if turn["abort"] >= 0:
        parts.append(f"aborted {turn['abort']} iterations later")
    if turn["stop"] >= 0:
        parts.append(f"until token {turn['stop']}")
    if turn.get("stop_text"):
        parts.append(f"until a stop string of {_tokens(turn['stop_text'])}")
    if turn.get("grammar"):
        parts.append(f"by a grammar of {_tokens(turn['grammar'])}")
    if turn.get("hidden"):
        parts.append("with its last hidden state" if turn["hidden"] == "last" else "with all hidden states")
    if turn.get("prompt_logprobs", -1) >= 0:
        parts.append(f"with logprobs of its prompt from token {turn['prompt_logprobs']} on")
    if turn.get("refused"):
        parts.append(f"to be refused for its {turn['refused']}")
    if turn.get("salt"):
        parts.append(f"with salt {turn['salt']}")
    if turn["priority"]:
        parts.append(f"priority {turn['priority']}")
    return ", ".join(parts)


def _tokens(tokens: Sequence[int]) -> str:
    return f"{len(tokens)} token{'' if len(tokens) == 1 else 's'}"


def draw_workload(chooser: Chooser, setup: Setup, facts: Facts, decode: Decode) -> Workload:
    """What users do on a scheduler of an engine that was started so."""
    drawn = {name for name, one_in in FEATURES.items() if chooser.choose(one_in, "feature") == one_in - 1}
    features = facts.features & drawn
    requests = each(chooser, 1, REQUESTS_MAX, "requests")
    sessions = each(chooser, 0, SESSIONS_MAX, "sessions") if setup.sessions else ()
    spread = pick(chooser, ARRIVALS, "arrivals") if "bursts" not in features else 4
    system: tuple[int, ...] = ()
    # What was evicted is copied back for a prompt that begins with it, if it is long enough.
    if SYSTEM in facts.features and chooser.choose(2 if setup.hicache else 4, "has a system prompt") == 1:
        system = prompt_of(99, between(chooser, 1, PROMPT_MAX, "system prompt"))
    turns: list[Turn] = []
    for number in requests:
        turns.append(_request(chooser, setup, facts, decode, features, turns, number, spread, system))
    for number in sessions:
        turns += _session(chooser, setup, facts, decode, features, f"s{number}", spread)
    flushes = (between(chooser, 0, spread, "flush at"),) if "flushes" in features else ()
    abort_all = (between(chooser, 1, 2 * spread, "abort all at"),) if "abort all" in features else ()
    pauses = tuple(_pauses(chooser, facts, spread)) if "pauses" in features else ()
    leaps = tuple(_leaps(chooser, spread)) if "time-outs" in features and sessions else ()
    if SALTED in facts.features and _has(chooser, SALTED, "has salts"):
        turns = list(_salted(chooser, turns))
    if facts.refusals and _has(chooser, REFUSED, "has some to refuse"):
        turns = list(_refused(chooser, setup, facts, turns))
    return Workload(tuple(turns), flushes, abort_all, pauses, leaps)


def _has(chooser: Chooser, feature: str, label: str) -> bool:
    one_in = LATER_FEATURES[feature]
    return chooser.choose(one_in, label) == one_in - 1


def _salted(chooser: Chooser, turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns of a session have the same salt."""
    salts: dict[str, str] = {}
    for turn in turns:
        name = turn.session or turn.rid
        if name not in salts:
            salts[name] = pick(chooser, SALTS, "salt")
        yield replace(turn, salt=salts[name])


def _refused(chooser: Chooser, setup: Setup, facts: Facts, turns: Sequence[Turn]) -> Iterator[Turn]:
    """Some of them are to be refused; of a session's turns only for what they add to it."""
    shortest = (min(setup.context + 1, setup.slots - 1) if setup.context else setup.slots - 1) - facts.answer_room
    """Of the prompts that are too long. Without a context of a setup's own it is the pool that is too small."""
    for turn in turns:
        if chooser.choose(3, "is refused") != 2:
            yield turn
            continue
        why = TOO_LONG if turn.session else pick(chooser, facts.refusals, "refused for")
        is_long = why == TOO_LONG
        prompt = prompt_of(98, shortest + between(chooser, 0, 4, "too long by")) if is_long else turn.prompt
        compiling = between(chooser, 0, 6, "compiling") if why == NO_GRAMMAR else turn.compiling
        yield replace(turn, refused=why, prompt=prompt, compiling=compiling)


def _pauses(chooser: Chooser, facts: Facts, spread: int) -> Iterator[Pause]:
    """One or two, the second one after the first."""
    end = 0
    for _ in each(chooser, 1, 2, "pauses"):
        start = end + between(chooser, 1, spread, "pause at")
        end = start + between(chooser, 1, 4, "pauses for")
        retracts = chooser.choose(2, "keeps") == 0
        mode = pick(chooser, facts.pauses, "pause") if len(facts.pauses) > 1 else KEEP
        refuses = facts.refuses and mode != KEEP and chooser.choose(2, "refuses") == 1
        yield Pause(start, end - start, retracts, mode, refuses)


def _leaps(chooser: Chooser, spread: int) -> Iterator[int]:
    """Up to three, one after the other."""
    at = 0
    for _ in each(chooser, 1, 3, "leaps"):
        at += between(chooser, 1, spread, "leap at")
        yield at


def _request(
    chooser: Chooser,
    setup: Setup,
    facts: Facts,
    decode: Decode,
    features: frozenset[str],
    before: list[Turn],
    number: int,
    spread: int,
    system: tuple[int, ...],
) -> Turn:
    room = setup.slots if facts.fits else setup.slots - setup.slots // 8 - 2 * setup.draft_tokens - setup.page_size
    limit = min(setup.context or facts.context, room)
    prompt = prompt_of(number, between(chooser, 1, PROMPT_MAX, "prompt"))
    if before and "shared prefixes" in features and chooser.choose(2, "shares"):
        prompt = _after_another(chooser, decode, features, before, prompt)
        if CROSSED in facts.features and chooser.choose(3, "crosses") == 1:
            page = setup.page_size * between(chooser, 1, 2, "crosses after pages")
            prompt = prompt[:page] + pick(chooser, before, "crosses to").prompt[page:]
    else:
        prompt = system + prompt
    prompt = prompt[: limit - facts.answer_room]
    answer = between(chooser, 1, min(ANSWER_MAX, limit - len(prompt)), "answer")
    if setup.context and chooser.choose(2, "fills the context"):
        answer = limit - len(prompt)
    grammar = (
        _grammar(chooser, setup, facts, decode, prompt, answer) if "grammars" in features or setup.reasoning else ()
    )
    return Turn(
        rid=_rid(chooser, number),
        prompt=prompt,
        answer=answer,
        at=between(chooser, 0, spread, "at"),
        abort=between(chooser, 0, 24, "abort after")
        if "aborts" in features and chooser.choose(3, "aborts") == 1
        else -1,
        stop=_stop(chooser, setup, decode, prompt, answer) if "stop tokens" in features else -1,
        priority=pick(chooser, facts.priorities, "priority") if setup.priorities else 0,
        stop_text=_stop_text(chooser, decode, prompt, answer) if "stop strings" in features else (),
        grammar=grammar,
        compiling=between(chooser, 0, 6, "compiling") if grammar else 0,
        logprobs=_logprobs(chooser, features),
        **_changes(chooser, setup, facts, features),
        sampling=_sampling(chooser, setup),
        stream=number % 2 == 1,
        **_returned(chooser, setup, facts, prompt),
    )


def _after_another(
    chooser: Chooser, decode: Decode, features: frozenset[str], before: list[Turn], own: tuple[int, ...]
) -> tuple[int, ...]:
    """A prompt that begins as an earlier one does, or as that one and its answer do: a chat that goes on."""
    other = pick(chooser, before, "shares with")
    begins = other.prompt
    if "continued answers" in features and chooser.choose(2, "continues"):
        begins += tuple(decode(begins, between(chooser, 1, other.answer, "continues after"), 0))
    else:
        begins = begins[: between(chooser, 1, len(begins), "shared")]
    return begins + own[: between(chooser, 1, 8, "own")]


def _session(
    chooser: Chooser, setup: Setup, facts: Facts, decode: Decode, features: frozenset[str], name: str, spread: int
) -> Iterator[Turn]:
    numbers = each(chooser, 1, TURNS_MAX, "turns")
    most = (min(facts.context, setup.slots // 2) // TURNS_MAX) // 2
    first = between(chooser, 0, spread, "session at")
    before: tuple[int, ...] = ()
    """What the session has by then, if nobody aborts a turn."""
    for number in numbers:
        turn = Turn(
            rid=f"{name}.{number}",
            prompt=prompt_of(100 + number, between(chooser, 1, most, "append")),
            answer=between(chooser, 1, most, "answer"),
            at=first if not number else between(chooser, 0, 3, "after turn"),
            abort=between(chooser, 0, 12, "abort after")
            if "aborts" in features and chooser.choose(4, "aborts") == 1
            else -1,
            session=name,
            close=between(chooser, 0, 12, "closes after")
            if "early closes" in features and chooser.choose(3, "closes") == 1
            else -1,
            timeout=facts.timeout if "time-outs" in features and not number and chooser.choose(2, "times out") else 0.0,
            logprobs=_logprobs(chooser, features),
            **_changes(chooser, setup, facts, features),
            sampling=_sampling(chooser, setup),
        )
        if "stop tokens" in features:
            before += turn.prompt
            turn = replace(turn, stop=_stop(chooser, setup, decode, before, turn.answer))
            before += tuple(until_stop(turn, decode(before, turn.answer, 0)))
        yield turn


def prompt_of(request: int, length: int) -> tuple[int, ...]:
    """Tokens of a request by its number: those of two differ from their first on."""
    return tuple(TOKENS[(request * 31 + at * (7 + request) + at * at) % len(TOKENS)] for at in range(length))


def _rid(chooser: Chooser, number: int) -> str:
    """As users name requests. Names of one form are never prefixes of one another, but numbers are."""
    form = chooser.choose(4, "rid")
    return (f"r{number:02d}", str(number + 1), f"chat-{number:02d}-retry", f"{number:08x}-0000-4000-8000-000000000000")[
        form
    ]


def _stop(chooser: Chooser, setup: Setup, decode: Decode, prompt: Sequence[int], answer: int) -> int:
    """A token of the answer, or of those that its last verification may bring beside it, or none."""
    if not chooser.choose(2, "stops"):
        return -1
    said = decode(prompt, answer + setup.run_max - 1, 0)
    return said[chooser.choose(len(said), "stop at")]


def _stop_text(chooser: Chooser, decode: Decode, prompt: Sequence[int], answer: int) -> tuple[int, ...]:
    """Up to three tokens of the answer, or none."""
    if not chooser.choose(2, "stops at a text"):
        return ()
    start = chooser.choose(answer, "text at")
    return tuple(decode(prompt, answer, 0)[start : start + between(chooser, 1, 3, "text")])


def _grammar(
    chooser: Chooser, setup: Setup, facts: Facts, decode: Decode, prompt: Sequence[int], answer: int
) -> tuple[int, ...]:
    """A grammar of one text: what the fake worker says, masked or not, and of a release's own worker also one that it
    says for the mask alone. It ends at the first of its last token, which ends the answer, too, and which no reasoning
    before it has.
    """
    if not chooser.choose(2, "has a grammar"):
        return ()
    reasoning: list[int] = []
    if setup.reasoning:
        reasoning = decode(prompt, answer, 0)[:-1]
        reasoning = reasoning[: reasoned(prompt, reasoning)]
    end = between(chooser, 1, answer - len(reasoning), "grammar's end")
    masks = facts.masks or setup.worker == "release"
    rank = chooser.choose(RANKS, "grammar's rank") if masks else 0
    tokens = tuple(decode((*prompt, *reasoning), end, rank))
    return () if tokens[-1] in reasoning else tokens[: tokens.index(tokens[-1]) + 1]


def _logprobs(chooser: Chooser, features: frozenset[str]) -> int:
    """None, those of the answer's tokens, or those of one or two most likely ones, too."""
    return chooser.choose(4, "logprobs") - 1 if "logprobs" in features else -1


def _changes(chooser: Chooser, setup: Setup, facts: Facts, features: frozenset[str]) -> dict[str, Any]:
    """What changes a request's logits: a penalty or a bias, which of fake workers those have that say so."""
    if "penalties" not in features:
        return {}
    penalty = pick(chooser, ("", *PENALTIES), "penalty")
    if penalty or (setup.worker == "fake" and BIASED not in facts.features):
        return {"penalty": penalty}
    return {"bias": pick(chooser, BIASES, "bias")}


def _sampling(chooser: Chooser, setup: Setup) -> str:
    return pick(chooser, ("", *SAMPLINGS), "sampling") if setup.sampled else ""


def _returned(chooser: Chooser, setup: Setup, facts: Facts, prompt: Sequence[int]) -> dict[str, Any]:
    """Hidden states, and logprobs of the prompt from one of its tokens on."""
    if not setup.hidden_states:
        return {}
    hidden = pick(chooser, ("", *facts.hidden), "hidden states")
    if not chooser.choose(2, "logprobs of the prompt"):
        return {"hidden": hidden}
    return {"hidden": hidden, "prompt_logprobs": chooser.choose(len(prompt), "from token")}


def until_stop(turn: Turn, tokens: list[int]) -> list[int]:
    """What a user must see of the tokens of a turn that nobody aborts: those up to its stop string or stop token."""
    tokens = until_text(tokens, turn.stop_text)
    return tokens[: tokens.index(turn.stop) + 1] if turn.stop in tokens else tokens


def until_text(tokens: list[int], text: Sequence[int]) -> list[int]:
    """The tokens up to the end of the first place at which a stop string stands, all where it does not."""
    ends = (i + len(text) for i in range(len(tokens)) if tuple(tokens[i : i + len(text)]) == tuple(text))
    return tokens[: next(ends, len(tokens))] if text else tokens
