"""SGLang's scheduler as the scheduler tier drives it: imported once, started for each setup, run in forks of that."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import traceback
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import pairwise
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from specsim.choices.chooser import replayed
from specsim.engines.importable import imported
from specsim.engines.packages import package_of
from specsim.engines.sglang.guards import Guards, read_guards
from specsim.engines.sglang.scheduler import decoding, release_worker, worker
from specsim.engines.sglang.scheduler.boot import Booted, load
from specsim.engines.sglang.scheduler.configuration import CONTEXT_LENGTH
from specsim.engines.sglang.scheduler.families import WINDOW, host_slots_in, root_of, slots_in, window_slots_in
from specsim.engines.sglang.scheduler.grammar import WRONG
from specsim.engines.sglang.scheduler.kv_events import cached, events_of, makes_events, units_of
from specsim.engines.sglang.scheduler.modules import MARKER, PACKAGE, below
from specsim.engines.sglang.scheduler.options import Options
from specsim.engines.sglang.scheduler.outputs import unknown_fields
from specsim.engines.sglang.scheduler.setups import BY_STEPS, FACTS, SETUPS, reach_of
from specsim.engines.sglang.scheduler.tokenizer import text_of, tokens_of
from specsim.engines.sglang.scheduler.worker import Worker, lengths_of, starts_of, unwritten
from specsim.engines.sglang.where import ATTENTION, OF_SCHEDULER, OF_SCHEDULES, RUST_TREE, SCHEDULER
from specsim.errors import UsageError, described
from specsim.interpreter.lockstep.errors import UnsupportedError
from specsim.isolation.phases import running
from specsim.lifting.changes import Function
from specsim.lifting.source import DirectorySource
from specsim.verdict import NotRun
from specsim.world.blame import Blame
from specsim.world.fakes import AdapterDriftError, NotRunError
from specsim.world.hash_model import decoded, extended, logprob_row, prefix_of
from specsim.world.kv import BeyondRow, DraftsCounted
from specsim.world.release import ReleaseFiles
from specsim.world.scheduler import (
    BEHIND,
    END,
    HIDDEN,
    IN_PYTHON,
    IN_RUST,
    NO_GRAMMAR,
    NO_SESSION,
    Answer,
    Chunk,
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
    first_difference,
)
from specsim.world.workload import SALTS

if TYPE_CHECKING:
    from fractions import Fraction
    from types import CodeType

    from specsim.choices.chooser import Chooser
    from specsim.contracts.enumeration import Distribution
    from specsim.engines.target import Checkout, Release
    from specsim.lifting.cache import Cache
    from specsim.lifting.probes import Span
    from specsim.vdevice.recording import Recording
    from specsim.world.kv_events import Event
    from specsim.world.packages import Edit

_OF_ANY_WORKER = (
    (
        "schedules in which a batch waits for no more than the reads of the one before",
        "a worker here does not say when it has read its tables, so that a batch waits for all that it does",
    ),
    ("a hierarchical cache with storage or a sliding window", "what is copied here is KV of full attention"),
    ("schedules with several ranks or disaggregation", "one process runs, without sockets"),
)
LACKS = (
    ("schedules with logprobs of prompts or hidden states", "the fake model computes no logits"),
    ("schedules with topk above 1, multi-layer drafts or adaptive steps", "the fake worker drafts a chain"),
    *_OF_ANY_WORKER,
)
LACKS_OF_RELEASE_WORKERS = (
    ("schedules with a sliding window of a draft model", "the draft model has full attention here"),
    ("the corpus of n-grams", "it is in C++, and in its place is one that draws drafts"),
    ("multi-layer drafts that pass hidden states on from step to step", "each step here is given the target's"),
    *_OF_ANY_WORKER,
)
_LOOP = ("event_loop_overlap", "run_event_loop")
COVERED = tuple(f"{folder}/" for folder in OF_SCHEDULES)
"""Folders of which schedules note what runs."""
SAMPLING = {
    "cold": {"temperature": 0.001},
    "top-p": {"temperature": 1.0, "top_p": 0.001},
    "top-k and top-p": {"temperature": 1.0, "top_k": 3, "top_p": 0.001},
}
"""Parameters with which a release samples, of what is the most likely token alone."""
OUTSIDE = 2
"""Tokens of a context that no request gets: its prompt and its answer may have as many as a context less two
(scheduler.py, `init_req_max_new_tokens`).
"""
COINS = 1 << 16
"""Of each kind; the fake model has no logits that it could change."""
MODELS = frozenset(str(module.__file__) for module in (worker, release_worker))
"""Files in which a model reads and writes: ours."""
T = TypeVar("T")
BLAME = Blame(
    models=MODELS,
    result=Worker._result.__qualname__,
    made_by=unwritten.__name__,
    # Of what a pass of a model reads: a plan, also of the slots of a sliding window, wherever they are looked up.
    parties={f"{MARKER}{ATTENTION}/": "the-plan", "translate_loc_from_full_to_swa": "the-plan"},
    below=below,
)


def sglang_scheduler(
    target: Release | Checkout, cache: Cache, edit: Edit | None, root: Path | None, files: Collection[str]
) -> SglangScheduler | NotRun:
    """The scheduler of a target, see `imported`, whose source `edit` changes on the way in; of `files` schedules note
    which statements run, besides those of the scheduler.
    """
    return imported(target, cache, root, (*COVERED, *files), lambda release: SglangScheduler(release, edit))


class SglangScheduler:
    """See `specsim.world.scheduler.SchedulerTarget`. The virtual device stays installed in this process."""

    def __init__(self, release: ReleaseFiles, edit: Edit | None = None) -> None:
        from specsim.vdevice import simulate

        torch.set_num_threads(1)  # a fork of a process that computed with several threads waits for them for ever
        self._release = release
        self.where, self.source_hash = _identity(release.root)
        self._open = ExitStack()
        device = simulate(replayed(()), sites=lambda file: file in MODELS or bool(release.below(file)))
        with running():
            self._device = self._open.enter_context(device)
            self._family, self._surroundings = load(release.root, edit, release.probes)

    def lacks(self, worker: str) -> tuple[tuple[str, str], ...]:
        drift = tuple((f"the field {name} of an answer", "drift: nothing here knows it") for name in self._drifted())
        why = self._why_not_rust()
        no_tree = ((IN_RUST, why),) if why else ()
        return (LACKS if worker == "fake" else LACKS_OF_RELEASE_WORKERS) + drift + no_tree

    @property
    def setups(self) -> tuple[Setup, ...]:
        return SETUPS

    starts_anew = False

    @property
    def has_rust_tree(self) -> bool:
        return self._rust_tree.is_dir() and not self._why_not_rust()

    @property
    def _rust_tree(self) -> Path:
        return Path(self._release.folder, RUST_TREE)

    def _why_not_rust(self) -> str:
        """Why this Python cannot load the release's radix tree in Rust; "" where it can, or there is none."""
        files = sorted(file.name for file in self._rust_tree.glob("*.so"))
        if not self._rust_tree.is_dir() or any(f".{name.partition('.')[2]}" in EXTENSION_SUFFIXES for name in files):
            return ""
        version = f"CPython {sys.version_info.major}.{sys.version_info.minor}"
        return f"its file {', '.join(files)} is not for {version}" if files else f"it is not built in {RUST_TREE}"

    def _drifted(self) -> list[str]:
        """The fields of an answer that are not known; none of a release that has its answers elsewhere."""
        try:
            return unknown_fields(self._family.messages().BatchTokenIDOutput)
        except (ImportError, AttributeError):
            return []

    @functools.cached_property
    def _guards(self) -> Guards:
        return read_guards(DirectorySource(self._release.root, package_of(PACKAGE)))

    def reach(self, setup: Setup) -> str:
        return reach_of(setup, self._guards)

    def start(self, setup: Setup) -> Started:
        if setup.sessions and not setup.beyond_guards and (guard := self._guards.session_overlap):
            raise UsageError(f"{guard} refuses streaming sessions beside its overlap workers", "use another setup")
        if setup.rust_tree and not self.has_rust_tree:
            why = self._why_not_rust() or "the release has none"
            raise UsageError(f"the {IN_RUST} cannot be taken: {why}", "use another setup")
        with self._placed():
            started = Started(self._booted(setup), setup, self._device, self._release)
            if setup.rust_tree and started.tree != IN_RUST:
                raise UsageError(f"it takes no {IN_RUST} where it is told to", "use another setup")
            self._release.probes.started()
        return started

    def statements(self, file: str) -> tuple[Span, ...]:
        return self._release.statements(file)

    @property
    def imported(self) -> tuple[str, ...]:
        return self._release.imported

    def outcomes(self, setup: Setup, length: int) -> tuple[Distribution, Iterator[tuple[tuple[int, ...], Fraction]]]:
        from specsim.engines.sglang.scheduler import exact

        with self._placed():
            booted = self._booted(setup)
        return exact.expected(length), self._run(exact.outcomes(booted, length))

    def _run(self, outcomes: Iterator[T]) -> Iterator[T]:
        with self._placed(), running():
            yield from outcomes

    def _booted(self, setup: Setup) -> Booted:
        with running(), self._family.answers.required():
            return Booted(self._family, self._release.root, _options(setup), self._device, self._surroundings)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Add to what is raised through a line of the release where that is."""
        try:
            yield
        except Exception as error:
            error.add_note(self._release.raised_at(error).removeprefix(", "))
            raise


def _lacked(error: Exception) -> str:
    """What of the release a line of this adapter has read that is not there, as CLASS.NAME; "" where that is not it."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    if not isinstance(error, AttributeError) or Path(frame.f_code.co_filename).parent != Path(__file__).parent:
        return ""
    owners = type(error.obj).__mro__  # the first is this adapter's own, for the scheduler
    owner = next((cls.__name__ for cls in owners if cls.__module__.startswith(f"{PACKAGE}.")), "")
    return f"{owner}.{error.name}" if owner else ""


