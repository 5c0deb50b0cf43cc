"""Whose an access is that the virtual device found, in words that are the same on every release."""

from __future__ import annotations

from specsim.vdevice.findings import Access, Finding
from specsim.world.blame import Blame

BLAME = Blame(
    models=frozenset(["ours.py"]),
    result="returned",
    made_by="nobody's",
    parties={"/attention/": "the-plan", "Pool.translated": "the-plan"},
    below=lambda file, line: f"{file}:{line}",
)
FREES = Access("schedule", "index_put_", "srt/allocator.py", 9, "Allocator.free", ("Scheduler.step at srt/loop.py:3",))


def parties(reader: Access) -> list[str]:
    """Of a race of it and FREES on a mapping."""
    return BLAME.record(Finding("race", "mapping", reader, FREES)).what.split(":")[2:]


def test_what_a_plan_reads_is_the_plans_also_by_a_function_that_it_calls() -> None:
    own = Access("forward", "index", "srt/attention/backend.py", 7, "Backend.plan", ("Runner.run at srt/run.py:1",))
    called = Access("forward", "index", "srt/pool.py", 5, "Pool.translated", ("Graph.replay at srt/graph.py:7",))
    other = Access("forward", "index", "srt/pool.py", 5, "Pool.read", ("Backend.plan at srt/attention/backend.py:7",))
    assert parties(own) == parties(called) == ["Allocator.free<Scheduler.step", "the-plan"]
    assert parties(other) == ["Allocator.free<Scheduler.step", "Pool.read<Backend.plan"]


def test_what_a_model_reads_is_the_models_and_its_callers_are_not_named() -> None:
    model = Access("forward", "verify", "ours.py", 1, "run", ("Backend.plan at srt/attention/backend.py:7",))
    called = Access(
        "forward", "index", "srt/pool.py", 5, "Pool.read", ("run at ours.py:2", "Runner.run at srt/run.py:1")
    )
    assert parties(model) == ["Allocator.free<Scheduler.step", "the-model"]
    assert parties(called) == ["Allocator.free<Scheduler.step", "Pool.read<Runner.run"]
