"""Other packages than SGLang: what of them is lifted, loaded, built and kept, and what they are compared with."""

from __future__ import annotations

import re
import stat
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from property_tests.support.made_up_sources import MadeUpSource, cache_in, edited
from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case, ScalarArg
from specsim.contracts.frequencies import MIN_P, evidence
from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL
from specsim.engines import listing
from specsim.engines.flashinfer.launcher import headers, known_headers
from specsim.engines.importable import folder_of
from specsim.engines.load import load_provider
from specsim.engines.packages import cached_packages, fetch_package, open_source
from specsim.engines.registry import ENGINES, MAIN
from specsim.engines.sgl_kernel import OPERATIONS, find_library
from specsim.engines.target import Release, parse_target
from specsim.engines.triage import TABLE, triage_of
from specsim.engines.vllm.operations import IMPLEMENTATIONS, CoinTorch
from specsim.engines.vllm.operations.ragged_drafts import SAMPLER, UTILS
from specsim.engines.vllm.operations.rejection import REJECTION
from specsim.engines.vllm.provider import VllmProvider
from specsim.errors import UsageError
from specsim.findings.bisect.revisions import commits_between
from specsim.interpreter.lockstep.launch import lockstep
from specsim.lifting import nvcc
from specsim.lifting.cache import Cache
from specsim.lifting.fetch import PipResult
from specsim.tiers.ops.run import run_case

SAMPLERS = """
    import torch
    from vllm.elsewhere import decorated_with
    from vllm.triton_utils import tl, triton

    PLACEHOLDER: tl.constexpr = -1
    GREEDY_TEMPERATURE: tl.constexpr = 0

    def per_draft(values, ends):
        counts = ends.diff(prepend=torch.zeros_like(ends[:1]))
        return values.repeat_interleave(counts)

    def expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
        changed = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
        return per_draft(changed, cu_num_tokens)

    def sample_recovered_tokens(
        max_spec_len, num_draft_tokens, cu_num_draft_tokens, draft_token_ids, draft_probs, target_probs,
        sampling_metadata, device,
    ):
        noise = torch.empty((len(num_draft_tokens), target_probs.shape[1]), device=device)
        noise.exponential_()
        if draft_probs is None:
            token = torch.arange(target_probs.shape[1], device=device)
            left = target_probs.masked_fill(token == draft_token_ids[:, None], 0.0)
        else:
            left = (target_probs - draft_probs).clamp(min=0)
        return (left / per_draft_rows(noise, cu_num_draft_tokens)).argmax(1).to(torch.int32)

    def per_draft_rows(rows, ends):
        counts = ends.diff(prepend=torch.zeros_like(ends[:1]))
        return rows.repeat_interleave(counts, dim=0)

    @triton.jit
    def rejection_greedy_sample_kernel(output_token_ids_ptr, another):
        pass
"""
STEPS = """
    from vllm.warmup import DispatchSpec, triton_kernel_dispatcher_with_warmup
    from vllm.triton_utils import tl, triton

    @triton.jit
    def step_kernel(
        positions_ptr, table_ptr, stride, lens_ptr, clamped_ptr, slots_ptr, page: tl.constexpr, end, last, batch_size,
    ):
        i = tl.program_id(0)
        if i >= batch_size:
            tl.store(slots_ptr + i, -1)
            return
        at = tl.load(positions_ptr + i) + 1
        over = at >= end
        at = tl.where(over, 0, at)
        number = tl.load(table_ptr + i * stride + tl.minimum(at // page, last))
        tl.store(slots_ptr + i, tl.where(over, -1, number * page + at % page))
        tl.store(clamped_ptr + i, at)
        tl.store(lens_ptr + i, tl.minimum(tl.where(over, 1, tl.load(lens_ptr + i) + 1), end))

    def _warmup():
        return {}

    @triton_kernel_dispatcher_with_warmup(kernel=step_kernel, warmup_inputs=_warmup)
    def _step(positions, table, stride, lens, clamped, slots, *, page, end, last, batch_size, padded) -> DispatchSpec:
        return (padded,), {}

    def eagle_step_update_slot_mapping_and_metadata(
        positions_1d, block_table_tensor, seq_lens, block_size, max_model_len, out_clamped_positions, out_slot_mapping,
        input_batch_size=None,
    ):
        _step(
            positions_1d, block_table_tensor, block_table_tensor.stride(0), seq_lens, out_clamped_positions,
            out_slot_mapping, page=block_size, end=max_model_len, last=block_table_tensor.shape[1] - 1,
            batch_size=len(positions_1d), padded=input_batch_size,
        )
"""
LIFTED = {"expand_to_drafts", "sample_recovered_tokens", "step_slot_mapping"}


