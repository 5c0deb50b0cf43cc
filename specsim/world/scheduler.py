"""A release's own scheduler, started and driven: what the scheduler tier needs of it.

The tier draws what users do and says what must be true; an engine's adapter starts the scheduler on a virtual device,
hands it requests, and shows its state. Nothing here knows of an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from fractions import Fraction
    from types import CodeType

    from specsim.choices.chooser import Chooser
    from specsim.contracts.enumeration import Distribution
    from specsim.lifting.changes import Function
    from specsim.world.kv_events import CachedBlock, Event

PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
SAMPLINGS = ("cold", "top-p", "top-k and top-p")
"""How a request is sampled: each leaves one token of what the model says, so that its answer is the greedy one."""

TOO_LONG, NO_GRAMMAR, BEHIND, NO_SESSION = "prompt", "grammar", "logprobs", "session"
REFUSALS = (TOO_LONG, NO_GRAMMAR, BEHIND, NO_SESSION)
"""Why no server takes a request: its prompt is too long, its grammar is none, it asks for logprobs from behind its
prompt on, or it is of a session that nobody opened.
"""

HIDDEN = ("all", "last")
"""Hidden states of a request: of its prompt and all tokens of its answer but the last, or the last one of these."""

KEEP, DRAIN, ABORT = "keep", "drain", "abort"
"""Pauses: all requests stay where they are; those that run go on to their ends; all are aborted."""

IN_RUST, IN_PYTHON = "radix tree in Rust", "radix tree in Python"

LogprobRow = tuple[tuple[float, int], ...]
"""(logprob, token id) of a token of an answer, then of each of the most likely ones."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to start a scheduler. Sizes are in tokens.

    `page_size`     tokens of a page of the KV pool
    `slots`         of the KV pool; small enough that requests wait, are retracted, and push one another out of the tree
    `rows`          of `req_to_token`: requests that run at once
    `chunk`         most tokens of a prefill
    `steps`         depth of the draft, and `draft_tokens` what a verification verifies
    `window`        the sliding window of half of the layers, 0 for none; `window_page` are the tokens of a page of
                    their KV, 0 for as many as of the others
    `reserve`       how much of the answers to come admission reserves, of 1; less leads to retractions
    `radix`         whether finished requests stay in the prefix cache
    `priorities`    whether requests have a priority
    `sessions`      whether requests may be turns of a streaming session
    `mixed`         whether a running request may decode a token beside a chunk of a prefill
    `overlap`       whether a batch is launched before the results of the one before are handled
    `worker`        "release" for the release's own worker over a model that is none, "fake" for one of ours
    `topk`          branches of a draft's step: 1 for a chain
    `graphs`        whether passes of decoding are CUDA graphs, captured for batches of a few sizes
    `beyond_guards` runs what the release refuses by a guard: nothing that a server can be configured to
    `sampled`       whether requests may be sampled
    `drafter`       "eagle" for a draft model that is given hidden states, "standalone" for one that is not, "ngram"
                    for tokens that have followed the same ones before
    `multi_layer`   whether each step of a draft has a draft model of its own, with KV of its own
    `rust_tree`     takes the target's radix tree in Rust, and not the one in Python
    `adaptive`      whether the depth of a draft follows how many drafts are accepted, `steps` at most
    `context`       most tokens of a prompt and its answer, 0 for more than any request has
    `stages`        of a pipeline of workers
    `model_runner`  which one, of an engine that has several; "" for the one that it takes by itself
    `watermark`     share of the KV pool that admission leaves free, beside requests that run
    `reasoning`     whether a request reasons first, and its grammar is of what comes behind
    `connector`     whether KV may come from outside the engine, and be handed on to there
    `hidden_states` whether requests may ask for hidden states, and here for logprobs of their prompts, too
    `kv_events`     whether what the prefix cache has is published, for routers
    `lookahead_hashes`  whether the prefix cache tells apart blocks of the same tokens by the token behind, which a
                    draft model reads, too; of an engine that can
    `hicache`       when KV of the prefix cache is copied to a pool on the host: "write_through" as soon as it is
                    cached, "write_through_selective" once it was found again, "write_back" when it is evicted; "" for
                    never
    `window_lag`    positions that slide out of the window before it is given back what a running request has of them;
                    0 for as many as an engine takes by itself
    """

    page_size: int = 1
    slots: int = 160
    rows: int = 6
    chunk: int = 32
    steps: int = 3
    draft_tokens: int = 4
    window: int = 0
    reserve: float = 1.0
    radix: bool = True
    priorities: bool = False
    sessions: bool = False
    overlap: bool = True
    mixed: bool = False
    worker: str = "fake"
    topk: int = 1
    graphs: bool = False
    beyond_guards: bool = False
    sampled: bool = False
    drafter: str = "eagle"
    multi_layer: bool = False
    rust_tree: bool = False
    adaptive: bool = False
    context: int = 0
    stages: int = 1
    model_runner: str = ""
    connector: bool = False
    reasoning: bool = False
    watermark: float = 0.0
    hidden_states: bool = False
    kv_events: bool = False
    window_page: int = 0
    lookahead_hashes: bool = True
    hicache: str = ""
    window_lag: int = 0

    @property
    def pages(self) -> tuple[int, ...]:
        """Tokens of a page of each kind of layers."""
        return (self.page_size, self.window_page or self.page_size) if self.window else (self.page_size,)

    @property
    def settings(self) -> dict[str, Any]:
        """What differs from the first setup."""
        first = Setup()
        return {n: getattr(self, n) for n in self.__slots__ if getattr(self, n) != getattr(first, n)}

    @property
    def run_max(self) -> int:
        """Most tokens that a verification adds: a path of drafts, and the bonus token."""
        return self.draft_tokens if self.drafter == "ngram" else self.steps + 1

    @property
    def name(self) -> str:
        """What differs from the first setup, for a reader."""
        settings = self.settings.items()
        return ", ".join(n if value is True else f"{n}={value}" for n, value in settings) or "default"


SIZES = frozenset(("page_size", "slots", "rows", "chunk", "steps", "draft_tokens", "reserve", "context"))
"""Settings that every engine has in some way."""


def unknown_settings(setup: Setup, setups: Sequence[Setup]) -> list[str]:
    """Those of a setup that no row of an engine's table has: it would be started without them, and nobody told."""
    return sorted(setup.settings.keys() - SIZES - {name for row in setups for name in row.settings})


