"""The workers tier: what a release's own worker functions do between recording stubs.

Which release has which of it is held by the fixtures. Here: that a defect that is edited away is not found any more,
that the seed's own patch edited in changes nothing, and that what cannot be run is said and is no finding.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from property_tests.support.command_line import specsim
from property_tests.support.made_up_sources import MadeUpSource, cache_in
from property_tests.support.release_expectations import checked_probes, of_probes
from specsim.choices.chooser import replayed
from specsim.engines.probe import Probe
from specsim.engines.sglang.guards import read_guards
from specsim.engines.sglang.multi_layer import (
    DECODE,
    FUNCTIONS,
    PREFILL,
    WORKER_CLASS,
    WORKER_FILE,
    multi_layer_probes,
)
from specsim.engines.sglang.penalties import FEED, RETRACTION, VERIFICATION
from specsim.engines.sglang.probes import probes_of
from specsim.findings.pin import replay_pinned
from specsim.lifting.cache import Cache
from specsim.lifting.lift import Lifter, find_function, parse_module
from specsim.lifting.source import SourceTree
from specsim.tiers.workers.probing import NoStubError, ProbeResult, chooser_of, digest_of, run_probe
from specsim.tiers.workers.rules import BY_ID, WORKER_RULES
from specsim.verdict import NotRun

Release = Callable[[str], SourceTree]
Probes = Callable[[str], dict[str, Probe]]
EXPECTED = json.loads((Path(__file__).parents[2] / "fixtures" / "workers.expected.json").read_text())
# The oldest release, and the first that has the seed's own patch to the multi-layer worker.
OLDEST, AFTER_THE_PATCH, *_ = EXPECTED


@pytest.fixture(scope="module")
def probes(release: Release, wheel_cache: Cache) -> Probes:
    """The probes of a release by name, lifted once."""
    lifted: dict[str, dict[str, Probe]] = {}

    def of(version: str) -> dict[str, Probe]:
        if version not in lifted:
            lifted[version] = {probe.name: probe for probe in probes_of(release(version), wheel_cache)[0]}
        return lifted[version]

    return of


@pytest.mark.parametrize("version", list(EXPECTED))
def test_a_release_has_the_findings_that_it_is_known_for_and_no_other(version: str, probes: Probes) -> None:
    assert of_probes(checked_probes(probes(version).values())) == EXPECTED[version]


def rules(results: dict[str, ProbeResult]) -> dict[str, set[str]]:
    return {name: set(broken) for name, broken in of_probes(results).items()}


def multi_layer(source: SourceTree, cache: Cache) -> dict[str, ProbeResult]:
    """Both draft extends of a source, checked."""
    lifter = Lifter(source, cache, {})
    found = multi_layer_probes(lifter, read_guards(source))
    return checked_probes([probe for probe in found if isinstance(probe, Probe)])


def edited(source: SourceTree, lines: list[str], probe: str = "") -> MadeUpSource:
    """The source with lines put before the runner's forward in the loop over steps, of both draft extends or of one."""
    module = parse_module(source, WORKER_FILE)
    text = module.text.splitlines()
    starts = []
    for name in [FUNCTIONS[probe]] if probe else FUNCTIONS.values():
        for node in ast.walk(find_function(module, f"{WORKER_CLASS}.{name}")):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                called = node.value.func if isinstance(node.value, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr == "forward":
                    starts.append(node)
    for node in sorted(starts, key=lambda n: -n.lineno):
        text[node.lineno - 1 : node.lineno - 1] = [" " * node.col_offset + line for line in lines]
    return MadeUpSource({WORKER_FILE: "\n".join(text)}, base=source)


STEP = "self.draft_runner_list[step]"


def test_the_patch_that_assigns_the_rows_changes_nothing(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(OLDEST), [f"forward_batch.req_to_token_pool = {STEP}.req_to_token_pool"])
    found = rules(multi_layer(source, wheel_cache))
    assert (found[PREFILL], found[DECODE]) == ({"I48"}, {"I48"})


def test_assigning_pool_and_backend_of_the_step_ends_it(release: Release, wheel_cache: Cache) -> None:
    names = ("token_to_kv_pool", "attn_backend")
    source = edited(release(OLDEST), [f"forward_batch.{n} = {STEP}.{n}" for n in names])
    found = rules(multi_layer(source, wheel_cache))
    assert found[PREFILL] == set()
    assert found[DECODE] == {"W3"}  # the step's own backend then has to be planned, too
    planned = f"{STEP}.attn_backend.init_forward_metadata(forward_batch)"
    both = edited(release(OLDEST), [*(f"forward_batch.{n} = {STEP}.{n}" for n in names), planned])
    assert rules(multi_layer(both, wheel_cache))[DECODE] == set()


def test_half_of_it_does_not(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(OLDEST), [f"forward_batch.token_to_kv_pool = {STEP}.token_to_kv_pool"])
    assert rules(multi_layer(source, wheel_cache))[PREFILL] == {"I48"}


@pytest.mark.parametrize("kind", ["frequency_penalty", "min_new_tokens", "logit_bias"])
def test_the_oldest_release_applies_none_of_it_at_verification(kind: str, probes: Probes) -> None:
    probe = probes(OLDEST)[VERIFICATION]
    asked = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
    for index in range(400):
        shown = run_probe(probe, chooser_of(0, "one penalty", index))
        for broken in shown.broken:
            request = int(broken.what.split(",")[0].split()[1])
            params = shown.case["trees"][request]["params"]
            if [n for n, v in params.items() if v != asked.get(n)] == [kind]:
                assert broken.rule == "W1"
                return
    pytest.fail(f"no case asks for {kind} alone and breaks W1")


def test_without_penalties_in_any_request_verification_breaks_nothing(probes: Probes) -> None:
    for version in EXPECTED:
        assert run_probe(probes(version)[VERIFICATION], replayed(())).broken == ()


def test_each_finding_is_small_and_the_same_again(probes: Probes, release: Release, wheel_cache: Cache) -> None:
    again = {probe.name: probe for probe in probes_of(release(AFTER_THE_PATCH), wheel_cache)[0]}
    for probe in probes(AFTER_THE_PATCH).values():
        for found in checked_probes([probe])[probe.name].findings:
            assert len(found.tape) <= 20
            assert digest_of(run_probe(again[probe.name], replayed(found.tape))) == digest_of(found.shown)
            assert json.loads(json.dumps(found.shown.case)) == found.shown.case


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tape=st.lists(st.integers(0, 9), max_size=60))
def test_any_tape_is_a_case(probes: Probes, tape: list[int]) -> None:
    for probe in probes(AFTER_THE_PATCH).values():
        drawn, run = replayed(tape), replayed(tape)
        probe.draw(drawn)
        run_probe(probe, run)
        assert drawn.tape == run.tape