def provider(tmp_path: Path, **changed: str) -> VllmProvider:
    files = {SAMPLER: SAMPLERS, UTILS: STEPS, **changed}
    return VllmProvider(MadeUpSource(files, label="vllm@made-up"), cache_in(tmp_path))


def cases(name: str, count: int = 12) -> list[Case]:
    return [OPS[name].generate(seeded(0, name, index)) for index in range(count)]


def test_what_a_vllm_has_is_lifted_and_checked_with_the_uniform_draws_of_the_case(tmp_path: Path) -> None:
    subjects, _missing = provider(tmp_path).subjects()
    assert {subject.op for subject in subjects} == LIFTED
    for subject in subjects:
        for case in cases(subject.op):
            assert run_case(OPS[subject.op], subject, case).violations == (), subject.op


def test_what_a_vllm_lacks_or_changed_is_named(tmp_path: Path) -> None:
    _subjects, missing = provider(tmp_path).subjects()
    why = {entry.what: entry.why for entry in missing}
    assert why["verify_ragged_greedy"].startswith(f"signature changed: {SAMPLER}:")
    assert why["verify_ragged_sampled"] == f"not found: rejection_sample in {SAMPLER}"
    assert set(why) | LIFTED == set(OPS)


def test_a_wrong_race_is_a_finding_at_its_line(tmp_path: Path) -> None:
    wrong = SAMPLERS.replace("left / per_draft_rows", "left * per_draft_rows")
    (subject,) = [s for s in provider(tmp_path, **{SAMPLER: wrong}).subjects()[0] if s.op == "sample_recovered_tokens"]
    assert any(run_case(OPS[subject.op], subject, case).violations for case in cases(subject.op))
    line = next(i for i, text in enumerate(wrong.splitlines()[1:], 2) if "def sample_recovered" in text)
    assert subject.where == f"{SAMPLER}:{line}"


def test_every_implementation_calls_with_the_contracts_arguments() -> None:
    import inspect

    for names in IMPLEMENTATIONS:
        op = OPS[names.op]
        given = inspect.signature(names.launch).parameters.values()
        parameters = [each.name for each in given if each.default is each.empty][2:]  # what a partial has is fixed
        inputs = [arg.name for arg in op.args if isinstance(arg, ScalarArg) or arg.role.value != "out"]
        outputs = [arg.name for arg in op.tensor_args if arg.role.value == "out"]
        assert parameters in (inputs, inputs + outputs)


def test_noise_goes_where_it_is_asked_for_and_uniform_draws_come_in_the_wanted_type() -> None:
    coins = CoinTorch()
    coins.race, coins.uniform = torch.tensor([[1.0, 2.0]]), torch.tensor([0.25], dtype=torch.float64)
    made = coins.empty((1, 2))
    made.exponential_()
    assert made.tolist() == [[1.0, 2.0]]
    assert coins.rand((1,), dtype=torch.float64).tolist() == [0.25]
    assert coins.arange(2).tolist() == [0, 1]


# CUDA operations and headers, without a GPU