def rows_of(setups: Sequence[Setup], worker: str, rust_tree: bool = False) -> tuple[int, ...]:
    """The rows of a table on which schedules are drawn: those beyond an engine's guards are for replay files alone."""
    kind = worker, rust_tree, False
    return tuple(i for i, s in enumerate(setups) if (s.worker, s.rust_tree, s.beyond_guards) == kind)


@dataclass(frozen=True, slots=True)
class Facts:
    """What schedules must know of an engine, whatever its setup.

    `features`   kinds of things that users may do there, of `workload.FEATURES`
    `context`    most tokens of a prompt and its answer
    `answer_room` tokens of these that a prompt leaves to its answer, at least: a longer one is refused
    `priorities` that requests may have; a running one gives way to one of the later ones
    `timeout`    seconds without use after which a session is closed, where it has a time-out
    `leap`       seconds after which the engine has seen every time-out
    `ahead`      steps that a running request may be ahead of the results that the host has handled
    `late`       verifications of a request after its abort, at most
    `patience`   iterations in which a request that fits must be admitted, once another one has ended
    `keeps_last` whether a turn of a session may claim its last token, whose KV is written after its end if at all
    `fits`       whether the pool takes a request of `context`, or of a setup's, alone
    `in_order`   whether requests start in the order of their priorities, then of their arrival
    `caches`     whether what a request computed stays in its prefix cache, where it has one, behind its end
    `masks`      whether its model says what a grammar allows, where that is another token than the most likely one
    `pauses`     how users may pause it: of KEEP, DRAIN, ABORT
    `hears`      whether requests reach it while it is paused, and wait there, and `refuses` whether it may be told to
                 refuse them then
    `hidden`     hidden states that requests may ask for: of HIDDEN
    `refusals`   requests that it is to refuse: of REFUSALS
    `window_lag` what it is at most of a setup that leaves it to the engine
    """

    features: frozenset[str]
    context: int
    answer_room: int
    priorities: tuple[int, ...]
    timeout: float
    leap: float
    ahead: int
    late: int
    patience: int
    keeps_last: bool
    fits: bool = False
    in_order: bool = False
    caches: bool = False
    masks: bool = False
    pauses: tuple[str, ...] = (KEEP,)
    hears: bool = False
    refuses: bool = False
    hidden: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    window_lag: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A request.

    `rid`       as its user names it
    `prompt`    token ids; of a turn of a session what it adds to the turn before
    `answer`    max_new_tokens
    `at`        iteration of its arrival; of a later turn how many iterations after the end of the turn before
    `abort`     iterations after its arrival at which it is aborted, -1 for never
    `stop`      token that ends it, -1 for none
    `session`   of which it is a turn, "" for none
    `priority`  0 where there are none
    `stop_text` tokens whose text, one character each, is its stop string; empty for none
    `grammar`   the tokens that its grammar allows, after which it ends; empty for none
    `compiling` iterations until the grammar is compiled
    `close`     of a turn of a session: iterations after its arrival at which the session is closed, -1 for not
    `timeout`   of a session's first turn: seconds after which the session is closed if nobody uses it, 0 for none
    `logprobs`  how many most likely tokens are sent with each token's own logprob, -1 for no logprobs at all
    `penalty`   of tokens that it has said: one of PENALTIES, "" for none
    `sampling`  one of SAMPLINGS, "" for greedily
    `stream`    whether it is answered in parts
    `bias`      a bias makes the tokens less likely that it divides, 0 for none
    `hidden`    which hidden states are sent with its answer: one of HIDDEN, "" for none
    `prompt_logprobs`  token of its prompt from which on logprobs are sent beside the answer's, -1 for none
    `salt`      what it may begin behind in the prefix cache is of requests with the same one, or of those with none
                where it is ""
    `refused`   why it is to be refused: one of REFUSALS, "" where it is not
    """

    rid: str
    prompt: tuple[int, ...]
    answer: int
    at: int
    abort: int = -1
    stop: int = -1
    session: str = ""
    priority: int = 0
    stop_text: tuple[int, ...] = ()
    grammar: tuple[int, ...] = ()
    compiling: int = 0
    close: int = -1
    timeout: float = 0.0
    logprobs: int = -1
    penalty: str = ""
    sampling: str = ""
    bias: int = 0
    stream: bool = False
    hidden: str = ""
    prompt_logprobs: int = -1
    salt: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """The scheduler is paused at an iteration, for so many once the pause is complete; `retracts` says that running
    requests give back what they hold, `mode` is one of `Facts.pauses`, and with `refuses` new requests are refused.
    """

    at: int
    iterations: int
    retracts: bool = False
    mode: str = KEEP
    refuses: bool = False


def defaults(kind: type[Turn | Pause]) -> dict[str, Any]:
    """What one has where nothing else is said, by the names of those fields that need not be given."""
    return {field.name: field.default for field in fields(kind) if field.default is not MISSING}


@dataclass(frozen=True, slots=True)
class RequestState:
    """A request as the scheduler has it, after the run.

    `reason`      "" while it runs, else "stop", "length" or "abort"
    `committed`   the length that it claims, `allocated` the one that it has slots for
    `row`         of `req_to_token`, -1 for none
    `drafts`      correct drafts that are counted for it
    """

    rid: str
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]
    reason: str
    committed: int
    allocated: int
    row: int
    drafts: int


@dataclass(frozen=True, slots=True)
class Load:
    """What a scheduler has to do, and room for, at the start of an iteration. Sizes are in tokens.

    `waiting`   requests that wait to be prefilled, each with the length that it may come to, prompt and answer
    `running`   what the running requests may still come to allocate
    `free`      slots that are free, or in the prefix cache and in nobody's use; -1 where pools are not counted so
    `free_rows` of `req_to_token`
    `lengths`   of each running request the positions that it claims, and those that it has slots for
    `row_width` positions of a row
    `chunked`   whether a prompt is prefilled in part
    `windows`   of each running request the slots that it has in the pool of the sliding window's layers; empty where
                nothing says
    """

    waiting: tuple[tuple[str, int], ...]
    running: int
    free: int
    free_rows: int
    lengths: tuple[tuple[str, int, int], ...]
    row_width: int
    chunked: bool = False
    windows: tuple[int, ...] = ()


Matched = int | tuple[int, ...] | None
"""What ended an answer: a token, the tokens of a stop string, the number of tokens that were asked for, or nothing."""


class Part(NamedTuple):
    """A message of an answer: the tokens that it brings, how many its user is told that there are by then (-1 for no
    word of it), whether it says why the answer ends, and the seconds that the request has waited in the queue by what
    its user is told (None for no word of it).
    """

    tokens: int
    completion_tokens: int
    ends: bool
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a user was sent of a request: all tokens, why it ended ("" for not yet), the counts beside it (-1 where a
    release sends none) and a row of logprobs for each token, if they were asked for.

    `matched`         what it says ended it
    `parts`           its messages, in their order
    `text`            the tokens that are made text of, which end with the answer's; None where nothing says
    `cached_tokens`   of the prompt, that were not computed
    `verifications`   of drafts, `correct_drafts` how many of these were accepted, and `runs` by how many, from none on,
                      in how many verifications; empty for no word of it
    `hidden`          hidden states, each the `StartedScheduler.content_of` of the tokens up to there
    `prompt_logprobs` a row for each token of the prompt from the first one on that was asked for, of which nothing
                      says a logprob: it has -1
    `retractions`     how often it was, -1 where nothing says
    `cached_by_tier`  `cached_tokens` by where they were: on the device, in the host's memory ...; empty for no word of
                      it
    """

    rid: str
    tokens: tuple[int, ...]
    reason: str
    prompt_tokens: int = -1
    completion_tokens: int = -1
    logprobs: tuple[LogprobRow, ...] = ()
    cached_tokens: int = -1
    verifications: int = -1
    matched: Matched = None
    parts: tuple[Part, ...] = ()
    text: tuple[int, ...] | None = None
    correct_drafts: int = -1
    runs: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    prompt_logprobs: tuple[LogprobRow, ...] = ()
    retractions: int = -1
    cached_by_tier: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WrongContent:
    """A position that the model read, and that did not hold the KV of the tokens up to it.

    `phase`   "extend" or "verify", or "send" where it was handed on
    `pool`    "full", or "window" for the layers of a sliding window
    `holds`   what is there: "nothing", "a rejected draft" of its own, or "other tokens", those of others' drafts, too
    `freed_by`  the target's function that had the slot freed after the right KV was written to it, and `where` its
                FILE:LINE; "" for nobody
    """

    rid: str
    phase: str
    pool: str
    position: int
    slot: int
    holds: str
    freed_by: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """What a virtual device found: `what` in words that are the same on every release, the accesses, lines for a
    reader, and FILE:LINE of the code to blame. `wait` is the one that a race lacks, "STREAM for STREAM".
    """

    what: str
    accesses: str
    details: tuple[str, ...] = ()
    where: str = ""
    wait: str = ""


