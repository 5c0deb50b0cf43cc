"""How a scheduler of SGLang is started, and what schedules must know of it: see `SchedulerTarget.setups`, `Facts`."""

from __future__ import annotations

from dataclasses import replace

from specsim.engines.sglang.guards import Guards
from specsim.engines.sglang.scheduler.configuration import EVICTION_DEFAULT
from specsim.world.scheduler import HIDDEN, REFUSALS, Facts, Setup
from specsim.world.workload import FEATURES, SALTED

FACTS = Facts(
    features=frozenset({*FEATURES, SALTED}),
    context=240,  # less than what the toy model's configuration allows
    answer_room=5,  # a prompt has less than the context less six (`max_req_input_len`), of which two nobody gets
    priorities=(0, 5, 20, 40),  # one preempts another if it is higher by more than 10, by default
    timeout=1.5,  # a schedule takes a second or less if its clock does not leap
    leap=2.0,  # sessions that are over their time are looked for once a second
    ahead=2,
    late=3,  # that of the abort's iteration, the one that it overlaps, one more where it was retracted or chunked
    patience=12,
    keeps_last=True,
    caches=True,
    hidden=HIDDEN,
    refusals=REFUSALS,
    window_lag=EVICTION_DEFAULT + 4,  # and a page
)

BY_STEPS = replace(FACTS, window_lag=36)
"""Of releases that give KV behind a window of 8 back after as many steps, of up to four tokens each, and a page."""

# A new row goes to the end: tapes name rows by their numbers.
SETUPS: tuple[Setup, ...] = (
    Setup(),
    Setup(page_size=4, slots=400, window=8, kv_events=True),
    Setup(page_size=4, reserve=0.1, kv_events=True),
    Setup(sessions=True, slots=240),
    Setup(page_size=16, slots=256),
    Setup(radix=False, reserve=0.1),
    Setup(chunk=12, slots=112),
    Setup(priorities=True, slots=120, kv_events=True),
    Setup(window=8, slots=240, reserve=0.1),
    Setup(slots=128, steps=1, draft_tokens=2, reserve=0.1),
    Setup(sessions=True, slots=240, page_size=4, reserve=0.1, kv_events=True),
    Setup(window=8, slots=400, radix=False, chunk=12),
    Setup(reserve=0.1, overlap=False, kv_events=True),
    Setup(chunk=12, reserve=0.1, mixed=True, kv_events=True),
    Setup(worker="release"),
    Setup(worker="release", graphs=True, page_size=4, reserve=0.1),
    Setup(worker="release", topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", graphs=True, topk=2, draft_tokens=6, slots=400, page_size=4, context=62),
    Setup(worker="release", graphs=True, chunk=12, slots=112, reserve=0.1, radix=False),
    Setup(worker="release", graphs=True, sessions=True, slots=240),
    Setup(worker="release", graphs=True, steps=1, draft_tokens=2, slots=128, reserve=0.1),
    Setup(worker="release", topk=2, draft_tokens=6, slots=320, beyond_guards=True),
    Setup(worker="release", graphs=True, reserve=0.1),
    Setup(worker="release", graphs=True, topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", graphs=True, sampled=True, reserve=0.1),
    Setup(worker="release", sampled=True, topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", multi_layer=True, slots=240, reserve=0.1),
    Setup(worker="release", multi_layer=True, graphs=True, slots=240, reserve=0.1),
    Setup(worker="release", overlap=False, topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", overlap=False, graphs=True, reserve=0.1),
    Setup(worker="release", overlap=False, graphs=True, sampled=True, topk=2, draft_tokens=6, slots=320, reserve=0.1),
    Setup(worker="release", overlap=False, page_size=4, reserve=0.1),
    Setup(rust_tree=True),
    Setup(rust_tree=True, page_size=4, slots=400, window=8),
    Setup(rust_tree=True, slots=240, sessions=True),
    Setup(rust_tree=True, slots=112, chunk=12),
    Setup(rust_tree=True, worker="release", graphs=True, page_size=4, reserve=0.1),
    Setup(context=62, steps=11, draft_tokens=12),
    Setup(worker="release", adaptive=True, steps=7, draft_tokens=8, slots=240),
    Setup(worker="release", adaptive=True, graphs=True, steps=7, draft_tokens=8, slots=256, page_size=4),
    Setup(sessions=True, slots=240, beyond_guards=True),
    Setup(worker="release", drafter="standalone", reserve=0.1),
    Setup(worker="release", drafter="standalone", graphs=True, topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", drafter="ngram", topk=2, draft_tokens=6, slots=320, reserve=0.1),
    Setup(worker="release", drafter="ngram", graphs=True, topk=2, steps=4, draft_tokens=8, slots=320),
    Setup(worker="release", drafter="ngram", overlap=False, topk=2, draft_tokens=6, slots=320),
    Setup(worker="release", drafter="standalone", overlap=False, topk=2, draft_tokens=6, slots=320, reserve=0.1),
    Setup(worker="release", hidden_states=True, slots=240, reserve=0.1),
    Setup(worker="release", hidden_states=True, graphs=True, chunk=12, slots=112, reserve=0.1),
    Setup(worker="release", hidden_states=True, topk=2, draft_tokens=6, slots=320, page_size=4),
    Setup(worker="release", hidden_states=True, overlap=False, slots=240, reserve=0.1),
    Setup(worker="release", window=8, slots=240, reserve=0.1),
    Setup(worker="release", window=8, graphs=True, slots=400, page_size=4),
    Setup(worker="release", window=8, graphs=True, topk=2, draft_tokens=6, slots=400),
    Setup(worker="release", window=8, overlap=False, slots=400, chunk=12, radix=False),
    Setup(worker="release", hicache="write_through", slots=80),
    Setup(worker="release", hicache="write_back", page_size=4, slots=72, reserve=0.1),
    Setup(worker="release", hicache="write_through_selective", graphs=True, slots=72, reserve=0.1),
    Setup(hicache="write_through", slots=80),
    Setup(hicache="write_back", page_size=4, slots=72, reserve=0.1),
    Setup(hicache="write_through_selective", chunk=12, slots=72),
    Setup(chunk=12, slots=112, mixed=True, overlap=False),
    Setup(window=8, slots=240, window_lag=8),
)

OPTIONS = frozenset(
    (
        "adaptive",
        "drafter",
        "draft_tokens",
        "hicache",
        "hidden_states",
        "kv_events",
        "mixed",
        "multi_layer",
        "page_size",
        "priorities",
        "radix",
        "steps",
        "window_lag",
    )
)
"""Of a setup's settings those that a server has only where it is told to. Of the others some are sizes, which memory,
the model and the load decide, and CUDA graphs are what a server has by itself.
"""


def reach_of(setup: Setup, guards: Guards) -> str:
    """Who has a server of a source with these guards that is started so: "default", "option" or "guarded:FILE:LINE"."""
    if not setup.overlap:
        return "option"
    sizes = {"topk": setup.topk}
    found = guards.reach_of_sessions(sizes) if setup.sessions else guards.reach_of_overlap_worker(sizes)
    return "option" if found == "default" and setup.settings.keys() & OPTIONS else found