@pytest.mark.parametrize("text", ["sgl-kernel@{}", "flashinfer@{}"])
def test_without_a_gpu_cuda_code_is_not_run_in_one_sentence(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (tmp_path / "x").write_bytes(b"")
    subjects, missing = load_provider(parse_target(text.format(tmp_path / "x")), cache_in(tmp_path)).subjects()
    assert subjects == []
    assert "it is CUDA code and needs a CUDA device" in {entry.why for entry in missing}
    assert {entry.what for entry in missing} == set(OPS)
    with pytest.raises(UsageError, match="does not exist"):
        load_provider(parse_target(text.format(tmp_path / "nowhere")), cache_in(tmp_path))


ARGUMENTS = {  # of torch.ops.sgl_kernel, as its schemas say
    "build_tree_kernel_efficient": 12,
    "verify_tree_greedy": 8,
    "tree_speculative_sampling_target_only": 14,
    "reconstruct_indices_from_tree_mask": 8,
    "top_k_renorm_probs": 4,
    "top_p_renorm_probs": 4,
    "apply_token_bitmask_inplace_cuda": 3,
}


@pytest.mark.parametrize("op", [op for op, (name, _launch) in OPERATIONS.items() if name in ARGUMENTS])
def test_a_cuda_operation_gets_the_cases_own_tensors_in_its_order(op: str) -> None:
    name, launch = OPERATIONS[op]
    case = cases(op, 1)[0]
    tensors = {**case.tensors, **OPS[op].allocate_outputs(case)}
    calls: list[tuple[Any, ...]] = []
    launch(lambda *arguments: calls.append(arguments), case.sizes, tensors)()
    ((*arguments,),) = calls
    assert len(arguments) == ARGUMENTS[name]
    handed = {a.data_ptr() for a in arguments if isinstance(a, torch.Tensor) and a.numel()}
    kept = {tensor.data_ptr() for arg, tensor in tensors.items() if tensor.numel() and not arg.startswith("threshold")}
    if name != "top_k_renorm_probs":  # whose k must be int32, as it is here: `to` gives the same tensor
        assert kept <= handed


def test_the_library_is_found_in_a_file_a_folder_and_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no driver to ask: the folder for Hopper
    library = tmp_path / "unpacked" / "sgl_kernel" / "sm90" / "common_ops.abi3.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"ELF")
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.write(library, "sgl_kernel/sm90/common_ops.abi3.so")
    cache = cache_in(tmp_path)
    assert find_library(library, cache) == library
    assert find_library(tmp_path / "unpacked", cache) == library
    unpacked = find_library(wheel, cache)
    assert unpacked.read_bytes() == b"ELF"
    assert unpacked.is_relative_to(cache.folder)
    with pytest.raises(UsageError, match="has no sgl_kernel/sm90"):
        find_library(tmp_path, cache)


def test_flashinfers_headers_are_found_in_a_folder_and_a_wheel(tmp_path: Path) -> None:
    marker = tmp_path / "checkout" / "include" / "flashinfer" / "sampling.cuh"
    marker.parent.mkdir(parents=True)
    marker.write_text("// made up\n")
    cache = cache_in(tmp_path)
    assert headers(tmp_path / "checkout", cache) == tmp_path / "checkout" / "include"
    assert known_headers(cache) is None
    stored = cache.path("packages/flashinfer-python-1.2.zip")
    stored.parent.mkdir(parents=True)
    with zipfile.ZipFile(stored, "w") as made:
        made.write(marker, "flashinfer/data/include/flashinfer/sampling.cuh")
    found = known_headers(cache)
    assert found is not None
    assert (found / "flashinfer" / "sampling.cuh").read_text() == "// made up\n"
    with pytest.raises(UsageError, match="has no include/flashinfer"):
        headers(tmp_path, cache)


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, nvcc_says: str) -> None:
    """A machine whose driver knows a GPU, and whose compiler is a script."""
    script(folder / "bin" / "nvidia-smi", "echo 9.0")
    script(folder / "cuda" / "bin" / "nvcc", nvcc_says)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(folder / "cuda"))


def test_a_build_that_fails_says_its_first_error_and_leaves_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch, "echo warning: nothing; echo 'x.cu(3): error: no such thing'; exit 2")
    made = nvcc.build("made-up", "int x;", [tmp_path / "cuda"], cache_in(tmp_path))
    assert made.library is None
    assert "x.cu(3): error: no such thing (log: " in made.why
    log = Path(made.why.rpartition("(log: ")[2].rstrip(")"))
    assert "-arch=sm_90" in log.read_text()
    assert "exit code 2" in log.read_text()


