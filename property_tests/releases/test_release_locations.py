"""Where releases draft and verify: the simulated device writes to the slots that their own functions read out of a
launch's rows, so that a wrong one is found.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.known_releases import NEWEST, OLDEST
from property_tests.support.made_up_sources import edited
from specsim.choices.chooser import seeded
from specsim.engine.config import EngineConfig
from specsim.engine.locations import draft_columns, tail_copies
from specsim.engine.loop import UnsupportedScenarioError
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.workload import draw_scenario
from specsim.engines.sglang import accounting
from specsim.engines.sglang.accounting import SglangHostTarget
from specsim.engines.sglang.host_names import CACHE_LOCS
from specsim.engines.sglang.releases import RELEASES
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree

Release = Callable[[str], SourceTree]


@pytest.fixture(autouse=True)
def short_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_REHEARSALS", 8)


LATEST = RELEASES[-1]
V2 = "srt/speculative/eagle_info_v2.py"


def found(target: SglangHostTarget, schedules: int) -> dict[str, int]:
    """How often each signature of locations came out, whatever else did."""
    counts: dict[str, int] = {}
    for index in range(schedules):
        chooser = seeded(0, "locations", index)
        try:
            violations = checked_engine(draw_scenario(chooser, target.features), chooser, target.make).run().violations
        except UnsupportedScenarioError:
            continue
        for violation in violations:
            if violation.part.endswith("locations"):
                counts[violation.signature] = counts.get(violation.signature, 0) + 1
    return counts


VERIFY, DRAFT = "verify locations", "draft locations"
START = r"(start_offset=[\w.]+)"

# (release, what stands there, what is put there, part)
IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
WRONG_SLOTS = [
    (OLDEST, START, r"\1 + 1", VERIFY),
    (NEWEST, rf"{START}(,\s+end_offset=[^,]+)", r"\1 - 1\2 - 1", VERIFY),
    (NEWEST, r"(req_pool_indices=batch\.\w+)", r"\1 - 1", VERIFY),
    (NEWEST, r"(seq_lens)(,\s+batch\.out_cache_loc)", r"\1 + 1\2", DRAFT),
    (NEWEST, r"\((last_page \+ num_steps)", r"(0 * \1", DRAFT),
    (NEWEST, r"(page_off\.view\([^)]*\)) <", r"\1 + 1 <", DRAFT),
]


@pytest.mark.parametrize(("version", "old", "new", "part"), WRONG_SLOTS if IS_NIGHTLY else WRONG_SLOTS[1::2])
@pytest.mark.slow(runs_one_in=3)
def test_a_wrong_slot_is_found_with_its_function(
    version: str, old: str, new: str, part: str, release: Release, wheel_cache: Cache
) -> None:
    target = SglangHostTarget(edited(release(version), V2, old, new), wheel_cache)
    signatures = found(target, 40)
    assert f"accounting:I45:{part}" in signatures
    assert all(signature.endswith(part) for signature in signatures)


def test_more_slots_than_there_is_room_for_are_an_error_of_the_function(release: Release, wheel_cache: Cache) -> None:
    wider = edited(release(NEWEST), V2, START, r"\1 - 1")
    assert set(found(SglangHostTarget(wider, wheel_cache), 10)) == {f"accounting:X1:{VERIFY}"}


@pytest.mark.parametrize("version", RELEASES[RELEASES.index(NEWEST) :: 4])
def test_drafts_and_verifications_of_a_release_are_where_their_rows_say(
    version: str, release: Release, wheel_cache: Cache
) -> None:
    target = SglangHostTarget(release(version), wheel_cache)
    assert found(target, 60) == {}
    parts = {part.name: part for part in target.parts}
    draft, verify = parts["draft locations"], parts["verify locations"]
    assert draft.calls == verify.calls > 100
    assert draft.lines_run > draft.lines / 2  # with the branches of larger pages


def test_the_verification_of_a_chain_writes_the_window_that_its_draft_has_read(
    release: Release, wheel_cache: Cache
) -> None:
    """The worker of the latest releases hands it on: a window that is too narrow shows where it is taken up."""
    path = "srt/speculative/eagle_worker_common.py"
    late = edited(release(LATEST), path, r"(window_cols) = \w+", r"\1 = num_steps")
    assert set(found(SglangHostTarget(late, wheel_cache), 40)) == {"accounting:I45:verify locations"}


def test_a_kernel_with_other_parameters_is_not_run_and_the_rest_is(release: Release, wheel_cache: Cache) -> None:
    source = release(NEWEST)
    path = next(path for path in CACHE_LOCS if source.exists(path))
    target = SglangHostTarget(edited(source, path, r"\bbs_upper:", "upper:"), wheel_cache)
    before = {part.name for part in SglangHostTarget(source, wheel_cache).parts if part.kind == "not run"}
    not_run = {part.name: part.why for part in target.parts if part.kind == "not run" and part.name not in before}
    assert set(not_run) == {"draft locations", "verify locations"}
    assert all("signature changed" in why and "upper" in why for why in not_run.values())
    assert target.missing == []
    assert found(target, 20) == {}


@given(st.sampled_from([2, 4, 16]), st.integers(2, 4), st.integers(1, 5), st.integers(1, 40))
def test_branches_are_apart_and_stay_in_what_a_step_may_touch(
    page_size: int, topk: int, num_steps: int, length: int
) -> None:
    config = EngineConfig(page_size=page_size, topk=topk, num_steps=num_steps, num_draft_tokens=2)
    columns = draft_columns(config, length, num_steps)
    copies = tail_copies(config, length, num_steps)
    written = columns + [target for target, _ in copies]
    assert len(set(written)) == len(written)
    assert length == min(columns)
    assert max(written) < length + config.alloc_len
    pages = [{at // page_size for at in columns[b * num_steps : (b + 1) * num_steps]} for b in range(topk)]
    assert sum(map(len, pages)) == len(set.union(*pages))
    assert all(length - length % page_size <= source < length for _, source in copies)