def _options(setup: Setup) -> Options:
    return Options(
        page_size=setup.page_size,
        max_total_tokens=setup.slots,
        max_running_requests=setup.rows,
        chunked_prefill_size=setup.chunk,
        num_draft_tokens=setup.draft_tokens,
        sliding_window=setup.window,
        schedule_conservativeness=setup.reserve,
        radix_cache=setup.radix,
        streaming_sessions=setup.sessions,
        priority_scheduling=setup.priorities,
        overlap=setup.overlap,
        mixed_chunk=setup.mixed,
        worker=setup.worker,
        topk=setup.topk,
        beyond_guards=setup.beyond_guards,
        cuda_graphs=setup.graphs,
        num_steps=setup.steps if setup.topk > 1 else 0,
        drafter=setup.drafter,
        multi_layer=setup.multi_layer,
        rust_tree=setup.rust_tree,
        adaptive=setup.adaptive,
        hidden_states=setup.hidden_states,
        kv_events=setup.kv_events,
        hicache=setup.hicache,
        window_lag=setup.window_lag,
        context_length=setup.context + OUTSIDE if setup.context else CONTEXT_LENGTH,
    )


def _identity(root: Path) -> tuple[str, str]:
    """FILE:LINE of the loop, and a hash of the modules around it."""
    package = root / PACKAGE
    digest = hashlib.sha256()
    for folder in OF_SCHEDULER:
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    path = package / SCHEDULER
    text = path.read_text(encoding="utf-8").splitlines()
    heads = [f"    def {name}(" for name in _LOOP]
    line = next((number for head in heads for number, one in enumerate(text, 1) if one.startswith(head)), 1)
    return f"{SCHEDULER}:{line}", digest.hexdigest()[:16]


