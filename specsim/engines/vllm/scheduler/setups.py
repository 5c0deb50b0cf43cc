"""How a scheduler of vLLM is started, and what schedules must know of it: see `SchedulerTarget.setups`, `Facts`."""

from __future__ import annotations

from specsim.engines.vllm.model_runner import V2
from specsim.engines.vllm.scheduler.configuration import CONTEXT
from specsim.world.scheduler import ABORT, DRAIN, KEEP, NO_GRAMMAR, Facts, Setup
from specsim.world.workload import CROSSED, SALTED, SYSTEM

PAUSES, GRAMMARS = "pauses", "grammars"
FACTS = Facts(
    features=frozenset(
        (
            "aborts",
            "shared prefixes",
            CROSSED,
            SYSTEM,
            "continued answers",
            "stop tokens",
            "bursts",
            "flushes",
            "abort all",
            PAUSES,
            GRAMMARS,
            SALTED,
        )
    ),
    context=CONTEXT,
    answer_room=1,
    priorities=(40, 20, 5, 0),  # the lower one goes first
    timeout=0.0,
    leap=0.0,
    ahead=3,  # batches that are under way
    late=3,
    patience=12,
    keeps_last=False,
    caches=True,
    fits=True,
    in_order=True,
    pauses=(KEEP, DRAIN, ABORT),
    hears=True,
    masks=True,
    refusals=(NO_GRAMMAR,),
)

# A new row goes to the end: tapes name rows by their numbers.
SETUPS: tuple[Setup, ...] = (
    Setup(page_size=4, slots=96),
    Setup(page_size=4, slots=96, overlap=False, kv_events=True),
    Setup(page_size=16, slots=256),
    Setup(page_size=4, slots=80, stages=2, model_runner="V2", kv_events=True),
    Setup(page_size=4, slots=96, steps=0, draft_tokens=1),
    Setup(page_size=4, slots=96, radix=False),
    Setup(page_size=4, slots=96, chunk=12),
    Setup(page_size=4, slots=96, rows=3, priorities=True, kv_events=True),
    Setup(page_size=4, slots=120, steps=5, draft_tokens=6),
    Setup(page_size=4, slots=96, steps=1, draft_tokens=2, overlap=False, model_runner="V1"),
    Setup(page_size=4, slots=96, steps=0, draft_tokens=1, stages=2, model_runner="V2"),
    Setup(page_size=4, slots=96, steps=0, draft_tokens=1, stages=2, overlap=False),
    Setup(page_size=4, slots=96, model_runner="V1"),
    Setup(page_size=4, slots=96, model_runner="V2"),
    Setup(page_size=4, slots=160, window=8),
    Setup(page_size=4, slots=160, window=6, chunk=12, stages=2, model_runner="V2", kv_events=True),
    Setup(page_size=4, slots=64, context=64, kv_events=True),
    Setup(page_size=4, slots=96, context=50, steps=2, draft_tokens=3),
    Setup(page_size=4, slots=96, steps=1, draft_tokens=2, stages=2, overlap=False, model_runner="V2"),
    Setup(page_size=4, slots=96, worker="release"),
    Setup(page_size=4, slots=96, overlap=False, worker="release"),
    Setup(page_size=16, slots=256, worker="release"),
    Setup(page_size=4, slots=96, steps=0, draft_tokens=1, worker="release"),
    Setup(page_size=4, slots=96, rows=3, chunk=12, priorities=True, worker="release"),
    Setup(page_size=4, slots=160, window=8, worker="release"),
    Setup(page_size=4, slots=80, stages=2, worker="release"),
    Setup(page_size=4, slots=96, steps=0, draft_tokens=1, stages=2, worker="release"),
    Setup(page_size=4, slots=96, steps=1, draft_tokens=2, stages=2, overlap=False, worker="release"),
    Setup(page_size=4, slots=160, window=6, chunk=12, stages=2, worker="release"),
    Setup(page_size=4, slots=96, steps=0, draft_tokens=1, stages=2, overlap=False, worker="release"),
    Setup(page_size=4, slots=96, connector=True, kv_events=True),
    Setup(page_size=4, slots=96, overlap=False, connector=True, kv_events=True),
    Setup(page_size=4, slots=96, steps=0, draft_tokens=1, stages=2, model_runner="V2", connector=True, kv_events=True),
    Setup(page_size=4, slots=96, reasoning=True),
    Setup(page_size=4, slots=96, overlap=False, reasoning=True),
    Setup(page_size=4, slots=96, watermark=0.1),
    Setup(page_size=4, slots=96, worker="release", connector=True),
    Setup(page_size=4, slots=96, overlap=False, worker="release", connector=True),
    Setup(page_size=4, slots=240, window=8, window_page=8),
    Setup(page_size=4, slots=96, lookahead_hashes=False),
    Setup(page_size=4, slots=160, window=8, lookahead_hashes=False, kv_events=True),
    Setup(page_size=4, slots=96, rows=3, priorities=True, connector=True),
    Setup(page_size=4, slots=96, overlap=False, model_runner="V1", connector=True),
)

_SIZES = frozenset(("page_size", "slots", "rows", "chunk", "window", "window_page", "worker", "model_runner"))
"""Settings that memory, the model and the load decide, or that are ours; of the others a server has what it is told."""


def reach_of(setup: Setup, runner: str) -> str:
    """Who has a server that is started so: "default" or "option". `runner` is the model runner of most models."""
    return "default" if setup.settings.keys() <= _SIZES and runner_in(setup, runner) == runner else "option"


def runner_in(setup: Setup, runner: str) -> str:
    """The model runner of a setup, of a release where most models have `runner`."""
    return setup.model_runner or (V2 if setup.worker == "release" else runner)
