"""The tensor functions of real releases, and the few kernels beside them: what each has, what is wrong with it, what
is listed as not run; and that an edit of the source is seen. What is expected is data in `fixtures/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from property_tests.support.known_releases import FIXTURES, NEWEST, OLDEST
from property_tests.support.made_up_sources import edited
from property_tests.support.release_expectations import functions_of, of_functions, outcomes
from specsim.contracts.registry import OPS
from specsim.engines.sglang.operations import CALLERS, FUNCTIONS
from specsim.engines.sglang.provider import SglangProvider
from specsim.engines.sglang.where import files
from specsim.lifting.cache import Cache
from specsim.lifting.lift import DriftError
from specsim.lifting.source import SourceTree
from specsim.tiers.ops.run import run_case
from specsim.tiers.ops.suite import chooser_of

EXPECTED = json.loads((FIXTURES / "functions.expected.json").read_text())

Release = Callable[[str], SourceTree]


@pytest.mark.parametrize("version", list(EXPECTED))
@pytest.mark.slow(runs_one_in=2)
def test_a_release_has_the_findings_that_its_tensor_functions_are_known_for_and_no_other(
    version: str, release: Release, wheel_cache: Cache, pytestconfig: pytest.Config
) -> None:
    if version not in (OLDEST, NEWEST) and not pytestconfig.getoption("--all-releases"):
        pytest.skip(f"sglang=={version} is tested by `make test-releases`")
    assert of_functions(release(version), wheel_cache) == EXPECTED[version]


def test_no_two_subjects_have_one_name(release: Release, wheel_cache: Cache) -> None:
    subjects, _not_run = SglangProvider(release(NEWEST), wheel_cache).subjects()
    names = [s.name for s in subjects]
    assert len(set(names)) == len(names)
    assert not {f.name for f in FUNCTIONS} & {f"caller:{c.function}" for c in CALLERS}


# An edit of the newest release that the suite reads, and the subjects that see it.
WORKER, SAMPLE = "srt/speculative/eagle_worker_v2.py", "srt/speculative/eagle_info_v2.py"
UTILS, TREES = "srt/speculative/spec_utils.py", "srt/speculative/eagle_utils.py"
RESULTS = files("resolve_tokens")[0]
EDITS = [
    (UTILS, r"(topk_sq \* )\(\w+ - 1\)", r"\1i", "function:select_top_k_tokens"),
    (UTILS, r"\.repeat_interleave\(topk, dim=0\)", ".repeat(topk, 1)", "draft_forward, selecting"),
    (TREES, r"torch\.sort\((\w+)\)\.values", r"\1", "function:organize_draft_results"),
    (TREES, r"(\(3, bs, \w+\)), -1,", r"\1, 0,", "function:build_tree_kernel_efficient"),
    (WORKER, r"(cat\(token_list)(, dim=1)", r"\1[::-1]\2", "organizing"),
    (SAMPLE, r"(sampling_info\.logit_bias), [\w.]+", r"\1, 1", "eagle_sample, penalties"),
    (SAMPLE, r"(sampling_info\.temperatures), (?=self)", r"1 + \1, ", "sample, softmax"),
    (SAMPLE, r"(draft_probs = torch\.)zeros_like", r"\1ones_like", "eagle_sample, tree"),
    (SAMPLE, r"(\(bs, [\w.]+ \+ 1\)), -1,", r"\1, 0,", "eagle_sample, argmax"),
    (WORKER, r"\.clamp\(min=0\)(?=\.reshape)", ".clamp(min=1)", "function:_finalize_accept_tree_path"),
    (WORKER, r"(accept_index, accept_lens) - 1\)", r"\1 - 2)", "_finalize_accept_tree_path"),
    (WORKER, r"(new_seq_lens = [\w.]+) \+ accept_lens", r"\1 + 1", "verify, whole"),
    (RESULTS, r"stride = result\.\w+", "stride = max(accept_lens)", "_resolve_spec_v2_tokens"),
    (RESULTS, r"(kv_committed_len \+= )accept_lens\[i\]", r"\g<1>1", "_resolve_spec_v2_tokens"),
]


def test_with_an_order_of_ties_of_its_own_a_release_keeps_every_parent(release: Release, wheel_cache: Cache) -> None:
    stable = edited(
        release(NEWEST),
        TREES,
        r"torch\.topk\((\w+), (\w+ - 1), dim=-1\)",
        r"torch.return_types.topk(s[..., : \2] for s in \1.sort(dim=-1, descending=True, stable=True))",
    )
    subjects = functions_of(stable, wheel_cache)[0]
    found = outcomes(subjects["function:organize_draft_results, ties"], 10)
    assert len(found) == 10
    assert not [violation for _case, outcome in found for violation in outcome.violations]


@pytest.mark.parametrize(("path", "pattern", "becomes", "name"), EDITS, ids=[f"{e[3]}: {e[2]}" for e in EDITS])
@pytest.mark.slow(runs_one_in=3)
def test_a_defect_edited_into_a_release_is_found(
    path: str, pattern: str, becomes: str, name: str, release: Release, wheel_cache: Cache
) -> None:
    provider = SglangProvider(edited(release(NEWEST), path, pattern, becomes), wheel_cache)
    (names,) = [f for f in FUNCTIONS if f.name.endswith(name)]
    assert any(
        outcome.violations for _case, outcome in outcomes(provider.function(names), 40 if name == "organizing" else 8)
    )


def test_the_stubs_are_no_larger_for_a_large_token(release: Release, wheel_cache: Cache) -> None:
    """A drafter's logits with a column for each token up to the largest took all memory of the machine."""
    (names,) = [f for f in FUNCTIONS if f.name.endswith("organizing")]
    subject = SglangProvider(release(NEWEST), wheel_cache).function(names)
    op = OPS[subject.op]
    drawn = [op.generate(chooser_of(0, subject, index)) for index in range(40)]
    case = next(case for case in drawn if case.sizes["topk"] == 1 and case.sizes["num_steps"] > 1)
    case.tensors["tokens"] += 2**40
    assert run_case(op, subject, case).violations == ()