class Started:
    """See `specsim.world.scheduler.StartedScheduler`."""

    def __init__(self, booted: Booted, setup: Setup, device: Any, release: ReleaseFiles) -> None:
        self._booted, self._setup, self._device, self._release = booted, setup, device, release
        self._seen = Seen()
        self._records = False
        self._counts: list[tuple[int, int]] = []  # of records and findings, at the start of each iteration
        self._recording: Recording | None = None
        self._unpublished: list[Event] = []
        facts = FACTS if booted.family.evicts_by_tokens else BY_STEPS
        self.facts = facts if booted.family.knows_last_hidden_state else replace(facts, hidden=HIDDEN[:1])

    def decode(self, prompt: Sequence[int], count: int, rank: int = 0) -> list[int]:
        return decoded(prompt, count, rank)

    def expected(self, turn: Turn, prompt: Sequence[int], said: Sequence[int] = ()) -> list[int]:
        count = len(turn.grammar) or turn.answer
        wanted = _wanted(turn)
        if self._setup.worker == "fake" or wanted == decoding.Wanted():
            return decoded(prompt, count)
        return decoding.decoded(prompt, count, wanted, tuple(said))

    def logprobs(self, turn: Turn, prompt: Sequence[int], tokens: Sequence[int]) -> list[LogprobRow]:
        if self._setup.worker == "release":
            return decoding.logprobs(prompt, tokens, _wanted(turn), turn.logprobs)
        rows, prefix = [], prefix_of(prompt)
        for token in tokens:
            rows.append(logprob_row(prefix, token, turn.logprobs))
            prefix = extended(prefix, token)
        return rows

    def content_of(self, tokens: Sequence[int]) -> int:
        return prefix_of(tokens)

    def slot_content(self, slot: int) -> int:
        return self._booted.worker.slot_content(slot)

    def window_content(self, slot: int) -> int:
        return self._booted.worker.window_content(slot)

    # ---- messages

    def generate(self, turn: Turn) -> Any:
        stops = [turn.stop] if turn.stop >= 0 else []
        stops += turn.grammar[-1:]  # no backend ends a grammar by another token than one that ends the answer, too
        sampling: dict[str, Any] = {"stop_token_ids": stops, "ignore_eos": False} if stops else {}
        if turn.stop_text:
            stop = text_of(turn.stop_text)
            sampling["stop"] = [stop] if len(stop) == 2 else stop  # either is the API's
        if turn.grammar or turn.refused == NO_GRAMMAR:
            sampling["regex"] = text_of(turn.grammar) + (WRONG if turn.refused == NO_GRAMMAR else "")
            self._booted.family.grammars.wait[sampling["regex"]] = turn.compiling
        if turn.penalty:
            sampling[turn.penalty] = float(decoding.PENALTY)
        if turn.bias:
            sampling["logit_bias"] = {str(token): float(decoding.BIAS) for token in decoding.biased(turn.bias)}
        if turn.sampling:
            sampling |= SAMPLING[turn.sampling]
        wishes = {name: getattr(turn, name) for name in ("session", "logprobs", "prompt_logprobs", "hidden", "stream")}
        if turn.refused == BEHIND:
            wishes["prompt_logprobs"] = len(turn.prompt) + 1
        elif turn.refused == NO_SESSION:
            wishes["session"] = f"none of {turn.rid}"
        message = self._booted.generate(turn.rid, turn.prompt, turn.answer, **wishes, **sampling)
        if self._setup.priorities:
            message.priority = turn.priority
        if turn.salt:
            # Either field keeps what requests share apart; to 0.5.17 there is one alone.
            is_newer = turn.salt == SALTS[-1] and hasattr(message, "cache_salt")
            setattr(message, "cache_salt" if is_newer else "extra_key", turn.salt)
        return message

    def abort(self, rid: str) -> Any:
        return self._booted.abort(rid)

    def abort_all(self) -> Any:
        return self._booted.abort()

    def flush(self) -> Any:
        return self._booted.flush()

    def pause(self, pause: Pause) -> Any:
        return self._booted.pause("retract" if pause.retracts else "in_place")

    @property
    def has_paused(self) -> bool:
        return True

    def resume(self) -> Any:
        return self._booted.resume()

    def open_session(self, name: str, timeout: float) -> Any:
        return self._booted.open_session(name, timeout=timeout or None)

    def close_session(self, name: str) -> Any:
        return self._booted.close_session(name)

    def leap(self, seconds: float) -> None:
        self._booted.surroundings.sleep(seconds)

    # ---- the run

    def record(self) -> None:
        self._records = True

    def run(self, chooser: Chooser, script: Callable[[int], Sequence[Any] | None]) -> None:
        booted = self._booted
        self._counts.clear()
        self._release.probes.clear()  # of what the warm-up ran
        booted.surroundings.restart()
        booted.family.grammars.restart()
        booted.worker.restart(lambda _rid, bound: bound - chooser.choose(bound, "accept"))
        self._device.restart(chooser)
        if self._setup.sampled:
            torch.manual_seed(chooser.choose(COINS, "coins"))  # what the release draws by torch; in a fork
        try:
            with self._recorded():
                try:
                    self._log_launches()
                    self._log_counts()
                    booted.run(lambda _booted, iteration: self._marked(script, iteration))
                    torch.cuda.synchronize()
                except Exception as error:
                    # What the host read too early is known once the device has written it.
                    with suppress(Exception):
                        torch.cuda.synchronize()
                    if isinstance(error, UnsupportedError):
                        raise NotRunError(f"a kernel of the release cannot be run: {error}") from error
                    if lacks := _lacked(error):
                        raise AdapterDriftError([], [lacks]) from error
                    raise
                finally:
                    if self._recording is not None:
                        self._mark(self._recording, END)
        finally:
            self._note()

    def _marked(self, script: Callable[[int], Sequence[Any] | None], iteration: int) -> Sequence[Any] | None:
        self._counts.append((len(self._booted.worker.reports.records), len(self._device.findings)))
        if self._recording is not None:
            self._mark(self._recording, f"iteration {iteration}")
        return script(iteration)

    def _mark(self, recording: Recording, text: str, who: str = "") -> None:
        """Something begins: note it, and what the state is before it."""
        from specsim.engines.sglang.scheduler.states import sections

        is_settled = not any(stream.queue for stream in self._device.streams)
        if not self._seen.unreadable:
            try:
                self._seen.states.append(
                    sections(self._booted, _number, _reason, is_settled=is_settled, launching=who.split())
                )
            except Exception as error:  # of a release that keeps it otherwise: what it does is no finding
                self._seen.unreadable = described(error)
                self._seen.states.clear()
        recording.mark(text, who)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        if not self._records:
            yield
            return
        from specsim.vdevice.recording import recorded

        with recorded(self._device, lambda: len(self._booted.worker.reports.records)) as self._recording:
            yield

    def _log_launches(self) -> None:
        """Note each launch, and whose slots are more than a row has."""
        worker, launches = self._booted.scheduler.model_worker, self._seen.launches
        reports, width = self._booted.worker.reports, self._booted.req_to_token.shape[1]
        forward, begun = worker.forward_batch_generation, set[str]()

        def noted(batch: Any, *arguments: Any, **named: Any) -> Any:
            kind = "extend" if batch.forward_mode.is_extend() else "decode"
            rids = tuple(str(request.rid) for request in batch.reqs)
            chunks = self._chunks(batch, rids, begun) if kind == "extend" else ()
            begun.update(rids)
            launches.append(Launch(self._booted.iteration, kind, rids, chunks))
            for request in batch.reqs:
                if (allocated := _number(request, "kv_allocated_len")) > width:
                    claimed = _number(request, "kv_committed_len")
                    reports.add_first(request.rid, "row", BeyondRow(str(request.rid), claimed, allocated, width))
            if self._recording is not None:
                self._mark(self._recording, kind, " ".join(rids))
            return forward(batch, *arguments, **named)

        worker.forward_batch_generation = noted

    def _chunks(self, batch: Any, rids: Sequence[str], begun: set[str]) -> tuple[Chunk, ...]:
        """What an extend computes, where the requests in `begun` have begun before."""
        is_looked_up = self._setup.radix and not begun.issuperset(rids)
        root = root_of(self._booted.radix_tree) if is_looked_up else None
        held = [
            -1 if root is None or rid in begun else self._held(root, request)
            for rid, request in zip(rids, batch.reqs, strict=True)
        ]
        return tuple(map(Chunk, starts_of(batch), lengths_of(batch), held))

    def _held(self, root: Any, request: Any) -> int:
        """How much of a request's prompt the prefix cache has, in whole pages: with a sliding window up to where it has
        a window of what comes before, too, or all.
        """
        page, window, salt = self._setup.page_size, self._setup.window, _salt_of(request)
        prompt = list(request.origin_input_ids)
        held, length, behind = 0, 0, inf
        children = root.children.values()
        while children:
            same = ((_shared(node.key, prompt[length:]), node) for node in children if _salt_of(node.key) == salt)
            shared, node = max(same, key=itemgetter(0), default=(0, root))
            whole = shared // page * page
            if not whole or slots_in(node) is None:
                break
            length += whole
            behind = 0 if window and window_slots_in(node) is None else behind + whole
            held = length if behind >= window else held
            children = node.children.values() if whole == len(node.key) else ()
        return held

    def _log_counts(self) -> None:
        """Note what is added to the counter of correct drafts."""
        scheduler, reports = self._booted.scheduler, self._booted.worker.reports
        counter = getattr(scheduler, "metrics_reporter", scheduler)
        count = counter.update_spec_metrics
        called = inspect.signature(count)

        def noted(*arguments: Any, **named: Any) -> None:
            _requests, drafts, *_ = called.bind(*arguments, **named).args
            reports.add(DraftsCounted(int(drafts)))
            count(*arguments, **named)

        counter.update_spec_metrics = noted

    def _note(self) -> None:
        """What the model and the device saw."""
        by_records, by_findings = zip(*self._counts, strict=True) if self._counts else ((), ())
        recording, seen = self._recording, self._seen
        for number, record in enumerate(self._booted.worker.reports.records):
            at = recording.shown.get(number) if recording is not None else None
            seen.noted.append(Noted(record, bisect_right(by_records, number) - 1, () if at is None else (at,)))
        for number, finding in enumerate(self._device.findings):
            pair = recording.pairs.get(number, ()) if recording is not None else ()
            seen.noted.append(Noted(BLAME.record(finding), bisect_right(by_findings, number) - 1, pair))
        seen.ran.update(self._release.probes.lines())
        if recording is not None:
            seen.steps += [Step(**{**step._asdict(), "where": BLAME.where(step.where)}) for step in recording.steps]

    @property
    def is_idle(self) -> bool:
        return self._booted.idle()

    def load(self) -> Load:
        booted = self._booted
        scheduler, window = booted.scheduler, self._setup.window
        running = [r for r in booted.running() if not r.finished()]
        lengths = [(str(r.rid), _number(r, "kv_committed_len"), _number(r, "kv_allocated_len")) for r in running]
        return Load(
            waiting=tuple((str(request.rid), _longest(request)) for request in scheduler.waiting_queue),
            running=sum(max(0, _longest(r) - length[2]) for r, length in zip(running, lengths, strict=True)),
            free=-1 if window else booted.allocator.available_size() + booted.tree_cache.evictable_size(),
            free_rows=len(booted.row_pool.free_slots),
            lengths=tuple(lengths),
            row_width=booted.req_to_token.shape[1],
            chunked=scheduler.chunked_req is not None,
            windows=tuple(_own_window(r, length[2]) for r, length in zip(running, lengths, strict=True) if window),
        )

    @property
    def seen(self) -> Seen:
        return self._seen

    def traceback_of(self, error: BaseException) -> list[tuple[str, str]]:
        return self._release.traceback_of(error)

    @property
    def tree(self) -> str:
        cache = self._booted.tree_cache
        core = getattr(getattr(cache, "inner", cache), "tree_core", None)
        if core is None or not Path(self._release.folder, RUST_TREE).is_dir():
            return ""
        return IN_RUST if type(core).__module__.startswith(f"{PACKAGE}.{RUST_TREE.replace('/', '.')}.") else IN_PYTHON

    def functions_of(self, codes: Iterable[CodeType]) -> tuple[Function, ...]:
        return self._release.functions_of(codes)

    # ---- the state at rest

    def requests(self) -> Iterator[RequestState]:
        for rid, request in self._booted.requests.items():
            yield RequestState(
                rid=str(rid),
                prompt=self._booted.prompts[rid],
                outputs=tuple(request.output_ids),
                reason=_reason(request.finished_reason),
                committed=_number(request, "kv_committed_len"),
                allocated=_number(request, "kv_allocated_len"),
                row=_number(request, "req_pool_idx"),
                drafts=_drafts(request),
            )

    def answers(self) -> Iterator[Answer]:
        for output in self._booted.outputs().values():
            yield Answer(
                output.rid,
                output.token_ids,
                str((output.finish_reason or {}).get("type", "")),
                output.prompt_tokens,
                output.completion_tokens,
                output.logprobs,
                output.cached_tokens,
                output.verify_count,
                _matched(output.finish_reason or {}),
                output.parts,
                output.decode_ids if output.decode_ids else None,
                output.correct_drafts,
                output.runs,
                output.hidden,
                output.prompt_logprobs,
                output.retractions,
                output.cached_by_tier,
            )

    def pools(self) -> Pools:
        booted, setup = self._booted, self._setup
        sizes = {pool.name: pool for pool in booted.pools()}
        full, rows, window = sizes["full"], sizes["rows"], sizes.get("window")
        pools = Pools(full.size, full.free, full.cached, rows.size, rows.free)
        if window is not None:
            pools.window_total, pools.window_free, pools.window_cached = window.size, window.free, window.cached
        elif setup.page_size == 1:
            pools.free_slots = booted.allocator.free_pages.tolist()
        pools.nodes = _nodes(booted.radix_tree) if setup.radix else []
        if (host := booted.host_pool) is not None:
            pools.host_total, pools.host_free = host.size, host.available_size()
            pools.host_nodes = _nodes(booted.radix_tree, host_slots_in)
            keys = host.k_buffer[0].host_bytes.reshape(-1).tolist()
            pools.host_contents = {slot: keys[slot] for node in pools.host_nodes or () for slot in node.slots}
        if pools.nodes is not None and window is not None:
            pools.window_nodes = list(_in_window(pools.nodes, booted.window_slots()))
        pools.free_row_numbers = list(booted.row_pool.free_slots)
        if isinstance(booted.worker, Worker):
            pools.writers, pools.row_users = booted.worker.kv.writers, booted.worker.row_users
        if setup.kv_events and makes_events(booted.radix_tree):
            self._unpublished += events_of(booted.tree_cache.take_events())
            pools.blocks, pools.unpublished = cached(booted.radix_tree), tuple(self._unpublished)
        return pools


