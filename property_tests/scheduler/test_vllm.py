"""vLLM's own scheduler in its own loop: what it runs on, what it is told, and what is found in it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from property_tests.support.found_schedules import found_by
from property_tests.support.known_releases import VLLM_NEW, VLLM_OLD
from property_tests.support.release_schedules import shown_by, signatures_of
from property_tests.support.replay_fixtures import EXPECT, FILES
from property_tests.support.vllm_batches import BLOCK, PROMPT, arrives, batch, goes_on, made
from specsim import replay_file
from specsim.engines.importable import folder_of
from specsim.engines.packages import cached_packages
from specsim.engines.target import Release
from specsim.engines.vllm.model_runner import V1, V2
from specsim.engines.vllm.scheduler.configuration import CONTEXT, configuration
from specsim.engines.vllm.scheduler.freed import watch
from specsim.engines.vllm.scheduler.model import PAD, Model
from specsim.engines.vllm.scheduler.planted import planted
from specsim.engines.vllm.scheduler.runners import complete, has_ring, runner_of
from specsim.engines.vllm.scheduler.setups import SETUPS
from specsim.lifting.cache import Cache
from specsim.lifting.planted import edited
from specsim.world.fakes import AdapterDriftError, Answers
from specsim.world.hash_model import Prefixes, decoded, prefix_of
from specsim.world.kv import BadValue, DraftRead, NoSlot
from specsim.world.ledger import Freed
from specsim.world.scheduler import Setup, WrongContent, rows_of

FAKE = [SETUPS[row] for row in rows_of(SETUPS, "fake")]
COUNT = 3 * len(FAKE)
FIXTURES = tuple(file for file in FILES if f"vllm=={VLLM_OLD}" in EXPECT[file.stem])
PAGE = Path(__file__).parents[2] / "docs" / "vllm.md"
OF_THE_ENVIRONMENT = "0.21.0"
SCHEDULE = "vllm.v1.core.sched.scheduler:Scheduler.schedule"


def test_the_newest_release_breaks_no_rule_but_in_a_pipeline_without_asynchronous_scheduling(vllm_release: str) -> None:
    schedules = shown_by(vllm_release, COUNT, "0", engine="vllm")["schedules"]
    is_known = [not setup.overlap and setup.stages > 1 for setup in FAKE] * 3
    known = [schedule for schedule, is_one in zip(schedules, is_known, strict=True) if is_one]
    assert "scheduler:I05:input:nothing" in signatures_of(known)
    others = [schedule for schedule in schedules if schedule not in known]
    with_a_load_that_fails = "scheduler:X6:verify:num_scheduled_tokens"
    assert signatures_of(others) == ["scheduler:S17:copy", with_a_load_that_fails]
    assert len({schedule["digest"] for schedule in schedules}) == COUNT


def test_schedules_leave_nothing_behind_for_those_that_come_after_them(vllm_release: str) -> None:
    among, alone = (shown_by(VLLM_OLD, COUNT, "0", engine="vllm", alone=alone) for alone in (False, True))
    assert among == alone


@pytest.mark.slow
def test_a_model_runner_that_the_environment_names_is_told_in_its_form(wheel_cache: Cache) -> None:
    if ("vllm", OF_THE_ENVIRONMENT) not in cached_packages(wheel_cache):
        pytest.skip(f"vllm=={OF_THE_ENVIRONMENT} is not in the cache")
    schedules = shown_by(OF_THE_ENVIRONMENT, COUNT, "0", engine="vllm")["schedules"]
    assert not [one for one in signatures_of(schedules) if ":S13:" in one]


LONGEST = {
    Setup(page_size=4, slots=96): 96,
    Setup(page_size=16, slots=1024): CONTEXT,
    Setup(page_size=4, slots=64, context=50): 50,
    Setup(page_size=4, slots=160, window=8): 84,  # its window may have 19 of 40 blocks: two steps of 32 tokens
}


def test_the_longest_request_is_what_a_server_would_be_started_for(vllm_release: str) -> None:
    """In a process of its own: this one is to import no release."""
    code = f"""
from specsim.engines.load import load_scheduler
from specsim.engines.target import Release
from specsim.lifting.cache import open_cache
from specsim.world.scheduler import Setup