class Race(_OnDevice):
    """Two accesses to one element that nothing orders, one of them a write or the end of its memory."""

    __slots__ = ()


class Fault(_OnDevice):
    """An access outside its tensor, or an assertion of the device that does not hold."""

    __slots__ = ()


class Noted(NamedTuple):
    """A record of something that the world noted in iteration `when`. `at` are the operations of a run that was
    recorded which did it.
    """

    what: Any
    when: int = 0
    at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node of the prefix cache: its tokens from the root on, the slots of its own ones, and the salt of the requests
    that it is for.
    """

    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    salt: str = ""

    @property
    def start(self) -> int:
        """The position of its first slot."""
        return len(self.tokens) - len(self.slots)

    def places(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Each slot with its position, and the tokens up to that."""
        for place, slot in enumerate(self.slots, self.start):
            yield place, slot, self.tokens[: place + 1]


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The place of the first token that differs; that behind the shorter one where none does."""
    differs = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differs, min(len(one), len(other)))


def of_salt(nodes: Iterable[TreeNode], salt: str) -> list[TreeNode]:
    """Those that requests of a salt may begin behind."""
    return [node for node in nodes if node.salt == salt]


def held_of(nodes: Iterable[TreeNode], tokens: Sequence[int], held: int = 0) -> int:
    """How many of these tokens, from the first on, a prefix cache has, of which so many are `held` in any case."""
    for start, path in sorted((node.start, node.tokens) for node in nodes):
        if start <= held:
            held = max(held, first_difference(path, tokens))
    return held


def held_in_window(nodes: Iterable[TreeNode], tokens: Sequence[int], reach: int, need: int) -> int:
    """How many of the first `reach` of these tokens a prefix cache has, whose `nodes` are of a sliding window's layers:
    up to where it has the `need` ones before, or all.
    """
    present = {place for node in nodes for place in range(node.start, first_difference(node.tokens, tokens))}
    held = behind = 0
    for end in range(1, reach + 1):
        behind = behind + 1 if end - 1 in present else 0
        held = end if behind >= min(need, end) else held
    return held


@dataclass(slots=True)
class Pools:
    """Of the pools at rest. Counts are -1 and lists None where a release does not show them.

    `total`, `free`, `cached`   slots of the KV pool; free; in the prefix cache and in nobody's use
    `window_*`                  of the pool of the sliding window's layers
    `host_total`, `host_free`   slots of the pool in the host's memory, of a hierarchical cache, and free ones
    `free_slots`                the free slots themselves
    `nodes`, `window_nodes`, `host_nodes`  of the prefix cache: the slots of the KV pool, of the sliding window's and of
                                the host's; `host_contents` has by slot of the last one the hash in it
    `rows`, `free_rows`         rows of `req_to_token`
    `free_row_numbers`          the free rows themselves
    `writers`, `row_users`      by slot of the full pool the request for which KV was written to it last, and by row the
                                one that was last in it; empty where nothing says
    `blocks`                    of the prefix cache, where KV cache events are published: those that a new request would
                                find, and `unpublished` are events that wait to be
    """

    total: int
    free: int
    cached: int
    rows: int
    free_rows: int
    window_total: int = -1
    window_free: int = -1
    window_cached: int = -1
    free_slots: list[int] | None = None
    nodes: list[TreeNode] | None = None
    window_nodes: list[TreeNode] | None = None
    free_row_numbers: list[int] | None = None
    writers: Mapping[int, str] = field(default_factory=dict)
    row_users: Mapping[int, str] = field(default_factory=dict)
    blocks: list[CachedBlock] | None = None
    unpublished: tuple[Event, ...] = ()
    host_total: int = -1
    host_free: int = -1
    host_nodes: list[TreeNode] | None = None
    host_contents: Mapping[int, int] = field(default_factory=dict)


MODEL, RESULT = "the model", "what the model returns"
"""Where the fake model does something."""
END = "end"
"""The mark behind the last thing of a run."""


class Step(NamedTuple):
    """One thing that the host or a stream did. Time goes from one to the next.

    `lane`    "host", or the name of a stream
    `kind`    "launch": the host launches operation `number` for `stream`; "run": its stream runs it, as its `n`-th;
              "order": `lane` has to wait for the `n`-th of `stream`; "wait": the host waits for that, up to step `end`;
              "access": the host reads or writes memory that copies reach; "mark": `what` begins, of the requests `who`
    `what`    the operation
    `where`   FUNCTION at FILE:LINE of the target, MODEL, RESULT, or "" for none of these
    """

    lane: str
    kind: str
    what: str
    where: str = ""
    number: int = 0
    stream: str = ""
    n: int = 0
    end: int = 0
    who: str = ""


class Chunk(NamedTuple):
    """What a launch computes of a request: so many `tokens` from position `start` on, of which the last `drafts` are
    drafts; -1 of a part of a prefill, and where nothing says. Of one that begins `held` is how much of its prompt is in
    the prefix cache then; -1 of one that has begun, and where nothing says.
    """

    start: int
    tokens: int
    held: int = -1
    drafts: int = -1


class Launch(NamedTuple):
    """A launch of a batch in an iteration: its kind, "extend" or "decode", and its requests. `chunks` has one for each,
    where anything says them; `makes_none` says that nothing is drafted behind it.
    """

    iteration: int
    kind: str
    rids: tuple[str, ...]
    chunks: tuple[Chunk, ...] = ()
    makes_none: bool = False

    @property
    def line(self) -> str:
        """For a reader."""
        return f"{self.iteration:4}  {self.kind:6}  {' '.join(self.rids)}"


@dataclass(slots=True)
class Seen:
    """What a run left besides the scheduler's state.

    `noted`     records of what the model and the virtual device saw, in the order in which they did: `WrongContent`,
                `Race`, `Fault`, and those of `specsim.world.kv`
    `launches`  each launch of a batch
    `ran`       the first lines of the statements that were run, by file below the package
    `steps`     of a run that was to be recorded, all that the host and the streams did
    `states`    then also the state before each step of kind "mark" (`specsim.tiers.states`); none, and why, where it
                is `unreadable`
    """

    noted: list[Noted] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    ran: dict[str, list[int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    states: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    unreadable: str = ""


class StartedScheduler(Protocol):
    """A scheduler that was started once. A schedule runs in a fork of the process that started it."""

    @property
    def facts(self) -> Facts: ...

    def decode(self, prompt: Sequence[int], count: int, rank: int = 0) -> list[int]:
        """The tokens that the model says after a prompt, one after the other; with a rank, those that it finds so
        likely, 0 for the most likely one.
        """
        ...

    def expected(self, turn: Turn, prompt: Sequence[int], said: Sequence[int] = (), /) -> list[int]:
        """The tokens that sequential decoding gives to a turn whose whole prompt is `prompt`, stops not regarded.
        Those that were `said` are taken as far as penalties allow them that lag behind the answer.
        """
        ...

    def logprobs(self, turn: Turn, prompt: Sequence[int], tokens: Sequence[int]) -> list[LogprobRow]:
        """The rows of these tokens after a turn's whole prompt."""
        ...

    def content_of(self, tokens: Sequence[int]) -> int:
        """The KV of the last of these tokens."""
        ...

    def slot_content(self, slot: int) -> int:
        """The KV that a slot of the full pool holds."""
        ...

    def window_content(self, slot: int) -> int:
        """The KV that a slot of the sliding window's pool holds."""
        ...

    def generate(self, turn: Turn) -> Any:
        """A request's message to the scheduler."""
        ...

    def abort(self, rid: str) -> Any: ...

    def abort_all(self) -> Any: ...

    def flush(self) -> Any: ...

    def pause(self, pause: Pause) -> Any: ...

    @property
    def has_paused(self) -> bool:
        """Whether the last pause is complete: whoever asked for it has its answer."""
        ...

    def resume(self) -> Any: ...

    def open_session(self, name: str, timeout: float) -> Any:
        """A message that opens a session, which is closed after so many seconds without use; 0 for never."""
        ...

    def close_session(self, name: str) -> Any: ...

    def leap(self, seconds: float) -> None:
        """Put the clock forward, as after something slow on the host."""
        ...

    def run(self, chooser: Chooser, script: Callable[[int], Sequence[Any] | None]) -> None:
        """Run the scheduler's loop on a device that the chooser moves; `script` gives the messages that arrive at an
        iteration, None to end the loop. What the scheduler raises comes out.
        """
        ...

    def record(self) -> None:
        """Have the next run recorded, step by step."""
        ...

    @property
    def is_idle(self) -> bool: ...

    def load(self) -> Load: ...

    def requests(self) -> Iterator[RequestState]: ...

    def answers(self) -> Iterator[Answer]: ...

    def pools(self) -> Pools: ...

    @property
    def seen(self) -> Seen: ...

    @property
    def tree(self) -> str:
        """IN_PYTHON or IN_RUST, whichever is run; "" where the target has one alone or none is."""
        ...

    def traceback_of(self, error: BaseException) -> Sequence[tuple[str, str]]:
        """The functions of the target that an error came through, each with FILE:LINE, the innermost one last."""
        ...

    def functions_of(self, codes: Iterable[CodeType]) -> tuple[Function, ...]:
        """Those of the target among code that ran, by file and line."""
        ...