def _salt_of(named: Any) -> str:
    """Of a request, or a key of a radix tree."""
    return getattr(named, "cache_salt", None) or getattr(named, "extra_key", None) or ""


def _wanted(turn: Turn) -> decoding.Wanted:
    return decoding.Wanted(turn.penalty, turn.bias, turn.grammar)


def _longest(request: Any) -> int:
    return len(request.origin_input_ids) + int(request.sampling_params.max_new_tokens)


def _drafts(request: Any) -> int:
    """The correct drafts that a release counts for a request, by whichever name. DriftError where it has none."""
    names = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens")
    name = next((name for name in names if hasattr(request, name)), "")
    if not name:
        raise AdapterDriftError([], [f"Req.{names[0]}"])
    return int(getattr(request, name))


def _number(request: Any, name: str) -> int:
    """A number that a request has, or in newer releases the object of its memory; -1 where that is none. DriftError
    where neither has it.
    """
    memory = getattr(request, "kv", request)
    owner = request if hasattr(request, name) else memory
    if owner is not None and not hasattr(owner, name):
        raise AdapterDriftError([], [f"{type(owner).__name__}.{name}"])
    found = getattr(owner, name, None)
    return -1 if found is None else int(found)


def _own_window(request: Any, allocated: int) -> int:
    """How many slots of the sliding window's pool a request has beside those of the prefix cache."""
    memory = getattr(request, "kv", None)
    by_component = getattr(memory, "get_evicted_seqlen", None)
    evicted = by_component(WINDOW) if by_component else _number(request, "swa_evicted_seqlen")
    return allocated - max(evicted, _number(request, "cache_protected_len"))


