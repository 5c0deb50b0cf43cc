"""An inference engine with EAGLE under an overlap scheduler, on the operations beside it.

For a reader who knows the EAGLE papers and no serving engine. Read top to bottom.

**What runs.** A request is prefilled: the model computes the KV of its prompt, perhaps in chunks, and says one token,
its first *bonus*. Then it decodes. A step of decoding drafts a tree below the bonus token, computes the KV of all its
nodes at once, and keeps the path that the target model itself would have said: the accepted drafts, and one token
more, the next bonus. So a step brings 1 to num_steps + 1 tokens, and each is the one that decoding token by token says.

**Where KV lies.** KV of a position is a row of `kv`, its *slot*. `req_to_token` maps a request's positions to slots: a
row of it is a request's page table. Slots are handed out in pages. A slot has one owner at a time:

    free page  ->  request (alloc_extend)  ->  prefix cache (insert), or free page (release)  ->  ...

What is in the prefix cache belongs to the cache, also while requests read it; a node that some request reads is locked
and is not evicted.

**Two clocks.** The device is one launch ahead of the host. The host plans step n + 1 before it has read what step n
accepted, so it knows a request's length only as it was one step ago: `Request.length`. The length that counts is the
device's, `Device.seq_lens`. Two things follow:

* the host gives a request slots for the longest that it may have become and for the tree of the next step behind that
  (`Engine.slots_needed`), and takes what was too much back when the request ends;
* the result of a launch may be of a request that has ended, was aborted or was retracted meanwhile. It is dropped.
  What the launch wrote lies in slots that nobody owns by then, or that a later launch writes before it reads them.

**Retraction.** When a step needs more pages than are free, the youngest request gives all of its slots back and waits
again. What its user has been told stays, and is prefilled behind its prompt.

The states of a request, and what leads from one to the next:

    WAITING     --admit-->     PREFILLING  --last chunk-->  RUNNING
    PREFILLING, RUNNING        --retract-->                 WAITING
    any but ENDED              --end, abort-->              ENDED

This package imports torch and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
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
from specsim.reference.kv import alloc_extend, alloc_len_per_decode, get_last_loc, move_kv
from specsim.reference.logits import EXACT
from specsim.reference.sequential import GREEDY_TEMPERATURE, SamplingParams, draw, finish_of, next_token_law
from specsim.reference.tree import build_tree
from specsim.reference.verify_logits import VerifiedStep, verify_logits_greedy, verify_logits_sampled

__all__ = ["Config", "Device", "Engine", "Launch", "Model", "Request", "State"]

QLEN_ONLY = 1
NOTHING = -1
"""KV of a slot that nobody has written."""


class State(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    ENDED = "ended"


TRANSITIONS = {
    (State.WAITING, State.PREFILLING),
    (State.PREFILLING, State.RUNNING),
    (State.PREFILLING, State.WAITING),
    (State.RUNNING, State.WAITING),
    (State.WAITING, State.ENDED),
    (State.PREFILLING, State.ENDED),
    (State.RUNNING, State.ENDED),
}


class Model(Protocol):
    """A target model and a draft model. KV of a token is two integers, so that reading it in a wrong order shows."""

    @property
    def vocab_size(self) -> int: ...

    def kv(self, prefix: int, token: int) -> tuple[int, int]:
        """KV of a token behind a prefix of that state; the first of the two is the state of the longer prefix."""
        ...

    def state(self, rows: Sequence[Sequence[int]]) -> int:
        """What attention makes of the KV of a prefix [tokens, 2], in the order in which it was read."""
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

    @property
    def reach(self) -> int:
        """Positions behind a request's length that its next step may touch."""
        return alloc_len_per_decode(self.num_steps, self.topk, self.num_draft_tokens, self.page_size)


@dataclass(slots=True)
class Request:
    """
    length     positions whose KV is computed, as far as the host knows
    allocated  positions that have a slot
    row        of req_to_token, -1 for none
    shared     positions whose slots are the prefix cache's
    node       of the cache, up to which it reads; locked
    """

    rid: str
    prompt: tuple[int, ...]
    params: SamplingParams
    outputs: list[int] = field(default_factory=list)
    state: State = State.WAITING
    length: int = 0
    allocated: int = 0
    row: int = -1
    shared: int = 0
    node: Node | None = None
    reason: str = ""
    matched: int | str | None = None
    launched: int = 0
    """Launches of its decoding whose results the host has not read."""

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.outputs]

    def become(self, state: State) -> None:
        assert (self.state, state) in TRANSITIONS, (self.rid, self.state, state)
        self.state = state