def test_a_release_that_applies_none_has_no_feed_to_check(release: Release, wheel_cache: Cache) -> None:
    _probes, not_run = probes_of(release(OLDEST), wheel_cache)
    assert {entry.what for entry in not_run} == {FEED, RETRACTION}
    assert all("feeds no penalizers" in entry.why for entry in not_run)


def test_a_source_without_these_functions_is_not_run_and_not_a_pass(tmp_path: Path) -> None:
    source = MadeUpSource({"srt/other.py": "x = 1"})
    probes, not_run = probes_of(source, cache_in(tmp_path))
    assert probes == []
    assert [entry.what for entry in not_run] == [PREFILL, DECODE, VERIFICATION, FEED, RETRACTION]
    assert all(isinstance(entry, NotRun) and entry.why for entry in not_run)


def test_a_name_without_a_stub_is_not_run_and_no_finding(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(AFTER_THE_PATCH), ["forward_batch.x = a_name_of_a_later_release(forward_batch)"])
    result = multi_layer(source, wheel_cache)[PREFILL]
    assert (result.cases, result.findings) == (0, [])
    assert "a_name_of_a_later_release" in result.why_not
    found = multi_layer_probes(Lifter(source, wheel_cache, {}), read_guards(source))
    probe = next(p for p in found if isinstance(p, Probe))
    with pytest.raises(NoStubError):
        run_probe(probe, replayed(()))


