"""The reference engine (`specsim.reference.engine`) as a scheduler: its model, and what the world sees of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specsim.contracts.contract import in_place_of
from specsim.contracts.registry import OPS
from specsim.reference import engine as engine_module
from specsim.reference.engine import Config, Device, Engine, Holder, Operations, RanksOf, Request, State
from specsim.reference.engine import Launch as InFlight
from specsim.reference.grammar import Automaton
from specsim.reference.sequential import SamplingParams, generate, next_token_logprobs
from specsim.reference.validation import unchecked
from specsim.world.hash_model import EMPTY, VOCABULARY, Prefixes, extended, likely, prefix_of
from specsim.world.kv import DraftRead, content_name, wrong_content
from specsim.world.own import OwnEngine, OwnScheduler
from specsim.world.scheduler import (
    END,
    Answer,
    Facts,
    Launch,
    Load,
    LogprobRow,
    Matched,
    Noted,
    Pause,
    Pools,
    RequestState,
    Seen,
    Setup,
    Step,
    TreeNode,
    Turn,
)
from specsim.world.workload import BIASED, CROSSED

if TYPE_CHECKING:
    from types import FrameType

    from specsim.choices.chooser import Chooser

HOST, STREAM = "host", "device"
ENGINE_FILE = Path(engine_module.__file__)
LIKELY, UNLIKELY = (8.0, 6.75, 5.5, 4.25, 3.0), 1.0
"""Logits of the most likely tokens, and of all others: no penalty and no bias makes two of the likely ones equal."""
PENALTY, BIAS = 1.5, -4.0
SAMPLING: dict[str, dict[str, Any]] = {
    "cold": {"temperature": 0.001},
    "top-p": {"temperature": 1.0, "top_p": 0.001},
    "top-k and top-p": {"temperature": 1.0, "top_k": 3, "top_p": 0.001},
}
"""Each leaves the most likely token alone."""
FACTS = Facts(
    features=frozenset(
        {
            "aborts",
            "shared prefixes",
            "continued answers",
            "stop tokens",
            "bursts",
            "flushes",
            "abort all",
            "pauses",
            "stop strings",
            "penalties",
            "logprobs",
            "grammars",
            "early closes",
            CROSSED,
            BIASED,
        }
    ),
    context=120,
    answer_room=1,
    priorities=(0, 1, 2),
    timeout=0.0,
    leap=0.0,
    ahead=2,  # admission has slots for a step in flight and the one behind it
    late=2,
    patience=8,
    keeps_last=False,
    caches=True,
    in_order=True,
    masks=True,
)
SETUPS = (
    Setup(),
    Setup(page_size=4, slots=240),
    Setup(reserve=0.1),
    Setup(chunk=12, slots=200),
    Setup(topk=2, draft_tokens=6, slots=240),
    Setup(overlap=False),
    Setup(radix=False, reserve=0.1),
    Setup(sampled=True, topk=2, draft_tokens=6, slots=240),
    Setup(sessions=True),
    Setup(sessions=True, page_size=4, topk=2, draft_tokens=6, slots=240),
    Setup(priorities=True, reserve=0.1),
    Setup(mixed=True),
    Setup(window=16, slots=200),
    Setup(window=16, page_size=4, sessions=True, topk=2, draft_tokens=6, slots=240),
    Setup(window=8, sessions=True, slots=200),
    Setup(page_size=4, reserve=0.1),
    Setup(sessions=True, rows=2),
)


class HashModel:
    """Its KV of a token are the hashes of the prefix up to it and before it, so that rows that are read are a chain."""

    vocab_size = VOCABULARY

    def kv(self, prefix: int, token: int) -> tuple[int, int]:
        return extended(prefix, token), prefix

    def state(self, rows: Sequence[Sequence[int]], near: Sequence[Sequence[int]] | None = None) -> int:
        before, is_chain = EMPTY, near is None or near == rows[len(rows) - len(near) :]
        for key, value in rows:
            is_chain &= value == before
            before = key
        return before if is_chain else extended(before & (2**62 - 1), len(rows))

    def logits(self, states: Sequence[int]) -> torch.Tensor:
        made = np.full((len(states), VOCABULARY), UNLIKELY, np.float32)
        for row, state in zip(made, states, strict=True):
            row[likely(state, len(LIKELY))] = LIKELY
        return torch.from_numpy(made)

    def drafts(self, states: Sequence[int], ranks: Sequence[int], topk: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = []
        for state, rank in zip(states, ranks, strict=True):
            right, *others = likely(state, topk + 1)
            tokens.append([*others[:rank], right, *others[rank:]][:topk] if rank < topk else others[:topk])
        probabilities = torch.tensor([0.5 / (1 + at) for at in range(topk)])
        return probabilities.expand(len(states), topk), torch.tensor(tokens)


def params_of(turn: Turn) -> SamplingParams:
    """What a user asks for."""
    changes: dict[str, Any] = {turn.penalty: PENALTY} if turn.penalty else {}
    if turn.bias:
        changes["logit_bias"] = dict.fromkeys(range(0, VOCABULARY, turn.bias), BIAS)
    return SamplingParams(
        return_logprob=turn.logprobs >= 0,
        max_new_tokens=turn.answer,
        stop_token_ids=(turn.stop,) if turn.stop >= 0 else (),
        stop=(text_of(turn.stop_text),) if turn.stop_text else (),
        **{"temperature": 0.0, **SAMPLING.get(turn.sampling, {}), **changes},
    )


def grammar_of(turn: Turn) -> Automaton | None:
    """The one text that it allows, one token after the other; the last one ends it."""
    if not turn.grammar:
        return None
    steps = {at: {token: at + 1} for at, token in enumerate(turn.grammar)}
    return Automaton(steps, [len(turn.grammar)], VOCABULARY)


def window_slots(window: int) -> int:
    """Of the pool of window pages: fewer than the longest request has tokens where a window is wide, and more than some
    requests need where it is narrow.
    """
    return max(96, 224 - 8 * window) if window else 0


def text_of(tokens: Sequence[int]) -> str:
    """A character for each token."""
    return "".join(map(chr, tokens))


def row_of(logprobs: torch.Tensor, token: int, top: int) -> LogprobRow:
    """Of a token and of the most likely ones, of equal ones the lowest first."""
    best = logprobs.sort(descending=True, stable=True).indices[:top].tolist()
    return tuple((float(logprobs[one]), one) for one in (token, *best))


@dataclass(slots=True)
class EngineRecording:
    """What a page shows of a schedule: each launch, its run by the device, and whose results the host reads.

    `state`  what `Seen.states` has of now, where requests are about to be launched
    """

    seen: Seen
    state: Callable[[Collection[str]], dict[str, dict[str, Any]]]
    launched: int = 0
    before: int = 0
    """Launches of the iterations before."""

    def iteration(self, number: int) -> None:
        self.before = self.launched
        self.mark(f"iteration {number}")

    def mark(self, what: str, who: str = "") -> None:
        self.seen.states.append(self.state(who.split()))
        self.seen.steps.append(Step(HOST, "mark", what, who=who))

    def launch(self, what: str, who: str) -> None:
        self.mark(what, who)
        self.launched += 1
        about: dict[str, Any] = {"where": _engine_line(), "number": self.launched, "stream": STREAM}
        self.seen.steps.append(Step(HOST, "launch", what, **about))
        self.seen.steps.append(Step(STREAM, "run", what, **about, n=self.launched))

    def results(self, launch: int) -> None:
        """The host reads what is there up to that launch."""
        self.seen.steps.append(Step(HOST, "wait", "results", _engine_line(), stream=STREAM, n=launch))


def _engine_line() -> str:
    """FUNCTION at FILE:LINE of the engine, where it is at work."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != str(ENGINE_FILE):
        frame = frame.f_back
    return f"{frame.f_code.co_qualname} at {ENGINE_FILE.name}:{frame.f_lineno}" if frame else ""


