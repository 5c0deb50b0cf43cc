"""An inference engine with EAGLE under an overlap scheduler, on the operations beside it.

For a reader who knows the EAGLE papers and no serving engine. Read top to bottom.

**What runs.** A request is prefilled: the model computes the KV of its prompt, perhaps in chunks, and says one token,
its first *bonus*. Then it decodes. A step of decoding drafts a tree below the bonus token, computes the KV of all its
nodes at once, and keeps the path that the target model itself would have said: the accepted drafts, and one token
more, the next bonus. So a step brings 1 to num_steps + 1 tokens, and each is the one that decoding token by token says.

**Where KV lies.** KV of a position is a row of `kv`, its *slot*. `req_to_token` maps a request's positions to slots: a
row of it is a request's page table. Slots are handed out in pages. A slot has one owner at a time:

    free page  ->  request (alloc_extend)  ->  prefix cache (insert), or free page (release)  ->  ...

A request owns its pages from the step that plans for them on. When its prompt is prefilled, the whole pages of that go
to the cache; when it ends, those of its answer do, up to the last token whose KV is computed, and the rest is free.
What is in the prefix cache belongs to the cache, also while requests read it; a node that some request reads is locked
and is not evicted.

**Two clocks.** The device is one launch ahead of the host. The host plans step n + 1 before it has read what step n
accepted, so it knows a request's length only as it was one step ago: `Request.length`. The length that counts is the
device's, `Device.seq_lens`. Two things follow:

* the host gives a request slots for the longest that it may have become and for the tree of the next step behind that
  (`Engine.slots_needed`), and takes what was too much back when the request ends;
* the result of a launch may be of a request that has ended, was aborted or was retracted meanwhile. It is dropped.

A prompt of 10 tokens, 3 draft steps, page size 1. A step brings 4 tokens at most, here it brings 3; its tree has 4
nodes. Lengths as they are after each step:

    step  launches   then reads             Request.length  allocated          Device.seq_lens
    1     a prefill  nothing                10              10                 10
    2     a step     the first bonus token  10              14 = 10 + 4        13
    3     a step     3 tokens of step 2     13              18 = 10 + 4 + 4    16
    4     a step     3 tokens of step 3     16              21 = 13 + 4 + 4    19

When step 3 is planned, the host knows of 10 positions: step 2 may bring 4 more, and the tree has 4. Should the request
end with what step 2 has brought, step 3 was launched in vain: it has written KV into slots that are free by then, and
may be another request's in step 4. That does no harm. Launches run one after the other, so what step 4 writes there
comes later, and nobody reads a slot that his own launches have not written.

**Retraction.** When a step needs more pages than are free, the youngest request gives all of its slots back and waits
again. What its user has been told stays, and is prefilled behind its prompt; what is in flight is dropped. A request
that runs alone always fits, for `Engine.submit` takes none that would not. A request of a lower priority gives way in
the same manner to one that waits.

**Sliding windows.** Half of the layers may read the last `Config.window` positions alone. Their KV has a smaller pool
of its own: a page of the big pool has a *window page* beside it as long as somebody's window reaches it
(`Device.window_pages`). A prefix of which the last positions have no window page any more cannot be shared from there.

**Sessions.** The next turn of a session goes on where the turn before ended. Between the two the session is who has the
row and its slots. There is one turn of a session at a time.

**Grammars.** What may follow a draft depends on the tokens before it. So the results of the launch before are read
first where some request has a grammar.

`TRANSITIONS` has the states of a request and what leads from one to the next. `Engine.owners` says whose each page is,
at any time.

This package imports torch and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specsim.reference.cache_locs import assign_extend_cache_locs
from specsim.reference.drafting import (
    DraftResults,
    organize_draft_results,
    select_top_k_tokens_first,
    select_top_k_tokens_next,
)
from specsim.reference.grammar import Grammar, tree_masks
from specsim.reference.kv import alloc_extend, alloc_len_per_decode, get_last_loc, move_kv
from specsim.reference.logits import EXACT
from specsim.reference.sequential import (
    GREEDY_TEMPERATURE,
    SamplingParams,
    draw,
    finish_of,
    next_token_law,
    next_token_logprobs,
)
from specsim.reference.tree import QLEN_ONLY, Tree, build_tree
from specsim.reference.verify_logits import VerifiedStep, verify_logits_greedy, verify_logits_sampled

__all__ = ["Config", "Device", "Engine", "Launch", "Model", "Request", "Session", "State"]

NOTHING = -1
"""KV of a slot that nobody has written."""


class State(Enum):
    """Of a request. While it waits and when it has ended it has neither row nor slots."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    ENDED = "ended"


TRANSITIONS = {
    State.WAITING: {"admit": State.PREFILLING, "abort": State.ENDED},
    State.PREFILLING: {"launch the last chunk": State.RUNNING, "retract": State.WAITING, "abort": State.ENDED},
    State.RUNNING: {"end": State.ENDED, "retract": State.WAITING, "abort": State.ENDED},
    State.ENDED: dict[str, State](),
}


class Model(Protocol):
    """A target model and a draft model. KV of a token is two integers, so that reading it in a wrong order shows."""

    @property
    def vocab_size(self) -> int: ...

    def kv(self, prefix: int, token: int) -> tuple[int, int]:
        """KV of a token behind a prefix of that state; the first of the two is the state of the longer prefix."""
        ...

    def state(self, rows: Sequence[Sequence[int]], near: Sequence[Sequence[int]] | None = None) -> int:
        """What attention makes of the KV of a prefix [tokens, 2], in the order in which it was read, and of that which
        layers with a sliding window have of its last tokens; None without such layers.
        """
        ...

    def logits(self, states: Sequence[int]) -> Tensor:
        """float32 [states, vocab_size] of the target after prefixes of these states."""
        ...

    def drafts(self, states: Sequence[int], ranks: Sequence[int], topk: int) -> tuple[Tensor, Tensor]:
        """(probabilities float32, tokens int64), both [states, topk], of the draft model: it has the target's most
        likely token at this rank, and not at all from `topk` on.
        """
        ...


