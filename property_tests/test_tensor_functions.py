"""The tensor functions of real releases, and the few kernels beside them: what each has, what is wrong with it, what
is listed as not run; and that an edit of the source is seen. What is expected is data in `fixtures/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from property_tests.made_up_sources import MadeUpSource
from specsim.diff.run import Outcome, run_case
from specsim.diff.suite import DRAWS_PER_CASE_MAX, chooser_of
from specsim.ops.contract import Case
from specsim.ops.provider import Subject
from specsim.ops.registry import OPS
from specsim.targets.cache import Cache
from specsim.targets.lift import DriftError
from specsim.targets.sglang.operations import CALLERS, FUNCTIONS, logits, sampling
from specsim.targets.sglang.provider import SglangProvider
from specsim.targets.source import SourceTree

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPECTED = json.loads((FIXTURES / "functions.expected.json").read_text())
READ = [line for line in (FIXTURES / "releases.txt").read_text().splitlines() if line and not line.startswith("#")]
NEWEST = READ[-1]  # of those that every run of the suite reads
NAMES = {f.name for f in FUNCTIONS} | {f"kernel:{k.op}" for k in (*logits.KERNELS, *sampling.KERNELS)}
LISTED = {f.what for f in FUNCTIONS} | {k.op for k in (*logits.KERNELS, *sampling.KERNELS)}
CASES = 4

Release = Callable[[str], SourceTree]


def subjects_of(source: SourceTree, cache: Cache) -> tuple[dict[str, Subject], dict[str, str]]:
    """The subjects of this file by name, and what of it is not run with the reason."""
    subjects, not_run = SglangProvider(source, cache).subjects()
    return {s.name: s for s in subjects if s.name in NAMES}, {e.what: e.why for e in not_run if e.what in LISTED}


def outcomes(subject: Subject, cases: int) -> list[tuple[Case, Outcome]]:
    """What the first cases that the subject accepts show; nothing is shrunk."""
    op = OPS[subject.op]
    found: list[tuple[Case, Outcome]] = []
    for index in range(DRAWS_PER_CASE_MAX * cases):
        case = op.generate(chooser_of(0, subject, index))
        if len(found) < cases and subject.accepts(case.sizes):
            outcome = run_case(op, subject, case)
            found += [(case, outcome)] if outcome.judged else []
    return found


def told(source: SourceTree, cache: Cache) -> dict[str, Any]:
    """What `fixtures/functions.expected.json` has of a release: for each finding its rules and reaches."""
    subjects, not_run = subjects_of(source, cache)
    shown = {name: outcomes(subject, CASES) for name, subject in subjects.items()}
    broken = {
        name: {(v.rule.id, subjects[name].reach(case.sizes).split(":")[0]) for case, o in found for v in o.violations}
        for name, found in shown.items()
    }
    return {
        "findings": {name: [" ".join(words) for words in sorted(rules)] for name, rules in broken.items() if rules},
        "judged": [name for name, found in shown.items() if found],
        "not_run": sorted(not_run),
    }


@pytest.mark.parametrize("version", list(EXPECTED))
def test_a_release_has_the_findings_that_its_tensor_functions_are_known_for_and_no_other(
    version: str, release: Release, wheel_cache: Cache, pytestconfig: pytest.Config
) -> None:
    if version not in (READ[0], NEWEST) and not pytestconfig.getoption("--all-releases"):
        pytest.skip(f"sglang=={version} is tested by `make test-releases`")
    assert told(release(version), wheel_cache) == EXPECTED[version]


def test_no_two_subjects_have_one_name(release: Release, wheel_cache: Cache) -> None:
    subjects, _not_run = SglangProvider(release(NEWEST), wheel_cache).subjects()
    names = [s.name for s in subjects]
    assert len(set(names)) == len(names)
    assert not {f.name for f in FUNCTIONS} & {f"caller:{c.function}" for c in CALLERS}


# An edit of the newest release that the suite reads, and the subjects that see it.
WORKER, SAMPLE = "srt/speculative/eagle_worker_v2.py", "srt/speculative/eagle_info_v2.py"
UTILS, TREES = "srt/speculative/spec_utils.py", "srt/speculative/eagle_utils.py"
EDITS = [
    (UTILS, "(topk_sq * (i - 1) + topk)", "(topk_sq * i + topk)", "function:select_top_k_tokens"),
    (
        UTILS,
        "hidden_states.repeat_interleave(topk, dim=0)",
        "hidden_states.repeat(topk, 1)",
        "draft_forward, selecting",
    ),
    (TREES, "torch.sort(top_scores_index).values", "top_scores_index", "function:organize_draft_results"),
    (
        TREES,
        "(3, bs, num_verify_tokens), -1,",
        "(3, bs, num_verify_tokens), 0,",
        "function:build_tree_kernel_efficient",
    ),
    (WORKER, "torch.cat(token_list, dim=1)", "torch.cat(token_list[::-1], dim=1)", "organizing"),
    (
        SAMPLE,
        "sampling_info.logit_bias, self.draft_token_num",
        "sampling_info.logit_bias, 1",
        "eagle_sample, penalties",
    ),
    (SAMPLE, "sampling_info.temperatures, self.draft", "1 + sampling_info.temperatures, self.draft", "sample, softmax"),
    (SAMPLE, "draft_probs = torch.zeros_like", "draft_probs = torch.ones_like", "eagle_sample, tree"),
    (SAMPLE, "(bs, self.spec_steps + 1), -1,", "(bs, self.spec_steps + 1), 0,", "eagle_sample, argmax"),
    (WORKER, ".clamp(min=0).reshape(-1)", ".clamp(min=1).reshape(-1)", "function:_finalize_accept_tree_path"),
    (WORKER, "accept_index, accept_lens - 1)", "accept_index, accept_lens - 2)", "_finalize_accept_tree_path"),
    (WORKER, "new_seq_lens = batch.seq_lens + accept_lens", "new_seq_lens = batch.seq_lens + 1", "verify, whole"),
]


@pytest.mark.parametrize(("path", "before", "after", "name"), EDITS, ids=[f"{e[3]}: {e[2]}" for e in EDITS])
def test_a_defect_edited_into_a_release_is_found(
    path: str, before: str, after: str, name: str, release: Release, wheel_cache: Cache
) -> None:
    source = release(NEWEST)
    text = source.read(path)
    assert before in text
    provider = SglangProvider(MadeUpSource({path: text.replace(before, after)}, base=source), wheel_cache)
    (names,) = [f for f in FUNCTIONS if f.name.endswith(name)]
    assert any(
        outcome.violations for _case, outcome in outcomes(provider.function(names), 24 if name == "organizing" else 8)
    )


ORGANIZE = next(f for f in FUNCTIONS if f.name == "function:organize_draft_results")


def test_a_new_parameter_is_not_run_and_not_a_pass(release: Release, wheel_cache: Cache) -> None:
    source = release(NEWEST)
    text = source.read(TREES).replace("def organize_draft_results(", "def organize_draft_results(new_argument, ")
    with pytest.raises(DriftError, match=r"^signature changed: .*new_argument"):
        SglangProvider(MadeUpSource({TREES: text}, base=source), wheel_cache).function(ORGANIZE)


def test_what_a_function_came_to_call_is_said_and_is_no_finding(release: Release, wheel_cache: Cache) -> None:
    source = release(NEWEST)
    text = source.read(TREES).replace(
        "    top_scores = torch", "    a_new_thing(token_list)\n    top_scores = torch", 1
    )
    text = "from sglang.srt.new import a_new_thing\n" + text
    with pytest.raises(DriftError, match=r"^cannot be lifted: .* it calls a_new_thing"):
        SglangProvider(MadeUpSource({TREES: text}, base=source), wheel_cache).function(ORGANIZE)


def test_what_is_rehearsed_launches_no_kernel(release: Release, wheel_cache: Cache) -> None:
    source = release(NEWEST)
    text = source.read(WORKER).replace("next_power_of_2(size),", "next_power_of_2(size) * 2**40,")
    provider = SglangProvider(MadeUpSource({WORKER: text}, base=source), wheel_cache)
    (names,) = [f for f in FUNCTIONS if f.name == "function:move_accept_tokens_to_target_kvcache"]
    assert provider.function(names).op == "fill_accept_out_cache_loc"