class SchedulerTarget(Protocol):
    """A target whose scheduler can be started: `where` is FILE:LINE of its loop, and `source_hash` that of its files.
    `lacks` names what is not run with a worker ("fake" or "release"), and why; `imported` are the files, below the
    package, of which it is noted what runs, as far as they were imported before a start. With `has_rust_tree` it has
    radix trees in Python and in Rust, and both can be loaded. With `starts_anew` a start costs less than a fork, and
    what it started leaves nothing behind. `setups` is the table of ways to start it. The first row is the simplest; a
    schedule's first choice says on which row it runs, so that new rows go to the end.
    """

    @property
    def setups(self) -> Sequence[Setup]: ...

    @property
    def where(self) -> str: ...

    @property
    def source_hash(self) -> str: ...

    @property
    def imported(self) -> Sequence[str]: ...

    @property
    def has_rust_tree(self) -> bool: ...

    @property
    def starts_anew(self) -> bool: ...

    def statements(self, file: str) -> Sequence[tuple[int, int]]:
        """The first and last line of each statement of a function of a file, sorted."""
        ...

    def lacks(self, worker: str) -> Sequence[tuple[str, str]]: ...

    def reach(self, setup: Setup) -> str:
        """Who has a server that is started so: "default", "option" or "guarded:FILE:LINE"."""
        ...

    def start(self, setup: Setup) -> StartedScheduler: ...

    def outcomes(self, setup: Setup, length: int) -> tuple[Distribution, Iterator[tuple[tuple[int, ...], Fraction]]]:
        """The distribution of what a lossless worker answers, `length` tokens to each request, and the outcomes of the
        release's own with their weights, which add up to 1.
        """
        ...
