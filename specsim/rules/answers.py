"""What users are told: tokens, why they end and how many they are, logprobs, and that there is an answer at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import ceil, inf
from typing import Any

from specsim.rules.sampling import unpenalized
from specsim.verdict import Rule, Severity
from specsim.world.rule import Check, Lie, Run, Told, Violation
from specsim.world.scheduler import Answer, LogprobRow, Matched, Part, Turn, WrongContent, first_difference
from specsim.world.users import NeverEndsError
from specsim.world.workload import until_stop, until_text

TOLERANCE = 1e-5
"""Of a logprob: float32 has 2e-6 at 32, and a logarithm and a sum of a few terms are between."""
FORBIDDEN = -1e30
"""A logprob is no more of a token that a mask forbids: engines have the lowest float32 in place of minus infinity."""
ANOTHER = "another-token"


def says(name: str, change: Callable[[Answer], Mapping[str, Any]], *reasons: str) -> Lie:
    """A defect: of each answer that ended for one of these reasons, or for any where there are none, fields that are
    otherwise.
    """
    return Lie(
        name,
        "answers",
        lambda answers: [
            replace(one, **change(one)) if one.reason and (one.reason in reasons or not reasons) else one
            for one in answers
        ],
    )


def _longer(answer: Answer) -> dict[str, Any]:
    tokens = (*answer.tokens, answer.tokens[-1])
    return {"tokens": tokens, "completion_tokens": len(tokens), "text": None, "logprobs": ()}


class Progress(Check):
    """Each request that is sent gets an answer that ends, one that is aborted, too, within 1,500 iterations."""

    rule = Rule("S1", "progress", "every request ends", Severity.WRONG_RESULT)
    defects = (
        Lie("tells nobody of an abort", "answers", lambda answers: [one for one in answers if one.reason != "abort"]),
        says("never says that it ends", lambda _answer: {"reason": ""}),
        Lie("never ends", "is_idle", lambda _is_idle: False),
    )

    def after(self, run: Run) -> Iterator[Violation]:
        if isinstance(run.error, NeverEndsError):
            yield self.broken(run.error.part, run.error.who, "an end", run.error)

    def at_rest(self, run: Run) -> Iterator[Violation]:
        for told in run.told:
            if told.answer is None or not told.answer.reason:
                part = "aborted" if told.turn.rid in run.users.aborted else "answer"
                yield self.broken(part, told.turn.rid, "an answer that ends", "none")


class UnwantedAbort(Check):
    """Nobody's request is aborted but those that were named, and turns of a session that may have timed out. Where no
    abort named the beginning of its id, which an engine may take for it, the engine has done it by itself.
    """

    rule = Rule(
        "I39",
        "unwanted-abort",
        "only requests whose abort was wanted finish without reaching their end",
        Severity.WRONG_RESULT,
    )
    defects = (says("aborts others", lambda answer: {"reason": "abort", "matched": None}, "length"),)

    def at_rest(self, run: Run) -> Iterator[Violation]:
        for told, answer in run.answered:
            is_wanted = answer.rid in run.users.aborted or answer.rid in run.users.refusable
            if answer.reason == "abort" and not is_wanted:
                is_named = any(answer.rid.startswith(rid) for rid in run.users.aborted)
                part = told.kind if is_named else f"{told.kind}:by-itself"
                yield self.broken(part, answer.rid, "an answer", "an abort that nobody sent")


class VisibleOutputs(Check):
    """A user sees the tokens of sequential decoding and no more. An answer that was aborted is a prefix of them, and
    one that ended at a stop string is cut behind it. It ends once, for the reason that ends it, and all else that is
    told beside it is right. Of a request that no server can take it says so.
    """

    rule = Rule(
        "I40",
        "visible-outputs",
        "the visible outputs are those of decoding one token after the other",
        Severity.WRONG_RESULT,
    )
    spoils = True
    defects = (
        says("wrong token", lambda one: {"tokens": tuple(t + 1 for t in one.tokens), "text": None, "logprobs": ()}),
        says("one token more", _longer, "length"),
        says("late stop", _longer, "stop"),
        says("another reason", lambda _one: {"reason": "stop"}, "length"),
        says("another match", lambda _one: {"matched": 9}, "stop"),
        says("ends twice", lambda one: {"parts": (*one.parts, one.parts[-1])}),
        says("ends before its tokens", lambda one: {"parts": (Part(0, 0, True), *one.parts)}),
        says("a part counts another token", lambda one: {"parts": (Part(0, 1, False), *one.parts)}),
        says("text of other tokens", lambda one: {"text": one.text and one.text[:-1]}),
        says("counts another token", lambda one: {"completion_tokens": one.completion_tokens + 1}),
        says("counts a part of the prompt", lambda one: {"prompt_tokens": one.prompt_tokens - 1}),
        says("counts too much as cached", lambda one: {"cached_tokens": one.prompt_tokens}),
        says("counts others by tier", lambda one: {"cached_by_tier": (one.cached_tokens, 1)}),
        says("counts another verification", lambda one: {"verifications": one.verifications + 1}),
        says("counts other drafts", lambda one: {"correct_drafts": one.correct_drafts + 99}),
        says("counts other runs", lambda one: {"runs": (99,)}),
        says("counts other retractions", lambda one: {"retractions": 99}),
    )

    def at_rest(self, run: Run) -> Iterator[Violation]:
        launches = Counter((rid, launch.kind) for launch in run.started.seen.launches for rid in launch.rids)
        differs_in_penalties = unpenalized(run)
        for told, answer in run.answered:
            turn, kind = told.turn, told.kind
            if turn.refused:
                if answer.reason != "abort":
                    wanted = f"to be refused for its {turn.refused}"
                    yield self.broken(f"{kind}:refused", turn.rid, wanted, f"it ends for {answer.reason}")
                continue
            expected = until_stop(turn, run.started.expected(turn, told.prompt, answer.tokens))
            if answer.reason == "abort":
                expected = expected[: len(answer.tokens)]
            yield from self._usage(answer, kind, len(told.prompt), launches)
            if answer.reason != "abort" and not self.setup.mixed:
                yield from self._prefills(run, answer, kind, len(told.prompt))
            yield from self._parts(answer, kind)
            tokens = list(answer.tokens)
            if answer.reason == "stop":  # whoever makes text of tokens cuts it behind the stop string
                tokens = until_text(tokens, turn.stop_text)
            if tokens != expected:
                yield self._difference(run, told, answer, tokens, expected)
                continue
            yield from self._ending(turn, answer, kind, expected)
            if turn.penalty and turn.rid not in differs_in_penalties:
                yield from self._penalties(run, told, tokens)

    def _difference(self, run: Run, told: Told, answer: Answer, tokens: list[int], expected: list[int]) -> Violation:
        turn, kind = told.turn, told.kind
        place = first_difference(tokens, expected)
        difference = _kind_of_difference(tokens, expected, turn)
        is_another = difference == ANOTHER
        part = f"{kind}:grammar" if turn.grammar else f"{kind}:stop-string" if turn.stop_text else kind
        if answer.reason == "abort":
            part = f"{kind}:aborted"
        if answer.reason == "abort" and turn.grammar and is_another and len(tokens) == 1:
            part += ":grammar"  # perhaps not yet compiled: a release may prefill something else for it
        elif turn.bias and is_another:
            part = f"{kind}:bias"
        what = f"{len(tokens)} tokens, another one at {place}" if is_another else f"{len(tokens)} tokens"
        text = f"{len(expected)} tokens of sequential decoding"
        return self.broken(f"{part}:{difference}", turn.rid, text, what, when=run.users.told_by(turn.rid, place))

    def _penalties(self, run: Run, told: Told, tokens: list[int]) -> Iterator[Violation]:
        """Penalties that lag behind the answer allow its tokens. Do those that count all of it give them?"""
        exact = run.started.expected(told.turn, told.prompt)
        place = first_difference(tokens, exact)
        if place < min(len(tokens), len(exact)):
            expected = f"token {exact[place]} at {place}, of penalties that count the {place} tokens before it"
            yield self.broken(f"{told.kind}:penalty", told.turn.rid, expected, f"token {tokens[place]}")

    def _ending(self, turn: Turn, answer: Answer, kind: str, expected: list[int]) -> Iterator[Violation]:
        """The answer says what ended it, where its tokens are right. Where two things end it at one token, either may
        be said.
        """
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
            yield self.broken(f"{kind}:finish-reason", turn.rid, wanted, f"{answer.reason}, {answer.matched}")
        if answer.text is not None and list(answer.text)[-len(answer.tokens) :] != list(answer.tokens):
            yield self.broken(f"{kind}:text", turn.rid, "text of its tokens", "text of others")

    def _prefills(self, run: Run, answer: Answer, kind: str, prompt: int) -> Iterator[Violation]:
        """What a prefill begins behind is cached, and who ran and is prefilled was retracted. A prefill may be begun
        anew before the first step, too.
        """
        cached, end = set[int](), -1
        fewest, most, has_run, has_begun = 0, -1, False, False
        for launch in run.started.seen.launches:
            if answer.rid not in launch.rids:
                continue
            is_prefill = launch.kind == "extend"
            fewest, most, has_run = fewest + (is_prefill and has_run), most + is_prefill, not is_prefill
            has_begun = has_begun or has_run
            if launch.chunks and not has_begun:
                chunk = launch.chunks[launch.rids.index(answer.rid)]
                cached |= {chunk.start} if chunk.start != end else set()
                end = chunk.start + chunk.tokens
        if answer.cached_tokens in range(prompt) and cached and answer.cached_tokens not in cached:
            expected = f"a count of {' or '.join(map(str, sorted(cached)))}"
            yield self.broken(f"{kind}:cached-tokens", answer.rid, expected, answer.cached_tokens)
        if answer.retractions != -1 and not fewest <= answer.retractions <= most:
            yield self.broken(f"{kind}:retractions", answer.rid, f"from {fewest} to {most}", answer.retractions)

    def _parts(self, answer: Answer, kind: str) -> Iterator[Violation]:
        """An answer ends once: behind that no part has a token or ends it again, and an empty one nobody reads. A part
        that says how many tokens there are by then is right.
        """
        said = 0
        for number, part in enumerate(answer.parts):
            said += part.tokens
            is_last = number == len(answer.parts) - 1
            behind = [other for other in answer.parts[number + 1 :] if other.tokens or other.ends] if part.ends else []
            if behind:
                later = sum(other.tokens for other in behind)
                what = f"an end, and then {later} tokens" if later else "two ends"
                yield self.broken(f"{kind}:end", answer.rid, "one end, with its last part", what)
                return
            if part.completion_tokens not in (-1, said) and not is_last:
                expected, actual = f"{said} tokens by its part {number}", part.completion_tokens
                yield self.broken(f"{kind}:part", answer.rid, expected, actual)
                return

    def _usage(
        self, answer: Answer, kind: str, prompt: int, launches: Mapping[tuple[str, str], int]
    ) -> Iterator[Violation]:
        """The counts beside an answer are of its tokens; of its prompt's, of which the last is always computed; and of
        its verifications, each a launch that brought a token for each draft step and one more at most. A prefill brings
        one. Of what was aborted nobody counts but the tokens.
        """
        tokens, longest = len(answer.tokens), self.setup.run_max
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
            if answer.cached_by_tier:
                cached = answer.cached_tokens
                counts.append(("cached-by-tier", sum(answer.cached_by_tier), range(cached, cached + 1)))
            if answer.runs and answer.correct_drafts != -1:
                runs = sum(answer.runs)
                counts.append(("verifications-by-run", runs, range(answer.verifications, answer.verifications + 1)))
                drafts = sum(length * count for length, count in enumerate(answer.runs))
                counts.append(("drafts-by-run", drafts, range(answer.correct_drafts, answer.correct_drafts + 1)))
        for name, actual, allowed in counts:
            if actual != -1 and actual not in allowed:
                expected = f"from {allowed.start} to {allowed.stop - 1}"
                yield self.broken(f"{kind}:{name}", answer.rid, f"a count {expected}", actual)


class LogprobRows(Check):
    """Beside each token that was sent stand its logprob, and those of the most likely ones that were asked for; beside
    the answer those of the prompt from the token on that was asked for, and a hidden state for each token that is not
    in the prefix cache, the answer's last one left out. Behind a wrong token, and of a request that read wrong KV,
    nothing is compared.
    """

    rule = Rule(
        "T6",
        "logprob-rows",
        "logprobs and hidden states have a row for each output, and it is that output's",
        Severity.WRONG_RESULT,
    )
    defects = (
        says("no first row", lambda one: {"logprobs": one.logprobs[1:]}),
        says("row of another token", lambda one: {"logprobs": (*one.logprobs[1:], *one.logprobs[:1])}),
        says("no second likely token", lambda one: {"logprobs": tuple(row[:2] for row in one.logprobs)}),
        says("no last hidden state", lambda one: {"hidden": one.hidden[:-1]}),
        says("hidden state of another token", lambda one: {"hidden": (*one.hidden[1:], *one.hidden[:1])}),
        says("no logprobs of the prompt", lambda one: {"prompt_logprobs": one.prompt_logprobs[:1]}),
        says("logprobs of the prompt's next token", lambda one: {"prompt_logprobs": one.prompt_logprobs[1:]}),
    )

    def at_rest(self, run: Run) -> Iterator[Violation]:
        misled = {content.rid for content, _note in run.noted(WrongContent)}  # a token of these is right by chance
        for told, answer in run.answered:
            if told.turn.rid not in misled and not told.turn.refused:
                yield from self._rows(run, told, answer)
                yield from self._of_prompt(run, told, answer)
                yield from self._hidden(run, told, answer)

    def _rows(self, run: Run, told: Told, answer: Answer) -> Iterator[Violation]:
        turn, prompt = told.turn, told.prompt
        count = len(answer.tokens) if max(turn.logprobs, turn.prompt_logprobs) >= 0 else 0
        said = zip(answer.tokens, run.started.expected(turn, prompt, answer.tokens)[:count], strict=False)
        tokens = [token for token, _expected in takewhile(lambda pair: pair[0] == pair[1], said)]
        if len(answer.logprobs) != count and len(tokens) == count:
            yield self.broken("rows", turn.rid, f"{count} rows, one a token", len(answer.logprobs))
            return
        if turn.sampling or (turn.penalty and self.setup.worker == "release"):
            return  # of what is filtered, and by what lags behind: of no one value
        expected = run.started.logprobs(turn, prompt, tokens)
        for at, row, actual in _unlike(expected, answer.logprobs):
            what = _differing(row, actual) + (":bias" if turn.bias else "")
            yield self.broken(what, turn.rid, f"token {at} with {row}", actual)
            return

    def _of_prompt(self, run: Run, told: Told, answer: Answer) -> Iterator[Violation]:
        """Of no token before it nothing says the logprob of the first one that was asked for."""
        turn, prompt, start = told.turn, told.prompt, told.turn.prompt_logprobs
        if start < 0 or answer.reason == "abort":
            return
        plain = replace(turn, penalty="", bias=0, grammar=())
        expected = run.started.logprobs(plain, prompt[: start + 1], prompt[start + 1 :])
        expected = [((-1, prompt[start]),), *expected]
        if len(answer.prompt_logprobs) != len(expected):
            rows = f"{len(expected)} rows, one a token of the prompt from {start} on"
            yield self.broken("prompt-rows", turn.rid, rows, len(answer.prompt_logprobs))
            return
        for at, row, actual in _unlike(expected, answer.prompt_logprobs):
            is_another = alike(((row[0][0], actual[0][1]), *row[1:]), actual)
            what = f"prompt-{'logprobs:another-token' if is_another else _differing(row, actual)}"
            yield self.broken(what, turn.rid, f"token {start + at} of the prompt with {row}", actual)
            return

    def _hidden(self, run: Run, told: Told, answer: Answer) -> Iterator[Violation]:
        """A request that was aborted is told of none."""
        turn, text = told.turn, (*told.prompt, *answer.tokens)
        if answer.reason == "abort" or not (turn.hidden or answer.hidden):
            return
        if list(answer.tokens) != run.started.expected(turn, told.prompt, answer.tokens):
            return
        if not turn.hidden:
            yield self.broken("hidden-states:unasked", turn.rid, "none", f"{len(answer.hidden)} hidden states")
            return
        places = {run.started.content_of(text[: at + 1]): at for at in range(len(text))}
        sent = [places.get(state, -1) for state in answer.hidden]
        last = len(text) - 2
        if turn.hidden == "last":
            if sent[-1:] != [last]:
                yield self.broken("hidden-states:last", turn.rid, f"that of token {last}", _spans(sent))
            return
        place, wrong = _first_wrong(sent, answer.cached_tokens, last)
        if wrong:
            of = "prompt" if place < len(told.prompt) else "answer"
            expected = f"those of tokens {answer.cached_tokens} to {last}, each once"
            yield self.broken(f"hidden-states:{wrong}:{of}", turn.rid, expected, _spans(sent))


def _first_wrong(places: Sequence[int], first: int, last: int) -> tuple[int, str]:
    """(the first place that is wrong, how it is) of hidden states that are of these places of a text, -1 for of another
    text: they are to begin at `first` or before it, and to end at `last`. "" where nothing is.
    """
    wanted = min(first, *places[:1]) if places and places[0] >= 0 else first
    for at in places:
        if at != wanted:
            return wanted, "another" if at < 0 else "again" if at < wanted else "missing"
        wanted += 1
    return wanted, "missing" if wanted <= last else "behind-the-end" if wanted > last + 1 else ""


def _spans(places: Sequence[int]) -> str:
    """Places of a text as a reader has them: "of tokens 0 to 12, of another text, of tokens 3 to 5"."""
    spans: list[list[int]] = []
    for at in places:
        if spans and spans[-1][1] + (at >= 0) == at:
            spans[-1][1] = at
        else:
            spans.append([at, at])
    words = ["of another text" if a < 0 else f"of token {a}" if a == b else f"of tokens {a} to {b}" for a, b in spans]
    return f"{len(places)}: {', '.join(words)}" if words else "none"


def _unlike(
    expected: Sequence[LogprobRow], actual: Sequence[LogprobRow]
) -> Iterator[tuple[int, LogprobRow, LogprobRow]]:
    """(number, expected row, actual one) of those that are not alike, as far as there are both."""
    for at, (row, said) in enumerate(zip(expected, actual, strict=False)):
        if not alike(row, said):
            yield at, row, said


def _differing(expected: LogprobRow, actual: LogprobRow) -> str:
    """What differs first of two rows that are not alike."""
    return "top-logprobs" if alike(expected[:1], actual[:1]) else "logprobs"


def alike(expected: LogprobRow, actual: LogprobRow) -> bool:
    """The same tokens, and logprobs that differ by less than TOLERANCE. Of tokens that a mask forbids nobody says which
    are the more likely ones: any of them stands for any other, with the lowest of numbers.
    """
    return len(expected) == len(actual) and all(
        b <= FORBIDDEN if a == -inf else token == other and abs(a - b) < TOLERANCE
        for (a, token), (b, other) in zip(expected, actual, strict=True)
    )


def _kind_of_difference(said: Sequence[int], expected: Sequence[int], turn: Turn) -> str:
    """What is wrong first with tokens that are not the expected ones."""
    place = first_difference(said, expected)
    if place < min(len(said), len(expected)):
        return ANOTHER
    if place == len(said):
        return "too-few"
    return "behind-the-limit" if len(expected) == turn.answer else "behind-the-stop"