class WatchedDevice(Device):
    """A device that notes, before each step, KV that is not of its request's tokens: of the target's once, of the draft
    model's, too.
    """

    def __init__(self, config: Config, model: HashModel, operations: Operations | None = None) -> None:
        super().__init__(config, model, operations)
        self.texts: dict[int, Prefixes] = {}
        """By row the tokens of its request, as the device has said them."""
        self.rids: dict[int, str] = {}
        self.noted: list[Any] = []
        self.recording: EngineRecording | None = None
        self._seen: set[tuple[str, str]] = set()

    def seat(self, row: int, rid: str, shared: Sequence[int]) -> None:
        self.texts[row], self.rids[row] = Prefixes(shared), rid

    def prefill(self, rows: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        self._record("extend", rows)
        for row, chunk in zip(rows, chunks, strict=True):
            self._look(row, "extend")
            self._say(row, chunk)
        return super().prefill(rows, starts, chunks)

    def begin(self, row: int, said: Sequence[int]) -> None:
        self._say(row, said[-1:])
        super().begin(row, said)

    def decode(self, rows: Sequence[int], *how: Any) -> tuple[list[list[int]], list[torch.Tensor]]:
        self._record("decode", rows)
        for row in rows:
            self._look(row, "verify")
        said, logits = super().decode(rows, *how)
        for row, tokens in zip(rows, said, strict=True):
            self._say(row, tokens)
        return said, logits

    def _record(self, what: str, rows: Sequence[int]) -> None:
        if self.recording is not None:
            self.recording.launch(what, " ".join(self.rids[row] for row in rows))

    def _say(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row].say(self.texts[row].count, tokens)

    def _look(self, row: int, phase: str) -> None:
        text = self.texts[row]
        length = text.count - (phase == "verify")  # its last token, the root, has no KV yet
        slots = self.req_to_token[row, :length].to(torch.int64)
        wanted = text.first(length)
        start = self.config.window_start(length)
        pools = [("full", self.kv[slots], 0), ("draft", self.draft_kv[slots], 0)]
        if self.config.window:
            pools.append(("window", self.window_kv[self.window_slots(slots[start:])], start))
        for name, kv, first in pools:
            wrong = np.flatnonzero(kv[:, 0].numpy() != wanted[first:])
            rid = self.rids[row]
            if not len(wrong) or (rid, name) in self._seen:
                continue
            self._seen.add((rid, name))
            at = first + int(wrong[0])
            slot, actual = int(slots[at]), int(kv[at - first, 0])
            if name != "draft":
                self.noted.append(wrong_content(phase, name, rid, at, slot, actual))
            else:
                self.noted.append(DraftRead(rid, "KV", at, int(wanted[at]), actual))


class WatchedEngine(Engine):
    """Tells the device of a row's next request, and a recording of results that are read."""

    device: WatchedDevice

    def _admit(self) -> list[Request]:
        batch = super()._admit()
        for request in batch:
            if request is not self.chunked:
                self.device.seat(request.row, request.rid, request.text[: request.length])
        return batch

    def _take_results(self, launch: InFlight) -> None:
        recording = self.device.recording
        if recording is not None:
            recording.results(recording.before if self.config.overlap else recording.launched)
        super()._take_results(launch)


def of_kernels() -> Operations:
    """Those of specsim's kernels, on a CPU. To be made before triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    from specsim import kernels

    return Operations(**{name: in_place_of(OPS[name], getattr(kernels, name)) for name in Operations._fields})


class ReferenceScheduler(OwnScheduler):
    file = str(ENGINE_FILE)

    def __init__(self, setup: Setup, operations: Operations | None = None) -> None:
        self.setup, self.facts, self.seen = setup, FACTS, Seen()
        config = Config(
            page_size=setup.page_size,
            slots=setup.slots,
            rows=setup.rows,
            chunk=setup.chunk,
            context=FACTS.context,
            topk=setup.topk,
            num_steps=setup.steps,
            num_draft_tokens=setup.draft_tokens,
            overlap=setup.overlap,
            reserve=setup.reserve,
            caches=setup.radix,
            mixed=setup.mixed,
            window=setup.window,
            window_slots=window_slots(setup.window),
        )
        self.device = WatchedDevice(config, HashModel(), operations)
        self._has_kernels = operations is not None
        self.engine = WatchedEngine(config, self.device, text_of)
        self.rows: dict[str, tuple[list[LogprobRow], int]] = {}
        """By request the logprobs that its user has, and how many of the most likely tokens are in each row."""
        self._expected: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}

    # what users say

    def generate(self, turn: Turn) -> Any:
        request = Request(turn.rid, turn.prompt, params_of(turn), turn.session, turn.priority, grammar_of(turn))

        def submit() -> None:
            request.ready_at = self.engine.steps + turn.compiling
            self.rows[turn.rid] = ([], turn.logprobs)
            self.engine.submit(request)

        return submit

    def expected(self, turn: Turn, prompt: Sequence[int], said: Sequence[int] = ()) -> list[int]:
        if not (turn.penalty or turn.bias or turn.grammar):
            return self.decode(prompt, turn.answer)
        key = turn.rid, tuple(prompt)
        if key not in self._expected:
            params = replace(params_of(turn), stop=(), stop_token_ids=(), return_logprob=False)
            found = generate(self._after, prompt, params, coins=lambda _index: 0.0, grammar=grammar_of(turn))
            self._expected[key] = found.tokens
        return list(self._expected[key])

    def _after(self, text: Sequence[int]) -> torch.Tensor:
        """The model's logits."""
        return self.device.model.logits([prefix_of(text)])[0]

    def logprobs(self, turn: Turn, prompt: Sequence[int], tokens: Sequence[int]) -> list[LogprobRow]:
        params, grammar, rows = params_of(turn), grammar_of(turn), []
        for at, token in enumerate(tokens):
            mask = grammar.allowed() if grammar is not None else None
            logits = self._after((*prompt, *tokens[:at]))
            rows.append(row_of(next_token_logprobs(logits, tokens[:at], prompt, params, mask), token, turn.logprobs))
            if grammar is not None:
                grammar.accept(token)
        return rows

    def open_session(self, name: str, timeout: float) -> Any:
        return lambda: self.engine.open(name)

    def close_session(self, name: str) -> Any:
        return lambda: self.engine.close(name)

    def abort(self, rid: str) -> Any:
        return lambda: self.engine.abort(rid)

    def abort_all(self) -> Any:
        def all_of_them() -> None:
            for rid in list(self.engine.requests):
                self.engine.abort(rid)

        return all_of_them

    def flush(self) -> Any:
        return self.engine.flush

    def pause(self, pause: Pause) -> Any:
        def paused() -> None:
            self.engine.is_paused = True
            if pause.retracts:
                self.engine.retract_all()

        return paused

    def resume(self) -> Any:
        return lambda: setattr(self.engine, "is_paused", False)

    # the loop

    def run(self, chooser: Chooser, script: Callable[[int], Sequence[Any] | None]) -> None:
        def rank(_request: Request, _step: int) -> int:
            return chooser.choose(self.setup.topk + 1, "accept")

        iteration = 0
        with self._launches():
            while (messages := script(iteration)) is not None:
                if self.device.recording is not None:
                    self.device.recording.iteration(iteration)
                self.step(messages, rank, iteration)
                iteration += 1
        if self.device.recording is not None:
            self.device.recording.mark(END)

    def record(self) -> None:
        self.device.recording = EngineRecording(self.seen, self._state)

    def step(self, messages: Sequence[Any], ranks: RanksOf, iteration: int) -> None:
        """One iteration: `ranks` says how right the draft model is."""
        with unchecked():
            for message in messages:
                message()
            launch = self.engine.step(ranks)
        if launch is not None:
            rids = tuple(request.rid for request in launch.requests)
            self.seen.launches.append(Launch(iteration, launch.kind, rids))
        at = (self.device.recording.launched,) if self.device.recording is not None else ()
        self.seen.noted += [Noted(record, iteration, at) for record in self.device.noted]
        self.device.noted.clear()

    def _launches(self) -> AbstractContextManager[Any]:
        """What runs launches of kernels, where operations are such."""
        if not self._has_kernels:
            return nullcontext()
        from specsim.interpreter.lockstep.launch import Strict, lockstep

        return lockstep(Strict())

    @property
    def is_idle(self) -> bool:
        return self.engine.is_idle

    # its state

    def load(self) -> Load:
        engine = self.engine
        waiting = tuple((one.rid, len(one.prompt) + one.params.max_new_tokens) for one in engine.waiting)
        lengths = tuple((one.rid, one.length, one.allocated) for one in engine.running)
        later = sum(len(one.prompt) + one.params.max_new_tokens - one.length for one in engine.running)
        width = engine.device.req_to_token.shape[1]
        is_chunked = engine.chunked is not None
        windows = tuple(map(self._own_window, engine.running)) if engine.config.window else ()
        return Load(waiting, later, self._room(), len(engine.free_rows), lengths, width, is_chunked, windows)

    def _own_window(self, holder: Holder) -> int:
        """Slots of window pages that a row has behind what it shares."""
        page = self.engine.config.page_size
        own = self.device.req_to_token[holder.row, holder.shared : holder.allocated : page] // page
        return int((self.device.window_pages[own] > 0).sum()) * page

    def _room(self) -> int:
        """Slots of pages that no row has, and of those no window either; counted by the rows, and not as the engine
        does.
        """
        config, held, near = self.engine.config, set[int](), set[int]()
        for holder in (*self.engine.requests.values(), *self.engine.sessions.values()):
            if holder.row >= 0:
                pages = self.device.req_to_token[holder.row, : holder.allocated : config.page_size].tolist()
                held.update(pages)
                near.update(pages[holder.window_from :])
        room = config.slots - len(held) * config.page_size
        return min(room, config.window_slots - len(near) * config.page_size) if config.window else room

    def requests(self) -> Iterator[RequestState]:
        for one in self.engine.requests.values():
            committed = 0 if one.state is State.ENDED else one.length
            yield RequestState(
                one.rid,
                one.prompt,
                tuple(one.outputs),
                one.reason,
                committed,
                one.allocated * (one.row >= 0),
                one.row,
                0,
            )

    def answers(self) -> Iterator[Answer]:
        for one in self.engine.requests.values():
            matched: Matched = one.params.max_new_tokens if one.reason == "length" else None
            if one.reason == "stop":
                matched = tuple(map(ord, one.matched)) if isinstance(one.matched, str) else one.matched
                matched = one.outputs[-1] if matched is None else matched  # a grammar ends with its last token
            rows, top = self.rows[one.rid]
            for at in range(len(rows), len(one.logprobs)):
                rows.append(row_of(one.logprobs[at], one.outputs[at], top))
            yield Answer(one.rid, tuple(one.outputs), one.reason, matched=matched, logprobs=tuple(rows))

    def pools(self) -> Pools:
        engine, page = self.engine, self.engine.config.page_size
        free = [number * page + at for number in engine.free_pages for at in range(page)]
        cached = list(engine.cache.nodes())
        nodes = [TreeNode(tuple(token for one in node.path() for token in one.tokens), node.slots) for node in cached]
        windows: dict[str, Any] = {}
        if engine.config.window:
            to_window = self.device.window_slots
            in_window = [each for each, node in zip(nodes, cached, strict=True) if engine._has_window(node)]
            windows = {
                "window_nodes": [
                    TreeNode(each.tokens, tuple(to_window(torch.tensor(each.slots)).tolist())) for each in in_window
                ],
                "window_total": engine.config.window_slots,
                "window_free": len(engine.free_window_pages) * page,
                "window_cached": len(in_window) * page,
            }
        return Pools(
            engine.config.slots,
            len(free),
            engine.cache.evictable,
            engine.config.rows,
            len(engine.free_rows),
            free_slots=free,
            nodes=nodes,
            free_row_numbers=list(engine.free_rows),
            **windows,
        )

    def _state(self, launching: Collection[str]) -> dict[str, dict[str, Any]]:
        """As a page shows it: the sections of `specsim.tiers.states`. The host counts what it is about to launch."""
        engine, found = self.engine, dict[str, dict[str, Any]](slots={}, cells={}, owners={})
        found["lists"] = {
            "waiting": [one.rid for one in engine.waiting],
            "running": [one.rid for one in engine.running],
            "results to take": int(engine.in_flight is not None),
            "free rows": len(engine.free_rows),
            "free slots": len(engine.free_pages) * engine.config.page_size,
            "evictable": engine.cache.evictable,
        }
        if engine.config.window:
            found["lists"]["free window slots"] = len(engine.free_window_pages) * engine.config.page_size
        texts = {one.rid: one.text for one in engine.requests.values()}
        chains = {rid: Prefixes(text).first(len(text)).tolist() for rid, text in texts.items()}
        names = {content: f"{rid}@{at}" for rid, chain in chains.items() for at, content in enumerate(chain)}
        for node in engine.cache.nodes():
            for slot in node.slots:
                content = self.slot_content(slot)
                found["slots"][str(slot)] = ["tree", -1, content_name(names, content), ""]
        for one in engine.requests.values():
            found[f"request {one.rid}"] = {
                "state": one.state.value,
                "ended": one.reason,
                "row": one.row if one.row >= 0 else None,
                "committed": one.length,
                "allocated": one.allocated,
                "cached prefix": one.shared,
                "prompt": list(one.prompt),
                "outputs": list(one.outputs),
            }
            self._show(found, one.rid, one, 0 if one.rid in launching else one.length, chains[one.rid], names)
        for name, session in engine.sessions.items():
            text = list(session.text)
            chain = Prefixes(text).first(len(text)).tolist()
            self._show(found, f"session {name}", session, session.length, chain, names)
        return found

    def _show(
        self,
        found: dict[str, dict[str, Any]],
        owner: str,
        holder: Holder,
        due: int,
        chain: list[int],
        names: dict[int, str],
    ) -> None:
        """The row of a request or a session, what its slots hold, and what those should that are `due`."""
        if holder.row < 0:
            return
        slots = self.device.req_to_token[holder.row, : holder.allocated].tolist()
        held = list(map(self.slot_content, slots))
        wrong = (at for at, (own, wanted) in enumerate(zip(held, chain, strict=False)) if own != wanted)
        ready = next(wrong, min(len(held), len(chain)))
        found["owners"][owner] = [holder.row, holder.length, holder.allocated, holder.shared, ready]
        for at, (slot, content) in enumerate(zip(slots, held, strict=True)):
            found["cells"][f"{holder.row},{at}"] = slot
            by = "tree" if at < holder.shared else owner
            wanted = names.get(chain[at], "") if at < min(due, len(chain)) else ""
            found["slots"][str(slot)] = [by, at, content_name(names, content), wanted]

    def content_of(self, tokens: Sequence[int]) -> int:
        return prefix_of(tokens)

    def slot_content(self, slot: int) -> int:
        return int(self.engine.device.kv[slot, 0])

    def window_content(self, slot: int) -> int:
        return int(self.engine.device.window_kv[slot, 0])


class ReferenceEngine(OwnEngine):
    setups = SETUPS
    starts_anew = True
    sources = (str(ENGINE_FILE),)

    def start(self, setup: Setup) -> ReferenceScheduler:
        torch.set_num_threads(1)
        return ReferenceScheduler(setup, self.operations())

    def operations(self) -> Operations | None:
        """What it runs on in the place of the reference's operations."""
        return None


class ReferenceEngineOnKernels(ReferenceEngine):
    def operations(self) -> Operations:
        return of_kernels()


engine = ReferenceEngine()
on_kernels = ReferenceEngineOnKernels()