@dataclass(frozen=True, slots=True)
class Config:
    """
    page_size         slots a page, a power of two
    slots             of the pool, a multiple of page_size, beside a page of padding at its beginning
    rows              of req_to_token: requests that run at once
    chunk             most tokens of a prefill
    context           most tokens of a request
    topk, num_steps, num_draft_tokens  the shape of a draft: see `drafting`
    overlap           whether a step is planned before the results of the one before are read
    reserve           how much of the answers to come admission leaves room for, 0 to 1
    caches            whether requests share prefixes
    mixed             whether those that run decode one token each, without drafts, beside a prefill
    window            positions that half of the layers read, the one at hand among them; 0 for no such layers
    window_slots      of these layers' pool, a multiple of page_size, beside a page of padding at its beginning
    """

    page_size: int = 1
    slots: int = 160
    rows: int = 6
    chunk: int = 32
    context: int = 240
    topk: int = 1
    num_steps: int = 3
    num_draft_tokens: int = 4
    overlap: bool = True
    reserve: float = 1.0
    caches: bool = True
    mixed: bool = False
    window: int = 0
    window_slots: int = 0

    @property
    def reach(self) -> int:
        """Positions behind a request's length that its next step may touch."""
        return alloc_len_per_decode(self.num_steps, self.topk, self.num_draft_tokens, self.page_size)

    def window_start(self, length: int) -> int:
        """The first position that a token behind so many reads through the window."""
        return max(0, length - self.window + 1) if self.window else 0


@dataclass(slots=True, kw_only=True, eq=False)
class Holder:
    """Who has a row of req_to_token, and the slots in it from `shared` on.

    row          -1 for none
    length       positions whose KV is computed, as far as the host knows
    allocated    positions that have a slot
    shared       positions whose slots are the prefix cache's
    node         of the cache, up to which it reads; locked
    window_from  the first page that has a window page for it
    """

    row: int = -1
    length: int = 0
    allocated: int = 0
    shared: int = 0
    node: Node | None = None
    window_from: int = 0

    def take_over(self, giver: Holder) -> None:
        for one in fields(Holder):
            setattr(self, one.name, getattr(giver, one.name))
            setattr(giver, one.name, one.default)


@dataclass(slots=True, eq=False)
class Session(Holder):
    """A row whose next turn is to come.

    text  what its user has sent and been told so far
    turn  name of the request that is its last turn; "" for none
    """

    text: tuple[int, ...] = ()
    turn: str = ""


@dataclass(slots=True, eq=False)
class Request(Holder):
    """
    prompt    of a turn of a session all that comes before its answer
    priority  those with a higher one run first
    ready_at  the step at which its grammar is compiled
    number    in the order of arrival
    logprobs  of each output, of the whole vocabulary, if they are asked for
    """

    rid: str
    prompt: tuple[int, ...]
    params: SamplingParams
    session: str = ""
    priority: int = 0
    grammar: Grammar | None = None
    ready_at: int = 0
    number: int = 0
    outputs: list[int] = field(default_factory=list)
    logprobs: list[Tensor] = field(default_factory=list)
    state: State = State.WAITING
    reason: str = ""
    matched: int | str | None = None
    launched: int = 0
    """Launches of its decoding whose results the host has not read."""

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.outputs]

    def on(self, event: str) -> None:
        assert event in TRANSITIONS[self.state], (self.rid, self.state, event)
        self.state = TRANSITIONS[self.state][event]
        assert (self.row >= 0) == (self.state in (State.PREFILLING, State.RUNNING)), (self.rid, self.state, self.row)


class Launch(NamedTuple):
    """A launch in flight.

    kind       "extend" or "decode"
    tokens     that it brings, request by request: none of a prefill that is not the last one of its request
    logits     that these are of, each [tokens, vocab_size]
    prefilled  of the requests the first so many are prefilled, the others decode
    """

    kind: str
    requests: tuple[Request, ...]
    tokens: list[list[int]]
    logits: list[Tensor]
    prefilled: int = 0