def test_what_a_function_raises_is_a_finding(release: Release, wheel_cache: Cache) -> None:
    source = edited(release(AFTER_THE_PATCH), ["raise RuntimeError('broken')"])
    (found,) = multi_layer(source, wheel_cache)[PREFILL].findings
    assert (found.rule, found.broken.actual) == ("X1", "RuntimeError: broken")


# What the probes read of a release.
READ = (
    "srt/speculative",
    "srt/model_executor",
    "srt/sampling",
    "srt/layers/attention",
    "srt/layers/radix",
    "srt/managers",
)


@pytest.mark.slow
def test_a_function_that_hangs_or_dies_is_a_finding_and_others_are_checked(release: Release, tmp_path: Path) -> None:
    source = edited(release(AFTER_THE_PATCH), ["while True: pass"], PREFILL)
    source = edited(source, ["__import__('os').abort()"], DECODE)
    for name in source.paths("srt"):
        if name.endswith(".py") and name.startswith((*READ, "srt/server_args", "srt/environ")):
            (tmp_path / "sglang" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "sglang" / name).write_text(source.read(name))
    arguments = ("--only", "workers", "--cases", "10", "--hang-seconds", "3", "--json", "verdict.json")
    ended = specsim(tmp_path, "check", f"sglang@{tmp_path}", *arguments)
    assert ended.returncode == 1, ended.stderr
    data = json.loads((tmp_path / "verdict.json").read_text())
    found = {finding["signature"]: finding for finding in data["findings"]}
    assert "does not end within 3 s" in found[f"workers:{PREFILL}:X2"]["actual"]
    assert "SIGABRT" in found[f"workers:{DECODE}:X3"]["actual"]
    assert f"workers:{VERIFICATION}:W2" in found
    ended = specsim(tmp_path, "replay", found[f"workers:{DECODE}:X3"]["replay"])
    assert (ended.returncode, "SIGABRT" in ended.stdout) == (1, True), ended.stdout + ended.stderr


FIXTURE = Path(__file__).parents[2] / "fixtures" / "replays" / "no-penalties-at-verification.json"


@pytest.mark.slow
def test_a_replay_file_is_pinned_replayed_and_shrunk(release: Release, tmp_path: Path) -> None:
    release(OLDEST)
    release(AFTER_THE_PATCH)
    assert replay_pinned(FIXTURE, f"sglang=={OLDEST}").shown
    assert not replay_pinned(FIXTURE, f"sglang=={AFTER_THE_PATCH}").shown
    ended = specsim(tmp_path, "replay", str(FIXTURE), "--verify")
    assert (ended.returncode, "bit for bit" in ended.stdout) == (1, True), ended.stdout + ended.stderr
    ended = specsim(tmp_path, "shrink", str(FIXTURE))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_replay_file_whose_tape_means_another_case_no_longer_applies(release: Release, tmp_path: Path) -> None:
    release(OLDEST)
    stored = json.loads(FIXTURE.read_text())
    (tmp_path / "other.json").write_text(json.dumps({**stored, "tape": []}))
    ended = specsim(tmp_path, "replay", "other.json")
    assert (ended.returncode, "no longer applies" in ended.stdout) == (125, True), ended.stdout + ended.stderr
    (tmp_path / "broken.json").write_text(json.dumps({**stored, "case": "none"}))
    ended = specsim(tmp_path, "replay", "broken.json")
    assert (ended.returncode, "field 'case'" in ended.stderr) == (2, True)


def test_the_rules_of_the_tier_are_its_own_or_those_of_schedules() -> None:
    assert [rule.id for rule in WORKER_RULES] == ["W1", "W2", "W3"]
    assert all(rule.id == name for name, rule in BY_ID.items())
