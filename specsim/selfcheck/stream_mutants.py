"""The mutants of streams: a wait that is left out, or one for the wrong event. What they are:
`specsim.selfcheck.catalogue`.
"""

from __future__ import annotations

from specsim.selfcheck.mutant import Mutant

_STREAMS = "specsim.engine.streams"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "B01",
        "the schedule stream writes rows and does not wait for the launch that reads them",
        references=("sgl-project/sglang#18744", "sgl-project/sglang#18746"),
        module=_STREAMS,
        line="barrier = (self._reads_done,)",
        becomes="barrier = ()",
    ),
    Mutant(
        "B01-early",
        "the event that frees the rows is recorded before the draft extend has read them",
        references=("sgl-project/sglang#18744", "sgl-project/sglang#18746"),
        module=_STREAMS,
        line="self._reads_done = extend",
        becomes="self._reads_done = computed",
    ),
    Mutant(
        "B02",
        "the window's mapping is written while the launch before still reads it",
        references=("sgl-project/sglang#26380",),
        module=_STREAMS,
        line='writes = self._queue(SCHEDULE, "map", of, partial(self._map, mapped), barrier)',
        becomes='writes = self._queue(SCHEDULE, "map", of, partial(self._map, mapped), ())',
    ),
    Mutant(
        "B02-penalties",
        "penalties are cumulated while the launch before still reads them",
        references=("sgl-project/sglang#26380",),
        module=_STREAMS,
        line='self._written = self._queue(SCHEDULE, "penalize", launch, penalties, (self._reads_done,))',
        becomes='self._written = self._queue(SCHEDULE, "penalize", launch, penalties, ())',
    ),
    Mutant(
        "B02-results",
        "the barrier stands before the next launch, so what a result writes is not behind it",
        references=("sgl-project/sglang#26380",),
        module=_STREAMS,
        line="barrier = (self._reads_done,)",
        becomes='barrier = () if of.startswith("result") else (self._reads_done,)',
    ),
    Mutant(
        "B04-lengths",
        "the plan stream does not wait for the lengths of the launch before",
        references=("sgl-project/sglang#28034", "sgl-project/sglang#22113", "sgl-project/sglang#21942"),
        module=_STREAMS,
        line='plan = self._queue(PLAN, "plan", launch, make_plan, (self._written, self._published))',
        becomes='plan = self._queue(PLAN, "plan", launch, make_plan, (self._written,))',
    ),
    Mutant(
        "B04-plan",
        "a verification does not wait for its plan",
        references=("sgl-project/sglang#28034", "sgl-project/sglang#22113", "sgl-project/sglang#21942"),
        module=_STREAMS,
        line="computed = self._queue(FORWARD, name, launch, compute, (ready, self._copied))",
        becomes="computed = self._queue(FORWARD, name, launch, compute, (self._written, self._copied))",
    ),
    Mutant(
        "B04-rows",
        "the plan stream does not wait for the rows of its launch",
        references=("sgl-project/sglang#28034", "sgl-project/sglang#22113", "sgl-project/sglang#21942"),
        module=_STREAMS,
        line='plan = self._queue(PLAN, "plan", launch, make_plan, (self._written, self._published))',
        becomes='plan = self._queue(PLAN, "plan", launch, make_plan, (self._published,))',
    ),
    Mutant(
        "B06-host",
        "the event that the host waits for is the computation's, not the copy's",
        references=("sgl-project/sglang#31072",),
        module=_STREAMS,
        line="self._results[launch.number] = copied",
        becomes="self._results[launch.number] = computed",
    ),
    Mutant(
        "B08-buffer",
        "all launches copy their tokens to one host buffer",
        references=("sgl-project/sglang#19761",),
        module=_STREAMS,
        line="HOST_BUFFERS = 2  # as many as launches whose results the host has not taken",
        becomes="HOST_BUFFERS = 1",
    ),
    Mutant(
        "B08-copy",
        "a verification writes its tokens before those of the launch before are copied",
        references=("sgl-project/sglang#19761",),
        module=_STREAMS,
        line="computed = self._queue(FORWARD, name, launch, compute, (ready, self._copied))",
        becomes="computed = self._queue(FORWARD, name, launch, compute, (ready,))",
    ),
    Mutant(
        "B08-early",
        "tokens are copied before they are computed",
        references=("sgl-project/sglang#19761",),
        module=_STREAMS,
        line='copied = self._queue(COPY, "copy", launch, partial(self._copy, launch), (computed,))',
        becomes='copied = self._queue(COPY, "copy", launch, partial(self._copy, launch), ())',
    ),
    Mutant(
        "I04-copy",
        "a mask is made before the tokens of the launch before have reached the host",
        references=("sgl-project/sglang#28986",),
        module=_STREAMS,
        line='mask = self._queue(PLAN, "mask", launch, partial(self._read_grammars, before), (self._copied,))',
        becomes='mask = self._queue(PLAN, "mask", launch, partial(self._read_grammars, before), ())',
    ),
    Mutant(
        "I04-mask",
        "a verification does not wait for the mask of its grammars",
        references=("sgl-project/sglang#28986",),
        module=_STREAMS,
        line="return mask",
        becomes="return plan",
    ),
)