def test_what_was_built_once_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = 'while [ "$1" != -o ]; do shift; done; echo made > "$2"'
    machine(tmp_path, monkeypatch, built)
    cache = cache_in(tmp_path)
    first = nvcc.build("made-up", "int x;", [], cache)
    assert first.library is not None
    assert first.library.read_text() == "made\n"
    script(tmp_path / "cuda" / "bin" / "nvcc", "exit 1")
    assert nvcc.build("made-up", "int x;", [], cache) == first
    assert nvcc.build("made-up", "int y;", [], cache).library is None


def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    assert "nvcc is neither on PATH" in nvcc.build("made-up", "", [], cache_in(tmp_path)).why


# What is kept of wheels


def pip_that_delivers(entries: dict[str, str]) -> Callable[..., PipResult]:
    def pip(command: Any) -> PipResult:
        folder = Path(command[command.index("-d") + 1])
        name, _, version = command[-1].partition("==")
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for entry, text in entries.items():
                wheel.writestr(entry, text)
        return PipResult(0, "")

    return pip


def test_of_a_wheel_only_what_is_read_is_kept_and_fetched_once(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    kept = {"vllm/v1/a.py": "A = 1", "vllm/b.py": "", "vllm-1.2.dist-info/METADATA": "Name: v"}
    entries = {**kept, "vllm/v1/a.so": "x", "vllm/models/a.py": ""}
    stored = fetch_package("vllm", "1.2", cache, pip=pip_that_delivers(entries))
    assert set(zipfile.ZipFile(stored).namelist()) == {*kept}
    assert fetch_package("vllm", "1.2", cache, pip=lambda _command: PipResult(1, "")) == stored
    assert cached_packages(cache) == [("vllm", "1.2")]
    assert list(cache.folder.glob(".scratch*")) == []


def test_what_was_kept_of_a_wheel_is_fetched_again_when_more_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, entries = cache_in(tmp_path), {"vllm/v1/a.py": "A = 1", "vllm/models/a.py": "B = 1"}
    first = fetch_package("vllm", "1.2", cache, pip=pip_that_delivers(entries))
    folder = folder_of(Release("vllm", "1.2"), cache)
    monkeypatch.setitem(ENGINES, "vllm", replace(ENGINES["vllm"], kept=re.compile(r"vllm/.*\.py")))
    again = fetch_package("vllm", "1.2", cache, pip=pip_that_delivers(entries))
    assert again == first
    assert set(zipfile.ZipFile(again).namelist()) == {*entries}
    assert folder_of(Release("vllm", "1.2"), cache) != folder


def test_a_release_that_pip_cannot_find_is_reported_by_its_name(tmp_path: Path) -> None:
    def pip(_command: Any) -> PipResult:
        return PipResult(1, "ERROR: Could not find a version that satisfies (from versions: 0.9.0, 0.9.2)")

    with pytest.raises(UsageError, match=r"no release flashinfer-python==9\.9 that pip can find"):
        fetch_package("flashinfer", "9.9", cache_in(tmp_path), pip=pip)


def test_every_package_has_an_entry_of_what_is_kept() -> None:
    assert {name for name, engine in ENGINES.items() if engine.kept is not None} == set(ENGINES) - {MAIN}


def test_a_finding_of_a_package_is_known_or_new() -> None:
    known = "ops:verify_tree_target_only:kernel:verify_tree_target_only"
    entry = triage_of("sgl-kernel", known, None)
    assert entry is not None
    assert entry.line.startswith("known: a child")
    assert triage_of("vllm", known, None) is None


# Counting


def drawn(dist: torch.Tensor, draws: int, seed: int) -> torch.Tensor:
    rows = torch.multinomial(dist.double(), draws, replacement=True, generator=torch.Generator().manual_seed(seed))
    return torch.stack([row.bincount(minlength=dist.shape[1]) for row in rows])


def test_counts_of_the_distribution_fit_and_those_of_another_do_not() -> None:
    dist = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    assert evidence(drawn(dist, 2**16, 1), dist, 2**16).fits.all()
    other = torch.tensor([[0.51, 0.24, 0.25, 0.0]])
    assert not evidence(drawn(other, 2**18, 1), dist, 2**18).fits.any()
    impossible = drawn(dist, 2**16 - 1, 1) + torch.tensor([[0, 0, 0, 1]])
    found = evidence(impossible, dist, 2**16)
    assert not found.fits.any()
    assert bool(found.occurs[0, 3])
    assert not evidence(drawn(dist, 100, 1), dist, 101).fits.any()


def test_a_sampler_that_forgets_its_filter_is_found() -> None:
    def sampler(probs: Any, top_k: Any, top_p: Any, min_p: Any, which_filter: int, seed: int, draws: int) -> Any:
        every = (torch.full_like(top_k, 99), torch.ones_like(top_p))
        dist = OPS["token_frequencies"].reference(
            probs, *(every if which_filter == MIN_P else (top_k, top_p)), 0 * min_p
        )
        right = OPS["token_frequencies"].reference(probs, top_k, top_p, min_p)
        return evidence(drawn(dist.frequencies, draws, seed), right.frequencies, draws)

    op = OPS["token_frequencies"]
    wrong = []
    for case in cases("token_frequencies", 40):
        expected = op.expected(case)
        actual = op.call(sampler, case.sizes, {**case.tensors, **op.allocate_outputs(case)})
        fits = bool(actual["fits"].all())
        if case.sizes["which_filter"] != MIN_P:
            assert fits
            assert torch.allclose(actual["frequencies"], expected["frequencies"], atol=op.tolerance["frequencies"])
        wrong.append(not fits)
    assert any(wrong)


def test_operations_of_others_are_named_once() -> None:
    assert set(OPS) >= WITHOUT_A_KERNEL
    assert {names.op for names in IMPLEMENTATIONS} - WITHOUT_A_KERNEL == {"verify_ragged_sampled"}


@pytest.mark.parametrize("version", ["0.11.0", "0.33.0"])
def test_a_release_of_vllm_shows_what_the_table_says(version: str) -> None:
    """Where the wheel is in the cache: no test fetches it."""
    from specsim.lifting.cache import open_cache

    cache: Cache = open_cache()
    if ("vllm", version) not in cached_packages(cache):
        pytest.skip(f"vllm=={version} is not in the cache: specsim targets --fetch vllm=={version}")
    subjects, _missing = load_provider(parse_target(f"vllm=={version}"), cache).subjects()
    known = {entry.signature for entry in TABLE["vllm"]}
    for subject in subjects:
        if f"ops:{subject.op}:{subject.name}" in known:
            continue
        count = 8 if subject.cost < 10 else 1
        for case in filter(lambda case: subject.accepts(case.sizes), cases(subject.op, count)):
            assert run_case(OPS[subject.op], subject, case).violations == (), subject.op


# By what is wrong: what the kernel has there, what takes its place, and the operation.
WRONG_SAMPLERS = {
    "tokens that are left out of a residual": (r"ratio < 1\.0", "ratio < 0.5", "chain_frequencies"),
    "a draft that is accepted too often": (r"tl\.log\(u\) \+", "2 * tl.log(u) +", "chain_frequencies"),
    "a ratio that is not carried on": (r"tl\.minimum\(log_p \+ \(", "tl.minimum((", "block_frequencies"),
    "a greedy draft that is not compared": (
        r"target_argmax == draft_sampled",
        "is_valid_draft",
        "verify_ragged_greedy",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_SAMPLERS)
def test_a_wrong_sampler_with_random_numbers_of_its_own_is_found(
    wrong: str, vllm_release: str, wheel_cache: Cache
) -> None:
    pattern, replacement, op = WRONG_SAMPLERS[wrong]
    source = edited(open_source(Release("vllm", vllm_release), wheel_cache), REJECTION, pattern, replacement)
    subjects = VllmProvider(source, wheel_cache).subjects()[0]
    (subject,) = [s for s in subjects if s.op == op and s.where.startswith(REJECTION)]

    def is_wrong(case: Case) -> bool:
        case.sizes["draws"] = 2**12
        with lockstep():
            results = subject.run(case.sizes, {**case.clone().tensors, **OPS[op].allocate_outputs(case)})
        return any(bool(wrong.any()) for wrong in OPS[op].wrong(case, OPS[op].expected(case), results).values())

    assert any(is_wrong(case) for case in cases(op, 16) if subject.accepts(case.sizes))


class Functions:
    """Stands for the library built of FlashInfer's headers: names alone, which `call` below gives a meaning."""

    specsim_sample, specsim_chain = "sample", "chain"


def call_in_torch(function: Any, *arguments: Any) -> None:
    """What FlashInfer's functions do with these arguments, by torch's own random numbers."""
    generator = torch.Generator().manual_seed(1)
    if function == "sample":
        _filter, probs, top_k, top_p, min_p, tokens, _valid, rows, vocab_size, _seed = arguments
        assert probs.shape == (rows.value, vocab_size.value)
        dist = OPS["token_frequencies"].reference(probs, top_k, top_p, min_p).frequencies
        tokens.copy_(torch.multinomial(dist.double(), 1, generator=generator)[:, 0])
    else:
        draft_probs, ids, target_probs, tokens, accepted, emitted, rows, num_steps, vocab_size, _seed = arguments
        assert draft_probs.shape == (rows.value, num_steps.value, vocab_size.value)
        coins = torch.rand((rows.value, num_steps.value), generator=generator)
        final = torch.rand(rows.value, generator=generator)
        root = torch.zeros_like(ids[:, :1])
        chains = torch.cat([root, ids], dim=1).long()
        found = OPS["verify_chain_rejection"].reference(chains, draft_probs, target_probs, coins, final)
        emitted += found.accept_token_num
        accepted += found.accept_token_num
        index = found.accept_index.clamp(min=0).long()
        tokens.copy_(torch.where(found.accept_index >= 0, found.predicts[index], -1))


@pytest.mark.parametrize("op", ["token_frequencies", "chain_frequencies"])
def test_a_sampler_is_drawn_by_as_many_rows_and_counted(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from specsim.engines.flashinfer import provider as flashinfer

    monkeypatch.setattr(flashinfer, "call", call_in_torch)
    monkeypatch.setattr(flashinfer, "ROWS_MAX", 2**13)
    for case in cases(op, 4):
        case.sizes["draws"] = 2**14
        tensors = {**case.clone().tensors, **OPS[op].allocate_outputs(case)}
        found = flashinfer.RUNS[op][1](Functions(), case.sizes, tensors)  # type: ignore[arg-type]
        expected = OPS[op].expected(case)
        assert bool(found["fits"].all())
        assert not bool(found["occurs"][expected["frequencies"] == 0].any())
        torch.testing.assert_close(
            found["frequencies"], expected["frequencies"], rtol=0, atol=OPS[op].tolerance["frequencies"]
        )


def test_revisions_of_a_clone_of_vllm_are_targets_of_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        named = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", "-C", str(tmp_path), *named, *arguments], check=True, capture_output=True)

    file = tmp_path / "vllm" / SAMPLER
    git("init", "-q")
    for text in ("A = 1\n", "A = 2\n"):
        for path in (file, tmp_path / "vllm" / UTILS):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git("add", "-A")
        git("commit", "-qm", text.strip())
    history = commits_between(tmp_path, "HEAD~1", "HEAD")
    assert [revision.target.rpartition("#")[0] for revision in history.revisions] == [f"vllm@{tmp_path}"] * 2
    texts = [revision.open(cache_in(tmp_path)).read(SAMPLER) for revision in history.revisions]
    assert texts == ["A = 1\n", "A = 2\n"]


@pytest.mark.parametrize("gpus", [[], ["cuda:0 a GPU"]])
def test_the_listing_says_which_packages_need_a_gpu_that_is_not_there(
    gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "gpus", lambda: gpus)
    notes = {entry["target"].split("==")[0].split("@")[0]: entry["note"] for entry in _listed(cache_in(tmp_path))}
    not_run = {package for package in ENGINES if package != MAIN and "not run here" in notes[package]}
    assert not_run == (set() if gpus else {"sglang-kernel", "sgl-kernel", "flashinfer"})


def _listed(cache: Cache) -> list[dict[str, str]]:
    targets: list[dict[str, str]] = listing.list_targets(cache)["targets"]
    return targets
