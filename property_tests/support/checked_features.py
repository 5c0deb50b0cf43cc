"""Which tier checks which feature of the newest release, derived from what the tiers draw and from what was judged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.engines.sglang.scheduler.setups import FACTS, SETUPS
from specsim.world.scheduler import rows_of
from specsim.world.workload import SALTED

FIXTURES = Path(__file__).parents[2] / "fixtures"
ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature, and what would show that a tier runs it.

    `option`     field of the release's server arguments; "" for what a request asks for or the scheduler does by itself
    `setup`      fields of Setup that turn it on, together; ALWAYS where every setup has it
    `drawn`      kind of things that the scheduler tier draws
    `judged`     kernels and functions that the ops tier compares with the reference
    """

    name: str
    option: str = ""
    setup: tuple[str, ...] = ()
    drawn: str = ""
    judged: tuple[str, ...] = ()

    def is_run_by(self, worker: str) -> bool:
        """Whether the scheduler tier with this worker draws it."""
        if ALWAYS in self.setup or self.drawn in FACTS.features:
            return True
        setups = (SETUPS[row] for row in rows_of(SETUPS, worker))
        return bool(self.setup) and any(setup.settings.keys() >= set(self.setup) for setup in setups)


FEATURES = (
    Feature(
        "EAGLE drafts, a chain",
        option="speculative_algorithm",
        setup=(ALWAYS,),
        judged=("caller:run_eagle_verify, chains",),
    ),
    Feature(
        "EAGLE drafts, a tree",
        option="speculative_eagle_topk",
        setup=("topk",),
        judged=("function:organize_draft_results", "function:build_tree_kernel_efficient", "caller:run_eagle_verify"),
    ),
    Feature("trees in pages", option="page_size", setup=("topk", "page_size")),
    Feature(
        "a draft model for each step",
        option="enable_multi_layer_eagle",
        setup=("multi_layer",),
        judged=("caller:MultiLayerEagleDraftWorker._draft_extend_for_prefill", "kernel:rotate_input_ids"),
    ),
    Feature("draft steps that adapt", option="speculative_adaptive", setup=("adaptive",)),
    Feature("overlap", option="disable_overlap_schedule", setup=(ALWAYS,)),
    Feature("no overlap", option="disable_overlap_schedule", setup=("overlap",)),
    Feature(
        "pages of several tokens",
        option="page_size",
        setup=("page_size",),
        judged=("kernel:alloc_extend", "kernel:alloc_decode"),
    ),
    Feature("prefix cache", option="disable_radix_cache", setup=(ALWAYS,)),
    Feature("salts of the prefix cache", drawn=SALTED),
    Feature("chunked prefill", option="chunked_prefill_size", setup=("chunk",)),
    Feature("prefill and decode in one batch", option="enable_mixed_chunk", setup=("mixed",)),
    Feature("retraction", option="schedule_conservativeness", setup=("reserve",)),
    Feature("priorities, preemption", option="enable_priority_scheduling", setup=("priorities",)),
    Feature("sessions", option="enable_streaming_session", setup=("sessions",)),
    Feature("sliding window", option="swa_full_tokens_ratio", setup=("window",)),
    Feature("CUDA graphs", option="disable_cuda_graph", setup=("graphs",)),
    Feature("aborts", drawn="aborts"),
    Feature("pauses", drawn="pauses"),
    Feature("flushes of the cache", drawn="flushes"),
    Feature("stop tokens", drawn="stop tokens"),
    Feature("stop strings", drawn="stop strings"),
    Feature(
        "grammars",
        option="grammar_backend",
        drawn="grammars",
        judged=("kernel:apply_token_bitmask",),
    ),
    Feature(
        "penalties",
        drawn="penalties",
        judged=("caller:eagle_sample, penalties", "function:BatchedPenalizerOrchestrator.apply"),
    ),
    Feature("logprobs of answers", drawn="logprobs"),
    Feature(
        "temperature, top-p, top-k",
        setup=("sampled",),
        judged=("caller:eagle_sample, tree", "caller:eagle_sample, chain"),
    ),
    Feature("min-p", judged=("caller:eagle_sample, min_p",)),
    Feature(
        "rejection sampling of chains",
        option="speculative_use_rejection_sampling",
        judged=("kernel:verify_chain_rejection",),
    ),
    Feature(
        "block verification",
        option="speculative_use_block_verification",
        judged=("caller:eagle_sample, block", "kernel:verify_chain_block"),
    ),
    Feature("STANDALONE, NGRAM, DFLASH and other drafts", option="speculative_algorithm"),
    Feature("logprobs of prompts, hidden states"),
    Feature("several ranks", option="tp_size"),
    Feature("prefill and decode on separate servers", option="disaggregation_mode"),
    Feature("hierarchical cache", option="enable_hierarchical_cache", setup=("hicache",)),
    Feature("LoRA", option="enable_lora"),
    Feature("linear attention", option="mamba_backend"),
)


def expected(name: str, release: str) -> dict[str, Any]:
    """What the tests expect of a release: fixtures/NAME.expected.json."""
    read: dict[str, dict[str, Any]] = json.loads((FIXTURES / f"{name}.expected.json").read_text())
    return read[release]


def judged_of(release: str) -> set[str]:
    """Kernels and functions that the ops tier compares with the reference there."""
    return {*expected("releases", release)["judged"], *expected("functions", release)["judged"]}


def table(release: str) -> str:
    """Markdown."""
    columns = ["feature", "option", "scheduler", "scheduler, release's worker", "ops"]
    lines = [columns, ["--"] * len(columns)]
    for feature in FEATURES:
        ran = (feature.is_run_by("fake"), feature.is_run_by("release"))
        option = f"`--{feature.option.replace('_', '-')}`" if feature.option else ""
        names = ", ".join(f"`{name.partition(':')[2]}`" for name in feature.judged)
        lines.append([feature.name, option, *("yes" if one else "" for one in ran), names])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
