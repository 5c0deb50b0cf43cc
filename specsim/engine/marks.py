"""Marks: which interleavings and features a run reached, and so the share of schedules that reach each.

The engine notes a mark where the interleaving happens; a set of short strings is all that it costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from specsim.engine.config import EngineConfig
from specsim.engine.launch import Launch, LaunchRow
from specsim.engine.lifecycle import State
from specsim.engine.model import EOS, STOP
from specsim.engine.request import Request
from specsim.engine.stop_strings import stop_string_end

# In flight: launched, and not resolved.
INTERLEAVINGS: dict[str, str] = {
    "stale_result_of_finished": "the result of a launch comes when its request has finished",
    "stale_result_of_retracted": "the result of a decode step comes when its request was retracted",
    "readmitted_at_once": "a retracted request is admitted again in the iteration after its retraction",
    "aborted_in_flight": "a request is aborted between a launch of it and the result",
    "aborted_after_retraction": "a retracted request is aborted while it waits",
    "dropped_in_flight": "not even the last request fits, and it is dropped with a step of it in flight",
    "finished_at_prefill": "a request finishes at its prefill's result with its first decode step in flight",
    "live_result_without_successor": "a decode result is resolved and no later step of its live request is in flight",
    "slots_reused_in_flight": "a launch gets slots that a launch in flight still writes",
    "row_reused_in_flight": "a launch gets a row that a launch in flight still reads",
    "row_remapped_in_flight": "entries of a request's row are replaced by the tree's while a step of it is in flight",
    "tree_took_unwritten_position": "the tree takes a position whose KV a launch in flight is to write",
    "finished_before_prepared_launch": "a request finishes between the preparation of a step of it and the launch",
    "batch_lost_and_gained": "a batch loses finished requests and gains prefilled ones at once",
    "stride_changed": "a result is resolved whose stride is not that of the launch after it",
    "mask_before_result": "the mask of a step needs a result that the host has not taken: the device reads it first",
    "retracted_by_pause": "a pause retracts requests when no result is left",
    "session_turn_interrupted": "a session's turn is aborted or retracted with memory of its session in its hands",
    "prefill_result_of_retracted": "a prefill's result comes when its request was retracted",
}
# Steps in the life of a request or an engine.
LIFE: dict[str, str] = {
    "finish: EOS": "the model says EOS",
    "finish: stop token": "the model says a stop token",
    "finish: stop string": "what was said contains a stop string",
    "finish: length cap": "the answer has max_new_tokens",
    "finish: context limit": "the answer of a request without a limit fills the context",
    "finish: grammar end": "the grammar has ended",
    "finish: abort": "a running request finishes by an abort",
    "abort: waiting": "a request is aborted before it was admitted",
    "abort: chunked": "a request is aborted between parts of its prefill",
    "abort: running": "a request is aborted when no launch of it is in flight",
    "abort: in flight": "a request is aborted when a launch of it is in flight",
    "abort: retracted": "a request is aborted that waits to be admitted again",
    "abort of a chunk": "a request that was aborted between parts of its prefill is dropped when the next one is due",
    "timeout": "a request is aborted by the clock, between receiving and scheduling",
    "retract: pressure": "a request is retracted because the next decode step does not fit",
    "retract: on demand": "a request is retracted although the next decode step fits",
    "retract: pause": "a request is retracted by a pause",
    "retract: chunk": "a request is retracted between parts of its prefill",
    "retract: last request": "not even one request fits, and it is dropped",
    "readmission": "a retracted request is admitted again",
    "pause": "the engine pauses",
    "resume": "the engine goes on after a pause of some iterations",
    "chunked": "a prefill is launched in parts",
    "mixed chunk": "a launch has a part of a prefill and decode rows",
    "prefix hit": "a request reuses what the radix cache has",
    "session resumed": "a turn reuses what its session has",
    "window slots given back": "a launch has positions that the window has passed",
    "idle batch": "a rank without a request launches a batch of zero",
}
# Features each of which meets each other in some schedules.
CROSSED = (
    "sliding window",
    "session resumed",
    "retract",
    "mixed chunk",
    "abort",
    "large pages",
    "tree",
    "synchronous",
)
# The other marks: options that are on, and what several steps of a life have in common.
OPTIONS = (
    "overlap",
    "synchronous",
    "chain",
    "tree",
    "pages",
    *(f"pages of {size}" for size in (2, 4, 16, 64, 256)),
    "large pages",
    "radix cache",
    "bigram keys",
    "sliding window",
    "adaptive",
    "late results",
    "tight pool",
    "streams",
    "abort",
    "retract",
)

MARKS = (*INTERLEAVINGS, *LIFE, *OPTIONS)
"""All of them, pairs apart."""


def features_of(config: EngineConfig) -> set[str]:
    """The options of a configuration that are on, as marks."""
    marks = {"overlap" if config.overlap else "synchronous", "tree" if config.topk > 1 else "chain"}
    if config.page_size > 1:
        marks |= {"pages", f"pages of {config.page_size}"}
    if config.page_size >= 64:
        marks.add("large pages")
    if config.radix:
        marks.add("bigram keys" if config.bigram else "radix cache")
    if config.window:
        marks.add("sliding window")
    for name in ("adaptive", "late_results", "tight_pool", "streams"):
        if getattr(config, name):
            marks.add(name.replace("_", " "))
    return marks


def finish_mark(request: Request, visible: int | None) -> str:
    """Why a request has finished whose first `visible` outputs are the client's, None after an abort."""
    turn = request.turn
    if visible is None or not visible:
        return "finish: abort"
    last = request.outputs[visible - 1]
    if last == STOP:
        return "finish: stop token"
    if last == EOS and not turn.ignore_eos:
        return "finish: EOS"
    if request.matcher is not None and request.matcher.end == visible:
        return "finish: grammar end"
    if turn.stop and stop_string_end(request.outputs[:visible], 1, turn.stop):
        return "finish: stop string"
    return "finish: context limit" if turn.open_ended else "finish: length cap"


