"""The rules of requests with a law: penalties, grammars, logprobs. What they should know follows from the tokens that
the device has made, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from specsim.engine.config import EngineConfig
from specsim.engine.device import Device
from specsim.engine.grammar import Matcher
from specsim.engine.launch import Launch
from specsim.engine.logprobs import logprob_of
from specsim.engine.model import EMPTY, extend
from specsim.engine.request import Request
from specsim.engine.sampling import LawState, bincount
from specsim.engine.sampling_params import Counts

Broken = tuple[str, str, str, object, object]  # rule id, part, who, expected, actual


class Laws:
    """The outputs of every incarnation of a request with a law, as the device made them."""

    def __init__(self, config: EngineConfig) -> None:
        self._relaxed = config.relaxed_penalties
        self._outputs: dict[tuple[str, int], list[int]] = {}
        self._fed: dict[str, tuple[int, Counts]] = {}  # by request: incarnation, and what was fed up to its last launch

    def fed(self, launch: Launch) -> Iterator[Broken]:
        """What the target's own penalizers count at a launch, against the outputs before it, its root among them. The
        relaxed law bounds it, where that is what the device goes by.
        """
        verifies = launch.verifies
        for row in verifies.rows if verifies is not None and not self._relaxed else ():
            if row.fed is None:
                continue
            who, incarnation = row.key
            right = bincount(self._outputs[row.key])
            if row.fed != right:
                yield ("I58", "penalty feed", who, f"counts {sorted(right.items())}", sorted(row.fed.items()))
            of, before = self._fed.get(who, (incarnation, {}))
            if of != incarnation and any(row.fed.get(token, 0) < count for token, count in before.items()):
                least = f"counts of {sorted(before.items())} at least"
                yield ("I59", "penalty feed", who, least, sorted(row.fed.items()))
            self._fed[who] = (incarnation, row.fed)

    def after_device(self, launch: Launch, device: Device) -> Iterator[Broken]:
        """What the launch knew of the outputs before it."""
        prefilled = launch.rows if launch.kind == "prefill" else []
        for row in prefilled:
            self._outputs[row.key] = row.tokens[len(row.request.prompt) :]
        new = {row.key for row in prefilled}
        for state in device.law_states:
            outputs = self._outputs[state.key]
            yield from self._penalties(state, outputs, state.key in new)
            yield from self._grammar(state, outputs)
        for part in launch.parts:
            for i, row in enumerate(part.rows):
                self._outputs[row.key] += part.run(i)

    def _penalties(self, state: LawState, outputs: list[int], is_prefill: bool) -> Iterator[Broken]:
        who = state.key[0]
        for path, counts in state.nodes:
            if self._relaxed:
                known = set(outputs) | {state.request.prompt[-1]}
                if not set(counts) <= known or sum(counts.values()) > len(outputs):
                    yield ("I58", "penalties", who, f"counts of {len(outputs)} outputs at most", counts)
                continue
            right = bincount([*outputs, *path])
            if counts != right:
                yield ("I59" if is_prefill else "I58", "penalties", who, right, counts)

    def _grammar(self, state: LawState, outputs: list[int]) -> Iterator[Broken]:
        if state.states is not None:
            right = _matcher_after(state.request, outputs)
            if state.states != right.states:
                yield ("I60", "grammar", state.key[0], f"states {right.states}", state.states)


def after_append(request: Request) -> Iterator[Broken]:
    """Grammar and rows of a live request, after a result was appended."""
    if request.matcher is not None:
        right = _matcher_after(request, request.outputs)
        if right.refused is not None:
            yield ("I61", "grammar", request.rid, "a token that the grammar allows", right.refused)
        if request.matcher.states != right.states:
            yield ("I60", "grammar", request.rid, f"states {right.states}", request.matcher.states)
    if request.turn.return_logprob:
        yield from _rows(request)


def _matcher_after(request: Request, outputs: list[int]) -> Matcher:
    assert request.turn.sampling is not None
    assert request.turn.sampling.grammar is not None
    matcher = Matcher(request.turn.sampling.grammar)
    matcher.read(outputs)
    return matcher


def _rows(request: Request) -> Iterator[Broken]:
    lengths = (len(request.hidden_states), len(request.logprobs))
    count = len(request.outputs)
    if lengths != (count, count):
        yield ("T6", "logprobs", request.rid, f"{count} rows", lengths)
        return
    fingerprint = EMPTY
    for token in request.prompt:
        fingerprint = extend(fingerprint, token)
    for at, token in enumerate(request.outputs):
        if (request.hidden_states[at], request.logprobs[at]) != (fingerprint, logprob_of(fingerprint, token)):
            yield ("T6", "logprobs", request.rid, f"the row of output {at}", "another")
            return
        fingerprint = extend(fingerprint, token)
