"""What goes to the device and comes back: launches with a row for each request, and results.

`Sequence` and `Step` are what the device knows of a request, and what a decode step did to it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from specsim.engine.lifecycle import State
from specsim.engine.request import Request
from specsim.engine.sampling_params import Counts


@dataclass(slots=True)
class DecodeResult:
    """What the host gets of a verification.

    `next_token_ids`   stride entries a request, of which the first `accept_lens` are the accepted run
    `accept_lens`      accepted drafts and the bonus
    `accepted_drafts`  batch-level counter of accepted drafts, set by `resolve`
    `hidden_states`, `logprobs`  a row for each of `next_token_ids`, when a request of the batch wants them
    """

    next_token_ids: list[int]
    accept_lens: list[int]
    stride: int
    accepted_drafts: int = 0
    hidden_states: tuple[int, ...] = ()
    logprobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What the drafter proposes to one request: the tree, and the nodes of it whose token is the one that the target
    will say.

    `parents[node]` is the parent of each node, -1 for the root, node 0.
    """

    parents: list[int]
    agreeing: frozenset[int]


@dataclass(slots=True)
class LaunchRow:
    """One request in a launch. `slots` are those of its `row` at launch; `tokens` and `prefix_len` are a prefill's;
    `relay_in` is where the launch before left the root of its tree, `relay_out` where it leaves the next; `counts` are
    those of the relaxed distribution, if that is on.
    """

    request: Request
    key: tuple[str, int]
    slots: list[int]
    plan: DraftPlan | None = None
    tokens: list[int] = field(default_factory=list)
    prefix_len: int = 0
    row: int = 0
    is_middle: bool = False  # a part of a prefill, not the last: it gives no token
    relay_in: int = -1
    relay_out: int = -1
    counts: Counts | None = None
    swa_slots: list[int] = field(default_factory=list)  # those of a sliding window, 0 for none; as long as `slots`
    planned_len: int = -1  # the length that a plan stream took for its tree, -1 without one
    fed: Counts | None = None  # what the target's own penalizers count


@dataclass(slots=True)
class Launch:
    """A batch on the device. `first_tokens` and `first_hidden_states`, or `result`, are set when it is done."""

    number: int
    kind: str  # "prefill" or "decode"
    rows: list[LaunchRow]
    num_steps: int = 0
    num_draft_tokens: int = 0
    done: bool = False
    first_tokens: list[int] = field(default_factory=list)
    first_hidden_states: tuple[int, ...] = ()
    result: DecodeResult | None = None
    grammar_advanced: bool = False
    beside: Launch | None = None  # the decode rows of a mixed chunk; the prefill's are in `rows`
    table: array[int] | None = None  # all rows at the launch, for a target that reads them itself

    @property
    def parts(self) -> list[Launch]:
        """The launch, and what is mixed into it: each has rows of one kind."""
        return [self] if self.beside is None else [self, self.beside]

    @property
    def verifies(self) -> Launch | None:
        """The part that verifies trees, if there is one."""
        return self if self.kind == "decode" else self.beside

    @property
    def name(self) -> str:
        return f"{'P' if self.kind == 'prefill' else 'V'}{self.number}"

    @property
    def requests(self) -> list[Request]:
        return [row.request for row in self.rows]

    def run(self, i: int) -> list[int]:
        """The tokens that its request `i` got, when it is done."""
        if self.rows[i].is_middle:
            return []
        if self.result is None:
            return self.first_tokens[i : i + 1]
        return self.result.next_token_ids[i * self.result.stride :][: self.result.accept_lens[i]]


@dataclass(slots=True)
class Sequence:
    """The device's own view of a request: fingerprints of the positions whose KV is written, the root of the next
    tree, the recurrent state behind the last written position (what a layer without KV knows of the sequence), the
    tags that each layer of the drafter should hold, and how often each token was said.
    """

    chain: list[int]
    root: int
    state: int
    draft_tags: list[list[int]] = field(default_factory=list)
    counts: Counts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """What a decode step did to one request, for the rules: device length before, the root's token, nodes of the
    accepted path, tokens, and the slots that its nodes were written to.
    """

    key: tuple[str, int]
    start: int
    path: list[int]
    tokens: list[int]
    parents: list[int]
    predicts: list[int]
    bonus: int
    slots: list[int]
    root: int
    written: list[int]


def advance_grammar(launch: Launch) -> None:
    """Let the grammars of a launch read its results, unless they have."""
    if launch.grammar_advanced:
        return
    launch.grammar_advanced = True
    for i, row in enumerate(launch.rows):
        request = row.request
        is_live = request.key == row.key and request.state in (State.PREFILLING, State.RUNNING) and not row.is_middle
        if request.matcher is not None and is_live:
            request.matcher.read(launch.run(i))


class RowCopies:
    """Copies of rows of launches, one of each: the engine keeps some beside their launch."""

    __slots__ = ("_copies", "requests")

    def __init__(self, requests: dict[Request, Request]) -> None:
        self.requests = requests
        self._copies: dict[int, LaunchRow] = {}

    def of(self, row: LaunchRow) -> LaunchRow:
        new = self._copies.get(id(row))
        if new is None:
            new = self._copies[id(row)] = LaunchRow(
                self.requests[row.request],
                row.key,
                row.slots,
                row.plan,
                row.tokens,
                row.prefix_len,
                row.row,
                row.is_middle,
                row.relay_in,
                row.relay_out,
                row.counts,
                row.swa_slots,
            )
        return new
