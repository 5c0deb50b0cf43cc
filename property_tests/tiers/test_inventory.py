"""Which kernels of a source run in an operation: what counts as a kernel, what as covered, and what the page says."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from property_tests.support.command_line import specsim
from property_tests.support.known_releases import NEWEST, RELEASES
from property_tests.support.made_up_sources import MadeUpSource
from property_tests.support.pages import ROOT
from specsim.contracts.provider import Subject
from specsim.engines.registry import ENGINES
from specsim.lifting.cache import Cache
from specsim.lifting.kernels import kernel_places
from specsim.lifting.lift import Lifter
from specsim.lifting.source import SourceTree
from specsim.report.inventory import page
from specsim.tiers.ops.inventory import REASONS, compiled_inventory, inventory

FILE = "srt/speculative/kernels_of_tests.py"
SOURCE = MadeUpSource(
    {
        FILE: """
            import triton
            import triton.language as tl

            @triton.jit
            def part_of_a_kernel(values):
                return values + 1

            @triton.jit(do_not_specialize=["count"])
            def launched_kernel(source_ptr, target_ptr, count, BLOCK: tl.constexpr):
                at = tl.arange(0, BLOCK)
                values = tl.load(source_ptr + at, mask=at < count)
                tl.store(target_ptr + at, part_of_a_kernel(values), mask=at < count)

            @triton.jit
            def other_kernel(target_ptr):
                tl.store(target_ptr, 0)

            @torch.jit.script
            def no_kernel(values):
                return values
            """,
        "srt/speculative/no_python.txt": "@triton.jit",
        "srt/managers/elsewhere.py": "@triton.jit\ndef elsewhere(target_ptr):\n    return\n",
    }
)
PAGE = ROOT / "docs" / "covered-kernels.md"


def test_a_kernel_is_what_triton_compiles_and_no_other_kernel_calls() -> None:
    assert [(place.name, place.line - place.first_line) for place in kernel_places(SOURCE, ("srt/speculative",))] == [
        ("launched_kernel", 1),
        ("other_kernel", 1),
    ]
    assert [place.name for place in kernel_places(SOURCE, ("srt/managers/elsewhere.py",))] == ["elsewhere"]
    assert kernel_places(SOURCE, ("no/such/folder",)) == []


def test_a_kernel_is_covered_when_an_implementation_launches_it(wheel_cache: Cache) -> None:
    kernel = Lifter(SOURCE, wheel_cache, {}).lift(FILE, "launched_kernel").value

    def launches(_sizes: object, tensors: dict[str, object]) -> dict[str, object]:
        kernel[(1,)](tensors["predict"], tensors["bonus_tokens"], 1, BLOCK=1)
        raise ValueError("what was launched before an error counts, too")

    def of(name: str, **more: object) -> Subject:
        return Subject("fill_bonus_tokens", run=launches, name=name, **more)  # type: ignore[arg-type]

    subjects = [
        of("kernel:a", role="kernel"),
        of("kernel:b", role="kernel", accepts=lambda _sizes: False),
        of("caller:Worker.verify", role="caller", needs="kernel:a"),
        of("caller:Worker.draft", role="caller", needs="kernel:b"),
    ]
    launched, other = inventory("sglang", SOURCE, subjects)
    assert (launched.operations, launched.callers, launched.why) == (("fill_bonus_tokens",), ("Worker.verify",), "")
    assert (other.operations, other.callers) == ((), ())


def test_a_compiled_function_is_named_once_and_what_runs_on_cpus_is_not() -> None:
    source = MadeUpSource(
        {
            "srt/speculative/walks.py": """
            from sgl_kernel import verify_tree_greedy, fill_bonus_tokens_cpu
            from flashinfer.sampling import softmax as _softmax

            def walk():
                from sgl_kernel.speculative import verify_tree_greedy as again
            """,
            "srt/speculative/built.py": """
            def build(vec):
                load_jit("a", vec, cuda_wrappers=[("sample", f"tree_speculative_sampling_target_only<{vec}>")])
                load_jit("b", cuda_wrappers=[("walk", "walk")])
                return load_jit("of the host", cpp_files=["trie.cpp"])
            """,
        }
    )
    assert {row.place.name: (row.place.line, row.operations) for row in compiled_inventory("sglang", source)} == {
        "verify_tree_greedy": (2, ("verify_tree_greedy",)),
        "softmax": (3, ()),
        "tree_speculative_sampling_target_only": (3, ("verify_tree_target_only",)),
        "walk": (4, ()),
    }
    assert compiled_inventory("vllm", source) == []


def test_every_reason_is_of_a_kernel_that_no_operation_runs() -> None:
    """The page names the kernels of the newest releases, and is checked by the next tests but one."""
    text = PAGE.read_text(encoding="utf-8")
    for engine, reasons in tomllib.loads(REASONS.read_text(encoding="utf-8")).items():
        assert ENGINES[engine].speculation
        for where, why in reasons.items():
            rows = [row for row in text.splitlines() if f"`{where}" in row]
            assert rows, where
            assert all(f"not covered: {why}" in row for row in rows), where


def test_targets_prints_and_writes_the_kernels(
    release: Callable[[str], SourceTree], wheel_cache: Cache, tmp_path: Path
) -> None:
    release(NEWEST)
    wanted = ["targets", "--kernels", f"sglang=={NEWEST}", "--cache-dir", str(wheel_cache.folder)]
    done = specsim(tmp_path, *wanted, "--json", "k.json", "--write", "k.md")
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads((tmp_path / "k.json").read_text())["targets"]
    by_name = {kernel["name"]: kernel for kernel in entry["kernels"]}
    assert by_name["fill_bonus_tokens"]["operations"] == ["fill_bonus_tokens"]
    assert "EAGLEWorkerV2.verify" in by_name["fill_bonus_tokens"]["callers"]
    covered = sum(bool(kernel["operations"]) for kernel in by_name.values())
    assert f"{covered} of {len(by_name)} kernels run in an operation" in done.stdout
    assert "| `fill_bonus_tokens` |" in (tmp_path / "k.md").read_text()


def test_the_page_is_what_is_there_of_vllm(vllm_release: str, wheel_cache: Cache, tmp_path: Path) -> None:
    assert _written(f"vllm=={vllm_release}", wheel_cache, tmp_path) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("version", [RELEASES[-1]])
def test_the_page_is_what_is_there_of_sglang(
    version: str, release: Callable[[str], SourceTree], wheel_cache: Cache, tmp_path: Path
) -> None:
    release(version)
    assert _written(f"sglang=={version}", wheel_cache, tmp_path) in PAGE.read_text(encoding="utf-8")


def _written(target: str, cache: Cache, folder: Path) -> str:
    """What the page says of one target."""
    done = specsim(
        folder, "targets", "--kernels", target, "--cache-dir", str(cache.folder), "--json", str(folder / "k.json")
    )
    assert done.returncode == 0, done.stderr
    return page(json.loads((folder / "k.json").read_text())["targets"], "").partition("## ")[2]


@pytest.mark.parametrize("targets", [[], ["model"], ["sglang-kernel==0.4.4"]])
def test_what_has_no_kernels_to_list_is_refused(targets: list[str], tmp_path: Path) -> None:
    done = specsim(tmp_path, "targets", "--kernels", *targets)
    assert done.returncode == 2
    assert "Name a release or a checkout of sglang or vllm" in done.stderr