def _reason(reason: Any) -> str:
    """Why a request ended: "stop", "length", "abort", or "" while it runs."""
    if reason is None:
        return ""
    kind = reason.get("type") if isinstance(reason, dict) else reason.to_json().get("type")
    return str(kind)


def _matched(reason: Mapping[str, Any]) -> Matched:
    """What a finish reason says ended the answer; a text as the tokens that it is of."""
    matched = reason.get("matched", reason.get("length"))
    return tokens_of(matched) if isinstance(matched, str) else matched


def _shared(key: Any, tokens: Sequence[int]) -> int:
    """How many of these tokens a key of a radix tree has, from the first on; of pairs the ones that begin so."""
    units = units_of(key)
    has_pairs = bool(units) and isinstance(units[0], tuple)
    asked: list[Any] = [*pairwise(tokens)] if has_pairs else [*tokens]
    return first_difference(units, asked)


def _in_window(nodes: Iterable[TreeNode], window_slots: Sequence[int]) -> Iterator[TreeNode]:
    """What these nodes hold of the sliding window's pool, slot by slot."""
    for node in nodes:
        for _place, slot, tokens in node.places():
            if window_slots[slot]:
                yield TreeNode(tokens, (window_slots[slot],), node.salt)


def _nodes(tree: Any, slots_of: Callable[[Any], Any] = slots_in) -> list[TreeNode] | None:
    """The nodes of a radix tree that hold slots of a pool; None where the release has another one."""
    root = root_of(tree)
    if root is None:
        return None
    found: list[TreeNode] = []
    stack: list[tuple[Any, tuple[int, ...]]] = [(child, ()) for child in root.children.values()]
    while stack:
        node, before = stack.pop()
        value = slots_of(node)
        count = max(len(held) for held in (slots_in(node), host_slots_in(node), ()) if held is not None)
        slots = () if value is None else tuple(int(slot) for slot in value.tolist())
        # Keys of EAGLE are pairs of tokens, or hold the token after the last slot too: a slot is of the first of each.
        own = tuple(token[0] if isinstance(token, tuple) else int(token) for token in node.key.token_ids)
        tokens = (*before, *own[:count])
        if slots:
            found.append(TreeNode(tokens, slots, _salt_of(node.key)))
        stack += [(child, tokens) for child in node.children.values()]
    return found
