"""What releases feed their penalizers and how large they make their pools: their own functions, in the simulation."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from property_tests.support.known_releases import NEWEST
from property_tests.support.made_up_sources import edited
from property_tests.support.rule_checks import broken_by
from specsim.choices.chooser import seeded
from specsim.engine.accounting import HostFunctionError
from specsim.engine.config import EngineConfig
from specsim.engine.loop import UnsupportedScenarioError
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.rules.device_outputs import DeviceOutputs
from specsim.engine.rules.failures import HOST_EXCEPTION
from specsim.engine.workload import draw_scenario
from specsim.engines.sglang import accounting
from specsim.engines.sglang.accounting import SglangHostTarget
from specsim.engines.sglang.penalties import knows_outputs
from specsim.lifting.cache import Cache
from specsim.lifting.lift import Lifter
from specsim.lifting.source import SourceTree

Release = Callable[[str], SourceTree]

RUNNER = "srt/model_executor/model_runner_kv_cache_mixin.py"
CONFIGURATOR = "srt/model_executor/pool_configurator.py"


@pytest.fixture(autouse=True)
def short_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_REHEARSALS", 8)


def found(target: SglangHostTarget, schedules: int, part: str) -> set[str]:
    """The signatures of a part."""
    signatures = set()
    for index in range(schedules):
        chooser = seeded(0, "feed and sizes", index)
        try:
            run = checked_engine(draw_scenario(chooser, target.features), chooser, target.make).run()
            signatures |= {violation.signature for violation in run.violations if violation.part == part}
        except UnsupportedScenarioError:
            continue
        except HostFunctionError as error:  # before the first event
            signatures.add(f"accounting:{(error.rule or HOST_EXCEPTION).id}:{error.part}")
    return {signature for signature in signatures if signature.endswith(part)}


# Pools


def test_a_pool_that_is_larger_than_its_memory_is_found(release: Release, wheel_cache: Cache) -> None:
    down, up = r"= (\w+) // page_size \* page_size", r"= -(-\1 // page_size) * page_size"
    source = edited(release(NEWEST), CONFIGURATOR, down, up)
    assert found(SglangHostTarget(source, wheel_cache), 12, "pool size") == {"accounting:X6:pool size"}


def test_rows_and_slots_are_those_that_the_release_makes(release: Release, wheel_cache: Cache) -> None:
    config = EngineConfig(page_size=4, pool_slots=96, rows=3)
    least = edited(release(NEWEST), RUNNER, r"min\(\w+ // self\.dp_size, \w+\)", "2")
    half = edited(least, CONFIGURATOR, r"(available_bytes // [\w.]+)", r"\1 // 2")
    assert memory_of(SglangHostTarget(release(NEWEST), wheel_cache), config) == (96, 3)
    assert memory_of(SglangHostTarget(half, wheel_cache), config) == (48, 2)


def memory_of(target: SglangHostTarget, config: EngineConfig) -> tuple[int, int]:
    """Slots and rows of the memory of a run."""
    from specsim.engine.workload import Scenario, Workload

    engine = checked_engine(Scenario(config, Workload(())), seeded(0, "", 0), target.make)
    return engine.memory.allocator.size, engine.memory.rows.count


# Penalties


def launched(fed: dict[int, int] | None, incarnation: int) -> Any:
    row = SimpleNamespace(key=("r", incarnation), fed=fed)
    return SimpleNamespace(verifies=SimpleNamespace(rows=[row]))


def rules(device: DeviceOutputs, outputs: list[int], fed: dict[int, int] | None, incarnation: int = 1) -> list[str]:
    device._outputs["r", incarnation] = outputs
    return broken_by(device.fed(launched(fed, incarnation)))


def test_what_is_fed_is_the_outputs_before_a_launch_each_once() -> None:
    device = DeviceOutputs(EngineConfig())
    assert rules(device, [5], {5: 1}) == []
    assert rules(device, [5, 6, 6], {5: 1, 6: 2}) == []
    assert rules(device, [5, 6, 6], {5: 1, 6: 1}) == ["I58"]
    assert rules(device, [5, 6], {5: 1, 6: 1, 9: 1}) == ["I58"]
    assert rules(device, [5], None) == []


def test_a_retraction_forgets_nothing() -> None:
    device = DeviceOutputs(EngineConfig())
    rules(device, [5, 6], {5: 1, 6: 1})
    assert rules(device, [5, 6, 7], {5: 1, 6: 1, 7: 1}, incarnation=2) == []
    assert rules(device, [5, 6, 7], {7: 1}, incarnation=3) == ["I58", "I59"]


def test_the_relaxed_distribution_asks_for_no_more_than_its_bounds() -> None:
    assert rules(DeviceOutputs(EngineConfig(relaxed_penalties=True)), [5, 6], {5: 1}) == []


@pytest.mark.slow
def test_where_the_relaxed_distribution_is_on_the_device_goes_by_what_the_release_feeds(
    release: Release, wheel_cache: Cache
) -> None:
    source = edited(
        release(NEWEST),
        "srt/speculative/eagle_info_v2.py",
        r"([\w.]+\.cumulate_output_tokens\([^)]*\))",
        r"[\1 for _ in range(9)]",
    )
    assert found(SglangHostTarget(source, wheel_cache), 150, "penalties") == {"accounting:I58:penalties"}


def test_whether_penalizers_of_a_prefill_know_the_outputs_before_is_seen(release: Release, wheel_cache: Cache) -> None:
    source = release(NEWEST)
    assert not knows_outputs(Lifter(source, wheel_cache, {}))
    knowing = edited(
        source,
        "srt/sampling/sampling_batch_info.py",
        r"ret\.adjusted_from_schedule_batch\([^)]*\)",
        "[penalizer_orchestrator.cumulate_output_tokens(torch.tensor(t)) for t in zip(*(r.output_ids for r in reqs))]",
    )
    assert knows_outputs(Lifter(knowing, wheel_cache, {}))