target = load_scheduler(Release("vllm", "{vllm_release}"), open_cache(None))
print([target.start(setup).facts.context for setup in {list(LONGEST)!r}])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(ran.stdout) == list(LONGEST.values())


BEYOND_ITS_END = {
    "rid": "r06",
    "prompt": [
        66,
        80,
        26,
        44,
        64,
        86,
        40,
        66,
        24,
        54,
        86,
        50,
        86,
        54,
        24,
        66,
        40,
        86,
        64,
        44,
        26,
        80,
        66,
        54,
        44,
        36,
        30,
    ],
    "answer": 7,
    "at": 0,
    "grammar": [85, 66],
}
"""Its reasoning ends with the first token behind its answer, which a step under way reads."""


def test_what_is_said_beyond_an_answer_is_held_to_its_grammar_too(vllm_release: str) -> None:
    code = f"""
from specsim.engines.load import load_scheduler
from specsim.engines.target import Release
from specsim.lifting.cache import open_cache
from specsim.rules.table import CHECKS
from specsim.world.case import ScheduleCase
from specsim.world.schedule import run_schedule

target = load_scheduler(Release("vllm", "{vllm_release}"), open_cache(None))
nobody = dict.fromkeys(("flushes", "abort_all", "pauses", "leaps"), [])
workload = {{"turns": [{BEYOND_ITS_END!r}], **nobody}}
case = ScheduleCase({{"page_size": 4, "slots": 96, "reasoning": True}}, workload, {{}})
setup = case.started_by()
record = run_schedule(target.start(setup), setup, CHECKS, case.chooser(), workload=case.users())
print([one.signature for one in record.violations])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(ran.stdout) == []


def test_schedules_are_the_same_whatever_the_hash_seed(vllm_release: str) -> None:
    first, again = (shown_by(VLLM_OLD, COUNT, seed, engine="vllm")["schedules"] for seed in ("0", "7"))
    assert first == again


def test_each_replay_file_shows_its_finding_where_it_is_expected(vllm_release: str) -> None:
    assert FIXTURES
    for version in (VLLM_OLD, VLLM_NEW):
        shown = shown_by(version, 0, "0", FIXTURES, engine="vllm")["files"]
        for file in FIXTURES:
            is_there = replay_file.load(file).signature in shown[file.stem]["signatures"]
            assert is_there is EXPECT[file.stem][f"vllm=={version}"]["shows"], file.name


def test_the_page_names_every_setup() -> None:
    text = PAGE.read_text().replace("`", "")
    assert [setup.name for setup in SETUPS if f"| {setup.name} |" not in text] == []


def test_each_planted_defect_is_of_the_newest_release(vllm_release: str, wheel_cache: Cache) -> None:
    folder = folder_of(Release("vllm", vllm_release), wheel_cache)
    defects = planted().values()
    assert len(defects) == 30 + 15 + 12 + 6 + 1
    for defect in defects:
        module = folder.joinpath(*defect.module.split("."))
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        text = file.read_text(encoding="utf-8")
        assert ast.dump(edited(text, defect)) != ast.dump(ast.parse(text)), defect.id


@pytest.mark.parametrize(
    ("mutant", "signature", "schedules"),
    [
        ("V11", "scheduler:X1:schedule:RuntimeError", 10),
        ("V12", "scheduler:S1:pause", 90),
        ("V26", "scheduler:I05:full:other-tokens", 10),
        ("V29", "scheduler:S12:priority", 90),
        pytest.param("K07", "scheduler:I05:full:other-tokens", 200, marks=pytest.mark.slow),
        ("K12", "scheduler:I05:input:other-tokens", 30),
        (
            "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager.find_longest_cache_hit:drop-call:append:0",
            "scheduler:S15:prompt",
            10,
        ),
        ("vllm.v1.core.block_pool:BlockPool._insert_block_hash:negate:block_hash:1", "scheduler:S15:last", 10),
        (
            "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.remove_skipped_blocks:drop-call:"
            "_remove_blocks_in_range:0",
            "scheduler:S16:window",
            20,
        ),
        pytest.param(
            "vllm.v1.core.single_type_kv_cache_manager:SlidingWindowManager.reachable_block_mask:negate:segment_tokens:0",
            "scheduler:S15:last",
            20,
            marks=pytest.mark.slow,
        ),
        (f"{SCHEDULE}:negate:use_v2_model_runner:0", "scheduler:S13:prefill-tokens", 10),
        (
            f"{SCHEDULE}:wrong-field:prev_step_scheduled_req_ids>reset_preempted_req_ids:0",
            "scheduler:S13:tokens",
            20,
        ),
        ("vllm.v1.core.sched.scheduler:Scheduler._preempt_request:negate:spec_token_ids:0", "scheduler:S19:made", 10),
        (
            "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids:negate:is_prefill_chunk:0",
            "scheduler:S19:drafts",
            10,
        ),
        pytest.param(f"{SCHEDULE}:shift-comparison:policy:0", "scheduler:S20:urgent", 120, marks=pytest.mark.slow),
        pytest.param(f"{SCHEDULE}:drop-call:clear:1", "scheduler:S13:told-twice", 10, marks=pytest.mark.slow),
        pytest.param(
            f"{SCHEDULE}:negate:num_external_computed_tokens:1",
            "scheduler:S13:loads-in-the-step",
            40,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "vllm.v1.core.sched.output:NewRequestData.from_request:wrong-field:lora_request>request_id:0",
            "scheduler:S13:lora",
            10,
            marks=pytest.mark.slow,
        ),
        ("vllm.v1.request:Request.from_engine_core_request:drop-keyword:cache_salt:0", "scheduler:S22:request", 54),
        ("E01", "scheduler:S17:gone", 10),
        ("E03", "scheduler:S17:parent", 10),
        ("E05", "scheduler:S17:unknown", 20),
        (
            "vllm.v1.core.kv_cache_coordinator:get_kv_cache_coordinator:drop-keyword:num_hash_lookahead_tokens:2",
            "scheduler:S17:ahead",
            20,
        ),
    ],
)
def test_a_planted_defect_is_found(
    vllm_release: str, wheel_cache: Cache, mutant: str, signature: str, schedules: int
) -> None:
    assert signature in found_by(f"vllm=={vllm_release}", wheel_cache, schedules, mutant=mutant)


# ---- what a release would have around its scheduler


def source(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


DEPTH = """
class {owner}:
    @property
    def max_concurrent_batches(self) -> int:
        stages = self.parallel_config.pipeline_parallel_size
        return stages + 1 if self.scheduler_config.async_scheduling and {v2} else stages