ORGANIZE = next(f for f in FUNCTIONS if f.name == "function:organize_draft_results")


def test_a_new_parameter_is_not_run_and_not_a_pass(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(NEWEST), TREES, r"(def organize_draft_results\()", r"\1new_argument, ")
    with pytest.raises(DriftError, match=r"^signature changed: .*new_argument"):
        SglangProvider(source, wheel_cache).function(ORGANIZE)


def test_what_a_function_came_to_call_is_reported_and_is_no_finding(release: Release, wheel_cache: Cache) -> None:
    calls = edited(release(NEWEST), TREES, r"(\n +)(top_scores = )", r"\1a_new_thing(token_list)\1\2")
    source = edited(calls, TREES, r"\A", "from sglang.srt.new import a_new_thing\n")
    with pytest.raises(DriftError, match=r"^cannot be lifted: .* it calls a_new_thing"):
        SglangProvider(source, wheel_cache).function(ORGANIZE)


def test_what_a_scheduler_makes_of_a_result_is_checked_where_its_module_is_not_imported(
    release: Release, wheel_cache: Cache
) -> None:
    broken = edited(release(NEWEST), RESULTS, r"\Z", r"\nraise ImportError\n")
    (names,) = [f for f in FUNCTIONS if f.name == "caller:_resolve_spec_v2_tokens"]
    for source, has_findings in ((broken, False), (edited(broken, RESULTS, r"i \* stride", "i"), True)):
        found = outcomes(SglangProvider(source, wheel_cache).function(names), 10)
        assert len(found) == 10
        assert any(outcome.violations for _case, outcome in found) is has_findings


def test_what_is_rehearsed_launches_no_kernel(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(NEWEST), WORKER, r"(next_power_of_2\(size\))", r"\1 * 2**40")
    (names,) = [f for f in FUNCTIONS if f.name == "function:_finalize_accept_tree_path"]
    assert SglangProvider(source, wheel_cache).function(names).op == "compact_accepted_path"