def abort_marks(request: Request) -> set[str]:
    """When a request is aborted."""
    if request.state is State.WAITING:
        return (
            {"abort", "aborted_after_retraction", "abort: retracted"}
            if request.incarnation
            else {"abort", "abort: waiting"}
        )
    marks = {"abort", "session_turn_interrupted"} if request.turn.session else {"abort"}
    if request.pending or request.state is State.PREFILLING:
        return marks | {"aborted_in_flight", "abort: in flight"}
    return marks | {"abort: chunked" if request.state is State.CHUNKED else "abort: running"}


def retract_marks(request: Request, why: str) -> set[str]:
    """How a request is retracted."""
    marks = {"retract", f"retract: {why}"} | ({"session_turn_interrupted"} if request.turn.session else set())
    if request.state is State.CHUNKED:
        marks.add("retract: chunk")
    return marks


def reused_memory(unresolved: Iterable[Launch], rows: list[LaunchRow]) -> set[str]:
    """What of a launch's memory belonged to a launch that still runs, as marks."""
    marks = set()
    for launch in unresolved:
        for old in () if launch.done else [row for part in launch.parts for row in part.rows]:
            request = old.request
            if request.key == old.key and request.state not in (State.FINISHED, State.WAITING):
                continue
            for new in rows:
                if new.key == old.key:
                    continue
                if new.row == old.row:
                    marks.add("row_reused_in_flight")
                if not set(old.slots).isdisjoint(new.slots):
                    marks.add("slots_reused_in_flight")
    return marks


def note(counts: Counter[str], marks: Iterable[str]) -> None:
    """Count one run: each mark, and each pair of marks of which one at most is an interleaving, as "a & b"."""
    ordered = sorted(marks)
    counts.update(ordered)
    for one, two in combinations(ordered, 2):
        if not (one in INTERLEAVINGS and two in INTERLEAVINGS):
            counts[f"{one} & {two}"] += 1
