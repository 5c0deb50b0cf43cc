"""What must be true of a scheduler's state after a schedule, when nothing runs any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import ceil, inf
from typing import TYPE_CHECKING

from specsim.world import rules
from specsim.world.rules import Violation
from specsim.world.workload import until_stop, until_text

if TYPE_CHECKING:
    from specsim.verdict import Rule
    from specsim.world.scheduler import (
        Answer,
        LogprobRow,
        Matched,
        Pools,
        RequestState,
        Setup,
        StartedScheduler,
        Turn,
    )
    from specsim.world.users import Users


TOLERANCE = 1e-5
"""Of a logprob: float32 has 2e-6 at 32, and a logarithm and a sum of a few terms are between."""
FORBIDDEN = -1e30
"""A logprob is no more of a token that a mask forbids: engines have the lowest float32 in place of minus infinity."""
ANOTHER = "another-token"


def broken_state(started: StartedScheduler, users: Users) -> Iterator[Violation]:
    """The rules that hold at rest, and what breaks them."""
    states = {state.rid: state for state in started.requests()}
    yield from _answers(started, users)
    yield from _aborts(started, users)
    of_sessions = {turn.rid for turn in users.workload.turns if turn.session}
    for state in states.values():
        yield from lengths(state, started.facts.keeps_last and state.rid in of_sessions)
    yield from _pools(started.pools(), users)
    yield from _tree(started)


def _broken(rule: Rule, part: str, who: str, expected: object, actual: object, when: int = -1) -> Violation:
    return Violation(rule=rule.id, part=part, who=who, expected=str(expected), actual=str(actual), when=when)


def _answers(started: StartedScheduler, users: Users) -> Iterator[Violation]:
    """Every user sees the tokens of sequential decoding, and why they end; an answer that was aborted is a prefix."""
    answers = {answer.rid: answer for answer in started.answers()}
    launches = Counter((rid, kind) for _iteration, kind, rids in started.seen.launches for rid in rids)
    spoken: dict[str, tuple[int, ...]] = {}  # by session, the tokens of its turns so far
    cut_short: set[str] = set()  # sessions of which a turn was aborted: what they keep of it is theirs to choose
    misled = {content.rid for content in started.seen.contents}  # a token of these is right by chance alone
    for turn in users.workload.turns:
        if turn.rid not in users.sent_at or turn.session in cut_short:
            continue
        answer = answers.get(turn.rid)
        before = spoken.get(turn.session, ()) if turn.session else ()
        prompt = (*before, *turn.prompt)
        said = answer.tokens if answer is not None else ()
        expected = until_stop(turn, started.expected(turn, prompt, said))
        if answer is None or not answer.reason:
            part = "aborted" if turn.rid in users.aborted else "answer"
            yield _broken(rules.PROGRESS, part, turn.rid, "an answer that ends", "none")
            continue
        kind = "session" if turn.session else "request"
        part = f"{kind}:grammar" if turn.grammar else f"{kind}:stop-string" if turn.stop_text else kind
        if answer.reason == "abort":
            part = f"{kind}:aborted"
            if turn.rid not in users.aborted and turn.rid not in users.refusable:
                yield _broken(rules.UNWANTED_ABORT, kind, turn.rid, "an answer", "an abort that nobody sent")
            expected = expected[: len(answer.tokens)]
            cut_short |= {turn.session} - {""}
        if turn.rid not in misled:
            yield from _logprobs(started, users.setup, turn, prompt, answer)
        yield from _usage(answer, kind, len(prompt), launches, users.setup.steps + 1)
        yield from _parts(answer, kind)
        if turn.session:
            spoken[turn.session] = (*prompt, *answer.tokens)
        tokens = list(answer.tokens)
        if answer.reason == "stop":  # whoever makes text of tokens cuts it behind the stop string
            tokens = until_text(tokens, turn.stop_text)
        if tokens != expected:
            place = _first_difference(tokens, expected)
            difference = _difference(tokens, expected, turn)
            is_another = difference == ANOTHER
            what = f"{len(tokens)} tokens, another one at {place}" if is_another else f"{len(tokens)} tokens"
            if answer.reason == "abort" and turn.grammar and is_another and len(tokens) == 1:
                part += ":grammar"  # perhaps not yet compiled: a release may prefill something else for it
            elif turn.bias and is_another:
                part = f"{kind}:bias"
            when = users.told_by(turn.rid, place)
            expected_text = f"{len(expected)} tokens of sequential decoding"
            yield _broken(rules.VISIBLE_OUTPUTS, f"{part}:{difference}", turn.rid, expected_text, what, when)
            continue
        yield from _ending(turn, answer, kind, expected, tokens)
        if turn.penalty and turn.rid not in started.seen.unpenalized:
            yield from _penalties(started, turn, prompt, kind, tokens)


def _difference(said: Sequence[int], expected: Sequence[int], turn: Turn) -> str:
    """What is wrong first with tokens that are not the expected ones."""
    place = _first_difference(said, expected)
    if place < min(len(said), len(expected)):
        return ANOTHER
    if place == len(said):
        return "too-few"
    return "behind-the-limit" if len(expected) == turn.answer else "behind-the-stop"


def _first_difference(said: Sequence[int], expected: Sequence[int]) -> int:
    """The place of the first token that differs; that behind the shorter one where none does."""
    differs = (i for i, (a, b) in enumerate(zip(said, expected, strict=False)) if a != b)
    return next(differs, min(len(said), len(expected)))


def _penalties(
    started: StartedScheduler, turn: Turn, prompt: tuple[int, ...], kind: str, tokens: list[int]
) -> Iterator[Violation]:
    """Penalties that lag behind the answer allow its tokens. Do those that count all of it give them?"""
    exact = started.expected(turn, prompt)
    place = next((i for i, (a, b) in enumerate(zip(tokens, exact, strict=False)) if a != b), -1)
    if place >= 0:
        expected = f"token {exact[place]} at {place}, of penalties that count the {place} tokens before it"
        yield _broken(rules.VISIBLE_OUTPUTS, f"{kind}:penalty", turn.rid, expected, f"token {tokens[place]}")


def _ending(turn: Turn, answer: Answer, kind: str, expected: list[int], tokens: list[int]) -> Iterator[Violation]:
    """The answer says what ended it, where its tokens are right. Where two things end it at one token, either does."""
    if answer.reason == "abort":
        return
    last = expected[-1]
    ends: list[tuple[str, Matched]] = []
    if len(expected) == turn.answer:
        ends.append(("length", turn.answer))
    if last == turn.stop or (turn.grammar and last == turn.grammar[-1]):
        ends.append(("stop", last))
    if turn.stop_text and tuple(expected[-len(turn.stop_text) :]) == turn.stop_text:
        ends.append(("stop", turn.stop_text))
    if (answer.reason, answer.matched) not in ends:
        wanted = " or ".join(f"{why}, {matched}" for why, matched in ends)
        said = f"{answer.reason}, {answer.matched}"
        yield _broken(rules.VISIBLE_OUTPUTS, f"{kind}:finish-reason", turn.rid, wanted, said)
    if answer.text is not None and list(answer.text)[-len(answer.tokens) :] != list(answer.tokens):
        yield _broken(rules.VISIBLE_OUTPUTS, f"{kind}:text", turn.rid, "text of its tokens", "text of others")


def _parts(answer: Answer, kind: str) -> Iterator[Violation]:
    """An answer ends once, with its last part; and each part that says how many tokens there are by then is right."""
    said = 0
    for number, part in enumerate(answer.parts):
        said += part.tokens
        is_last = number == len(answer.parts) - 1
        if part.ends and not is_last:
            later = sum(other.tokens for other in answer.parts[number + 1 :])
            what = f"an end, and then {later} tokens" if later else "two ends"
            yield _broken(rules.VISIBLE_OUTPUTS, f"{kind}:end", answer.rid, "one end, with its last part", what)
            return
        if part.completion_tokens not in (-1, said) and not is_last:
            expected, actual = f"{said} tokens by its part {number}", part.completion_tokens
            yield _broken(rules.VISIBLE_OUTPUTS, f"{kind}:part", answer.rid, expected, actual)
            return


def _usage(
    answer: Answer, kind: str, prompt: int, launches: Mapping[tuple[str, str], int], longest: int
) -> Iterator[Violation]:
    """The counts beside an answer are of its tokens; of its prompt's, of which the last is always computed; and of its
    verifications, each a launch that brought `longest` tokens at most. A prefill brings one. Of what was aborted nobody
    counts but the tokens.
    """
    tokens = len(answer.tokens)
    counts = [("completion-tokens", answer.completion_tokens, range(tokens, tokens + 1))]
    if answer.reason != "abort":
        needed = ceil((tokens - launches[answer.rid, "extend"]) / longest)
        counts += [
            ("prompt-tokens", answer.prompt_tokens, range(prompt, prompt + 1)),
            ("cached-tokens", answer.cached_tokens, range(prompt)),
            ("verifications", answer.verifications, range(max(needed, 0), launches[answer.rid, "decode"] + 1)),
        ]
        # A verification brings its drafts that are right and one token, of which the last may be cut off; of the
        # prefills one at least brings a token.
        fewest = tokens - launches[answer.rid, "extend"] - answer.verifications
        most = tokens - 1 - answer.verifications + longest - 1
        counts.append(("correct-drafts", answer.correct_drafts, range(max(fewest, 0), most + 1)))
        if answer.runs and answer.correct_drafts != -1:
            runs = sum(answer.runs)
            counts.append(("verifications-by-run", runs, range(answer.verifications, answer.verifications + 1)))
            drafts = sum(length * count for length, count in enumerate(answer.runs))
            counts.append(("drafts-by-run", drafts, range(answer.correct_drafts, answer.correct_drafts + 1)))
    for name, actual, allowed in counts:
        if actual != -1 and actual not in allowed:
            expected = f"from {allowed.start} to {allowed.stop - 1}"
            yield _broken(rules.VISIBLE_OUTPUTS, f"{kind}:{name}", answer.rid, f"a count {expected}", actual)


def _logprobs(
    started: StartedScheduler, setup: Setup, turn: Turn, prompt: tuple[int, ...], answer: Answer
) -> Iterator[Violation]:
    """Beside each token that was sent is its row. Behind a wrong token nothing is compared."""
    count = len(answer.tokens) if turn.logprobs >= 0 else 0
    said = zip(answer.tokens, started.expected(turn, prompt, answer.tokens)[:count], strict=False)
    tokens = [token for token, _expected in takewhile(lambda pair: pair[0] == pair[1], said)]
    if len(answer.logprobs) != count and len(tokens) == count:
        yield _broken(rules.LOGPROB_ROWS, "rows", turn.rid, f"{count} rows, one a token", len(answer.logprobs))
        return
    if turn.sampling or (turn.penalty and setup.worker == "release"):
        return  # of what is filtered, and by what lags behind: of no one value
    expected = started.logprobs(turn, prompt, tokens)
    for at, (row, actual) in enumerate(zip(expected, answer.logprobs, strict=False)):
        if not _alike(row, actual):
            what = "logprobs" if not _alike(row[:1], actual[:1]) else "top-logprobs"
            what += ":bias" if turn.bias else ""
            yield _broken(rules.LOGPROB_ROWS, what, turn.rid, f"token {at} with {row}", actual)
            return


def _alike(expected: LogprobRow, actual: LogprobRow) -> bool:
    """The same tokens, and logprobs that differ by less than TOLERANCE. Of tokens that a mask forbids nobody says which
    are the more likely ones: any of them stands for any other, with the lowest of numbers.
    """
    return len(expected) == len(actual) and all(
        b <= FORBIDDEN if a == -inf else token == other and abs(a - b) < TOLERANCE
        for (a, token), (b, other) in zip(expected, actual, strict=True)
    )


def _aborts(started: StartedScheduler, users: Users) -> Iterator[Violation]:
    """Who was aborted is verified no more, but for what was under way."""
    launched = Counter(
        rid
        for iteration, kind, rids in started.seen.launches
        for rid in rids
        if kind == "decode" and rid in users.aborted and iteration > users.aborted[rid]
    )
    most = started.facts.late
    for rid, count in launched.items():
        if count > most:
            yield _broken(rules.WANTED_ABORT, "abort", rid, f"{most} more verifications at most", count)


def lengths(state: RequestState, keeps_last: bool) -> Iterator[Violation]:
    """What a request claims at its end: every token but its last, whose KV was never computed. One that keeps that may
    claim it, too: the launch in flight at its end writes it, and if there was none, the next turn's read shows it.
    """
    if state.reason in ("", "abort"):
        return
    honest = len(state.prompt) + len(state.outputs) - (0 if keeps_last else 1)
    if state.committed > honest:
        yield _broken(rules.STALE_RESULT, "committed", state.rid, f"a claim of {honest} positions", state.committed)


def _pools(pools: Pools, users: Users) -> Iterator[Violation]:
    """All slots are free or cached, all rows free."""
    sizes = [("slots", pools.total, pools.free + pools.cached)]
    if pools.window_total >= 0:
        sizes.append(("window-slots", pools.window_total, pools.window_free + pools.window_cached))
    for name, total, found in sizes:
        if found != total:
            side = "lost" if found < total else "twice"
            yield _broken(rules.LEAK_AT_IDLE, f"{name}:{side}", "", f"{total} free or cached", found)
    if pools.free_rows != pools.rows:
        side = "lost" if pools.free_rows < pools.rows else "twice"
        yield _broken(rules.ROW_OWNER, f"rows:{side}", "", f"{pools.rows} free", pools.free_rows)


def _tree(started: StartedScheduler) -> Iterator[Violation]:
    """A cached slot holds the KV of the tokens that lead to it, once, and is not free."""
    pools = started.pools()
    if pools.free_slots is not None and len(set(pools.free_slots)) < len(pools.free_slots):
        yield _broken(rules.FREE_SLOT, "free-list", "", "every slot once", "a slot twice in the free list")
    free, owned = set(pools.free_slots or ()), set[int]()
    for node in pools.nodes or ():
        start = len(node.tokens) - len(node.slots)
        for place, slot in enumerate(node.slots, start):
            if slot in free:
                yield _broken(
                    rules.FREE_SLOT, "tree", "", "a slot that is not free", f"slot {slot}, which is cached too"
                )
                return
            if slot in owned:
                yield _broken(
                    rules.FREE_SLOT, "tree-twice", "", "a slot once", f"slot {slot} at two places of the tree"
                )
                return
            owned.add(slot)
            if started.slot_content(slot) != started.content_of(node.tokens[: place + 1]):
                what = f"other content in slot {slot}"
                yield _broken(rules.TREE_CONTENT, "tree", "", f"the KV of the token at {place}", what)
                return