"""


@pytest.mark.parametrize(
    ("file", "owner", "v2", "depths"),
    [
        ("config/vllm.py", "VllmConfig", "self.use_v2_model_runner", [(V2, True, 3), (V1, True, 2), (V2, False, 2)]),
        ("v1/executor/multiproc_executor.py", "MultiprocExecutor", "True", [(V1, True, 3), (V1, False, 2)]),
    ],
)
def test_how_many_batches_are_under_way_is_what_the_release_says(
    tmp_path: Path, file: str, owner: str, v2: str, depths: list[tuple[str, bool, int]]
) -> None:
    root = source(tmp_path, {file: DEPTH.format(owner=owner, v2=v2)})
    for runner, overlap, depth in depths:
        setup = Setup(stages=2, overlap=overlap)
        asked: Any = configuration(setup, Answers({}), None, is_v2=runner == V2)
        complete(root, asked)
        assert asked.max_concurrent_batches == depth


def test_a_release_that_says_nothing_of_it_is_drift(tmp_path: Path) -> None:
    with pytest.raises(AdapterDriftError, match=r"has no VllmConfig\.max_concurrent_batches"):
        complete(tmp_path, None)


@pytest.mark.parametrize(
    ("methods", "runner"),
    [
        ((), V1),
        (("use_v2_model_runner", "_is_default_v2_model_runner_model"), V1),
        (("use_v2_model_runner",), V2),
    ],
)
def test_the_second_model_runner_is_the_default_where_no_model_is_named_for_it(
    tmp_path: Path, methods: tuple[str, ...], runner: str
) -> None:
    text = "\n".join(["class VllmConfig:", "    size = 1", *(f"    def {name}(self): ..." for name in methods)])
    assert runner_of(source(tmp_path, {"config/vllm.py": text})) == runner


# ---- the model


SAID = decoded(PROMPT, 12)


def test_a_prompt_in_parts_says_one_token_at_its_end_and_its_kv_is_where_its_blocks_are() -> None:
    model = made()
    assert model.launch(batch({"a": 4}, new=[arrives([5])]))() == {"a": []}
    assert model.launch(batch({"a": 2}, cached=goes_on([2], 4)))() == {"a": SAID[:1]}
    slots = [*range(5 * BLOCK, 6 * BLOCK), 2 * BLOCK, 2 * BLOCK + 1]
    assert model.kv.full[slots].tolist() == [prefix_of(PROMPT[: count + 1]) for count in range(len(PROMPT))]
    assert model.reports.records == []


@pytest.mark.parametrize("right", [0, 2, 3])
def test_a_verification_says_the_drafts_that_are_right_and_one_token(right: int) -> None:
    model = made(right=right)
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    said = model.launch(batch({"a": 4}, cached=goes_on([3]), drafts={"a": [PAD] * 3}))()
    assert said == {"a": SAID[1 : right + 2]}
    model.launch(batch({"a": 4}, cached=goes_on([4]), drafts={"a": [PAD] * 3}))
    assert model.reports.records == []


def test_a_model_that_is_told_drafts_takes_those_that_are_its_own_next_tokens() -> None:
    model = made(is_told=True, right=2)
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    (drafts,) = model.drafts(["a"])
    assert drafts[:2] == SAID[1:3]
    assert drafts[2] != SAID[3]
    said = model.launch(batch({"a": 4}, cached=goes_on([3], 6), drafts={"a": drafts}))()
    assert said == {"a": SAID[1:4]}


def test_a_model_that_is_not_told_keeps_its_drafts() -> None:
    model = made()
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    assert model.drafts(["a"]) == [[PAD] * 3]


def test_a_request_that_is_resumed_has_the_blocks_and_the_tokens_that_it_is_told() -> None:
    model = made()
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    cached = goes_on([6, 7, 4], resumed=True, tokens=[*PROMPT, SAID[0]])
    assert model.launch(batch({"a": 7}, cached=cached))() == {"a": SAID[1:2]}
    assert model.reports.records == []


def test_the_first_model_runner_is_told_the_tokens_of_a_request_that_was_not_in_the_batch_before() -> None:
    model = made()
    model.launch(batch({"a": 6}, new=[arrives([5, 2, 3])]))
    model.launch(batch({"a": 1}, cached=goes_on([], tokens=None)))
    model.launch(batch({}))
    model.launch(batch({"a": 1}, cached=goes_on([])))
    assert model.reports.records == []
    model.launch(batch({}))
    model.launch(batch({"a": 1}, cached=goes_on([], tokens=None)))
    assert [record.what for record in model.reports.records] == ["tokens"]


def test_a_pipelines_first_stage_takes_the_tokens_that_it_is_told() -> None:
    model = made(is_told=True)
    model.launch(batch({"a": 6}, new=[arrives([5, 2], tokens=PROMPT)]))
    cached = goes_on([], resumed=True, tokens=PROMPT)
    model.launch(batch({"a": 0}, cached=cached))
    assert model.launch(batch({"a": 7}, cached=goes_on([5, 2], 0, told=[*PROMPT, SAID[0]])))() == {"a": SAID[1:2]}


def test_layers_with_a_window_read_their_own_blocks_and_no_more_than_the_window() -> None:
    model = Model(8, (BLOCK, BLOCK), 3, context=240, is_told=False, window=3)
    model.right = lambda _most: 0
    model.prefixes["a"] = Prefixes(PROMPT)
    new = arrives([5, 2])
    new.block_ids = ([5, 2], [6, 3])
    model.launch(batch({"a": 6}, new=[new]))
    assert model.kv.window[[3 * BLOCK, 3 * BLOCK + 1]].tolist() == [prefix_of(PROMPT[:5]), prefix_of(PROMPT)]
    model.kv.window[6 * BLOCK : 7 * BLOCK] = 7  # the first four positions are behind the window of the seventh
    cached = goes_on([4], 6)
    cached.new_block_ids = [([4], [7])]
    assert model.launch(batch({"a": 1}, cached=cached))() == {"a": SAID[1:2]}
    assert model.reports.records == []
    model.kv.window[3 * BLOCK + 1] = 7
    model.launch(batch({"a": 1}, cached=goes_on([], 7)))
    (content,) = model.reports.records
    assert (content.pool, content.position, content.slot) == ("window", 5, 3 * BLOCK + 1)


def test_a_block_that_holds_another_requests_kv_is_wrong_content() -> None:
    model = made()
    model.prefixes["b"] = Prefixes([90, *PROMPT])
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    other = arrives([5, 3, 4], 4)
    other.req_id, other.prompt_token_ids = "b", [90, *PROMPT]
    model.launch(batch({"b": 3}, new=[other]))
    (content,) = model.reports.records
    assert isinstance(content, WrongContent)
    assert (content.rid, content.pool, content.position, content.slot) == ("b", "full", 0, 5 * BLOCK)


def shares(computed: int, *, behind: int) -> Any:
    """A request "b" that has the first block of "a", and another token behind it."""
    other = arrives([5, 3], computed)
    other.req_id, other.prompt_token_ids = "b", [*PROMPT[:BLOCK], behind, 31]
    return other


@pytest.mark.parametrize(("computed", "behind", "reads"), [(4, 30, [3]), (4, PROMPT[4], []), (0, 30, [])])
def test_draft_kv_is_of_the_token_behind_its_position_too(computed: int, behind: int, reads: list[int]) -> None:
    model, other = made(), shares(computed, behind=behind)
    model.prefixes["b"] = Prefixes(other.prompt_token_ids)
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    model.launch(batch({"b": 6 - computed}, new=[other]))
    assert [(record.rid, record.position) for record in model.reports.records] == [("b", at) for at in reads]
    assert all(isinstance(record, DraftRead) for record in model.reports.records)
    model.launch(batch({"a": 1}, cached=goes_on([7], 6)))
    assert [record.rid for record in model.reports.records if record.rid == "a"] == ["a"] * (computed == 0)


class Block(SimpleNamespace):
    block_id: int
    ref_cnt: int = 1
    is_null: bool = False


class Blocks:
    """A pool of blocks, as the release has one."""

    def free_blocks(self, blocks: Iterable[Block], prepend: bool = False) -> None:
        assert prepend
        for block in blocks:
            block.ref_cnt -= 1

    def touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.ref_cnt += 1


def test_who_frees_the_last_use_of_a_block_is_told_and_who_takes_it_up_again() -> None:
    pool, told = Blocks(), list[tuple[str, list[int], str]]()
    holder = SimpleNamespace(
        freed=lambda blocks, by: told.append(("freed", blocks, by.function)),
        revived=lambda blocks: told.append(("revived", blocks, "")),
    )
    watch(pool, holder, lambda file: Path(file).name)
    one, shared, null = Block(block_id=1), Block(block_id=2, ref_cnt=2), Block(block_id=0, is_null=True)
    pool.free_blocks((block for block in (one, shared, null)), prepend=True)
    pool.touch([one, shared])
    here = test_who_frees_the_last_use_of_a_block_is_told_and_who_takes_it_up_again.__name__
    assert told == [("freed", [1], here), ("revived", [1], "")]


def test_a_block_that_is_read_after_it_was_freed_says_who_freed_it() -> None:
    model = made()
    model.prefixes["b"] = Prefixes([90, *PROMPT])
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    model.freed([5], Freed("Manager.free", "manager.py:7"))
    other = arrives([5, 3, 4])
    other.req_id, other.prompt_token_ids = "b", [90, *PROMPT]
    model.launch(batch({"b": 7}, new=[other]))
    model.launch(batch({"a": 1}, cached=goes_on([7], 6)))
    (content,) = model.reports.records
    assert isinstance(content, WrongContent)
    assert (content.rid, content.holds, content.freed_by, content.where) == (
        "a",
        "other tokens",
        "Manager.free",
        "manager.py:7",
    )


@pytest.mark.parametrize("revives", [False, True])
def test_a_block_that_was_freed_holds_nothing_until_somebody_takes_it_up_or_writes_it(revives: bool) -> None:
    model = made()
    model.prefixes["b"] = Prefixes([90, *PROMPT])
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    model.freed([5, 2], Freed("Manager.free", "manager.py:7"))
    if revives:
        model.revived([5])
    other = arrives([5, 3, 4], 4)
    other.req_id, other.prompt_token_ids = "b", [90, *PROMPT]
    model.launch(batch({"b": 3}, new=[other]))
    (content,) = model.reports.records
    assert isinstance(content, WrongContent)
    assert (content.holds, content.freed_by) == ("other tokens" if revives else "nothing", "")


def test_tokens_without_a_block_and_tokens_that_nobody_said_are_noted() -> None:
    model = made()
    assert model.launch(batch({"a": 6}, new=[arrives([5])]))() == {"a": []}
    model.launch(batch({"a": 7}, cached=goes_on([2])))
    assert model.reports.records == [NoSlot("extend", "a", BLOCK), BadValue("extend", "a", "num_scheduled_tokens", 7)]


def test_what_a_pipelines_first_stage_reads_too_early_is_nothing() -> None:
    """A decode comes `ring` steps after that which sampled its token. Batches without requests are steps, too."""
    model = Model(8, (BLOCK,), 3, context=240, is_told=False, ring=2)
    model.right = lambda _most: 0
    model.prefixes["a"] = Prefixes(PROMPT)
    model.launch(batch({"a": 6}, new=[arrives([5, 2, 3])]))
    model.launch(batch({}))
    assert model.launch(batch({"a": 1}, cached=goes_on([])))() == {"a": SAID[1:2]}
    assert model.reports.records == []
    assert model.launch(batch({"a": 1}, cached=goes_on([])))() != {"a": SAID[2:3]}
    (content,) = model.reports.records
    assert (content.pool, content.holds, content.position) == ("input", "nothing", 7)


def test_a_resumed_requests_tokens_do_not_come_by_the_ring() -> None:
    model = Model(8, (BLOCK,), 3, context=240, is_told=False, ring=2)
    model.right = lambda _most: 0
    model.prefixes["a"] = Prefixes(PROMPT)
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    cached = goes_on([6, 7, 4], resumed=True, tokens=[*PROMPT, SAID[0]])
    assert model.launch(batch({"a": 7}, cached=cached))() == {"a": SAID[1:2]}
    assert model.reports.records == []


def test_drafts_that_are_scheduled_before_the_token_that_they_follow_are_noted() -> None:
    model = made()
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    assert model.launch(batch({"a": 1}, cached=goes_on([]), drafts={"a": [PAD]}))() == {"a": []}
    (content,) = model.reports.records
    assert (content.pool, content.holds, content.position) == ("input", "nothing", 6)


RING = "class PPHandler:\n    def get_prev_sampled_outputs(self): ...\n"


def test_stages_have_a_ring_where_their_file_has_one(tmp_path: Path) -> None:
    assert not has_ring(tmp_path)
    assert has_ring(source(tmp_path / "new", {"v1/worker/gpu/pp_utils.py": RING}))


def test_a_request_that_has_ended_is_forgotten() -> None:
    model = made()
    model.launch(batch({"a": 6}, new=[arrives([5, 2])]))
    model.launch(batch({}, finished=["a"]))
    with pytest.raises(KeyError):
        model.launch(batch({"a": 1}))


@pytest.mark.parametrize(("blocks", "noted"), [([5, 2], []), ([5], [NoSlot("draft", "a", BLOCK)])])
def test_drafts_need_blocks_behind_the_tokens(blocks: list[int], noted: list[NoSlot]) -> None:
    """Of three drafts two are written behind the three tokens of a prompt."""
    model = made()
    new = arrives(blocks)
    new.prompt_token_ids = PROMPT[:3]
    model.prefixes["a"] = Prefixes(PROMPT[:3])
    model.launch(batch({"a": 3}, new=[new]))
    assert model.reports.records == noted