class Launch(NamedTuple):
    """A launch in flight: of each request how many tokens it brings, and which; of a prefill that is not the last of
    its request none.
    """

    kind: str
    requests: tuple[Request, ...]
    tokens: list[list[int]]


@dataclass(slots=True)
class Node:
    """A page of the prefix cache: its tokens behind its parent's, and where their KV lies."""

    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    parent: Node | None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    locks: int = 0
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
        while len(freed) < count:
            leaves = [node for node in self.nodes() if not node.children and not node.locks]
            if not leaves:
                break
            oldest = min(leaves, key=lambda node: node.used)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.tokens]
            self.evictable -= len(oldest.slots)
            freed += oldest.slots
        return freed

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


class Device:
    """What the GPU has: KV, the page table, and of each row the length and the bonus token as they are now.

    kv, draft_kv  [slots, 2] int64 of the target and of the draft model, by the same slots
    counts        [rows, vocab_size] int32: how often each token was said, the bonus token too
    """

    def __init__(self, config: Config, model: Model) -> None:
        self.config, self.model = config, model
        slots = config.slots + config.page_size
        width = config.context + config.reach + 2 * (config.num_steps + 1)
        self.kv = torch.full((slots, 2), NOTHING)
        self.draft_kv = torch.full((slots, 2), NOTHING)
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
            slots = self.req_to_token[row, : start + len(chunk)].to(torch.int64)
            state = self.model.state(self.kv[slots[:start]].tolist())
            made = []
            for token in chunk:
                made.append(self.model.kv(state, token))
                state = made[-1][0]
            self.kv[slots[start:]] = self.draft_kv[slots[start:]] = torch.tensor(made).view(-1, 2)
            self.seq_lens[row] = start + len(chunk)
            states.append(state)
        return self.model.logits(states)

    def begin(self, row: int, said: Sequence[int]) -> None:
        """A prefill is done: what was said so far, of which the last token is the root of the next tree."""
        self.bonus[row] = said[-1]
        self.counts[row] = torch.bincount(torch.tensor(said), minlength=self.model.vocab_size)

    def decode(
        self, rows: Sequence[int], ranks: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> list[list[int]]:
        """A step: draft, verify, keep. `ranks` say how right the draft model is, step by step. Returns the tokens of
        each request: the accepted drafts, and the next bonus token.
        """
        config = self.config
        where = torch.tensor(rows)
        lens, bonus = self.seq_lens[where], self.bonus[where]
        drafts = self._draft(rows, lens.tolist(), bonus.tolist(), ranks)
        tree = build_tree(
            drafts.parent_list,
            drafts.selected_index,
            lens,
            config.topk,
            config.num_steps,
            config.num_draft_tokens,
            QLEN_ONLY,
        )
        candidates = torch.cat([bonus[:, None], drafts.draft_tokens], 1)  # [bs, num_draft_tokens]
        slots = assign_extend_cache_locs(where, self.req_to_token, lens, lens + config.num_draft_tokens)
        logits = self._forward(rows, lens.tolist(), candidates.tolist(), tree.tree_mask, slots)
        links = (tree.retrieve_index, tree.retrieve_next_token, tree.retrieve_next_sibling)
        if all(is_plain(one) for one in params):
            step = verify_logits_greedy(logits, candidates, *links, lens, slots, config.num_steps)
        else:
            step = self._verify_sampled(logits, candidates, links, where, params, lens, slots)
        move_kv(self.kv, step.target.flatten(), step.source.flatten())
        self.bonus[where], self.seq_lens[where] = step.bonus_tokens.to(torch.int64), step.new_seq_lens
        self._extend_draft(slots, step.accept_lens)
        said = [
            tokens[:count] for tokens, count in zip(step.accept_tokens.tolist(), step.accept_lens.tolist(), strict=True)
        ]
        for row, tokens in zip(rows, said, strict=True):
            self.counts[row] += torch.bincount(torch.tensor(tokens), minlength=self.model.vocab_size)
        return said

    def _verify_sampled(
        self,
        logits: Tensor,
        candidates: Tensor,
        links: tuple[Tensor, Tensor, Tensor],
        where: Tensor,
        params: Sequence[SamplingParams],
        lens: Tensor,
        slots: Tensor,
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

        def each(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype)

        return verify_logits_sampled(
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
            stop_token_ids=torch.full((bs, 1), vocab),
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
            threshold_single=1.0,
            threshold_acc=1.0,
            seq_lens=lens,
            out_cache_loc=slots,
            num_steps=self.config.num_steps,
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
        self, rows: Sequence[int], lens: list[int], candidates: list[list[int]], mask: Tensor, slots: Tensor
    ) -> Tensor:
        """The target model over all nodes: logits [bs * ndt, vocab_size]. Their KV is written. A node attends to the
        request's prefix and to its own ancestors, which the mask has.
        """
        ndt = self.config.num_draft_tokens
        visible = mask.view(len(rows), ndt, ndt).tolist()
        made: list[tuple[int, int]] = []
        for number, (row, length) in enumerate(zip(rows, lens, strict=True)):
            prefix = self.kv[self.req_to_token[row, :length].to(torch.int64)].tolist()
            root = self.model.state(prefix)
            states: list[int] = []
            for node in range(ndt):
                ancestors = [at for at in range(node) if visible[number][node][at]]
                before = states[ancestors[-1]] if ancestors else root
                made.append(self.model.kv(before, candidates[number][node]))
                states.append(made[-1][0])
        self.kv[slots] = torch.tensor(made)
        return self.model.logits([state for state, _before in made])

    def _extend_draft(self, slots: Tensor, accept_lens: Tensor) -> None:
        """The draft model computes its own KV of what was accepted, from the target's hidden states."""
        accepted = (torch.arange(self.config.num_draft_tokens) < accept_lens[:, None]).flatten()  # [bs * ndt]
        self.draft_kv[slots[accepted]] = self.kv[slots[accepted]]


def is_plain(params: SamplingParams) -> bool:
    """Whether a request takes the most likely token of unchanged logits."""
    return (
        params.temperature < GREEDY_TEMPERATURE
        and not params.logit_bias
        and not (params.frequency_penalty or params.presence_penalty)
        and params.repetition_penalty == 1
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
        self.free_rows = list(range(config.rows))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.chunked: Request | None = None
        self.in_flight: Launch | None = None
        self.is_paused = False
        self.steps = 0
        self.requests: dict[str, Request] = {}

    # ---- what users ask for

    def submit(self, request: Request) -> None:
        assert request.rid not in self.requests
        self.requests[request.rid] = request
        self.waiting.append(request)

    def abort(self, rid: str) -> None:
        """Its user wants no more of a request. It ends at once, and a launch of it that is in flight is nobody's."""
        request = self.requests.get(rid)
        if request is not None and request.state is not State.ENDED:
            self._end(request, "abort")

    def flush(self) -> bool:
        """Forget the prefix cache; only where nothing waits or runs."""
        if not self.is_idle:
            return False
        self._free(self.cache.evict(self.config.slots))
        return True

    def retract_all(self) -> None:
        """Have all that run give their slots back, and wait."""
        self._settle()
        for request in [*self.running, *([self.chunked] if self.chunked else [])]:
            self._retract(request)

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
            batch = self._admit()
            launch = (self._prefill(batch) if batch else None) or self._decode(ranks)
        if self.config.overlap:
            done, self.in_flight = self.in_flight, launch
        else:
            done = launch
        if done is not None:
            self._read(done)
        return launch

    def _settle(self) -> None:
        """Read the results of the launch in flight."""
        done, self.in_flight = self.in_flight, None
        if done is not None:
            self._read(done)

    # ---- admission and prefill

    def _admit(self) -> list[Request]:
        """The requests of the next prefill: the one that is prefilled in chunks first, then those that wait and fit."""
        batch = [self.chunked] if self.chunked else []
        room = self.config.chunk - sum(len(request.text) - request.length for request in batch)
        later = sum(self._still_to_come(request) for request in self.running)
        while self.waiting and room > 0 and self.free_rows:
            request = self.waiting[0]
            node = self.cache.match(request.text[:-1]) if self.config.caches else self.cache.root
            path = node.path()
            self.cache.lock(node, +1)
            shared = len(path) * self.config.page_size
            wanted = len(request.text) - shared + self._still_to_come(request)
            if self.available < wanted + later + self.config.page_size and (self.running or batch):
                self.cache.lock(node, -1)
                break
            later += wanted
            self.waiting.pop(0)
            self._seat(request, node, [slot for one in path for slot in one.slots])
            batch.append(request)
            room -= len(request.text) - shared
        return batch

    def _still_to_come(self, request: Request) -> int:
        """Slots that admission leaves for the rest of a request's answer."""
        left = request.params.max_new_tokens - len(request.outputs)
        return int(left * self.config.reserve) + 2 * self.config.reach + self.config.page_size

    def _seat(self, request: Request, node: Node, slots: list[int]) -> None:
        """Give a request a row, which begins with what it shares."""
        request.become(State.PREFILLING)
        request.row, request.node = self.free_rows.pop(0), node
        request.length = request.allocated = request.shared = len(slots)
        self.device.req_to_token[request.row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)

    def _prefill(self, batch: list[Request]) -> Launch | None:
        """Launch a prefill of at most `chunk` tokens; a request that is not done with it is the chunked one."""
        room = self.config.chunk
        rows, starts, chunks, done, requests = [], [], [], [], []
        for request in batch:
            text = request.text
            count = min(room, len(text) - request.length)
            if not count or not self._grow([request], [request.length + count]):
                self._retract(request)
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
        logits = self.device.prefill(rows, starts, chunks)
        said: list[list[int]] = []
        for request, is_done, after in zip(requests, done, logits, strict=True):
            said.append([])
            if is_done:
                said[-1].append(draw(next_token_law(after, request.outputs, request.prompt, request.params), 0.0))
                self.device.begin(request.row, [*request.outputs, *said[-1]])
                request.become(State.RUNNING)
                self.running.append(request)
                self._share(request)
        return Launch("extend", tuple(requests), said)

    def _share(self, request: Request) -> None:
        """Hand the whole pages of a prefilled text to the cache, and read them there from now on."""
        if not self.config.caches:
            return
        slots = self.device.req_to_token[request.row, : request.length].tolist()
        node, unused = self.cache.insert(request.text[: request.length], slots)
        shared = [slot for one in node.path() for slot in one.slots]
        self.device.req_to_token[request.row, : len(shared)] = torch.tensor(shared, dtype=torch.int32)
        self.cache.lock(node, +1)
        if request.node is not None:
            self.cache.lock(request.node, -1)
        request.node, request.shared = node, len(shared)
        self._free(unused)

    # ---- decoding

    def slots_needed(self, request: Request) -> int:
        """Positions that the next step of a request may touch: those of the longest that it may have become meanwhile,
        and of the tree behind it.
        """
        longest = request.length + request.launched * (self.config.num_steps + 1)
        return longest + self.config.reach

    def _decode(self, ranks: RanksOf) -> Launch | None:
        """Launch a step of all that run; the youngest gives way where pages are short."""
        while self.running and not self._grow(self.running, [self.slots_needed(request) for request in self.running]):
            self._retract(self.running[-1])
        if not self.running:
            return None
        requests = tuple(self.running)
        how = [[ranks(request, step) for step in range(self.config.num_steps)] for request in requests]
        rows, params = [request.row for request in requests], [request.params for request in requests]
        tokens = self.device.decode(rows, how, params)
        for request in requests:
            request.launched += 1
        return Launch("decode", requests, tokens)

    # ---- slots

    @property
    def available(self) -> int:
        """Slots that a request may get: free ones, and those of the cache that nobody reads."""
        return len(self.free_pages) * self.config.page_size + self.cache.evictable

    def _grow(self, requests: Sequence[Request], ends: Sequence[int]) -> bool:
        """Give requests slots up to these positions; False, and nothing, where there are too few pages."""
        page = self.config.page_size
        ends = [max(end, request.allocated) for request, end in zip(requests, ends, strict=True)]
        pages = sum(
            -(-end // page) - -(-request.allocated // page) for request, end in zip(requests, ends, strict=True)
        )
        missing = pages - len(self.free_pages)
        if missing > 0:
            self._free(self.cache.evict(missing * page))
        if pages > len(self.free_pages):
            return False
        rows = torch.tensor([request.row for request in requests])
        begin = torch.tensor([request.allocated for request in requests])
        last = get_last_loc(self.device.req_to_token, rows, begin)
        slots = alloc_extend(begin, torch.tensor(ends), last, torch.tensor(self.free_pages, dtype=torch.int64), page)
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

    def owners(self) -> dict[int, str]:
        """Who owns each page: "free", "cache", or a request. AssertionError where one has two owners or none, or where
        a request reads what it neither owns nor shares.
        """
        page = self.config.page_size
        owners = dict.fromkeys(self.free_pages, "free")
        assert len(owners) == len(self.free_pages), "a page is free twice"

        def owned(number: int, by: str) -> None:
            assert number not in owners, f"page {number} is {by}'s and {owners[number]}'s"
            owners[number] = by

        for node in self.cache.nodes():
            owned(node.slots[0] // page, "cache")
        for request in self.requests.values():
            if request.row >= 0:
                slots = self.device.req_to_token[request.row, : request.allocated].tolist()
                assert all(owners.get(slot // page) == "cache" for slot in slots[: request.shared]), request.rid
                for number in sorted({slot // page for slot in slots[request.shared :]}):
                    owned(number, request.rid)
        assert len(owners) == self.config.slots // page, "a page is nobody's"
        return owners

    def _free(self, slots: Sequence[int]) -> None:
        """Give whole pages back."""
        pages = sorted({slot // self.config.page_size for slot in slots})
        assert not set(pages) & set(self.free_pages), "a page is freed twice"
        self.free_pages = sorted([*self.free_pages, *pages])

    # ---- results, and ends

    def _read(self, launch: Launch) -> None:
        """Take the tokens of a launch, but for requests that have ended or wait again."""
        for request, tokens in zip(launch.requests, launch.tokens, strict=True):
            if launch.kind == "decode":
                request.launched -= 1
            if request.state is not State.RUNNING or not tokens:
                continue
            if launch.kind == "decode":
                request.length += len(tokens)
            for token in tokens:
                request.outputs.append(token)
                params = request.params
                end = finish_of(request.outputs, params, params.max_new_tokens, detokenize=self.detokenize)
                if end is not None:
                    request.matched = end.matched
                    self._end(request, end.finish_reason)
                    break

    def _end(self, request: Request, reason: str) -> None:
        """An end: what is computed of its text goes to the cache, what it has beside that is free."""
        request.reason = reason
        if request.row >= 0:
            known = request.text[: max(0, len(request.text) - 1)]
            computed = min(request.length, len(known)) if request.state is State.PREFILLING else len(known)
            self._release(request, known[:computed])
        if request in self.waiting:
            self.waiting.remove(request)
        request.become(State.ENDED)

    def _retract(self, request: Request) -> None:
        """All of its slots are given back; it waits at the front of the queue."""
        self._release(request, [])
        request.become(State.WAITING)
        request.length = request.allocated = request.shared = 0
        self.waiting.insert(0, request)

    def _release(self, request: Request, kept: Sequence[int]) -> None:
        """Give back a request's row and slots; the whole pages of the text `kept` go to the cache."""
        slots = self.device.req_to_token[request.row, : request.allocated].tolist()
        shared, page = request.shared, self.config.page_size
        taken = 0
        if self.config.caches and len(kept) >= shared:
            taken = len(kept) // page * page
            _node, unused = self.cache.insert(kept[:taken], slots[:taken])
            self._free(unused)
        self._free(slots[max(taken, shared) :])
        if request.node is not None:
            self.cache.lock(request.node, -1)
        self.free_rows = sorted([*self.free_rows, request.row])
        request.row, request.node = -1, None
        if request in self.running:
            self.running.remove(request)
        if self.chunked is request:
            self.chunked = None


class RanksOf(Protocol):
    """How right the draft model is: the rank of the target's token among its own, for a step of a request."""

    def __call__(self, request: Request, step: int, /) -> int: ...
