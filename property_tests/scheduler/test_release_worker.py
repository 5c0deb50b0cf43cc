"""A release's own worker decodes what sequential decoding gives, exactly at a temperature, too, and repeats itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.boot_scheduler import decoded
from property_tests.support.known_releases import FEW, FIXTURES, NEWEST, RELEASES
from property_tests.support.scheduler_checkouts import specsim
from specsim.engines.sglang.scheduler import attention
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.lifting.source import SourceTree
from specsim.world.hash_model import FIRST_TOKEN, VOCABULARY, next_token
from specsim.world.scheduler import SAMPLINGS, Setup, rows_of

OWN = {"worker": "release", "max_total_tokens": 1024}
GRAPHS = {**OWN, "cuda_graphs": True}
TREES = {**GRAPHS, "topk": 2, "num_draft_tokens": 6, "num_steps": 3}
LAYERS = {**OWN, "multi_layer": True}
ALONE = {"overlap": False}
WINDOW = {**OWN, "sliding_window": 8}
OLDER, LATEST = FEW[2], RELEASES[-1]


@pytest.mark.parametrize(
    ("version", "options"),
    [
        pytest.param(version, options, marks=[pytest.mark.slow] if (version, options) != (NEWEST, TREES) else [])
        for version in (NEWEST, LATEST)
        for options in (OWN, GRAPHS, TREES, {**TREES, **ALONE})
    ],
    ids=str,
)
def test_four_requests_decode_as_one_by_one(
    release: Callable[[str], SourceTree], version: str, options: dict[str, Any]
) -> None:
    release(version)
    answer = decoded(version, options)
    assert (answer["records"], answer["findings"]) == ([], [])


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (NEWEST, WINDOW),
        *(
            pytest.param(version, {**options, **WINDOW}, marks=pytest.mark.slow)
            for version in (RELEASES[0], LATEST)
            for options in (GRAPHS, ALONE, {"page_size": 4})
        ),
        pytest.param(LATEST, {**TREES, **WINDOW, "page_size": 4}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_layers_with_a_sliding_window_change_no_token_and_read_what_they_should(
    release: Callable[[str], SourceTree], version: str, options: dict[str, Any]
) -> None:
    release(version)
    answer = decoded(version, options)
    assert not [record for record in answer["records"] if not record.startswith("DraftRead(")]


@pytest.mark.parametrize(
    ("version", "drafter", "options"),
    [
        (NEWEST, "standalone", {}),
        pytest.param(NEWEST, "ngram", ALONE, marks=pytest.mark.slow),
        pytest.param(RELEASES[0], "standalone", ALONE, marks=pytest.mark.slow),
        pytest.param(RELEASES[0], "ngram", ALONE, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_other_drafters_change_no_token_and_their_drafts_are_accepted(
    release: Callable[[str], SourceTree], version: str, drafter: str, options: dict[str, Any]
) -> None:
    release(version)
    answer = decoded(version, {**TREES, **options, "drafter": drafter})
    assert all(record.startswith("DraftRead(") for record in answer["records"])
    assert answer["findings"] == []
    assert answer["iterations"] < 40


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
def test_several_draft_models_change_no_token(release: Callable[[str], SourceTree], graphs: bool) -> None:
    release(LATEST)
    answer = decoded(LATEST, {**LAYERS, "cuda_graphs": graphs})
    assert not [record for record in answer["records"] if "KV-of-another-step" in record or "row:" in record]


def test_a_step_of_several_draft_models_that_reads_the_first_pool_is_named(
    release: Callable[[str], SourceTree],
) -> None:
    release(OLDER)
    answer = decoded(OLDER, LAYERS)
    named = {record.partition("rid='")[2][:2] for record in answer["records"] if "'KV-of-another-step:" in record}
    assert named == set(answer["outputs"])


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (OLDER, {**TREES, **ALONE, "cuda_graphs": False}),
        pytest.param(OLDER, {**OWN, **ALONE, "page_size": 4}, marks=pytest.mark.slow),
        pytest.param(RELEASES[0], {**TREES, **ALONE}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_worker_of_spec_v1_decodes_as_one_by_one_and_keeps_its_accounts(
    release: Callable[[str], SourceTree], version: str, options: dict[str, Any]
) -> None:
    release(version)
    answer = decoded(version, options)
    assert answer["findings"] == []
    assert answer["records"], "each of its drafts' extensions is planned twice"
    assert all(record.startswith("DraftRead(") and "'token:" not in record for record in answer["records"])
    assert answer["iterations"] < 40, "its drafts are accepted"


@pytest.mark.slow(runs_one_in=3)
@pytest.mark.parametrize(
    "name", ["draft-extension-planned-twice", "draft-of-a-chunk", "a-later-draft-step-writes-the-first-pool"]
)
def test_a_replay_of_another_process_repeats_bit_for_bit(release: Callable[[str], SourceTree], name: str) -> None:
    path = FIXTURES / "replays" / f"{name}.json"
    release(OLDER)
    ended = specsim("replay", path, "--target", f"sglang=={OLDER}")
    assert "reproduced, bit for bit" in ended.stdout
    ended = specsim("replay", path, "--target", f"sglang=={NEWEST}")
    assert f"not reproduced on sglang=={NEWEST}" in ended.stdout


def lossless(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "rows.json"
    ended = specsim("lossless", *arguments, "--json", out)
    (row,) = json.loads(out.read_text())["rows"]
    return ended.returncode, row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "drafts"), [(NEWEST, "chain"), (NEWEST, "tree"), pytest.param(OLDER, "tree", id="spec v1")]
)
def test_a_worker_is_lossless_exactly(
    release: Callable[[str], SourceTree], tmp_path: Path, version: str, drafts: str
) -> None:
    release(version)
    code, row = lossless(tmp_path, f"sglang=={version}", "--drafts", drafts)
    assert (code, row["off"]) == (0, "0")
    assert row["outcomes"] > 100


@pytest.mark.slow
def test_a_planted_defect_makes_a_worker_lossy(release: Callable[[str], SourceTree], tmp_path: Path) -> None:
    release(LATEST)
    code, row = lossless(tmp_path, f"sglang=={LATEST}", "--drafts", "chain", "--mutant", "W06")
    assert (code, row["off"]) == (1, "1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "sglang==1.0", "--only", "scheduler", "--worker", "another"),
        ("lossless", "sglang==1.0", "--drafts", "forest"),
        ("lossless", "sglang==1.0", "--mutant", "W99"),
        ("lossless", "flashinfer==1.0"),
        ("bench", "scheduler", "--worker", "none"),
    ],
    ids=" ".join,
)
def test_bad_input_is_a_sentence(arguments: tuple[str, ...]) -> None:
    ended = specsim(*arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stdout + ended.stderr


def test_every_setup_of_a_release_worker_is_one_that_a_server_can_have() -> None:
    chosen = [SETUPS[row] for row in rows_of(SETUPS, "release")]
    assert {setup.worker for setup in chosen} == {"release"}
    assert not any(setup.beyond_guards for setup in chosen)
    assert {(setup.graphs, setup.topk > 1) for setup in chosen} == {
        (a, b) for a in (False, True) for b in (False, True)
    }
    assert any(setup.sampled for setup in chosen)
    assert {(setup.graphs, setup.topk > 1) for setup in chosen if not setup.overlap} == {
        (False, True),
        (True, False),
        (True, True),
        (False, False),
    }
    assert not any(setup.sampled for setup in map(SETUPS.__getitem__, rows_of(SETUPS, "fake")))


def test_what_samples_a_request_leaves_the_most_likely_token_alone() -> None:
    torch = pytest.importorskip("torch")
    target = pytest.importorskip("specsim.engines.sglang.scheduler.target")
    logits = torch.empty(VOCABULARY)
    attention.target_logits(12345, logits.numpy())
    assert set(target.SAMPLING) == set(SAMPLINGS)
    for kind in SAMPLINGS:
        wanted = target.SAMPLING[kind]
        probs = (logits / wanted["temperature"]).softmax(-1)
        ordered = probs.sort(descending=True).values
        before = ordered.cumsum(0) - ordered  # of a token, the probability of those before it
        assert int(((ordered > 0) & (before < wanted.get("top_p", 1.0))).sum()) == 1
        assert int(probs.argmax()) == next_token(12345)


def test_what_watches_a_release_is_no_caller_of_its_functions() -> None:
    target = pytest.importorskip("specsim.engines.sglang.scheduler.target")
    found = pytest.importorskip("specsim.vdevice.findings")
    watching = f"ReleaseWorker.watch.<locals>.noted at {target.release_worker.__file__}:9"
    access = found.Access("forward", "a kernel", "a.py", 3, "verify", (watching, "step at b.py:4", watching))
    race = target.BLAME.record(found.Finding("race", "a tensor", access, access))
    assert race.what == "race:a-tensor:verify<step"
    assert not [text for text in race.details if "watch" in text]


@pytest.mark.parametrize("rank", range(attention.RANKED + 1))
def test_every_token_that_the_draft_model_thinks_of_is_known_as_its(rank: int) -> None:
    torch = pytest.importorskip("torch")
    logits = torch.empty(VOCABULARY)
    attention.draft_logits(777, rank, logits.numpy())
    thought = logits.nonzero().flatten().tolist()
    assert len(thought) == attention.RANKED
    assert all(attention.drafts(777, token) for token in thought)
    known = [token for token in range(FIRST_TOKEN, VOCABULARY) if attention.drafts(777, token)]
    assert len(known) == attention.RANKED + 1


def test_a_setup_says_that_its_requests_are_sampled() -> None:
    assert Setup(worker="release", sampled=True).name == "worker=release, sampled"
