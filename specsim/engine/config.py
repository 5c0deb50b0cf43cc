"""The configuration of a simulated engine, and which ones no engine could run."""

from __future__ import annotations

from dataclasses import dataclass

from specsim.engine.model import VOCABULARY
from specsim.errors import UsageError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A flat set of options.

    `page_size`         tokens a KV page
    `topk`              children that the drafter keeps per expanded node; 1 is a chain
    `num_steps`         draft steps
    `num_draft_tokens`  nodes of the tree handed to verification, the root included
    `pool_slots`        KV slots
    `rows`              rows of `req_to_token`: requests and sessions that can hold KV at a time
    `context_len`       prompt plus output of a request, at most
    `overlap`           the host launches a step before it has seen the result of the one before
    `radix`             finished and prefilled requests leave their KV in a radix cache
    `bigram`            its keys are pairs of tokens, as EAGLE's are
    `chunk_size`        tokens of a prefill launch at most, whole pages; 0 for no bound
    `mixed_chunk`       a launch with a part of a prefill takes the decode rows along
    `late_results`      the host may take a result between the preparation of a step and its launch, as for a grammar
    `adaptive`          each decode step is as long as is chosen at its launch, `num_steps` at most; chains only
    `window`            positions before its own that a layer of a sliding window reads; 0 for no such layers
    `swa_pool_slots`    slots of the window's pool; 0 for as many as `pool_slots`
    `tight_pool`        a request may outgrow the pool, and is then dropped
    `draft_layers`      layers of the drafter whose KV is simulated, a pool each; 0 for none, more than one for chains
    `graph_sizes`       batch sizes of captured CUDA graphs; smaller batches are padded; none: no graphs
    `idle_batches`      ranks without a request run batches of zero
    `relaxed_penalties` penalties are cumulated on the host, one token a launch, and are the same for all nodes
    `streams`           the device has streams of its own for schedule, plan, forward and copy
    (`specsim.engine.streams`)
    """

    page_size: int = 1
    topk: int = 1
    num_steps: int = 3
    num_draft_tokens: int = 4
    pool_slots: int = 256
    rows: int = 4
    context_len: int = 64
    overlap: bool = True
    radix: bool = False
    bigram: bool = False
    chunk_size: int = 0
    mixed_chunk: bool = False
    late_results: bool = False
    adaptive: bool = False
    window: int = 0
    swa_pool_slots: int = 0
    tight_pool: bool = False
    draft_layers: int = 0
    graph_sizes: tuple[int, ...] = ()
    idle_batches: bool = False
    relaxed_penalties: bool = False
    streams: bool = False

    @property
    def alloc_len(self) -> int:
        """A: positions that one step may touch, whatever is accepted: those of its drafts, or of its verification.

        With larger pages every branch of a tree drafts into whole pages of its own, and the worst case is a sequence
        that ends one slot before the end of a page.
        """
        drafts = self.num_steps
        if self.page_size > 1 and self.topk > 1:
            drafts = -(-(self.page_size - 1 + self.num_steps) // self.page_size) * self.page_size
        return max(drafts * self.topk, self.num_draft_tokens)

    @property
    def reserve(self) -> int:
        """Positions allocated beyond the known length at a launch: one step in flight, and the one being launched."""
        return 2 * self.alloc_len

    @property
    def accept_width(self) -> int:
        return self.num_steps + 1

    @property
    def row_width(self) -> int:
        return self.context_len + self.reserve + self.page_size

    @property
    def request_slots_max(self) -> int:
        """Slots that one request may hold at most."""
        return -(-(self.context_len + self.reserve) // self.page_size) * self.page_size


def require_runnable(config: EngineConfig) -> None:
    """Raises UsageError for a configuration that no engine could run."""
    for name in ("page_size", "topk", "num_steps", "pool_slots", "rows", "context_len"):
        _require(getattr(config, name) >= 1, f"{name}={getattr(config, name)}", f"{name} must be at least 1")
    _require(
        config.num_draft_tokens >= 2, f"num_draft_tokens={config.num_draft_tokens}", "a tree has a root and a draft"
    )
    _require(config.topk <= VOCABULARY, f"topk={config.topk}", f"the vocabulary has {VOCABULARY} tokens")
    chain = config.num_steps + 1
    if config.topk == 1:
        reason = f"with topk=1 the tree is a chain of num_steps + 1 = {chain} nodes"
        _require(config.num_draft_tokens == chain, f"num_draft_tokens={config.num_draft_tokens}", reason)
    most = 1 + config.topk + (config.num_steps - 1) * config.topk**2
    reason = f"topk={config.topk} and num_steps={config.num_steps} draft at most {most - 1} tokens"
    _require(config.num_draft_tokens <= most, f"num_draft_tokens={config.num_draft_tokens}", reason)
    whole = config.chunk_size >= 0 and config.chunk_size % config.page_size == 0
    _require(whole, f"chunk_size={config.chunk_size}", f"a chunk is whole pages of {config.page_size}")
    _require(not config.mixed_chunk or config.chunk_size > 0, "mixed_chunk=True", "there are no chunks to mix with")
    _require(not config.adaptive or config.topk == 1, "adaptive=True", "only chains change their length")
    _require(
        not (config.graph_sizes and config.adaptive), "graph_sizes with adaptive=True", "graphs are of one tree size"
    )
    _require(not config.bigram or config.radix, "bigram=True", "there is no radix cache to have keys")
    if config.draft_layers > 1:
        _require(config.topk == 1, f"topk={config.topk}", "drafters of several layers draft chains")
    _require(config.window >= 0, f"window={config.window}", "a window has positions")
    if config.swa_pool_slots:
        _require(config.window > 0, f"swa_pool_slots={config.swa_pool_slots}", "there is no window to have slots")
        least, most = config.request_slots_max, config.pool_slots
        reason = f"one request needs {least} of them, and the full pool has {most}"
        _require(least <= config.swa_pool_slots <= most, f"swa_pool_slots={config.swa_pool_slots}", reason)
    _require(
        config.tight_pool or config.pool_slots >= config.request_slots_max,
        f"pool_slots={config.pool_slots}",
        f"one request of context_len={config.context_len} needs {config.request_slots_max}",
    )


def _require(holds: bool, value: str, reason: str) -> None:
    if not holds:
        raise UsageError(f"no engine could run {value}", reason)
