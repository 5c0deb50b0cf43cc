"""A request of the workload, as the scheduler knows it. What it owns in memory is the accounting's business."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specsim.engine.grammar import Matcher
from specsim.engine.lifecycle import Event, State, after
from specsim.engine.sampling_params import Counts, SamplingParams, make_matcher


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client sends: new tokens, and how the answer ends.

    `special_at`  output index -> EOS or STOP token that the model says there
    `session`     id of the streaming session that the turn belongs to, "" for none: its prompt is the session's
                  tokens, then `tokens`
    `extra_key`   namespace of the radix cache: KV is shared within it only
    `open_ended`  the client names no `max_new_tokens`, and gets what the context has room for
    `logprob_start`  first position of the prompt whose logprob the client asks for, -1 for none
    `sampling`    the distribution of its tokens, None for greedy decoding of the whole vocabulary
    `return_logprob`  the answer has a logprob and a hidden state for each token
    `stop`        strings that end the answer (`specsim.engine.stop_strings`)
    """

    rid: str
    tokens: tuple[int, ...]
    max_new_tokens: int
    special_at: dict[int, int] = field(default_factory=dict)
    ignore_eos: bool = False
    session: str = ""
    extra_key: str = ""
    open_ended: bool = False
    logprob_start: int = -1
    sampling: SamplingParams | None = None
    return_logprob: bool = False
    stop: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Request:
    """A turn on its way through the engine.

    `prompt`       its whole prompt, the session's tokens included
    `outputs`      tokens the engine has appended; the accounting appends whole accepted runs, so it may overshoot
    `incarnation`  how many times it was admitted: a result of an earlier incarnation is stale
    `extend_len`   positions of the prefill of this incarnation
    `resolved`     sum of accepted tokens of this incarnation's resolved verifications
    `pending`      launched, unresolved verifications of this incarnation
    `matcher`      its grammar, which has read the outputs
    `cumulated`    counts of the relaxed distribution
    `hidden_states`, `logprobs`  a row for each output, if it wants them
    `state_of_accounting`  whatever the accounting keeps of it
    """

    turn: Turn
    prompt: list[int]
    specials: dict[int, int]
    outputs: list[int] = field(default_factory=list)
    state: State = State.WAITING
    incarnation: int = 0
    extend_len: int = 0
    resolved: int = 0
    pending: int = 0
    abort_wanted: bool = False
    outputs_before: int = 0
    matcher: Matcher | None = None
    cumulated: Counts = field(default_factory=dict)
    hidden_states: list[int] = field(default_factory=list)
    logprobs: list[int] = field(default_factory=list)
    state_of_accounting: Any = None

    @property
    def rid(self) -> str:
        return self.turn.rid

    @property
    def key(self) -> tuple[str, int]:
        """This incarnation of the request."""
        return (self.turn.rid, self.incarnation)

    @property
    def honest_len(self) -> int:
        """Positions whose KV is written by work whose results the host has seen."""
        return self.extend_len + self.resolved

    @property
    def kv_ready(self) -> int:
        """KVready: positions whose KV is written, or will be when launched work is done. A launched verification
        writes the KV of its root, which is the last token that the host knows.
        """
        return self.honest_len + (1 if self.pending else 0)

    def happens(self, event: Event) -> None:
        self.state = after(self.state, event)


def make_request(turn: Turn, history: list[int]) -> Request:
    """The request of a turn; `history` are the session's tokens so far."""
    prompt = [*history, *turn.tokens]
    specials = {len(prompt) + index: token for index, token in turn.special_at.items()}
    return Request(turn, prompt, specials, matcher=make_matcher(turn.sampling))