@dataclass(slots=True)
class Node:
    """A page of the prefix cache: its tokens behind its parent's, and where their KV lies."""

    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    parent: Node | None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    locks: int = 0
    window_locks: int = 0
    used: int = 0

    def path(self) -> list[Node]:
        """From the root's child on to here."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixCache:
    """KV of prefixes, in whole pages: a tree whose edges are pages of tokens."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node((), (), None)
        self.clock = 0
        self.evictable = 0
        """Slots of nodes that nobody reads."""

    def match(self, tokens: Sequence[int]) -> Node:
        """The deepest node on the way of these tokens."""
        self.clock += 1
        node = self.root
        for page in self._pages(tokens):
            if page not in node.children:
                break
            node = node.children[page]
            node.used = self.clock
        return node

    def insert(self, tokens: Sequence[int], slots: Sequence[int]) -> tuple[Node, list[int]]:
        """Take over the slots of the whole pages of these tokens. Returns the node that they lead to, and those slots
        that the cache has no use for, since it has that page already.
        """
        self.clock += 1
        node, unused = self.root, list[int]()
        for number, page in enumerate(self._pages(tokens)):
            own = tuple(slots[number * self.page_size : (number + 1) * self.page_size])
            child = node.children.get(page)
            if child is None:
                child = node.children[page] = Node(page, own, node)
                self.evictable += len(own)
            elif child.slots != own:
                unused += own
            child.used = self.clock
            node = child
        return node, unused

    def lock(self, node: Node, by: int) -> None:
        for one in node.path():
            self.evictable -= len(one.slots) * (not one.locks)
            one.locks += by
            assert one.locks >= 0
            self.evictable += len(one.slots) * (not one.locks)

    def evict(self, count: int) -> list[int]:
        """The slots of pages that nobody reads, those first that were not used for longest, until there are `count`."""
        freed: list[int] = []
        leaves = [(node.used, node) for node in self.nodes() if self._can_go(node)]
        heapify(leaves)
        while leaves and len(freed) < count:
            _used, node = heappop(leaves)
            assert node.parent is not None
            del node.parent.children[node.tokens]
            self.evictable -= len(node.slots)
            freed += node.slots
            if self._can_go(node.parent):
                heappush(leaves, (node.parent.used, node.parent))
        return freed

    def _can_go(self, node: Node) -> bool:
        return node is not self.root and not node.children and not node.locks

    def evict_window(self, has_window: Callable[[Node], bool]) -> Node | None:
        """The page whose window page nobody reads and that was not used for longest."""
        nodes = [node for node in self.nodes() if not node.window_locks and has_window(node)]
        return min(nodes, key=lambda node: node.used, default=None)

    def nodes(self) -> Iterator[Node]:
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def _pages(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        whole = len(tokens) // self.page_size * self.page_size
        for first in range(0, whole, self.page_size):
            yield tuple(tokens[first : first + self.page_size])


class Operations(NamedTuple):
    """What engines have kernels for. Others with the same arguments and results may stand in their place."""

    alloc_extend: Callable[..., Tensor] = alloc_extend
    assign_extend_cache_locs: Callable[..., Tensor] = assign_extend_cache_locs
    build_tree: Callable[..., Tree] = build_tree
    get_last_loc: Callable[..., Tensor] = get_last_loc
    move_kv: Callable[..., None] = move_kv
    verify_logits_greedy: Callable[..., VerifiedStep] = verify_logits_greedy
    verify_logits_sampled: Callable[..., VerifiedStep] = verify_logits_sampled


class Device:
    """What the GPU has: KV, the page table, and of each row the length and the bonus token as they are now.

    kv, draft_kv  [slots, 2] int64 of the target and of the draft model, by the same slots
    window_kv     [window slots, 2] int64 of those layers of the target that have a sliding window
    window_pages  [pages] int64: the window page of each page, 0 for none
    counts        [rows, vocab_size] int32: how often each token was said, the bonus token too
    """

    def __init__(self, config: Config, model: Model, operations: Operations | None = None) -> None:
        self.config, self.model, self.operations = config, model, operations or Operations()
        slots = config.slots + config.page_size
        width = config.context + config.reach + 2 * (config.num_steps + 1)
        self.kv = torch.full((slots, 2), NOTHING)
        self.draft_kv = torch.full((slots, 2), NOTHING)
        self.window_kv = torch.full((config.window_slots + config.page_size, 2), NOTHING)
        self.window_pages = torch.zeros(slots // config.page_size, dtype=torch.int64)
        self.req_to_token = torch.zeros((config.rows, width), dtype=torch.int32)
        self.seq_lens = torch.zeros(config.rows, dtype=torch.int64)
        self.bonus = torch.zeros(config.rows, dtype=torch.int64)
        self.counts = torch.zeros(config.rows, model.vocab_size, dtype=torch.int32)

    def prefill(self, rows: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]]) -> Tensor:
        """Compute the KV of a chunk of each request's text, behind what its row has up to `starts`. Returns the
        target's logits [bs, vocab_size] after each.
        """
        states = []
        for row, start, chunk in zip(rows, starts, chunks, strict=True):
            slots = self.req_to_token[row, start : start + len(chunk)].to(torch.int64)
            state = self._prefix(row, start)
            made = []
            for token in chunk:
                made.append(self.model.kv(state, token))
                state = made[-1][0]
            self._write(slots, torch.tensor(made).view(-1, 2))
            self.draft_kv[slots] = self.kv[slots]
            self.seq_lens[row] = start + len(chunk)
            states.append(state)
        return self.model.logits(states)

    def _prefix(self, row: int, length: int) -> int:
        """What the target reads of the first positions of a row."""
        slots = self.req_to_token[row, :length].to(torch.int64)
        near = None
        if self.config.window:
            near = self.window_kv[self.window_slots(slots[self.config.window_start(length) :])].tolist()
        return self.model.state(self.kv[slots].tolist(), near)

    def _write(self, slots: Tensor, kv: Tensor) -> None:
        self.kv[slots] = kv
        if self.config.window:
            self.window_kv[self.window_slots(slots)] = kv

    def window_slots(self, slots: Tensor) -> Tensor:
        """Where KV of these slots lies in the pool of the layers with a window; slot 0 and what follows is padding."""
        page = self.config.page_size
        return self.window_pages[slots // page] * page + slots % page

    def begin(self, row: int, said: Sequence[int]) -> None:
        """A prefill is done: what was said so far, of which the last token is the root of the next tree."""
        self.bonus[row] = said[-1]
        self.counts[row] = torch.bincount(torch.tensor(said), minlength=self.model.vocab_size)

    def decode(
        self,
        rows: Sequence[int],
        ranks: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        grammars: Sequence[Grammar | None],
    ) -> tuple[list[list[int]], list[Tensor]]:
        """A step: draft, verify, keep. `ranks` say how right the draft model is, step by step; without any there are no
        drafts. Returns the tokens of each request, which are the accepted drafts and the next bonus token, and the
        logits [tokens, vocab_size] that each is of.
        """
        where = torch.tensor(rows)
        lens, bonus = self.seq_lens[where], self.bonus[where]
        candidates, mask, links = self._tree(rows, lens, bonus, ranks)
        num_steps, ndt = len(ranks[0]), candidates.shape[1]
        slots = self.operations.assign_extend_cache_locs(where, self.req_to_token, lens, lens + ndt)
        logits = self._forward(rows, lens.tolist(), candidates.tolist(), mask, slots, grammars)
        if all(is_plain(one) for one in params):
            step = self.operations.verify_logits_greedy(logits, candidates, *links, lens, slots, num_steps)
        else:
            step = self._verify_sampled(logits, candidates, links, where, params, lens, slots, num_steps)
        target, source = step.target.flatten(), step.source.flatten()
        self.operations.move_kv(self.kv, target, source)
        if self.config.window:
            self.operations.move_kv(self.window_kv, self.window_slots(target), self.window_slots(source))
        self.bonus[where], self.seq_lens[where] = step.bonus_tokens.to(torch.int64), step.new_seq_lens
        self._extend_draft(slots, step.accept_lens)
        counts = step.accept_lens.tolist()
        said = [tokens[:count] for tokens, count in zip(step.accept_tokens.tolist(), counts, strict=True)]
        for row, tokens in zip(rows, said, strict=True):
            self.counts[row] += torch.bincount(torch.tensor(tokens), minlength=self.model.vocab_size)
        return said, [logits[path[:count].long()] for path, count in zip(step.accept_index, counts, strict=True)]

    def _tree(
        self, rows: Sequence[int], lens: Tensor, bonus: Tensor, ranks: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """(candidates [bs, ndt], mask of who sees whom [bs * ndt * ndt], links) of the trees below the bonus tokens."""
        config, bs = self.config, len(rows)
        if not ranks[0]:
            nobody = torch.full((bs, 1), -1)
            return bonus[:, None], torch.ones(bs, dtype=torch.bool), (torch.arange(bs)[:, None], nobody, nobody)
        drafts = self._draft(rows, lens.tolist(), bonus.tolist(), ranks)
        tree = self.operations.build_tree(
            drafts.parent_list,
            drafts.selected_index,
            lens,
            config.topk,
            config.num_steps,
            config.num_draft_tokens,
            QLEN_ONLY,
        )
        candidates = torch.cat([bonus[:, None], drafts.draft_tokens], 1)
        return (
            candidates,
            tree.tree_mask,
            (tree.retrieve_index, tree.retrieve_next_token, tree.retrieve_next_sibling),
        )

    def _verify_sampled(
        self,
        logits: Tensor,
        candidates: Tensor,
        links: tuple[Tensor, Tensor, Tensor],
        where: Tensor,
        params: Sequence[SamplingParams],
        lens: Tensor,
        slots: Tensor,
        num_steps: int,
    ) -> VerifiedStep:
        """A verification with penalties, biases and temperatures. Penalties count the path to each node, as decoding
        token by token does. A greedy request is one of top-k 1.
        """
        bs, ndt = candidates.shape
        vocab = self.model.vocab_size
        is_greedy = [one.temperature < GREEDY_TEMPERATURE for one in params]
        biases = torch.zeros(bs, vocab)
        for row, one in zip(biases, params, strict=True):
            for token, bias in one.logit_bias.items():
                row[token] = bias
        ends = [(*one.eos_token_ids, *one.stop_token_ids) for one in params]
        stops = torch.full((bs, max(1, *map(len, ends))), vocab)  # padded with vocab_size
        for row, tokens in zip(stops, ends, strict=True):
            row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)

        def each(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype)

        return self.operations.verify_logits_sampled(
            logits,
            candidates,
            *links,
            torch.zeros(bs, ndt),
            torch.zeros(bs),
            output_counts=self.counts[where],
            output_lens=self.counts[where].sum(1, dtype=torch.int32),
            frequency_penalty=each([one.frequency_penalty for one in params]),
            presence_penalty=each([one.presence_penalty for one in params]),
            repetition_penalty=each([one.repetition_penalty for one in params]),
            min_new_tokens=each([one.min_new_tokens for one in params], torch.int32),
            stop_token_ids=stops,
            logit_bias=biases,
            bias_rows=torch.arange(bs, dtype=torch.int32),
            bitmask=torch.zeros(0, (vocab + 31) // 32, dtype=torch.int32),
            bitmask_rows=torch.full((bs * ndt,), -1, dtype=torch.int32),
            temperature=each(
                [1.0 if greedy else one.temperature for greedy, one in zip(is_greedy, params, strict=True)]
            ),
            top_k=each(
                [
                    1 if greedy else one.top_k if one.top_k > 0 else vocab
                    for greedy, one in zip(is_greedy, params, strict=True)
                ],
                torch.int32,
            ),
            top_p=each([one.top_p for one in params]),
            min_p=each([one.min_p for one in params]),
            threshold_single=torch.ones(1),
            threshold_acc=torch.ones(1),
            seq_lens=lens,
            out_cache_loc=slots,
            num_steps=num_steps,
            law=EXACT,
        )

    def _draft(
        self, rows: Sequence[int], lens: list[int], bonus: list[int], ranks: Sequence[Sequence[int]]
    ) -> DraftResults:
        """The best candidates of a few steps of the draft model, below each request's bonus token."""
        topk = self.config.topk
        states = []
        for row, length, token in zip(rows, lens, bonus, strict=True):
            prefix = self.draft_kv[self.req_to_token[row, :length].to(torch.int64)].tolist()
            states.append(self.model.kv(self.model.state(prefix), token)[0])
        step = select_top_k_tokens_first(*self.model.drafts(states, [of[0] for of in ranks], topk))
        steps = [step]
        states = [state for state in states for _ in range(topk)]
        for number in range(1, self.config.num_steps):
            tokens = step.input_ids.tolist()
            states = [self.model.kv(state, token)[0] for state, token in zip(states, tokens, strict=True)]
            each = [of[number] for of in ranks for _ in range(topk)]
            step = select_top_k_tokens_next(number, *self.model.drafts(states, each, topk), step.next_scores)
            states = [states[row] for row in step.hidden_index.tolist()]
            steps.append(step)
        return organize_draft_results(
            [step.candidate_scores for step in steps],
            [step.candidate_tokens for step in steps],
            [step.parents for step in steps],
            self.config.num_draft_tokens,
        )

    def _forward(
        self,
        rows: Sequence[int],
        lens: list[int],
        candidates: list[list[int]],
        mask: Tensor,
        slots: Tensor,
        grammars: Sequence[Grammar | None],
    ) -> Tensor:
        """The target model over all nodes: logits [bs * ndt, vocab_size], -inf where a grammar forbids a token. Their
        KV is written. A node attends to the request's prefix and to its own ancestors, which the mask has.
        """
        bs, ndt = len(rows), len(candidates[0])
        visible = mask.view(bs, ndt, ndt).tolist()
        made: list[tuple[int, int]] = []
        parents: list[list[int]] = []
        for number, (row, length) in enumerate(zip(rows, lens, strict=True)):
            root = self._prefix(row, length)
            states: list[int] = []
            parents.append([])
            for node in range(ndt):
                parent = max((at for at in range(node) if visible[number][node][at]), default=-1)
                made.append(self.model.kv(states[parent] if parent >= 0 else root, candidates[number][node]))
                states.append(made[-1][0])
                parents[-1].append(parent)
        self._write(slots, torch.tensor(made))
        logits = self.model.logits([state for state, _before in made])
        for number, grammar in enumerate(grammars):
            if grammar is not None:
                allowed = tree_masks(grammar, candidates[number], parents[number])
                logits[number * ndt : (number + 1) * ndt].masked_fill_(~allowed, -torch.inf)
        return logits

    def _extend_draft(self, slots: Tensor, accept_lens: Tensor) -> None:
        """The draft model computes its own KV of what was accepted, from the target's hidden states."""
        nodes = torch.arange(len(slots) // len(accept_lens))
        accepted = (nodes < accept_lens[:, None]).flatten()  # [bs * ndt]
        self.draft_kv[slots[accepted]] = self.kv[slots[accepted]]


def is_plain(params: SamplingParams) -> bool:
    """Whether a request takes the most likely token of unchanged logits."""
    return (
        params.temperature < GREEDY_TEMPERATURE
        and not params.logit_bias
        and not (params.frequency_penalty or params.presence_penalty)
        and params.repetition_penalty == 1
        and not params.min_new_tokens
    )


class Engine:
    """The host: which requests run, which slots they have, and what users are told.

    `step` is one iteration of its loop.
    """

    def __init__(
        self, config: Config, device: Device, detokenize: Callable[[Sequence[int]], str] | None = None
    ) -> None:
        self.config, self.device, self.detokenize = config, device, detokenize
        self.cache = PrefixCache(config.page_size)
        pages = config.slots // config.page_size
        self.free_pages = list(range(1, pages + 1))  # page 0 is for padding
        self.free_window_pages = list(range(1, config.window_slots // config.page_size + 1))
        self.free_rows = list(range(config.rows))
        self.sessions: dict[str, Session] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.chunked: Request | None = None
        self.in_flight: Launch | None = None
        self.is_paused = False
        self.steps = 0
        self.requests: dict[str, Request] = {}

    # ---- what users ask for

    def submit(self, request: Request) -> None:
        """Take a request. The turn of a session gets what its session has said so far before its prompt. ValueError
        where it can never run.
        """
        session = self.sessions.get(request.session)
        prompt = (*session.text, *request.prompt) if session is not None else request.prompt
        refusal = self._refusal(request, session, prompt)
        if refusal:
            raise ValueError(f"request {request.rid!r}: {refusal}")
        request.number, request.prompt = len(self.requests), prompt
        if session is not None:
            session.turn = request.rid
        self.requests[request.rid] = request
        self._wait(request)

    def _refusal(self, request: Request, session: Session | None, prompt: Sequence[int]) -> str:
        """Why a request can never run; "" for one that can."""
        config, longest = self.config, len(prompt) + request.params.max_new_tokens
        pages = self._in_pages(longest + config.num_steps + 1 + config.reach)
        near = self._in_window(longest)
        if request.rid in self.requests:
            return "there is one of that name; give each a name of its own"
        if request.session and session is None:
            return f"session {request.session!r} is not open; open it first"
        if session is not None and session.turn and self.requests[session.turn].state is not State.ENDED:
            return f"the turn before it in session {request.session!r} has not ended; wait for that"
        if not prompt:
            return "its prompt is empty; give it one token at least"
        if longest > config.context:
            return f"prompt and answer may have {longest} tokens, and a request at most {config.context}"
        if pages > config.slots // config.page_size:
            return f"it may need {pages} pages, and the pool has {config.slots // config.page_size}"
        if config.window and near > config.window_slots // config.page_size:
            return f"it may need {near} window pages, and there are {config.window_slots // config.page_size}"
        return ""

    def abort(self, rid: str) -> None:
        """Its user wants no more of a request. It ends at once, and a launch of it that is in flight is nobody's."""
        request = self.requests.get(rid)
        if request is not None and request.state is not State.ENDED:
            self._end(request, "abort")

    def open(self, session: str) -> None:
        """ValueError where one of that name is open."""
        if session in self.sessions:
            raise ValueError(f"session {session!r} is open; close it first, or take another name")
        self.sessions[session] = Session()

    def close(self, session: str) -> None:
        """Nothing is kept for a next turn. One that runs goes on to its end. ValueError where it is not open."""
        if session not in self.sessions:
            raise ValueError(f"session {session!r} is not open")
        self._release_idle(self.sessions.pop(session))

    def flush(self) -> bool:
        """Forget the prefix cache; only where nothing waits or runs."""
        if not self.is_idle:
            return False
        self._free(self.cache.evict(self.config.slots))
        return True

    def retract_all(self) -> None:
        """Have all that run give their slots back, and wait."""
        self._settle()
        for request in self._seated():
            self._retract(request)

    def _seated(self) -> list[Request]:
        """Those that have a row."""
        return [*self.running, *([self.chunked] if self.chunked else [])]

    def _session_of(self, request: Request) -> Session | None:
        """The session of which a request is the last turn, if that is still open."""
        session = self.sessions.get(request.session)
        return session if session is not None and session.turn == request.rid else None

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.running or self.chunked or self.in_flight)

    # ---- the loop

    def step(self, ranks: RanksOf) -> Launch | None:
        """One iteration: plan and launch, then read results, of the launch before where steps overlap. Returns what was
        launched. `ranks(request, step)` says how right the draft model is.
        """
        self.steps += 1
        launch = None
        if not self.is_paused:
            if any(request.grammar is not None for request in self.running):
                self._settle()
            batch = self._admit()
            launch = (self._prefill(batch) if batch else None) or self._decode(ranks)
        if self.config.overlap:
            done, self.in_flight = self.in_flight, launch
        else:
            done = launch
        if done is not None:
            self._take_results(done)
        return launch

    def _settle(self) -> None:
        """Read the results of the launch in flight."""
        done, self.in_flight = self.in_flight, None
        if done is not None:
            self._take_results(done)

    # ---- admission and prefill

    def _admit(self) -> list[Request]:
        """The requests of the next prefill: the one that is prefilled in chunks first, then those that wait and fit."""
        batch = [self.chunked] if self.chunked else []
        room = self.config.chunk - sum(len(request.text) - request.length for request in batch)
        for request in [one for one in self.waiting if one.ready_at <= self.steps]:
            while room > 0 and not (fits := self._fits(request, batch)) and (other := self._gives_way(request)):
                self._retract(other)
            if room <= 0 or not fits:
                break
            self.waiting.remove(request)
            session = self._session_of(request)
            if session is not None and session.row >= 0:
                request.take_over(session)
            else:
                self._seat(request, self._match(request))
            request.on("admit")
            batch.append(request)
            room -= len(request.text) - request.length
        return batch

    def _fits(self, request: Request, batch: Sequence[Request]) -> bool:
        """Whether a request that waits can be prefilled now, beside all that is still to come of the others."""
        session = self._session_of(request)
        node, shared = self.cache.root, 0
        if session is not None and session.row >= 0:
            shared = session.allocated
        elif self.free_rows or self._idle_session():
            node = self._match(request)
            shared = len(node.path()) * self.config.page_size
        else:
            return False
        others = [*self.running, *batch]
        pages = sum(max(0, self._in_pages(self._longest(one)) - self._in_pages(one.allocated)) for one in others)
        pages += self._in_pages(self._longest(request)) - self._in_pages(shared)
        self.cache.lock(node, +1)  # what it would share cannot be evicted for it
        fits = self.available >= pages * self.config.page_size
        self.cache.lock(node, -1)
        if self.config.window:
            fits &= self.available_window >= sum(map(self._window_pages_to_come, [*others, request]))
        return fits or not others

    def _gives_way(self, request: Request) -> Request | None:
        """Who gives way to a request that waits: one of a lower priority."""
        return self._last_of_all() if self.running and self._last_of_all().priority < request.priority else None

    def _last_of_all(self) -> Request:
        """Who gives way: of those that run the youngest one of the lowest priority."""
        return min(self.running, key=lambda one: (one.priority, -one.number))

    def _wait(self, request: Request) -> None:
        """The most urgent request first, then the one that came first."""
        self.waiting.append(request)
        self.waiting.sort(key=lambda one: (-one.priority, one.number))

    def _match(self, request: Request) -> Node:
        """The prefix that a request can share: the longest one whose last positions have window pages."""
        path = self.cache.match(request.text[:-1]).path() if self.config.caches else []
        while path and self.config.window:
            first = self.config.window_start(len(path) * self.config.page_size) // self.config.page_size
            if all(map(self._has_window, path[first:])):
                break
            path.pop()
        return path[-1] if path else self.cache.root

    def _longest(self, request: Request) -> int:
        """Positions that admission leaves room for: a request's text, the answer to come as far as `reserve` says, a
        step in flight and the one behind it.
        """
        left = request.params.max_new_tokens - len(request.outputs)
        return len(request.text) + int(left * self.config.reserve) + self.config.num_steps + 1 + self.config.reach

    def _window_pages_to_come(self, request: Request) -> int:
        """Window pages that a request may yet need beside those that it has."""
        near = self._in_window(len(request.text) - request.length)
        return max(0, near - max(0, self._in_pages(request.allocated) - request.window_from))

    def _in_window(self, prefilled: int) -> int:
        """Window pages that a request may have at a time, where so many tokens are to be prefilled: of its window, and
        of a chunk, or of a step in flight and the one behind it.
        """
        step = self.config.num_steps + 1 + self.config.reach
        return self._in_pages(self.config.window + max(step, min(self.config.chunk, prefilled))) + 1

    def _in_pages(self, positions: int) -> int:
        """Pages that so many positions lie in."""
        return -(-positions // self.config.page_size)

    def _seat(self, request: Request, node: Node) -> None:
        """Give a request a row, which begins with what it shares."""
        slots = [slot for one in node.path() for slot in one.slots]
        if not self.free_rows and (idle := self._idle_session()):
            self._release_idle(idle)
        request.row = self.free_rows.pop(0)
        request.length = request.allocated = len(slots)
        request.window_from = self.config.window_start(len(slots)) // self.config.page_size
        self._attach(request, node)

    def _attach(self, holder: Holder, node: Node) -> None:
        """Have the first slots of a row be the cache's, up to a node, which is locked."""
        path = node.path()
        slots = [slot for one in path for slot in one.slots]
        self.device.req_to_token[holder.row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
        self._lock(holder, node, +1)
        if holder.node is not None:
            self._lock(holder, holder.node, -1)
        holder.node, holder.shared = node, len(slots)

    def _lock(self, holder: Holder, node: Node, by: int) -> None:
        """Lock the pages up to a node, and of those in reach of the holder's window the window pages."""
        self.cache.lock(node, by)
        for one in node.path()[holder.window_from :]:
            one.window_locks += by

    def _prefill(self, batch: list[Request]) -> Launch | None:
        """Launch a prefill of at most `chunk` tokens; a request that is not done with it is the chunked one. Behind one
        that gets no pages nobody begins.
        """
        room = self.config.chunk
        rows, starts, chunks, done, requests = [], [], [], [], []
        for request in batch:
            text = request.text
            count = min(room, len(text) - request.length)
            if not count or not self._grow([request], [request.length + count]):
                self._retract(request)
                room = 0
                continue
            rows.append(request.row)
            starts.append(request.length)
            chunks.append(text[request.length : request.length + count])
            request.length += count
            room -= count
            requests.append(request)
            done.append(request.length == len(text))
            self.chunked = None if done[-1] else request
        if not requests:
            return None
        beside, beside_said, beside_logits = self._decode_beside()
        logits = self.device.prefill(rows, starts, chunks)
        said: list[list[int]] = []
        for request, is_done, after in zip(requests, done, logits, strict=True):
            said.append([])
            if is_done:
                if request.grammar is not None:
                    after.masked_fill_(~request.grammar.allowed(), -torch.inf)
                law = next_token_law(after, request.outputs, request.prompt, request.params)
                said[-1].append(draw(law, 0.0))
                self.device.begin(request.row, [*request.outputs, *said[-1]])
                request.on("launch the last chunk")
                self.running.append(request)
                self._share(request)
        both = (*requests, *beside)
        return Launch("extend", both, [*said, *beside_said], [*logits[:, None], *beside_logits], len(requests))

    def _share(self, request: Request) -> None:
        """Hand the whole pages of a prefilled text to the cache, and read them there from now on."""
        if self.config.caches:
            slots = self.device.req_to_token[request.row, : request.length].tolist()
            self._attach(request, self._insert(request.text[: request.length], slots))

    def _insert(self, tokens: Sequence[int], slots: Sequence[int]) -> Node:
        """Hand the slots of the whole pages of a text to the cache. A page that it has already is freed; a window page
        that its own has not is kept.
        """
        page, pages = self.config.page_size, self.device.window_pages
        node, unused = self.cache.insert(tokens, slots)
        for number, one in enumerate(node.path()):
            own, cached = slots[number * page] // page, one.slots[0] // page
            if own != cached and not pages[cached]:
                pages[cached], pages[own] = pages[own].clone(), 0
        self._free(unused)
        return node

    # ---- decoding

    def slots_needed(self, request: Request) -> int:
        """Positions that the next step of a request may touch: those of the longest that it may have become meanwhile,
        and of the tree behind it.
        """
        longest = request.length + request.launched * (self.config.num_steps + 1)
        return longest + self.config.reach

    def _decode(self, ranks: RanksOf) -> Launch | None:
        """Launch a step of all that run; the youngest gives way where pages are short. One that runs alone always fits:
        see `_refusal`.
        """
        while self.running and not self._grow(self.running, [self.slots_needed(request) for request in self.running]):
            self._retract(self._last_of_all())
        if not self.running:
            return None
        requests = tuple(self.running)
        how = [[ranks(request, step) for step in range(self.config.num_steps)] for request in requests]
        return Launch("decode", requests, *self._launch(requests, how))

    def _decode_beside(self) -> tuple[Sequence[Request], list[list[int]], list[Tensor]]:
        """A token of each that runs, beside a prefill; of nobody where pages are short."""
        running = tuple(self.running) if self.config.mixed else ()
        ends = [self.slots_needed(request) - self.config.reach + 1 for request in running]
        if not running or not self._grow(running, ends):
            return (), [], []
        return running, *self._launch(running, [[] for _ in running])

    def _launch(
        self, requests: Sequence[Request], ranks: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[Tensor]]:
        for request in requests:
            request.launched += 1
        rows, params = [request.row for request in requests], [request.params for request in requests]
        return self.device.decode(rows, ranks, params, [request.grammar for request in requests])

    # ---- slots

    @property
    def available(self) -> int:
        """Slots that a request may get: free ones, and those of the cache that nobody reads."""
        return len(self.free_pages) * self.config.page_size + self.cache.evictable

    @property
    def available_window(self) -> int:
        """Window pages that a request may get: free ones, and those of the cache that nobody reads."""
        unread = sum(not node.window_locks and self._has_window(node) for node in self.cache.nodes())
        return len(self.free_window_pages) + unread

    def _grow(self, requests: Sequence[Request], ends: Sequence[int]) -> bool:
        """Give requests slots up to these positions; False, and nothing, where there are too few pages."""
        page = self.config.page_size
        ends = [max(end, request.allocated) for request, end in zip(requests, ends, strict=True)]
        pages = sum(
            self._in_pages(end) - self._in_pages(request.allocated) for request, end in zip(requests, ends, strict=True)
        )
        for request in requests:
            self._leave_window(request)
        if not self._make_free(pages):
            return False
        rows = torch.tensor([request.row for request in requests])
        begin = torch.tensor([request.allocated for request in requests])
        last = self.device.operations.get_last_loc(self.device.req_to_token, rows, begin)
        free = torch.tensor(self.free_pages, dtype=torch.int64)
        slots = self.device.operations.alloc_extend(begin, torch.tensor(ends), last, free, page)
        if self.config.window and pages:
            self.device.window_pages[self.free_pages[:pages]] = torch.tensor(self.free_window_pages[:pages])
            del self.free_window_pages[:pages]
        del self.free_pages[:pages]
        first = 0
        for request, end in zip(requests, ends, strict=True):
            count = end - request.allocated
            self.device.req_to_token[request.row, request.allocated : end] = slots[first : first + count].to(
                torch.int32
            )
            first += count
            request.allocated = end
        return True

    def _make_free(self, pages: int) -> bool:
        """Evict from the cache, then take from sessions between two turns, until so many pages are free; whether they
        are.
        """
        if pages > len(self.free_pages):
            self._free(self.cache.evict((pages - len(self.free_pages)) * self.config.page_size))
        while self.config.window and pages > len(self.free_window_pages):
            node = self.cache.evict_window(self._has_window)
            if node is None:
                break
            self._free_window(node.slots[0] // self.config.page_size)
        short = pages > len(self.free_pages) or (self.config.window > 0 and pages > len(self.free_window_pages))
        idle = self._idle_session()
        if short and idle is not None:
            self._release_idle(idle)
            return self._make_free(pages)
        return not short

    def _leave_window(self, holder: Holder) -> None:
        """Give back the window pages that nothing of a request will read any more: its own are free, those of the cache
        may be evicted.
        """
        if not self.config.window or holder.row < 0:
            return
        page = self.config.page_size
        first = self.config.window_start(holder.length) // page
        path = holder.node.path() if holder.node is not None else []
        slots = self.device.req_to_token[holder.row, : first * page : page].tolist()
        for number in range(holder.window_from, first):
            if number < len(path):
                path[number].window_locks -= 1
            else:
                self._free_window(slots[number] // page)
        holder.window_from = max(first, holder.window_from)

    def _has_window(self, node: Node) -> bool:
        return bool(self.device.window_pages[node.slots[0] // self.config.page_size])

    def _free_window(self, page: int) -> None:
        """Give back a page's window page, if it has one."""
        pages = self.device.window_pages
        if pages[page]:
            self.free_window_pages.append(int(pages[page]))
            pages[page] = 0

    def owners(self) -> dict[int, str]:
        """Who owns each page: "free", "cache", a request or a session, by its name. AssertionError where one has two
        owners or none, or where a request reads what it neither owns nor shares.
        """
        page = self.config.page_size
        owners = dict.fromkeys(self.free_pages, "free")
        assert len(owners) == len(self.free_pages), "a page is free twice"

        def owned(number: int, by: str) -> None:
            assert number not in owners, f"page {number} is {by}'s and {owners[number]}'s"
            owners[number] = by

        for node in self.cache.nodes():
            owned(node.slots[0] // page, "cache")
        for name, holder in [*self.requests.items(), *self.sessions.items()]:
            if holder.row >= 0:
                slots = self.device.req_to_token[holder.row, : holder.allocated].tolist()
                assert all(owners.get(slot // page) == "cache" for slot in slots[: holder.shared]), name
                for number in sorted({slot // page for slot in slots[holder.shared :]}):
                    owned(number, name)
                if self.config.window:
                    near = self.device.window_pages[[slot // page for slot in slots[holder.window_from * page :]]]
                    assert near.all(), f"{name} reads through a window that it does not have"
        assert len(owners) == self.config.slots // page, "a page is nobody's"
        windows = [*self.free_window_pages, *self.device.window_pages[self.device.window_pages > 0].tolist()]
        assert sorted(windows) == list(range(1, self.config.window_slots // page + 1)), "a window page is lost"
        assert not self.device.window_pages[self.free_pages].any(), "a free page has a window page"
        return owners

    def _free(self, slots: Sequence[int]) -> None:
        """Give whole pages back."""
        pages = sorted({slot // self.config.page_size for slot in slots})
        assert not set(pages) & set(self.free_pages), "a page is freed twice"
        for page in pages:
            self._free_window(page)
        self.free_pages = sorted([*self.free_pages, *pages])

    # ---- results, and ends

    def _take_results(self, launch: Launch) -> None:
        """Take the tokens of a launch, but for requests that have ended or wait again."""
        for number, (request, tokens) in enumerate(zip(launch.requests, launch.tokens, strict=True)):
            has_decoded = number >= launch.prefilled
            request.launched -= has_decoded
            if request.state is not State.RUNNING or not tokens:
                continue
            request.length += has_decoded * len(tokens)
            for token, logits in zip(tokens, launch.logits[number], strict=True):
                params, grammar = request.params, request.grammar
                if params.return_logprob:
                    request.logprobs.append(next_token_logprobs(logits, request.outputs, request.prompt, params))
                request.outputs.append(token)
                if grammar is not None:
                    grammar.accept(token)
                cap = params.max_new_tokens
                end = finish_of(request.outputs, params, cap, grammar=grammar, detokenize=self.detokenize)
                if end is not None:
                    request.matched = end.matched
                    self._end(request, end.finish_reason)
                    break

    def _end(self, request: Request, reason: str) -> None:
        """An end: what is computed of its text goes to the cache or to its session, what it has beside that is free."""
        request.reason = reason
        session = self._session_of(request)
        if session is not None and reason != "abort":
            session.text = tuple(request.text)
        if request.row >= 0:
            known = request.text[: max(0, len(request.text) - 1)]
            computed = len(known) if request.state is State.RUNNING else min(request.length, len(known))
            if session is None:
                self._release(request, known[:computed])
            else:
                self._keep(request, session, min(computed, len(session.text)))
        if request in self.waiting:
            self.waiting.remove(request)
        request.on("abort" if reason == "abort" else "end")

    def _keep(self, request: Request, session: Session, length: int) -> None:
        """A session keeps of its turn what the next one begins with, and its row."""
        page = self.config.page_size
        if length < request.shared or self.config.window_start(length) // page < request.window_from:
            self._release(request, [])
            return
        slots = self.device.req_to_token[request.row, : request.allocated].tolist()
        self._free(slots[self._in_pages(length) * page :])
        self._runs_no_more(request)
        request.length = request.allocated = length
        session.take_over(request)

    def _idle_session(self) -> Session | None:
        """One between two turns that has KV."""
        return next((session for session in self.sessions.values() if session.row >= 0), None)

    def _release_idle(self, session: Session) -> None:
        """Give back what a session has between two turns."""
        if session.row >= 0:
            self._release(session, session.text[: session.length])
            session.length = session.allocated = session.shared = 0

    def _retract(self, request: Request) -> None:
        """All of its slots are given back; it waits again."""
        self._release(request, [])
        request.on("retract")
        request.length = request.allocated = request.shared = 0
        self._wait(request)

    def _release(self, holder: Holder, kept: Sequence[int]) -> None:
        """Give back a row and its slots; the whole pages of the text `kept` go to the cache."""
        slots = self.device.req_to_token[holder.row, : holder.allocated].tolist()
        shared, page = holder.shared, self.config.page_size
        taken = 0
        if self.config.caches and len(kept) >= shared:
            taken = len(kept) // page * page
            self._insert(kept[:taken], slots[:taken])
        self._free(slots[max(taken, shared) :])
        if holder.node is not None:
            self._lock(holder, holder.node, -1)
        self.free_rows = sorted([*self.free_rows, holder.row])
        holder.row, holder.node = -1, None
        self._runs_no_more(holder)

    def _runs_no_more(self, holder: Holder) -> None:
        """It runs no more."""
        if holder in self.running:
            self.running.remove(holder)
        if self.chunked is holder:
            self.chunked = None


class RanksOf(Protocol):
    """How right the draft model is: the rank of the target's token among its own, for a step of a request."""

    def __call__(self, request: Request, step: int, /) -> int: ...
