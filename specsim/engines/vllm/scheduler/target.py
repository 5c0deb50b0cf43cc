"""vLLM's scheduler as the scheduler tier drives it: imported once, and started anew for each schedule."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specsim.choices.chooser import replayed
from specsim.engines.importable import imported
from specsim.engines.vllm.scheduler import release_model, release_worker
from specsim.engines.vllm.scheduler.boot import REFUSED, Booted, load, release_module
from specsim.engines.vllm.scheduler.kv_events import cached, event_of, name_of
from specsim.engines.vllm.scheduler.pools import slots_in
from specsim.engines.vllm.scheduler.runners import runner_of
from specsim.engines.vllm.scheduler.setups import FACTS, PAUSES, SETUPS, reach_of
from specsim.errors import UsageError
from specsim.interpreter.lockstep.errors import UnsupportedError
from specsim.isolation.phases import running
from specsim.verdict import NotRun
from specsim.world.blame import Blame
from specsim.world.fakes import NotRunError
from specsim.world.hash_model import prefix_of, reasoned
from specsim.world.kv_events import CachedBlock
from specsim.world.own import OwnScheduler
from specsim.world.release import ReleaseFiles
from specsim.world.scheduler import (
    ABORT,
    DRAIN,
    KEEP,
    NO_GRAMMAR,
    Answer,
    Chunk,
    Launch,
    Load,
    LogprobRow,
    Noted,
    Part,
    Pause,
    Pools,
    RequestState,
    Seen,
    Setup,
    TreeNode,
    Turn,
    held_in_window,
    held_of,
    of_salt,
)

if TYPE_CHECKING:
    from types import CodeType

    from specsim.choices.chooser import Chooser
    from specsim.engines.target import Checkout, Release
    from specsim.lifting.cache import Cache
    from specsim.lifting.changes import Function
    from specsim.lifting.probes import Span
    from specsim.world.packages import Edit

LACKS = (
    ("schedules with logprobs", "the toy model has no logits of its own"),
    ("schedules with stop strings", "who makes text of tokens looks for them, and that is not run"),
    ("schedules with mamba layers", "the toy model has layers of full attention, and of a sliding window"),
    ("schedules with several ranks, vLLM's own connectors or disaggregation", "one process runs, without sockets"),
)
LACKS_OF_RELEASE_WORKERS = (
    ("the first model runner", "the second one runs"),
    ("the release's sampler, drafter and attention", "in their place is the model"),
)
MODELS = frozenset(str(module.__file__) for module in (release_model, release_worker))
"""Files in which a model reads and writes: ours."""
NULL_BLOCK, WINDOW_GROUP = 0, 1
PAUSE_THAT_REFUSES = "pause_generation"
_MODES = {KEEP: "keep", DRAIN: "wait", ABORT: "abort"}
COVERED = ("v1/core/", "v1/engine/core.py", "v1/request.py")
"""Of which schedules note what runs."""


def vllm_scheduler(
    target: Release | Checkout, cache: Cache, edit: Edit | None, root: Path | None, files: Collection[str]
) -> VllmScheduler | NotRun:
    """The scheduler of a target, see `imported`, whose source `edit` changes on the way in; of `files` schedules note
    which statements run, besides those of the scheduler.
    """
    return imported(target, cache, root, (*COVERED, *files), lambda release: VllmScheduler(release, edit))


class VllmScheduler:
    """See `specsim.world.scheduler.SchedulerTarget`."""

    setups = SETUPS
    has_rust_tree = False
    starts_anew = True

    def __init__(self, release: ReleaseFiles, edit: Edit | None = None) -> None:
        self._release, self._open = release, ExitStack()
        digest = hashlib.sha256()
        for file in sorted(Path(release.folder, "v1", "core").rglob("*.py")):
            digest.update(file.read_bytes())
        self.source_hash = digest.hexdigest()[:16]
        with running():
            self._surroundings = load(release.root, edit, release.probes)
        engine = release_module("engine.core").EngineCoreProc
        self.where = f"v1/engine/core.py:{engine.run_busy_loop.__code__.co_firstlineno}"
        can_pause = hasattr(engine, "pause_scheduler") and hasattr(engine, "resume_scheduler")
        features = FACTS.features if can_pause else FACTS.features - {PAUSES}
        self._facts = replace(FACTS, features=features, refuses=hasattr(engine, PAUSE_THAT_REFUSES))

    @property
    def imported(self) -> tuple[str, ...]:
        return self._release.imported

    def statements(self, file: str) -> tuple[Span, ...]:
        return self._release.statements(file)

    def lacks(self, worker: str) -> Sequence[tuple[str, str]]:
        return LACKS if worker == "fake" else (*LACKS, *LACKS_OF_RELEASE_WORKERS)

    def reach(self, setup: Setup) -> str:
        return reach_of(setup, runner_of(self._release.root))

    def start(self, setup: Setup) -> Started:
        with running():
            device = self._simulated() if setup.worker == "release" else None
            booted = Booted(self._release.root, setup, self._surroundings, device)
        booted.watch_blocks(self._release.below)
        self._release.probes.started()
        facts = replace(self._facts, context=booted.context)
        if setup.connector:  # a request waits for its KV, whoever comes after it
            facts = replace(facts, in_order=False, features=facts.features - {"flushes", PAUSES})
        return Started(booted, self._release, facts)

    def _simulated(self) -> Any:
        """A virtual device, in place of the one before: it has the streams of one engine."""
        from specsim.vdevice import simulate

        torch.set_num_threads(1)
        with suppress(Exception):  # of what was left to run
            self._open.close()
        device = simulate(replayed(()), sites=lambda file: file in MODELS or bool(self._release.below(file)))
        return self._open.enter_context(device)

    def outcomes(self, setup: Setup, length: int) -> Any:
        raise UsageError("the outcomes of vLLM's worker cannot be weighed", "weigh those of a release of SGLang")


class Started(OwnScheduler):
    """See `specsim.world.scheduler.StartedScheduler`. Messages are made when they arrive."""

    def __init__(self, booted: Booted, release: ReleaseFiles, facts: Any) -> None:
        self._booted, self._setup, self._release = booted, booted.setup, release
        self.facts, self.seen = facts, Seen()
        self._aborted: dict[str, int] = {}
        """By request the iteration in which its user aborted it: of what comes later nobody is told."""
        self._outputs: dict[str, list[Any]] = {}
        """By request what its user was sent, of the first `_taken` outputs."""
        self._taken = 0
        self._answers: dict[str, Answer] = {}
        self._prefills: dict[str, int] = {}
        """By request how many tokens it had when it began, or began anew."""
        self._counts: list[tuple[int, int]] = []
        """Of records and of what the device found, at the start of each iteration."""
        self._blame = Blame(
            MODELS, "", release_model.unwritten.__name__, {}, lambda file, line: f"{release.below(file) or file}:{line}"
        )

    def logprobs(self, turn: Turn, prompt: Sequence[int], tokens: Sequence[int]) -> list[LogprobRow]:
        return []

    def content_of(self, tokens: Sequence[int]) -> int:
        return prefix_of(tokens)

    def slot_content(self, slot: int) -> int:
        return int(self._booted.model.kv.full[slot])

    def window_content(self, slot: int) -> int:
        return int(self._booted.model.kv.window[slot])

    # ---- messages

    def generate(self, turn: Turn) -> Any:
        stops = [*([turn.stop] if turn.stop >= 0 else []), *turn.grammar[-1:]]  # a grammar ends where the answer does
        given: dict[str, Any] = {"stop_token_ids": stops} if stops else {}
        given |= {"grammar": turn.grammar, "compiling": turn.compiling, "is_wrong": turn.refused == NO_GRAMMAR}
        given |= {"priority": turn.priority if self._setup.priorities else 0, "salt": turn.salt}
        return lambda: self._booted.add(turn.rid, turn.prompt, turn.answer, **given)

    def expected(self, turn: Turn, prompt: Sequence[int], said: Sequence[int] = ()) -> list[int]:
        said, grammar = self.decode(prompt, turn.answer), turn.grammar
        if not grammar:
            return said
        before = reasoned(prompt, said) if self._setup.reasoning else 0
        if before >= 0:
            said = [*said[:before], *grammar][: turn.answer]
        return said[: [*said, grammar[-1]].index(grammar[-1]) + 1]

    def abort(self, rid: str) -> Any:
        return lambda: self._abort([rid])

    def abort_all(self) -> Any:
        return lambda: self._abort(list(self._booted.requests))

    def _abort(self, rids: list[str]) -> Any:
        for rid in rids:
            self._aborted.setdefault(rid, self._booted.iteration)
            self._answers.pop(rid, None)
        return self._booted.abort(rids)

    def flush(self) -> Any:
        return lambda: self._booted.call("reset_prefix_cache", bool(self._booted.draws(2, "resets running requests")))

    def pause(self, pause: Pause) -> Any:
        """With `retracts` the prefix cache is reset, once it is complete, and what requests hold with it."""
        method = PAUSE_THAT_REFUSES if pause.refuses else "pause_scheduler"
        return lambda: self._booted.pause(method, _MODES[pause.mode], pause.retracts)

    @property
    def has_paused(self) -> bool:
        return self._booted.has_paused

    def resume(self) -> Any:
        return lambda: self._booted.call("resume_scheduler")

    # ---- the run

    def run(self, chooser: Chooser, script: Callable[[int], Sequence[Any] | None]) -> None:
        booted, probes, device = self._booted, self._release.probes, self._booted.device
        probes.clear()
        booted.surroundings.restart()
        booted.model.right = lambda most: most - chooser.choose(most + 1, "accept")
        booted.draws, booted.launched = chooser.choose, self._note_launch
        if booted.outside is not None:
            booted.outside.draws = chooser.choose
        if device is not None:
            device.restart(chooser)

        def counted(iteration: int) -> Sequence[Any] | None:
            self._counts.append((len(booted.model.reports.records), len(device.findings) if device else 0))
            return script(iteration)

        try:
            booted.run(counted)
        except UnsupportedError as error:
            raise NotRunError(f"a kernel of the release cannot be run: {error}") from error
        finally:
            by_records, by_findings = zip(*self._counts, strict=True) if self._counts else ((), ())
            noted = [
                (record, bisect_right(by_records, at) - 1) for at, record in enumerate(booted.model.reports.records)
            ]
            if device is not None:
                with suppress(Exception):
                    torch.cuda.synchronize()
                found = enumerate(device.findings)
                noted += [(self._blame.record(one), bisect_right(by_findings, at) - 1) for at, one in found]
            self.seen.noted += [Noted(record, at) for record, at in noted]
            self.seen.ran.update(probes.lines())

    def _note_launch(self, batch: Any) -> None:
        """A batch may have parts of prompts beside verifications. Who has waited for KV from outside begins where the
        prefix cache ended before that.
        """
        outside = self._booted.outside
        requests, counts = self._booted.scheduler.requests, batch.num_scheduled_tokens
        kinds: dict[str, list[str]] = {}
        for rid in counts:
            kind = "decode" if requests[rid].output_token_ids else "extend"
            kinds.setdefault(kind, []).append(rid)
        starts = {new.req_id: int(new.num_computed_tokens) for new in batch.scheduled_new_reqs}
        for rid in (*starts, *batch.scheduled_cached_reqs.resumed_req_ids):
            self._prefills[rid] = int(requests[rid].num_tokens)
        looked_up = starts.keys() - outside.waited if outside is not None else starts.keys()
        nodes, windows = self._nodes() if starts else ([], [])
        drafts, makes_none = batch.scheduled_spec_decode_tokens, bool(getattr(batch, "skip_drafts", False))
        for kind, rids in kinds.items():
            chunks = []
            for rid in rids:
                start = starts.get(rid, requests[rid].num_computed_tokens - counts[rid])
                is_new = kind == "extend" and rid in looked_up
                held = self._held(nodes, windows, requests[rid], start) if is_new else -1
                verifies = rid in drafts or start >= self._prefills[rid]
                chunks.append(Chunk(start, counts[rid], held, len(drafts.get(rid, ())) if verifies else -1))
            self.seen.launches.append(Launch(self._booted.iteration, kind, tuple(rids), tuple(chunks), makes_none))

    def _held(self, nodes: list[TreeNode], windows: list[TreeNode], request: Any, start: int) -> int:
        """How much of the prompt of a request that begins at `start` the prefix cache has for it. Of layers with a
        sliding window a hit may need up to two pages more than the window: its own page, and the one that is matched
        for a draft.
        """
        prompt, salt = request.prompt_token_ids, _salt_of(request)
        held, window = held_of(of_salt(nodes, salt), prompt, start), self._setup.window
        if not window:
            return held
        own = TreeNode(tuple(prompt[:start]), (0,) * min(start, window - 1))
        return held_in_window([*of_salt(windows, salt), own], prompt, held, window + 2 * max(self._setup.pages))

    # ---- the state

    @property
    def is_idle(self) -> bool:
        return self._booted.is_idle

    def load(self) -> Load:
        scheduler, page = self._booted.scheduler, self._setup.page_size
        running = list(scheduler.running)
        has = [self._room_of(request) for request in running]
        claims = [request.num_computed_tokens for request in running]
        return Load(
            waiting=tuple((one.request_id, self._longest(one)) for one in scheduler.waiting if not _is_loading(one)),
            running=sum(max(0, self._longest(request) - slots) for request, slots in zip(running, has, strict=True)),
            free=self._pool.get_num_free_blocks() * page,
            free_rows=self._setup.rows - len(running),
            lengths=tuple((r.request_id, claim, slots) for r, claim, slots in zip(running, claims, has, strict=True)),
            row_width=-(-scheduler.max_model_len // page) * page,
            chunked=any(claim < r.num_prompt_tokens for r, claim in zip(running, claims, strict=True)),
            windows=tuple(map(self._in_windows, running)) if self._setup.window else (),
        )

    def _in_windows(self, request: Any) -> int:
        """Slots of its layers with a sliding window; behind that are null blocks."""
        _full, windows = self._booted.blocks(request.request_id)
        return sum(block != NULL_BLOCK for block in windows) * self._setup.pages[WINDOW_GROUP]

    def _longest(self, request: Any) -> int:
        return min(int(request.num_prompt_tokens + request.max_tokens), self._booted.context)

    @property
    def _pool(self) -> Any:
        return self._booted.scheduler.kv_cache_manager.block_pool

    def _room_of(self, request: Any) -> int:
        """Positions for which it has slots of each group of layers."""
        groups = zip(self._booted.blocks(request.request_id), self._setup.pages, strict=True)
        return min(len(blocks) * page for blocks, page in groups)

    def requests(self) -> Iterator[RequestState]:
        refused = {sent.request_id for _at, sent in self._booted.sent if str(sent.finish_reason).lower() == REFUSED}
        for rid, request in self._booted.requests.items():
            if rid in refused:  # it took none of it
                continue
            reason = _reason(request.get_finished_reason())
            prompt, outputs = tuple(request.prompt_token_ids), tuple(request.output_token_ids)
            # What has ended has no blocks, and so claims none.
            yield RequestState(rid, prompt, outputs, reason, committed=0, allocated=0, row=-1, drafts=0)

    def answers(self) -> Iterator[Answer]:
        sent = self._booted.sent
        for iteration, output in sent[self._taken :]:
            rid = output.request_id
            if iteration <= self._aborted.get(rid, iteration):
                self._outputs.setdefault(rid, []).append(output)
                self._answers.pop(rid, None)
        self._taken = len(sent)
        for rid in self._booted.requests:
            if rid not in self._answers:
                self._answers[rid] = self._answer(rid)
            yield self._answers[rid]

    def _answer(self, rid: str) -> Answer:
        outputs = self._outputs.get(rid, [])
        tokens = tuple(token for output in outputs for token in output.new_token_ids)
        parts = [Part(len(output.new_token_ids), -1, output.finish_reason is not None) for output in outputs]
        reason = _reason(outputs[-1].finish_reason) if outputs else ""
        if not reason and rid in self._aborted:  # who sends the abort says so, at once
            reason = "abort"
            parts.append(Part(0, -1, True))
        matched = {"stop": outputs[-1].stop_reason if outputs else None, "length": len(tokens)}.get(reason)
        return Answer(rid, tokens, reason, matched=matched, parts=tuple(parts))

    def pools(self) -> Pools:
        """A block that nobody uses is free, and in the prefix cache until it is used again."""
        page, setup = self._setup.page_size, self._setup
        free = self._pool.free_block_queue.get_all_free_blocks()
        cached = [block for block in free if block.block_hash is not None]
        empty = [block for block in free if block.block_hash is None]
        pools = Pools(
            setup.slots,
            len(empty) * page,
            len(cached) * page,
            setup.rows,
            setup.rows - len(self._booted.scheduler.running),
            free_slots=[slot for block in empty for slot in slots_in(block.block_id, page)],
        )
        pools.nodes, pools.window_nodes = self._nodes()
        pools.writers = self._booted.model.kv.writers
        if self._booted.publishes:
            pools.blocks = self._cached_blocks()
            pools.unpublished = tuple(map(event_of, self._pool.kv_event_queue))
        return pools

    def _cached_blocks(self) -> list[CachedBlock]:
        """Those of the prefix cache, whose tokens are those of the requests that had them."""
        page, ahead = self._setup.page_size, int(vars(self._booted.config).get("num_hash_lookahead_tokens", 0))
        found: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for request in self._booted.requests.values():
            tokens = tuple(request.all_token_ids)
            for end, block_hash in enumerate(request.block_hashes, 1):
                found[name_of(block_hash)] = tokens[: end * page], tokens[end * page : end * page + ahead]
        return [CachedBlock(block, *found[block.hash]) for block in cached(self._pool) if block.hash in found]

    def _nodes(self) -> tuple[list[TreeNode], list[TreeNode]]:
        """The blocks in the prefix cache that nobody uses, of all layers but those with a window, and of these."""
        known, pages = self._tokens_by_hash(), self._setup.pages
        found: tuple[list[TreeNode], list[TreeNode]] = [], []
        for block in self._pool.free_block_queue.get_all_free_blocks():
            if block.block_hash in known:
                group, tokens, salt = known[block.block_hash]
                found[group].append(TreeNode(tokens, tuple(slots_in(block.block_id, pages[group])), salt))
        return found

    def _tokens_by_hash(self) -> dict[Any, tuple[int, tuple[int, ...], str]]:
        """By the hash of each block that any request had its group of layers, the tokens up to its end, and the
        request's salt.
        """
        hashed, found = self._setup.page_size, {}
        hashing = release_module("core.kv_cache_utils")
        of_group = hashing.make_block_hash_with_group_id
        for request in self._booted.requests.values():
            tokens = tuple(request.all_token_ids)
            for group, page in enumerate(self._setup.pages):
                hashes = request.block_hashes
                if page != hashed:
                    hashes = hashing.BlockHashListWithBlockSize(hashes, hashed, page)
                for number, block_hash in enumerate(hashes, 1):
                    found[of_group(block_hash, group)] = group, tokens[: number * page], _salt_of(request)
        return found

    def traceback_of(self, error: BaseException) -> list[tuple[str, str]]:
        return self._release.traceback_of(error)

    def functions_of(self, codes: Iterable[CodeType]) -> tuple[Function, ...]:
        return self._release.functions_of(codes)


def _salt_of(request: Any) -> str:
    return request.cache_salt or ""


def _is_loading(request: Any) -> bool:
    return bool(request.status.name == "WAITING_FOR_REMOTE_KVS")


def _reason(reason: Any) -> str:
    """Why a request ended: "stop", "length", "abort", also where it was refused, or "" while it runs."""
    return "" if reason is None else str(reason).lower().replace(REFUSED, "abort")
